"""Files that a user has written alone and hands in: they are committed as they lie."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.reads import NOTHING
from deltalakedb.table.operations import call, candidates, staged

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake._internal import RawDeltaTable

    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.reads import ReadSet
    from deltalakedb.table.sql_table import SqlDeltaTable


def hand_in(table: SqlDeltaTable, mode: str, filters: Any, run: Callable[[RawDeltaTable], Any]) -> None:
    """Commit actions on files that lie under the table's root already.

    Args:
        table: The open table.
        mode: ``"overwrite"`` removes the files that the filters leave, or all.
        filters: Partition filters.
        run: Calls delta-rs on the scratch table.
    """
    adds: list[Add] = []
    reads: ReadSet = NOTHING
    if mode == "overwrite":
        adds, reads = candidates(table, table._predicate_or_all(filters))
    with staged(table, adds, reads) as stage:
        call(run, stage.raw)
        # nothing is to be moved, and a file may be one that the table has or had
        stage._hand_on(replace(stage.harvest(), new_files=(), fresh=False))
