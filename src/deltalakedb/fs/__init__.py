"""The file system handler of ``deltalake.fs``."""

from typing import TYPE_CHECKING

from deltalake.fs import *  # noqa: F403

from deltalakedb._stock import names_of
from deltalakedb.table.storage_handler import DeltaStorageHandler as DeltaStorageHandler

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, "deltalake.fs")
