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
from deltalakedb.protocol.predicate import Unknown, conjunction, conjuncts, map_columns, referenced_columns
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.schema import StructField, StructType, parse_schema
from deltalakedb.table.handle import DEFAULT, Hooks
from deltalakedb.table.scratch import Stage, add_to_metrics, candidates, rewrite, with_metrics
from deltalakedb.table.write.write import without_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake._internal import RawDeltaTable

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.read_set import ReadSet
    from deltalakedb.table.handle import TableHandle

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

            metrics = json.loads(stage.run(run))
            stage.submit(hooks, with_metrics(stage.harvest(), left_out, _SKIPPED))
        return json.dumps(add_to_metrics(metrics, left_out, _SKIPPED))


def target_predicate(options: dict[str, Any], metadata: Metadata) -> Expr | None:
    """The part of a merge's predicate that is about the target alone, so that no other file holds a match."""
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
    mine = [
        map_columns(part, lambda path: path[1:])
        for part in conjuncts(parsed)
        if not isinstance(part, Unknown)
        and (columns := referenced_columns(part))
        and all(len(c) > 1 and c[0] == target for c in columns)
    ]
    return conjunction(mine) if mine else None


def delete(
    table: TableHandle,
    predicate: str | None,
    run: Callable[[RawDeltaTable, str | None], str],
    *,
    hooks: Hooks = DEFAULT,
) -> str:
    """Delete the rows that a predicate is true of, or all, by calling delta-rs with a predicate.

    delta-rs deletes every row if it works a predicate out to be NULL, as ``nullif('', '') = name`` is. What
    the planner of files understands is safe; for the rest the query planner is asked first.
    """
    where = table.where_or_all(predicate)
    doubtful = predicate is not None and (where is None or not referenced_columns(where))

    def on(stage: Stage) -> str:
        nothing = doubtful and _is_empty(stage.raw, f"SELECT 1 FROM t WHERE ({predicate})")  # noqa: S608
        return run(stage.raw, "false" if nothing else predicate)

    return rewrite(table, where, on, hooks=hooks)


def _is_empty(raw: RawDeltaTable, sql: str) -> bool:
    """Whether a query returns no row by its plan; without a plan delta-rs is to judge."""
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
    """Commit actions on files that are under the table's root already, by calling delta-rs.

    With the mode ``"overwrite"``, files that match the partition filters are removed.
    """
    adds: list[Add] = []
    reads: ReadSet = NOTHING
    if mode == "overwrite":
        adds, reads = candidates(table, table.where_or_all(filters))
    with Stage(table, adds, reads) as stage:
        stage.run(run)
        harvest = stage.harvest()
        paths = {decode_path(a.path) for a in harvest.actions if isinstance(a, Add)}
        # pyarrow may spell a path below the root with a slash at its beginning
        below = {
            path: path.lstrip("/")
            for path in paths
            if path.startswith("/") and not (table.root.is_local and Path(path).exists())
        }
        stage.submit(hooks, harvest.in_place(below))
