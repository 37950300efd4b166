"""The direct writer's adds equal those that delta-rs makes for the same rows."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.protocol.partition import HIVE_NULL
from deltalakedb.protocol.schema import PrimitiveType, parse_schema
from deltalakedb.protocol.stats import parse_stats
from support.appends import direct_append, empty_table, rows_of, same_bound, stock_append, trimmed

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.protocol.actions import Add

START, END = datetime(1700, 1, 1), datetime(2200, 1, 1)
LETTERS = st.characters(exclude_categories=["Cs"])
longs = st.integers(-(2**63), 2**63 - 1)
texts = st.text(LETTERS, max_size=90)
PRIMITIVES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), st.integers(-128, 127)),
    "short": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "integer": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), longs),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "string": (pa.string(), texts),
    "binary": (pa.binary(), st.binary(max_size=9)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(START.date(), END.date())),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(START, END, timezones=st.just(UTC))),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes(START, END)),
    "small_decimal": (pa.decimal128(9, 4), st.decimals(-99999, 99999, places=4)),
    "decimal": (pa.decimal128(18, 2), st.decimals(-(10**12), 10**12, places=2)),
    "large_decimal": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    "whole_decimal": (pa.decimal128(38, 0), st.integers(-(10**37), 10**37).map(Decimal)),
}
INNER = pa.struct(
    [("deep", pa.int64()), ("text", pa.string()), ("raw", pa.binary()), ("list", pa.list_(pa.int32()))]
)
inner = st.fixed_dictionaries(
    {
        "deep": st.none() | longs,
        "text": st.none() | texts,
        "raw": st.none() | st.binary(max_size=3),
        "list": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
    }
)
NESTED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "struct": (
        pa.struct([("flag", pa.bool_()), ("inner", INNER), ("last", pa.float64())]),
        st.fixed_dictionaries(
            {
                "flag": st.none() | st.booleans(),
                "inner": st.none() | inner,
                "last": st.none() | st.floats(),
            }
        ),
    ),
    "array": (pa.list_(INNER), st.lists(st.none() | inner, max_size=2)),
    "map": (
        pa.map_(pa.string(), pa.struct([("v", pa.float32())])),
        st.dictionaries(
            st.text(LETTERS, max_size=3), st.none() | st.fixed_dictionaries({"v": st.none() | st.just(0.5)})
        ).map(lambda d: list(d.items())),
    ),
    "after": (pa.int32(), st.integers(0, 9)),
}
COLUMNS = PRIMITIVES | NESTED
#: values that make folders: few, so that rows meet, and odd
PARTITIONS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "p_text": (
        pa.string(),
        st.sampled_from(["a", "a b", "é/=%:", "..", "日本", "\\u0041", '"\n+', "A", "null"])
        | st.text(LETTERS, min_size=1, max_size=6).filter(lambda t: t != HIVE_NULL),
    ),
    "p_long": (pa.int64(), st.sampled_from([0, -1, 2**63 - 1])),
    "p_flag": (pa.bool_(), st.booleans()),
    "p_day": (pa.date32(), st.dates(START.date(), END.date())),
    "p_time": (pa.timestamp("us", "UTC"), st.datetimes(START, END, timezones=st.just(UTC))),
    "p_ntz": (pa.timestamp("us"), st.datetimes(START, END)),
    # delta-rs spells -3.05 as `-3.-5` and then cannot read it
    "p_price": (pa.decimal128(9, 2), st.decimals(0, 9, places=2) | st.just(Decimal("-3.00"))),
    "p_float": (pa.float32(), st.sampled_from([0.0, -0.0, 0.1, 1e10, float("nan"), float("inf")])),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, list[str]]:
    """Some columns of some types, in batches that may be empty, and the columns to partition by."""
    by = draw(st.lists(st.sampled_from(sorted(PARTITIONS)), max_size=2, unique=True))
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=8, unique=True))
    kinds = {name: (COLUMNS | PARTITIONS)[name] for name in draw(st.permutations([*names, *by]))}
    schema = pa.schema([(name, kind) for name, (kind, _) in kinds.items()])
    row = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in kinds.items()})
    batches = [
        pa.RecordBatch.from_pylist(rows, schema)
        for rows in draw(st.lists(st.lists(row, max_size=4), max_size=3))
    ]
    return pa.Table.from_batches(batches, schema), by


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("twins")


def by_partition(adds: list[Add]) -> dict[str, dict[str, Any]]:
    """One entry for each file: none of these writes makes two for one partition."""
    found = {json.dumps(dict(a.partition_values), sort_keys=True): json.loads(a.stats or "{}") for a in adds}
    assert len(found) == len(adds)
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=tables())
def test_adds_and_rows_equal_those_of_delta_rs(folder: Path, made: tuple[pa.Table, list[str]]) -> None:
    data, by = made
    shutil.rmtree(folder, ignore_errors=True)
    theirs, ours = folder / "theirs", folder / "ours"
    empty_table(theirs, data.schema, partition_by=by)
    snapshot = empty_table(ours, data.schema, partition_by=by)
    expected = by_partition(stock_append(theirs, data))
    adds = direct_append(ours, snapshot, data)
    found = by_partition(adds)
    assert found.keys() == expected.keys()
    for key, stats in found.items():
        wanted = expected[key]
        assert stats["numRecords"] == wanted["numRecords"]
        assert trimmed(stats["nullCount"]) == trimmed(wanted["nullCount"])
        for side in ("minValues", "maxValues"):
            assert same_bound(trimmed(stats[side]), trimmed(wanted[side])), (side, stats, wanted)
    assert rows_of(ours) == rows_of(theirs)
    assert_bounds_enclose(adds, snapshot.metadata.schema_string, data, by)


def assert_bounds_enclose(adds: list[Add], schema_string: str, data: pa.Table, by: list[str]) -> None:
    """Every value lies within the exact bounds of some file, and the tightest are reached."""
    if by or not adds:
        return
    (add,) = adds
    stats = parse_stats(add.stats)
    assert stats is not None
    for leaf in parse_schema(schema_string).leaves():
        if not isinstance(leaf.type, PrimitiveType) or leaf.type.name in ("binary", "float", "double"):
            continue
        values = data.column(leaf.path[0]).to_pylist()
        for name in leaf.path[1:]:
            values = [None if v is None else v[name] for v in values]
        bounds = stats.bounds(leaf.physical_path, leaf.type, widen=False)
        assert bounds.null_count == values.count(None)
        present = [v for v in values if v is not None]
        if not present:
            assert bounds[:2] == (None, None)
        elif leaf.type.name == "string":
            low, high = str(bounds.min).encode(), str(bounds.max).encode()
            assert low <= min(p.encode() for p in present)
            assert high >= max(p.encode() for p in present)
        else:
            assert bounds[:2] == (min(present), max(present))
