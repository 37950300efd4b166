"""Writing, as in ``deltalake.writer``: to plain tables and to SQL-backed ones."""

from typing import TYPE_CHECKING

from deltalake.writer import BloomFilterProperties as BloomFilterProperties
from deltalake.writer import ColumnProperties as ColumnProperties
from deltalake.writer import WriterProperties as WriterProperties

from deltalakedb._stock import stock_getattr
from deltalakedb.table.drop_in.delta_table import write_deltalake as write_deltalake
from deltalakedb.table.drop_in.functions import convert_to_deltalake as convert_to_deltalake

if not TYPE_CHECKING:
    __getattr__ = stock_getattr(__name__, "deltalake.writer")
