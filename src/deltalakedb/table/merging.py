"""A merge in the making: clauses are written down, and delta-rs sees them once the files are chosen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake

from deltalakedb.exceptions import InvalidArgumentError, PredicateError
from deltalakedb.protocol.predicate import (
    Unknown,
    conjunction,
    conjuncts,
    map_columns,
    referenced_columns,
)
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import StructField, StructType, parse_schema
from deltalakedb.table.hooks import Hooks
from deltalakedb.table.operations import call, candidates, plus, recounted, staged
from deltalakedb.table.refusals import Concerned
from deltalakedb.table.write.create import quiet

if TYPE_CHECKING:
    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Expr
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
        with staged(self._table, adds, reads) as stage:

            def run(raw: Any) -> str:
                builder = raw.create_merge_builder(**quiet(options))
                for name, args, kwargs in self._clauses:
                    getattr(builder, name)(*args, **kwargs)
                return str(raw.merge_execute(builder))

            metrics = json.loads(call(run, stage.raw, Concerned.at(self._table)))
            stage.submit(hooks, recounted(stage.harvest(), left_out, _SKIPPED))
        return json.dumps(plus(metrics, left_out, _SKIPPED))


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
