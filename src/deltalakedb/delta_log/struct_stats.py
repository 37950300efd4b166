"""Statistics that a checkpoint holds as typed columns, spelled as the JSON of an ``add``."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.protocol.codec import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LAST_DAY = date.max.toordinal()


def stats_json(parsed: pa.StructArray, *, utc: Collection[str] = ()) -> list[str | None]:
    """One JSON text a row of a ``stats_parsed`` column.

    What JSON cannot say safely is left out, which only ever keeps a file from being skipped: NaN and
    infinities, binary values, times beyond year 9999.

    Args:
        parsed: The column.
        utc: Dotted paths of timestamps that are instants although their Arrow type does not say so (INT96).
    """
    return [None if not row else encode_json(row) for row in _values(parsed, "", utc)]


def _values(array: pa.Array, path: str, utc: Collection[str]) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        return _struct(array, path, utc)
    if pa.types.is_timestamp(kind):
        instant = kind.tz is not None or path in utc
        return _each(
            array.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()),
            lambda value: _moment(value, instant=instant),
        )
    if pa.types.is_date(kind):
        return _each(array.cast(pa.date32()).cast(pa.int32()), _day)
    if pa.types.is_floating(kind):
        return _each(array, lambda value: value if math.isfinite(value) else None)
    if (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_dictionary(kind)
    ):
        return list(array.to_pylist())
    return [None] * len(array)


def _struct(array: pa.StructArray, path: str, utc: Collection[str]) -> list[dict[str, Any] | None]:
    names = [field.name for field in array.type]
    columns = [
        _values(child, f"{path}.{name}" if path else name, utc)
        for name, child in zip(names, array.flatten(), strict=True)
    ]
    present = array.is_valid().to_pylist()
    return [
        {name: column[row] for name, column in zip(names, columns, strict=True) if column[row] is not None}
        if present[row]
        else None
        for row in range(len(array))
    ]


def _each(array: pa.Array, convert: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in array.to_pylist()]


def _moment(micros: int, *, instant: bool) -> str | None:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    # whole milliseconds are what other writers spell, finer times must not be cut
    text = moment.replace(tzinfo=None).isoformat(timespec="microseconds" if micros % 1000 else "milliseconds")
    return f"{text}Z" if instant else text


def _day(days: int) -> str | None:
    number = days + _EPOCH_DAY
    return date.fromordinal(number).isoformat() if 1 <= number <= _LAST_DAY else None
