"""The base class of ``deltalake.fs._base_handler``."""

from typing import TYPE_CHECKING

from deltalake.fs._base_handler import *  # noqa: F403

from deltalakedb._stock import names_of

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, "deltalake.fs._base_handler")
