"""Statistics read by columns say what they say when they are read one by one."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb import DeltaTable, write_deltalake
from deltalakedb.protocol import stats_columns as module
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.protocol.stats_columns import StatsColumns, stats_columns

if TYPE_CHECKING:
    from pathlib import Path


def leaves(**types: str) -> Any:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return parse_schema(json.dumps({"type": "struct", "fields": fields})).leaves()


COLUMNS = list(
    leaves(
        i="integer",
        n="long",
        f="float",
        x="double",
        s="string",
        b="boolean",
        d="date",
        t="timestamp",
        u="timestamp_ntz",
        y="binary",
    )
)


def read(texts: list[str | None], columns: Any = None) -> StatsColumns:
    return stats_columns(pa.chunked_array([pa.array(texts, pa.string())]), columns or COLUMNS)


def one_by_one(texts: list[str | None], columns: Any = None) -> StatsColumns:
    found = columns or COLUMNS
    return module._one_by_one(texts, found, [x for x in found if str(x.type) != "binary"])


def plain(found: StatsColumns) -> dict[str, Any]:
    groups = {"nulls": found.nulls, "lows": found.lows, "highs": found.highs}
    out: dict[str, Any] = {k: {p: a.to_pylist() for p, a in g.items()} for k, g in groups.items()}
    types = {k: {p: str(a.type) for p, a in g.items()} for k, g in groups.items()}
    return {**out, "types": types, "records": found.num_records.to_pylist()}


@pytest.fixture
def arrow_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where Arrow hands over to the slow way."""

    def refuse(*_: Any) -> StatsColumns:
        pytest.fail("read one by one")

    monkeypatch.setattr(module, "_one_by_one", refuse)


TEXT = json.dumps(
    {
        "numRecords": 7,
        "minValues": {
            "i": -1,
            "n": -(2**63),
            "f": 0.1,
            "x": -1.5e300,
            "s": "a\u00e4\n",
            "b": False,
            "d": "2026-01-31",
            "t": "2026-01-31T01:02:03.004Z",
            "u": "2026-01-31T01:02:03.004005",
        },
        "maxValues": {"i": 2**31 - 1, "x": 3, "s": "z"},
        "nullCount": {"i": 0, "s": 7, "y": 2},
        "tightBounds": True,
        "other": [1, {"a": 2}],
    }
)


def test_plain_statistics_are_read_by_arrow(arrow_only: None) -> None:
    found = plain(read([TEXT, None, "{}", TEXT]))
    assert found["records"] == [7, None, None, 7]
    assert found["lows"][("s",)] == ["a\u00e4\n", None, None, "a\u00e4\n"]
    assert found["nulls"][("y",)] == [2, None, None, 2]
    assert found["highs"][("x",)] == [3.0, None, None, 3.0]


def test_both_ways_agree_on_plain_statistics() -> None:
    texts = [TEXT, None, "{}", '{"numRecords":1}']
    assert plain(read(texts)) == plain(one_by_one(texts))


@pytest.mark.parametrize(
    "odd",
    [
        "no json",
        "[]",
        "null",
        "",
        '{"numRecords":-1,"nullCount":{"i":-2}}',
        '{"numRecords":1.5}',
        '{"numRecords":true}',
        '{"minValues":{"i":1.0}}',
        '{"minValues":{"i":3000000000}}',
        '{"minValues":{"n":"5"}}',
        '{"minValues":{"s":5}}',
        '{"minValues":7}',
        '{"minValues":{"d":"2026-02-30"}}',
        '{"minValues":{"d":"2026-01-31T00:00:00Z"}}',
        '{"minValues":{"t":"2026-01-31 01:02:03"}}',
        '{"minValues":{"t":"soon"}}',
        '{"minValues":{"t":"2026-01-31T01:02:03.123456789Z"}}',
        '{"minValues":{"u":"2026-01-31T01:02:03Z"}}',
        '{"minValues":{"x":1e400}}',
        '{"numRecords":\n3}',
        '{"numRecords":1}\n{"numRecords":2}',
    ],
)
def test_an_odd_text_among_plain_ones_is_read_as_it_is_alone(odd: str) -> None:
    texts = [TEXT, odd, TEXT]
    assert plain(read(texts)) == plain(one_by_one(texts))


