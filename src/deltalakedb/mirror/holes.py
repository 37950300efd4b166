"""Holes: a log whose newest files were deleted gets them back before it goes on."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import LogGapError, StorageMissingError, VersionMissingError
from deltalakedb.metastore import commits, registry
from deltalakedb.mirror.checkpointer import write_checkpoint_of
from deltalakedb.mirror.folder import require_folder
from deltalakedb.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: files that a writer puts back; where more are gone, a checkpoint stands for them
_MOST_BACK = 1_000

#: tables on object stores that this process has looked at: a look costs a request there
_looked: set[tuple[Database, int]] = set()
os.register_at_fork(after_in_child=_looked.clear)


def fill(database: Database, table: Table, store: Store, version: int) -> tuple[int, ...]:
    """Before a version is put: see that the one before it is there, else put back what was deleted.

    The bytes come from the catalog, by the same create-if-absent as any publishing, so nobody needs a lease.
    Files below the newest checkpoint stay away: every engine may clean up there.

    Args:
        database: The catalog.
        table: The table.
        store: Its root.
        version: The version that is about to be put.

    Returns:
        The versions that were put back; a checkpoint stands for those whose bytes the catalog has not.

    Raises:
        LogGapError: Others cleaned them up, and went on beyond the head.
        TableFolderMissingError: The table's folder is gone.
    """
    if version <= table.head.first_version or _is_there(store, version - 1):
        return ()
    require_folder(database, table, store)
    listing = list_log(store)
    _refuse_overtaken(database, table, max((*listing.commits, *listing.checkpoints), default=-1))
    covered = max((v for v in listing.checkpoints if v < version), default=-1)
    oldest = min(commits.tail_start(database, table), version - 1)
    back = [version - 1]
    while back[-1] > max(covered, table.head.first_version) and not _is_there(store, back[-1] - 1):
        back.append(back[-1] - 1)
        if len(back) > _MOST_BACK:
            return _begin_anew(database, table, store, version - 1)
    anew = back[-1] <= oldest and covered < oldest and (oldest > 0 or _bytes(database, table, 0) is None)
    if anew:
        # what was before it is not in the catalog: readers begin at a checkpoint
        write_checkpoint_of(database, table.name, oldest, store=store)
        back = [lost for lost in back if lost >= oldest]
    done = []
    for lost in reversed(back):
        row, data = commits.one(database, table, lost), _bytes(database, table, lost)
        if data is not None:
            store.put_new(commit_path(lost), data, mtime_ms=None if row is None else row.timestamp)
            done.append(lost)
    _tell(table, done, oldest if anew else None)
    return tuple(done)


def _refuse_overtaken(database: Database, table: Table, newest: int) -> None:
    if newest > (head := registry.find(database, table.name).head.version):
        raise LogGapError(
            f"_delta_log has version {newest}, which the catalog did not make, and no longer those before it",
            table=table.name,
            version=head,
        )


def _tell(table: Table, done: Sequence[int], begins_at: int | None) -> None:
    """Say what came back, and what could not."""
    logger.error(
        "commit files of %s were gone from _delta_log; written again: %s%s",
        table.name,
        f"versions {done[0]} to {done[-1]}" if done else "none",
        ""
        if begins_at is None
        else f"; the catalog has not kept the bytes of older ones, so readers begin with a checkpoint of "
        f"version {begins_at}",
    )


def _begin_anew(database: Database, table: Table, store: Store, version: int) -> tuple[int, ...]:
    """Let readers of a log that lost very many files begin at a checkpoint of what is newest."""
    logger.error(
        "more than %d commit files of %s are gone from _delta_log: readers begin at version %d again, older "
        "ones are in the catalog alone; `deltasql mirror rebuild` writes a whole log elsewhere",
        _MOST_BACK,
        table.name,
        version,
    )
    write_checkpoint_of(database, table.name, version, store=store)
    row, data = commits.one(database, table, version), _bytes(database, table, version)
    if data is None:
        return ()
    store.put_new(commit_path(version), data, mtime_ms=None if row is None else row.timestamp)
    return (version,)


def _bytes(database: Database, table: Table, version: int) -> bytes | None:
    """The bytes of a version, or None where they were never there or are pruned."""
    try:
        return commits.commit_bytes(database, table, version)
    except VersionMissingError:
        return None


def is_hole(database: Database, table_id: int, store: Store, version: int) -> bool:
    """Whether the file before a version is missing. On object stores a process looks once at a table."""
    if version == 0:
        return False
    if isinstance(store, LocalStore):
        return not _is_there(store, version - 1)
    if (database, table_id) in _looked:
        return False
    if _is_there(store, version - 1):
        _looked.add((database, table_id))
        return False
    return True


def _is_there(store: Store, version: int) -> bool:
    try:
        store.head(commit_path(version))
    except StorageMissingError:
        return False
    return True
