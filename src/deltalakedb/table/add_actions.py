"""``get_add_actions``: one row per live file with statistics and partition values, shaped as in stock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.partition import parse as parse_partition
from deltalakedb.protocol.schema import PrimitiveType, StructType, parse_schema
from deltalakedb.protocol.stats import FileStats, parse_stats
from deltalakedb.table.arrow_types import arrow_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.schema import Leaf

#: what the source must deliver
COLUMNS = ("path", "size", "modification_time", "num_records", "stats", "partition_values")

#: types whose minimum and maximum writers do not record
_UNORDERED = {"binary", "variant"}


def add_actions(found: pa.Table, metadata: Metadata, *, flatten: bool) -> pa.Table:
    """Files as stock's ``get_add_actions`` shows them.

    Args:
        found: The files, with the columns named in ``COLUMNS``.
        metadata: The table's metadata.
        flatten: One column per statistic (``min.id``) instead of nested structs.
    """
    schema = parse_schema(metadata.schema_string)
    leaves = [x for x in schema.leaves() if x.path[0] not in metadata.partition_columns]
    stats = [parse_stats(s) for s in found.column("stats").to_pylist()]
    columns: dict[str, Any] = {
        "path": found.column("path"),
        "size_bytes": found.column("size"),
        "modification_time": found.column("modification_time"),
        "num_records": pa.array([None if s is None else s.num_records for s in stats], pa.int64()),
    }
    bounded = [x for x in leaves if str(x.type) not in _UNORDERED and arrow_type(x.type) is not None]
    nulls, lows, highs = _statistics(stats, leaves, bounded)
    partitions = _partitions(found, schema, metadata)
    groups = {"null_count": nulls, "min": lows, "max": highs, "partition": partitions}
    for name, group in groups.items():
        if flatten:
            columns.update({f"{name}.{'.'.join(path)}": array for path, array in group.items()})
        elif group:
            columns[name] = _nested(group)
    fixed = {"path", "size_bytes", "modification_time"}
    arrays = {k: pa.chunked_array(v) if isinstance(v, pa.ChunkedArray) else v for k, v in columns.items()}
    fields = [pa.field(k, v.type, nullable=k not in fixed) for k, v in arrays.items()]
    return pa.table(list(arrays.values()), schema=pa.schema(fields))


_Group = dict[tuple[str, ...], pa.Array]


def _statistics(
    stats: Sequence[FileStats | None], leaves: Sequence[Leaf], bounded: Sequence[Leaf]
) -> tuple[_Group, _Group, _Group]:
    nulls: _Group = {}
    lows: _Group = {}
    highs: _Group = {}
    for leaf in leaves:
        ordered = leaf in bounded
        name = leaf.type if isinstance(leaf.type, PrimitiveType) else PrimitiveType("string")
        found = [None if s is None else s.bounds(leaf.physical_path, name, widen=False) for s in stats]
        nulls[leaf.path] = pa.array([None if b is None else b.null_count for b in found], pa.int64())
        if ordered:
            kind = arrow_type(leaf.type)
            lows[leaf.path] = pa.array([None if b is None else b.min for b in found], kind)
            highs[leaf.path] = pa.array([None if b is None else b.max for b in found], kind)
    return nulls, lows, highs


def _partitions(found: pa.Table, schema: StructType, metadata: Metadata) -> _Group:
    values = [decode_json(v) for v in found.column("partition_values").to_pylist()]
    out: _Group = {}
    for name in metadata.partition_columns:
        field = schema.field(name)
        kind = field.type if field is not None and isinstance(field.type, PrimitiveType) else None
        key = name if field is None else field.physical_name
        texts = [v.get(key, v.get(name)) for v in values]
        if kind is None:
            out[(name,)] = pa.array(texts, pa.string())
        else:
            out[(name,)] = pa.array([parse_partition(t, kind) for t in texts], arrow_type(kind))
    return out


def _nested(group: _Group) -> pa.StructArray:
    """Leaf arrays as the struct their paths describe."""
    names: dict[str, _Group] = {}
    for path, array in group.items():
        names.setdefault(path[0], {})[path[1:]] = array
    arrays = [sub[()] if () in sub else _nested(sub) for sub in names.values()]
    return pa.StructArray.from_arrays(arrays, names=list(names))
