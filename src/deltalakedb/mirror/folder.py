"""A table's folder: once a version is published, nothing is written unless the folder is still there."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from deltalakedb.delta_log.names import LOG_FOLDER, commit_path
from deltalakedb.exceptions import StorageError, StorageMissingError, TableFolderMissingError
from deltalakedb.metastore import files, registry
from deltalakedb.protocol.paths import relative_to
from deltalakedb.storage.local import LocalStore

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: scratch folders of operations, which hold no data of the table
_WORK_FOLDER: Final = "_deltasql"


def require_folder(database: Database, table: Table, store: Store, *, log: bool = False) -> None:
    """Refuse to write to a table whose folder is gone: an unmounted share, or a folder that was moved.

    It costs one ``stat`` on local disk and one HEAD request on an object store. On local disk a folder with
    the table's data that has lost only its `_delta_log` passes unless ``log`` is set, since publishing writes
    the log again. An object store has no folders, so its log must hold at least one object.

    Raises:
        TableFolderMissingError: Versions were published, and the folder is missing or holds no data.
    """
    if table.head.version < 0:
        return  # a transaction is about to create it
    local = isinstance(store, LocalStore)
    log_folder = f"{store.location}/{LOG_FOLDER}"
    # before every write
    if os.path.isdir(log_folder) if local else _has_version(store, max(table.published_version, 0)):  # noqa: PTH112
        return
    if not _was_published(database, table):
        return
    if _is_empty(store, LOG_FOLDER) and not (local and not log and _has_data(database, table, store)):
        raise _missing(table, store)


def require_data(database: Database, table: Table, store: Store) -> None:
    """Refuse to write a lost log again (TableFolderMissingError) unless the table's data is still there."""
    lost = _is_empty(store, LOG_FOLDER) and _was_published(database, table)
    if lost and not _has_data(database, table, store):
        raise _missing(table, store)


def _missing(table: Table, store: Store) -> TableFolderMissingError:
    local = isinstance(store, LocalStore)
    what = "folder is missing or holds none of its data" if local else "log is missing"
    return TableFolderMissingError(
        f"the table's {what}: {store.location}",
        table=table.name,
        suggestion="nothing was written: mount the file system or move the data back, then try again"
        if local
        else "nothing was written: check the bucket and the prefix. If only the log was deleted, "
        f"`deltasql mirror repair {table.name}` writes it again",
    )


def _was_published(database: Database, table: Table) -> bool:
    """Whether the catalog still has this very table, and a version of it was published."""
    found = registry.find(database, table.name)
    return found.table_id == table.table_id and found.published_version >= 0


def _has_version(store: Store, version: int) -> bool:
    try:
        store.head(commit_path(version))
    except StorageMissingError:
        return False
    except StorageError as error:
        # an error does not mean that it is missing
        logger.warning("the log at %s could not be checked: %s", store.location, error.message)
    return True


def _has_data(database: Database, table: Table, store: Store) -> bool:
    """Whether some live file is there; of a table without files under its root, whether anything is."""
    paths = [relative_to(store.location, path) for path in files.some_live(database, table)]
    below = [path for path in paths if path is not None]
    return any(map(store.exists, below)) if below else not _is_empty(store)


def _is_empty(store: Store, prefix: str = "") -> bool:
    if not isinstance(store, LocalStore):
        return next(iter(store.list(prefix, recursive=not prefix)), None) is None
    try:
        with os.scandir(f"{store.location}/{prefix}") as entries:
            return all(entry.name == _WORK_FOLDER for entry in entries)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # the write itself reports what is wrong
