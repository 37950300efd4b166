"""SQL predicates: what is understood, what is left unknown, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from deltalakedb.exceptions import PredicateError
from deltalakedb.protocol.predicate import (
    FALSE,
    NULL,
    TRUE,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Not,
    Or,
    StartsWith,
    Unknown,
    normalize,
    predicate_text,
)
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import ArrayType, PrimitiveType, StructField, StructType, parse_schema


def _field(name: str, kind: str) -> StructField:
    return StructField(name, PrimitiveType(kind))


SCHEMA = StructType(
    (
        _field("id", "long"),
        _field("i", "integer"),
        _field("name", "string"),
        _field("d", "date"),
        _field("ts", "timestamp"),
        _field("ntz", "timestamp_ntz"),
        _field("f", "double"),
        _field("price", "decimal(10,2)"),
        _field("big", "decimal(38,18)"),
        _field("flag", "boolean"),
        _field("raw", "binary"),
        _field("Mixed Case", "long"),
        _field("Upper", "long"),
        _field("dotted.name", "long"),
        StructField(
            "s", StructType((_field("a", "long"), StructField("in", StructType((_field("b", "string"),)))))
        ),
        StructField("list", ArrayType(PrimitiveType("long"))),
    )
)
ID, NAME, D = ("id",), ("name",), ("d",)


def parse(text: str):
    return parse_predicate(text, SCHEMA)


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("=", "="),
        ("==", "="),
        ("<>", "!="),
        ("!=", "!="),
        ("<", "<"),
        ("<=", "<="),
        (">", ">"),
        (">=", ">="),
        ("<=>", "<=>"),
    ],
)
def test_every_comparison_is_read(text, op):
    assert parse(f"id {text} 5") == Compare(ID, op, 5)


def test_a_literal_on_the_left_turns_the_comparison_round():
    assert parse("5 < id") == Compare(ID, ">", 5)
    assert parse("5 >= id") == Compare(ID, "<=", 5)
    assert parse("5 = id") == Compare(ID, "=", 5)


def test_and_binds_tighter_than_or_and_not_tighter_than_and():
    assert parse("id = 1 OR id = 2 AND NOT i = 3") == Or(
        (Compare(ID, "=", 1), And((Compare(ID, "=", 2), Not(Compare(("i",), "=", 3)))))
    )
    assert parse("(id = 1 or id = 2) and i = 3") == And(
        (Or((Compare(ID, "=", 1), Compare(ID, "=", 2))), Compare(("i",), "=", 3))
    )


def test_null_tests_and_truth_tests():
    assert parse("id IS NULL") == IsNull(ID)
    assert parse("id is not null") == Not(IsNull(ID))
    assert parse("flag IS TRUE") == Compare(("flag",), "<=>", True)
    assert parse("flag IS NOT FALSE") == Not(Compare(("flag",), "<=>", False))
    assert parse("s IS NULL") == IsNull(("s",))
    assert parse("list IS NULL") == IsNull(("list",))
    assert parse("id IS NOT DISTINCT FROM 4") == Not(Not(Compare(ID, "<=>", 4)))
    assert parse("id IS DISTINCT FROM NULL") == Not(IsNull(ID))


def test_a_truth_test_of_a_condition_is_not_judged_under_not():
    assert normalize(parse("(id = 1) IS TRUE")).operands[0] == Compare(ID, "=", 1)
    negated = normalize(parse("(id = 1) IS NOT TRUE"))
    assert isinstance(negated, Or)
    assert any(isinstance(o, Unknown) for o in negated.operands)


def test_lists_and_ranges():
    assert parse("id IN (1, 2, -3)") == In(ID, (1, 2, -3))
    assert parse("name NOT IN ('a', 'b')") == Not(In(NAME, ("a", "b")))
    assert parse("id IN (1, NULL)") == Or((In(ID, (1,)), NULL))
    assert normalize(parse("id NOT IN (1, NULL)")) == FALSE
    assert parse("id BETWEEN 1 AND 5 AND i = 2") == And(
        (Compare(ID, ">=", 1), Compare(ID, "<=", 5), Compare(("i",), "=", 2))
    )
    assert parse("id NOT BETWEEN 1 AND 5") == Not(And((Compare(ID, ">=", 1), Compare(ID, "<=", 5))))


def test_like_gives_its_prefix():
    assert parse("name LIKE 'abc%'") == StartsWith(NAME, "abc")
    assert parse("name NOT LIKE 'abc%'") == Not(StartsWith(NAME, "abc"))
    assert parse("name LIKE 'abc'") == Compare(NAME, "=", "abc")
    assert parse("name LIKE 'a_c%'") == And((StartsWith(NAME, "a"), Unknown("name LIKE 'a_c%'")))
    assert parse("name LIKE 'a!%b%' ESCAPE '!'") == StartsWith(NAME, "a%b")
    assert parse("starts_with(name, 'ab')") == StartsWith(NAME, "ab")


def test_like_stops_at_a_backslash_because_engines_disagree_on_it():
    found = parse(r"name LIKE 'a\%b%'")
    assert found == And((StartsWith(NAME, "a"), Unknown(r"name LIKE 'a\%b%'")))


@pytest.mark.parametrize("word", ["ILIKE", "SIMILAR TO", "RLIKE", "REGEXP"])
def test_other_patterns_are_unknown_with_not_too(word):
    text = f"name NOT {word} 'a.*'"
    assert parse(text) == Not(Unknown(text))


def test_texts_and_names_are_unquoted():
    assert parse("name = 'it''s'") == Compare(NAME, "=", "it's")
    assert parse('"Mixed Case" = 1') == Compare(("Mixed Case",), "=", 1)
    assert parse("`Mixed Case` = 1") == Compare(("Mixed Case",), "=", 1)
    assert parse("raw = X'00ff'") == Compare(("raw",), "=", b"\x00\xff")


def test_unquoted_names_match_without_case_and_quoted_ones_exactly():
    assert parse("ID = 1") == Compare(ID, "=", 1)
    assert parse("upper = 1") == Compare(("Upper",), "=", 1)
    with pytest.raises(PredicateError, match="no column 'ID'"):
        parse('"ID" = 1')


def test_nested_names():
    assert parse("s.a > 1") == Compare(("s", "a"), ">", 1)
    assert parse("s.\"in\".b = 'x'") == Compare(("s", "in", "b"), "=", "x")
    assert parse("s['a'] > 1") == Compare(("s", "a"), ">", 1)
    assert parse("dotted.name = 1") == Compare(("dotted.name",), "=", 1)
    assert parse('"dotted.name" = 1') == Compare(("dotted.name",), "=", 1)


def test_typed_literals():
    assert parse("d = DATE '2024-01-02'") == Compare(D, "=", date(2024, 1, 2))
    assert parse("d = '2024-01-02'") == Compare(D, "=", date(2024, 1, 2))
    assert parse("d >= TIMESTAMP '2024-01-02 00:00:00'") == Compare(D, ">=", date(2024, 1, 2))
    at = datetime(2024, 1, 2, 3, 4, 5, 600_000, UTC)
    assert parse("ts > TIMESTAMP '2024-01-02 03:04:05.6'") == Compare(("ts",), ">", at)
    assert parse("ts > '2024-01-02T05:04:05.600+02:00'") == Compare(("ts",), ">", at)
    assert parse("ntz > '2024-01-02T03:04:05.6'") == Compare(("ntz",), ">", at.replace(tzinfo=None))
    assert parse("ts = DATE '2024-01-02'") == Compare(("ts",), "=", datetime(2024, 1, 2, tzinfo=UTC))
    assert parse("price = 1.50") == Compare(("price",), "=", Decimal("1.50"))
    assert parse("f < -1.5e3") == Compare(("f",), "<", -1500.0)
    assert parse("id = CAST('5' AS BIGINT)") == Compare(ID, "=", 5)
    assert parse("id = '5'::bigint") == Compare(ID, "=", 5)
    assert parse("d = '2024-01-02'::date") == Compare(D, "=", date(2024, 1, 2))
    assert parse("price = CAST('1.5' AS DECIMAL(10,2))") == Compare(("price",), "=", Decimal("1.5"))
    assert parse("id = -9223372036854775808") == Compare(ID, "=", -(2**63))


def test_booleans_stand_alone():
    assert parse("flag") == Compare(("flag",), "=", True)
    assert parse("NOT flag AND id = 1") == And((Not(Compare(("flag",), "=", True)), Compare(ID, "=", 1)))
    assert parse("TRUE") == TRUE
    assert parse("1 = 1") == TRUE
    assert parse("1 = 2") == FALSE
    assert parse("NULL") == NULL


@pytest.mark.parametrize(
    "text",
    [
        "upper(name) = 'X'",
        "id + 1 > 5",
        "id > i",
        "id = '5'",
        "name = 5",
        "flag = 1",
        "d = '2024-1-5'",
        "d = TIMESTAMP '2024-01-02 03:00:00'",
        "ts > '2024-01-02T03:04:05.1234567'",
        "ntz > '2024-01-02T03:04:05Z'",
        "name ILIKE 'a%'",
        "name ~ 'a.*'",
        "name RLIKE 'a.*'",
        "name || 'x' = 'ax'",
        "CASE WHEN id = 1 THEN TRUE ELSE FALSE END",
        "ts > now() - INTERVAL '1 day'",
        "CAST(id AS VARCHAR) = '5'",
        "price = CAST('1.005' AS DECIMAL(10,2))",
        "name = CAST('abcdef' AS VARCHAR(3))",
        "list = 5",
        "s = 5",
        "id IN (1, i)",
        "id IN (SELECT id FROM other)",
        "-id > 5",
        "coalesce(flag, id = 3, (1))",
    ],
)
def test_what_is_not_understood_is_unknown_for_that_condition_alone(text):
    assert normalize(parse(text)) == Unknown(text)
    assert parse(f"id = 1 AND {text}").operands[0] == Compare(ID, "=", 1)
    assert isinstance(parse(f"id = 1 AND {text}").operands[1], Unknown)


def test_a_fraction_against_integers_becomes_the_neighbouring_integers():
    assert parse("id > 1.5") == Compare(ID, ">=", 2)
    assert parse("id <= -1.5") == Compare(ID, "<=", -2)
    assert parse("id = 2.0") == Compare(ID, "=", 2)
    assert parse("id = 1.5") == And((Compare(ID, ">", 1), Compare(ID, "<", 2)))
    assert normalize(parse("NOT id = 1.5")) == Or((Compare(ID, "<=", 1), Compare(ID, ">=", 2)))


def test_numbers_that_a_double_may_round_widen_the_range_and_stay_to_be_rechecked():
    low, high, rest = parse("id = 9223372036854775807.0").operands
    assert low.value < 2**63 - 1024 < 2**63 + 1024 < high.value
    assert isinstance(rest, Unknown)
    low, high, rest = parse("big = 1.5").operands
    assert Decimal("1.4999") < low.value < Decimal("1.5") < high.value < Decimal("1.5001")
    assert isinstance(rest, Unknown)
    assert isinstance(normalize(parse("NOT big < 1.5")), Or)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("id =", 4),
        ("id = 'x", 5),
        ("id = 1 AND", 10),
        ("nope = 1", 0),
        ("id = 1 AND nope.x = 1", 11),
        ("(id = 1", 7),
        ("id = 1)", 6),
        ("id ; 1", 3),
        ("id", 0),
        ("5", 0),
        ("id = 1 id = 2", 7),
        ("id IS 5", 6),
        ("id NOT 5", 7),
        ("d = DATE 'tomorrow'", 9),
        ("raw = X'0g'", 6),
        ("lower(name = 'x'", 16),
    ],
)
def test_what_is_no_predicate_is_refused_with_its_position(text, position):
    with pytest.raises(PredicateError) as caught:
        parse(text)
    assert caught.value.context["position"] == position
    assert caught.value.suggestion


def test_a_text_in_double_quotes_is_explained():
    with pytest.raises(PredicateError) as caught:
        parse('name = "foo"')
    assert "single quotes" in caught.value.suggestion


def test_deep_nesting_is_refused_or_read_but_never_crashes():
    assert parse("(" * 40 + "id = 1" + ")" * 40) == Compare(ID, "=", 1)
    with pytest.raises(PredicateError, match="nested too deeply"):
        parse("(" * 20_000 + "id = 1" + ")" * 20_000)


def test_comments_and_line_breaks_are_space():
    assert parse("id -- a comment\n = /* here */ 5") == Compare(ID, "=", 5)


def test_literals_that_pick_files_are_read_in_the_type_of_their_column() -> None:
    schema = StructType((_field("s", "string"), _field("i", "integer")))
    for text, wanted in (
        ("s = 2020", Compare(("s",), "=", "2020")),
        ("s > 1.50", Compare(("s",), ">", "1.50")),
        ("s = TRUE", Compare(("s",), "=", "true")),
        ("i >= '10'", Compare(("i",), ">=", 10)),
        ("3 < s", Compare(("s",), ">", "3")),
        ("s IN (1, 2)", In(("s",), ("1", "2"))),
    ):
        assert parse_predicate(text, schema, files_only=True) == wanted
        assert not isinstance(parse_predicate(text, schema), Compare | In), "an engine may cast the column"
    assert isinstance(parse_predicate("i > 'x'", schema, files_only=True), Unknown)


@pytest.mark.parametrize(
    "text",
    [
        "id = CAST(300 AS TINYINT)",
        "id = TRY_CAST(40000 AS SMALLINT)",
        "id = 3000000000::INT",
        "id = CAST('9223372036854775808' AS BIGINT)",
        "price = CAST(100 AS DECIMAL(3,1))",
        "price IN (1, '1')",
        "price NOT IN (1, 'a')",
        "id = 1e999999999",
        "id = 1e-999999999",
        "id = 1e99999999999999999999",
        f"id = 1.{'0' * 500}",
    ],
)
def test_what_engines_read_differently_or_nobody_can_reckon_with_is_unknown(text):
    found = parse(text)
    assert found == (Not(Unknown(text)) if "NOT" in text else Unknown(text))


def test_casts_of_values_that_fit_are_read():
    assert parse("id = CAST(-128 AS TINYINT)") == Compare(ID, "=", -128)
    assert parse("price = TRY_CAST('99.9' AS DECIMAL(3,1))") == Compare(("price",), "=", Decimal("99.9"))


def test_a_number_of_any_length_is_read():
    assert normalize(parse(f"id < {'9' * 5000}")) == Unknown(f"id < {'9' * 5000}")


def test_times_in_lists_of_texts_are_not_told_apart_by_a_negation():
    found = normalize(parse("ts NOT IN ('2024-01-01T00:00:00')"))
    assert isinstance(found, Or)
    assert any(isinstance(operand, Unknown) for operand in found.operands)


_TEXT_TYPES = {
    "id": "long",
    "name": "string",
    "day": "date",
    "flag": "boolean",
    "price": "decimal(10,2)",
    "odd name": "integer",
}
TEXT_SCHEMA = parse_schema(
    json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in _TEXT_TYPES.items()
            ],
        }
    )
)


@pytest.mark.parametrize(
    "text",
    [
        "id >= 5",
        "name = 'it''s'",
        "id IN (1, 2)",
        "day < '2024-01-02'",
        "flag = TRUE",
        "price != 1.50",
        "name IS NULL",
        "name IS NOT NULL AND id <=> 3",
        "(id > 1 AND id < 3) OR name = 'x'",
        "`odd name` = 1",
        "name LIKE 'ab%'",
    ],
)
def test_a_predicate_reads_as_it_was_written(text: str) -> None:
    parsed = parse_predicate(text, TEXT_SCHEMA)
    assert predicate_text(parsed) == text
    assert normalize(parse_predicate(predicate_text(parsed), TEXT_SCHEMA)) == normalize(parsed)


def test_long_lists_are_cut_and_odd_parts_shown() -> None:
    assert predicate_text(In(("id",), tuple(range(100)))) == "id IN (0, 1, 2, 3, 4, …)"
    assert predicate_text(Constant(None)) == "NULL"
    assert predicate_text(Unknown("f(id) = 1")) == "f(id) = 1"
    assert predicate_text(parse_predicate("NOT (id = 1 AND name = 'x')", TEXT_SCHEMA)) == (
        "NOT (id = 1 AND name = 'x')"
    )
