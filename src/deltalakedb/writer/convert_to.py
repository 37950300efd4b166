"""``convert_to_deltalake``, as in ``deltalake.writer.convert_to``."""

from typing import TYPE_CHECKING

from deltalake.writer.convert_to import *  # noqa: F403

from deltalakedb._stock import names_of
from deltalakedb.table.drop_in.convert import convert_to_deltalake as convert_to_deltalake

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, "deltalake.writer.convert_to")
