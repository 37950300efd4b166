"""``get_add_actions``: one row per live file with statistics and partition values, shaped as in stock."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from deltalakedb.protocol.arrow_values import arrow_column, arrow_type
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.partition import parse as parse_partition
from deltalakedb.protocol.schema import PrimitiveType, StructType, parse_schema
from deltalakedb.protocol.stats import MAX_ROWS, parse_stats, stats_leaves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.schema import Leaf

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
            columns[name] = _nested(group, lacking)
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


def _nested(group: Group, lacking: Group, at: tuple[str, ...] = ()) -> pa.StructArray:
    """Leaf arrays as the struct their paths describe, null where a file says nothing of it."""
    names: dict[str, Group] = {}
    for path, array in group.items():
        names.setdefault(path[0], {})[path[1:]] = array
    arrays = [sub[()] if () in sub else _nested(sub, lacking, (*at, name)) for name, sub in names.items()]
    return pa.StructArray.from_arrays(arrays, names=list(names), mask=lacking.get(at))


#: types whose minimum and maximum writers do not record
_UNORDERED = {"binary", "variant"}
#: what Arrow reads from JSON as it is; dates and times come as texts and are cast
_NUMBERS = {"byte", "short", "integer", "long", "float", "double", "boolean"}
_TEXTS = {"string", "date", "timestamp", "timestamp_ntz"}
_GROUPS = ("minValues", "maxValues", "nullCount")
#: digits of a number that a float may have rounded
_ROUNDED = range(16, 18)
#: files that are parsed together: their texts stay far below Arrow's limit of 2 GB
_AT_ONCE = 100_000

Group = dict[tuple[str, ...], pa.Array]


@dataclass(frozen=True, slots=True)
class StatsColumns:
    """Rows, null counts and bounds of files, column by column, by logical path.

    The paths of whole groups and of structs, ``()`` for all of it, say where a file tells nothing of them.
    """

    num_records: pa.Array
    nulls: Group
    lows: Group
    highs: Group
    no_nulls: Group
    no_lows: Group
    no_highs: Group


def stats_columns(texts: pa.ChunkedArray, leaves: Sequence[Leaf]) -> StatsColumns:
    """The statistics in files' JSON texts, as they are written.

    Args:
        texts: One text for each file; null where a file has none.
        leaves: The columns to tell of.
    """
    bounded = [x for x in leaves if str(x.type) not in _UNORDERED and arrow_type(x.type) is not None]
    try:
        return _by_arrow(texts, leaves, bounded)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError):
        # a decimal, a number that is spelled oddly, a text that is no JSON: somewhere care is needed
        return _one_by_one(texts.to_pylist(), leaves, bounded)


def _one_by_one(texts: Sequence[str | None], leaves: Sequence[Leaf], bounded: Sequence[Leaf]) -> StatsColumns:
    stats = [parse_stats(t) for t in texts]
    records = pa.array([None if s is None else s.num_records for s in stats], pa.int64())
    low, high, counts = (
        [{} if s is None else getattr(s, name) for s in stats]
        for name in ("min_values", "max_values", "null_count")
    )
    out = StatsColumns(
        records,
        {},
        {},
        {},
        {path: _lacking(counts, at) for path, at in _structs(leaves)},
        {path: _lacking(low, at) for path, at in _structs(bounded)},
        {path: _lacking(high, at) for path, at in _structs(bounded)},
    )
    for leaf in leaves:
        name = leaf.type if isinstance(leaf.type, PrimitiveType) else PrimitiveType("string")
        found = [None if s is None else s.bounds(leaf.physical_path, name, widen=False) for s in stats]
        out.nulls[leaf.path] = pa.array([None if b is None else b.null_count for b in found], pa.int64())
        if leaf in bounded:
            kind = arrow_type(leaf.type)
            out.lows[leaf.path] = arrow_column([None if b is None else _exact(b.min) for b in found], kind)
            out.highs[leaf.path] = arrow_column([None if b is None else _exact(b.max) for b in found], kind)
    return out


def _structs(leaves: Sequence[Leaf]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The structs around leaves, the outermost included: logical and physical path of each."""
    found = {x.path[:n]: x.physical_path[:n] for x in leaves for n in range(len(x.path))}
    return list(found.items())


def _lacking(groups: Sequence[Any], path: tuple[str, ...]) -> pa.Array:
    """Where there is nothing at a path."""
    for name in path:
        groups = [g.get(name) if isinstance(g, dict) else None for g in groups]
    return pa.array([not isinstance(g, dict) or not (g or path) for g in groups], pa.bool_())


