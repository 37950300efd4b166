"""A table's schema as people type it: ``id:long!,name:string,tags:array<string>``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    parse_schema,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

#: a quoted name, NOT NULL, a word with its arguments if it has any, or a mark
_TOKEN = re.compile(
    r"\s*(`(?:[^`]|``)+`|(?P<required>!|not\s+null\b)|[^\s:,<>()!`]+(?:\([^()]*\))?|[:,<>])", re.IGNORECASE
)
_DECIMAL = re.compile(r"(?:decimal|numeric)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_ALIASES = {
    "long": ("bigint", "int64"),
    "integer": ("int", "int32"),
    "short": ("smallint", "int16"),
    "byte": ("tinyint", "int8"),
    "string": ("str", "text", "varchar"),
    "boolean": ("bool",),
    "float": ("real", "float32"),
    "double": ("float64",),
    "binary": ("bytes",),
}
_TYPES = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_FORM = "write it as id:long!,name:string,price:decimal(10,2),tags:array<string>, or name a JSON file"
_MAX_DEPTH = 50


def read_schema(text: str) -> StructType:
    """A schema from typed columns, from JSON, or from the JSON file of a name.

    Example:
        >>> read_schema("id:bigint!, city:string").names
        ('id', 'city')
    """
    if text.lstrip().startswith("{"):
        return parse_schema(text)
    if text.endswith(".json"):
        return parse_schema(Path(text).read_text("utf-8"))
    columns = _Columns(text.rstrip())
    schema = columns.fields()
    if columns.tokens[0]:
        raise _wrong(f"{columns.tokens[0]!r} is not expected there")
    return schema


class _Columns:
    """Reads one token after the other; the last one is empty."""

    def __init__(self, text: str) -> None:
        self.tokens = []
        at = 0
        while at < len(text):
            if (match := _TOKEN.match(text, at)) is None:
                raise _wrong(f"{text[at : at + 10]!r} cannot be read")
            self.tokens.append("!" if match["required"] else match[1])
            at = match.end()
        self.tokens.append("")

    def _take(self, mark: str) -> bool:
        return self.tokens[0] == mark and bool(self.tokens.pop(0))

    def _missing(self, what: str) -> InvalidArgumentError:
        return _wrong(
            f"{what} is missing" + (f" before {self.tokens[0]!r}" if self.tokens[0] else " at the end")
        )

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            raise self._missing(repr(mark))

    def _word(self, what: str) -> str:
        if self.tokens[0] in ("", *":,<>!"):
            raise self._missing(what)
        word = self.tokens.pop(0)
        return word[1:-1].replace("``", "`") if word.startswith("`") else word

    def fields(self, depth: int = 0) -> StructType:
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        names = [f.name.lower() for f in fields]
        if double := next((n for n in names if names.count(n) > 1), None):
            raise _wrong(f"the column {double!r} is there twice")
        return StructType(tuple(fields))

    def _field(self, depth: int) -> StructField:
        name = self._word("a column's name")
        self._need(":")
        kind = self._type(depth)
        return StructField(name, kind, nullable=not self._take("!"))

    def _type(self, depth: int) -> DataType:
        if depth > _MAX_DEPTH:
            raise _wrong("it is nested too deeply")
        word = self._word("a type").lower()
        if word not in ("array", "list", "map", "struct"):
            return _primitive(word)
        self._need("<")
        found: DataType
        if word == "struct":
            found = self.fields(depth + 1)
        elif word == "map":
            key = self._type(depth + 1)
            self._need(",")
            found = MapType(key, self._type(depth + 1))
        else:
            found = ArrayType(self._type(depth + 1))
        self._need(">")
        return found


def _primitive(name: str) -> PrimitiveType:
    if decimal := _DECIMAL.fullmatch(name):
        name = f"decimal({decimal[1] or 10},{decimal[2] or 0})"
    kind = PrimitiveType(_TYPES.get(name, name))
    if not kind.known:
        raise _wrong(f"there is no type {name!r}")
    return kind


def _wrong(fault: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the schema is not valid: {fault}", suggestion=_FORM)


def column_tree(kind: DataType, partitions: tuple[str, ...] = (), indent: str = "  ") -> Iterator[str]:
    """The columns of a struct, and of those in arrays and maps, one a line."""
    match kind:
        case ArrayType(element):
            yield from column_tree(element, indent=indent)
        case MapType(key, value):
            yield from column_tree(key, indent=indent)
            yield from column_tree(value, indent=indent)
        case StructType(fields):
            for field in fields:
                notes = "" if field.nullable else " not null"
                notes += ", partition column" if field.name in partitions else ""
                notes += f" ({comment})" if (comment := field.metadata.get("comment")) else ""
                yield f"{indent}{field.name}: {type_label(field.type)}{notes}"
                yield from column_tree(field.type, indent=indent + "  ")


def type_label(kind: DataType) -> str:
    match kind:
        case ArrayType(element):
            return f"array<{type_label(element)}>"
        case MapType(key, value):
            return f"map<{type_label(key)}, {type_label(value)}>"
    return "struct" if isinstance(kind, StructType) else kind.name
