"""`open_log`: a table's transaction log at the low level, as files or in a catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from deltalakedb.commit.txn_log import SqlTxnLogWriter
from deltalakedb.delta_log.reader import open_file_log
from deltalakedb.delta_log.writer import FileTxnLogWriter
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.txn_log import SqlTxnLogReader
from deltalakedb.uri import is_deltasql, parse_uri

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from deltalakedb.protocol.log import TxnLogReader, TxnLogWriter


@overload
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["r"] = "r",
) -> TxnLogReader: ...
@overload
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["w"],
) -> TxnLogWriter: ...
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["r", "w"] = "r",
) -> TxnLogReader | TxnLogWriter:
    """A table's transaction log at the low level: file-backed for a path, SQL-backed for an address.

    Args:
        path_or_uri: A table's root, or its ``deltasql://`` address. The address of a table that version 0
            creates needs ``&location=``.
        storage_options: Options for the object store.
        mode: ``r`` reads versions, files and history; ``w`` appends commits, action by action as given.

    Example:
        >>> [a.path for a in open_log("/lake/orders").files(version=3)]
        >>> open_log("/lake/orders", mode="w").commit(4, [add])
    """
    if not is_deltasql(path_or_uri):
        if mode == "w":
            return FileTxnLogWriter(path_or_uri, storage_options)
        return open_file_log(path_or_uri, storage_options)
    address = parse_uri(path_or_uri)
    if address.table is None:
        raise InvalidArgumentError(
            f"{address.to_uri()} is a catalog's address, not a table's", suggestion="add ?table=NAME"
        )
    database = Database.open(address)
    if mode == "w":
        location = address.location or registry.find(database, address.table).location
        return SqlTxnLogWriter(database, address.table, location)
    registry.find(database, address.table)
    return SqlTxnLogReader(database, address.table)
