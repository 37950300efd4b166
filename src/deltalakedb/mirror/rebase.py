"""Rebase: foreign commits keep their versions, and ours that were never published go on top of them."""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast, get_args

from deltalakedb.commit.conflicts import data_conflict
from deltalakedb.commit.request import Recommitted, TableChange
from deltalakedb.commit.versions import write_versions
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
from deltalakedb.metastore.leases import leased, require
from deltalakedb.mirror.commit_files import commit_file_state
from deltalakedb.mirror.drift import log_differences
from deltalakedb.mirror.folder import require_folder
from deltalakedb.mirror.outside import read_foreign
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.features import SPARK_FEATURES, check_readable
from deltalakedb.protocol.paths import encode_path
from deltalakedb.protocol.predicate import to_physical
from deltalakedb.protocol.properties import APPEND_ONLY, is_on
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING, Isolation
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import column_types
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from deltalakedb.commit.request import Adopted
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.metastore.rows import LockedTable, Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.read_set import ReadSet
    from deltalakedb.protocol.txn_log import Snapshot

logger = logging.getLogger(__name__)

_LEASE_MS = 2 * 60_000
#: features that files keep which were written before; two writers may have counted to the same numbers
_KEPT_FEATURES = SPARK_FEATURES - {"identityColumns"}


# ---- our commits -----------------------------------------------------------------------------------------

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """A commit of ours that was never published, for reports.

    Attributes:
        version: Its version before.
        operation: What it did.
        timestamp: When, in epoch milliseconds.
        txn_uuid: The id of its transaction, which it keeps.
    """

    version: int
    operation: str | None
    timestamp: int | None
    txn_uuid: str


@dataclass(frozen=True, slots=True)
class UnpublishedCommit:
    """A commit of ours that was never published."""

    version: int
    txn_uuid: str
    reads: ReadSet
    data: bytes

    @property
    def actions(self) -> list[Action]:
        """What it consists of."""
        return decode_commit(self.data, source=f"version {self.version}")

    def summary(self) -> CommitSummary:
        """The commit for reports."""
        info = next((a.extra for a in self.actions if isinstance(a, CommitInfo)), {})
        operation, at = info.get("operation"), info.get("timestamp")
        return CommitSummary(
            self.version,
            None if operation is None else str(operation),
            at if isinstance(at, int) else None,
            self.txn_uuid,
        )


@dataclass(frozen=True, slots=True)
class TransactionCommits:
    """The commits of ours that one transaction made: they stand or fall together."""

    txn_uuid: str
    commits: tuple[UnpublishedCommit, ...]
    versions: tuple[list[Action], ...]

    @property
    def every(self) -> list[Action]:
        """All its actions."""
        return [action for version in self.versions for action in version]

    @property
    def removed(self) -> frozenset[Key]:
        """Files that it removes and did not add itself."""
        every = self.every
        return frozenset(a.key for a in every if isinstance(a, Remove)) - self.added

    @property
    def added(self) -> frozenset[Key]:
        """Files that it adds."""
        return frozenset(a.key for a in self.every if isinstance(a, Add))

    @property
    def reads(self) -> ReadSet:
        """What it was made from."""
        return functools.reduce(operator.or_, (o.reads for o in self.commits))

    @property
    def isolation(self) -> Isolation | None:
        """The level that it was checked under."""
        found = next((a.extra.get("isolationLevel") for a in self.every if isinstance(a, CommitInfo)), None)
        return cast("Isolation", found) if found in get_args(Isolation) else None


def by_transaction(ours: Sequence[UnpublishedCommit]) -> list[TransactionCommits]:
    """Our commits by transaction, in order."""
    grouped = ((txn, tuple(group)) for txn, group in itertools.groupby(ours, key=lambda o: o.txn_uuid))
    return [TransactionCommits(txn, group, tuple(o.actions for o in group)) for txn, group in grouped]


