"""JSON text, exact in both directions: numbers keep their digits, text stays UTF-8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Final, Self, cast

import msgspec

from deltalakedb.exceptions import LogCorruptError, ProtocolError


class ExactFloat(float):
    """A JSON number that a float would respell: computes as a float, and is written as it was read.

    Example:
        >>> encode_json(decode_json("[1.10, 1e400]"))
        '[1.10,1e400]'
    """

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        """Keep ``text``, a number as JSON spells it."""
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[ExactFloat], tuple[str]]:
        return ExactFloat, (self.text,)


def _read_float(text: str) -> float:
    value = float(text)
    # the encoder spells numbers with an exponent in its own way
    return value if repr(value) == text and "e" not in text else ExactFloat(text)


def _write_other(value: Any) -> Any:
    if isinstance(value, ExactFloat):
        return msgspec.Raw(value.text.encode())
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


_decoder: Final = msgspec.json.Decoder(float_hook=_read_float)
_encoder: Final = msgspec.json.Encoder(enc_hook=_write_other, decimal_format="number")


def decode_json(text: str | bytes) -> Any:
    """The value of one JSON document, with exact numbers: long integers are ints, odd floats `ExactFloat`.

    Raises:
        LogCorruptError: The text is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return _decoder.decode(text)
    except RecursionError as e:
        raise LogCorruptError("the JSON is nested too deeply") from e
    except (msgspec.MsgspecError, ValueError) as e:
        raise LogCorruptError(f"not valid JSON: {e}") from e


def encode_json(value: Any) -> str:
    """The compact JSON text of a value; what `decode_json` read is spelled as it was."""
    return json_bytes(value).decode()


def json_bytes(value: Any) -> bytes:
    """The same as UTF-8 bytes; ProtocolError if the value has no JSON form."""
    try:
        return _encoder.encode(value)
    except RecursionError as e:
        raise ProtocolError("the value is nested too deeply to be written as JSON") from e
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as e:
        raise ProtocolError(f"the value cannot be written as JSON: {e}") from e


class JsonValue:
    """A value that is plain data and JSON text as well, and comes back equal from both."""

    __slots__ = ()
    #: the classes of the fields that are such values themselves
    _parts: ClassVar[Mapping[str, type[JsonValue]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """The value as plain data."""
        named = ((f.name, getattr(self, f.name)) for f in fields(cast(Any, self)))
        return {name: value.to_dict() if isinstance(value, JsonValue) else value for name, value in named}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The value from what ``to_dict`` gave; ProtocolError if it lacks a field without a default."""
        values: dict[str, Any] = {}
        for field in fields(cast(Any, cls)):
            if field.name in data or field.default is MISSING:
                value, kind = part(data, field.name, cls), cls._parts.get(field.name)
                values[field.name] = value if kind is None or value is None else kind.from_dict(value)
        return cls(**values)

    def to_json(self) -> str:
        """The value as compact JSON text."""
        return encode_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The value from what ``to_json`` gave.

        Raises:
            LogCorruptError: The text is not JSON.
            ProtocolError: It is JSON, but not of such a value.
        """
        data = decode_json(text)
        if not isinstance(data, Mapping):
            raise ProtocolError(f"{cls.__name__} is a JSON object, not {type(data).__name__}")
        return cls.from_dict(data)


def part(data: Mapping[str, Any], name: str, of: type) -> Any:
    """A part that plain data must have; ProtocolError without it."""
    if name not in data:
        raise ProtocolError(f"{of.__name__} lacks {name}")
    return data[name]
