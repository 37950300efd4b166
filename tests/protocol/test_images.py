"""Images keep the order of values, whatever the type."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.protocol.images import (
    EMPTY,
    IMAX,
    IMIN,
    MISSING,
    encode,
    encode_max,
    encode_min,
    encoding_of,
    fits,
    level,
    literal_bounds,
    successor,
)
from deltalakedb.protocol.schema import ArrayType, PrimitiveType

VALUES = {
    "int": (st.integers(-(2**70), 2**70) | st.integers(-5, 5), None),
    "boolean": (st.booleans(), None),
    "date": (st.dates(), None),
    "timestamp": (st.datetimes(timezones=st.just(UTC)), None),
    "double": (st.floats(allow_nan=False), None),
    "decimal": (
        st.decimals(allow_nan=False, allow_infinity=False, places=3)
        | st.integers(-(10**40), 10**40).map(Decimal),
        "2",
    ),
    "string": (st.text(alphabet="ab\0é\U0001f600\x7f\uffff", max_size=14), None),
    "binary": (st.binary(max_size=12), None),
}


@pytest.mark.parametrize("encoding", VALUES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_images_never_reverse_an_order(encoding, data):
    values, arg = VALUES[encoding]
    a, b = data.draw(values), data.draw(values)
    key = (lambda v: v.encode()) if encoding == "string" else (lambda v: v)
    if key(a) > key(b):
        a, b = b, a
    low, high = encode(a, encoding, arg), encode(b, encoding, arg)
    assert IMIN <= low <= high <= IMAX


@pytest.mark.parametrize("encoding", VALUES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_stated_bounds_and_literals_enclose_the_value_itself(encoding, data):
    values, arg = VALUES[encoding]
    value = data.draw(values)
    image = encode(value, encoding, arg)
    low, high = literal_bounds(value, encoding)
    assert encode(low, encoding, arg) <= image <= encode(high, encoding, arg)
    least, most = encode_min(value, encoding, arg), encode_max(value, encoding, arg)
    assert least is None or least <= image
    assert most is None or most >= image


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["", "https://e.com/", "é"]),
    st.lists(st.text(alphabet="hé/ab\0\uffff", max_size=20), min_size=2, max_size=2),
    st.booleans(),
)
def test_a_common_prefix_keeps_the_order(prefix, texts, prefixed):
    a, b = sorted((prefix + t if prefixed else t for t in texts), key=str.encode)
    assert encode(a, "string", prefix) <= encode(b, "string", prefix)


def test_numbers_have_the_images_that_other_languages_compute():
    assert encode(5, "int") == 5
    assert encode(date(1970, 1, 2), "date") == 1
    assert encode(date(1969, 12, 31), "date") == -1
    assert encode(datetime(1970, 1, 1, 0, 0, 1, 5, UTC), "timestamp") == 1_000_005
    assert encode(datetime(1969, 12, 31, 23, 59, 59, 999_999), "timestamp") == -1
    assert encode(Decimal("1.259"), "decimal", "2") == 125
    assert encode(Decimal("-1.251"), "decimal", "2") == -126
    assert encode(False, "boolean") == 0
    assert encode(1.0, "double") == struct.unpack("<q", struct.pack("<d", 1.0))[0]
    assert encode("a", "string") == int.from_bytes(b"a\0\0\0\0\0\0\0", "big") - 2**63


def test_both_zeros_share_an_image():
    assert encode(-0.0, "double") == encode(0.0, "double") == 0
    assert encode(-5e-324, "double") < 0 < encode(5e-324, "double")
    assert encode(-math.inf, "double") < encode(-1e308, "double") < encode(math.inf, "double")


def test_what_does_not_fit_64_bits_is_clamped():
    assert encode(2**70, "int") == IMAX
    assert encode(-(2**70), "int") == IMIN
    assert encode(Decimal("1e500"), "decimal", "2") == IMAX
    assert encode(Decimal("-1e500"), "decimal", "2") == IMIN
    assert encode(Decimal(10) ** 19, "decimal", "0") == IMAX


def test_nan_bounds_nothing():
    assert encode_min(math.nan, "double") is None
    assert encode_max(math.nan, "double") is None
    assert literal_bounds(math.nan, "double") is None
    assert encode_max(None, "int") is None


@pytest.mark.parametrize("value", [0.1, 0.7])  # the 32-bit neighbour lies above the one, below the other
def test_a_float_spelled_in_short_may_be_the_32_bit_one(value):
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    assert single != value
    assert encode_min(value, "double") <= encode(single, "double") <= encode_max(value, "double")
    low, high = literal_bounds(value, "double")
    assert low <= single <= high
    assert encode_min(1e300, "double") == encode(1e300, "double")


def test_a_long_maximum_counts_in_all_that_begins_with_it():
    cut = "https://a/" + "x" * 22
    assert encode_max(cut, "string", "https://a/" + "x" * 20) >= encode(
        cut + "zzz", "string", "https://a/" + "x" * 20
    )
    rounded = cut + "\x7f"  # rounded up by a writer that looked at ASCII alone
    assert encode_max(rounded, "string", cut) >= encode(cut + "é", "string", cut)
    short = "abc"
    assert encode_max(short, "string") == encode(short, "string")
    assert successor("ab") > "ab\U0010ffff".encode()


def test_a_minimum_before_1970_may_have_been_cut_towards_zero():
    stated = datetime(1960, 1, 1, 0, 0, 0, 5000, UTC)
    assert encode_min(stated, "timestamp") <= encode(stated - timedelta(microseconds=999), "timestamp")
    later = datetime(2020, 1, 1, tzinfo=UTC)
    assert encode_min(later, "timestamp") == encode(later, "timestamp")


def test_levels_bound_the_width():
    for width in (0, 1, 3, 4, 15, 16, 2**40 - 1, 2**40, 2**63, 2**64 - 1):
        k = level(IMIN, IMIN + width)
        assert width < 4**k
        assert k == 0 or width >= 4 ** (k - 1)
    assert level(IMIN, IMAX) == 32 < MISSING < EMPTY
    assert level(None, 5) == level(5, None) == MISSING


def test_types_know_their_encoding():
    assert encoding_of(PrimitiveType("short")) == ("int", None)
    assert encoding_of(PrimitiveType("decimal(12,4)")) == ("decimal", "4")
    assert encoding_of(PrimitiveType("timestamp_ntz")) == ("timestamp", None)
    assert encoding_of(PrimitiveType("variant")) is None
    assert encoding_of(ArrayType(PrimitiveType("long"))) is None


def test_a_literal_of_another_kind_does_not_fit():
    assert fits(5, "int")
    assert not fits(True, "int")
    assert not fits(5.5, "int")
    assert not fits(datetime(2024, 1, 1), "date")
    assert not fits(date(2024, 1, 1), "timestamp")
    assert fits(5, "decimal")
