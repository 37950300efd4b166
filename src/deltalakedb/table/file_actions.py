"""Files that a user has written alone and hands in: they are committed as they lie."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.paths import decode_path
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.operations import call, candidates, staged
from deltalakedb.table.refusals import Concerned

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake._internal import RawDeltaTable

    from deltalakedb.protocol.read_set import ReadSet
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.sql_table import SqlDeltaTable
    from deltalakedb.table.staging import Harvest


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
        harvest = stage.harvest()
        stage._hand_on(hooks, harvest.in_place(_below_root(table, harvest)))


def _below_root(table: SqlDeltaTable, harvest: Harvest) -> dict[str, str]:
    """What files are called whose paths begin with a slash and mean the root, as those of pyarrow may."""
    paths = {decode_path(a.path) for a in harvest.actions if isinstance(a, Add)}
    return {
        path: path.lstrip("/")
        for path in paths
        if path.startswith("/") and not (table._root.is_local and Path(path).exists())
    }
