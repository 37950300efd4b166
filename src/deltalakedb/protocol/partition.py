"""Partition values: the log's strings to Python values and back, one canonical text each, Hive folders."""

from __future__ import annotations

import math
import re
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.schema import INTEGERS, PrimitiveType

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "HIVE_NULL",
    "PartitionValue",
    "canonical",
    "equal_key",
    "folder_of",
    "parse",
    "parse_timestamp",
    "partition_path",
    "serialize",
    "to_float32",
]

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
PartitionValue: TypeAlias = str | int | float | bool | bytes | Decimal | date | datetime

_BITS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER: Final = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_DATE: Final = re.compile(r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIME: Final = re.compile(
    r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?"
    r"\s?(Z|UTC|[+-]\d{2}:?\d{2}(?::\d{2})?)?",
    re.ASCII | re.IGNORECASE,
)
_ESCAPES: Final = re.compile(r"(?:\\u00[0-9A-Fa-f]{2})+")
_EXACT: Final = Context(prec=80, rounding=ROUND_HALF_EVEN)
_HUGE: Final = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}


def parse(text: str | None, type_: PrimitiveType | str) -> PartitionValue | None:
    """The Python value of a partition value's text; None and an empty text are null.

    A timestamp comes as an aware datetime in UTC, a ``timestamp_ntz`` as a naive one. The values of a type
    that is not known stay text.

    Raises:
        ProtocolError: The text is no value of that type.
    """
    if text is None or text == "":
        return None
    name = _name(type_)
    value: PartitionValue | None
    if name in INTEGERS:
        value = _integer(text, name)
    elif name in ("float", "double"):
        value = _float(text, name)
    elif name == "boolean":
        value = {"true": True, "false": False}.get(text.strip().lower())
    elif name == "date":
        value = _date(text)
    elif name in ("timestamp", "timestamp_ntz"):
        value = parse_timestamp(text, aware=name == "timestamp")
    elif name == "binary":
        value = _binary(text)
    elif (decimal := PrimitiveType(name).decimal) is not None:
        value = _decimal(text, *decimal)
    else:
        value = text
    if value is None:
        raise _invalid_value(text, name)
    return value


def serialize(value: Any, type_: PrimitiveType | str) -> str | None:
    """The text that an ``add`` carries for a partition value.

    An empty string or binary is null: the protocol has no other way to write it.

    Raises:
        ProtocolError: The value does not fit the type.
    """
    name = _name(type_)
    if value is None or value in ("", b""):
        return None
    text = _text(value, name)
    if text is None:
        raise _invalid_value(value, name)
    return text


def canonical(text: str | None, type_: PrimitiveType | str) -> str | None:
    """One text for each value of a type, so that equal values are equal texts; null is None.

    Dates and timestamps outside of the years 1 to 9999 stay as they are written.

    Raises:
        ProtocolError: The text is no value of that type.

    Example:
        >>> canonical("2024-01-02T03:04:05Z", "timestamp"), canonical("1.0", "decimal(5,2)")
        ('2024-01-02 03:04:05.000000', '1.00')
    """
    if text is None or text == "":
        return None
    name = _name(type_)
    try:
        value = parse(text, name)
    except ProtocolError:
        if name in ("date", "timestamp", "timestamp_ntz") and _far(text):
            return text.strip()
        raise
    if isinstance(value, bytes):
        return _escaped(value)
    if isinstance(value, float) and value == 0:
        value = 0.0
    return _text(value, name)


def equal_key(
    values: Mapping[str, str | None], columns: Mapping[str, PrimitiveType | str]
) -> tuple[str | None, ...]:
    """A file's partition values in one spelling: keys are equal if and only if the values are.

    Writers spell timestamps, decimals and floating point differently, and both zeros are equal.

    Args:
        values: The values as the log has them.
        columns: The types of the partition columns by their names in the log.
    """

    def spelled(name: str, kind: PrimitiveType | str) -> str | None:
        try:
            return canonical(values.get(name), kind)
        except ProtocolError:
            return values.get(name)  # no value of the type: equal to the same text only

    return tuple(spelled(name, kind) for name, kind in columns.items())


def folder_of(column: str, text: str | None) -> str:
    """The Hive folder of a partition value, such as ``day=2024-01-01``; null has its own word.

    Example:
        >>> folder_of("a b", "x/y"), folder_of("c", None)
        ('a%20b=x%2Fy', 'c=__HIVE_DEFAULT_PARTITION__')
    """
    return f"{_quoted(column)}={HIVE_NULL if not text else _quoted(text)}"