class _Obstacles:
    """Finds, transaction by transaction, why one cannot go on top of the foreign commits.

    Args:
        before: The table that our commits were made for.
        after: The table after the foreign commits.
    """

    def __init__(self, before: Snapshot, after: Snapshot) -> None:
        self._before = before
        self._after = after
        self._reshaped = False

    def obstacle(self, part: TransactionCommits, live: frozenset[Key]) -> str | None:
        """The reason, or None if there is none.

        Args:
            part: The commits of one transaction.
            live: Those of the files that it removes that are there now.
        """
        why = "it follows a change of ours that is lost" if self._reshaped else self._unfit(part.every)
        if why is None and part.removed - live:
            why = "a file that it removes is gone"
        if why is not None:
            self.lost(part)
        return why

    def lost(self, part: TransactionCommits) -> None:
        """Note that a transaction is lost: files written after a change of the schema need it."""
        self._reshaped = self._reshaped or any(map(self._reshapes, part.every))

    def _unfit(self, actions: Sequence[Action]) -> str | None:
        was, now = self._before.metadata, self._after.metadata
        if (was.schema_string, was.partition_columns) != (now.schema_string, now.partition_columns):
            return "others changed the table's schema"
        if self._before.protocol != self._after.protocol:
            return "others changed the table's protocol"
        if was != now and any(isinstance(a, Metadata | Protocol) for a in actions):
            return "others changed the table's properties too"
        if _constraints(was) != _constraints(now) and any(isinstance(a, Add) for a in actions):
            return "others changed the table's constraints, which its rows may break"
        if is_on(now, APPEND_ONLY) and any(isinstance(a, Remove) and a.data_change for a in actions):
            return "it removes rows, and others made the table append-only"
        return None

    def _reshapes(self, action: Action) -> bool:
        """Whether files that were written after an action may not fit without it."""
        if isinstance(action, Metadata):
            was = self._before.metadata
            return (action.schema_string, action.partition_columns) != (
                was.schema_string,
                was.partition_columns,
            )
        return isinstance(action, Protocol)


def _constraints(metadata: Metadata) -> dict[str, str | None]:
    return {k: v for k, v in metadata.configuration.items() if k.startswith("delta.constraints.")}


def checkable(reads: ReadSet, metadata: Metadata) -> ReadSet:
    """A read set whose predicates fit a schema; everything if one names a column that is not in it."""
    schema = parse_schema(metadata.schema_string)
    try:
        for where in reads.predicates:
            to_physical(where, schema)
    except PredicateError:
        return EVERYTHING
    return reads


def read_any(reads: ReadSet, files: Iterable[Add], metadata: Metadata) -> bool:
    """Whether a read set may cover a row of some files, by their partitions and statistics."""
    schema, reads = parse_schema(metadata.schema_string), checkable(reads, metadata)
    filters = [FileFilter(to_physical(where, schema), column_types(schema)) for where in reads.predicates]
    return any(
        reads.whole
        or add.key in reads.files
        or any(f.may_match(parse_stats(add.stats), add.partition_values) for f in filters)
        for add in files
    )


# ---- resolving -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of a divergence, or would.

    Attributes:
        theirs: Versions of the log that were adopted.
        ours: Our commits that were made again: old version -> new version.
        lost: Our commits that cannot stand beside theirs: version -> why.
        commits: What these commits of ours are, by their old versions.
        dry_run: Whether nothing was changed.
        split: Transactions that are lost here and stand in other tables, where they cannot be taken back: id
            -> these tables. Repeating such a transaction is a CommitError.
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


@dataclass(frozen=True, slots=True)
class _Theirs:
    """A commit of the log in the place of ours, or after it; a large one has no more than its state here."""

    version: int
    copy: Adopted
    state: Sequence[Action]

    @property
    def actions(self) -> Sequence[Action]:
        data = self.copy.data
        return self.state if data is None else decode_commit(data, source=commit_path(self.version))


@dataclass(frozen=True, slots=True)
class _Divergence:
    """A table where both sides went on.

    Attributes:
        table: The table.
        published: Versions that are in the log as we made them, and are not noted as published.
        ours: Our commits after them, in the place of the first of which stands one of theirs.
        theirs: Their commits.
        options: Options for the object store.
    """

    table: Table
    published: Sequence[int]
    ours: Sequence[UnpublishedCommit]
    theirs: Sequence[_Theirs]
    options: Mapping[str, str] | None


@dataclass(slots=True)
class _Rebased:
    """What became of our commits in one table."""

    made: dict[int, int] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    #: transactions of the lost ones with the reason, and those of the ones that were made again
    lost_txns: dict[str, str] = field(default_factory=dict)
    made_txns: set[str] = field(default_factory=set)


