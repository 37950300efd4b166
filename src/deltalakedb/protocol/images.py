"""Order-preserving 64-bit images of values, and the width levels that make ranges indexable.

An image never reverses an order: ``a <= b`` gives ``encode(a) <= encode(b)``. Different values may share one,
so a comparison of images keeps a superset of what a comparison of values would keep.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Context, Decimal
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from deltalakedb.protocol.schema import DataType, PrimitiveType

__all__ = [
    "EMPTY",
    "IMAX",
    "IMIN",
    "MISSING",
    "Encoding",
    "encode",
    "encode_max",
    "encode_min",
    "encoding_of",
    "fits",
    "level",
    "literal_bounds",
    "lowest",
    "open_end",
    "successor",
    "text_bytes",
]

Encoding: TypeAlias = Literal["int", "date", "timestamp", "decimal", "double", "string", "binary", "boolean"]

IMIN: Final = -(2**63)
IMAX: Final = 2**63 - 1
#: the level of a column of which a bound is not known: never pruned by that bound
MISSING: Final = 33
#: the level of a column that holds nothing but nulls: no comparison is true there
EMPTY: Final = 40

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
_EXACT: Final = Context(prec=120)
_MASK: Final = 0x7FFF_FFFF_FFFF_FFFF
#: sorts after every UTF-8 text that goes on from here
_BEYOND: Final = b"\xff"
#: writers cut long text to 32 characters, or to 32 bytes at a character's border
_CUT: Final = 29
#: what writers append to a cut maximum so that it stays one
_TIE_BREAKERS: Final = (b"\x7f", "\U0010ffff".encode())

_double = struct.Struct("<d")
_long = struct.Struct("<q")
_single = struct.Struct("<f")


def encoding_of(kind: DataType) -> tuple[Encoding, str | None] | None:
    """How values of a type become images: the encoding and its argument; None for types without an order."""
    return _encoding(kind.name) if isinstance(kind, PrimitiveType) else None


@cache
def _encoding(name: str) -> tuple[Encoding, str | None] | None:
    if (decimal := PrimitiveType(name).decimal) is not None:
        return "decimal", str(decimal[1])
    encoding = _ENCODINGS.get(name)
    return None if encoding is None else (encoding, None)


def fits(value: object, encoding: str) -> bool:
    """Whether a literal is of the kind that an encoding takes; a column's type may have changed since."""
    if isinstance(value, bool | datetime):
        return encoding == ("boolean" if isinstance(value, bool) else "timestamp")
    return isinstance(value, _VALUES[encoding])


def encode(value: Any, encoding: str, arg: str | None = None) -> int:
    """The image of a value.

    Args:
        value: A value of the column's type; NaN has no image. Text may come as its UTF-8 bytes.
        encoding: One of the names in `Encoding`.
        arg: A decimal's scale, or the prefix that a slot's texts have in common.
    """
    match encoding:
        case "int" | "boolean":
            return min(max(int(value), IMIN), IMAX)
        case "date":
            return int(value.toordinal()) - _EPOCH_DAY
        case "timestamp":
            since = value - (_NAIVE_EPOCH if value.tzinfo is None else _EPOCH)
            return int((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
        case "double":
            bits: int = _long.unpack(_double.pack(value or 0.0))[0]  # -0.0 is false too, and becomes 0.0
            return bits if bits >= 0 else bits ^ _MASK
        case "decimal":
            return _encode_decimal(value, int(arg or 0))
        case _:
            return _encode_bytes(text_bytes(value), (arg or "").encode())


def _encode_decimal(value: Decimal | int, scale: int) -> int:
    number = Decimal(value)
    if number.adjusted() + scale > 20 and number:
        return IMIN if number.is_signed() else IMAX
    image = int(number.scaleb(scale, context=_EXACT).to_integral_value(ROUND_FLOOR, context=_EXACT))
    return min(max(image, IMIN), IMAX)


def _encode_bytes(value: bytes, prefix: bytes) -> int:
    if prefix:
        if not value.startswith(prefix):
            return IMIN if value < prefix else IMAX
        value = value[len(prefix) :]
    return int.from_bytes(value[:8].ljust(8, b"\0"), "big") + IMIN


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


def encode_min(value: Any, encoding: str, arg: str | None = None) -> int | None:
    """The image of a stated minimum, at or below every value of the file; None where nothing is known."""
    low = None if value is None else lowest(value, encoding)
    return None if low is None else encode(low, encoding, arg)


def encode_max(value: Any, encoding: str, arg: str | None = None) -> int | None:
    """The image of a stated maximum, at or above every value of the file; None where nothing is known."""
    high = None if value is None else open_end(value, encoding)
    return None if high is None else encode(high, encoding, arg)


def level(low: int | None, high: int | None) -> int:
    """The width level ``k`` of an interval of images: ``high - low < 2 ** (2 * k)``.

    Example:
        >>> level(5, 5), level(0, 15), level(0, 16), level(None, 3)
        (0, 2, 3, 33)
    """
    if low is None or high is None:
        return MISSING
    return ((high - low).bit_length() + 1) >> 1
