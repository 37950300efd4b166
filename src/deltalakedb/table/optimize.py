"""OPTIMIZE: SQL picks the files, delta-rs rewrites them, and no row changes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.metastore.files import ADD_COLUMNS, add_from_row, read_some
from deltalakedb.protocol.actions import Add, CommitInfo
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.features import without_features
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.properties import STATS_COLUMNS, mapping_mode
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.schema import (
    ArrayType,
    MapType,
    StructField,
    StructType,
    parse_schema,
)
from deltalakedb.protocol.stats import column_names
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.scratch import ErrorContext, Stage, add_to_metrics, call, refuse_row_ids, with_metrics
from deltalakedb.table.sources import SqlSource
from deltalakedb.table.write_locks import WORK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from deltalakedb.protocol.actions import Action, Metadata, Protocol
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.schema import DataType
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.scratch import Harvest

_TARGET: Final = "delta.targetFileSize"
_DEFAULT_TARGET: Final = 100 * 1024 * 1024
_ORDER: Final = ("add_version", "file_id")
#: metrics that count every file that was looked at
_COUNTED: Final = ("totalConsideredFiles", "totalFilesSkipped")


def compact(
    table: TableHandle,
    filters: Any,
    target_size: Any,
    run: Callable[[Stage, Any, Any], str],
    *,
    hooks: Hooks = DEFAULT,
) -> str:
    """Put small neighbouring files together.

    Args:
        table: The open table.
        filters: Partition filters.
        target_size: The size to aim at; None for the table's own.
        run: Calls delta-rs on the scratch table, with the target size and the filters.
        hooks: What is to follow the commit.

    Returns:
        delta-rs's metrics as JSON, counting all files of the table that the filters leave.
    """
    refuse_row_ids(table)
    target = _target(table) if target_size is None else target_size
    where = table.where_or_all(filters)
    adds: list[Add] = []
    between: frozenset[str] = frozenset()
    left_out = 0
    if isinstance(target, int) and target > 0:
        adds, between, left_out = _to_compact(table, where, target)
    plain = _plain(table)
    with Stage(table, adds, NOTHING, unlent=between, shown=plain.snapshot if plain else None) as stage:
        wanted = plain.filters(filters) if plain else filters
        metrics = json.loads(call(lambda s: run(s, target, wanted), stage, ErrorContext.at(table)))
        more = left_out - len(between)
        stage.submit(hooks, with_metrics(_told(stage, plain), more, *_COUNTED))
    return json.dumps(add_to_metrics(metrics, more, *_COUNTED))


def z_order(
    table: TableHandle,
    columns: Any,
    filters: Any,
    run: Callable[[Stage, Any, Any], str],
    *,
    hooks: Hooks = DEFAULT,
) -> str:
    """Rewrite the files of the partitions that the filters leave, in the order of a curve through columns.

    Args:
        table: The open table.
        columns: The columns of the curve.
        filters: Partition filters.
        run: Calls delta-rs on the scratch table, with the columns and the filters.
        hooks: What is to follow the commit.

    Returns:
        delta-rs's metrics as JSON.
    """
    refuse_row_ids(table)
    # nothing is read whose change would matter: rows stay what they are
    with table.source.without_tracking():
        rows = _ordered(table, table.where_or_all(filters), ADD_COLUMNS)
    plain = _plain(table)
    with Stage(table, map(add_from_row, rows), NOTHING, shown=plain.snapshot if plain else None) as stage:
        if plain is not None:
            columns = plain.names(columns) if isinstance(columns, list) else columns
            filters = plain.filters(filters)
        metrics = call(lambda s: run(s, columns, filters), stage, ErrorContext.at(table))
        stage.submit(hooks, _told(stage, plain))
    return metrics


def _plain(table: TableHandle) -> Unmapped | None:
    """A mapped table without its mapping: delta-rs refuses to put the files of mapped ones together."""
    snapshot = table.source.snapshot
    return Unmapped(snapshot) if is_mapped(snapshot.metadata) else None


def _told(stage: Stage, plain: Unmapped | None) -> Harvest:
    harvest = stage.harvest()
    return harvest if plain is None else harvest.each(plain.told)


def _to_compact(table: TableHandle, where: Expr | None, target: int) -> tuple[list[Add], frozenset[str], int]:
    """The files of all bins; the paths of those among them that only part bins; how many others there are.

    delta-rs joins neighbours, and would join two bins whose parting files are left out. So where one bin ends
    and another begins, an entry that is too large for any bin stands between them; it names no file, and is
    never opened.
    """
    with table.source.without_tracking():
        rows = _ordered(table, where, ("path", "dv_id", "size", "partition_values"))
        groups = [_partition(row["partition_values"]) for row in rows]
        found = [Candidate(n, g, r["size"]) for n, (g, r) in enumerate(zip(groups, rows, strict=True))]
        chosen = bins(found, target)
        whole = _whole(table, where, [rows[c.file] for b in chosen for c in b])
    adds: list[Add] = []
    between: set[str] = set()
    in_order = sorted(chosen, key=lambda b: (str(b[0].group), b[0].file))
    for _, of_group in groupby(in_order, key=lambda b: b[0].group):
        for number, one in enumerate(of_group):
            files = [whole[_key(rows[c.file])] for c in one]
            if number:
                adds.append(_between(files[0], len(between), target))
                between.add(adds[-1].path)
            adds += files
    return adds, frozenset(between), len(rows) - (len(adds) - len(between))


def _whole(
    table: TableHandle, where: Expr | None, rows: Sequence[dict[str, Any]]
) -> dict[tuple[str, str], Add]:
    """Some files as add actions, by their identity."""
    source = table.source
    if not rows:
        return {}
    if isinstance(source, SqlSource):
        return {a.key: a for a in read_some(source.database, [row["file_id"] for row in rows])}
    wanted = {_key(row) for row in rows}
    return {a.key: a for a in source.adds(where) if a.key in wanted}


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return canonical_path(row["path"]), row["dv_id"]


def _between(neighbour: Add, number: int, target: int) -> Add:
    return Add(
        path=f"{WORK_FOLDER}/between-{number}",  # no data file lies there
        partition_values=neighbour.partition_values,
        size=target + 1,
        modification_time=neighbour.modification_time,
        data_change=False,
    )


def _ordered(table: TableHandle, where: Expr | None, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Candidate files, newest first, as delta-rs reads them from a log."""
    rows = table.source.scan((*columns, *_ORDER), where).to_pylist()
    # what a transaction has added itself has no version yet
    return sorted(
        rows, key=lambda r: (r["add_version"] is not None, -(r["add_version"] or 0), r["file_id"] or 0)
    )


