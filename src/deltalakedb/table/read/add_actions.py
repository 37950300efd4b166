"""``get_add_actions``: one row per live file with statistics and partition values, shaped as in stock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.partition import parse as parse_partition
from deltalakedb.protocol.schema import PrimitiveType, StructType, parse_schema
from deltalakedb.protocol.stats import stats_leaves
from deltalakedb.protocol.stats_columns import Group, nested, stats_columns

if TYPE_CHECKING:
    from deltalakedb.protocol.actions import Metadata

#: what the source must deliver
COLUMNS = ("path", "size", "modification_time", "num_records", "stats", "partition_values")


def add_actions(found: pa.Table, metadata: Metadata, *, flatten: bool) -> pa.Table:
    """Files as stock's ``get_add_actions`` shows them.

    Args:
        found: The files, with the columns named in ``COLUMNS``.
        metadata: The table's metadata.
        flatten: One column per statistic (``min.id``) instead of nested structs.
    """
    schema = parse_schema(metadata.schema_string)
    stats = stats_columns(
        found.column("stats"), stats_leaves(schema, metadata.partition_columns, metadata.configuration)
    )
    columns: dict[str, Any] = {
        "path": found.column("path"),
        "size_bytes": found.column("size"),
        "modification_time": found.column("modification_time"),
        "num_records": stats.num_records,
    }
    partitions = _partitions(found, schema, metadata)
    groups: dict[str, tuple[Group, Group]] = {
        "null_count": (stats.nulls, stats.no_nulls),
        "min": (stats.lows, stats.no_lows),
        "max": (stats.highs, stats.no_highs),
        "partition": (partitions, {}),
    }
    for name, (group, lacking) in groups.items():
        if flatten:
            columns.update({f"{name}.{'.'.join(path)}": array for path, array in group.items()})
        elif group:
            columns[name] = nested(group, lacking)
    fixed = {"path", "size_bytes", "modification_time"}
    arrays = {k: pa.chunked_array(v) if isinstance(v, pa.ChunkedArray) else v for k, v in columns.items()}
    fields = [pa.field(k, v.type, nullable=k not in fixed) for k, v in arrays.items()]
    made = pa.table(list(arrays.values()), schema=pa.schema(fields))
    # one chunk in every column: arro3 panics where it has to cut structs
    return made.combine_chunks()


def _partitions(found: pa.Table, schema: StructType, metadata: Metadata) -> Group:
    # many files share their values: each distinct text is read once
    encoded = found.column("partition_values").combine_chunks().dictionary_encode()
    values = [decode_json(v) for v in encoded.dictionary.to_pylist()]
    out: Group = {}
    for name in metadata.partition_columns:
        field = schema.field(name)
        kind = field.type if field is not None and isinstance(field.type, PrimitiveType) else None
        key = name if field is None else field.physical_name
        texts = [v.get(key, v.get(name)) for v in values]
        if kind is None:
            distinct = pa.array(texts, pa.string())
        else:
            distinct = pa.array([parse_partition(t, kind) for t in texts], arrow_type(kind))
        out[(name,)] = distinct.take(encoded.indices)
    return out
