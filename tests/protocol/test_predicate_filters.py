"""Filters from Python: disjunctive normal form and pyarrow expressions."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deltalakedb.exceptions import PredicateError
from deltalakedb.protocol.predicate import (
    FALSE,
    TRUE,
    And,
    Compare,
    In,
    IsNull,
    Not,
    Or,
    StartsWith,
    Unknown,
    normalize,
)
from deltalakedb.protocol.predicate_filters import from_arrow_expression, from_dnf
from deltalakedb.protocol.schema import PrimitiveType, StructField, StructType
from deltalakedb.protocol.substrait import read_expression


def _field(name: str, kind: str) -> StructField:
    return StructField(name, PrimitiveType(kind))


SCHEMA = StructType(
    (
        _field("id", "long"),
        _field("i", "integer"),
        _field("name", "string"),
        _field("day", "date"),
        _field("ts", "timestamp"),
        _field("ntz", "timestamp_ntz"),
        _field("f", "float"),
        _field("y", "double"),
        _field("price", "decimal(10,2)"),
        _field("flag", "boolean"),
        _field("raw", "binary"),
        StructField(
            "s", StructType((_field("u", "integer"), StructField("v", StructType((_field("w", "string"),)))))
        ),
    )
)
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int32()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("f", pa.float32()),
        ("y", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("s", pa.struct([("u", pa.int32()), ("v", pa.struct([("w", pa.string())]))])),
    ]
)
ID, NAME = ("id",), ("name",)


def test_a_list_of_conditions_is_a_conjunction():
    assert from_dnf([("id", ">", 5), ("name", "==", "x")], SCHEMA) == And(
        (Compare(ID, ">", 5), Compare(NAME, "=", "x"))
    )


def test_a_list_of_lists_is_a_disjunction():
    assert from_dnf([[("id", ">", 5), ("i", "=", 1)], [("id", "!=", 7)]], SCHEMA) == Or(
        (And((Compare(ID, ">", 5), Compare(("i",), "=", 1))), Compare(ID, "!=", 7))
    )


def test_no_filters_keep_everything():
    assert from_dnf(None, SCHEMA) == TRUE
    assert from_dnf([], SCHEMA) == TRUE


def test_texts_stand_for_partition_values_of_other_types():
    assert from_dnf([("day", ">=", "2024-01-02")], SCHEMA) == Compare(("day",), ">=", date(2024, 1, 2))
    assert from_dnf([("id", "=", "7")], SCHEMA) == Compare(ID, "=", 7)
    assert from_dnf([("flag", "=", "true")], SCHEMA) == Compare(("flag",), "=", True)
    assert isinstance(from_dnf([("id", "=", "seven")], SCHEMA), Unknown)


def test_none_and_an_empty_text_mean_null():
    assert from_dnf([("id", "=", None)], SCHEMA) == IsNull(ID)
    assert from_dnf([("id", "!=", None)], SCHEMA) == Not(IsNull(ID))
    assert from_dnf([("name", "=", "")], SCHEMA) == Or((IsNull(NAME), Compare(NAME, "=", "")))
    assert from_dnf([("name", "!=", "")], SCHEMA) == Not(IsNull(NAME))


def test_lists_of_values():
    assert normalize(from_dnf([("id", "in", [1, 2])], SCHEMA)) == In(ID, (1, 2))
    assert normalize(from_dnf([("id", "in", {1, None})], SCHEMA)) in (
        Or((IsNull(ID), Compare(ID, "=", 1))),
        Or((Compare(ID, "=", 1), IsNull(ID))),
    )
    assert from_dnf([("id", "in", [])], SCHEMA) == FALSE


def test_not_in_keeps_nulls_as_pyarrow_does():
    assert normalize(from_dnf([("id", "not in", (1, 2))], SCHEMA)) == Or(
        (And((Compare(ID, "!=", 1), Compare(ID, "!=", 2))), IsNull(ID))
    )


def test_nested_columns_are_named_with_dots():
    assert from_dnf([("s.v.w", "=", "x")], SCHEMA) == Compare(("s", "v", "w"), "=", "x")


@pytest.mark.parametrize(
    "filters",
    [
        "id > 5",
        5,
        [("id", ">")],
        [("id", "~", 5)],
        [("id", "in", 5)],
        [("id", "in", "abc")],
        [("nope", "=", 1)],
        [(1, "=", 1)],
        [("s.nope", "=", 1)],
    ],
)
def test_what_is_no_filter_is_refused_with_a_suggestion(filters):
    with pytest.raises(PredicateError) as caught:
        from_dnf(filters, SCHEMA)
    assert caught.value.suggestion


def arrow(expr):
    return from_arrow_expression(expr, ARROW, SCHEMA)


f = pc.field


def test_arrow_comparisons_of_every_type():
    noon = datetime(2024, 1, 2, 12, 0, 0, 5)
    assert arrow(f("id") > 5) == Compare(ID, ">", 5)
    assert arrow(f("i") == -5) == Compare(("i",), "=", -5)
    assert arrow(f("name") != "x") == Compare(NAME, "!=", "x")
    assert arrow(f("day") <= date(1969, 1, 2)) == Compare(("day",), "<=", date(1969, 1, 2))
    assert arrow(f("ts") > noon.replace(tzinfo=UTC)) == Compare(("ts",), ">", noon.replace(tzinfo=UTC))
    assert arrow(f("ntz") >= noon) == Compare(("ntz",), ">=", noon)
    assert arrow(f("y") < 0.1) == Compare(("y",), "<", 0.1)
    assert arrow(f("f") < 0.1) == Compare(("f",), "<", 0.1)
    assert arrow(f("price") == Decimal("-1.50")) == Compare(("price",), "=", Decimal("-1.50"))
    assert arrow(f("raw") == b"\x00\xff") == Compare(("raw",), "=", b"\x00\xff")
    assert arrow(f("s", "v", "w") == "q") == Compare(("s", "v", "w"), "=", "q")
    assert arrow(pc.scalar(5) < f("id")) == Compare(ID, ">", 5)


def test_arrow_logic():
    assert arrow((f("id") > 1) & (f("id") <= 2) | ~f("flag")) == Or(
        (And((Compare(ID, ">", 1), Compare(ID, "<=", 2))), Not(Compare(("flag",), "=", True)))
    )
    assert arrow(f("id").is_null()) == IsNull(ID)
    assert arrow(f("id").is_valid()) == Not(IsNull(ID))
    assert arrow(pc.scalar(True)) == TRUE
    assert arrow(pc.starts_with(f("name"), "ab")) == StartsWith(NAME, "ab")


def test_arrow_membership_is_never_null():
    assert normalize(arrow(f("id").isin([1, 2]))) == And((In(ID, (1, 2)), Not(IsNull(ID))))
    assert normalize(arrow(~f("id").isin([1, 2]))) == Or(
        (And((Compare(ID, "!=", 1), Compare(ID, "!=", 2))), IsNull(ID))
    )
    kept = normalize(arrow(f("id").isin([1, None])))
    assert IsNull(ID) in kept.operands[1].operands


@pytest.mark.parametrize(
    "expr",
    [
        f("id") + 1 > 5,
        f("id") > f("i").cast(pa.int64()),
        pc.match_like(f("name"), "a%"),
        pc.starts_with(f("name"), "a", ignore_case=True),
        f("y").is_nan(),
        f("id").cast(pa.string()) == "5",
        pc.if_else(f("id") > 1, True, False),
    ],
)
def test_what_arrow_cannot_say_in_substrait_is_unknown(expr):
    assert isinstance(normalize(arrow(expr)), Unknown)


def test_a_column_that_the_table_does_not_have_is_unknown():
    other = pa.schema([("elsewhere", pa.int64())])
    assert isinstance(from_arrow_expression(f("elsewhere") > 5, other, SCHEMA), Unknown)
    assert isinstance(from_arrow_expression(f("nope") > 5, ARROW, SCHEMA), Unknown)


def test_damaged_bytes_are_refused_not_misread():
    good = bytes((f("id") > 5).to_substrait(ARROW))
    for cut in range(1, len(good) - 1, 7):
        try:
            read_expression(good[:cut])
        except (ValueError, UnicodeDecodeError):
            continue
