"""File statistics: exact numbers, typed bounds that never exclude a row."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.delta_log.checkpoint_writer import CheckpointContent
from deltalakedb.models import Metadata, Protocol
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.stats import (
    Bounds,
    FileStats,
    column_names,
    parse_stats,
    stats_leaves,
)
from deltalakedb.protocol.txn_log import Snapshot
from deltalakedb.table.read.scan import arrow_schema
from deltalakedb.table.write.parquet import plan_append


def stats_of(name: str, low: object, high: object | None = None) -> FileStats:
    literal = [
        json.dumps(v) if not isinstance(v, Decimal) else str(v) for v in (low, low if high is None else high)
    ]
    stats = parse_stats(
        f'{{"numRecords":3,"minValues":{{"{name}":{literal[0]}}},"maxValues":{{"{name}":{literal[1]}}},'
        f'"nullCount":{{"{name}":1}}}}'
    )
    assert stats is not None
    return stats


def test_all_parts_are_read() -> None:
    stats = parse_stats(
        '{"numRecords":7,"minValues":{"a":1,"s":{"b":"x"}},"maxValues":{"a":9,"s":{"b":"y"}},'
        '"nullCount":{"a":0,"s":{"b":2}},"tightBounds":false,"new":[1.10]}'
    )
    assert stats is not None
    assert (stats.num_records, stats.tight_bounds, stats.extra) == (7, False, {"new": [1.1]})
    assert stats.bounds(["a"], "long") == Bounds(1, 9, 0)
    assert stats.bounds(["s", "b"], "string") == Bounds("x", "y", 2)
    assert stats.bounds(["s"], "string") == Bounds(None, None, None)
    assert stats.bounds(["a", "b"], "long") == Bounds(None, None, None)
    assert stats.bounds(["nothing"], "long") == Bounds(None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        '{"numRecords":7,"minValues":{"a":1.10},"maxValues":{"a":123456789012345678901234567890},"nullCount":{"a":0}}',
        '{"numRecords":0,"tightBounds":true,"other":{"x":null}}',
        "{}",
    ],
)
def test_what_was_read_is_written_as_it_was(text: str) -> None:
    stats = parse_stats(text)
    assert stats is not None
    assert encode_json(stats.to_dict()) == text


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none(),
        min_size=1,
        max_size=4,
    )
)
def test_values_survive_a_round_trip(values: dict[str, object]) -> None:
    stats = FileStats(num_records=1, min_values=values, max_values=values, null_count={"a": 1})
    assert parse_stats(encode_json(stats.to_dict())) == stats


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "nonsense", "[]", "7", "null", '{"numRecords":1', "\ud800", "[" * 100_000, b"\xff"],
)
def test_garbage_is_no_statistics(text: str | bytes | None) -> None:
    assert parse_stats(text) is None


@given(st.text(max_size=40))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    stats = parse_stats(text)
    assert stats is None or isinstance(stats, FileStats)


def test_parts_of_the_wrong_shape_are_left_out() -> None:
    stats = parse_stats('{"numRecords":-1,"minValues":[],"maxValues":7,"nullCount":{"a":-3},"tightBounds":1}')
    assert stats is not None
    assert (stats.num_records, stats.tight_bounds) == (None, None)
    assert stats.bounds(["a"], "long") == Bounds(None, None, None)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("integer", 7, 7),
        ("boolean", True, True),
        ("string", "é", "é"),
        ("double", 1.5, 1.5),
        ("double", 2, 2.0),
        ("float", 3.4, 3.4000000953674316),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("timestamp", "2000-01-01T00:00:00.000-08:00", datetime(2000, 1, 1, 8, tzinfo=UTC)),
        ("timestamp_ntz", "2024-01-02 03:04:05.123456", datetime(2024, 1, 2, 3, 4, 5, 123456)),
        ("decimal(10,2)", Decimal("1.1"), Decimal("1.10")),
        ("decimal(10,2)", 5, Decimal("5.00")),
        ("decimal(30,0)", 10**29 + 1, Decimal(10**29 + 1)),
    ],
)
def test_values_have_the_columns_type(name: str, raw: object, value: object) -> None:
    found = stats_of("c", raw).bounds(["c"], name, widen=False)
    assert found == Bounds(value, value, 1)  # type: ignore[arg-type]
    assert type(found.min) is type(value)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("integer", "7"),
        ("integer", True),
        ("integer", 7.5),
        ("boolean", 1),
        ("string", 7),
        ("double", "1.5"),
        ("double", True),
        ("double", None),
        ("date", 7),
        ("date", "2024-99-01"),
        ("timestamp", "soon"),
        ("timestamp", 1704164645),
        ("decimal(10,2)", "x"),
        ("decimal(10,2)", [1]),
        ("binary", "x"),
        ("variant", "x"),
        ("no such type", 7),
    ],
)
def test_what_cannot_be_read_bounds_nothing(name: str, raw: object) -> None:
    assert stats_of("c", raw).bounds(["c"], name) == Bounds(None, None, 1)


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)))
def test_timestamps_cut_to_milliseconds_still_enclose_the_moment(moment: datetime) -> None:
    cut = moment - timedelta(microseconds=moment.microsecond % 1000)
    bounds = stats_of("c", cut.isoformat(" ", "milliseconds")).bounds(["c"], "timestamp_ntz")
    assert isinstance(bounds.min, datetime)
    assert isinstance(bounds.max, datetime)
    assert bounds.min <= moment <= bounds.max


@given(st.decimals(Decimal(-(10**27)), Decimal(10**27), places=10))
def test_decimals_written_as_doubles_still_enclose_the_number(number: Decimal) -> None:
    bounds = stats_of("c", float(number)).bounds(["c"], "decimal(38,10)")
    assert isinstance(bounds.min, Decimal)
    assert isinstance(bounds.max, Decimal)
    assert bounds.min <= number <= bounds.max


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_written_briefly_still_enclose_the_number(number: float) -> None:
    brief = Decimal(f"{number:.9g}")
    for name in ("float", "double"):
        bounds = stats_of("c", brief).bounds(["c"], name)
        assert isinstance(bounds.min, float)
        assert isinstance(bounds.max, float)
        assert bounds.min <= number <= bounds.max


def test_exact_decimals_stay_exact() -> None:
    exact = Decimal("1234567890123456789.1234567891")
    assert stats_of("c", exact).bounds(["c"], "decimal(38,10)") == Bounds(exact, exact, 1)


def test_a_decimal_clamped_to_64_bits_bounds_nothing() -> None:
    bounds = stats_of("c", -(2**63), 2**63 - 1).bounds(["c"], "decimal(38,0)")
    assert bounds == Bounds(None, None, 1)


def test_a_number_too_large_for_a_double_bounds_nothing_finite() -> None:
    low, high, _ = stats_of("c", Decimal("-1e400"), Decimal("1e400")).bounds(["c"], "double")
    assert (low, high) == (-math.inf, math.inf)
    assert stats_of("c", 10**400).bounds(["c"], "double").max is None


def test_a_decimal_finer_than_its_column_is_widened_to_the_scale() -> None:
    bounds = stats_of("c", Decimal("1.239")).bounds(["c"], "decimal(10,2)")
    assert bounds == Bounds(Decimal("1.23"), Decimal("1.24"), 1)


def _field(name: str, kind: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


_NESTED = json.dumps(
    {
        "type": "struct",
        "fields": [
            _field("P", "long"),
            _field("a", "long"),
            _field("s", {"type": "struct", "fields": [_field("X", "long"), _field("y.z", "long")]}),
            _field("l", {"type": "array", "elementType": "long", "containsNull": True}),
            _field("d", "double"),
        ],
    }
)


@pytest.mark.parametrize(
    ("properties", "wanted"),
    [
        ({}, ["a", "s.X", "s.y.z", "l", "d"]),
        ({"delta.dataSkippingNumIndexedCols": "0"}, []),
        ({"delta.dataSkippingNumIndexedCols": "2"}, ["a", "s.X"]),
        ({"delta.dataSkippingNumIndexedCols": "4"}, ["a", "s.X", "s.y.z", "l"]),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, ["a", "s.X", "s.y.z", "l", "d"]),
        ({"delta.dataSkippingNumIndexedCols": "many"}, ["a", "s.X", "s.y.z", "l", "d"]),
        ({"delta.dataSkippingStatsColumns": ""}, []),
        ({"delta.dataSkippingStatsColumns": "D, S"}, ["s.X", "s.y.z", "d"]),
        ({"delta.dataSkippingStatsColumns": "s.x , `d`"}, ["s.X", "d"]),
        ({"delta.dataSkippingStatsColumns": "s.`y.z`, p"}, ["s.y.z"]),
        (
            {"delta.dataSkippingStatsColumns": "d", "delta.dataSkippingNumIndexedCols": "1"},
            ["d"],
        ),
    ],
)
def test_checkpoints_and_writer_agree_on_the_columns_with_statistics(
    properties: dict[str, str], wanted: list[str]
) -> None:
    schema = parse_schema(_NESTED)
    assert [".".join(x.path) for x in stats_leaves(schema, ["P"], properties)] == wanted
    metadata = Metadata(
        id="t", schema_string=_NESTED, partition_columns=("P",), configuration=dict(properties)
    )
    protocol = Protocol(min_reader_version=1, min_writer_version=2)
    struct = {**properties, "delta.checkpoint.writeStatsAsStruct": "true"}
    shape = CheckpointContent(0, protocol, replace(metadata, configuration=struct), ()).schema
    assert [".".join(x.path) for x in shape.counted] == wanted
    ordered = [name for name in wanted if name != "l"]
    plan = plan_append(Snapshot(0, 0, protocol, metadata), arrow_schema(_NESTED))
    assert [".".join(leaf.path) for leaf in plan.table.leaves] == ordered


def test_column_lists_keep_what_backticks_hold() -> None:
    assert column_names("a, b.c ,`d.e`.f") == [("a",), ("b", "c"), ("d.e", "f")]
    assert column_names("` x y `.`a``b`,,q") == [(" x y ", "a`b"), ("q",)]
