"""Ratifying: one commit becomes rows, inside the transaction that holds the table's head; and its undoing."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from deltalakedb.exceptions import InvalidArgumentError, ProtocolError
from deltalakedb.metastore import audit, commits, files
from deltalakedb.metastore.rows import Head, LockedTable
from deltalakedb.metastore.statements import statements
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
from deltalakedb.protocol.codec import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.slots import SlotEncoder

_COMMIT_COLUMNS = (
    "table_id",
    "version",
    "txn_uuid",
    "ordinal",
    "timestamp",
    "operation",
    "is_blind_append",
    "data_change",
    "num_added",
    "num_removed",
    "info",
    "origin",
    "actor",
    "sha256",
    "size_bytes",
)
_HEAD_COLUMNS = (
    "head_version",
    "head_timestamp",
    "first_version",
    "num_files",
    "size_bytes",
    "num_records",
    "files_without_count",
    "next_file_seq",
    "metadata_version",
    "protocol_version",
    "shape",
    "head_sha256",
)

#: what a table has beside its files
State: TypeAlias = Metadata | Protocol | Txn | DomainMetadata


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What a commit's row says about its files, and about bytes that are not kept."""

    data_change: bool
    added: int
    removed: int
    sha256: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Streamed:
    """A commit that is too large to be held in memory; its bytes stay in the log alone.

    Attributes:
        pieces: Reads its removes or its adds, in lists of a bounded length.
        sha256: The digest of its bytes.
        size: How many there are.
    """

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
    def sha256(self) -> str | None:
        """The digest of its bytes, if they are known."""
        if self.data is not None:
            return commits.digest(self.data)
        return None if self.facts is None else self.facts.sha256

    @property
    def counted(self) -> CommitFacts:
        """What its row says of its files."""
        if self.facts is not None:
            return self.facts
        files = [a for a in self.actions if isinstance(a, Add | Remove)]
        added = sum(isinstance(a, Add) for a in files)
        return CommitFacts(any(a.data_change for a in files), added, len(files) - added)


def ratify(session: Session, locked: LockedTable, commit: Ratification) -> LockedTable:
    """Write a commit's rows and move the head; the caller has checked that it may."""
    table, head = locked.table, locked.table.head
    adds = [a for a in commit.actions if isinstance(a, Add)]
    removes = [a for a in commit.actions if isinstance(a, Remove)]
    named = [a.path for a in (removes if commit.new_names else (*removes, *adds))]
    live = files.live_files(session, table.table_id, named) if named else {}
    state = apply_state(session, table.table_id, commit.version, commit.actions)
    encoder = state or files.slot_encoder(session, table.table_id, locked.shape)
    if state is None and locked.shape:
        files.remember_shape(session.engine, table.table_id, locked.shape)
    changes = files.FileChanges(
        session, table.table_id, locked.next_file_seq, encoder, files.Counts.of(head), live
    )
    if (streamed := commit.streamed) is None:
        facts = commit.counted
    else:
        changes.apply_pieces(commit.version, streamed.pieces(Remove))
        changes.apply_pieces(commit.version, streamed.pieces(Add))
        facts = CommitFacts(
            changes.data_change, changes.added, changes.removed, streamed.sha256, streamed.size
        )
    commit = replace(commit, facts=facts)
    with session.batch(len(adds) + len(removes)):
        changes.apply(commit.version, (*removes, *adds))
        changes.rows.flush()
        write_commits(session, table.table_id, [commit])
        first = commit.version if head.version < 0 else head.first_version
        moved = LockedTable(
            replace(table, head=changes.counts.head(commit.version, commit.timestamp, first)),
            changes.rows.next_seq,
            *state_versions(locked, commit.version, commit.actions),
            locked.frozen,
            uuid.uuid4().hex if state is not None else locked.shape,
            commit.sha256,
            locked.published_version,
            locked.paused,
        )
        set_head(session, moved)
        audit.record(
            session,
            "commit",
            table_id=table.table_id,
            table=table.name,
            version=commit.version,
            txn=commit.txn_uuid,
            at=commit.timestamp,
            operation=_operation(commit.actions),
            added=facts.added,
            removed=facts.removed,
            origin=commit.origin,
        )
    return moved


def state_versions(locked: LockedTable, version: int, actions: Sequence[Action]) -> tuple[int, int]:
    """Since when the live metadata and protocol hold after some actions."""
    metadata = any(isinstance(a, Metadata) for a in actions)
    protocol = any(isinstance(a, Protocol) for a in actions)
    return (
        version if metadata else locked.metadata_version,
        version if protocol else locked.protocol_version,
    )


