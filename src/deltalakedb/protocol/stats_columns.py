"""Statistics of many files as columns: from the JSON of their adds, and back to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from deltalakedb.protocol.arrow_values import arrow_column, arrow_type, joined_lines
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.schema import Leaf, PrimitiveType
from deltalakedb.protocol.stats import MAX_ROWS, FileStats, parse_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


#: types whose minimum and maximum writers do not record
_UNORDERED = {"binary", "variant"}
_GROUPS = ("minValues", "maxValues", "nullCount")
#: a decimal of this many digits survives a trip through a double; a double has two more at the most
_DOUBLE_DIGITS = 15
_ROUNDED = range(_DOUBLE_DIGITS + 1, _DOUBLE_DIGITS + 3)
#: files that are parsed together: their texts stay far below Arrow's limit of 2 GB
_AT_ONCE = 100_000
_MOST_BYTES = 2**31 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LAST_DAY = date.max.toordinal()

Group = dict[tuple[str, ...], pa.Array]


@dataclass(frozen=True, slots=True)
class StatsColumns:
    """Rows, null counts and bounds of files, column by column, by the paths of the leaves.

    The masks ``no_…`` have the paths of whole groups (``()``) and of structs: true for a file without them.
    ``left_out`` has the columns of which files state bounds that the arrays cannot hold: true for such files.
    """

    num_records: pa.Array
    tight_bounds: pa.Array
    absent: pa.Array  # mask of files without statistics
    nulls: Group
    lows: Group
    highs: Group
    no_nulls: Group
    no_lows: Group
    no_highs: Group
    left_out: Group = field(default_factory=dict)


class LeafColumns(NamedTuple):
    """Rows, null counts and bounds of files, without what says which groups and structs they lack."""

    num_records: pa.Array
    nulls: Group
    lows: Group
    highs: Group


def stats_columns(
    texts: pa.Array | pa.ChunkedArray,
    leaves: Sequence[Leaf],
    *,
    bounded: Sequence[Leaf] | None = None,
    widen: bool = False,
) -> StatsColumns:
    """The statistics in files' JSON texts, null for a file without them.

    Args:
        texts: One text for each file.
        leaves: The columns.
        bounded: Those of them whose bounds are wanted; by default all that can have some.
        widen: Some writers round long decimals to doubles. True makes such bounds wide enough to hold the
            values that were rounded, False leaves them out.
    """
    if bounded is None:
        bounded = [x for x in leaves if has_bounds(x)]
    if isinstance(texts, pa.Array):
        texts = pa.chunked_array([texts])
    try:
        return _by_arrow(texts, leaves, bounded, widen)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError):
        # a number that is spelled as a text, a time with an odd zone, a text that is no JSON
        return _one_by_one(texts.to_pylist(), leaves, bounded, widen)


def has_bounds(leaf: Leaf) -> bool:
    """Whether writers record a minimum and a maximum for a column."""
    return str(leaf.type) not in _UNORDERED and arrow_type(leaf.type) is not None


def nested(group: Group, lacking: Group, at: tuple[str, ...] = ()) -> pa.StructArray:
    """Leaf arrays as the struct their paths describe, null if a file has nothing of it."""
    names: dict[str, Group] = {}
    for path, array in group.items():
        names.setdefault(path[0], {})[path[1:]] = array
    arrays = [sub[()] if () in sub else nested(sub, lacking, (*at, name)) for name, sub in names.items()]
    return pa.StructArray.from_arrays(arrays, names=list(names), mask=lacking.get(at))


def type_tree(leaves: Mapping[tuple[str, ...], pa.DataType]) -> pa.StructType:
    """Types by path as the struct that the paths describe."""
    names: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    for path, kind in leaves.items():
        names.setdefault(path[0], {})[path[1:]] = kind
    return pa.struct([(n, sub[()] if () in sub else type_tree(sub)) for n, sub in names.items()])


# ---- one by one ----


def _one_by_one(
    texts: Sequence[str | None], leaves: Sequence[Leaf], bounded: Sequence[Leaf], widen: bool = False
) -> StatsColumns:
    found = [parse_stats(t) for t in texts]
    stats = [s or FileStats() for s in found]
    bounds = {x.path: _bounds(stats, x, widen) for x in bounded}
    nulls = {x.path: [s.bounds(x.physical_path, "string").null_count for s in stats] for x in leaves}
    return StatsColumns(
        pa.array([s.num_records for s in stats], pa.int64()),
        pa.array([s.tight_bounds for s in stats], pa.bool_()),
        pa.array([s is None for s in found], pa.bool_()),
        {path: pa.array(counts, pa.int64()) for path, counts in nulls.items()},
        {path: lows for path, (lows, _, _) in bounds.items()},
        {path: highs for path, (_, highs, _) in bounds.items()},
        {path: _lacking([s.null_count for s in stats], at) for path, at in _structs(leaves)},
        {path: _lacking([s.min_values for s in stats], at) for path, at in _structs(bounded)},
        {path: _lacking([s.max_values for s in stats], at) for path, at in _structs(bounded)},
        {path: left_out for path, (_, _, left_out) in bounds.items() if left_out is not None},
    )


def _bounds(
    stats: Sequence[FileStats], leaf: Leaf, widen: bool
) -> tuple[pa.Array, pa.Array, pa.Array | None]:
    """Minima and maxima, and a mask of the files that state some although both arrays have none."""
    kind = leaf.type if isinstance(leaf.type, PrimitiveType) else PrimitiveType("string")
    wide = widen and kind.decimal is not None
    found = [s.bounds(leaf.physical_path, kind, widen=wide)[:2] for s in stats]
    stated = pa.array([low is not None or high is not None for low, high in found], pa.bool_())
    if not widen:
        found = [(_exact(low), _exact(high)) for low, high in found]
    target = arrow_type(leaf.type)
    lows, highs = (arrow_column([bounds[side] for bounds in found], target) for side in (0, 1))
    left_out = pc.and_(stated, pc.and_(lows.is_null(), highs.is_null()))
    return lows, highs, left_out if left_out.true_count else None


def _structs(leaves: Sequence[Leaf]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The structs around leaves, the outermost included: path and physical path of each."""
    found = {x.path[:n]: x.physical_path[:n] for x in leaves for n in range(len(x.path))}
    return list(found.items())