def resolve(
    database: Database,
    name: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    allow_split: bool = False,
    dry_run: bool = False,
) -> Resolved:
    """Keep foreign commits if both sides have one, and commit ours again on top, with new versions.

    Only commits that were never published move; each keeps its transaction's id, so that a repeated call
    answers with the new version. One that read what their commits changed, by the conflict rules of every
    commit, is lost. The new state is committed in one database transaction: readers see the table as it was
    or as it is afterwards, and a resolution that is interrupted has changed nothing.

    A transaction over several tables is kept or lost as a whole. If it is lost here and cannot be taken back
    from another table, the resolution is refused unless ``allow_split`` is set.

    Args:
        database: The catalog.
        name: The table.
        storage_options: Options for the object store.
        allow_split: Lose the part of a transaction here although its other parts stand in other tables.
        dry_run: Change nothing, and report what would become of each commit. The transaction is made and
            taken back, so this needs the same rights.

    Raises:
        InvalidArgumentError: There is nothing to resolve, or their commits cannot be read.
        UnsupportedOperationError: A transaction over several tables would be split.
        CatalogBusyError: Another process resolves or repairs the table, or committed to it meanwhile.
    """
    sides = _diverged(database, name, storage_options)
    if dry_run:
        moved, split = _rebuild(database, sides, (), dry_run=True)
    else:
        with ExitStack() as stack:
            # asked inside the transaction: two resolutions at once would mix
            checks = [
                partial(require, lease=lease, work="the resolution", table=side.table.name)
                for side in sides
                for lease in [stack.enter_context(repair_lease(database, side.table))]
            ]
            failpoint("resolve.before")
            moved, split = _rebuild(database, sides, checks, allow_split=allow_split)
        failpoint("resolve.after")
    done = {
        side.table.name: Resolved(
            tuple(t.version for t in side.theirs),
            one.made,
            one.lost,
            tuple(o.summary() for o in side.ours),
            dry_run,
            {txn: split[txn] for txn in one.lost_txns if txn in split},
        )
        for side, one in zip(sides, moved, strict=True)
    }
    return replace(done.pop(name), also=done)


def repair_lease(database: Database, table: Table) -> AbstractContextManager[Lease]:
    """The right to resolve or repair a table, which one process has at a time."""
    work = f"a resolution or repair of {table.name}"
    return leased(database, f"repair:{table.table_id}", work=work, table=table.name, ttl_ms=_LEASE_MS)


# ---- what both sides have --------------------------------------------------------------------------------


def _diverged(database: Database, name: str, storage_options: Mapping[str, str] | None) -> list[_Divergence]:
    """The table, and every other one that diverged and shares an unpublished transaction with it."""
    config = database.engine.config
    tables = {t.table_id: t for t in registry.list_tables(database)}
    start = registry.find(database, name)
    found = {start.table_id: _side(database, start, storage_options)}
    todo = [start.table_id]
    while todo:
        for txn in dict.fromkeys(o.txn_uuid for o in found[todo.pop()].ours):
            for member in outbox.group(database, txn):
                if member.table_id in found or member.published or member.table_id not in tables:
                    continue
                options = config.storage_options_for(member.location)
                try:
                    found[member.table_id] = _side(database, tables[member.table_id], options)
                except InvalidArgumentError:
                    continue  # it only waits, and a publisher may be on its way: it cannot be taken back
                todo.append(member.table_id)
    return [found[table_id] for table_id in sorted(found)]


def _side(database: Database, table: Table, options: Mapping[str, str] | None) -> _Divergence:
    require_folder(database, table, open_store(table.location, options))
    published, waiting = _waiting(database, table, options)
    ours = []
    for version in waiting:
        row = commits.one(database, table, version)
        if row is None:
            continue
        reads = NOTHING if row.is_blind_append else outbox.reads_of(database, table.table_id, version)
        ours.append(
            UnpublishedCommit(version, row.txn_uuid, reads, commits.commit_bytes(database, table, version))
        )
    try:
        theirs = _read_theirs(table, waiting[0], options)
    except DeltaSqlError as error:
        raise InvalidArgumentError(
            f"their commits cannot be read, so nothing was changed: {error.message}",
            table=table.name,
            suggestion="wait until their writer is done with the file, or have it repaired, then resolve; or "
            "move it out of _delta_log, then `deltasql mirror recover` lets ours be published",
        ) from error
    if not theirs:
        raise InvalidArgumentError(
            f"there is nothing to resolve: their version {waiting[0]} is gone from the log",
            table=table.name,
            suggestion="publish ours with `deltasql mirror run`",
        )
    return _Divergence(table, published, ours, theirs, options)