def _partition(text: str) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted(decode_json(text).items()))


def _target(table: TableHandle) -> int:
    """The size that the table's own properties ask for."""
    with suppress(ValueError):
        size = int(table.source.snapshot.metadata.configuration.get(_TARGET) or "")
        if size > 0:
            return size
    return _DEFAULT_TARGET


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file as the planning sees it."""

    file: int
    group: Hashable  # its partition
    size: int


def bins(candidates: Iterable[Candidate], target: int) -> list[list[Candidate]]:
    """The groups of files that become one file each.

    Files are taken in the order given. Those above the target stay as they are and part their neighbours; a
    bin ends where the next file would not fit any more. A bin of one file would change nothing, and is none.

    Args:
        candidates: The files, newest first.
        target: The size that a new file may have.
    """
    current: dict[Hashable, list[Candidate]] = {}
    sizes: dict[Hashable, int] = {}
    done: list[list[Candidate]] = []
    for candidate in candidates:
        group = candidate.group
        if sizes.get(group, 0) + candidate.size > target:
            done.append(current.pop(group, []))
            sizes[group] = 0
        if candidate.size <= target:
            current.setdefault(group, []).append(candidate)
            sizes[group] = sizes.get(group, 0) + candidate.size
    done += current.values()
    return [b for b in done if len(b) > 1]


#: the field metadata that delta-rs writes into Parquet as the field's id
_PARQUET_ID: Final = "parquet.field.id"
#: properties and field metadata that speak of logical names; no row changes, so none needs to be checked
_LOGICAL: Final = (
    "delta.columnMapping.",
    "delta.constraints.",
    "delta.generationExpression",
    "delta.invariants",
)


def is_mapped(metadata: Metadata) -> bool:
    """Whether columns have other names in files than in the schema."""
    return mapping_mode(metadata) != "none"


class Unmapped:
    """A mapped table without its mapping, for operations that rewrite files and change no row.

    Statistics and partition values name columns physically in a mapped table's log, and so does everything
    that delta-rs makes of this one.

    Args:
        snapshot: The mapped table.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        metadata = snapshot.metadata
        schema = parse_schema(metadata.schema_string)
        self._physical = {f.name: f.physical_name for f in schema.fields}
        configuration = {k: v for k, v in metadata.configuration.items() if not k.startswith(_LOGICAL)}
        if columns := configuration.get(STATS_COLUMNS):
            configuration[STATS_COLUMNS] = ",".join(_physical_path(c, schema) for c in column_names(columns))
        plain = replace(
            metadata,
            schema_string=_struct(schema).to_json(),
            partition_columns=tuple(self.names(metadata.partition_columns)),
            configuration=configuration,
        )
        self.snapshot: Snapshot = replace(
            snapshot, metadata=plain, protocol=_without_mapping(snapshot.protocol)
        )

    def names(self, columns: Sequence[Any]) -> list[Any]:
        """Columns by their physical names; what is no column stays what it is."""
        return [self._physical.get(c, c) if isinstance(c, str) else c for c in columns]

    def filters(self, filters: Any) -> Any:
        """Partition filters with physical names."""
        if not isinstance(filters, list):
            return filters
        return [
            (*self.names(f[:1]), *f[1:]) if isinstance(f, tuple) and f else self.filters(f) for f in filters
        ]

    def told(self, action: Action) -> Action:
        """What delta-rs says of its work, with the names that users know."""
        if not isinstance(action, CommitInfo) or "operationParameters" not in action.extra:
            return action
        told = {k: self._logical(v) for k, v in action.extra["operationParameters"].items()}
        return replace(action, extra={**action.extra, "operationParameters": told})

    def _logical(self, value: Any) -> Any:
        if isinstance(value, str):
            for name, physical in self._physical.items():
                value = value.replace(physical, name)
        return value


