"""Transaction logs at the low level, whichever way they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.delta_log.reader import open_file_log
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.txn_log import SqlTxnLogReader
from deltalakedb.uri import is_deltasql, parse_uri

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from deltalakedb.protocol.txn_log import TxnLogReader


def open_log(
    path_or_uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> TxnLogReader:
    """A table's transaction log at the low level: file-backed for a path, SQL-backed for an address.

    Args:
        path_or_uri: A table's root, or its ``deltasql://`` address.
        storage_options: Options for the object store.

    Example:
        >>> [a.path for a in open_log("/lake/orders").files(version=3)]
    """
    if not is_deltasql(path_or_uri):
        return open_file_log(str(path_or_uri), storage_options)
    address = parse_uri(path_or_uri)
    if address.table is None:
        raise InvalidArgumentError(
            f"{address.to_uri()} is a catalog's address, not a table's", suggestion="add ?table=NAME"
        )
    database = Database.open(address)
    registry.find(database, address.table)
    return SqlTxnLogReader(database, address.table)
