"""OPTIMIZE: SQL picks the files, delta-rs rewrites them, and no row changes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.metastore.files import ADD_COLUMNS, add_from_row, read_some
from deltalakedb.protocol.actions import Action, Add, CommitInfo, Protocol
from deltalakedb.protocol.features import without_features
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.properties import STATS_COLUMNS, mapping_mode
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.schema import ArrayType, MapType, StructField, StructType, parse_schema
from deltalakedb.protocol.stats import column_names
from deltalakedb.table.scratch import (
    Call,
    OpenScratchTable,
    add_to_metrics,
    refuse_row_ids,
    with_metrics,
)
from deltalakedb.table.sources import SqlSource
from deltalakedb.table.write.parquet import target_size
from deltalakedb.table.write_locks import WORK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.handle import TableHandle

_ORDER: Final = ("add_version", "file_id")
#: metrics that count all files considered
_COUNTED: Final = ("totalConsideredFiles", "totalFilesSkipped")


def compact(table: TableHandle, call: Call) -> str:
    """Join small neighbouring files.

    Return delta-rs's metrics as JSON, counting all files of the table that match the filters.
    """
    refuse_row_ids(table)
    filters, target, read = call["partition_filters"], call["target_size"], table.snapshot
    if target is None:
        target = target_size(read.metadata)
    where = table.where_or_all(filters)
    valid = isinstance(target, int) and target > 0
    adds, between, left_out = _to_compact(table, where, target) if valid else ([], frozenset[str](), 0)
    plain = Unmapped(read)
    with OpenScratchTable(table, read, adds, NOTHING, placeholders=between, shown=plain.snapshot) as scratch:
        run = partial(call.on, target_size=target, partition_filters=plain.filters(filters))
        metrics = json.loads(scratch.run(run))
        more = left_out - len(between)
        commits = scratch.read_commits().each(plain.with_logical_names)
        scratch.submit(call.hooks, with_metrics(commits, more, *_COUNTED))
    return json.dumps(add_to_metrics(metrics, more, *_COUNTED))


def z_order(table: TableHandle, call: Call) -> str:
    """Rewrite the files of the partitions that match the filters, in the order of a curve through columns."""
    refuse_row_ids(table)
    columns, filters, read = call["z_order_columns"], call["partition_filters"], table.snapshot
    # rows stay the same, so the result depends on nothing that is read
    with table.source.without_tracking():
        rows = _ordered(table, table.where_or_all(filters), ADD_COLUMNS)
    plain = Unmapped(read)
    adds = map(add_from_row, rows)
    with OpenScratchTable(table, read, adds, NOTHING, shown=plain.snapshot) as scratch:
        columns = plain.names(columns) if isinstance(columns, list) else columns
        run = partial(call.on, z_order_columns=columns, partition_filters=plain.filters(filters))
        metrics = scratch.run(run)
        scratch.submit(call.hooks, scratch.read_commits().each(plain.with_logical_names))
    return str(metrics)


def _to_compact(table: TableHandle, where: Expr | None, target: int) -> tuple[list[Add], frozenset[str], int]:
    """The files of all bins, the paths of those that only separate bins, and the number of other files.

    delta-rs joins neighbours, and would join two bins if the files between them are left out. So an entry
    that is too large for any bin separates two bins of a partition; it names no file, and is never opened.
    """
    source = table.source
    with source.without_tracking():
        rows = _ordered(table, where, ("path", "dv_id", "size", "partition_values"))
        keys = [(canonical_path(row["path"]), row["dv_id"]) for row in rows]
        files = [(str(sorted(decode_json(row["partition_values"]).items())), row["size"]) for row in rows]
        chosen = sorted(bins(files, target), key=lambda b: (files[b[0]][0], b[0]))
        wanted = {keys[n] for b in chosen for n in b}
        if not chosen:
            return [], frozenset(), len(rows)
        if isinstance(source, SqlSource):
            found: Iterable[Add] = read_some(source.database, [rows[n]["file_id"] for b in chosen for n in b])
        else:
            found = source.adds(where)
        whole = {a.key: a for a in found if a.key in wanted}
    adds: list[Add] = []
    between: list[str] = []
    for before, one in zip([None, *chosen], chosen, strict=False):
        if before is not None and files[before[0]][0] == files[one[0]][0]:
            between.append(f"{WORK_FOLDER}/between-{len(between)}")  # no data file has such a path
            adds.append(replace(whole[keys[one[0]]], path=between[-1], size=target + 1, deletion_vector=None))
        adds += [whole[keys[n]] for n in one]
    return adds, frozenset(between), len(rows) - len(wanted)


def _ordered(table: TableHandle, where: Expr | None, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Candidate files, newest first, as delta-rs reads them from a log."""
    rows = table.source.scan((*columns, *_ORDER), where).to_pylist()
    # files that the transaction added have no version yet
    return sorted(
        rows, key=lambda r: (r["add_version"] is not None, -(r["add_version"] or 0), r["file_id"] or 0)
    )


