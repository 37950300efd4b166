"""Delta schemas as frozen values: parsed from `schemaString`, written back without loss."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.codec import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "ArrayType",
    "DataType",
    "Leaf",
    "MapType",
    "PrimitiveType",
    "StructField",
    "StructType",
    "parse_schema",
]

PHYSICAL_NAME = "delta.columnMapping.physicalName"
FIELD_ID = "delta.columnMapping.id"

INTEGERS = frozenset({"byte", "short", "integer", "long"})
_PRIMITIVES = INTEGERS | {
    "string",
    "float",
    "double",
    "boolean",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "variant",
}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(-?\d{1,2})\s*\)")
_MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A primitive type by its name in the log; an unknown name is kept as it is."""

    name: str

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale, for a decimal."""
        if self.name == "decimal":
            return 10, 0
        match = _DECIMAL.fullmatch(self.name)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def known(self) -> bool:
        """Whether the protocol defines this type."""
        return self.name in _PRIMITIVES or self.decimal is not None

    def to_dict(self) -> str:
        """The type as the log's JSON has it."""
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
        """The type as the log's JSON has it."""
        return {
            "type": "array",
            "elementType": self.element_type.to_dict(),
            "containsNull": self.contains_null,
            **self.extra,
        }


@dataclass(frozen=True, slots=True)
class MapType:
    """Keys of one type, values of another."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The type as the log's JSON has it."""
        return {
            "type": "map",
            "keyType": self.key_type.to_dict(),
            "valueType": self.value_type.to_dict(),
            "valueContainsNull": self.value_contains_null,
            **self.extra,
        }


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
        """The name in data files, statistics and partition values; the logical one without column mapping."""
        name = self.metadata.get(PHYSICAL_NAME)
        return name if isinstance(name, str) else self.name

    @property
    def field_id(self) -> int | None:
        """The column mapping id."""
        number = self.metadata.get(FIELD_ID)
        return number if isinstance(number, int) and not isinstance(number, bool) else None

    def to_dict(self) -> dict[str, Any]:
        """The field as the log's JSON has it."""
        return {
            "name": self.name,
            "type": self.type.to_dict(),
            "nullable": self.nullable,
            "metadata": dict(self.metadata),
            **self.extra,
        }


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
        """The type as the log's JSON has it."""
        return {"type": "struct", "fields": [f.to_dict() for f in self.fields], **self.extra}

    def to_json(self) -> str:
        """The text that goes into ``metaData.schemaString``."""
        return encode_json(self.to_dict())

    @property
    def names(self) -> tuple[str, ...]:
        """The fields' logical names."""
        return tuple(f.name for f in self.fields)

    def field(self, name: str) -> StructField | None:
        """A field by its logical name: exactly, or else without regard to case."""
        folded = None
        for f in self.fields:
            if f.name == name:
                return f
            if folded is None and f.name.lower() == name.lower():
                folded = f
        return folded

    def find(self, path: str | Sequence[str]) -> StructField | None:
        """The field at a path of logical names, case ignored if no exact name exists.

        A text is tried as one column's name first and then split at dots.

        Example:
            >>> parse_schema(text).find("address.city").physical_name  # doctest: +SKIP
            'col-5f1c'
        """
        if isinstance(path, str):
            return self.field(path) or (self.find(path.split(".")) if "." in path else None)
        here: DataType = self
        found: StructField | None = None
        for name in path:
            if not isinstance(here, StructType) or (found := here.field(name)) is None:
                return None
            here = found.type
        return found

    def leaves(self) -> Iterator[Leaf]:
        """All leaf columns, depth first, in schema order."""
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


def parse_schema(text: str | bytes) -> StructType:
    """A table's schema from ``metaData.schemaString``.

    Raises:
        ProtocolError: The text is not a Delta schema; the message says where it goes wrong.
    """
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
    rest = {key: value for key, value in data.items() if key != "type"}
    kind = data.get("type")
    if kind == "struct":
        fields = rest.pop("fields", None)
        if not isinstance(fields, list):
            raise _bad(where, "lacks its fields")
        return StructType(tuple(_field(f, where, depth + 1) for f in fields), rest)
    if kind == "array":
        element = _type(rest.pop("elementType", None), f"{where}.element", depth + 1)
        return ArrayType(element, _flag(rest, "containsNull", where), rest)
    if kind == "map":
        key = _type(rest.pop("keyType", None), f"{where}.key", depth + 1)
        value = _type(rest.pop("valueType", None), f"{where}.value", depth + 1)
        return MapType(key, value, _flag(rest, "valueContainsNull", where), rest)
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
        raise _bad(where, "has metadata that is no object")
    return StructField(name, parsed, _flag(rest, "nullable", where), metadata or {}, rest)


def _flag(rest: dict[str, Any], key: str, where: str) -> bool:
    value = rest.pop(key, True)
    if value is None:
        return True
    if not isinstance(value, bool):
        raise _bad(where, f"has {key} that is neither true nor false")
    return value