def apply_state(
    session: Session, table_id: int, version: int, actions: Sequence[Action]
) -> SlotEncoder | None:
    """Write metadata, protocol, txns and domains as intervals; the new encoder if the schema changed.

    Raises:
        ProtocolError: Two actions of one kind that a commit may have once.
    """
    encoder = None
    for action in _unique_state_actions(actions, version):
        if isinstance(action, Metadata):
            session.run(session.sql("snapshots", "close metadata"), (version, table_id))
            _interval(session, "dl_metadata", table_id, version, encode_json(action.to_dict()))
            encoder = files.assign_slots(session, table_id, version, action)
        elif isinstance(action, Protocol):
            session.run(session.sql("snapshots", "close protocol"), (version, table_id))
            _interval(session, "dl_protocol", table_id, version, encode_json(action.to_dict()))
        elif isinstance(action, Txn):
            session.run(session.sql("snapshots", "close txn"), (version, table_id, action.app_id))
            columns = ("table_id", "app_id", "app_version", "add_version", "raw")
            raw = encode_json(action.to_dict())
            session.insert("dl_txns", columns, [(table_id, action.app_id, action.version, version, raw)])
        else:
            session.run(session.sql("snapshots", "close domain"), (version, table_id, action.domain))
            columns = ("table_id", "domain", "removed", "add_version", "raw")
            raw = encode_json(action.to_dict())
            session.insert("dl_domains", columns, [(table_id, action.domain, action.removed, version, raw)])
    return encoder


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


def _interval(session: Session, table: str, table_id: int, version: int, raw: str) -> None:
    session.insert(table, ("table_id", "add_version", "raw"), [(table_id, version, raw)])


def write_commits(session: Session, table_id: int, ratified: Sequence[Ratification]) -> None:
    """Commits' own rows: what they were, their bytes, and their places in the outbox."""
    session.insert("dl_commits", _COMMIT_COLUMNS, [_commit_row(table_id, c) for c in ratified])
    kept = [(table_id, c.version, c.data) for c in ratified if c.data is not None]
    if kept:
        session.insert("dl_commit_bytes", ("table_id", "version", "bytes"), kept)
    open_ = [(table_id, c.version, "pending", 0, c.reads) for c in ratified if not c.published]
    if open_:
        session.insert("dl_outbox", ("table_id", "version", "state", "attempts", "reads"), open_)


def _commit_row(table_id: int, commit: Ratification) -> tuple[object, ...]:
    info = next((a for a in commit.actions if isinstance(a, CommitInfo)), None)
    facts = commit.counted
    return (
        table_id,
        commit.version,
        commit.txn_uuid,
        commit.ordinal,
        commit.timestamp,
        _operation(commit.actions),
        commit.is_blind_append,
        facts.data_change,
        facts.added,
        facts.removed,
        None if info is None else encode_json(info.to_dict()),
        commit.origin,
        audit.actor(),
        commit.sha256,
        facts.size if commit.data is None else len(commit.data),
    )


def set_head(session: Session, locked: LockedTable) -> None:
    """Move a table's head."""
    head = locked.table.head
    values = (
        head.version,
        head.timestamp,
        head.first_version,
        head.num_files,
        head.size_bytes,
        head.num_records,
        head.files_without_count,
        locked.next_file_seq,
        locked.metadata_version,
        locked.protocol_version,
        locked.shape,
        locked.digest,
        locked.table.table_id,
    )
    session.update_rows("dl_heads", _HEAD_COLUMNS, "table_id", [values])


def _operation(actions: Sequence[Action]) -> str | None:
    info = next((a for a in actions if isinstance(a, CommitInfo)), None)
    return None if info is None else info.operation


def revert(session: Session, locked: LockedTable, first: int) -> None:
    """Undo every commit of a table from a version on. All of them must be unpublished.

    What replaces them is committed in the same transaction: readers must never see the table without it.

    Args:
        session: Inside the transaction that holds the head.
        locked: The table.
        first: The first version to undo; the one before it must be in the catalog.
    """
    table, before = locked.table, first - 1
    revert_rows(session, table.table_id, first)
    kept = commits.by_id(session, table.table_id, before)
    if kept is None:
        raise InvalidArgumentError(f"the catalog does not have version {before}", table=table.name)
    totals = files.totals_at(session, table.table_id, before)
    metadata, protocol = live_state_versions(session, table.table_id)
    head = Head(before, kept.timestamp, table.head.first_version, *totals)
    moved = LockedTable(
        replace(table, head=head), locked.next_file_seq, metadata, protocol, locked.frozen, uuid.uuid4().hex
    )
    set_head(session, moved)
    audit.record(
        session,
        "take back",
        table_id=table.table_id,
        table=table.name,
        version=before,
        first=first,
        last=table.head.version,
    )


def revert_rows(session: Session, table_id: int, first: int) -> None:
    """Delete the rows of versions from one on, without moving the head."""
    files.revert_files(session, table_id, first)
    for statement in statements("revert", session.dialect.name).values():
        session.run(statement, (table_id, first))


def live_state_versions(session: Session, table_id: int) -> tuple[int, int]:
    """Since when the live metadata and protocol hold."""
    row = session.row(session.sql("snapshots", "state versions"), (table_id, table_id))
    metadata, protocol = row or (-1, -1)
    return metadata, protocol
