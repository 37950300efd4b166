"""DELETE: by delta-rs on the candidate files, unless no row can be meant."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake._internal import PyQueryBuilder

from deltalakedb.protocol.predicate import referenced_columns
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.operations import rewrite

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake._internal import RawDeltaTable

    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.operations import Stage

_NOTHING = "false"


def delete(
    table: TableHandle,
    predicate: str | None,
    run: Callable[[RawDeltaTable, str | None], str],
    *,
    hooks: Hooks = DEFAULT,
) -> str:
    """Delete the rows that a predicate is true of.

    delta-rs deletes every row where it works a predicate out to be NULL, as ``nullif('', '') = name`` is.
    What the planner of files understands is safe; of the rest the query planner is asked first.

    Args:
        table: The open table.
        predicate: What is true of the rows to delete; None for every row.
        run: Calls delta-rs with a predicate.
        hooks: What is to follow the commit.
    """
    where = table.where_or_all(predicate)
    doubtful = predicate is not None and (where is None or not referenced_columns(where))

    def on(stage: Stage) -> str:
        nothing = doubtful and _is_empty(stage.raw, f"SELECT 1 FROM t WHERE ({predicate})")  # noqa: S608
        return run(stage.raw, _NOTHING if nothing else predicate)

    return rewrite(table, where, on, hooks=hooks)


def _is_empty(raw: RawDeltaTable, sql: str) -> bool:
    """Whether a query's plan says that no row comes of it; no plan means that delta-rs is to judge."""
    with suppress(Exception):
        builder = PyQueryBuilder(None)
        builder.register("t", raw)
        plans = pa.table(builder.execute(f"EXPLAIN {sql}").read_all())
        return any(plan.startswith("EmptyRelation") for plan in plans["plan"].to_pylist())
    return False
