"""The file system handler of ``deltalake.fs``, also for the files of SQL-backed tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from deltalake.fs.fs_handler import DeltaStorageHandler as StockHandler

from deltalakedb._stock import stock_getattr
from deltalakedb.address import is_deltasql
from deltalakedb.table.drop_in.raw_table import RawSqlTable
from deltalakedb.table.handle import TableHandle

if TYPE_CHECKING:
    from deltalake._internal import RawDeltaTable
else:
    __getattr__ = stock_getattr(__name__, "deltalake.fs")


class DeltaStorageHandler(StockHandler):
    """A file system handler for pyarrow, rooted at a table.

    Args:
        table_uri: A path, URL or ``deltasql://`` address.
        options: Options for the object store.
        known_sizes: Sizes of files, by path below the root.
    """

    def __init__(
        self, table_uri: str, options: dict[str, str] | None = None, known_sizes: dict[str, int] | None = None
    ) -> None:
        if is_deltasql(table_uri):
            table_uri, options = _root_of(TableHandle.open(table_uri, storage_options=options), options)
        super().__init__(table_uri, options, known_sizes)

    @classmethod
    def from_table(
        cls,
        table: RawDeltaTable,
        options: dict[str, str] | None = None,
        known_sizes: dict[str, int] | None = None,
    ) -> DeltaStorageHandler:
        """The handler of an open table, ``table._table`` as in stock."""
        given: Any = table
        if isinstance(given, RawSqlTable):
            return cls(*_root_of(given.handle, options), known_sizes)
        return cast("DeltaStorageHandler", super().from_table(table, options, known_sizes))


def _root_of(handle: TableHandle, options: dict[str, str] | None) -> tuple[str, dict[str, str] | None]:
    root = handle.root
    return root.location, options or (None if root.options is None else dict(root.options))
