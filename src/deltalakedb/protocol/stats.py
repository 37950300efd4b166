"""File statistics: read with exact numbers, and turned into bounds that are safe to prune by."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from deltalakedb.exceptions import LogCorruptError
from deltalakedb.protocol.json_text import ExactFloat, decode_json, encode_json
from deltalakedb.protocol.partition import parse_timestamp, to_float32
from deltalakedb.protocol.properties import INDEXED_COLUMNS, STATS_COLUMNS, number_or
from deltalakedb.protocol.schema import FLOATS, INTEGERS, Leaf, PrimitiveType, StructType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


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
        """The bounds of a leaf column, by its physical path; None if one is missing or of another type.

        Writers round: timestamps to milliseconds downwards, long decimals to doubles or to 64 bits. So the
        bounds are widened by what rounding may have taken away, and may be compared with exact values;
        ``widen=False`` gives the values as they are written.
        """
        low, high = _at(self.min_values, path), _at(self.max_values, path)
        nulls = _rows(_at(self.null_count, path))
        return Bounds(_value(low, str(type_), -widen), _value(high, str(type_), int(widen)), nulls)

    def to_dict(self) -> dict[str, Any]:
        """The statistics as the log's JSON has them; numbers that were read are spelled as they were."""
        values = (self.num_records, self.min_values, self.max_values, self.null_count, self.tight_bounds)
        known = {n: v for n, v in zip(_KNOWN, values, strict=True) if v is not None and v != {}}
        return {**known, **self.extra}


def parse_stats(text: str | bytes | None) -> FileStats | None:
    """The statistics in an ``add``, or None if it has none or they cannot be read."""
    try:
        data = decode_json(text) if text else None
    except LogCorruptError:
        return None
    if not isinstance(data, dict):
        return None
    low, high, nulls = (v if isinstance(v := data.get(name), dict) else {} for name in _KNOWN[1:4])
    tight = tight if isinstance(tight := data.get("tightBounds"), bool) else None
    extra = {key: value for key, value in data.items() if key not in _KNOWN}
    return FileStats(_rows(data.get("numRecords")), low, high, nulls, tight, extra)


def stats_leaves(
    schema: StructType, partition_columns: Collection[str], configuration: Mapping[str, str | None]
) -> list[Leaf]:
    """The leaf columns whose statistics a table's properties request, as delta-spark defines them.

    ``delta.dataSkippingStatsColumns`` names columns, in any case; a struct means all its leaves, and an empty
    text none. Without it, the first ``delta.dataSkippingNumIndexedCols`` leaf columns count (default 32, all
    if negative): an array or a map counts as one, partition columns do not count.
    """

    def lower(path: Iterable[str]) -> tuple[str, ...]:
        return tuple(part.lower() for part in path)

    partitions = lower(partition_columns)
    leaves = [leaf for leaf in schema.leaves() if leaf.path[0].lower() not in partitions]
    if (named := configuration.get(STATS_COLUMNS)) is not None:
        wanted = {lower(name) for name in column_names(named)}
        return [x for x in leaves if any(lower(x.path[:n]) in wanted for n in range(1, len(x.path) + 1))]
    count = number_or(configuration.get(INDEXED_COLUMNS), _DEFAULT_INDEXED)
    return leaves if count < 0 else leaves[:count]


def without_highest(
    text: str | None, columns: Collection[Sequence[str]], *, if_equal: bool = False
) -> str | None:
    """Statistics without the maxima of floating-point columns, which may leave NaN out.

    delta-rs treats a column whose minimum and maximum are equal as a constant, and reads NaN as that value.
    With ``if_equal`` only such a maximum is dropped.
    """
    stats = parse_stats(text) if text and columns else None
    if stats is None:
        return text
    dropped = False
    for *structs, leaf in columns:
        values = _at(stats.max_values, structs)
        high = values.get(leaf) if isinstance(values, dict) else None
        if high is not None and not (if_equal and high != _at(stats.min_values, [*structs, leaf])):
            del values[leaf]  # the statistics were parsed here, so they may change
            dropped = True
    return encode_json(stats.to_dict()) if dropped else text


def float_paths(schema: StructType) -> list[tuple[str, ...]]:
    """The physical paths of the floating-point columns."""
    return [leaf.physical_path for leaf in schema.leaves() if str(leaf.type) in FLOATS]


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


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(values, dict):
            return None
        values = values.get(name)
    return values


def _value(raw: Any, name: str, side: int) -> StatValue | None:
    """A bound as a Python value; ``side`` is -1 for a minimum, 1 for a maximum, 0 to leave it as it is."""
    match name, raw:
        case ("boolean", bool()) | ("string", str()):
            return raw  # type: ignore[no-any-return]
        case (("float" | "double"), int() | float()):
            return _double(raw, side, short=name == "float")
        case "date", str():
            return _date(raw)
        case (("timestamp" | "timestamp_ntz"), str()):
            return _moment(raw, side, aware=name == "timestamp")
    if name in INTEGERS:
        return raw if type(raw) is int else None
    decimal = PrimitiveType(name).decimal
    return None if decimal is None else _decimal(raw, *decimal, side)


def _double(raw: float, side: int, *, short: bool) -> float | None:
    try:
        value = float(raw)
    except OverflowError:
        return None
    if isinstance(raw, bool) or math.isnan(value):  # NaN has no place in an order, so it bounds nothing
        return None
    # 3.4 may mean the 32-bit float 3.4000000953…, also in a column that was widened to double since
    nearest = to_float32(value)
    if short:
        return nearest
    digits = repr(value).partition("e")[0].replace(".", "").strip("-0")
    if not side or math.isinf(nearest) or len(digits) > _SINGLE_DIGITS:
        return value
    return min(value, nearest) if side < 0 else max(value, nearest)


def _date(raw: str) -> date | None:
    try:
        return date.fromisoformat(raw[:10])
    except ValueError:
        return None


def _moment(raw: str, side: int, *, aware: bool) -> datetime | None:
    moment = parse_timestamp(raw, aware=aware)
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
        if side and precision > _DOUBLE_DIGITS:
            if isinstance(raw, int) and raw in _I64:  # clamped, so it bounds nothing
                return None
            number = float(value)
            if Decimal(repr(number)) == value or Decimal(number) == value:
                nearest = Decimal(math.nextafter(number, side * math.inf))
                value = min(value, nearest) if side < 0 else max(value, nearest)
        rounding = {-1: ROUND_FLOOR, 0: None, 1: ROUND_CEILING}[side]
        return value.quantize(Decimal(1).scaleb(-scale), rounding=rounding, context=_WIDE)
    except (InvalidOperation, OverflowError, ValueError):
        return None
