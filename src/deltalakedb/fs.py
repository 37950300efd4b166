"""The file system handler of ``deltalake.fs``."""

from typing import TYPE_CHECKING

from deltalakedb._stock import stock_getattr

if TYPE_CHECKING:
    from deltalakedb.table.storage_handler import DeltaStorageHandler as DeltaStorageHandler
else:
    __getattr__ = stock_getattr(
        __name__, "deltalake.fs", {"DeltaStorageHandler": "deltalakedb.table.storage_handler"}
    )
