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

import hashlib
import logging
import math
import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import (
    FROZEN_HINT,
    DeltaSqlError,
    DivergedWarning,
    LogGapError,
    StorageMissingError,
    VersionMissingError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, outbox, registry
from deltalakedb.metastore.outbox import Unpublished
from deltalakedb.mirror.checkpointer import write_checkpoint_of
from deltalakedb.mirror.commit_files import commit_file_state, is_ratified
from deltalakedb.mirror.folder import require_folder
from deltalakedb.mirror.groups import write_manifests
from deltalakedb.retry import retry_in_ms
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.mirror.groups import Group, StoreOptions
    from deltalakedb.protocol.txn_log import UnpublishedCommits
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: the most commit files that a publisher restores; if more are missing, it writes a checkpoint instead
_MOST_BACK = 1_000
#: tables are published in parallel, because object stores respond slowly and disks flush slowly
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Published:
    """What one run of the publisher achieved for a table.

    Attributes:
        versions: Versions that are in the log now and were not recorded as published before.
        error: Why it stopped.
        diverged: Whether it froze the table.
        more: Whether it published as many commits as its limit allows, and more may wait.
    """

    versions: tuple[int, ...] = ()
    error: DeltaSqlError | None = None
    diverged: bool = False
    more: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A table to publish.

    Attributes:
        table: The table.
        storage_options: Options for its store.
        known: Its new commits, if this process has just ratified them. If no older commits wait, the outbox
            is not queried.
    """

    table: Table
    storage_options: Mapping[str, str] | None = None
    known: UnpublishedCommits | None = None


def publish(
    database: Database,
    table: Table,
    *,
    storage_options: Mapping[str, str] | None = None,
    limit: int = 32,
) -> Published:
    """Publish up to ``limit`` waiting commits of a table, oldest first."""
    return publish_all(database, [Target(table, storage_options)], limit=limit)[0]


def publish_all(
    database: Database,
    targets: Sequence[Target],
    *,
    group: Group | None = None,
    limit: int = 32,
    seconds: float | None = None,
) -> list[Published]:
    """Publish waiting commits of tables, oldest first, and record all of them in one transaction.

    Args:
        database: The catalog.
        targets: The tables.
        group: The transaction that made the known commits, if it changed several tables.
        limit: The maximum number of commits per table.
        seconds: Stop after this time; the reconciler publishes the rest.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    options = {t.table.location: t.storage_options for t in targets}
    try:
        with ExitStack() as locks:
            for table_id in sorted(t.table.table_id for t in targets):
                locks.enter_context(_table_lock(database, table_id))
            runs = _runs(database, targets, limit, deadline)
            try:
                _put_all(runs)
            except Exception:  # such as a warning that the program has turned into an error
                _note(database, runs, group, options)
                raise
            _note(database, runs, group, options)
    except DeltaSqlError as failure:
        # the database failed: the next publisher finds the commit files that were written
        names = ", ".join(t.table.name for t in targets)
        logger.warning("publishing %s must wait: %s", names, failure.message)
        return [Published(error=failure)] * len(targets)
    return [
        Published(tuple(run.done), run.error, run.diverged, more=run.hit_limit and not run.left)
        for run in runs
    ]


def _runs(database: Database, targets: Sequence[Target], limit: int, deadline: float) -> list[_Run]:
    """One run for every table."""
    # a table may have been paused since its commit began
    unasked = [t.table.table_id for t in targets if t.known is not None and not t.known.asked]
    paused = outbox.paused(database, unasked) if unasked else set()
    return [_Run(database, t, limit, deadline, paused=t.table.table_id in paused) for t in targets]


def _put_all(runs: Sequence[_Run]) -> None:
    """Put the waiting commits of every table."""

    def put(number: int) -> None:
        if number:
            failpoint("publish.between_tables")
        runs[number].put_all()

    if len(runs) > 1:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="deltasql-publish") as threads:
            list(threads.map(put, range(len(runs))))
    else:
        for number in range(len(runs)):
            put(number)


def _note(database: Database, runs: Sequence[_Run], group: Group | None, options: StoreOptions) -> None:
    """Write manifests, then note what is in the logs, then what failed."""
    put = {run.table.table_id: run.done for run in runs if run.done}
    if put:
        groups = {c.group: None for run in runs for c in run.put if c.group is not None}
        if group is not None or groups:
            write_manifests(database, group, groups, put, options)
        outbox.mark_published(database, put)
        failpoint("publish.after_mark")
        telemetry.emit("publish_total", sum(map(len, put.values())), outcome="published")
    for run in runs:
        if run.error is not None and run.left:
            _note_failure(database, run.table, run.left[0], run.error)
        elif run.error is not None:
            logger.warning("publishing %s must wait: %s", run.table.name, run.error.message)


