"""Changing rows and files by delta-rs in a scratch table: delete, merge, and commits of existing files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
from deltalake._internal import PyQueryBuilder, RawDeltaTable

from deltalakedb.exceptions import InvalidArgumentError, PredicateError
from deltalakedb.protocol.actions import Add, Metadata
from deltalakedb.protocol.paths import decode_path
from deltalakedb.protocol.predicate import Expr, part_about, referenced_columns
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.schema import StructField, StructType, parse_schema
from deltalakedb.table.scratch import (
    Call,
    OpenScratchTable,
    add_to_metrics,
    candidates,
    rewrite,
    with_metrics,
)

if TYPE_CHECKING:
    from deltalakedb.table.handle import TableHandle

#: clauses that look at target rows without a match, and so at every file
_BY_SOURCE = ("when_not_matched_by_source_update", "when_not_matched_by_source_delete")

#: the metric of files that delta-rs did not open
_SKIPPED = "num_target_files_skipped_during_scan"


class MergePlan:
    """Stands in for delta-rs's merge builder until the merge is executed."""

    def __init__(self, table: TableHandle, call: Call) -> None:
        self._table = table
        self._call: Call | None = call
        self._clauses: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.source_alias: str | None = call["source_alias"]
        self.target_alias: str | None = call["target_alias"]
        self.merge_schema: bool = call["merge_schema"]
        self.arrow_schema = call["batch_schema"]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("when_"):
            raise AttributeError(name)

        def clause(*args: Any, **kwargs: Any) -> None:
            self._clauses.append((name, args, kwargs))

        return clause

    def execute(self) -> str:
        if self._call is None:
            raise InvalidArgumentError(
                "this merge was executed already",
                table=self._table.name,
                suggestion="begin a new merge: its source has been read",
            )
        call, self._call = self._call, None
        hooks = call.hooks
        self._table.refresh()
        whole = any(name in _BY_SOURCE for name, _, _ in self._clauses)
        read = self._table.snapshot
        where = None if whole else target_predicate(call, read.metadata)
        adds, reads = candidates(self._table, where)
        left_out = 0 if where is None else self._table.source.num_files() - len(adds)

        def run(scratch: OpenScratchTable) -> str:
            builder = call.on(scratch)
            for name, args, kwargs in self._clauses:
                getattr(builder, name)(*args, **kwargs)
            return str(scratch.raw.merge_execute(builder))

        with OpenScratchTable(self._table, read, adds, reads) as scratch:
            metrics = json.loads(scratch.run(run))
            scratch.submit(hooks, with_metrics(scratch.read_commits(), left_out, _SKIPPED))
        return json.dumps(add_to_metrics(metrics, left_out, _SKIPPED))


def target_predicate(call: Call, metadata: Metadata) -> Expr | None:
    """The part of a merge's predicate that is about the target alone, so that no other file holds a match."""
    target, source = call["target_alias"], call["source_alias"]
    schema = parse_schema(metadata.schema_string)
    if target is None or source is None:
        return None
    other = parse_schema(deltalake.Schema.from_arrow(call["batch_schema"]).to_json())
    both = StructType((StructField(target, schema), StructField(source, other)))
    try:
        return part_about(parse_predicate(call["predicate"], both), target)
    except PredicateError:
        return None  # delta-rs decides whether it is one


def update(table: TableHandle, call: Call) -> str:
    where = table.where_or_all(call["predicate"])
    return rewrite(table, where, lambda scratch: str(call.on(scratch)), hooks=call.hooks)[0]


def delete(table: TableHandle, call: Call) -> str:
    """Delete the rows that a predicate is true of, or all.

    delta-rs deletes every row if it works a predicate out to be NULL, as ``nullif('', '') = name`` is. What
    the planner of files understands is safe; for the rest the query planner is asked first.
    """
    predicate = call["predicate"]
    where = table.where_or_all(predicate)
    doubtful = predicate is not None and (where is None or not referenced_columns(where))

    def run(scratch: OpenScratchTable) -> str:
        nothing = doubtful and _is_empty(scratch.raw, f"SELECT 1 FROM t WHERE ({predicate})")  # noqa: S608
        return str(call.on(scratch, predicate="false" if nothing else predicate))

    return rewrite(table, where, run, hooks=call.hooks)[0]


def _is_empty(raw: RawDeltaTable, sql: str) -> bool:
    """Whether a query returns no row by its plan; without a plan delta-rs is to judge."""
    with suppress(Exception):
        builder = PyQueryBuilder(None)
        builder.register("t", raw)
        plans = pa.table(builder.execute(f"EXPLAIN {sql}").read_all())
        return any(plan.startswith("EmptyRelation") for plan in plans["plan"].to_pylist())
    return False


def commit_existing_files(table: TableHandle, call: Call) -> None:
    """Commit actions on files that are under the table's root already.

    With the mode ``"overwrite"``, files that match the partition filters are removed.
    """
    read, adds, reads = table.snapshot, list[Add](), NOTHING
    if call["mode"] == "overwrite":
        adds, reads = candidates(table, table.where_or_all(call["partitions_filters"]))
    with OpenScratchTable(table, read, adds, reads) as scratch:
        scratch.run(call.on)
        commits = scratch.read_commits()
        paths = {decode_path(a.path) for a in commits.actions if isinstance(a, Add)}
        # pyarrow may spell a path below the root with a slash at its beginning
        below = {
            path: path.lstrip("/")
            for path in paths
            if path.startswith("/") and not (table.root.is_local and Path(path).exists())
        }
        scratch.submit(call.hooks, commits.in_place(below))
