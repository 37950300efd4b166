"""The publisher: copies ratified commits to `_delta_log`, strictly in order, and overwrites nothing.

Contract:

- A version is written only after the previous one exists. If commit files were deleted, they are restored
  first, from the bytes in the catalog.
- A file is created, never replaced. A foreign commit in the place of ours freezes the table.
- The manifest of a transaction over several tables is written after the commit files of all its tables, and
  before they are recorded as published: if a publisher dies in between, the next one finds them without
  that record and writes the manifest.
- The record may be lost: the next run finds that the files exist.
- Failures are recorded in the outbox and returned, never raised: the commits are valid in any case.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from deltalakedb import telemetry
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path, manifest_path
from deltalakedb.exceptions import (
    FROZEN_HINT,
    DeltaSqlError,
    DivergedWarning,
    LogGapError,
    StorageError,
    StorageMissingError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, outbox, registry
from deltalakedb.metastore.outbox import Member, Unpublished
from deltalakedb.mirror import Options, store_at
from deltalakedb.mirror.checkpointer import DUE, CheckpointOptions, write_checkpoint_of
from deltalakedb.mirror.drift import commit_file_difference, commit_file_state, is_ratified, require_folder
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.retry import retry_in_ms
from deltalakedb.storage.local import FileWrite, LocalStore, write_files
from deltalakedb.storage.store import Store, local_path

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.txn_log import UnpublishedCommits

    _Steps: TypeAlias = Generator[Unpublished, bool, None]
    #: storage options by location, if the caller has some; else those of the settings
    StoreOptions: TypeAlias = Mapping[str, Options]
    #: table id -> versions whose commit files were just created or found
    Created: TypeAlias = Mapping[int, Collection[int]]

logger = logging.getLogger(__name__)

#: how many deleted commit files a publisher restores; if more are missing, it writes a checkpoint instead
_MAX_RESTORED = 1_000
#: how many commits of a backlog are in memory at a time
_BACKLOG_BATCH = 200
#: object stores respond slowly, so their tables are published in parallel
_THREADS = 8
#: how many tables on local disk have open files at the same time
_MAX_LOCAL_TABLES = 64
#: seconds between two queries for manifests that could not be written, since each costs a statement
_MANIFEST_CHECK_S = 5.0
#: how many missing manifests of other transactions a writer retries; the reconciler retries the rest
_MAX_OTHER_MANIFESTS = 8

#: only one thread of a process publishes a table at a time; the next one then finds nothing left to do
_table_locks: dict[tuple[Database, int], threading.Lock] = {}
#: tables on object stores whose log was found to have the previous version: a check costs a request
_predecessor_seen: set[tuple[Database, int]] = set()
#: when this process last queried the missing manifests
_manifests_checked: dict[Database, float] = {}
for _state in (_table_locks, _predecessor_seen, _manifests_checked):
    os.register_at_fork(after_in_child=_state.clear)


@dataclass(frozen=True, slots=True)
class Published:
    """What one run of the publisher achieved for a table."""

    #: versions that are in the log now and were not recorded as published before
    versions: tuple[int, ...] = ()
    #: why it stopped
    error: DeltaSqlError | None = None
    #: whether it froze the table
    diverged: bool = False
    #: whether it published as many commits as its limit allows, and more may wait
    more: bool = False

    def may_need_checkpoint(self, options: CheckpointOptions) -> bool:
        """Whether a checkpoint may be due, by the numbers of the versions alone."""
        every = options.interval
        return options.write and (every is None or any(v and v % every == 0 for v in self.versions))


@dataclass(frozen=True, slots=True)
class Target:
    """A table to publish."""

    table: Table
    storage_options: Options = None
    #: its new commits, if this process has just ratified them, so that the outbox need not be queried
    known: UnpublishedCommits | None = None
    checkpoints: CheckpointOptions = DUE


def publish(database: Database, table: Table, *, storage_options: Options = None) -> Published:
    """Publish all unpublished commits of a table, oldest first, in bounded memory."""
    versions: tuple[int, ...] = ()
    while True:
        (done,) = publish_all(database, [Target(table, storage_options)], limit=_BACKLOG_BATCH)
        versions += done.versions
        if done.error is not None or done.diverged or not done.more:
            return replace(done, versions=versions)


def publish_all(
    database: Database,
    targets: Sequence[Target],
    *,
    group: str | None = None,
    limit: int = 32,
    seconds: float | None = None,
) -> list[Published]:
    """Publish up to ``limit`` commits of each table, oldest first, and record them in one transaction.

    ``group`` is the id of the transaction that made the known commits, if it changed several tables. No new
    file is begun after ``seconds``; the reconciler publishes the rest.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    try:
        with ExitStack() as locks:
            for table_id in sorted(t.table.table_id for t in targets):
                locks.enter_context(_table_locks.setdefault((database, table_id), threading.Lock()))
            # a table may have been paused since its commit began
            unchecked = [
                t.table.table_id for t in targets if t.known is not None and not t.known.pause_checked
            ]
            paused = outbox.paused(database, unchecked) if unchecked else set()
            runs = [_Run(database, t, limit, deadline, paused=t.table.table_id in paused) for t in targets]
            _create_all(runs)
            _record(database, runs, group)
    except DeltaSqlError as failure:
        # the database failed: the next publisher finds the commit files that were written
        names = ", ".join(t.table.name for t in targets)
        logger.warning("publishing of %s is postponed: %s", names, failure.message)
        return [Published(error=failure)] * len(targets)
    for run in runs:
        if run.frozen is not None:  # last: a program may turn warnings into errors
            text = f"the table {run.table.name} is frozen: {run.frozen}; {FROZEN_HINT}"
            warnings.warn(text, DivergedWarning, stacklevel=2)
    return [run.result() for run in runs]