#: only one thread of a process publishes a table at a time; the next one then finds nothing left to do
_table_locks: dict[tuple[Database, int], threading.Lock] = {}
_table_locks_guard = threading.Lock()
#: tables on object stores whose newest file this process has seen: another check would cost a request
_seen: set[tuple[Database, int]] = set()


def _table_lock(database: Database, table_id: int) -> threading.Lock:
    with _table_locks_guard:
        return _table_locks.setdefault((database, table_id), threading.Lock())


def _after_fork() -> None:
    global _table_locks_guard
    _table_locks_guard = threading.Lock()
    _table_locks.clear()
    _seen.clear()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(slots=True)
class _Run:
    """One run of the publisher on one table."""

    database: Database
    target: Target
    limit: int
    deadline: float
    paused: bool
    waiting: list[Unpublished] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    error: DeltaSqlError | None = None
    diverged: bool = False

    @property
    def table(self) -> Table:
        return self.target.table

    @property
    def put(self) -> list[Unpublished]:
        """Commits that are in the log now."""
        return self.waiting[: len(self.done)]

    @property
    def left(self) -> list[Unpublished]:
        """Commits that are not in the log yet."""
        return self.waiting[len(self.done) :]

    @property
    def hit_limit(self) -> bool:
        """Whether the commits reach the limit of one run, so that more may wait."""
        held = sum(len(c.data) for c in self.waiting)
        return len(self.waiting) == self.limit or held >= outbox.HELD_BYTES

    def put_all(self) -> None:
        """Write commits until none is left, the deadline has passed, or one of them cannot be written."""
        known = self._known_commits()
        if known:
            self._put_in_order(known)
            if self.error is None and (self.done or self.diverged):
                return
            # the previous version is missing, or writing failed: start again from the outbox
            self.error, self.done = None, []
        self._put_in_order([])

    def _put_in_order(self, known: list[Unpublished]) -> None:
        """Write the known commits, or those that wait in the outbox if none are known."""
        database, table = self.database, self.table
        durable = database.engine.config.publish.fsync
        try:
            asked = [] if known else outbox.waiting(database, table.table_id, limit=self.limit)
            self.waiting = known or asked
            if not self.waiting:
                return
            first = self.waiting[0].version
            store = open_store(table.location, self.target.storage_options, durable=durable)
            if not (self._continues(store, first) if known else self._check_predecessor(store, first)):
                return
            for commit in self.waiting:
                if asked and self.done and outbox.paused(database, [table.table_id]):
                    return
                if not _put(store, commit):
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

    def _known_commits(self) -> list[Unpublished]:
        """The commits that this process has just ratified, if no older ones wait."""
        known = self.target.known
        if known is None or not known.clear or self.paused:
            return []
        return [Unpublished(*commit, attempts=0) for commit in known.commits]

    def _continues(self, store: Store, version: int) -> bool:
        """Whether the previous version is in the log; on local disk, also whether its bytes are ours."""
        known = self.target.known
        if known is None or version == 0:
            return True
        if known.after is not None and isinstance(store, LocalStore):
            try:
                return hashlib.sha256(store.get(commit_path(version - 1))).hexdigest() == known.after
            except StorageMissingError:
                return False
        if isinstance(store, LocalStore) or (self.database, known.table_id) not in _seen:
            if not store.exists(commit_path(version - 1)):
                return False
            _seen.add((self.database, known.table_id))
        return True

    def _check_predecessor(self, store: Store, version: int) -> bool:
        """Restore the previous version if it is missing; False if a foreign commit is in its place."""
        put_back_missing(self.database, self.table, store, version)
        if version == 0 or not isinstance(store, LocalStore):
            return True
        try:
            # the table may have been read before that version was published
            head = replace(self.table.head, version=max(self.table.head.version, version - 1))
            published = replace(self.table, published_version=version - 1, head=head)
            state = commit_file_state(self.database, published, store, version - 1)
        except DeltaSqlError as error:
            # the catalog's own copy is damaged: the others can be published
            logger.error("version %d of %s: %s", version - 1, self.table.name, error.message)
            return True
        if state == "foreign":
            self._freeze(version - 1)
            return False
        if state == "damaged":
            logger.error(
                "the commit file of version %d of %s is damaged; see `deltasql mirror repair`",
                version - 1,
                self.table.name,
            )
        return True

    def _freeze(self, version: int, reason: str | None = None) -> None:
        self.diverged = True
        table = self.table
        reason = reason or f"_delta_log has other bytes than the catalog for version {version}"
        registry.freeze(self.database, table, reason, version=version)
        logger.error("table %s is frozen: %s; %s", table.name, reason, FROZEN_HINT)
        telemetry.emit("publish_total", 1, outcome="diverged")
        telemetry.emit("table_frozen", 1, table=table.name)
        # last: a program may turn warnings into errors
        warnings.warn(
            f"the table {table.name} is frozen: {reason}; {FROZEN_HINT}", DivergedWarning, stacklevel=2
        )


