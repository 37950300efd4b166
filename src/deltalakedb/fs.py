"""The file system handler of ``deltalake.fs``, also for the files of SQL-backed tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deltalake.fs.fs_handler import DeltaStorageHandler as StockHandler

from deltalakedb._stock import stock_getattr
from deltalakedb.address import is_deltasql, parse_address
from deltalakedb.exceptions import TableMissingError
from deltalakedb.settings import get_config
from deltalakedb.storage.store import is_local
from deltalakedb.table.drop_in.raw_table import RawSqlTable
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.locations import normal_location

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
        super().__init__(*root_at(table_uri, options), known_sizes)

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


def root_at(table_uri: str, options: dict[str, str] | None) -> tuple[str, dict[str, str] | None]:
    """The root and storage options of a table at an address; plain paths and URLs stay as they are.

    A table that does not exist yet is at the address's ``location``: its files are written before it.
    """
    if not is_deltasql(table_uri):
        return table_uri, options
    address = parse_address(table_uri)
    try:
        return _root_of(TableHandle.open(address, storage_options=options), options)
    except TableMissingError:
        if address.location is None:
            raise
        place = normal_location(address.location)
        if is_local(place):
            Path(place).mkdir(parents=True, exist_ok=True)
        return place, options or get_config().storage_options_for(place)


def _root_of(handle: TableHandle, options: dict[str, str] | None) -> tuple[str, dict[str, str] | None]:
    root = handle.root
    return root.location, options or (None if root.options is None else dict(root.options))
