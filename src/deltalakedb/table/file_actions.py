"""Files that a user has written alone and hands in: they are committed as they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.reads import NOTHING
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.operations import call, candidates, staged
from deltalakedb.table.refusals import Concerned

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake._internal import RawDeltaTable

    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.reads import ReadSet
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.sql_table import SqlDeltaTable


def hand_in(
    table: SqlDeltaTable,
    mode: str,
    filters: Any,
    run: Callable[[RawDeltaTable], Any],
    *,
    hooks: Hooks = DEFAULT,
) -> None:
    """Commit actions on files that lie under the table's root already.

    Args:
        table: The open table.
        mode: ``"overwrite"`` removes the files that the filters leave, or all.
        filters: Partition filters.
        run: Calls delta-rs on the scratch table.
        hooks: What is to follow the commit.
    """
    adds: list[Add] = []
    reads: ReadSet = NOTHING
    if mode == "overwrite":
        adds, reads = candidates(table, table._predicate_or_all(filters))
    with staged(table, adds, reads) as stage:
        call(run, stage.raw, Concerned.at(table))
        stage._hand_on(hooks, stage.harvest().in_place())