def _record(database: Database, runs: Sequence[_Run], group: str | None) -> None:
    """Write manifests, then record what is in the logs, then what failed."""
    created = {run.table.table_id: run.done for run in runs if run.done}
    if created:
        groups = {c.group for run in runs for c in run.waiting[: len(run.done)] if c.group is not None}
        if group is not None or groups:
            _write_manifests(database, [run.target for run in runs], group, groups, created)
        outbox.mark_published(database, created)
        failpoint("publish.after_mark")
        telemetry.emit("publish_total", sum(map(len, created.values())), outcome="published")
    for run in runs:
        if run.error is None:
            continue
        table, message = run.table, run.error.message
        if not run.remaining:
            logger.warning("publishing of %s is postponed: %s", table.name, message)
            continue
        first = run.remaining[0]
        text = "version %d of %s is committed but not yet published: %s"
        logger.warning(text, first.version, table.name, message)
        telemetry.emit("publish_total", 1, outcome="failed")
        note, wait = f"{type(run.error).__name__}: {message}", retry_in_ms(first.attempts)
        try:
            outbox.mark_failed(database, table.table_id, first.version, note, retry_in_ms=wait)
        except DeltaSqlError as second:
            logger.warning("the failure could not be recorded in the catalog: %s", second.message)


# ---- commit files ----------------------------------------------------------------------------------------


def _create_all(runs: Sequence[_Run]) -> None:
    """Create the commit files of every table: local tables together, remote ones in parallel."""
    local = [run for run in runs if local_path(run.table.location) is not None]
    remote = [run for run in runs if run not in local]
    for start in range(0, len(local), _MAX_LOCAL_TABLES):
        _create_in_rounds(local[start : start + _MAX_LOCAL_TABLES])
    if len(remote) == 1:
        _create_in_rounds(remote)
    elif remote:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="deltasql-publish") as threads:
            list(threads.map(_create_in_rounds, [[run] for run in remote], range(len(remote))))


def _create_in_rounds(runs: Sequence[_Run], number: int = 0) -> None:
    """Create one commit file per table and round, flushed together on local disk, until none is left."""
    if number:
        failpoint("publish.between_tables")
    todo = [(run, steps, commit) for run in runs for steps in [run.steps()] for commit in _next_commit(steps)]
    while todo:
        outcomes = _create_files([(run.store, commit) for run, _, commit in todo])
        todo = [
            (run, steps, commit)
            for (run, steps, _), outcome in zip(todo, outcomes, strict=True)
            for commit in _next_commit(steps, outcome)
        ]


def _next_commit(steps: _Steps, outcome: bool | DeltaSqlError | None = None) -> list[Unpublished]:
    """Send the outcome of a table's last commit; return its next commit, or nothing if there is none."""
    try:
        if outcome is None:
            return [next(steps)]
        return [steps.throw(outcome) if isinstance(outcome, DeltaSqlError) else steps.send(outcome)]
    except StopIteration:
        return []


