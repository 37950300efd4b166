"""File statistics: read with exact numbers, and turned into bounds that are safe to prune by."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from deltalakedb.exceptions import LogCorruptError
from deltalakedb.protocol.codec import ExactFloat, decode_json, encode_json
from deltalakedb.protocol.partition import parse_timestamp, to_float32
from deltalakedb.protocol.properties import INDEXED_COLUMNS, STATS_COLUMNS, number_or
from deltalakedb.protocol.schema import INTEGERS, PrimitiveType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from deltalakedb.protocol.schema import Leaf, StructType

__all__ = [
    "Bounds",
    "FileStats",
    "StatValue",
    "column_names",
    "float_paths",
    "parse_stats",
    "stats_leaves",
    "without_highest",
]

_DEFAULT_INDEXED: Final = 32
_COLUMN_PART: Final = re.compile(r"(?:\s*`((?:[^`]|``)*)`\s*|([^.,]*))(\.|,|\Z)")

StatValue: TypeAlias = int | float | Decimal | date | datetime | str | bool

#: no file has more, and a table's sum of them fits 64 bits
MAX_ROWS: Final = 1 << 48
_KNOWN: Final = ("numRecords", "minValues", "maxValues", "nullCount", "tightBounds")
_WIDE: Final = Context(prec=80)
#: a decimal of this many digits survives a trip through a double
_DOUBLE_DIGITS: Final = 15
#: the most that a 32-bit float is written with
_SINGLE_DIGITS: Final = 9
_I64: Final = (-(2**63), 2**63 - 1)
_MILLISECOND: Final = timedelta(microseconds=999)


class Bounds(NamedTuple):
    """What is known of a column in one file; None if nothing is."""

    min: StatValue | None
    max: StatValue | None
    null_count: int | None


@dataclass(frozen=True, slots=True)
class FileStats:
    """A file's statistics as written, columns by physical name."""

    num_records: int | None = None
    min_values: Mapping[str, Any] = field(default_factory=dict)
    max_values: Mapping[str, Any] = field(default_factory=dict)
    null_count: Mapping[str, Any] = field(default_factory=dict)
    tight_bounds: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def bounds(self, path: Sequence[str], type_: PrimitiveType | str, *, widen: bool = True) -> Bounds:
        """The bounds of a leaf column as Python values.

        Writers round: timestamps to milliseconds downwards, long decimals to doubles or to 64 bits. So the
        bounds are widened by what rounding may have taken away, and may be compared with exact values.

        Args:
            path: The column's physical path.
            type_: Its type.
            widen: False gives the values as they are written.

        Returns:
            Bounds with None if a value is missing or cannot be read as that type.
        """
        name = type_ if isinstance(type_, str) else type_.name
        nulls = _at(self.null_count, path)
        return Bounds(
            _value(_at(self.min_values, path), name, -1 if widen else 0),
            _value(_at(self.max_values, path), name, 1 if widen else 0),
            _rows(nulls),
        )

    def to_dict(self) -> dict[str, Any]:
        """The statistics as the log's JSON has them; numbers that were read are spelled as they were."""
        out: dict[str, Any] = {}
        if self.num_records is not None:
            out["numRecords"] = self.num_records
        for name, values in zip(
            _KNOWN[1:4], (self.min_values, self.max_values, self.null_count), strict=True
        ):
            if values:
                out[name] = dict(values)
        if self.tight_bounds is not None:
            out["tightBounds"] = self.tight_bounds
        return {**out, **self.extra}


def parse_stats(text: str | bytes | None) -> FileStats | None:
    """The statistics in an ``add``, or None if there are none that can be read."""
    if not text:
        return None
    try:
        data = decode_json(text)
    except LogCorruptError:
        return None
    if not isinstance(data, dict):
        return None
    tight = data.get("tightBounds")
    return FileStats(
        num_records=_rows(data.get("numRecords")),
        min_values=_mapping(data.get("minValues")),
        max_values=_mapping(data.get("maxValues")),
        null_count=_mapping(data.get("nullCount")),
        tight_bounds=tight if isinstance(tight, bool) else None,
        extra={key: value for key, value in data.items() if key not in _KNOWN},
    )


def stats_leaves(
    schema: StructType, partition_columns: Collection[str], configuration: Mapping[str, str | None]
) -> list[Leaf]:
    """The leaf columns that a table's properties ask for statistics of, as delta-spark defines them.

    ``delta.dataSkippingStatsColumns`` names columns, in any case; a struct stands for all its leaves, and an
    empty text names none. Without it, the first ``delta.dataSkippingNumIndexedCols`` leaf columns count
    (default 32, all if negative): an array or a map is one, partition columns are none.
    """
    partitions = {name.lower() for name in partition_columns}
    leaves = [leaf for leaf in schema.leaves() if leaf.path[0].lower() not in partitions]
    named = configuration.get(STATS_COLUMNS)
    if named is not None:
        wanted = {tuple(part.lower() for part in name) for name in column_names(named)}
        return [
            leaf
            for leaf in leaves
            if any(tuple(p.lower() for p in leaf.path[:n]) in wanted for n in range(1, len(leaf.path) + 1))
        ]
    count = number_or(configuration.get(INDEXED_COLUMNS), _DEFAULT_INDEXED)
    return leaves if count < 0 else leaves[:count]


