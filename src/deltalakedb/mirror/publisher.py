"""The publisher: copies ratified bytes to `_delta_log`, strictly in order, never over anything."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.delta_log.commit_file import commit_digest
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import (
    FROZEN_HINT,
    DeltaSqlError,
    DivergedWarning,
    LogGapError,
    StorageMissingError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, outbox, registry
from deltalakedb.mirror.backoff import wait_ms
from deltalakedb.mirror.drift import judge
from deltalakedb.mirror.groups import tell
from deltalakedb.mirror.holes import fill
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import Unpublished
    from deltalakedb.metastore.values import Table
    from deltalakedb.mirror.groups import StoreOptions
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """What one run of the publisher achieved.

    Attributes:
        versions: What is in the log now and was not noted before.
        error: Why it stopped.
        diverged: Whether it froze the table.
        more: Whether all that it asked for is done, and others may wait.
    """

    versions: tuple[int, ...] = ()
    error: DeltaSqlError | None = None
    diverged: bool = False
    more: bool = False


def publish(
    database: Database,
    table: Table,
    *,
    storage_options: Mapping[str, str] | None = None,
    others: StoreOptions | None = None,
    limit: int = 32,
    seconds: float | None = None,
) -> Published:
    """Publish up to ``limit`` waiting commits of a table, oldest first.

    A failure is noted in the outbox and returned, never raised: the commits stand whatever happens here.

    Args:
        database: The catalog.
        table: The table.
        storage_options: Options for the table's store.
        others: Options by location for other tables of the same transactions, where the caller has some.
        limit: Commits at most.
        seconds: Time after which the rest is left to others.
    """
    try:
        with _turn(database, table.table_id):
            return _publish(database, table, storage_options, others, limit, seconds)
    except DeltaSqlError as failure:
        # the database itself: what was put is found there by the next publisher
        logger.warning("publishing %s must wait: %s", table.name, failure.message)
        return Published(error=failure)


def _publish(
    database: Database,
    table: Table,
    storage_options: Mapping[str, str] | None,
    others: StoreOptions | None,
    limit: int,
    seconds: float | None,
) -> Published:
    waiting = outbox.waiting(database, table.table_id, limit=limit)
    done: list[int] = []
    error: DeltaSqlError | None = None
    diverged = False
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    try:
        store = None
        for commit in waiting:
            if store is None:
                durable = database.engine.config.publish.fsync
                store = open_store(table.location, storage_options, durable=durable)
                fill(database, table, store, commit.version)
                if _is_foreign(database, table, store, commit.version - 1):
                    diverged = True
                    _freeze(database, table, commit.version - 1)
                    break
            elif outbox.paused(database, [table.table_id]):
                break
            if not _put(store, commit):
                if _is_taken_back(database, table, commit):
                    break  # what waits now is for the next publisher
                diverged = True
                _freeze(database, table, commit.version)
                break
            done.append(commit.version)
            failpoint("publish.after_put")
            if time.monotonic() > deadline:
                break  # the rest is for the reconciler
    except LogGapError as gap:
        diverged = True
        _freeze(database, table, gap.version or 0, gap.message)
    except DeltaSqlError as failure:
        error = failure
    if done:
        if groups := {c.group for c in waiting[: len(done)] if c.group is not None}:
            options = {**(others or {}), table.location: storage_options}
            tell(database, groups, {table.table_id: done}, options)
        outbox.mark_published(database, {table.table_id: done})
        failpoint("publish.after_mark")
        telemetry.emit("publish_total", len(done), outcome="published")
    if error is not None and len(done) < len(waiting):
        _note_failure(database, table, waiting[len(done)], error)
    asked_all = len(waiting) == limit or sum(len(c.data) for c in waiting) >= outbox.HELD_BYTES
    return Published(tuple(done), error, diverged, more=asked_all and len(done) == len(waiting))


#: threads of one process publish a table one after the other: the later one finds nothing left to do
_turns: dict[tuple[Database, int], threading.Lock] = {}
_turns_lock = threading.Lock()


def _turn(database: Database, table_id: int) -> threading.Lock:
    with _turns_lock:
        return _turns.setdefault((database, table_id), threading.Lock())


def _after_fork() -> None:
    global _turns_lock
    _turns_lock = threading.Lock()
    _turns.clear()


os.register_at_fork(after_in_child=_after_fork)


def _is_foreign(database: Database, table: Table, store: Store, version: int) -> bool:
    """Whether somebody else's commit stands where ours was published; looked at on local disk alone."""
    if version < 0 or not isinstance(store, LocalStore):
        return False
    row = commits.one(database, table, version)
    if row is None or row.sha256 is None:
        return False
    try:
        if commit_digest(store, commit_path(version)).sha256 == row.sha256:
            return False
    except StorageMissingError:
        return False
    try:
        found = judge(database, table, store, version)
    except DeltaSqlError as error:
        # the catalog's own copy is damaged: publishing what is not goes on
        logger.error("version %d of %s: %s", version, table.name, error.message)
        return False
    if found.kind != "foreign":
        logger.error(
            "version %d of %s in _delta_log: %s; see `deltasql mirror repair`",
            version,
            table.name,
            found.detail,
        )
    return found.kind == "foreign"


def _put(store: Store, commit: Unpublished) -> bool:
    """Put one commit; False where other bytes stand in its place."""
    name = commit_path(commit.version)
    failpoint("publish.before_put")
    if store.put_new(name, commit.data, mtime_ms=commit.timestamp):
        return True
    # there already: our own, by a lost answer or another publisher, or somebody else's
    return store.get(name) == commit.data


def _is_taken_back(database: Database, table: Table, commit: Unpublished) -> bool:
    """Whether the catalog has another commit there by now: a divergence was resolved meanwhile."""
    row = commits.one(database, table, commit.version)
    return row is None or row.sha256 != commits.digest(commit.data)


def _freeze(database: Database, table: Table, version: int, reason: str | None = None) -> None:
    reason = reason or f"_delta_log has other bytes than the catalog for version {version}"
    registry.freeze(database, table, reason, version=version)
    logger.error("table %s is frozen: %s; %s", table.name, reason, FROZEN_HINT)
    telemetry.emit("publish_total", 1, outcome="diverged")
    telemetry.emit("table_frozen", 1, table=table.name)
    # last: a program may turn warnings into errors
    warnings.warn(f"the table {table.name} is frozen: {reason}; {FROZEN_HINT}", DivergedWarning, stacklevel=2)


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
            retry_in_ms=wait_ms(commit.attempts),
        )
    except DeltaSqlError as second:
        logger.warning("the failure could not be noted in the catalog: %s", second.message)
