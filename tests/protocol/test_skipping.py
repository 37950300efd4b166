"""The exact recheck: what statistics can rule out, and the traps where they must not."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from deltalakedb.protocol.predicate import And, Compare, Constant, In, IsNull, Not, Or, StartsWith, Unknown
from deltalakedb.protocol.schema import PrimitiveType
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.stats import parse_stats

KINDS = {
    "n": "long",
    "f": "double",
    "g": "float",
    "m": "decimal(10,2)",
    "w": "decimal(38,10)",
    "t": "string",
    "d": "date",
    "z": "timestamp",
    "b": "boolean",
    "p": "date",
    "q": "string",
    "x": "double",
}
TYPES = {(name,): PrimitiveType(kind) for name, kind in KINDS.items()}


def keeps(expr, low=None, high=None, *, column="n", nulls=0, records=10, parts=None, **more) -> bool:
    stats = {"numRecords": records, "nullCount": {column: nulls}, "minValues": {}, "maxValues": {}, **more}
    if low is not None:
        stats["minValues"][column] = low
    if high is not None:
        stats["maxValues"][column] = high
    return FileFilter(expr, TYPES).may_match(parse_stats(json.dumps(stats)), parts or {})


def compare(op, value, column="n"):
    return Compare((column,), op, value)


def test_comparisons_are_judged_by_the_bounds():
    kept = {"=": (1, 5), "<": (2, 6), "<=": (1, 6), ">": (0, 4), ">=": (0, 5)}
    lost = {"=": (0, 6), "<": (0, 1), "<=": (0, 0), ">": (5, 6), ">=": (6, 7)}
    for op, values in kept.items():
        assert all(keeps(compare(op, v), 1, 5) for v in values), op
    for op, values in lost.items():
        assert not any(keeps(compare(op, v), 1, 5) for v in values), op


def test_inequality_is_ruled_out_only_by_a_single_value():
    assert not keeps(compare("!=", 3), 3, 3)
    assert keeps(compare("!=", 3), 3, 4)
    assert keeps(compare("!=", 3), 3, None)
    assert not keeps(compare("!=", "a", "t"), "a", "a", column="t")


def test_missing_statistics_rule_nothing_out():
    for expr in (compare("=", 3), IsNull(("n",)), Not(IsNull(("n",))), compare(">", 3)):
        assert FileFilter(expr, TYPES).may_match(None, {})
        assert FileFilter(expr, TYPES).may_match(parse_stats("{}"), {})
    assert keeps(compare(">", 9), 1, None)
    assert not keeps(compare("<", 1), 1, None)


def test_nulls_are_counted():
    assert not keeps(IsNull(("n",)), 1, 5, nulls=0)
    assert keeps(IsNull(("n",)), 1, 5, nulls=1)
    assert keeps(IsNull(("n",)), 1, 5, nulls=None)
    assert not keeps(Not(IsNull(("n",))), nulls=10)
    assert keeps(Not(IsNull(("n",))), nulls=9)
    assert not keeps(compare("=", 3), nulls=10)
    assert keeps(compare("=", 3), nulls=10, records=None)


def test_logic_is_judged_part_by_part():
    inside, outside, unknown = compare("=", 3), compare("=", 9), Unknown("f(n)")
    assert not keeps(And((inside, outside)), 1, 5)
    assert not keeps(And((unknown, outside)), 1, 5)
    assert keeps(Or((inside, outside)), 1, 5)
    assert keeps(Or((unknown, outside)), 1, 5)
    assert not keeps(Or((outside, Constant(None))), 1, 5)
    assert not keeps(Not(compare("<=", 5)), 1, 5)
    assert keeps(Not(unknown), 1, 5)
    assert not keeps(In(("n",), (0, 9)), 1, 5)
    assert keeps(In(("n",), (0, 9, 2)), 1, 5)


def test_nan_may_hide_above_the_maximum():
    for op in (">", ">=", "!="):
        assert keeps(compare(op, 9.0, "f"), 1.0, 5.0, column="f")
    assert keeps(compare("!=", 5.0, "f"), 5.0, 5.0, column="f")
    assert not keeps(compare("=", 9.0, "f"), 1.0, 5.0, column="f")
    assert not keeps(compare("<", 0.5, "f"), 1.0, 5.0, column="f")
    for op in ("=", "<", "<=", ">", ">="):
        assert keeps(compare(op, math.nan, "f"), 1.0, 5.0, column="f")
    assert keeps(In(("f",), (math.nan, 9.0)), 1.0, 5.0, column="f")


def test_an_upper_limit_beside_it_rules_nan_out():
    assert not keeps(And((compare(">", 9.0, "f"), compare("<", 12.0, "f"))), 1.0, 5.0, column="f")
    assert keeps(And((compare(">", 9.0, "f"), compare("<", math.nan, "f"))), 1.0, 5.0, column="f")
    assert keeps(Or((compare(">", 9.0, "f"), compare("<", 0.0, "f"))), 1.0, 5.0, column="f")


def test_a_negated_comparison_of_floats_keeps_nan():
    assert keeps(Not(compare(">=", 0.5, "f")), 1.0, 5.0, column="f")


def test_the_two_zeros_are_equal_or_ordered():
    for op in ("<", "<=", "="):
        assert keeps(compare(op, 0.0, "f"), -0.0, -0.0, column="f")
        assert keeps(compare(op, -0.0, "f"), 0.0, 0.0, column="f")


def test_a_32_bit_float_in_short_spelling_is_met_by_both_readings():
    for value in (0.1, 0.7):
        single = struct.unpack("<f", struct.pack("<f", value))[0]
        for column in ("g", "f"):
            assert keeps(compare("=", single, column), value, value, column=column)
            assert keeps(compare("=", value, column), single, single, column=column)
    assert not keeps(compare("=", 0.2, "g"), 0.1, 0.1, column="g")


def test_a_maximum_cut_to_32_characters_may_go_on():
    cut = "x" * 32
    assert keeps(compare("=", cut + "yyy", "t"), "a", cut, column="t")
    assert keeps(compare(">", cut, "t"), "a", cut, column="t")
    assert keeps(StartsWith(("t",), cut + "y"), "a", cut, column="t")
    assert not keeps(compare("=", "y", "t"), "a", cut, column="t")
    assert keeps(compare("=", "x" * 32 + "é", "t"), "a", cut + "\x7f", column="t")
    wide = "é" * 15 + "a"  # 31 bytes: cut at a character's border
    assert keeps(compare("=", wide + "é", "t"), "a", wide, column="t")
    assert not keeps(compare("=", "abcd", "t"), "a", "abc", column="t")


def test_texts_compare_by_their_bytes():
    assert keeps(compare("=", "\uffff", "t"), "a", "\U0001f600", column="t")
    assert not keeps(compare("=", "\U0001f600", "t"), "a", "\uffff", column="t")
    assert keeps(compare(">", "a", "t"), "a", "a\0", column="t")


def test_prefixes():
    assert keeps(StartsWith(("t",), "ab"), "aa", "ac", column="t")
    assert keeps(StartsWith(("t",), "ab"), "abz", "b", column="t")
    assert not keeps(StartsWith(("t",), "ab"), "ac", "b", column="t")
    assert not keeps(StartsWith(("t",), "ab"), "a", "aa", column="t")
    assert not keeps(Not(StartsWith(("t",), "ab")), "aba", "abz", column="t")
    assert keeps(Not(StartsWith(("t",), "ab")), "aba", "ac", column="t")
    assert keeps(Not(StartsWith(("t",), "ab")), "aba", None, column="t")


def test_a_timestamp_cut_to_milliseconds_may_be_later():
    at = datetime(2024, 1, 1, 0, 0, 0, 1500, UTC)
    assert keeps(compare("=", at, "z"), "2024-01-01T00:00:00.001Z", "2024-01-01T00:00:00.001Z", column="z")
    assert not keeps(
        compare("=", at, "z"), "2024-01-01T00:00:00.001001Z", "2024-01-01T00:00:00.001001Z", column="z"
    )
    old = datetime(1960, 1, 1, 0, 0, 0, 500, UTC)
    assert keeps(compare("=", old, "z"), "1960-01-01T00:00:00.001Z", "1960-01-01T00:00:00.001Z", column="z")


def test_a_long_decimal_written_as_a_double_is_widened():
    exact = Decimal("1234567890123456789.0123456789")
    assert keeps(compare("=", exact, "w"), float(exact), float(exact), column="w")
    assert keeps(compare("=", Decimal("1.25"), "m"), 1.25, 1.25, column="m")
    assert not keeps(compare("=", Decimal("1.26"), "m"), 1.25, 1.25, column="m")


def test_partition_values_are_judged_exactly():
    day = Compare(("p",), "=", date(2024, 1, 1))
    assert keeps(day, parts={"p": "2024-01-01"})
    assert not keeps(day, parts={"p": "2024-01-02"})
    assert not keeps(day, parts={"p": None})
    assert keeps(IsNull(("p",)), parts={"p": ""})
    assert not keeps(IsNull(("p",)), parts={"p": "2024-01-01"})
    assert not keeps(Not(IsNull(("p",))), parts={"p": None})
    assert keeps(day, parts={"p": "some day"})
    assert not keeps(Compare(("q",), "!=", "a"), parts={"q": "a"})
    assert keeps(Compare(("x",), "=", 1.0), parts={"x": "NaN"})


def test_wide_bounds_still_rule_out():
    assert not keeps(compare("=", 9), 1, 5, tightBounds=False)


def test_columns_and_literals_that_nobody_knows_rule_nothing_out():
    assert keeps(Compare(("other",), "=", 3), 1, 5)
    assert keeps(compare("=", "text"), 1, 5)
    assert keeps(
        Compare(("z",), "<", datetime(1900, 1, 1)), "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z", column="z"
    )
    assert keeps(IsNull(("a", "b")), 1, 5)


@pytest.mark.parametrize("value", [True, False])
def test_booleans_have_an_order(value):
    assert keeps(compare("=", value, "b"), False, True, column="b")
    assert keeps(compare("=", value, "b"), value, value, column="b")
    assert not keeps(compare("=", value, "b"), not value, not value, column="b")