def without_highest(
    text: str | None, columns: Collection[Sequence[str]], *, if_equal: bool = False
) -> str | None:
    """Statistics without the maxima of columns of floating point, which may leave NaN out.

    delta-rs takes a column whose minimum and maximum are equal for a constant, and reads NaN as that value.

    Args:
        text: The statistics in an ``add``.
        columns: The physical paths of those columns.
        if_equal: Drop a maximum only if it equals the minimum.
    """
    stats = parse_stats(text) if text and columns else None
    if stats is None:
        return text
    kept = dict(stats.max_values)
    for path in columns:
        high = _at(kept, path)
        if high is not None and not (if_equal and high != _at(stats.min_values, path)):
            _drop(kept, path)
    return text if kept == stats.max_values else encode_json(replace(stats, max_values=kept).to_dict())


def _drop(values: dict[str, Any], path: Sequence[str]) -> None:
    """Remove a leaf; structs on the way to it are copied."""
    name, *rest = path
    if not rest:
        del values[name]
        return
    values[name] = dict(values[name])
    _drop(values[name], rest)


def float_paths(schema: StructType) -> list[tuple[str, ...]]:
    """The physical paths of the columns of floating point."""
    kinds = (PrimitiveType("float"), PrimitiveType("double"))
    return [leaf.physical_path for leaf in schema.leaves() if leaf.type in kinds]


def column_names(text: str) -> list[tuple[str, ...]]:
    """The column paths in a list such as ``a, b.c, `d.e```; between backticks, a doubled one is itself."""
    names: list[tuple[str, ...]] = []
    parts: list[str] = []
    for found in _COLUMN_PART.finditer(text):
        quoted, plain, end = found.groups()
        parts.append(plain.strip() if quoted is None else quoted.replace("``", "`"))
        if end != ".":
            names.append(tuple(parts))
            parts = []
    return [name for name in names if any(name)]


def _rows(value: Any) -> int | None:
    """A number of rows; None for what cannot be one."""
    return value if type(value) is int and 0 <= value <= MAX_ROWS else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(values, dict):
            return None
        values = values.get(name)
    return values


def _value(raw: Any, name: str, side: int) -> StatValue | None:
    """A bound as a Python value; ``side`` is -1 for a minimum, 1 for a maximum, 0 to leave it as it is."""
    if raw is None:
        return None
    if name in INTEGERS:
        return raw if type(raw) is int else None
    if name in ("float", "double"):
        return _double(raw, side, short=name == "float")
    if name == "string":
        return raw if isinstance(raw, str) else None
    if name == "boolean":
        return raw if isinstance(raw, bool) else None
    if name == "date":
        return _date(raw)
    if name in ("timestamp", "timestamp_ntz"):
        return _moment(raw, side, aware=name == "timestamp")
    decimal = PrimitiveType(name).decimal
    return None if decimal is None else _decimal(raw, *decimal, side)


def _double(raw: Any, side: int, *, short: bool) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        value = float(raw)
    except OverflowError:
        return None
    if math.isnan(value):  # it has no place in an order, so it bounds nothing
        return None
    # 3.4 may stand for the 32-bit float 3.4000000953…, also in a column that was widened to double since
    nearest = to_float32(value)
    if short:
        return nearest
    digits = repr(value).partition("e")[0].replace(".", "").strip("-0")
    if not side or math.isinf(nearest) or len(digits) > _SINGLE_DIGITS:
        return value
    return min(value, nearest) if side < 0 else max(value, nearest)


def _date(raw: Any) -> date | None:
    try:
        return date.fromisoformat(raw[:10]) if isinstance(raw, str) else None
    except ValueError:
        return None


def _moment(raw: Any, side: int, *, aware: bool) -> datetime | None:
    moment = parse_timestamp(raw, aware=aware) if isinstance(raw, str) else None
    if moment is None or side <= 0 or moment.microsecond % 1000:
        return moment
    try:
        return moment + _MILLISECOND
    except OverflowError:
        return None


def _decimal(raw: Any, precision: int, scale: int, side: int) -> Decimal | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    text = raw.text if isinstance(raw, ExactFloat) else str(raw)
    try:
        value = Decimal(text)
        if not value.is_finite():
            return None
        low = high = value
        if side and precision > _DOUBLE_DIGITS:
            if isinstance(raw, int) and raw in _I64:  # clamped, so it bounds nothing
                return None
            number = float(value)
            if Decimal(repr(number)) == value or Decimal(number) == value:
                low = min(value, Decimal(math.nextafter(number, -math.inf)))
                high = max(value, Decimal(math.nextafter(number, math.inf)))
        unit = Decimal(1).scaleb(-scale)
        if side < 0:
            return low.quantize(unit, rounding=ROUND_FLOOR, context=_WIDE)
        if side > 0:
            return high.quantize(unit, rounding=ROUND_CEILING, context=_WIDE)
        return value.quantize(unit, context=_WIDE)
    except (InvalidOperation, OverflowError, ValueError):
        return None
