"""The file system handler of ``deltalake.fs.fs_handler``."""

from typing import TYPE_CHECKING

from deltalakedb._stock import names_of

if TYPE_CHECKING:
    from deltalakedb.table.drop_in.storage_handler import DeltaStorageHandler as DeltaStorageHandler
else:
    __getattr__ = names_of(
        __name__,
        "deltalake.fs.fs_handler",
        {"DeltaStorageHandler": "deltalakedb.table.drop_in.storage_handler"},
    )