def _lacking(groups: Sequence[Any], path: tuple[str, ...]) -> pa.Array:
    """A mask of the files that have nothing at a path."""
    for name in path:
        groups = [g.get(name) if isinstance(g, dict) else None for g in groups]
    return pa.array([not isinstance(g, dict) or not (g or path) for g in groups], pa.bool_())


def _exact(value: Any) -> Any:
    """A bound, unless it may have been rounded: a double is exact up to 15 digits and has at most 17."""
    if not isinstance(value, Decimal):
        return value
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    return None if len(digits) in _ROUNDED else value


# ---- by Arrow ----


def _by_arrow(
    texts: pa.ChunkedArray, leaves: Sequence[Leaf], bounded: Sequence[Leaf], widen: bool
) -> StatsColumns:
    bounds = type_tree({x.physical_path: _json_type(x) for x in bounded})
    counts = type_tree({x.physical_path: pa.int64() for x in leaves})
    groups = zip(_GROUPS, (bounds, bounds, counts), strict=True)
    fields = [("numRecords", pa.int64()), ("tightBounds", pa.bool_())]
    schema = pa.schema(fields + [(g, t) for g, t in groups if t.num_fields])
    parsed = pa.concat_tables(
        [_parse(texts.slice(at, _AT_ONCE), schema) for at in range(0, len(texts), _AT_ONCE)]
        or [schema.empty_table()]
    ).combine_chunks()
    lows, highs, nulls = (parsed.column(g) if g in parsed.column_names else None for g in _GROUPS)
    columns = StatsColumns(
        _count(parsed.column("numRecords")),
        _one_chunk(parsed.column("tightBounds")),
        _one_chunk(pc.is_null(texts)),
        {x.path: _count(_at(nulls, x)) for x in leaves},
        {x.path: _bound(_at(lows, x), x) for x in bounded},
        {x.path: _bound(_at(highs, x), x) for x in bounded},
        {path: _absent(nulls, at) for path, at in _structs(leaves)},
        {path: _absent(lows, at) for path, at in _structs(bounded)},
        {path: _absent(highs, at) for path, at in _structs(bounded)},
    )
    if long := [x for x in bounded if _is_long_decimal(x)]:
        stats = [parse_stats(text) or FileStats() for text in texts.to_pylist()]
        for leaf in long:
            columns.lows[leaf.path], columns.highs[leaf.path], left_out = _bounds(stats, leaf, widen)
            if left_out is not None:
                columns.left_out[leaf.path] = left_out
    return columns


