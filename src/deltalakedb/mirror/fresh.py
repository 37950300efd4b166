"""Publishing what this process has just ratified: its bytes are at hand, the database need not be asked."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import DeltaSqlError, StorageMissingError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import outbox
from deltalakedb.mirror.groups import manifest_of, spread, tell_all
from deltalakedb.mirror.holes import is_hole
from deltalakedb.storage.durable import NewObject, put_all_new
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.mirror.groups import Group, StoreOptions
    from deltalakedb.protocol.log import Fresh
    from deltalakedb.storage.store import Store

#: how long to wait for the writer of the version before; it is on its way unless it died
_PATIENCE_S = 0.05
_FIRST_LOOK_S = 0.0005
#: a look for what others left costs a statement, so there is at most one in so many seconds
_LOOK_BACK_S = 1.0
#: stores are slow to answer, and wait side by side
_THREADS = 8


def publish_fresh(
    database: Database,
    works: Sequence[tuple[Fresh, str, Mapping[str, str] | None]],
    *,
    group: Group | None = None,
    options: StoreOptions | None = None,
) -> PublishedFresh:
    """Publish what was just ratified, of any number of tables side by side, where nothing is in the way.

    Args:
        database: The catalog.
        works: What was ratified, where its table lies, and the options of its store.
        group: The transaction, where it changed several tables.
        options: Storage options of all its tables by location, of those too that are published later.

    Returns:
        What is in the log and noted, and the tables that are done.
    """
    # somebody may have paused a table since its commit began
    ids = [fresh.table_id for fresh, _, _ in works if not fresh.asked]
    held = outbox.paused(database, ids) if ids else set()
    works = [work for work in works if work[0].table_id not in held]
    if not works:
        return PublishedFresh()
    told = False
    if len(works) == 1:
        put = [_put(database, *works[0])]
    elif (stores := _local_stores(database, works)) is not None:
        put, told = _put_together(database, works, stores, group)
    else:
        put = list(_threads().map(lambda numbered: _put_next(database, *numbered), enumerate(works)))
    noted = {work[0].table_id: versions for work, versions in zip(works, put, strict=True) if versions}
    if noted:
        if group is not None:
            tell_all(database, group, noted, options or {}, told=told)
        outbox.mark_published(database, noted)
        failpoint("publish.after_mark")
        telemetry.emit("publish_total", sum(map(len, noted.values())), outcome="published")
    whole = {
        fresh.table_id
        for fresh, _, _ in works
        if len(noted.get(fresh.table_id, ())) == len(fresh.commits) and not _looks_back(database, fresh)
    }
    return PublishedFresh(noted, whole)


@dataclass(frozen=True, slots=True)
class PublishedFresh:
    """What became of what was just ratified.

    Attributes:
        noted: The versions that are in the log and noted, by table.
        done: Ids of tables with nothing left to do. The others are for the publisher that asks the database:
            because of an error, another's bytes in our place, a version before that is missing, or one that
            nobody may have noted.
    """

    noted: Mapping[int, Sequence[int]] = field(default_factory=dict)
    done: Collection[int] = ()


#: when this process last looked for earlier versions whose publisher died before it noted them
_looked_back: dict[tuple[Database, int], float] = {}
#: looks that were put off
_owed: set[tuple[Database, int]] = set()


def _looks_back(database: Database, fresh: Fresh) -> bool:
    """Whether to look for what a dead publisher left; mostly the version before is just being noted."""
    key = (database, fresh.table_id)
    if fresh.clear and key not in _owed:
        return False
    now = time.monotonic()
    if now - _looked_back.get(key, -_LOOK_BACK_S) < _LOOK_BACK_S:
        _owed.add(key)
        return False
    _owed.discard(key)
    _looked_back[key] = now
    return True


def _local_stores(
    database: Database, works: Sequence[tuple[Fresh, str, Mapping[str, str] | None]]
) -> list[LocalStore] | None:
    """The stores of tables that all lie on local disk and have one new version each; else None."""
    if any(len(fresh.commits) != 1 for fresh, _, _ in works):
        return None
    durable = database.engine.config.publish.fsync
    stores = [open_store(location, options, durable=durable) for _, location, options in works]
    local = [store for store in stores if isinstance(store, LocalStore)]
    return local if len(local) == len(stores) else None


def _put_together(
    database: Database,
    works: Sequence[tuple[Fresh, str, Mapping[str, str] | None]],
    stores: Sequence[LocalStore],
    group: Group | None,
) -> tuple[list[list[int]], bool]:
    """Put one version of every table, flushed to disk together with the manifest of their transaction.

    Returns:
        By table what is in its log now, and whether the manifest is there.
    """
    puts: dict[int, NewObject] = {}
    for number, ((fresh, _, _), store) in enumerate(zip(works, stores, strict=True)):
        try:
            ready = _is_whole(database, store, fresh) if fresh.clear else _follows(store, fresh)
        except DeltaSqlError:
            continue  # the publisher that follows meets it again, and notes it
        if ready:
            version, timestamp, data = fresh.commits[0]
            failpoint("publish.before_put")
            puts[number] = NewObject(store, commit_path(version), data, timestamp)
    by_location = {location: store for (_, location, _), store in zip(works, stores, strict=True)}
    manifest = manifest_of(group, by_location) if group is not None and len(puts) == len(works) else None

    def linking(place: int) -> None:
        if place:
            failpoint("publish.between_tables" if place < len(puts) else "publish.manifest")

    put_all_new(list(puts.values()), last=manifest, linking=linking)
    for put in puts.values():
        if put.done:
            failpoint("publish.after_put")
    told = manifest is not None and manifest.done
    if manifest is not None and group is not None and told:
        spread(database, manifest, group, by_location)
    versions = [
        [fresh.commits[0][0]] if number in puts and puts[number].done else []
        for number, (fresh, _, _) in enumerate(works)
    ]
    return versions, told


def _put_next(
    database: Database, number: int, work: tuple[Fresh, str, Mapping[str, str] | None]
) -> list[int]:
    if number:
        failpoint("publish.between_tables")
    return _put(database, *work)


def _put(database: Database, fresh: Fresh, location: str, options: Mapping[str, str] | None) -> list[int]:
    """The versions that are in the log now."""
    done: list[int] = []
    try:
        store = open_store(location, options, durable=database.engine.config.publish.fsync)
        if fresh.clear and not _is_whole(database, store, fresh):
            return done  # the publisher that follows puts back what is missing, or freezes the table
        if not fresh.clear and (fresh.after is None or not isinstance(store, LocalStore)):
            return done
        for version, timestamp, data in fresh.commits:
            failpoint("publish.before_put")
            if isinstance(store, LocalStore) and not fresh.clear and not done:
                # its writer is on its way with the version before, and both flush their files meanwhile
                there = store.put_new(
                    commit_path(version), data, mtime_ms=timestamp, when=lambda: _follows(store, fresh)
                )
            else:
                there = store.put_new(commit_path(version), data, mtime_ms=timestamp)
            if not there:
                return done
            done.append(version)
            failpoint("publish.after_put")
    except DeltaSqlError:
        # the publisher that follows meets it again, and notes it
        return done
    return done


def _is_whole(database: Database, store: Store, fresh: Fresh) -> bool:
    """Whether what was published is still there; on local disk, whether it is still ours."""
    first = fresh.commits[0][0]
    if first == 0:
        return True
    if fresh.after is None or not isinstance(store, LocalStore):
        return not is_hole(database, fresh.table_id, store, first)
    try:
        return hashlib.sha256(store.get(commit_path(first - 1))).hexdigest() == fresh.after
    except StorageMissingError:
        return False


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
    _looked_back.clear()
    _owed.clear()


os.register_at_fork(after_in_child=_after_fork)