def _create_files(waiting: Sequence[tuple[Store, Unpublished]]) -> list[bool | DeltaSqlError]:
    """Create a commit file for each of several tables; return whether it was created, or its error."""
    puts: list[FileWrite] = []
    try:
        for store, commit in waiting:
            path = commit_path(commit.version)
            if not isinstance(store, LocalStore):
                return [store.put_new(path, commit.data, mtime_ms=commit.timestamp)]
            puts.append(FileWrite(store, path, commit.data, commit.timestamp))
        write_files(puts, linking=lambda number: failpoint("publish.between_tables") if number else None)
    except DeltaSqlError as error:
        return [put.done or error for put in puts] or [error]
    return [put.done if put.error is None else put.error for put in puts]


@dataclass(slots=True, eq=False)
class _Run:
    """One run of the publisher on one table."""

    database: Database
    target: Target
    limit: int
    deadline: float
    #: whether publishing of the table was paused since the known commits were ratified
    paused: bool
    #: the commits to publish, and the versions of those that are in the log now
    waiting: list[Unpublished] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    #: why it stopped, and why it froze the table
    error: DeltaSqlError | None = None
    frozen: str | None = None
    store: Store = field(init=False)

    @property
    def table(self) -> Table:
        return self.target.table

    @property
    def remaining(self) -> list[Unpublished]:
        return self.waiting[len(self.done) :]

    def result(self) -> Published:
        full = (
            len(self.waiting) == self.limit
            or sum(len(c.data) for c in self.waiting) >= outbox.MAX_BATCH_BYTES
        )
        return Published(
            tuple(self.done), self.error, self.frozen is not None, more=full and not self.remaining
        )

    def steps(self) -> _Steps:
        """Yield the commits to write, oldest first; the caller sends back whether the file was created."""
        known = self.target.known
        if known is not None and known.predecessors_published and not self.paused:
            # all older ones are published, so the outbox is not queried
            yield from self._steps([Unpublished(*commit, attempts=0) for commit in known.commits])
            if self.error is None and (self.done or self.frozen):
                return
            # the previous version is missing, or writing failed: start again from the outbox
            self.error, self.done = None, []
        yield from self._steps(None)

    def _steps(self, known: list[Unpublished] | None) -> _Steps:
        """Yield the known commits, or those of the outbox; set ``done``, ``error`` and ``frozen``."""
        database, table = self.database, self.table
        try:
            self.waiting = known or outbox.waiting(database, table.table_id, limit=self.limit)
            if not self.waiting:
                return
            durable = database.engine.config.publish.fsync
            self.store = store_at(database, table.location, self.target.storage_options, durable=durable)
            check = self._restore_predecessor if known is None else self._follows_published
            if not check(self.waiting[0].version):
                return
            for commit in self.waiting:
                if known is None and self.done and outbox.paused(database, [table.table_id]):
                    return
                failpoint("publish.before_put")
                # an existing file is ours (after a lost response, or by another publisher) or foreign
                if not (yield commit) and self.store.get(commit_path(commit.version)) != commit.data:
                    # if the catalog now has another commit for this version, a divergence was resolved
                    # meanwhile: leave the new commits to the next publisher
                    if is_ratified(database, table, commit.version, commit.data):
                        self._freeze(commit.version)
                    return
                self.done.append(commit.version)
                failpoint("publish.after_put")
                if time.monotonic() > self.deadline:
                    return  # the rest is for the reconciler
        except LogGapError as gap:
            self._freeze(gap.version or 0, gap.message)
        except DeltaSqlError as failure:
            self.error = failure

    def _follows_published(self, version: int) -> bool:
        """Whether the version before is in the log; on local disk also whether its bytes are ours."""
        known, before = self.target.known, commit_path(version - 1)
        if known is None or version == 0:
            return True
        local = isinstance(self.store, LocalStore)
        if known.previous_sha256 is not None and local:
            try:
                return commits.digest(self.store.get(before)) == known.previous_sha256
            except StorageMissingError:
                return False
        key = (self.database, known.table_id)
        if local or key not in _predecessor_seen:
            if not self.store.exists(before):
                return False
            _predecessor_seen.add(key)
        return True

    def _restore_predecessor(self, version: int) -> bool:
        """Restore the previous version if it is missing; False if a foreign commit has its place."""
        database, table, before = self.database, self.table, version - 1
        _restore_commit_files(database, table, self.store, version)
        row = commits.one(database, table, before) if isinstance(self.store, LocalStore) else None
        if row is None:
            return True
        found = commit_file_difference(database, table.table_id, self.store, row, published=before)
        if found is not None and found.kind == "foreign":
            self._freeze(before)
            return False
        if found is not None:
            # a damaged file, or a damaged copy in the catalog: later versions can still be published
            text = "version %d of %s: %s; see `deltasql mirror verify`"
            logger.error(text, before, table.name, found.detail)
        return True

    def _freeze(self, version: int, reason: str | None = None) -> None:
        reason = reason or f"_delta_log has other bytes than the catalog for version {version}"
        registry.freeze(self.database, self.table, reason, version=version)
        self.frozen = reason
        logger.error("table %s is frozen: %s; %s", self.table.name, self.frozen, FROZEN_HINT)
        telemetry.emit("publish_total", 1, outcome="diverged")
        telemetry.emit("table_frozen", 1, table=self.table.name)


