"""Writing, as in ``deltalake.writer``: to plain tables and to SQL-backed ones."""

from typing import TYPE_CHECKING

from deltalake.writer import BloomFilterProperties, ColumnProperties, WriterProperties

from deltalakedb._stock import stock_getattr
from deltalakedb.table.convert import convert_to_deltalake
from deltalakedb.table.writer import write_deltalake

__all__ = [
    "BloomFilterProperties",
    "ColumnProperties",
    "WriterProperties",
    "convert_to_deltalake",
    "write_deltalake",
]

if not TYPE_CHECKING:
    __getattr__ = stock_getattr(__name__, "deltalake.writer")