def _waiting(
    database: Database, table: Table, storage_options: Mapping[str, str] | None
) -> tuple[list[int], list[int]]:
    """Versions of ours that are in the log and not noted so, and those after them that are not in it."""
    store = open_store(table.location, storage_options)
    found = log_differences(database, registry.find(database, table.name), store)
    published = registry.find(database, table.name).published_version
    foreign = [f.version for f in found if f.kind == "foreign" and f.version <= published]
    if foreign:
        raise InvalidArgumentError(
            f"version {foreign[0]} was published by us and overwritten by another writer",
            table=table.name,
            suggestion="put our file back with `deltasql mirror repair` after moving theirs away",
        )
    if damaged := [f.version for f in found if f.kind in ("damaged", "commit")]:
        raise InvalidArgumentError(
            f"version {damaged[0]}, which we published, is damaged in the log",
            table=table.name,
            suggestion="put it back with `deltasql mirror repair` first",
        )
    waiting = outbox.waiting_versions(database, table.table_id)
    there = 0
    while there < len(waiting) and commit_file_state(database, table, store, waiting[there]) == "ours":
        there += 1
    if there == len(waiting):
        raise InvalidArgumentError(
            "there is nothing to resolve: every commit of ours is in the log",
            table=table.name,
            suggestion="`deltasql mirror recover` adopts commits beyond the head",
        )
    first = waiting[there]
    if not store.exists(commit_path(first)):
        raise InvalidArgumentError(
            f"there is nothing to resolve: version {first} of ours only waits to be published",
            table=table.name,
            suggestion="publish it with `deltasql mirror run`",
        )
    if first == table.head.first_version:
        raise InvalidArgumentError(
            f"version {first} of the log is another table's: ours never began there",
            table=table.name,
            suggestion="move its files away, then `deltasql mirror repair` and `deltasql mirror run` publish "
            f"ours; or `deltasql drop {table.name} --force`, then `deltasql import` takes theirs over",
        )
    return waiting[:there], waiting[there:]


def _read_theirs(table: Table, first: int, options: Mapping[str, str] | None) -> list[_Theirs]:
    """Their commits from a version on."""
    reader, version = FileTxnLogReader(table.location, options), first
    found: list[_Theirs] = []
    while reader.store.exists(commit_path(version)):
        actions, copy = read_foreign(reader, version, "adopt")
        for protocol in (a for a in actions if isinstance(a, Protocol)):
            check_readable(protocol, table=table.name)
        found.append(_Theirs(version, copy, actions if copy.data is None else ()))
        version += 1
    listing = list_log(reader.store)
    if (beyond := max((*listing.commits, *listing.checkpoints), default=-1)) >= version:
        raise LogGapError(
            f"version {version} is not in the log, which goes on to version {beyond}", table=table.name
        )
    return found


# ---- one transaction -------------------------------------------------------------------------------------


class _Retry(Exception):  # noqa: N818 - not an error: it says with what to begin again
    """A transaction of ours cannot be kept, and part of it was written already."""

    def __init__(self, txn: str, why: str) -> None:
        self.txn = txn
        self.why = why


class _DryRun(Exception):  # noqa: N818 - not an error: it carries an answer out of the transaction
    pass


def _rebuild(
    database: Database,
    sides: Sequence[_Divergence],
    checks: Sequence[Callable[[Session], object]],
    *,
    allow_split: bool = False,
    dry_run: bool = False,
) -> tuple[list[_Rebased], dict[str, tuple[str, ...]]]:
    """Switch all sides to theirs with ours on top: in one transaction, which a dry run takes back."""
    given_up: dict[str, str] = {}
    while True:
        try:
            with database.write() as session:
                for check in checks:
                    check(session)
                held = _hold(session, sides)
                moved = [_rebase(database, session, held[s.table.table_id], s, given_up) for s in sides]
                split = _settle(database, session, sides, moved)
                if split and not (allow_split or dry_run):
                    raise _would_split(sides, moved, split)
                for side, one in zip(sides, moved, strict=True):
                    reason = (
                        f"commits from version {side.ours[0].version} on: {len(one.made)} made again, "
                        f"{len(one.lost)} lost"
                    )
                    registry.unfreeze(session, held[side.table.table_id].table, reason)
                if dry_run:
                    raise _DryRun
                failpoint("resolve.rebuilt")
        except _Retry as found:
            given_up[found.txn] = found.why
        except _DryRun:
            return moved, split
        else:
            for side, one in zip(sides, moved, strict=True):
                if one.lost:
                    logger.error(
                        "%s: commits that could not be made again: %d, %s",
                        side.table.name,
                        len(one.lost),
                        one.lost,
                    )
            return moved, split