def _put(store: Store, commit: Unpublished) -> bool:
    """Create the file of one commit; False if the file exists with other bytes."""
    name = commit_path(commit.version)
    failpoint("publish.before_put")
    if store.put_new(name, commit.data, mtime_ms=commit.timestamp):
        return True
    # the file exists: it is ours (after a lost response, or by another publisher) or foreign
    return store.get(name) == commit.data


def _note_failure(database: Database, table: Table, commit: Unpublished, error: DeltaSqlError) -> None:
    logger.warning(
        "version %d of %s is committed but not yet published: %s", commit.version, table.name, error.message
    )
    telemetry.emit("publish_total", 1, outcome="failed")
    try:
        outbox.mark_failed(
            database,
            table.table_id,
            commit.version,
            f"{type(error).__name__}: {error.message}",
            retry_in_ms=retry_in_ms(commit.attempts),
        )
    except DeltaSqlError as second:
        logger.warning("the failure could not be noted in the catalog: %s", second.message)


# ---- missing versions ------------------------------------------------------------------------------------


def put_back_missing(database: Database, table: Table, store: Store, version: int) -> None:
    """Before a version is written: check that the previous one exists, else restore deleted commit files.

    The bytes come from the catalog, and files are created only if absent, so no lease is needed. A checkpoint
    replaces versions whose bytes the catalog does not have. Files older than the newest checkpoint are not
    restored: any engine may clean them up.

    Args:
        database: The catalog.
        table: The table.
        store: Its root.
        version: The version that is about to be written.

    Raises:
        LogGapError: Another writer cleaned them up, and went on beyond the head.
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
            f"_delta_log has version {newest}, which the catalog did not make, and no longer those before it",
            table=table.name,
            version=head,
        )
    covered = max((v for v in listing.checkpoints if v < version), default=-1)
    begin = version - 1
    while begin > max(covered, first) and not store.exists(commit_path(begin - 1)):
        begin -= 1
        if version - begin > _MOST_BACK:
            logger.error(
                "more than %d commit files of %s are gone from _delta_log: readers begin at version %d; "
                "older ones are only in the catalog; `deltasql mirror rebuild` writes a whole log elsewhere",
                _MOST_BACK,
                table.name,
                version - 1,
            )
            write_checkpoint_of(database, table.name, version - 1, store=store)
            _put_back(database, table, store, version - 1)
            return
    oldest = min(commits.tail_start(database, table), version - 1)
    pruned = oldest > 0 or _bytes(database, table, 0) is None
    if begin <= oldest and covered < oldest and pruned:
        # what was before it is not in the catalog: readers begin at a checkpoint
        write_checkpoint_of(database, table.name, oldest, store=store)
        begin = oldest
        lost = f"; the catalog has not kept older ones, so readers begin at a checkpoint of version {oldest}"
    else:
        lost = ""
    done = [v for v in range(begin, version) if _put_back(database, table, store, v)]
    logger.error(
        "commit files of %s were gone from _delta_log; written again: %s%s",
        table.name,
        f"versions {done[0]} to {done[-1]}" if done else "none",
        lost,
    )


def _put_back(database: Database, table: Table, store: Store, version: int) -> bool:
    """Put one commit file back; False if the catalog does not have its bytes."""
    row, data = commits.one(database, table, version), _bytes(database, table, version)
    if data is None:
        return False
    store.put_new(commit_path(version), data, mtime_ms=None if row is None else row.timestamp)
    return True


def _bytes(database: Database, table: Table, version: int) -> bytes | None:
    """The bytes of a version; None if they were pruned or never there."""
    try:
        return commits.commit_bytes(database, table, version)
    except VersionMissingError:
        return None
