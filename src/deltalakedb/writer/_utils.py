"""The helpers of ``deltalake.writer._utils``, for code that imports them from there."""

from typing import TYPE_CHECKING

from deltalake.writer._utils import *  # noqa: F403

from deltalakedb._stock import names_of
from deltalakedb.table.drop_in.lookup import try_get_deltatable as try_get_deltatable
from deltalakedb.table.drop_in.lookup import try_get_table_and_table_uri as try_get_table_and_table_uri

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, "deltalake.writer._utils")