def _without_mapping(protocol: Protocol) -> Protocol:
    if protocol.writer_features is None:
        # before features had names, reader version 2 and writer version 5 stood for this one
        return replace(protocol, min_reader_version=1, min_writer_version=min(protocol.min_writer_version, 4))
    return without_features(protocol, ("columnMapping",))


def _struct(struct: StructType) -> StructType:
    return replace(struct, fields=tuple(map(_field, struct.fields)))


def _field(field: StructField) -> StructField:
    metadata = {k: v for k, v in field.metadata.items() if not k.startswith(_LOGICAL)}
    if field.field_id is not None:
        metadata[_PARQUET_ID] = field.field_id
    return replace(field, name=field.physical_name, type=_type(field.type), metadata=metadata)


def _type(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return replace(kind, element_type=_type(kind.element_type))
    if isinstance(kind, MapType):
        return replace(kind, key_type=_type(kind.key_type), value_type=_type(kind.value_type))
    return kind


def _physical_path(column: tuple[str, ...], schema: StructType) -> str:
    """A column of a list of columns, perhaps inside structs."""
    here: DataType | None = schema
    out = []
    for part in column:
        field = here.field(part) if isinstance(here, StructType) else None
        out.append(part if field is None else field.physical_name)
        here = None if field is None else field.type
    return ".".join(p if p.isidentifier() else f"`{p.replace('`', '``')}`" for p in out)