def test_a_bound_that_its_type_cannot_hold_is_left_out() -> None:
    huge = '{"numRecords":3,"minValues":{"i":3000000000,"n":99999999999999999999}}'
    found = plain(read([TEXT, huge]))
    assert found["lows"][("i",)] == [-1, None]
    assert found["lows"][("n",)] == [-(2**63), None]
    assert found["records"] == [7, 3]


def test_decimals_keep_all_digits() -> None:
    columns = list(leaves(d="decimal(30,2)"))
    texts: list[str | None] = ['{"minValues":{"d":1234567890123456789012345678.91}}']
    assert str(read(texts, columns).lows[("d",)][0].as_py()) == "1234567890123456789012345678.91"


def test_nested_columns_are_found_by_their_path(arrow_only: None) -> None:
    inner = [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]
    outer = [{"name": "a", "type": {"type": "struct", "fields": inner}, "nullable": True, "metadata": {}}]
    columns = list(parse_schema(json.dumps({"type": "struct", "fields": outer})).leaves())
    found = read(['{"minValues":{"a":{"x":4}}}', '{"minValues":{}}'], columns)
    assert found.lows[("a", "x")].to_pylist() == [4, None]


def test_no_files_have_no_statistics() -> None:
    assert plain(read([])) == plain(one_by_one([]))


def test_a_table_of_nothing_but_partitions_has_only_row_counts(arrow_only: None) -> None:
    found = stats_columns(pa.chunked_array([pa.array(['{"numRecords":2}'])]), [])
    assert found.num_records.to_pylist() == [2]


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-(2**31), 2**31 - 1),
    "n": st.integers(-(2**63), 2**63 - 1),
    "x": st.floats(allow_nan=False, allow_infinity=False),
    "s": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "b": st.booleans(),
    "d": st.dates().map(str),
    "t": st.datetimes().map(lambda t: t.isoformat(timespec="milliseconds") + "Z"),
    "u": st.datetimes().map(lambda t: t.isoformat(timespec="microseconds")),
}
SIDES = st.fixed_dictionaries({}, optional={k: v | st.none() for k, v in VALUES.items()})
COUNTS = st.fixed_dictionaries({}, optional={k: st.integers(0, 9) for k in VALUES})
STATS = st.fixed_dictionaries(
    {},
    optional={
        "numRecords": st.integers(0, 10**6),
        "minValues": SIDES,
        "maxValues": SIDES,
        "nullCount": COUNTS,
    },
)


@given(st.lists(st.none() | STATS.map(json.dumps), max_size=5))
@settings(max_examples=40)
def test_both_ways_agree_on_any_statistics(texts: list[str | None]) -> None:
    assert plain(read(texts)) == plain(one_by_one(texts))


def test_decimals_that_a_float_cannot_hold_have_no_bounds(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    large = Decimal("12345678901234567890.25")
    rows = pa.table({"x": pa.array([large], pa.decimal128(38, 2)), "y": pa.array([Decimal("1.50")])})
    write_deltalake(uri, rows)
    adds = pa.table(DeltaTable(uri).get_add_actions(flatten=True))
    assert (adds["min.x"].to_pylist(), adds["max.x"].to_pylist()) == ([None], [None])
    assert adds["min.y"].to_pylist() == [Decimal("1.50")]


@pytest.mark.parametrize(
    "texts",
    [
        ["null"],  # Arrow's reader crashes on it
        ['{"numRecords":1}\n{"numRecords":2}', ""],  # two rows and none
        ['{"numRecords":1}{"numRecords":2}', "   "],
        ['{"numRecords":1}', " null ", '{"numRecords":2} '],
        ['{"minValues":', '{"numRecords":1}}', '{"numRecords":2}\n{"numRecords":3}'],
    ],
)
def test_texts_that_are_not_one_object_never_speak_for_their_neighbours(texts: list[str]) -> None:
    wanted = [None if (stats := parse_stats(text)) is None else stats.num_records for text in texts]
    assert stats_columns(pa.array(texts), []).num_records.to_pylist() == wanted
