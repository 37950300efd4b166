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

_TOKEN = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<word>[^\s:,<>()!`]+)|(?P<mark>[:,<>()!]))")
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
    return _Columns(text).whole()


class _Columns:
    """Reads one token after the other; what does not fit is named with the form to write."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text.rstrip()))
        self._tokens.append(("", ""))

    def whole(self) -> StructType:
        struct = self._fields(0)
        if self._tokens[0][0]:
            raise _wrong(f"{self._tokens[0][1]!r} is not expected there")
        return struct

    def _take(self, mark: str) -> bool:
        return self._tokens[0] == ("mark", mark) and bool(self._tokens.pop(0))

    def _missing(self, what: str) -> InvalidArgumentError:
        kind, value = self._tokens[0]
        return _wrong(f"{what} is missing" + (f" before {value!r}" if kind else " at the end"))

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            raise self._missing(repr(mark))

    def _word(self, what: str) -> str:
        if self._tokens[0][0] not in ("word", "quoted"):
            raise self._missing(what)
        return self._tokens.pop(0)[1]

    def _fields(self, depth: int) -> StructType:
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
        required = self._take("!")
        if self._tokens[0][0] == "word" and self._tokens[0][1].lower() == "not":
            self._tokens.pop(0)
            if self._word("NULL behind NOT").lower() != "null":
                raise _wrong("NOT is not followed by NULL")
            required = True
        return StructField(name, kind, nullable=not required)

    def _type(self, depth: int) -> DataType:
        if depth > _MAX_DEPTH:
            raise _wrong("it is nested too deeply")
        word = self._word("a type").lower()
        if word not in ("array", "list", "map", "struct"):
            return self._primitive(_TYPES.get(word, word))
        self._need("<")
        found: DataType
        if word == "struct":
            found = self._fields(depth + 1)
        elif word == "map":
            key = self._type(depth + 1)
            self._need(",")
            found = MapType(key, self._type(depth + 1))
        else:
            found = ArrayType(self._type(depth + 1))
        self._need(">")
        return found

    def _primitive(self, name: str) -> PrimitiveType:
        if name in ("decimal", "numeric"):
            name = "decimal(10,0)"
            if self._take("("):
                precision = self._word("a precision")
                scale = self._word("a scale") if self._take(",") else "0"
                self._need(")")
                name = f"decimal({precision},{scale})"
        kind = PrimitiveType(name)
        if not kind.known:
            raise _wrong(f"there is no type {name!r}")
        return kind


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text):
        if (match := _TOKEN.match(text, place)) is None:
            raise _wrong(f"{text[place : place + 10]!r} cannot be read")
        kind = match.lastgroup or ""
        yield kind, match[kind].replace("``", "`") if kind == "quoted" else match[kind]
        place = match.end()


def _wrong(fault: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the schema is not valid: {fault}", suggestion=_FORM)
