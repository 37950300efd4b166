"""``write_deltalake``, as in ``deltalake.writer.writer``."""

from typing import TYPE_CHECKING

from deltalake.writer.writer import *  # noqa: F403

from deltalakedb._stock import names_of
from deltalakedb.table.write.write import write_deltalake as write_deltalake  # type: ignore[no-redef]  # ours instead

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, "deltalake.writer.writer")