def _exact(value: Any) -> Any:
    """A bound, unless it may have been rounded: some writers put decimals down as floats.

    Those are exact up to fifteen digits and never have more than seventeen.
    """
    if not isinstance(value, Decimal):
        return value
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    return None if len(digits) in _ROUNDED else value


def _by_arrow(texts: pa.ChunkedArray, leaves: Sequence[Leaf], bounded: Sequence[Leaf]) -> StatsColumns:
    bounds = _tree({x.physical_path: _json_type(x) for x in bounded})
    counts = _tree({x.physical_path: pa.int64() for x in leaves})
    schema = pa.schema(
        [("numRecords", pa.int64())]
        + [(g, t) for g, t in zip(_GROUPS, (bounds, bounds, counts), strict=True) if t.num_fields]
    )
    parsed = pa.concat_tables(
        [_parse(texts.slice(at, _AT_ONCE), schema) for at in range(0, len(texts), _AT_ONCE)]
        or [schema.empty_table()]
    ).combine_chunks()
    lows, highs, nulls = (parsed.column(g) if g in parsed.column_names else None for g in _GROUPS)
    return StatsColumns(
        _count(parsed.column("numRecords")),
        {x.path: _count(_at(nulls, x)) for x in leaves},
        {x.path: _bound(_at(lows, x), x) for x in bounded},
        {x.path: _bound(_at(highs, x), x) for x in bounded},
        {path: _absent(nulls, at) for path, at in _structs(leaves)},
        {path: _absent(lows, at) for path, at in _structs(bounded)},
        {path: _absent(highs, at) for path, at in _structs(bounded)},
    )


def _parse(texts: pa.ChunkedArray, schema: pa.Schema) -> pa.Table:
    lines = pc.binary_join_element_wise(texts.fill_null("{}"), "", "\n").combine_chunks()
    if isinstance(lines, pa.ChunkedArray):
        lines = lines.chunk(0)
    data = lines.buffers()[2]
    if data is None:
        return schema.empty_table()
    parsed = pj.read_json(
        pa.BufferReader(data),
        # one block, since no text may lie in more than two
        read_options=pj.ReadOptions(use_threads=False, block_size=max(1, min(data.size, 2**31 - 1))),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if parsed.num_rows != len(texts):
        raise pa.ArrowInvalid("a text holds a line feed or nothing at all")
    return parsed.select(schema.names)


def _json_type(leaf: Leaf) -> pa.DataType:
    name = str(leaf.type)
    if name in _TEXTS:
        return pa.string()
    kind = arrow_type(leaf.type)
    if name not in _NUMBERS or kind is None:
        raise pa.ArrowNotImplementedError(f"statistics of type {name} are read one by one")
    # an integer of any width is checked below, a float keeps its digits until then
    return pa.int64() if pa.types.is_integer(kind) else pa.float64() if pa.types.is_floating(kind) else kind


def _tree(leaves: Mapping[tuple[str, ...], pa.DataType]) -> pa.StructType:
    """Types by path as the struct that the paths describe."""
    names: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    for path, kind in leaves.items():
        names.setdefault(path[0], {})[path[1:]] = kind
    return pa.struct([(n, sub[()] if () in sub else _tree(sub)) for n, sub in names.items()])


def _at(group: Any, leaf: Leaf) -> pa.Array:
    found = pc.struct_field(group, list(leaf.physical_path))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _absent(group: Any, path: tuple[str, ...]) -> pa.Array:
    """Where there is nothing at a path."""
    found = pc.is_null(pc.struct_field(group, list(path)) if path else group)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _count(found: Any) -> pa.Array:
    """Numbers of rows; anything else says nothing."""
    fine = pc.and_(pc.greater_equal(found, 0), pc.less_equal(found, MAX_ROWS))
    counts = pc.if_else(fine, found, pa.scalar(None, pa.int64()))
    return counts.combine_chunks() if isinstance(counts, pa.ChunkedArray) else counts


def _bound(found: pa.Array, leaf: Leaf) -> pa.Array:
    kind = arrow_type(leaf.type)
    if str(leaf.type) == "date":
        found = pc.utf8_slice_codeunits(found, 0, 10)
    return found if found.type == kind else found.cast(kind, safe=not pa.types.is_floating(kind))
