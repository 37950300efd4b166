"""A data file's statistics in the log's form, read from the footer that was just written.

The same as delta-rs writes, except where its own are not exact: timestamps keep their microseconds, decimals
all their digits, and a bound that no reader could parse (a year before 1 or after 9999, an infinity) is left
out. Like there, long strings are cut, the maximum rounded up. A column with NaN has no maximum: some engines
take NaN for the greatest value, and would not look for it in a file whose maximum leaves it out.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.protocol.codec import ExactFloat, encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow.parquet as pq

    from deltalakedb.table.write_plan import StatLeaf

__all__ = ["FloatColumn", "LongStrings", "file_stats", "float_columns"]

#: Parquet writers drop the bounds of longer values
_LONGEST: Final = 4096
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Pair: TypeAlias = tuple[Any, Any]


class LongStrings:
    """The bounds of strings too long for a footer, gathered while a file is written."""

    def __init__(self, leaves: Sequence[StatLeaf]) -> None:
        self._leaves = [leaf for leaf in leaves if leaf.kind == "string"]
        self.bounds: dict[int, _Pair] = {}

    def look(self, table: pa.Table) -> None:
        """Notice what is written."""
        for leaf in self._leaves:
            values = table.column(leaf.steps[0])
            if values.nbytes <= _LONGEST:
                continue
            if len(leaf.steps) > 1:
                values = pc.struct_field(values, leaf.steps[1:])
            longest = pc.max(pc.binary_length(values)).as_py()
            if longest is not None and longest > _LONGEST:
                found = pc.min_max(values).as_py()
                pair = found["min"].encode(), found["max"].encode()
                self.bounds[leaf.column] = _wider(self.bounds.get(leaf.column), pair)


class FloatColumn(NamedTuple):
    """What a column of floating point holds in a file."""

    nulls: int
    bounds: _Pair | None
    nan: bool
    #: it holds NaN, which Parquet's statistics leave out, or a negative zero, which dictionaries tell from
    #: zero: Spark would skip row groups with rows for ``x > 5`` or ``x = 0``, so there is neither
    odd: bool

    def __or__(self, other: FloatColumn) -> FloatColumn:
        bounds = self.bounds or other.bounds
        if self.bounds is not None and other.bounds is not None:
            bounds = _wider(self.bounds, other.bounds)
        nan = self.nan or other.nan
        return FloatColumn(self.nulls + other.nulls, bounds, nan, self.odd or other.odd)


def float_columns(table: pa.Table, leaves: Sequence[StatLeaf]) -> dict[int, FloatColumn]:
    """What the columns of floating point hold in some rows, by Parquet column."""
    found = {}
    for leaf in leaves:
        values = table.column(leaf.steps[0])
        if len(leaf.steps) > 1:
            values = pc.struct_field(values, leaf.steps[1:])
        nan = bool(pc.any(pc.is_nan(values)).as_py())
        ends = pc.min_max(values).as_py()
        low, high = ends["min"], ends["max"]
        minus = False
        if low is not None and low <= 0 <= high:
            inverse = pc.divide(pa.scalar(1, values.type), values)
            minus = bool(pc.any(pc.equal(inverse, pa.scalar(-math.inf, values.type))).as_py())
        pair = None if low is None else (low or -0.0, high or 0.0)
        found[leaf.column] = FloatColumn(values.null_count, pair, nan, nan or minus)
    return found


def file_stats(
    footer: pq.FileMetaData,
    leaves: Sequence[StatLeaf],
    long: Mapping[int, _Pair],
    floats: Mapping[int, FloatColumn],
    *,
    truncate: int,
) -> str:
    """The ``stats`` of an add action.

    Args:
        footer: The file's metadata.
        leaves: The columns to describe.
        long: Bounds that the footer does not have, by Parquet column.
        floats: Columns that the footer has no statistics of, by Parquet column.
        truncate: Bytes to keep of a string.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for leaf in leaves:
        pair = long.get(leaf.column)
        missing = 0
        if (known := floats.get(leaf.column)) is not None:
            missing, pair = known.nulls, known.bounds
        for group in groups if known is None else ():
            found = group.column(leaf.column).statistics
            missing += found.null_count
            if found.has_min_max:
                pair = _wider(pair, _plain(leaf, found.min_raw, found.max_raw))
        _put(nulls, leaf.path, missing)
        if pair is not None:
            low, high = _written(leaf, pair, truncate)
            if low is not None:
                _put(lowest, leaf.path, low)
            if high is not None and not (known is not None and known.nan):
                _put(highest, leaf.path, high)
    return encode_json(
        {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    )


def _wider(one: _Pair | None, other: _Pair) -> _Pair:
    return other if one is None else (min(one[0], other[0]), max(one[1], other[1]))


def _plain(leaf: StatLeaf, low: Any, high: Any) -> _Pair:
    """Bounds in an order that Python knows: long decimals come as bytes."""
    if leaf.kind == "decimal" and isinstance(low, bytes):
        return int.from_bytes(low, "big", signed=True), int.from_bytes(high, "big", signed=True)
    return low, high


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _written(leaf: StatLeaf, pair: _Pair, truncate: int) -> _Pair:
    """A pair of bounds as JSON values, None where there is no true one."""
    low, high = pair
    kind = leaf.kind
    if kind == "string":
        return _cut(low, truncate), _cut_up(high, truncate)
    if kind in ("float", "double"):
        return low if math.isfinite(low) else None, high if math.isfinite(high) else None
    if kind == "date":
        return _day(low), _day(high)
    if kind in ("timestamp", "timestamp_ntz"):
        return _moment(low, kind), _moment(high, kind)
    if kind == "decimal":
        return _decimal(low, leaf.scale), _decimal(high, leaf.scale)
    return low, high


def _day(days: int) -> str | None:
    try:
        return date.fromordinal(_EPOCH_ORDINAL + days).isoformat()
    except (ValueError, OverflowError):
        return None


def _moment(micros: int, kind: str) -> str | None:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    unit = "microseconds" if micros % 1000 else "milliseconds"
    text = moment.replace(tzinfo=None).isoformat("T" if kind == "timestamp" else " ", unit)
    return f"{text}Z" if kind == "timestamp" else text


def _decimal(unscaled: int, scale: int) -> Any:
    if scale <= 0:
        return unscaled * 10**-scale
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return ExactFloat(f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}")


def _cut(value: bytes, length: int) -> str | None:
    """The longest whole characters in so many bytes: never more than the value itself."""
    text = value[:length].decode("utf-8", "ignore")
    # a first character longer than that leaves nothing to cut to
    return text if text or not value else value.decode()


def _cut_up(value: bytes, length: int) -> str:
    """A text of so many bytes that is not less than the value, or the whole value where there is none."""
    if len(value) <= length:
        return value.decode()
    text = value[:length].decode("utf-8", "ignore")
    for end in range(len(text), 0, -1):
        letter = text[end - 1]
        code = ord(letter) + 1
        if (
            code < 0x110000
            and not 0xD800 <= code < 0xE000
            and len(chr(code).encode()) == len(letter.encode())
        ):
            return text[: end - 1] + chr(code)
    return value.decode()
