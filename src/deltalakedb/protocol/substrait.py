"""Just enough of Substrait's wire format to read the filter expressions that pyarrow writes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from deltalakedb.protocol.literals import LiteralValue

__all__ = ["Call", "FieldRef", "ListTest", "Node", "Opaque", "Scalar", "read_expression"]

_EPOCH: Final = datetime(1970, 1, 1)
_INTEGERS: Final = frozenset({2, 3, 5, 7})  # i8, i16, i32, i64


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A column by the positions of its fields, outermost first."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A literal."""

    value: LiteralValue


@dataclass(frozen=True, slots=True)
class Call:
    """A function by its name, without the signature."""

    name: str
    arguments: tuple[Node, ...]
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ListTest:
    """A value is one of some literals."""

    value: Node
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something that is not read here."""


Node: TypeAlias = FieldRef | Scalar | Call | ListTest | Opaque
_Fields: TypeAlias = list[tuple[int, "int | bytes"]]


def read_expression(message: bytes) -> Node:
    """The single expression of an ``ExtendedExpression`` message.

    Raises:
        ValueError: The bytes are no such message.
    """
    functions: dict[int, str] = {}
    expressions: list[bytes] = []
    for number, value in _fields(message):
        if number == 2:  # extension declaration -> function
            declared = _message(_fields(_raw(value)), 3)
            if declared is not None:
                name = _message(_fields(declared), 3) or b""
                functions[_number(_fields(declared), 2)] = name.decode().partition(":")[0]
        elif number == 3:  # expression reference
            expressions.append(_message(_fields(_raw(value)), 1) or b"")
    if len(expressions) != 1:
        raise ValueError("one expression is expected")
    return _expression(expressions[0], functions)


def _expression(message: bytes, functions: dict[int, str]) -> Node:
    fields = _fields(message)
    if not fields:
        return Opaque()
    kind, value = fields[0]
    body = value if isinstance(value, bytes) else b""
    if kind == 1:
        return _literal(body)
    if kind == 2:
        return _reference(body)
    if kind == 3:
        return _call(body, functions)
    if kind == 8:  # singular or list
        inner = _fields(body)
        options = tuple(_expression(_raw(v), functions) for n, v in inner if n == 2)
        return ListTest(_expression(_message(inner, 1) or b"", functions), options)
    return Opaque()


def _call(message: bytes, functions: dict[int, str]) -> Node:
    fields = _fields(message)
    arguments: list[Node] = []
    options: list[tuple[str, str]] = []
    for number, value in fields:
        if number == 4:
            inner = _message(_fields(_raw(value)), 3)
            arguments.append(Opaque() if inner is None else _expression(inner, functions))
        elif number == 5:
            option = _fields(_raw(value))
            options.append(((_message(option, 1) or b"").decode(), (_message(option, 2) or b"").decode()))
    name = functions.get(_number(fields, 1))
    return Opaque() if name is None else Call(name, tuple(arguments), tuple(options))


def _reference(message: bytes) -> Node:
    fields = _fields(message)
    segment = _message(fields, 1)
    if segment is None or _message(fields, 4) is None:  # a direct reference from the row's root
        return Opaque()
    indices: list[int] = []
    while segment is not None:
        inside = _message(_fields(segment), 2)
        if inside is None:  # a map's or a list's element
            return Opaque()
        struct_field = _fields(inside)
        indices.append(_number(struct_field, 1))
        segment = _message(struct_field, 2)
    return FieldRef(tuple(indices))


def _literal(message: bytes) -> Node:
    known = [(n, v) for n, v in _fields(message) if n < 50]  # nullability and variations come after
    if len(known) != 1:
        return Opaque()
    kind, value = known[0]
    if isinstance(value, int):
        signed = value - (1 << 64) if value >> 63 else value
        if kind == 1:
            return Scalar(bool(value))
        if kind in _INTEGERS:
            return Scalar(signed)
        try:
            if kind == 16:
                return Scalar(date(1970, 1, 1) + timedelta(days=signed))
            if kind == 14:
                return Scalar(_EPOCH + timedelta(microseconds=signed))
            if kind == 27:
                return Scalar((_EPOCH + timedelta(microseconds=signed)).replace(tzinfo=UTC))
        except OverflowError:
            return Opaque()
        return Opaque()
    if kind == 10 and len(value) == 4:
        return Scalar(float(struct.unpack("<f", value)[0]))
    if kind == 11 and len(value) == 8:
        return Scalar(float(struct.unpack("<d", value)[0]))
    if kind in (12, 21):
        return Scalar(value.decode())
    if kind == 22:  # varchar
        return Scalar((_message(_fields(value), 1) or b"").decode())
    if kind in (13, 23):
        return Scalar(value)
    if kind == 24:
        fields = _fields(value)
        unscaled = int.from_bytes(_message(fields, 1) or b"", "little", signed=True)
        digits = tuple(int(d) for d in str(abs(unscaled)))
        return Scalar(Decimal((int(unscaled < 0), digits, -_number(fields, 3))))
    return Scalar(None) if kind == 29 else Opaque()


def _fields(message: bytes) -> _Fields:
    found: _Fields = []
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(message, at)
        else:
            if wire == 2:
                size, at = _varint(message, at)
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
            else:
                raise ValueError(f"wire type {wire} is not known")
            value = message[at : at + size]
            at += size
            if at > len(message):
                raise ValueError("the message is cut short")
        found.append((number, value))
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number is cut short")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at


def _raw(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a message is expected, not a number")  # noqa: TRY004 - damaged bytes, not a caller's type
    return value


def _message(fields: _Fields, number: int) -> bytes | None:
    return next((_raw(v) for n, v in fields if n == number), None)


def _number(fields: _Fields, number: int) -> int:
    return next((v for n, v in fields if n == number and isinstance(v, int)), 0)