def _parse(texts: pa.ChunkedArray, schema: pa.Schema) -> pa.Table:
    texts = texts.fill_null("{}")
    # Arrow's reader crashes on a null; and what is not one object might take its neighbour's place
    if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}")), min_count=0).as_py():
        raise pa.ArrowInvalid("a text is not plainly one object")
    data = joined_lines(_one_chunk(texts))
    if not data.size:
        return schema.empty_table()
    parsed = pj.read_json(
        pa.BufferReader(data),
        # one block, since no text may be in more than two
        read_options=pj.ReadOptions(use_threads=False, block_size=min(data.size, _MOST_BYTES)),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if parsed.num_rows != len(texts):
        raise pa.ArrowInvalid("a text holds a line feed or nothing at all")
    return parsed.select(schema.names)


def _json_type(leaf: Leaf) -> pa.DataType:
    """The type to ask Arrow's JSON reader for: times as texts, numbers with all their digits."""
    kind = arrow_type(leaf.type)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    return pa.int64() if pa.types.is_integer(kind) else pa.float64() if pa.types.is_floating(kind) else kind


def _is_long_decimal(leaf: Leaf) -> bool:
    decimal = leaf.type.decimal if isinstance(leaf.type, PrimitiveType) else None
    return decimal is not None and decimal[0] > _DOUBLE_DIGITS


def _one_chunk(found: Any) -> pa.Array:
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _at(group: Any, leaf: Leaf) -> pa.Array:
    return _one_chunk(pc.struct_field(group, list(leaf.physical_path)))


def _absent(group: Any, path: tuple[str, ...]) -> pa.Array:
    """A mask of the files that have nothing at a path."""
    return _one_chunk(pc.is_null(pc.struct_field(group, list(path)) if path else group))


def _count(found: Any) -> pa.Array:
    """Numbers of rows; anything else counts as unknown."""
    fine = pc.and_(pc.greater_equal(found, 0), pc.less_equal(found, MAX_ROWS))
    return _one_chunk(pc.if_else(fine, found, pa.scalar(None, pa.int64())))


def _bound(found: pa.Array, leaf: Leaf) -> pa.Array:
    kind = arrow_type(leaf.type)
    if str(leaf.type) == "date":
        found = pc.utf8_slice_codeunits(found, 0, 10)
    return found if found.type == kind else found.cast(kind, safe=not pa.types.is_floating(kind))


# ---- back to JSON ----


def stats_json(parsed: pa.StructArray, *, utc: Collection[str] = ()) -> list[str | None]:
    """One JSON text for each row of a ``stats_parsed`` column.

    Values without a safe JSON form are left out, which at most keeps a file from being skipped: NaN and
    infinities, binary values, times beyond year 9999. ``utc`` has the dotted paths of timestamps that are
    instants although their Arrow type does not say so (INT96).
    """
    return [encode_json(row) if row else None for row in _json_values(parsed, "", utc)]


def _json_values(array: pa.Array, path: str, utc: Collection[str]) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        return _json_structs(array, path, utc)
    if pa.types.is_timestamp(kind):
        instant = kind.tz is not None or path in utc
        return _each(
            array.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()),
            lambda value: moment_text(value, instant=instant),
        )
    if pa.types.is_date(kind):
        return _each(array.cast(pa.date32()).cast(pa.int32()), day_text)
    if pa.types.is_floating(kind):
        return _each(array, lambda value: value if math.isfinite(value) else None)
    plain = ("integer", "boolean", "decimal", "string", "large_string", "dictionary")
    if any(getattr(pa.types, f"is_{name}")(kind) for name in plain):
        return list(array.to_pylist())
    return [None] * len(array)


def _json_structs(array: pa.StructArray, path: str, utc: Collection[str]) -> list[dict[str, Any] | None]:
    columns = {
        field.name: _json_values(child, f"{path}.{field.name}" if path else field.name, utc)
        for field, child in zip(array.type, array.flatten(), strict=True)
    }
    return [
        {name: column[row] for name, column in columns.items() if column[row] is not None}
        if present
        else None
        for row, present in enumerate(array.is_valid().to_pylist())
    ]


def _each(array: pa.Array, convert: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in array.to_pylist()]


def moment_text(micros: int, *, instant: bool, separator: str = "T") -> str | None:
    """A time in microseconds since 1970 as statistics have it; None beyond the years 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    # whole milliseconds are what other writers spell, finer times must not be cut
    unit = "microseconds" if micros % 1000 else "milliseconds"
    text = moment.replace(tzinfo=None).isoformat(separator, unit)
    return f"{text}Z" if instant else text


def day_text(days: int) -> str | None:
    """A date in days since 1970; None beyond the years 1 to 9999."""
    number = days + _EPOCH_DAY
    return date.fromordinal(number).isoformat() if 1 <= number <= _LAST_DAY else None
