"""The types of a schema, as in ``deltalake.schema``."""

from typing import TYPE_CHECKING

from deltalake.schema import *  # noqa: F403

from deltalakedb._stock import stock_getattr

if not TYPE_CHECKING:
    __getattr__ = stock_getattr(__name__, "deltalake.schema")
