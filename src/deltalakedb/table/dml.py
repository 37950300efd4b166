"""Changing rows and files by delta-rs in a scratch table: delete, merge, and commits of existing files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
from deltalake._internal import PyQueryBuilder

from deltalakedb.exceptions import InvalidArgumentError, PredicateError
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.paths import decode_path
from deltalakedb.protocol.predicate import (
    Unknown,
    conjunction,
    conjuncts,
    map_columns,
    referenced_columns,
)
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.schema import StructField, StructType, parse_schema
from deltalakedb.table.hooks import DEFAULT, Hooks
from deltalakedb.table.scratch import (
    ErrorContext,
    Stage,
    add_to_metrics,
    call,
    candidates,
    rewrite,
    with_metrics,
)
from deltalakedb.table.write.create import without_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake._internal import RawDeltaTable

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.read_set import ReadSet
    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.scratch import Harvest

#: clauses that look at target rows without a match, and so at every file
_BY_SOURCE = ("when_not_matched_by_source_update", "when_not_matched_by_source_delete")

#: the metric of files that delta-rs did not open
_SKIPPED = "num_target_files_skipped_during_scan"


class MergePlan:
    """Stands in for delta-rs's merge builder until the merge is executed."""

    def __init__(self, table: TableHandle, options: dict[str, Any]) -> None:
        self._table = table
        self._options: dict[str, Any] | None = options
        self._clauses: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.source_alias: str | None = options.get("source_alias")
        self.target_alias: str | None = options.get("target_alias")
        self.merge_schema: bool = options["merge_schema"]
        self.arrow_schema = options["batch_schema"]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("when_"):
            raise AttributeError(name)

        def clause(*args: Any, **kwargs: Any) -> None:
            self._clauses.append((name, args, kwargs))

        return clause

    def execute(self) -> str:
        """Choose the files, run the merge on them, and commit it."""
        if self._options is None:
            raise InvalidArgumentError(
                "this merge was executed already",
                table=self._table.name,
                suggestion="begin a new merge: its source has been read",
            )
        options, self._options = self._options, None
        hooks = Hooks.of(options.pop("post_commithook_properties", None))
        self._table.refresh()
        whole = any(name in _BY_SOURCE for name, _, _ in self._clauses)
        where = None if whole else target_predicate(options, self._table.source.snapshot.metadata)
        adds, reads = candidates(self._table, where)
        left_out = 0 if where is None else self._table.source.num_files() - len(adds)
        with Stage(self._table, adds, reads) as stage:

            def run(raw: Any) -> str:
                builder = raw.create_merge_builder(**without_hooks(options))
                for name, args, kwargs in self._clauses:
                    getattr(builder, name)(*args, **kwargs)
                return str(raw.merge_execute(builder))

            metrics = json.loads(call(run, stage.raw, ErrorContext.at(self._table)))
            stage.submit(hooks, with_metrics(stage.harvest(), left_out, _SKIPPED))
        return json.dumps(add_to_metrics(metrics, left_out, _SKIPPED))


def target_predicate(options: dict[str, Any], metadata: Metadata) -> Expr | None:
    """The part of a merge's predicate that speaks of the target alone: only such files can hold a match.

    None where there is no such part, and every file may hold one.
    """
    target, source = options.get("target_alias"), options.get("source_alias")
    schema = parse_schema(metadata.schema_string)
    if target is None or source is None:
        return None
    other = parse_schema(deltalake.Schema.from_arrow(options["batch_schema"]).to_json())
    both = StructType((StructField(target, schema), StructField(source, other)))
    try:
        parsed = parse_predicate(options["predicate"], both)
    except PredicateError:
        return None  # delta-rs decides whether it is one
    mine = []
    for part in conjuncts(parsed):
        columns = referenced_columns(part)
        alone = columns and all(len(c) > 1 and c[0] == target for c in columns)
        if alone and not isinstance(part, Unknown):
            mine.append(map_columns(part, lambda path: path[1:]))
    return conjunction(mine) if mine else None


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


def commit_existing_files(
    table: TableHandle,
    mode: str,
    filters: Any,
    run: Callable[[RawDeltaTable], Any],
    *,
    hooks: Hooks = DEFAULT,
) -> None:
    """Commit actions on files that are under the table's root already.

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
        adds, reads = candidates(table, table.where_or_all(filters))
    with Stage(table, adds, reads) as stage:
        call(run, stage.raw, ErrorContext.at(table))
        harvest = stage.harvest()
        stage.submit(hooks, harvest.in_place(_below_root(table, harvest)))


def _below_root(table: TableHandle, harvest: Harvest) -> dict[str, str]:
    """What files are called whose paths begin with a slash and mean the root, as those of pyarrow may."""
    paths = {decode_path(a.path) for a in harvest.actions if isinstance(a, Add)}
    return {
        path: path.lstrip("/")
        for path in paths
        if path.startswith("/") and not (table.root.is_local and Path(path).exists())
    }
