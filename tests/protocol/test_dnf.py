"""Filters in disjunctive normal form."""

from __future__ import annotations

from datetime import date

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
    Unknown,
    normalize,
)
from deltalakedb.protocol.predicate_parser import from_dnf
from deltalakedb.protocol.schema import PrimitiveType, StructField, StructType


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
