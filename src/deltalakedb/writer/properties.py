"""How Parquet is written, as in ``deltalake.writer.properties``."""

from typing import TYPE_CHECKING

from deltalake.writer.properties import *  # noqa: F403

from deltalakedb._stock import names_of

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, "deltalake.writer.properties")
