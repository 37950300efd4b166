"""Bounds that are safe to prune by: of stated statistics, which writers round, and of literals."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from deltalakedb.protocol.schema import DataType, PrimitiveType

Encoding: TypeAlias = Literal["int", "date", "timestamp", "decimal", "double", "string", "binary", "boolean"]

_ENCODINGS: Final[dict[str, Encoding]] = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "int",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "float": "double",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "boolean": "boolean",
}
_VALUES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "date": (date,),
    "timestamp": (datetime,),
    "decimal": (Decimal, int),
    "double": (float,),
    "string": (str,),
    "binary": (bytes,),
    "boolean": (bool,),
}
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)
_MILLISECOND: Final = timedelta(microseconds=999)
#: sorts after every UTF-8 text that goes on from here
_BEYOND: Final = b"\xff"
#: writers cut long text to 32 characters, or to 32 bytes at a character's border
_CUT: Final = 29
#: what writers append to a cut maximum so that it stays one
_TIE_BREAKERS: Final = (b"\x7f", "\U0010ffff".encode())

_single = struct.Struct("<f")


def encoding_of(kind: DataType) -> Encoding | None:
    """The kind of values that a type has; None for types without an order."""
    return _encoding(kind.name) if isinstance(kind, PrimitiveType) else None


@cache
def _encoding(name: str) -> Encoding | None:
    return "decimal" if PrimitiveType(name).decimal is not None else _ENCODINGS.get(name)


def fits(value: object, encoding: str) -> bool:
    """Whether a literal is of the kind that an encoding takes; a column's type may have changed since."""
    if isinstance(value, bool | datetime):
        return encoding == ("boolean" if isinstance(value, bool) else "timestamp")
    return isinstance(value, _VALUES[encoding])


def day_number(value: date) -> int:
    """The days from 1970 to a date."""
    return value.toordinal() - _EPOCH_DAY


def microseconds(value: datetime) -> int:
    """The microseconds from 1970 to a time."""
    since = value - (_NAIVE_EPOCH if value.tzinfo is None else _EPOCH)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def text_bytes(value: str | bytes) -> bytes:
    """Text in UTF-8, which has the order that Delta compares by."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def lowest(value: Any, encoding: str) -> Any:
    """The least value that a file may hold whose statistics state this minimum; None where that is open.

    Text becomes its UTF-8 bytes, which have the order that Delta compares by.
    """
    match encoding:
        case "double":
            return None if value != value else min(value, _as_single(value))
        case "string":
            return text_bytes(value)
        case "timestamp":  # cut towards zero, a time before 1970 moves up
            if value.microsecond % 1000 or value.year >= 1970:
                return value
            return None if value.year == 1 else value - _MILLISECOND
        case _:
            return value


def open_end(value: Any, encoding: str) -> Any:
    """The bound that no value exceeds in a file whose statistics state this maximum; None where it is open.

    A long text may have been cut, so everything that begins with it is counted in. Numbers that writers spell
    as 32-bit floats are taken as both. (Milliseconds and long decimals are widened by `FileStats.bounds`.)
    """
    match encoding:
        case "double":
            return None if value != value else max(value, _as_single(value))
        case "string":
            text = text_bytes(value)
            if len(text) < _CUT:
                return text
            for mark in _TIE_BREAKERS:
                text = text.removesuffix(mark)
            return text + _BEYOND
        case _:
            return value


def successor(prefix: str) -> bytes:
    """A bound above every text that begins with a prefix."""
    return text_bytes(prefix) + _BEYOND


def _as_single(value: float) -> float:
    try:
        return float(_single.unpack(_single.pack(value))[0])
    except OverflowError:
        return value


def literal_bounds(value: Any, encoding: str) -> tuple[Any, Any] | None:
    """The least and the greatest value that an engine may take a literal for; None for NaN.

    Engines compare 32-bit floats with the literal itself or with the literal rounded to 32 bits.
    """
    if encoding == "double":
        single = _as_single(value)
        return None if value != value else (min(value, single), max(value, single))
    if encoding == "string":
        value = text_bytes(value)
    return value, value
