"""Ratifying: one commit becomes rows, inside the transaction that holds the table's head; and its undoing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from deltalakedb.exceptions import InvalidArgumentError, ProtocolError
from deltalakedb.metastore import audit, commits, files
from deltalakedb.metastore.rows import Head, LockedTable, head_values
from deltalakedb.protocol.actions import (
    Action,
    Add,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    kind_of,
)
from deltalakedb.protocol.json_text import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from deltalakedb.metastore.engines.base import Session

_COMMIT_COLUMNS = (
    "table_id", "version", "txn_uuid", "ordinal", "timestamp", "operation", "is_blind_append", "data_change",
    "num_added", "num_removed", "info", "origin", "actor", "sha256", "size_bytes",
)  # fmt: skip
_HEAD_COLUMNS = (
    "head_version", "head_timestamp", "first_version", "num_files", "size_bytes", "num_records",
    "files_without_count", "next_file_seq", "metadata_version", "protocol_version", "head_sha256",
)  # fmt: skip

#: tables whose rows are live from a version on, up to another
_INTERVALS = ("dl_metadata", "dl_protocol", "dl_txns", "dl_domains")
#: what a table has beside its files
State: TypeAlias = Metadata | Protocol | Txn | DomainMetadata


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What a commit's row says about its files and its bytes."""

    data_change: bool
    added: int
    removed: int
    sha256: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Streamed:
    """A commit too large for memory: ``pieces`` reads its removes or adds; its bytes stay in the log."""

    pieces: Callable[[type[Add | Remove]], Iterator[Sequence[Add | Remove]]]
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Ratification:
    """A commit whose version, time and bytes are fixed."""

    version: int
    timestamp: int
    actions: Sequence[Action]
    data: bytes | None
    txn_uuid: str
    ordinal: int = 0
    is_blind_append: bool = False
    origin: str = "sql"
    published: bool = False
    #: the adds have new names made for this commit: no live file can have them
    new_names: bool = False
    #: the files, if they are not among the actions
    streamed: Streamed | None = None
    #: counts of its files, if they are not among the actions, and of bytes that are not kept
    facts: CommitFacts | None = None
    #: what it depends on, as JSON; kept until it is published
    reads: str | None = None

    @property
    def info(self) -> CommitInfo | None:
        return next((a for a in self.actions if isinstance(a, CommitInfo)), None)

    def counted(self) -> CommitFacts:
        """The facts that were given, or counted from the actions; digest and size of the bytes."""
        facts = self.facts
        if facts is None:
            files = [a for a in self.actions if isinstance(a, Add | Remove)]
            added = sum(isinstance(a, Add) for a in files)
            facts = CommitFacts(any(a.data_change for a in files), added, len(files) - added)
        if self.data is None or facts.sha256 is not None:
            return facts
        return replace(facts, sha256=commits.digest(self.data), size=len(self.data))


def ratify(session: Session, locked: LockedTable, commit: Ratification) -> LockedTable:
    table, head = locked.table, locked.table.head
    adds = [a for a in commit.actions if isinstance(a, Add)]
    removes = [a for a in commit.actions if isinstance(a, Remove)]
    named = [a.path for a in (removes if commit.new_names else (*removes, *adds))]
    live = files.live_files(session, table.table_id, named) if named else {}
    apply_state(session, table.table_id, commit.version, commit.actions)
    changes = files.FileChanges(session, table.table_id, locked.next_file_seq, files.Counts.of(head), live)
    if (streamed := commit.streamed) is None:
        facts = commit.counted()
    else:
        changes.apply_pieces(commit.version, streamed.pieces(Remove))
        changes.apply_pieces(commit.version, streamed.pieces(Add))
        counts = (changes.data_change, changes.added, changes.removed)
        facts = CommitFacts(*counts, streamed.sha256, streamed.size)
    commit, info = replace(commit, facts=facts), commit.info
    changes.apply(commit.version, (*removes, *adds))
    changes.rows.flush()
    write_commits(session, table.table_id, [commit])
    first = commit.version if head.version < 0 else head.first_version
    kinds = set(map(type, commit.actions))
    moved = replace(
        locked,
        table=replace(table, head=changes.counts.head(commit.version, commit.timestamp, first)),
        next_file_seq=changes.rows.next_seq,
        metadata_version=commit.version if Metadata in kinds else locked.metadata_version,
        protocol_version=commit.version if Protocol in kinds else locked.protocol_version,
        digest=facts.sha256,
    )
    set_head(session, moved)
    audit.record(
        session,
        "commit",
        table,
        version=commit.version,
        txn=commit.txn_uuid,
        at=commit.timestamp,
        operation=info and info.operation,
        added=facts.added,
        removed=facts.removed,
        origin=commit.origin,
    )
    return moved