def partition_path(values: Mapping[str, str | None]) -> str:
    """The Hive folders of several partition columns, in order; without any, an empty text."""
    return "/".join(folder_of(column, text) for column, text in values.items())


def parse_timestamp(text: str, *, aware: bool) -> datetime | None:
    """A timestamp as the log spells it: a space or ``T``, any fraction, any offset; without one, UTC."""
    if (match := _TIME.fullmatch(text.strip())) is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int((fraction or "0").ljust(6, "0")[:6])
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), micros, UTC
        )
        if zone and zone.upper() not in ("Z", "UTC"):
            sign = -1 if zone[0] == "+" else 1
            digits = zone[1:].replace(":", "").ljust(6, "0")
            offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:6]))
            moment += sign * offset
    except (ValueError, OverflowError):
        return None
    return moment if aware else moment.replace(tzinfo=None)


def _name(type_: PrimitiveType | str) -> str:
    return type_ if isinstance(type_, str) else type_.name


def _invalid_value(value: Any, name: str) -> ProtocolError:
    return ProtocolError(
        f"{str(value)[:80]!r} is not a partition value of type {name}",
        suggestion="compare the table's schema with the partition values in its log",
    )


def _quoted(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as e:
        raise ProtocolError(f"the partition value {text!r} is not Unicode") from e


def _integer(text: str, name: str) -> int | None:
    text = text.strip()
    if _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    half = 1 << (_BITS[name] - 1)
    return value if -half <= value < half else None


def _float(text: str, name: str) -> float | None:
    text = text.strip()
    sign, bare = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if (huge := _HUGE.get(bare.lower())) is not None:
        return sign * huge
    if _NUMBER.fullmatch(text) is None:
        return None
    return to_float32(float(text)) if name == "float" else float(text)


def to_float32(value: float) -> float:
    """The nearest 32-bit float."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _decimal(text: str, precision: int, scale: int) -> Decimal | None:
    text = text.strip()
    if _NUMBER.fullmatch(text) is None:
        return None
    value = Decimal(text)
    try:
        fitted = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except InvalidOperation:
        return None
    if fitted != value or (fitted and fitted.adjusted() + 1 + scale > precision):
        return None
    return fitted if fitted else abs(fitted)


def _date(text: str) -> date | None:
    if (match := _DATE.fullmatch(text.strip())) is None:
        return None
    try:
        return date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return None


def _binary(text: str) -> bytes | None:
    if _ESCAPES.fullmatch(text):
        return bytes.fromhex(text.replace("\\u00", ""))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _far(text: str) -> bool:
    match = _TIME.fullmatch(text.strip())
    return match is not None and not 1 <= int(match[1]) <= 9999 and 1 <= int(match[2]) <= 12


def _text(value: Any, name: str) -> str | None:
    if name in INTEGERS:
        return str(value) if type(value) is int and _integer(str(value), name) is not None else None
    if name in ("float", "double"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return _float_text(float(value), name) if number else None
    if name == "boolean":
        return ("true" if value else "false") if isinstance(value, bool) else None
    if name == "date":
        plain = isinstance(value, date) and not isinstance(value, datetime)
        return value.isoformat() if plain else None
    if name in ("timestamp", "timestamp_ntz"):
        if not isinstance(value, datetime):
            return None
        moment = value.astimezone(UTC) if value.tzinfo is not None else value
        return moment.replace(tzinfo=None).isoformat(" ", "microseconds")
    if name == "binary":
        return _binary_text(bytes(value)) if isinstance(value, bytes | bytearray | memoryview) else None
    if (decimal := PrimitiveType(name).decimal) is not None:
        if not isinstance(value, Decimal | int) or isinstance(value, bool):
            return None
        fitted = _decimal(str(value), *decimal)
        return None if fitted is None else format(fitted, "f")
    return value if isinstance(value, str) else None


def _float_text(value: float, name: str) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    shortest = repr(value)
    if name == "float":
        value = to_float32(value)
        if math.isinf(value):
            return _float_text(value, name)
        shortest = next(t for p in range(6, 10) if to_float32(float(t := f"{value:.{p}g}")) == value)
    text = format(Decimal(shortest), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _binary_text(value: bytes) -> str:
    """Readers take the text's UTF-8 bytes; only what is no text is escaped."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return _escaped(value)
    return _escaped(value) if "\x00" in text or _ESCAPES.fullmatch(text) else text


def _escaped(value: bytes) -> str:
    return "".join(f"\\u{byte:04X}" for byte in value)