def _hold(session: Session, sides: Sequence[_Divergence]) -> dict[int, LockedTable]:
    """Lock the heads, unless a commit was made or published since the divergence was read."""
    held = registry.lock(session, [s.table.table_id for s in sides])
    for side in sides:
        table = side.table
        waiting = outbox.waiting_versions(session, table.table_id)
        if table.table_id not in held or waiting != [*side.published, *(o.version for o in side.ours)]:
            newest = waiting[-1] if waiting else table.head.version
            raise CatalogBusyError(
                f"the table changed meanwhile (version {newest} was committed or published), so nothing was "
                "resolved",
                table=table.name,
                suggestion="let its writers rest, then try again",
            )
    return held


def _rebase(
    database: Database, session: Session, locked: LockedTable, side: _Divergence, given_up: Mapping[str, str]
) -> _Rebased:
    """Put their commits in the place of ours, and ours on top of them if they fit."""
    name, table_id, first = locked.table.name, locked.table.table_id, side.ours[0].version
    before = snapshots.open_table(session, name, first - 1).snapshot
    ratify.revert(session, locked, first)
    for one in side.theirs:
        _adopt(session, name, one)
    if side.published:
        noted = (session.now_ms(), table_id, side.published[0], side.published[-1])
        session.run(database.sql("outbox", "published range"), noted)
    outbox.advance(session, table_id, side.theirs[-1].version)
    failpoint("resolve.taken_over")
    parts = by_transaction(side.ours)
    after = snapshots.open_table(session, name).snapshot
    # asked before ours are there again: they must stand beside theirs, and had stood beside each other
    conflicts = _conflicts(session, parts, before, table_id)
    fitness, moved = _Obstacles(before, after), _Rebased()
    dropped: list[Add] = []
    metadata = before.metadata
    for part, conflict in zip(parts, conflicts, strict=True):
        there = [t.version for t in side.theirs if t.copy.txn_uuid == part.txn_uuid]
        if len(there) == len(part.commits):
            # published before the database was restored from a backup, and repeated by its writer since
            moved.made.update(zip((o.version for o in part.commits), there, strict=True))
            continue
        why = given_up.get(part.txn_uuid) or fitness.obstacle(part, _live(session, table_id, part.removed))
        if why is None and read_any(part.reads, dropped, metadata):
            why = "it read rows that a lost commit of ours changed"
        why = why or conflict
        if why is None:
            versions = _recommit(session, name, part)
            moved.made.update(zip((o.version for o in part.commits), versions, strict=True))
            moved.made_txns.add(part.txn_uuid)
            metadata = _last_metadata(part) or metadata
            continue
        fitness.lost(part)
        dropped += _changed(session, table_id, part)
        moved.lost.update((o.version, why) for o in part.commits)
        moved.lost_txns[part.txn_uuid] = why
    return moved


def _adopt(session: Session, name: str, one: _Theirs) -> None:
    """Copy one of their commits, as adopting it would."""
    opened = snapshots.open_table(session, name)
    locked = registry.lock(session, [opened.table.table_id])[opened.table.table_id]
    change = TableChange(opened.table, [one.actions], opened.snapshot, origin=one.copy)
    txn = one.copy.txn_uuid or str(uuid.uuid4())
    commits.insert_transaction(session, txn, 1, new_id=False)
    write_versions(session, locked, change, txn)


def _conflicts(
    session: Session, parts: Sequence[TransactionCommits], before: Snapshot, table_id: int
) -> list[str | None]:
    """Why each part cannot stand beside what theirs did to the data: the rules of every commit."""
    locked = registry.lock(session, [table_id])[table_id]
    found: list[str | None] = []
    metadata = before.metadata
    for part in parts:
        read = replace(before, metadata=metadata)
        reads = checkable(part.reads, metadata)
        change = TableChange(locked.table, part.versions, read, reads, isolation=part.isolation)
        conflict = data_conflict(session, locked, change, read)
        found.append(None if conflict is None else conflict.detail)
        metadata = _last_metadata(part) or metadata
    return found