def _restore_commit_files(database: Database, table: Table, store: Store, version: int) -> None:
    """Make sure that the version before this one is in the log: restore deleted commit files.

    The bytes come from the catalog, and files are created only if absent, so no lease is needed. A checkpoint
    replaces versions whose bytes the catalog does not have, and those of a log that has lost very many. Files
    older than the newest checkpoint are not restored: any engine may clean them up.

    Raises:
        LogGapError: Another writer cleaned them up, and added commits beyond the head.
        TableFolderMissingError: The table's folder is gone.
    """
    first = table.head.first_version
    if version <= first or store.exists(commit_path(version - 1)):
        return
    require_folder(database, table, store)
    listing = list_log(store)
    newest = max((*listing.commits, *listing.checkpoints), default=-1)
    if newest > (head := registry.find(database, table.name).head.version):
        raise LogGapError(
            f"_delta_log has version {newest}, which the catalog did not make, and the versions before it "
            "were deleted",
            table=table.name,
            version=head,
        )
    covered = max((v for v in listing.checkpoints if v < version), default=-1)
    begin = max(covered, first, *(v + 1 for v in listing.commits if v < version))
    oldest, lost = min(commits.tail_start(database, table), version - 1), ""
    pruned = oldest > 0 or commits.kept_bytes(database, table.table_id, 0) is None
    if version - begin > _MAX_RESTORED:
        begin = oldest = version - 1
        lost = f": more than {_MAX_RESTORED} commit files of {table.name} are missing"
    elif begin <= oldest and covered < oldest and pruned:
        begin, lost = oldest, ": the catalog has not kept older ones"
    if lost:
        write_checkpoint_of(database, table.name, oldest, store=store)
        lost = f"; readers start at a checkpoint of version {oldest}{lost}"
    done = []
    for row, data in commits.between(database, table, begin, version - 1):
        if data is not None:
            store.put_new(commit_path(row.version), data, mtime_ms=row.timestamp)
            done.append(row.version)
    versions = f"versions {done[0]} to {done[-1]}" if done else "none"
    text = "commit files of %s were missing from _delta_log; restored: %s%s"
    logger.error(text, table.name, versions, lost)


# ---- manifests of transactions over several tables -------------------------------------------------------


def _write_manifests(
    database: Database,
    targets: Sequence[Target],
    group: str | None,
    others: Collection[str],
    created: Created,
) -> None:
    """Write the manifest of every transaction whose tables are all published.

    Called after the commit files are created and before they are recorded as published. So if a publisher
    dies here, the next one calls this again; and of two that publish the last tables at the same moment, at
    least one sees the file of the other. ``others`` are the transactions of commits from the outbox.
    """
    open_groups, options = set(others), {t.table.location: t.storage_options for t in targets}
    if group is not None:
        members = [
            Member(t.table.table_id, t.table.name, t.table.location, version, at, published=False)
            for t in targets
            if t.known is not None
            for version, at, _ in t.known.commits[-1:]
            if version in created.get(t.table.table_id, ())
        ]
        if len(members) == len(targets):  # all tables are published here, so nothing is queried
            _write_manifest(database, group, members, options)
            open_groups.discard(group)
        else:
            open_groups.add(group)  # another process may have published the other tables
    if open_groups:
        failed = {one.txn: one.attempts for one in outbox.missing_manifests(database)}
        for txn in open_groups:
            _write_if_complete(database, txn, created, options, attempts=failed.get(txn))
    now = time.monotonic()
    if group is not None and now - _manifests_checked.get(database, -_MANIFEST_CHECK_S) >= _MANIFEST_CHECK_S:
        _manifests_checked[database] = now
        write_missing_manifests(database, options=options, limit=_MAX_OTHER_MANIFESTS)


