"""Delta schemas as frozen values: parsed from `schemaString`, written back without loss."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.json_text import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PHYSICAL_NAME = "delta.columnMapping.physicalName"
FIELD_ID = "delta.columnMapping.id"

INTEGERS = frozenset({"byte", "short", "integer", "long"})
FLOATS = frozenset({"float", "double"})
TIMESTAMPS = frozenset({"timestamp", "timestamp_ntz"})
_PRIMITIVES = INTEGERS | FLOATS | TIMESTAMPS | {"string", "boolean", "binary", "date", "variant"}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(-?\d{1,2})\s*\)")
_MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A primitive type by its name in the log; an unknown name is kept as it is."""

    name: str

    @property
    def decimal(self) -> tuple[int, int] | None:
        if self.name == "decimal":
            return 10, 0
        match = _DECIMAL.fullmatch(self.name)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def known(self) -> bool:
        return self.name in _PRIMITIVES or self.decimal is not None

    def to_dict(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A list of values of one type."""

    element_type: DataType
    contains_null: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        known = {"elementType": self.element_type.to_dict(), "containsNull": self.contains_null}
        return {"type": "array", **known, **self.extra}


@dataclass(frozen=True, slots=True)
class MapType:
    """Keys of one type, values of another."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        types = {"keyType": self.key_type.to_dict(), "valueType": self.value_type.to_dict()}
        return {"type": "map", **types, "valueContainsNull": self.value_contains_null, **self.extra}


@dataclass(frozen=True, slots=True)
class StructField:
    """A column, or a field of a struct."""

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def physical_name(self) -> str:
        name = self.metadata.get(PHYSICAL_NAME)
        return name if isinstance(name, str) else self.name

    @property
    def field_id(self) -> int | None:
        number = self.metadata.get(FIELD_ID)
        return number if isinstance(number, int) and not isinstance(number, bool) else None

    def to_dict(self) -> dict[str, Any]:
        known = {"name": self.name, "type": self.type.to_dict(), "nullable": self.nullable}
        return {**known, "metadata": dict(self.metadata), **self.extra}


class Leaf(NamedTuple):
    """A column that holds values itself: a primitive, an array or a map below any number of structs."""

    path: tuple[str, ...]
    physical_path: tuple[str, ...]
    type: PrimitiveType | ArrayType | MapType
    field: StructField
    nullable: bool  # of the field or of any struct around it


@dataclass(frozen=True, slots=True)
class StructType:
    """Named fields in order; the type of a table."""

    fields: tuple[StructField, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"type": "struct", "fields": [f.to_dict() for f in self.fields], **self.extra}

    def to_json(self) -> str:
        return encode_json(self.to_dict())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    def field(self, name: str) -> StructField | None:
        """The field of a name, case ignored if no exact one exists."""
        exact = (f for f in self.fields if f.name == name)
        return next(exact, None) or next((f for f in self.fields if f.name.lower() == name.lower()), None)

    def fields_at(self, path: str | Sequence[str]) -> tuple[StructField, ...]:
        """The fields along a path of logical names as `field` finds them; none if one of them is missing.

        A text is tried as one column's name first and then split at dots.
        """
        if isinstance(path, str):
            return self.fields_at([path]) or (self.fields_at(path.split(".")) if "." in path else ())
        here: DataType = self
        found: list[StructField] = []
        for name in path:
            if not isinstance(here, StructType) or (field := here.field(name)) is None:
                return ()
            found.append(field)
            here = field.type
        return tuple(found)

    def find(self, path: str | Sequence[str]) -> StructField | None:
        fields = self.fields_at(path)
        return fields[-1] if fields else None

    def leaves(self) -> Iterator[Leaf]:
        return _leaves(self, (), (), False)


DataType: TypeAlias = PrimitiveType | StructType | ArrayType | MapType


def _leaves(
    struct: StructType, path: tuple[str, ...], physical: tuple[str, ...], nullable: bool
) -> Iterator[Leaf]:
    for f in struct.fields:
        here, there = (*path, f.name), (*physical, f.physical_name)
        if isinstance(f.type, StructType):
            yield from _leaves(f.type, here, there, nullable or f.nullable)
        else:
            yield Leaf(here, there, f.type, f, nullable or f.nullable)


def column_types(schema: StructType) -> dict[tuple[str, ...], DataType]:
    """The type of every leaf column by its physical path."""
    return {leaf.physical_path: leaf.type for leaf in schema.leaves()}


def walk(kind: DataType) -> Iterator[DataType]:
    """A type and every type inside it."""
    yield kind
    inner: tuple[DataType, ...] = ()
    match kind:
        case StructType(fields):
            inner = tuple(f.type for f in fields)
        case ArrayType(element):
            inner = (element,)
        case MapType(key, value):
            inner = (key, value)
    for one in inner:
        yield from walk(one)


def parse_schema(text: str | bytes) -> StructType:
    """A table's schema from ``schemaString``; ProtocolError, which says where, if it is not valid."""
    try:
        data = decode_json(text)
    except LogCorruptError as e:
        raise ProtocolError(f"the table's schema is not readable: {e.message}") from e
    parsed = _type(data, "schema", 0)
    if not isinstance(parsed, StructType):
        raise _bad("schema", "must be a struct")
    return parsed


def _bad(where: str, what: str) -> ProtocolError:
    return ProtocolError(f"the table's schema is not valid: {where} {what}")


def _type(data: Any, where: str, depth: int) -> DataType:
    if isinstance(data, str):
        return PrimitiveType(data)
    if depth > _MAX_DEPTH:
        raise _bad(where, "is nested too deeply")
    if not isinstance(data, dict):
        raise _bad(where, f"must be a type, not {type(data).__name__}")
    rest = dict(data)
    match rest.pop("type", None):
        case "struct":
            if not isinstance(fields := rest.pop("fields", None), list):
                raise _bad(where, "lacks its fields")
            return StructType(tuple(_field(f, where, depth + 1) for f in fields), rest)
        case "array":
            element = _type(rest.pop("elementType", None), f"{where}.element", depth + 1)
            return ArrayType(element, _flag(rest, "containsNull", where), rest)
        case "map":
            key = _type(rest.pop("keyType", None), f"{where}.key", depth + 1)
            value = _type(rest.pop("valueType", None), f"{where}.value", depth + 1)
            return MapType(key, value, _flag(rest, "valueContainsNull", where), rest)
        case kind:
            raise _bad(where, f"has the unknown type {str(kind)[:60]!r}")


def _field(data: Any, where: str, depth: int) -> StructField:
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise _bad(where, "has a field without a name")
    rest = dict(data)
    name = rest.pop("name")
    where = f"{where}.{name}"
    parsed = _type(rest.pop("type", None), where, depth)
    metadata = rest.pop("metadata", None)
    if not isinstance(metadata, dict | None):
        raise _bad(where, "has metadata that is not an object")
    return StructField(name, parsed, _flag(rest, "nullable", where), metadata or {}, rest)


def _flag(rest: dict[str, Any], key: str, where: str) -> bool:
    value = rest.pop(key, None)
    if not isinstance(value, bool | None):
        raise _bad(where, f"has {key} that is neither true nor false")
    return value is not False
