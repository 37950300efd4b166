"""The gate: what must hold before any writer writes anything for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore import registry
from deltalakedb.mirror.folder import require_folder

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.storage.store import Store


def require_writable(database: Database, table: Table, store: Store, *, log: bool = False) -> None:
    """Check, before data files are written, that a table may be written to.

    Table operations, transactions, Spark and the HTTP service all call this, so a new precondition of writing
    belongs here. Whatever may change between this check and the commit is checked again under the lock of the
    table's head, in `commit/committer.py`. ``log`` requires the log on local disk too, for an engine that has
    already written its data, and so made a missing folder.

    Raises:
        TableFollowedError: The table belongs to another catalog and is only followed.
        TableFolderMissingError: Versions were published, and the folder is missing or holds no data.
    """
    registry.refuse_followed(table)
    require_folder(database, table, store, log=log)
