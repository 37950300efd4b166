"""Rows of many files at once, as columns: the bulk way into ``dl_files`` and ``dl_file_json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from deltalakedb.metastore.file_rows import SIDE_COLUMNS, write_levels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.slots import Level

_SIDE = frozenset(SIDE_COLUMNS)


def write_columns(
    session: Session,
    table_id: int,
    columns: Mapping[str, pa.Array],
    constants: Mapping[str, int | bool | str],
    levels: Sequence[Level],
) -> None:
    """Write new files.

    Args:
        session: Inside the transaction that writes them.
        table_id: The table.
        columns: Columns by name, all of one length; those that are left out or hold only nulls stay null.
        constants: Columns of `dl_files` that are the same for all.
        levels: The width levels that the files add up to.
    """
    kept = {n: c for n, c in columns.items() if c.null_count < len(c)}
    if not session.engine.dialect.side_table:
        session.insert_arrow("dl_files", pa.table(kept), constants)
    else:
        main = {n: c for n, c in kept.items() if n not in _SIDE}
        side = {n: c for n, c in kept.items() if n in _SIDE or n == "file_id"}
        session.insert_arrow("dl_files", pa.table(main), constants)
        session.insert_arrow("dl_file_json", pa.table(side), {})
    write_levels(session, table_id, levels)