def bins(files: Iterable[tuple[Hashable, int]], target: int) -> list[list[int]]:
    """The groups of files, by their positions, that become one file each; given partitions and sizes.

    Files above the target stay as they are and separate their neighbours; a bin ends if the next file would
    not fit any more. A bin of one file would change nothing, and is left out.
    """
    current: dict[Hashable, list[int]] = {}
    sizes: Counter[Hashable] = Counter()
    done: list[list[int]] = []
    for number, (group, size) in enumerate(files):
        if sizes[group] + size > target:
            done.append(current.pop(group, []))
            sizes[group] = 0
        if size <= target:
            current.setdefault(group, []).append(number)
            sizes[group] += size
    return [b for b in (*done, *current.values()) if len(b) > 1]


#: the field metadata that delta-rs writes into Parquet as the field's id
_PARQUET_ID: Final = "parquet.field.id"
#: properties and field metadata with logical names; no row changes, so none has to be checked
_LOGICAL: Final = (
    "delta.columnMapping.",
    "delta.constraints.",
    "delta.generationExpression",
    "delta.invariants",
)


class Unmapped:
    """A mapped table without its mapping, for operations that rewrite files and change no row.

    delta-rs refuses to put the files of mapped tables together. A table without a mapping stays as it is.
    Statistics and partition values name columns physically in a mapped table's log, and so does everything
    that delta-rs makes of this one.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        metadata = snapshot.metadata
        self._physical: dict[str, str] = {}
        self.snapshot = snapshot
        if mapping_mode(metadata) == "none":
            return
        schema = parse_schema(metadata.schema_string)
        self._physical = {f.name: f.physical_name for f in schema.fields}
        configuration = {k: v for k, v in metadata.configuration.items() if not k.startswith(_LOGICAL)}
        if columns := configuration.get(STATS_COLUMNS):
            configuration[STATS_COLUMNS] = ",".join(_physical_path(c, schema) for c in column_names(columns))
        plain = replace(
            metadata,
            schema_string=_plain_type(schema).to_json(),
            partition_columns=tuple(self.names(metadata.partition_columns)),
            configuration=configuration,
        )
        self.snapshot = replace(snapshot, metadata=plain, protocol=_without_mapping(snapshot.protocol))

    def names(self, columns: Sequence[Any]) -> list[Any]:
        """Columns by their physical names; what is no column stays what it is."""
        return [self._physical.get(c, c) if isinstance(c, str) else c for c in columns]

    def filters(self, filters: Any) -> Any:
        if not isinstance(filters, list):
            return filters
        return [
            (*self.names(f[:1]), *f[1:]) if isinstance(f, tuple) and f else self.filters(f) for f in filters
        ]

    def with_logical_names(self, action: Action) -> Action:
        """An action whose operation parameters have the names that users know."""
        if not isinstance(action, CommitInfo) or "operationParameters" not in action.extra:
            return action
        named = {}
        for key, value in action.extra["operationParameters"].items():
            for name, physical in self._physical.items() if isinstance(value, str) else ():
                value = value.replace(physical, name)
            named[key] = value
        return replace(action, extra={**action.extra, "operationParameters": named})


def _without_mapping(protocol: Protocol) -> Protocol:
    if protocol.writer_features is None:
        # without named features, reader version 2 and writer version 5 imply this one
        return replace(protocol, min_reader_version=1, min_writer_version=min(protocol.min_writer_version, 4))
    return without_features(protocol, ("columnMapping",))


def _plain_field(field: StructField) -> StructField:
    metadata = {k: v for k, v in field.metadata.items() if not k.startswith(_LOGICAL)}
    if field.field_id is not None:
        metadata[_PARQUET_ID] = field.field_id
    return replace(field, name=field.physical_name, type=_plain_type(field.type), metadata=metadata)


def _plain_type(kind: Any) -> Any:
    if isinstance(kind, StructType):
        return replace(kind, fields=tuple(map(_plain_field, kind.fields)))
    if isinstance(kind, ArrayType):
        return replace(kind, element_type=_plain_type(kind.element_type))
    if isinstance(kind, MapType):
        return replace(kind, key_type=_plain_type(kind.key_type), value_type=_plain_type(kind.value_type))
    return kind


def _physical_path(column: tuple[str, ...], schema: StructType) -> str:
    """A column of a list of columns, perhaps inside structs."""
    parts = [field.physical_name for field in schema.fields_at(column)] or column
    return ".".join(p if p.isidentifier() else f"`{p.replace('`', '``')}`" for p in parts)
