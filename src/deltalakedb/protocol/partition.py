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
from deltalakedb.protocol.schema import FLOATS, INTEGERS, TIMESTAMPS, PrimitiveType, StructField, parse_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.protocol.actions import Metadata

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
PartitionValue: TypeAlias = str | int | float | bool | bytes | Decimal | date | datetime

_TYPED: Final = INTEGERS | FLOATS | TIMESTAMPS | {"boolean", "date", "binary"}
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

    A timestamp is an aware datetime in UTC, a ``timestamp_ntz`` a naive one. The values of an unknown type
    stay text. ProtocolError if the text is not a value of the type.
    """
    if not text:
        return None
    name = str(type_)
    if (value := _read(text, name)) is None:
        raise _invalid_value(text, name)
    return value


def _read(text: str, name: str) -> PartitionValue | None:
    match name:
        case "byte" | "short" | "integer" | "long":
            return _integer(text, name)
        case "float" | "double":
            return _float(text, name)
        case "boolean":
            return {"true": True, "false": False}.get(text.strip().lower())
        case "date":
            return _date(text)
        case "timestamp" | "timestamp_ntz":
            return parse_timestamp(text, aware=name == "timestamp")
        case "binary":
            return _binary(text)
    decimal = PrimitiveType(name).decimal
    return text if decimal is None else _decimal(text, *decimal)


def serialize(value: Any, type_: PrimitiveType | str) -> str | None:
    """The text that an ``add`` has for a partition value; ProtocolError if the value does not fit the type.

    An empty string or binary is null: the protocol has no other way to write it.
    """
    if value is None or value in ("", b""):
        return None
    if (text := _text(value, str(type_))) is None:
        raise _invalid_value(value, str(type_))
    return text


def canonical(text: str | None, type_: PrimitiveType | str) -> str | None:
    """One text for each value of a type, so that equal values are equal texts; null is None.

    Dates and timestamps outside of the years 1 to 9999 stay as they are written. ProtocolError for others.

    Example:
        >>> canonical("2024-01-02T03:04:05Z", "timestamp"), canonical("1.0", "decimal(5,2)")
        ('2024-01-02 03:04:05.000000', '1.00')
    """
    if not text:
        return None
    name = str(type_)
    if (value := _read(text, name)) is None:
        far = _TIME.fullmatch(text.strip()) if name in TIMESTAMPS | {"date"} else None
        if far and not 1 <= int(far[1]) <= 9999 and 1 <= int(far[2]) <= 12:
            return text.strip()
        raise _invalid_value(text, name)
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
    """

    def spelled(name: str, kind: PrimitiveType | str) -> str | None:
        try:
            return canonical(values.get(name), kind)
        except ProtocolError:
            return values.get(name)  # no value of the type: equal to the same text only

    return tuple(spelled(name, kind) for name, kind in columns.items())


def partition_path(values: Mapping[str, str | None]) -> str:
    """The Hive folders of partition values, in order; null has its own word, and no value is an empty text.

    Example:
        >>> partition_path({"a b": "x/y", "c": None})
        'a%20b=x%2Fy/c=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(
        f"{_quoted(column)}={_quoted(text) if text else HIVE_NULL}" for column, text in values.items()
    )


def partition_columns(metadata: Metadata) -> list[tuple[str, str, PrimitiveType]]:
    """Name, name in the log, and type of a table's partition columns; a type the schema lacks is string."""
    schema, text = parse_schema(metadata.schema_string), PrimitiveType("string")
    fields = [schema.field(name) or StructField(name, text) for name in metadata.partition_columns]
    types = [f.type if isinstance(f.type, PrimitiveType) else text for f in fields]
    return list(zip(metadata.partition_columns, [f.physical_name for f in fields], types, strict=True))


def parse_timestamp(text: str, *, aware: bool) -> datetime | None:
    """A timestamp as the log spells it: a space or ``T``, any fraction, any offset; UTC without one."""
    if (match := _TIME.fullmatch(text.strip())) is None:
        return None
    *parts, fraction, zone = match.groups(default="")
    micros = int((fraction or "0").ljust(6, "0")[:6])
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in parts)
        moment = datetime(year, month, day, hour, minute, second, micros, UTC)
        if zone.upper() not in ("", "Z", "UTC"):
            sign = -1 if zone[0] == "+" else 1
            digits = zone[1:].replace(":", "").ljust(6, "0")
            offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:6]))
            moment += sign * offset
    except (ValueError, OverflowError):
        return None
    return moment if aware else moment.replace(tzinfo=None)


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
    value = int(text) if _INTEGER.fullmatch(text.strip()) else None
    half = 1 << (_BITS[name] - 1)
    return value if value is not None and -half <= value < half else None


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
    match = _DATE.fullmatch(text.strip())
    try:
        return date(*map(int, match.groups())) if match else None
    except ValueError:
        return None


def _binary(text: str) -> bytes | None:
    if _ESCAPES.fullmatch(text):
        return bytes.fromhex(text.replace("\\u00", ""))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _text(value: Any, name: str) -> str | None:
    match name, value:
        case "boolean", bool():
            return "true" if value else "false"
        case _, bool():
            return None
        case (("byte" | "short" | "integer" | "long"), int()):
            return None if _integer(str(value), name) is None else str(value)
        case (("float" | "double"), int() | float()):
            return _float_text(float(value), name)
        case (("timestamp" | "timestamp_ntz"), datetime()):
            moment = value.astimezone(UTC) if value.tzinfo is not None else value
            return moment.replace(tzinfo=None).isoformat(" ", "microseconds")
        case "date", date() if not isinstance(value, datetime):
            return value.isoformat()
        case "binary", bytes() | bytearray() | memoryview():
            return _binary_text(bytes(value))
    if (decimal := PrimitiveType(name).decimal) is not None:
        fitted = _decimal(str(value), *decimal) if isinstance(value, Decimal | int) else None
        return None if fitted is None else format(fitted, "f")
    return value if isinstance(value, str) and name not in _TYPED else None


def _float_text(value: float, name: str) -> str:
    if name == "float":
        value = to_float32(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    shortest = repr(value)
    if name == "float":
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
