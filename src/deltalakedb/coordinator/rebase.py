"""Rebase: foreign commits keep their versions, and ours that were never published are made again on top."""

from __future__ import annotations

import itertools
import logging
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast, get_args

from deltalakedb.commit.conflicts import data_conflict
from deltalakedb.commit.request import Adopted, Origin, Recommitted, TableChange
from deltalakedb.commit.versions import info_of, own_transaction, write_versions
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_pieces, iter_state
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    CatalogBusyError,
    DeltaSqlError,
    InvalidArgumentError,
    LogGapError,
    PredicateError,
    ProtocolError,
    UnsupportedOperationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, outbox, ratify, registry, snapshots
from deltalakedb.metastore.files import live_files, read_some
from deltalakedb.metastore.leases import require
from deltalakedb.metastore.ratify import Streamed
from deltalakedb.mirror.drift import commit_file_state, log_differences, require_folder
from deltalakedb.mirror.repair import repair_lease
from deltalakedb.protocol.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    FileKey,
    Metadata,
    Protocol,
    Remove,
    decode_commit,
)
from deltalakedb.protocol.features import SPARK_FEATURES, check_readable
from deltalakedb.protocol.paths import encode_path
from deltalakedb.protocol.predicate import to_physical
from deltalakedb.protocol.properties import APPEND_ONLY, is_on
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING, Isolation, ReadSet
from deltalakedb.protocol.schema import column_types, parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.rows import LockedTable, Table
    from deltalakedb.mirror import Options
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: features of files that were written before; identity columns: two writers may have used the same numbers
_KEPT_FEATURES = SPARK_FEATURES - {"identityColumns"}


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """A commit of ours that was never published, for reports.

    Attributes:
        version: Its version before.
        operation: What it did.
        committed_at: When, in epoch milliseconds.
        txn_uuid: The id of its transaction, which it keeps.
    """

    version: int
    operation: str | None
    committed_at: int | None
    txn_uuid: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of a divergence, or would.

    Attributes:
        theirs: Versions of the log that were adopted.
        ours: Our commits that were made again: old version -> new version.
        lost: Our commits that conflict with theirs: version -> why.
        commits: What these commits of ours are, by their old versions.
        dry_run: Whether nothing was changed.
        split: Transactions that are lost here and stand in other tables, where they cannot be reverted: id ->
            these tables. Repeating such a transaction is a CommitError.
        also: Other tables that diverged and share a transaction with this one: they are resolved together, so
            that it is kept or lost in all of them.
    """

    theirs: tuple[int, ...]
    ours: dict[int, int]
    lost: dict[int, str]
    commits: tuple[CommitSummary, ...] = ()
    dry_run: bool = False
    split: dict[str, tuple[str, ...]] = field(default_factory=dict)
    also: dict[str, Resolved] = field(default_factory=dict)


def read_foreign_commit(
    reader: FileTxnLogReader, version: int, table: str, origin: str = "adopt"
) -> tuple[Sequence[Action], Adopted]:
    """Read a commit of the log that is to be adopted; the files of a very large one are streamed later.

    Raises:
        UnsupportedFeatureError: It enables a feature that cannot be read here.
    """
    store, path, timestamp = reader.store, commit_path(version), reader.timestamp_of(version)
    actions: Sequence[Action]
    if is_large(store.head(path)):
        actions = [a for a in iter_state(store, path) if not isinstance(a, Add | Remove | Cdc)]
        found = commit_digest(store, path)
        streamed = Streamed(partial(iter_pieces, store, path), found.sha256, found.size)
        copy = Adopted(None, timestamp, origin, streamed, own_transaction(actions))
    else:
        data = reader.commit_bytes(version)
        actions = decode_commit(data, source=path)
        copy = Adopted(data, timestamp, origin, txn_uuid=own_transaction(actions))
    for protocol in (a for a in actions if isinstance(a, Protocol)):
        check_readable(protocol, table=table)
    return actions, copy


# ---- both sides ------------------------------------------------------------------------------------------


class _Theirs(NamedTuple):
    """A commit of the log with the version of one of ours, or a later one; a large one without its files."""

    version: int
    actions: Sequence[Action]
    copy: Adopted


class _Part:
    """Commits of ours that one transaction made and that were never published: kept or lost together."""

    def __init__(self, rows: list[CommitRow], versions: list[Sequence[Action]], reads: ReadSet) -> None:
        self.rows, self.versions, self.reads = rows, versions, reads
        self.txn_uuid = rows[0].txn_uuid
        self.actions = [action for version in versions for action in version]
        self.adds = [a for a in self.actions if isinstance(a, Add)]
        #: files that it removes and did not add itself
        self.removed = {a.key for a in self.actions if isinstance(a, Remove)} - {a.key for a in self.adds}
        self.metadata = next((a for a in reversed(self.actions) if isinstance(a, Metadata)), None)
        level = (info_of(self.actions) or CommitInfo()).extra.get("isolationLevel")
        self.isolation = cast("Isolation", level) if level in get_args(Isolation) else None

    def live(self, session: Session, table_id: int) -> dict[FileKey, int]:
        """Those of the files that it removes that are there now, with their ids."""
        paths = [encode_path(path) for path, _ in self.removed]
        found = live_files(session, table_id, paths) if paths else {}
        return {key: file_id for key, (file_id, _, _) in found.items() if key in self.removed}


@dataclass(slots=True)
class _Side:
    """A table with commits of both sides, and what becomes of ours.

    Attributes:
        table: The table.
        published: Versions that are in the log as we made them, and are not recorded as published.
        ours: Our commits after them, by transaction; one of theirs has the version of the first.
        theirs: Their commits.
        versions: The new versions of our transactions that are kept.
        made: Those of them that were made again; the others were among their commits.
        lost: Why the others are lost.
    """

    table: Table
    published: Sequence[int]
    ours: Sequence[_Part]
    theirs: Sequence[_Theirs]
    versions: dict[str, Sequence[int]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[CommitRow]:
        return [row for part in self.ours for row in part.rows]

    def report(self, split: Mapping[str, tuple[str, ...]], *, dry_run: bool) -> Resolved:
        versions = [v for part in self.ours for v in self.versions.get(part.txn_uuid, ())]
        kept = [row.version for row in self.rows if row.txn_uuid in self.versions]
        return Resolved(
            tuple(t.version for t in self.theirs),
            dict(zip(kept, versions, strict=True)),
            {row.version: self.lost[row.txn_uuid] for row in self.rows if row.txn_uuid in self.lost},
            tuple(CommitSummary(r.version, r.operation, r.timestamp, r.txn_uuid) for r in self.rows),
            dry_run,
            {txn: split[txn] for txn in self.lost if txn in split},
        )


def resolve(
    database: Database,
    name: str,
    *,
    storage_options: Options = None,
    allow_split: bool = False,
    dry_run: bool = False,
) -> Resolved:
    """Keep foreign commits if both sides have one, and commit ours again on top, with new versions.

    Only commits that were never published move; each keeps its transaction's id, so that a repeated call
    returns the new version. One that read what their commits changed, by the conflict rules of every commit,
    is lost. The new state is committed in one database transaction: readers see the table as it was or as it
    is afterwards, and a resolution that is interrupted has changed nothing.

    A transaction over several tables is kept or lost as a whole. If it is lost here and cannot be reverted in
    another table, the resolution is refused unless ``allow_split`` is set.

    Args:
        database: The catalog.
        name: The table.
        storage_options: Options for the object store.
        allow_split: Lose the part of a transaction here although its other parts stand in other tables.
        dry_run: Change nothing, and report what would become of each commit. The transaction is made and
            rolled back, so this needs the same rights.

    Raises:
        InvalidArgumentError: There is nothing to resolve, or their commits cannot be read.
        UnsupportedOperationError: A transaction over several tables would be split.
        CatalogBusyError: Another process resolves or repairs the table, or committed to it meanwhile.
    """
    sides = _diverged(database, name, storage_options)
    given_up: dict[str, str] = {}
    with ExitStack() as stack:
        leases = [] if dry_run else [stack.enter_context(repair_lease(database, s.table)) for s in sides]
        failpoint("resolve.before")
        while True:
            try:
                with database.write() as session:
                    # inside the transaction: two resolutions at once would mix
                    for lease in leases:
                        require(session, lease, work="the resolution", table=name)
                    held = _hold(session, sides)
                    for side in sides:
                        _rebase(session, held[side.table.table_id], side, given_up)
                    split = _settle(session, sides)
                    if split and not (allow_split or dry_run):
                        raise _would_split(sides, split)
                    done = {side.table.name: side.report(split, dry_run=dry_run) for side in sides}
                    for side in sides:
                        one = done[side.table.name]
                        counts = f"{len(one.ours)} made again, {len(one.lost)} lost"
                        reason = f"commits from version {side.rows[0].version} on: {counts}"
                        registry.unfreeze(session, held[side.table.table_id].table, reason)
                    if dry_run:
                        raise _DryRun
                    failpoint("resolve.rebuilt")
                break
            except _Retry as found:
                given_up[found.txn] = found.why
            except _DryRun:
                return replace(done.pop(name), also=done)
    failpoint("resolve.after")
    for table, one in done.items():
        if one.lost:
            logger.error("%s: commits that could not be made again: %d, %s", table, len(one.lost), one.lost)
    return replace(done.pop(name), also=done)


class _Retry(Exception):  # noqa: N818 - not an error: it says with what to begin again
    """A transaction of ours cannot be kept, and part of it was written already."""

    def __init__(self, txn: str, why: str) -> None:
        self.txn, self.why = txn, why


class _DryRun(Exception):  # noqa: N818 - not an error: it rolls the transaction back
    pass


def _diverged(database: Database, name: str, storage_options: Options) -> list[_Side]:
    """The table, and every other one that diverged and shares an unpublished transaction with it."""
    config = database.engine.config
    tables = {t.table_id: t for t in registry.list_tables(database)}
    start = registry.find(database, name)
    found = {start.table_id: _side(database, start, storage_options)}
    todo = [start.table_id]
    while todo:
        for txn in [part.txn_uuid for part in found[todo.pop()].ours]:
            for member in outbox.members(database, txn):
                if member.table_id in found or member.published or member.table_id not in tables:
                    continue
                options = config.storage_options_for(member.location)
                try:
                    found[member.table_id] = _side(database, tables[member.table_id], options)
                except InvalidArgumentError:
                    continue  # it only waits, and a publisher may be on its way: it cannot be reverted
                todo.append(member.table_id)
    return [found[table_id] for table_id in sorted(found)]


def _side(database: Database, table: Table, options: Options) -> _Side:
    reader = FileTxnLogReader(table.location, options)
    require_folder(database, table, reader.store)
    waiting = outbox.waiting_versions(database, table.table_id)
    first = _first_taken(database, table, reader.store, waiting)
    published, rest = [v for v in waiting if v < first], [v for v in waiting if v >= first]
    rows = [row for version in rest if (row := commits.one(database, table, version)) is not None]
    parts = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.txn_uuid)]
    try:
        theirs = _read_theirs(reader, table.name, first)
    except DeltaSqlError as error:
        raise _refused(
            table,
            f"their commits cannot be read, so nothing was changed: {error.message}",
            "wait until their writer is done with the file, or have it repaired, then resolve; or move it "
            "out of _delta_log, then `deltasql mirror recover` lets ours be published",
        ) from error
    if not theirs:
        raise _refused(
            table,
            f"there is nothing to resolve: their version {first} is gone from the log",
            "publish ours with `deltasql mirror run`",
        )
    return _Side(table, published, [_part(database, table, part) for part in parts], theirs)


def _part(database: Database, table: Table, rows: list[CommitRow]) -> _Part:
    reads = NOTHING
    versions: list[Sequence[Action]] = []
    for row in rows:
        if not row.is_blind_append:
            reads |= outbox.reads_of(database, table.table_id, row.version)
        data = commits.commit_bytes(database, table, row.version)
        versions.append(decode_commit(data, source=f"version {row.version}"))
    return _Part(rows, versions, reads)


def _refused(table: Table, text: str, suggestion: str) -> InvalidArgumentError:
    return InvalidArgumentError(text, table=table.name, suggestion=suggestion)


def _first_taken(database: Database, table: Table, store: Store, waiting: Sequence[int]) -> int:
    """The first version of ours that waits and that a foreign commit has in the log."""
    now = registry.find(database, table.name)
    for found in log_differences(database, now, store):
        if found.kind == "foreign" and found.version <= now.published_version:
            raise _refused(
                table,
                f"version {found.version} was published by us and overwritten by another writer",
                "put our file back with `deltasql mirror repair` after moving theirs away",
            )
        if found.kind in ("damaged", "commit"):
            raise _refused(
                table,
                f"version {found.version}, which we published, is damaged in the log",
                "put it back with `deltasql mirror repair` first",
            )
    for version in waiting:
        state = commit_file_state(database, table, store, version)
        if state == "ours":
            continue
        if state == "absent":
            raise _refused(
                table,
                f"there is nothing to resolve: version {version} of ours only waits to be published",
                "publish it with `deltasql mirror run`",
            )
        if version == table.head.first_version:
            raise _refused(
                table,
                f"version {version} of the log is another table's: ours never began there",
                "move its files away, then `deltasql mirror repair` and `deltasql mirror run` publish ours; "
                f"or `deltasql drop {table.name} --force`, then `deltasql import` imports theirs",
            )
        return version
    raise _refused(
        table,
        "there is nothing to resolve: every commit of ours is in the log",
        "`deltasql mirror recover` adopts commits beyond the head",
    )


def _read_theirs(reader: FileTxnLogReader, table: str, version: int) -> list[_Theirs]:
    """Their commits from a version on."""
    found: list[_Theirs] = []
    while reader.store.exists(commit_path(version)):
        found.append(_Theirs(version, *read_foreign_commit(reader, version, table)))
        version += 1
    listing = list_log(reader.store)
    if (beyond := max((*listing.commits, *listing.checkpoints), default=-1)) >= version:
        raise LogGapError(
            f"version {version} is not in the log, which continues up to version {beyond}", table=table
        )
    return found


# ---- one transaction -------------------------------------------------------------------------------------


def _hold(session: Session, sides: Sequence[_Side]) -> dict[int, LockedTable]:
    """Lock the heads, unless a commit was made or published since the divergence was read."""
    held = registry.lock(session, [s.table.table_id for s in sides])
    for side in sides:
        table = side.table
        waiting = outbox.waiting_versions(session, table.table_id)
        if table.table_id not in held or waiting != [*side.published, *(row.version for row in side.rows)]:
            newest = waiting[-1] if waiting else table.head.version
            raise CatalogBusyError(
                f"the table changed meanwhile (version {newest} was committed or published), so nothing was "
                "resolved",
                table=table.name,
                suggestion="pause its writers, then try again",
            )
    return held


def _rebase(session: Session, locked: LockedTable, side: _Side, given_up: Mapping[str, str]) -> None:
    """Give their commits the versions of ours, and make ours again on top of them if they fit."""
    side.versions, side.made, side.lost = {}, set(), {}
    name, table_id, first = locked.table.name, locked.table.table_id, side.rows[0].version
    before = snapshots.open_table(session, name, first - 1).snapshot
    ratify.revert(session, locked, first)
    for theirs in side.theirs:
        txn = theirs.copy.txn_uuid or str(uuid.uuid4())
        commits.insert_transaction(session, txn, 1, new_id=False)
        _write(session, name, txn, [theirs.actions], theirs.copy)
    if side.published:
        outbox.mark_range(session, table_id, side.published[0], side.published[-1], session.now_ms())
    outbox.advance(session, table_id, side.theirs[-1].version)
    failpoint("resolve.taken_over")
    after = snapshots.open_table(session, name).snapshot
    # before ours are made again: they are checked against theirs, not against each other
    conflicts = _conflicts(session, side.ours, before, table_id)
    dropped: list[Add] = []
    metadata, reshaped = before.metadata, False
    for part, conflict in zip(side.ours, conflicts, strict=True):
        txn = part.txn_uuid
        there = [t.version for t in side.theirs if t.copy.txn_uuid == txn]
        if len(there) == len(part.rows):
            # published before the database was restored from a backup, then repeated by its writer
            side.versions[txn] = there
            continue
        live = part.live(session, table_id)
        why = given_up.get(txn) or (
            "it follows a change of ours that is lost" if reshaped else _unfit(part, live, before, after)
        )
        if why is None and _read_any(part.reads, dropped, metadata):
            why = "it read rows that a lost commit of ours changed"
        if why := why or conflict:
            reshaped = reshaped or _reshapes(part, before.metadata)
            dropped += [*part.adds, *read_some(session, list(live.values()))]
            side.lost[txn] = why
        else:
            side.versions[txn] = _recommit(session, name, part)
            side.made.add(txn)
            metadata = part.metadata or metadata


def _write(
    session: Session,
    name: str,
    txn: str,
    versions: Sequence[Sequence[Action]],
    origin: Origin,
    part: _Part | None = None,
) -> Committed:
    """Commit versions on top of what is there, inside the transaction that holds the head."""
    opened = snapshots.open_table(session, name)
    locked = registry.lock(session, [opened.table.table_id])[opened.table.table_id]
    reads, isolation = (EVERYTHING, None) if part is None else (part.reads, part.isolation)
    change = TableChange(opened.table, versions, opened.snapshot, reads, origin, isolation)
    return write_versions(session, locked, change, txn)


def _recommit(session: Session, name: str, part: _Part) -> list[int]:
    """Commit a part on top of what is there; its new versions."""
    versions = []
    for row, actions in zip(part.rows, part.versions, strict=True):
        extra = {**(info_of(actions) or CommitInfo()).extra, "recommittedFrom": row.version}
        versions.append([CommitInfo(extra=extra), *(a for a in actions if not isinstance(a, CommitInfo))])
    try:
        # with its own id: a repeated call of its writer finds it
        done = _write(session, name, part.txn_uuid, versions, Recommitted(_KEPT_FEATURES), part)
    except ProtocolError as error:  # such as removed rows, if others made the table append-only
        raise _Retry(part.txn_uuid, error.message) from error
    return list(range(done.version - len(versions) + 1, done.version + 1))


# ---- may a commit of ours be made again? -----------------------------------------------------------------


def _unfit(part: _Part, live: Collection[FileKey], before: Snapshot, after: Snapshot) -> str | None:
    """Why a part of ours cannot be made again after their changes of metadata and files, or None."""
    was, now = before.metadata, after.metadata
    if _shape(was) != _shape(now):
        return "others changed the table's schema"
    if before.protocol != after.protocol:
        return "others changed the table's protocol"
    if was != now and any(isinstance(a, Metadata | Protocol) for a in part.actions):
        return "others changed the table's properties too"
    if _constraints(was) != _constraints(now) and part.adds:
        return "others changed the table's constraints, which its rows may break"
    if is_on(now, APPEND_ONLY) and any(isinstance(a, Remove) and a.data_change for a in part.actions):
        return "it removes rows, and others made the table append-only"
    return "a file that it removes is gone" if part.removed.difference(live) else None


def _reshapes(part: _Part, was: Metadata) -> bool:
    """Whether files that were written after a part may not fit without it."""
    return any(
        isinstance(a, Protocol) or (isinstance(a, Metadata) and _shape(a) != _shape(was))
        for a in part.actions
    )


def _shape(metadata: Metadata) -> tuple[object, ...]:
    return metadata.schema_string, metadata.partition_columns


def _constraints(metadata: Metadata) -> dict[str, str | None]:
    return {k: v for k, v in metadata.configuration.items() if k.startswith("delta.constraints.")}


def _conflicts(session: Session, parts: Sequence[_Part], before: Snapshot, table_id: int) -> list[str | None]:
    """Why each part conflicts with what theirs did to the data, by the rules of every commit."""
    locked = registry.lock(session, [table_id])[table_id]
    found: list[str | None] = []
    metadata = before.metadata
    for part in parts:
        read, reads = replace(before, metadata=metadata), _checkable(part.reads, metadata)
        change = TableChange(locked.table, part.versions, read, reads, isolation=part.isolation)
        conflict = data_conflict(session, locked, change, read)
        found.append(None if conflict is None else conflict.detail)
        metadata = part.metadata or metadata
    return found


def _checkable(reads: ReadSet, metadata: Metadata) -> ReadSet:
    """A read set whose predicates fit a schema; everything if one names a column that is not in it."""
    schema = parse_schema(metadata.schema_string)
    try:
        for where in reads.predicates:
            to_physical(where, schema)
    except PredicateError:
        return EVERYTHING
    return reads


def _read_any(reads: ReadSet, files: Iterable[Add], metadata: Metadata) -> bool:
    """Whether a read set may cover a row of some files, by their partitions and statistics."""
    schema, reads = parse_schema(metadata.schema_string), _checkable(reads, metadata)
    filters = [FileFilter(to_physical(where, schema), column_types(schema)) for where in reads.predicates]
    return any(
        reads.whole
        or add.key in reads.files
        or any(f.may_match(parse_stats(add.stats), add.partition_values) for f in filters)
        for add in files
    )


# ---- transactions over several tables --------------------------------------------------------------------


def _settle(session: Session, sides: Sequence[_Side]) -> dict[str, tuple[str, ...]]:
    """Keep or lose every transaction as a whole; returns those that cannot be: id -> tables that keep it.

    Raises:
        _Retry: One is lost in a table and was made again in another.
    """
    names = {t.table_id: t.name for t in registry.list_tables(session)}
    split: dict[str, tuple[str, ...]] = {}
    for side in sides:
        for txn, why in side.lost.items():
            if any(txn in other.made for other in sides):
                raise _Retry(txn, f"the transaction is lost in {side.table.name}: {why}")
            rows = session.rows(session.sql("commits", "by transaction"), (txn,))
            stands = tuple(sorted({names[row[0]] for row in rows if row[0] in names}))
            lost = {other.table.name for other in sides if txn in other.lost}
            commits.note_lost(session, txn, lost.union(commits.lost_tables(session, txn)), stands)
            if stands:
                split[txn] = stands
                side.lost[txn] += f"; the other part of the transaction stands in {', '.join(stands)}"
    return split


def _would_split(sides: Sequence[_Side], split: Mapping[str, tuple[str, ...]]) -> UnsupportedOperationError:
    txn, stands = next(iter(split.items()))
    lost = [side.table.name for side in sides if txn in side.lost]
    return UnsupportedOperationError(
        f"the transaction {txn!r} would be lost in {', '.join(lost)} and stand in {', '.join(stands)}, where "
        "it cannot be reverted: nothing was changed",
        table=lost[0],
        suggestion="resolve with dry_run=True shows all of them; repeat with allow_split=True to lose these "
        "parts, then make the tables consistent by hand",
        command=f"`deltasql mirror resolve {lost[0]} --keep-theirs --dry-run` shows all of them; repeat with "
        "--allow-split to lose these parts, then make the tables consistent by hand",
    )
