"""Properties of commits, and tables made from files that exist, as in ``deltalake.transaction``."""

from typing import TYPE_CHECKING

from deltalake.transaction import *  # noqa: F403

from deltalakedb._stock import stock_getattr
from deltalakedb.table.drop_in.functions import create_table_with_add_actions as create_table_with_add_actions

if not TYPE_CHECKING:
    __getattr__ = stock_getattr(__name__, "deltalake.transaction")
