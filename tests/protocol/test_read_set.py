"""Read sets as JSON: what was read comes back, and what cannot be written down counts as everything."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.protocol.predicate import And, Compare, Constant, In, IsNull, Not, Or, StartsWith, Unknown
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING, ReadSet, decode_reads, encode_reads

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
PATHS = st.lists(TEXT, min_size=1, max_size=2).map(tuple)
VALUES = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False),
    TEXT,
    st.booleans(),
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, UTC])),
)
LEAVES = st.one_of(
    st.builds(Compare, PATHS, st.sampled_from(["=", "<", "<=>"]), VALUES | st.none()),
    st.builds(In, PATHS, st.lists(VALUES, max_size=3).map(tuple)),
    st.builds(IsNull, PATHS),
    st.builds(StartsWith, PATHS, TEXT),
    st.builds(Constant, st.sampled_from([True, False, None])),
    st.builds(Unknown, TEXT),
)
PREDICATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)


@given(st.lists(PREDICATES, max_size=3).map(tuple), st.frozensets(st.tuples(TEXT, TEXT), max_size=3))
def test_what_was_read_comes_back(predicates: tuple[object, ...], files: frozenset[tuple[str, str]]) -> None:
    reads = ReadSet(predicates=predicates, files=files)  # type: ignore[arg-type]
    back = decode_reads(encode_reads(reads))
    assert back == reads
    assert repr(back.predicates) == repr(predicates), "1 and 1.0 and True are equal"


def test_nothing_and_everything_come_back() -> None:
    assert decode_reads(encode_reads(NOTHING)) == NOTHING
    assert decode_reads(encode_reads(EVERYTHING)) == EVERYTHING


@pytest.mark.parametrize(
    "reads",
    [
        ReadSet(files=frozenset((str(n), "") for n in range(1_001))),
        ReadSet(predicates=(Compare(("x",), "=", "y" * 2**20),)),
        ReadSet(predicates=(Compare(("x",), "=", "\ud800"),)),
        ReadSet(predicates=(Compare(("x",), "=", pd.Timestamp(0)),)),
    ],
    ids=["many files", "long", "no text", "another type"],
)
def test_what_cannot_be_written_down_counts_as_everything(reads: ReadSet) -> None:
    assert decode_reads(encode_reads(reads)) == EVERYTHING


@pytest.mark.parametrize("text", [None, "", "[1]", "{", '{"predicates":[{"Newer":[1]}]}', '{"files":[1]}'])
def test_what_was_not_recorded_or_is_not_understood_counts_as_everything(text: str | None) -> None:
    assert decode_reads(text) == EVERYTHING


def test_values_keep_their_types() -> None:
    values = (Decimal("1.20"), date(2020, 1, 1), datetime(2020, 1, 1, 5, tzinfo=UTC), b"\xff", -0.0)
    (found,) = decode_reads(encode_reads(ReadSet(predicates=(In(("x",), values),)))).predicates
    assert repr(found) == repr(In(("x",), values))