def _last_metadata(part: TransactionCommits) -> Metadata | None:
    return next((a for a in reversed(part.every) if isinstance(a, Metadata)), None)


def _recommit(session: Session, name: str, part: TransactionCommits) -> list[int]:
    """Commit a part on top of what is there; its new versions."""
    opened = snapshots.open_table(session, name)
    locked = registry.lock(session, [opened.table.table_id])[opened.table.table_id]
    versions = [_with_note(one, o.version) for one, o in zip(part.versions, part.commits, strict=True)]
    origin = Recommitted(_KEPT_FEATURES)
    change = TableChange(opened.table, versions, opened.snapshot, part.reads, origin, part.isolation)
    try:
        # its own id: a repeated call of its writer finds it
        done = write_versions(session, locked, change, part.txn_uuid)
    except ProtocolError as error:  # such as rows that go, if others made the table append-only
        raise _Retry(part.txn_uuid, error.message) from error
    return list(range(done.version - len(versions) + 1, done.version + 1))


def _with_note(actions: Sequence[Action], version: int) -> list[Action]:
    info = next((a for a in actions if isinstance(a, CommitInfo)), CommitInfo())
    rest = [a for a in actions if not isinstance(a, CommitInfo)]
    return [CommitInfo(extra={**info.extra, "recommittedFrom": version}), *rest]


def _live(session: Session, table_id: int, keys: frozenset[Key]) -> frozenset[Key]:
    """Those of some files that are there now."""
    live = live_files(session, table_id, [encode_path(path) for path, _ in keys]) if keys else {}
    return frozenset(key for key in keys if key in live)


def _changed(session: Session, table_id: int, part: TransactionCommits) -> list[Add]:
    """The files whose rows a part of ours would have added or removed."""
    keys = part.removed
    removed = live_files(session, table_id, [encode_path(path) for path, _ in keys]) if keys else {}
    ids = [file_id for key, (file_id, _, _) in removed.items() if key in keys]
    return [*(a for a in part.every if isinstance(a, Add)), *read_some(session, ids)]


# ---- transactions over several tables --------------------------------------------------------------------


def _settle(
    database: Database, session: Session, sides: Sequence[_Divergence], moved: Sequence[_Rebased]
) -> dict[str, tuple[str, ...]]:
    """Keep or lose every transaction as a whole; returns those that cannot be: id -> tables that keep it.

    Raises:
        _Retry: One is lost in a table and was made again in another.
    """
    names = {t.table_id: t.name for t in registry.list_tables(session)}
    split: dict[str, tuple[str, ...]] = {}
    for side, one in zip(sides, moved, strict=True):
        for txn, why in one.lost_txns.items():
            if any(txn in other.made_txns for other in moved):
                raise _Retry(txn, f"the transaction is lost in {side.table.name}: {why}")
            rows = session.rows(database.sql("commits", "by transaction"), (txn,))
            stands = tuple(sorted({names[row[0]] for row in rows if row[0] in names}))
            lost = {s.table.name for s, m in zip(sides, moved, strict=True) if txn in m.lost_txns}
            commits.note_lost(session, txn, lost.union(commits.lost_tables(session, txn)), stands)
            if stands:
                split[txn] = stands
                more = f"; the other part of the transaction stands in {', '.join(stands)}"
                parts = [o.version for o in side.ours if o.txn_uuid == txn]
                one.lost.update((version, one.lost[version] + more) for version in parts)
    return split


def _would_split(
    sides: Sequence[_Divergence], moved: Sequence[_Rebased], split: Mapping[str, tuple[str, ...]]
) -> UnsupportedOperationError:
    txn, stands = next(iter(split.items()))
    lost = [s.table.name for s, one in zip(sides, moved, strict=True) if txn in one.lost_txns]
    return UnsupportedOperationError(
        f"the transaction {txn!r} would be lost in {', '.join(lost)} and stand in {', '.join(stands)}, where "
        "it cannot be taken back: nothing was changed",
        table=lost[0],
        suggestion="`deltasql mirror resolve --dry-run` shows all of them; repeat with --allow-split "
        "(allow_split=True) to lose these parts, then bring the tables into line by hand",
    )