def apply_state(session: Session, table_id: int, version: int, actions: Sequence[Action]) -> None:
    """Write metadata, protocol, txns and domains as intervals."""
    own: dict[str, object]
    for action in _unique_state_actions(actions, version):
        match action:
            case Metadata():
                kind, table, own = "metadata", "dl_metadata", {}
            case Protocol():
                kind, table, own = "protocol", "dl_protocol", {}
            case Txn():
                kind, table = "txn", "dl_txns"
                own = {"app_id": action.app_id, "app_version": action.version}
            case DomainMetadata():
                kind, table = "domain", "dl_domains"
                own = {"domain": action.domain, "removed": action.removed}
        # the first of its own columns is its name
        ended = (version, table_id, *list(own.values())[:1])
        session.update_many(session.sql("snapshots", f"close {kind}"), [ended])
        row = {"table_id": table_id, **own, "add_version": version, "raw": encode_json(action.to_dict())}
        session.insert(table, tuple(row), [tuple(row.values())])


def _unique_state_actions(actions: Sequence[Action], version: int) -> Iterable[State]:
    """The actions that are about no file; of several txns of an application the last one."""
    kept: dict[tuple[str, str], State] = {}
    for action in actions:
        if isinstance(action, Metadata | Protocol):
            name = ""
        elif isinstance(action, Txn | DomainMetadata):
            name = action.app_id if isinstance(action, Txn) else action.domain
        else:
            continue
        key = (kind_of(action), name)
        if key in kept and not isinstance(action, Txn):
            what = " ".join(filter(None, key))
            raise ProtocolError(
                f"version {version} contains two {what} actions",
                version=version,
                suggestion="have the writer of the commit correct it",
            )
        kept[key] = action
    return kept.values()


def write_commits(session: Session, table_id: int, ratified: Sequence[Ratification]) -> None:
    """Commits' own rows: what they were, their bytes, and their places in the outbox."""
    session.insert("dl_commits", _COMMIT_COLUMNS, [_commit_row(table_id, c) for c in ratified])
    kept = [(table_id, c.version, c.data) for c in ratified if c.data is not None]
    session.insert("dl_commit_bytes", ("table_id", "version", "bytes"), kept)
    waiting = [(table_id, c.version, "pending", 0, c.reads) for c in ratified if not c.published]
    session.insert("dl_outbox", ("table_id", "version", "state", "attempts", "reads"), waiting)


def _commit_row(table_id: int, commit: Ratification) -> tuple[object, ...]:
    info, facts = commit.info, commit.counted()
    return (
        table_id,
        commit.version,
        commit.txn_uuid,
        commit.ordinal,
        commit.timestamp,
        info and info.operation,
        commit.is_blind_append,
        facts.data_change,
        facts.added,
        facts.removed,
        None if info is None else encode_json(info.to_dict()),
        commit.origin,
        audit.actor(),
        facts.sha256,
        facts.size,
    )


def set_head(session: Session, locked: LockedTable) -> None:
    state = (locked.next_file_seq, locked.metadata_version, locked.protocol_version)
    values = (*head_values(locked.table.head), *state, locked.digest, locked.table.table_id)
    session.update_rows("dl_heads", _HEAD_COLUMNS, "table_id", [values])


def revert(session: Session, locked: LockedTable, first: int) -> None:
    """Undo every commit of a table from a version on, which must be unpublished; the one before stays.

    What replaces them is committed in the same transaction: readers must never see the table without it.
    """
    table, before = locked.table, first - 1
    revert_rows(session, table.table_id, first)
    kept = commits.by_id(session, table.table_id, before)
    if kept is None:
        raise InvalidArgumentError(f"the catalog does not have version {before}", table=table.name)
    totals = files.totals_at(session, table.table_id, before)
    metadata, protocol = live_state_versions(session, table.table_id)
    head = Head(before, kept.timestamp, table.head.first_version, *totals)
    # what is known of publishing and of the newest digest may be about the undone versions
    moved = LockedTable(replace(table, head=head), locked.next_file_seq, metadata, protocol, locked.frozen)
    set_head(session, moved)
    audit.record(session, "take back", table, version=before, first=first, last=table.head.version)


def revert_rows(session: Session, table_id: int, first: int) -> None:
    """Delete the rows of versions from one on, without moving the head."""
    files.revert_files(session, table_id, first)
    for table in _INTERVALS:
        session.run(f"DELETE FROM {table} WHERE table_id = ? AND add_version >= ?", (table_id, first))  # noqa: S608
        reopen = f"UPDATE {table} SET remove_version = NULL WHERE table_id = ? AND remove_version >= ?"  # noqa: S608
        session.run(reopen, (table_id, first))
    for table in ("dl_outbox", "dl_commit_bytes", "dl_commits"):
        session.run(f"DELETE FROM {table} WHERE table_id = ? AND version >= ?", (table_id, first))  # noqa: S608


def live_state_versions(session: Session, table_id: int) -> tuple[int, int]:
    row = session.row(session.sql("snapshots", "state versions"), (table_id, table_id))
    metadata, protocol = row or (-1, -1)
    return metadata, protocol
