"""Delta schemas: all types, column mapping, exact round trips, readable refusals."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    parse_schema,
)
from support.golden import golden_tables

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
primitives = st.sampled_from(
    [
        "string",
        "long",
        "integer",
        "double",
        "binary",
        "timestamp_ntz",
        "variant",
        "void",
        "decimal(38,18)",
        "x y",
    ]
).map(PrimitiveType)
metadata = st.dictionaries(names, st.integers() | names | st.booleans(), max_size=2)


def _around(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    field = st.builds(StructField, names, inner, st.booleans(), metadata)
    return (
        st.builds(StructType, st.lists(field, max_size=3).map(tuple))
        | st.builds(ArrayType, inner, st.booleans())
        | st.builds(MapType, inner, inner, st.booleans())
    )


types = st.recursive(primitives, _around, max_leaves=6)
schemas = st.builds(
    StructType, st.lists(st.builds(StructField, names, types, st.booleans(), metadata), max_size=4).map(tuple)
)

MAPPED = json.dumps(
    {
        "type": "struct",
        "fields": [
            {
                "name": "Person",
                "type": {
                    "type": "struct",
                    "fields": [
                        {
                            "name": "city",
                            "type": "string",
                            "nullable": False,
                            "metadata": {
                                "delta.columnMapping.id": 3,
                                "delta.columnMapping.physicalName": "col-3",
                            },
                        }
                    ],
                },
                "nullable": True,
                "metadata": {"delta.columnMapping.physicalName": "col-2"},
            },
            {"name": "a.b", "type": "long", "nullable": False, "metadata": {}},
            {
                "name": "tags",
                "type": {"type": "array", "elementType": "string", "containsNull": True},
                "nullable": False,
                "metadata": {},
            },
        ],
    }
)


@given(schemas)
def test_a_schema_survives_a_round_trip(schema: StructType) -> None:
    assert parse_schema(schema.to_json()) == schema


def test_unknown_keys_and_exact_numbers_are_given_back() -> None:
    text = (
        '{"type":"struct","fields":[{"name":"a","type":{"type":"array","elementType":"void","containsNull":true,'
        '"z":[1.10]},"nullable":true,"metadata":{"m":12345678901234567890123,"n":{"o":null}},"y":1}],"x":"é"}'
    )
    assert parse_schema(text).to_json() == text


def test_left_out_flags_are_true() -> None:
    schema = parse_schema('{"type":"struct","fields":[{"name":"a","type":"long"}]}')
    assert schema.fields == (StructField("a", PrimitiveType("long")),)


def test_physical_names_and_ids_come_from_column_mapping() -> None:
    city = parse_schema(MAPPED).find(["Person", "city"])
    assert city is not None
    assert (city.physical_name, city.field_id) == ("col-3", 3)
    plain = parse_schema(MAPPED).find("a.b")
    assert plain is not None
    assert (plain.physical_name, plain.field_id) == ("a.b", None)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("Person.city", "city"),
        ("person.CITY", "city"),
        ("a.b", "a.b"),
        (["A.B"], "a.b"),
        (["a", "b"], None),
        ("nothing", None),
        ("tags.x", None),
        (["tags", "element"], None),
    ],
)
def test_columns_are_found_by_path_with_case_as_a_last_resort(
    path: str | list[str], found: str | None
) -> None:
    field = parse_schema(MAPPED).find(path)
    assert (None if field is None else field.name) == found


def test_an_exact_name_wins_over_another_case() -> None:
    schema = StructType((StructField("A", PrimitiveType("long")), StructField("a", PrimitiveType("date"))))
    assert schema.find("a") == schema.fields[1]


def test_leaves_carry_logical_and_physical_paths() -> None:
    leaves = list(parse_schema(MAPPED).leaves())
    assert [(leaf.path, leaf.physical_path, leaf.nullable) for leaf in leaves] == [
        (("Person", "city"), ("col-2", "col-3"), True),
        (("a.b",), ("a.b",), False),
        (("tags",), ("tags",), False),
    ]
    assert isinstance(leaves[2].type, ArrayType)


@pytest.mark.parametrize(
    ("name", "decimal", "known"),
    [
        ("decimal(10,2)", (10, 2), True),
        ("decimal(38, 18)", (38, 18), True),
        ("decimal", (10, 0), True),
        ("string", None, True),
        ("void", None, False),
        ("interval day", None, False),
        ("decimal(x)", None, False),
    ],
)
def test_primitive_names_are_understood_or_kept(
    name: str, decimal: tuple[int, int] | None, known: bool
) -> None:
    primitive = PrimitiveType(name)
    assert (primitive.decimal, primitive.known, str(primitive)) == (decimal, known, name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '"long"',
        "{}",
        '{"type":"struct"}',
        '{"type":"struct","fields":{}}',
        '{"type":"struct","fields":[7]}',
        '{"type":"struct","fields":[{"type":"long"}]}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","nullable":"yes"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","metadata":[]}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"list"}}]}',
        '{"type":"array","elementType":"long"}',
        '{"type":"struct","fields":[{"name":"a","type":' * 250 + '"long"' + "}]}" * 250,
        "[" * 100_000,
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="schema"):
        parse_schema(text)


@pytest.mark.golden
def test_schemas_of_real_tables_survive_a_round_trip(golden: object) -> None:
    seen = set()
    for table in golden_tables():
        for version in table.truth.get("versions", {}).values():
            seen.add(version["metadata"].get("schemaString"))
    seen.discard(None)
    assert len(seen) > 50
    for text in seen:
        assert json.loads(parse_schema(text).to_json()) == json.loads(text)
