"""Statistics and partition values of many files as typed columns, from the texts that commits carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from deltalakedb.delta_log.checkpoint_schema import tree
from deltalakedb.protocol import partition
from deltalakedb.protocol.arrow_values import arrow_column, arrow_type
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.schema import PrimitiveType
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalakedb.delta_log.checkpoint_schema import CheckpointSchema
    from deltalakedb.protocol.schema import Leaf
    from deltalakedb.protocol.stats import FileStats

_MOST = 2**31 - 1
#: a decimal of this many digits survives a trip through a double
_DOUBLE_DIGITS = 15


def parsed_stats(texts: pa.StringArray, schema: CheckpointSchema) -> pa.StructArray:
    """``stats_parsed`` of files: parsed by Arrow where their texts are plain, one by one elsewhere.

    Args:
        texts: One text a file; null where a file has none.
        schema: Which columns there are.
    """
    try:
        return _by_arrow(texts, schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError):
        # a number that is spelled as a text, a time with an odd zone, a text that is no JSON
        return _one_by_one(texts.to_pylist(), schema)


def parsed_partitions(texts: pa.StringArray, schema: CheckpointSchema) -> pa.StructArray:
    """``partitionValues_parsed`` of files.

    Raises:
        ProtocolError: A value is none of its column's type.
    """
    encoded = texts.dictionary_encode()
    values = [decode_json(text) for text in encoded.dictionary.to_pylist()]
    columns, kind = [], schema.partitions_parsed
    for field, target in zip(schema.partitions, kind, strict=True):
        name = field.type if isinstance(field.type, PrimitiveType) else PrimitiveType("string")
        column = [partition.parse(row.get(field.physical_name), name) for row in values]
        columns.append(pa.array(column, target.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind)).take(encoded.indices)


def _by_arrow(texts: pa.StringArray, schema: CheckpointSchema) -> pa.StructArray:
    wanted = schema.stats_parsed
    bounds = tree({leaf.physical_path: _json_type(leaf) for leaf in schema.bounded})
    fields = [pa.field(f.name, bounds if f.name in ("minValues", "maxValues") else f.type) for f in wanted]
    parsed = _parse(texts, pa.schema(fields))
    careful = _long_decimals(texts, schema)
    arrays = [_typed(parsed.column(f.name).combine_chunks(), f.type, (f.name,), careful) for f in wanted]
    return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=texts.is_null())


def _parse(texts: pa.StringArray, schema: pa.Schema) -> pa.Table:
    lines = pc.binary_join_element_wise(texts.fill_null("{}"), "", "\n")
    data = lines.buffers()[2]
    if data is None or not len(texts):
        return schema.empty_table()
    start, end = lines.offset, lines.offset + len(lines)
    offsets = pa.Array.from_buffers(pa.int32(), end + 1, [None, lines.buffers()[1]])
    first, last = offsets[start].as_py(), offsets[end].as_py()
    parsed = pj.read_json(
        pa.BufferReader(data.slice(first, last - first)),
        # one block, since no text may lie in more than two
        read_options=pj.ReadOptions(use_threads=False, block_size=max(1, min(last - first, _MOST))),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if parsed.num_rows != len(texts):
        raise pa.ArrowInvalid("a text holds a line feed or nothing at all")
    return parsed


def _json_type(leaf: Leaf) -> pa.DataType:
    """What Arrow's JSON reader is asked for: times as texts, numbers with all their digits."""
    kind = arrow_type(leaf.type)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    return pa.int64() if pa.types.is_integer(kind) else pa.float64() if pa.types.is_floating(kind) else kind


def _long_decimals(texts: pa.StringArray, schema: CheckpointSchema) -> dict[tuple[str, ...], pa.Array]:
    """Bounds of decimals that some writers round to doubles, made so wide that they hold what was rounded."""
    leaves = [x for x in schema.bounded if _is_long(x)]
    if not leaves:
        return {}
    stats = [parse_stats(text) for text in texts.to_pylist()]
    out = {}
    for leaf in leaves:
        found = [None if s is None else _bounds(s, leaf) for s in stats]
        for at, name in enumerate(("minValues", "maxValues")):
            values = [None if bounds is None else bounds[at] for bounds in found]
            out[(name, *leaf.physical_path)] = arrow_column(values, arrow_type(leaf.type))
    return out


def _is_long(leaf: Leaf) -> bool:
    decimal = leaf.type.decimal if isinstance(leaf.type, PrimitiveType) else None
    return decimal is not None and decimal[0] > _DOUBLE_DIGITS


def _typed(
    found: pa.Array, kind: pa.DataType, path: tuple[str, ...], careful: Mapping[tuple[str, ...], pa.Array]
) -> pa.Array:
    if path in careful:
        return careful[path]
    if found.type == kind and not careful:
        return found
    if pa.types.is_struct(kind):
        children = [
            _typed(child, field.type, (*path, field.name), careful)
            for child, field in zip(found.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=found.is_null())
    if found.type == kind:
        return found
    if pa.types.is_date(kind):
        found = pc.utf8_slice_codeunits(found, 0, 10)
    return found.cast(kind, safe=not pa.types.is_floating(kind))


def _one_by_one(texts: Sequence[str | None], schema: CheckpointSchema) -> pa.StructArray:
    stats = [parse_stats(text) for text in texts]
    columns: dict[str, pa.Array] = {
        "numRecords": pa.array([None if s is None else s.num_records for s in stats], pa.int64()),
        "tightBounds": pa.array([None if s is None else s.tight_bounds for s in stats], pa.bool_()),
    }
    groups: Mapping[str, tuple[Sequence[Leaf], Callable[[FileStats, Leaf], Any]]] = {
        "minValues": (schema.bounded, lambda s, leaf: _bounds(s, leaf).min),
        "maxValues": (schema.bounded, lambda s, leaf: _bounds(s, leaf).max),
        "nullCount": (schema.counted, lambda s, leaf: s.bounds(leaf.physical_path, "string").null_count),
    }
    wanted = schema.stats_parsed
    for name, (leaves, value) in groups.items():
        if (at := wanted.get_field_index(name)) < 0:
            continue
        found = {
            leaf.physical_path: [None if s is None else value(s, leaf) for s in stats] for leaf in leaves
        }
        columns[name] = _nest(found, wanted.field(at).type, ())
    mask = pa.array([s is None for s in stats], pa.bool_())
    return pa.StructArray.from_arrays([columns[f.name] for f in wanted], fields=list(wanted), mask=mask)


def _bounds(stats: FileStats, leaf: Leaf) -> Any:
    kind = leaf.type if isinstance(leaf.type, PrimitiveType) else PrimitiveType("string")
    # a decimal that does not fit its type must be rounded away from the values, never towards them
    return stats.bounds(leaf.physical_path, kind, widen=kind.decimal is not None)


def _nest(
    values: Mapping[tuple[str, ...], Sequence[Any]], kind: pa.DataType, path: tuple[str, ...]
) -> pa.Array:
    if path in values:
        return arrow_column(values[path], kind)
    children = [_nest(values, field.type, (*path, field.name)) for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind))
