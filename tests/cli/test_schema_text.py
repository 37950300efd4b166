"""Schemas as people type them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.cli.schema_text import read_schema
from deltalakedb.exceptions import InvalidArgumentError, ProtocolError
from deltalakedb.protocol.schema import ArrayType, MapType, PrimitiveType, StructField, StructType

if TYPE_CHECKING:
    from deltalakedb.protocol.schema import DataType


def spelled(kind: DataType) -> str:
    if isinstance(kind, ArrayType):
        return f"array<{spelled(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{spelled(kind.key_type)}, {spelled(kind.value_type)}>"
    if isinstance(kind, StructType):
        return f"struct<{spelled_fields(kind)}>"
    return kind.name


def spelled_fields(struct: StructType) -> str:
    marks = (("" if f.nullable else "!") for f in struct.fields)
    names = ("`" + f.name.replace("`", "``") + "`" for f in struct.fields)
    return ",".join(
        f"{name}:{spelled(f.type)}{mark}" for name, f, mark in zip(names, struct.fields, marks, strict=True)
    )


primitives = st.sampled_from(["long", "string", "date", "timestamp_ntz", "decimal(38,18)", "binary"])
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


def structs(types: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    fields = st.lists(
        st.builds(StructField, names, types, st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda f: f.name.lower(),
    )
    return fields.map(lambda found: StructType(tuple(found)))


types: st.SearchStrategy[DataType] = st.recursive(
    primitives.map(PrimitiveType),
    lambda inner: st.builds(ArrayType, inner) | st.builds(MapType, inner, inner) | structs(inner),
    max_leaves=6,
)


@given(structs(types))
def test_every_schema_can_be_typed(schema: StructType) -> None:
    assert read_schema(spelled_fields(schema)) == schema
    assert read_schema(schema.to_json()) == schema


def test_names_of_other_dialects_are_understood() -> None:
    schema = read_schema("a:bigint, b:int32 not null, c:varchar, d:numeric(5), e:decimal, f:list<bool>")
    assert [spelled(f.type) for f in schema.fields] == [
        "long",
        "integer",
        "string",
        "decimal(5,0)",
        "decimal(10,0)",
        "array<boolean>",
    ]
    assert [f.nullable for f in schema.fields] == [True, False, True, True, True, True]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "name is missing at the end"),
        ("id", "':' is missing"),
        ("id:", "a type is missing"),
        ("id:nope", "no type 'nope'"),
        ("id:long name:string", "'name' is not expected"),
        ("id:long,,b:int", "name is missing before ','"),
        ("id:array<long", "'>' is missing"),
        ("id:map<string>", "',' is missing"),
        ("id:decimal(99,", "'(99,' cannot be read"),
        ("id:decimal(x,y)", "no type"),
        ("id:long, ID:string", "twice"),
        ("id:long not nothing", "'not' is not expected"),
        ("a:" + "array<" * 60 + "long" + ">" * 60, "nested too deeply"),
        ("`a:long", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_the_form_to_write(text: str, fault: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_schema(text)
    assert fault in caught.value.message
    assert "id:long!" in (caught.value.suggestion or "")


def test_json_that_is_no_schema_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read_schema('{"type": "nope"}')
