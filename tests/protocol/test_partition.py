"""Partition values: every type there and back, one canonical text per value, Hive folders."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.partition import (
    HIVE_NULL,
    canonical,
    equal_key,
    parse,
    partition_path,
    serialize,
)
from deltalakedb.protocol.schema import PrimitiveType

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
values = st.one_of(
    *(
        st.tuples(st.just(name), st.integers(-(1 << bits - 1), (1 << bits - 1) - 1))
        for name, bits in {"byte": 8, "short": 16, "integer": 32, "long": 64}.items()
    ),
    st.tuples(st.just("double"), st.floats(allow_nan=False)),
    st.tuples(st.just("float"), st.floats(allow_nan=False, width=32)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("string"), text),
    st.tuples(st.just("binary"), st.binary(min_size=1)),
    st.tuples(st.just("date"), st.dates()),
    st.tuples(st.just("timestamp"), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just("timestamp_ntz"), st.datetimes()),
    st.tuples(st.just("decimal(38,18)"), st.decimals(-(10**19), 10**19, places=18)),
    st.tuples(st.just("decimal(5,2)"), st.decimals(Decimal("-999.99"), Decimal("999.99"), places=2)),
)


@given(values)
def test_every_value_survives_a_round_trip(case: tuple[str, object]) -> None:
    name, value = case
    written = serialize(value, name)
    assert written is not None
    assert parse(written, PrimitiveType(name)) == value
    one = canonical(written, name)
    assert canonical(one, name) == one
    assert parse(one, name) == value


@given(values, values)
def test_canonical_texts_are_equal_where_values_are(a: tuple[str, object], b: tuple[str, object]) -> None:
    if a[0] == b[0]:
        same = canonical(serialize(a[1], a[0]), a[0]) == canonical(serialize(b[1], b[0]), b[0])
        assert same == (a[1] == b[1])


@pytest.mark.parametrize(
    ("name", "texts", "form"),
    [
        ("long", ["7", "+7", "007", " 7 "], "7"),
        ("integer", ["-0", "0"], "0"),
        ("decimal(10,2)", ["1", "1.0", "1.00", "1E0", "+1.000"], "1.00"),
        ("decimal(10,0)", ["-0", "0.0"], "0"),
        ("double", ["1", "1.0", "1e0", "1.0E0"], "1"),
        ("double", ["-0.0", "0", "0e5"], "0"),
        ("double", ["Infinity", "inf", "+INF"], "inf"),
        ("double", ["-Infinity", "-inf"], "-inf"),
        ("double", ["NaN", "nan"], "NaN"),
        ("float", ["0.1", "0.10000000149011612", "0.1f0".replace("f", "0")], "0.1"),
        ("float", ["3.4028235e38", "3.4028234663852886E38"], "340282350000000000000000000000000000000"),
        ("boolean", ["true", "TRUE", "True"], "true"),
        ("date", ["2024-01-02", "2024-1-2"], "2024-01-02"),
        (
            "timestamp",
            [
                "2024-01-02 03:04:05",
                "2024-01-02 03:04:05.000000",
                "2024-01-02T03:04:05Z",
                "2024-01-02T03:04:05.000Z",
                "2024-01-02T05:04:05.000+02:00",
                "2024-01-01 19:04:05-0800",
            ],
            "2024-01-02 03:04:05.000000",
        ),
        (
            "timestamp_ntz",
            ["2024-01-02", "2024-01-02 00:00", "2024-01-02T00:00:00.0"],
            "2024-01-02 00:00:00.000000",
        ),
        ("timestamp", ["2024-01-02 03:04:05.1234567"], "2024-01-02 03:04:05.123456"),
        ("binary", ["ab", "\\u0061\\u0062"], "\\u0061\\u0062"),
        ("string", ["Ab "], "Ab "),
        ("void", ["x"], "x"),
    ],
)
def test_different_spellings_have_one_canonical_text(name: str, texts: list[str], form: str) -> None:
    assert {canonical(t, name) for t in texts} == {form}


@pytest.mark.parametrize("name", ["string", "long", "binary", "timestamp", "decimal(5,2)", "boolean"])
def test_none_and_the_empty_text_are_null(name: str) -> None:
    assert [parse(None, name), parse("", name), canonical(None, name), canonical("", name)] == [None] * 4
    assert serialize(None, name) is None


def test_an_empty_string_can_only_be_written_as_null() -> None:
    assert (serialize("", "string"), serialize(b"", "binary")) == (None, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long", "x"),
        ("long", "1_000"),
        ("long", "1.0"),
        ("long", "٣"),
        ("long", "9223372036854775808"),
        ("byte", "128"),
        ("double", "1,5"),
        ("double", "0x10"),
        ("double", "--1"),
        ("double", "-+inf"),
        ("boolean", "yes"),
        ("boolean", "1"),
        ("date", "2024-13-01"),
        ("date", "2024-02-30"),
        ("date", "01/02/2024"),
        ("date", "2024-01-02 03:04:05"),
        ("timestamp", "yesterday"),
        ("timestamp", "2024-01-02 25:00:00"),
        ("timestamp", "2024-01-02T03:04:05 Mars"),
        ("timestamp", "0001-01-01T00:00:00+10:00"),
        ("decimal(5,2)", "1.234"),
        ("decimal(5,2)", "1000"),
        ("decimal(5,2)", "NaN"),
        ("decimal(5,2)", "1e9999"),
        ("binary", "\ud800"),
    ],
)
def test_nonsense_is_refused(name: str, text: str) -> None:
    with pytest.raises(ProtocolError, match="partition value"):
        parse(text, name)
    with pytest.raises(ProtocolError):
        canonical(text, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("long", "7"),
        ("long", True),
        ("long", 2**63),
        ("byte", -129),
        ("double", "1"),
        ("boolean", 1),
        ("date", datetime(2024, 1, 1)),
        ("timestamp", date(2024, 1, 1)),
        ("string", 7),
        ("binary", "x"),
        ("decimal(5,2)", 1.5),
        ("decimal(5,2)", Decimal("1000")),
    ],
)
def test_values_of_another_type_are_not_written(name: str, value: object) -> None:
    with pytest.raises(ProtocolError, match="partition value"):
        serialize(value, name)


def test_timestamps_come_in_utc_and_ntz_ones_without_zone() -> None:
    assert parse("2024-01-02T03:04:05.5+01:00", "timestamp") == datetime(2024, 1, 2, 2, 4, 5, 500000, UTC)
    assert parse("2024-01-02 03:04:05", "timestamp_ntz") == datetime(2024, 1, 2, 3, 4, 5)
    east = datetime(2024, 1, 2, 1, tzinfo=timezone(timedelta(hours=3)))
    assert serialize(east, "timestamp") == "2024-01-01 22:00:00.000000"


def test_years_beyond_python_keep_their_text() -> None:
    assert canonical("12024-01-01", "date") == "12024-01-01"
    assert canonical("-0044-03-15 00:00:00", "timestamp") == "-0044-03-15 00:00:00"
    with pytest.raises(ProtocolError):
        parse("12024-01-01", "date")


def test_not_a_number_is_a_value() -> None:
    value = parse("NaN", "double")
    assert isinstance(value, float)
    assert math.isnan(value)
    assert serialize(value, "float") == "NaN"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_is_written_as_briefly_as_its_32_bits_allow(value: float) -> None:
    written = serialize(value, "float")
    assert written is not None
    assert struct.pack("<f", float(written)) == struct.pack("<f", value)
    assert len(written.replace(".", "").strip("-0")) <= 9


@given(st.dictionaries(text, text | st.none(), min_size=1, max_size=3))
def test_hive_folders_survive_a_round_trip(partition: dict[str, str | None]) -> None:
    path = partition_path(partition)
    assert path.count("/") == len(partition) - 1
    found = [map(unquote, folder.split("=", 1)) for folder in path.split("/")]
    assert dict(found) == {name: HIVE_NULL if value is None else value for name, value in partition.items()}


def test_hive_folders_look_as_others_write_them() -> None:
    assert partition_path({"ts": "2024-01-02 03:04:05.123456"}) == "ts=2024-01-02%2003%3A04%3A05.123456"
    assert partition_path({"p": ""}) == partition_path({"p": None}) == "p=__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("timestamp", ["2024-01-02 03:04:05", "2024-01-02T03:04:05.000000Z", "2024-01-02 04:04:05+01:00"]),
        ("timestamp_ntz", ["2024-01-02 03:04:05", "2024-01-02T03:04:05.000"]),
        ("double", ["0", "-0.0", "0.0", "0E0"]),
        ("double", ["1.0", "1", "1.00E0"]),
        ("double", ["NaN", "nan"]),
        ("float", ["0.1", "0.10", "0.100000001"]),
        ("decimal(5,2)", ["1.5", "1.50", "+1.500"]),
        ("date", ["2024-01-02", "2024-1-2"]),
        ("boolean", ["true", "TRUE"]),
        ("binary", ["ab", "\\u0061\\u0062"]),
        ("string", ["", None]),
    ],
)
def test_partitions_are_equal_by_value(name: str, texts: list[str | None]) -> None:
    assert len({equal_key({"p": text}, {"p": name}) for text in texts}) == 1


def test_partitions_of_different_values_and_texts_without_a_value_differ() -> None:
    columns = {"p": "double", "q": "string"}
    values = [("1", "a"), ("2", "a"), ("1", "A"), ("nonsense", "a"), (None, "a"), ("NaN", "a"), ("1", "\0")]
    values += [("1", "\x01"), ("1", None)]
    assert len({equal_key({"p": p, "q": q}, columns) for p, q in values}) == len(values)
