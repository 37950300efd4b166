"""Bounds of statistics and literals enclose the values that they stand for."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.protocol.bounds import (
    day_number,
    encoding_of,
    fits,
    literal_bounds,
    lowest,
    microseconds,
    open_end,
    successor,
    text_bytes,
)
from deltalakedb.protocol.schema import ArrayType, PrimitiveType

VALUES = {
    "int": st.integers(-(2**70), 2**70) | st.integers(-5, 5),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "double": st.floats(allow_nan=False),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.integers(-(10**40), 10**40).map(Decimal),
    "string": st.text(alphabet="ab\0é\U0001f600\x7f\uffff", max_size=14),
    "binary": st.binary(max_size=12),
}


@pytest.mark.parametrize("encoding", VALUES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_stated_bounds_and_literals_enclose_the_value_itself(encoding, data):
    value = data.draw(VALUES[encoding])
    plain = text_bytes(value) if encoding == "string" else value
    low, high = literal_bounds(value, encoding)
    assert low <= plain <= high
    least, most = lowest(value, encoding), open_end(value, encoding)
    assert least is None or least <= plain
    assert most is None or most >= plain


def test_days_and_times_are_counted_from_1970():
    assert day_number(date(1970, 1, 2)) == 1
    assert day_number(date(1969, 12, 31)) == -1
    assert microseconds(datetime(1970, 1, 1, 0, 0, 1, 5, UTC)) == 1_000_005
    assert microseconds(datetime(1969, 12, 31, 23, 59, 59, 999_999)) == -1


def test_nan_bounds_nothing():
    assert lowest(math.nan, "double") is None
    assert open_end(math.nan, "double") is None
    assert literal_bounds(math.nan, "double") is None


@pytest.mark.parametrize("value", [0.1, 0.7])  # the 32-bit neighbour is above the one, below the other
def test_a_float_spelled_in_short_may_be_the_32_bit_one(value):
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    assert single != value
    assert lowest(value, "double") <= single <= open_end(value, "double")
    low, high = literal_bounds(value, "double")
    assert low <= single <= high
    assert lowest(1e300, "double") == 1e300


def test_a_long_maximum_counts_in_all_that_begins_with_it():
    cut = "https://a/" + "x" * 22
    assert open_end(cut, "string") >= text_bytes(cut + "zzz")
    rounded = cut + "\x7f"  # rounded up by a writer that looked at ASCII alone
    assert open_end(rounded, "string") >= text_bytes(cut + "é")
    assert open_end("abc", "string") == b"abc"
    assert successor("ab") > "ab\U0010ffff".encode()


def test_a_minimum_before_1970_may_have_been_cut_towards_zero():
    stated = datetime(1960, 1, 1, 0, 0, 0, 5000, UTC)
    assert lowest(stated, "timestamp") <= stated - timedelta(microseconds=999)
    later = datetime(2020, 1, 1, tzinfo=UTC)
    assert lowest(later, "timestamp") == later


def test_types_know_their_encoding():
    assert encoding_of(PrimitiveType("short")) == "int"
    assert encoding_of(PrimitiveType("decimal(12,4)")) == "decimal"
    assert encoding_of(PrimitiveType("timestamp_ntz")) == "timestamp"
    assert encoding_of(PrimitiveType("variant")) is None
    assert encoding_of(ArrayType(PrimitiveType("long"))) is None


def test_a_literal_of_another_kind_does_not_fit():
    assert fits(5, "int")
    assert not fits(True, "int")
    assert not fits(5.5, "int")
    assert not fits(datetime(2024, 1, 1), "date")
    assert not fits(date(2024, 1, 1), "timestamp")
    assert fits(5, "decimal")
