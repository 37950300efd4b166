"""Predicates as values: the normal form and its three-valued logic."""

from __future__ import annotations

import itertools

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
    conjunction,
    disjunction,
    normalize,
    referenced_columns,
    to_physical,
)
from deltalakedb.protocol.schema import PrimitiveType, StructField, StructType

X, Y = ("x",), ("y",)


def test_not_of_a_comparison_is_its_complement():
    for op, other in (("=", "!="), ("<", ">="), ("<=", ">"), (">", "<="), (">=", "<"), ("!=", "=")):
        assert normalize(Not(Compare(X, op, 5))) == Compare(X, other, 5)


def test_not_is_pushed_through_and_and_or():
    expr = Not(And((Compare(X, "<", 1), Or((IsNull(Y), Compare(Y, "=", 2))))))
    assert normalize(expr) == Or((Compare(X, ">=", 1), And((Not(IsNull(Y)), Compare(Y, "!=", 2)))))


def test_a_comparison_with_null_is_never_true_in_either_direction():
    assert normalize(Compare(X, "=", None)) == FALSE
    assert normalize(Not(Compare(X, "=", None))) == FALSE
    assert normalize(Not(NULL)) == FALSE


def test_null_safe_equality_keeps_null_rows_when_negated():
    assert normalize(Compare(X, "<=>", None)) == IsNull(X)
    assert normalize(Not(Compare(X, "<=>", None))) == Not(IsNull(X))
    assert normalize(Compare(X, "<=>", 3)) == Compare(X, "=", 3)
    assert normalize(Not(Compare(X, "<=>", 3))) == Or((Compare(X, "!=", 3), IsNull(X)))


def test_not_in_with_a_null_in_the_list_is_never_true():
    with_null = Or((In(X, (1, 2)), NULL))
    assert normalize(with_null) == In(X, (1, 2))
    assert normalize(Not(with_null)) == FALSE
    assert normalize(Not(In(X, (1, 2)))) == And((Compare(X, "!=", 1), Compare(X, "!=", 2)))


def test_an_unknown_part_stays_unknown_under_not():
    assert isinstance(normalize(Not(Unknown("f(x)"))), Unknown)
    found = normalize(Not(And((Compare(X, "=", 1), Unknown("f(x)")))))
    assert isinstance(found, Or)
    assert any(isinstance(o, Unknown) for o in found.operands)


def test_a_negated_greater_than_on_floats_is_not_judged_because_of_nan():
    assert isinstance(normalize(Not(Compare(X, ">", 1.5))), Unknown)
    assert isinstance(normalize(Not(Compare(X, ">=", 1.5))), Unknown)
    assert normalize(Not(Compare(X, "<", 1.5))) == Compare(X, ">=", 1.5)


def test_constants_fold():
    assert normalize(And((TRUE, Compare(X, "=", 1)))) == Compare(X, "=", 1)
    assert normalize(And((NULL, Compare(X, "=", 1)))) == FALSE
    assert normalize(Or((TRUE, Compare(X, "=", 1)))) == TRUE
    assert normalize(Or((FALSE, Compare(X, "=", 1)))) == Compare(X, "=", 1)
    assert normalize(In(X, ())) == FALSE
    assert conjunction([]) == TRUE
    assert disjunction([]) == FALSE


def test_referenced_columns_are_found_everywhere():
    expr = And((Compare(X, "=", 1), Not(Or((IsNull(Y), StartsWith(("a", "b"), "q"), Unknown("z"))))))
    assert referenced_columns(expr) == {X, Y, ("a", "b")}


def test_columns_are_mapped_to_their_physical_names():
    inner = StructType((StructField("b", PrimitiveType("long"), metadata=_physical("c-2")),))
    schema = StructType((StructField("a", inner, metadata=_physical("c-1")),))
    expr = Not(And((Compare(("a", "b"), ">", 3), IsNull(("a",)))))
    assert to_physical(expr, schema) == Not(And((Compare(("c-1", "c-2"), ">", 3), IsNull(("c-1",)))))
    with pytest.raises(PredicateError, match=r"no column 'a\.q'"):
        to_physical(IsNull(("a", "q")), schema)


def _physical(name: str) -> dict[str, str]:
    return {"delta.columnMapping.physicalName": name}


def test_the_normal_form_is_true_for_exactly_the_same_rows():
    leaves = [
        Compare(X, "=", 1),
        Compare(X, "<", 1),
        Compare(X, "<=>", 1),
        Compare(X, ">=", None),
        In(X, (0, 1)),
        Or((In(X, (0, 1)), NULL)),
        IsNull(X),
        NULL,
        TRUE,
    ]
    for a, b, c in itertools.product(leaves, repeat=3):
        for expr in (
            Not(And((a, Not(Or((b, c)))))),
            Or((Not(a), And((Not(b), c)))),
            Not(Not(Or((a, Not(b))))),
        ):
            for x in (None, 0, 1, 2):
                assert (_truth(normalize(expr), x) is True) == (_truth(expr, x) is True), (expr, x)


def _truth(expr, x):
    match expr:
        case Constant(value):
            return value
        case IsNull():
            return x is None
        case Not(inner):
            value = _truth(inner, x)
            return None if value is None else not value
        case And(operands):
            values = [_truth(o, x) for o in operands]
            return False if False in values else None if None in values else True
        case Or(operands):
            values = [_truth(o, x) for o in operands]
            return True if True in values else None if None in values else False
        case In(_, values):
            return None if x is None else x in values
        case Compare(_, "<=>", value):
            return x == value
        case Compare(_, op, value):
            if x is None or value is None:
                return None
            return {
                "=": x == value,
                "!=": x != value,
                "<": x < value,
                "<=": x <= value,
                ">": x > value,
                ">=": x >= value,
            }[op]
