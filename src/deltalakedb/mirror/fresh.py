"""Publishing what this process has just ratified: its bytes are at hand, the database need not be asked."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.catalog import outbox
from deltalakedb.exceptions import DeltaSqlError, StorageMissingError
from deltalakedb.failpoints import failpoint
from deltalakedb.log.names import commit_path
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.protocol.log import Fresh
    from deltalakedb.storage.store import Store

#: how long to wait for the writer of the version before; it is on its way unless it died
_PATIENCE_S = 0.05
_FIRST_LOOK_S = 0.0005
#: stores are slow to answer, and wait side by side
_THREADS = 8


def publish_fresh(
    database: Database, works: Sequence[tuple[Fresh, str, Mapping[str, str] | None]]
) -> set[int]:
    """Publish what was just ratified, of any number of tables side by side, where nothing is in the way.

    Args:
        database: The catalog.
        works: What was ratified, where its table lies, and the options of its store.

    Returns:
        The ids of the tables that are done. The others are for the publisher that asks the database: because
        of an error, another's bytes in our place, or a version before that is missing.
    """
    if len(works) == 1:
        put = [_put(*works[0])]
    else:
        put = list(_threads().map(lambda numbered: _put_next(*numbered), enumerate(works)))
    done = {work[0].table_id: versions for work, versions in zip(works, put, strict=True) if versions}
    if done:
        outbox.mark_published(database, done)
        failpoint("publish.after_mark")
        telemetry.emit("publish_total", sum(map(len, done.values())), outcome="published")
    return {
        fresh.table_id for fresh, _, _ in works if len(done.get(fresh.table_id, ())) == len(fresh.commits)
    }


def _put_next(number: int, work: tuple[Fresh, str, Mapping[str, str] | None]) -> list[int]:
    if number:
        failpoint("publish.between_tables")
    return _put(*work)


def _put(fresh: Fresh, location: str, options: Mapping[str, str] | None) -> list[int]:
    """The versions that are in the log now."""
    done: list[int] = []
    try:
        store = open_store(location, options)
        if not fresh.clear and not _follows(store, fresh):
            return done
        for version, timestamp, data in fresh.commits:
            failpoint("publish.before_put")
            if not store.put_new(commit_path(version), data, mtime_ms=timestamp):
                return done
            done.append(version)
            failpoint("publish.after_put")
    except DeltaSqlError:
        # the publisher that follows meets it again, and notes it
        return done
    return done


def _follows(store: Store, fresh: Fresh) -> bool:
    """Whether the log has our own bytes for the version before; its writer is given a moment to put them."""
    if fresh.after is None or not isinstance(store, LocalStore):
        return False
    name = commit_path(fresh.commits[0][0] - 1)
    wait, until = _FIRST_LOOK_S, time.monotonic() + _PATIENCE_S
    while True:
        try:
            return hashlib.sha256(store.get(name)).hexdigest() == fresh.after
        except StorageMissingError:
            if time.monotonic() > until:
                return False
        time.sleep(wait)
        wait *= 1.5


_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="deltasql-publish")
    return _pool


def _after_fork() -> None:
    global _pool
    _pool = None  # its threads stayed behind


os.register_at_fork(after_in_child=_after_fork)
