"""SQL over tables by DataFusion, as in ``deltalake.query``."""

from typing import TYPE_CHECKING

from deltalake.query import *  # noqa: F403

from deltalakedb._stock import stock_getattr
from deltalakedb.table.query_builder import QueryBuilder as QueryBuilder

if not TYPE_CHECKING:
    __getattr__ = stock_getattr(__name__, "deltalake.query")
