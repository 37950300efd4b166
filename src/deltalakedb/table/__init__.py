"""The face: `deltalake`'s names, answered from SQL. This module carries those of ``deltalake.table``."""

from typing import TYPE_CHECKING

from deltalakedb._stock import stock_getattr

if TYPE_CHECKING:
    from deltalake.table import *  # noqa: F403

    from deltalakedb.table.delta_table import DeltaTable as DeltaTable
else:
    __getattr__ = stock_getattr(__name__, "deltalake.table", {"DeltaTable": "deltalakedb.table.delta_table"})