def write_missing_manifests(
    database: Database,
    *,
    table_id: int | None = None,
    force: bool = False,
    options: StoreOptions | None = None,
    limit: int | None = None,
) -> None:
    """Retry manifests that could not be written; with ``force`` also those that are not due for a retry."""
    missing = [
        one
        for one in outbox.missing_manifests(database)
        if (table_id is None or table_id in one.tables) and (force or one.retry_in <= 0)
    ]
    for one in missing[:limit]:
        _write_if_complete(database, one.txn, {}, options or {}, attempts=one.attempts)


def _write_if_complete(
    database: Database, txn: str, created: Created, options: StoreOptions, *, attempts: int | None
) -> None:
    """Write a manifest if all tables are published; ``attempts`` is None if no failure is recorded."""
    members = outbox.members(database, txn)
    if len(members) < 2:
        if attempts is not None:
            outbox.forget_manifest(database, txn)  # its tables were dropped
        return
    try:
        there = [
            m.version in created.get(m.table_id, ()) or _is_in_log(database, m, options) for m in members
        ]
    except DeltaSqlError as error:
        # record it: if two processes publish the last tables at the same moment, neither may try again
        _record_missing_manifest(database, txn, dict.fromkeys(members, error), attempts or 0)
        return
    with database.read() as session:
        incomplete = commits.lost_tables(session, txn)
    # a manifest promises that all tables have their part; one of an incomplete transaction would be wrong
    written = (
        not incomplete and all(there) and _write_manifest(database, txn, members, options, attempts or 0)
    )
    if incomplete or (written and attempts is not None):
        outbox.forget_manifest(database, txn)


def _store(database: Database, member: Member, options: StoreOptions) -> Store:
    durable = database.engine.config.publish.fsync
    return store_at(database, member.location, options.get(member.location), durable=durable)


def _is_in_log(database: Database, member: Member, options: StoreOptions) -> bool:
    """Whether a member's version is in its log, even if it is not recorded as published."""
    if member.published:
        return True
    table, store = registry.find(database, member.table), _store(database, member, options)
    return commit_file_state(database, table, store, member.version) == "ours"


def _write_manifest(
    database: Database, txn: str, members: Sequence[Member], options: StoreOptions, attempts: int = 0
) -> bool:
    """Write the manifest of a transaction beside every table: which version of each belongs to it.

    Readers of several tables use it to read them at one moment. Losing it loses no data, so a failure is
    recorded in the catalog, and a later publisher tries again. Returns whether every table has it.
    """
    members = sorted(members, key=lambda m: m.table)
    at = max(m.timestamp for m in members)
    tables = [{"name": m.table, "location": m.location, "version": m.version} for m in members]
    body = {"txnId": txn, "committedAt": at, "tables": tables}
    data, path = (encode_json(body) + "\n").encode(), manifest_path(txn)
    first: str | None = None
    failed: dict[Member, DeltaSqlError] = {}
    for member in members:
        failpoint("publish.manifest")
        try:
            store = _store(database, member, options)
            if isinstance(store, LocalStore) and first is not None:
                with suppress(StorageError):  # another disk, or one without links
                    store.link(path, first)  # needs no flush, as a new file would
                    continue
            store.put_new(path, data, mtime_ms=at)
            first = store.name_of(path) if isinstance(store, LocalStore) else first
        except DeltaSqlError as error:
            failed[member] = error
    if failed:
        _record_missing_manifest(database, txn, failed, attempts)
    return not failed


def _record_missing_manifest(
    database: Database, txn: str, failed: Mapping[Member, DeltaSqlError], attempts: int
) -> None:
    for member, error in failed.items():
        logger.warning("transaction %s has no manifest at %s yet: %s", txn, member.table, error.message)
    error = next(iter(failed.values()))
    outbox.manifest_failed(
        database,
        txn,
        [member.table_id for member in failed],
        f"{type(error).__name__}: {error.message}",
        attempts=attempts + 1,
        retry_in_ms=retry_in_ms(attempts),
    )
