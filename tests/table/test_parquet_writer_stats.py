"""The direct writer's statistics: exact, cut like delta-rs's, of the same columns."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import WriterProperties

from support.appends import direct_append, empty_table, stats_of, stock_append, trimmed

if TYPE_CHECKING:
    from pathlib import Path


def test_statistics_keep_microseconds_and_every_digit(tmp_path: Path) -> None:
    data = pa.table(
        {
            "ts": pa.array([datetime(2024, 1, 2, 3, 4, 5, 123456, UTC)], pa.timestamp("us", "UTC")),
            "ntz": pa.array([datetime(2024, 1, 2, 3, 4, 5, 120000)], pa.timestamp("us")),
            "d": pa.array([Decimal("-1234567890123456789012345678.0123456789")], pa.decimal128(38, 10)),
            "tiny": pa.array([Decimal("0.0000000001")], pa.decimal128(12, 10)),
            "whole": pa.array([Decimal(10**37)], pa.decimal128(38, 0)),
        }
    )
    snapshot = empty_table(tmp_path / "t", data.schema)
    (add,) = direct_append(tmp_path / "t", snapshot, data)
    assert add.stats == (
        '{"numRecords":1,"minValues":{"ts":"2024-01-02T03:04:05.123456Z","ntz":"2024-01-02 03:04:05.120",'
        '"d":-1234567890123456789012345678.0123456789,"tiny":0.0000000001,"whole":1' + "0" * 37 + "},"
        '"maxValues":{"ts":"2024-01-02T03:04:05.123456Z","ntz":"2024-01-02 03:04:05.120",'
        '"d":-1234567890123456789012345678.0123456789,"tiny":0.0000000001,"whole":1' + "0" * 37 + "},"
        '"nullCount":{"ts":0,"ntz":0,"d":0,"tiny":0,"whole":0}}'
    )
    actions = pa.table(deltalake.DeltaTable(tmp_path / "t").get_add_actions(flatten=True)).to_pylist()[0]
    for name in data.column_names:  # delta-rs reads the very value back
        assert actions[f"min.{name}"] == actions[f"max.{name}"] == data[name][0].as_py()


@pytest.mark.parametrize("days", [-719_163, 2_932_897])
def test_a_day_outside_of_the_years_1_to_9999_has_no_bound(tmp_path: Path, days: int) -> None:
    data = pa.table({"d": pa.array([days, 0], pa.int32()).cast(pa.date32())})
    stats = stats_of(direct_append(tmp_path / "t", empty_table(tmp_path / "t", data.schema), data))
    assert {**stats["minValues"], **stats["maxValues"]} == {"d": "1970-01-01"}


@pytest.mark.parametrize(
    "text",
    [
        "é" * 40,
        "a" * 64,
        "a" * 65,
        "a" * 63 + "é",
        "\x7f" * 70,
        "\U0010ffff" * 20,
        "a" * 60 + "\U0010ffff" * 20,
        "\ud7ff" * 30,
        "b" * 5000,
        "€" * 3000,
    ],
)
def test_long_strings_are_cut_as_delta_rs_cuts_them(tmp_path: Path, text: str) -> None:
    data = pa.table({"s": ["a", text], "n": [{"x": None}, {"x": text}]})
    empty_table(tmp_path / "theirs", data.schema)
    snapshot = empty_table(tmp_path / "ours", data.schema)
    wanted = stats_of(stock_append(tmp_path / "theirs", data))
    found = stats_of(direct_append(tmp_path / "ours", snapshot, data))
    assert found["minValues"] == wanted["minValues"]
    assert found["maxValues"] == wanted["maxValues"]


def test_bounds_of_long_strings_span_all_row_groups(tmp_path: Path) -> None:
    data = pa.table({"s": ["m", "a" * 9000, "z", None]})
    snapshot = empty_table(tmp_path / "t", data.schema)
    adds = direct_append(
        tmp_path / "t", snapshot, data, writer_properties=WriterProperties(max_row_group_size=1)
    )
    stats = stats_of(adds)
    assert (stats["minValues"]["s"], stats["maxValues"]["s"]) == ("a" * 64, "z")


@pytest.mark.parametrize(
    ("key", "value", "columns"),
    [
        ("delta.dataSkippingNumIndexedCols", "0", set()),
        ("delta.dataSkippingNumIndexedCols", "1", {"a"}),
        ("delta.dataSkippingNumIndexedCols", "-1", {"a", "s", "z"}),
        ("delta.dataSkippingNumIndexedCols", "nonsense", {"a", "s", "z"}),
        ("delta.dataSkippingStatsColumns", "z", {"z"}),
        ("delta.dataSkippingStatsColumns", "`a`, z", {"a", "z"}),
        ("delta.dataSkippingStatsColumns", "gone", set()),
    ],
)
def test_the_same_columns_as_by_delta_rs_have_statistics(
    tmp_path: Path, key: str, value: str, columns: set[str]
) -> None:
    data = pa.table({"p": [1], "a": [1], "s": [{"x": 1, "y": 2}], "l": [[1]], "z": [9]})
    options: dict[str, Any] = {"partition_by": ["p"], "configuration": {key: value}}
    empty_table(tmp_path / "theirs", data.schema, **options)
    snapshot = empty_table(tmp_path / "ours", data.schema, **options)
    wanted = stats_of(stock_append(tmp_path / "theirs", data))
    found = stats_of(direct_append(tmp_path / "ours", snapshot, data))
    assert trimmed(found) == trimmed(wanted)
    assert found["nullCount"].keys() == columns


def test_leaf_columns_are_counted_as_delta_spark_counts_them(tmp_path: Path) -> None:
    data = pa.table({"p": [1], "a": [1], "s": [{"x": 1, "y": 2}], "z": [9]})
    options: dict[str, Any] = {
        "partition_by": ["p"],
        "configuration": {"delta.dataSkippingNumIndexedCols": "2"},
    }
    snapshot = empty_table(tmp_path / "t", data.schema, **options)
    found = stats_of(direct_append(tmp_path / "t", snapshot, data))
    assert found["nullCount"] == {"a": 0, "s": {"x": 0}}


def test_nested_statistics_columns_are_found_by_their_path(tmp_path: Path) -> None:
    data = pa.table({"s": [{"x": 1, "y.z": 2}], "a,b": [3]})
    settings = {"delta.dataSkippingStatsColumns": "s.`y.z`,`a,b`"}
    snapshot = empty_table(tmp_path / "t", data.schema, configuration=settings)
    stats = stats_of(direct_append(tmp_path / "t", snapshot, data))
    assert stats["minValues"] == {"s": {"y.z": 2}, "a,b": 3}


def test_columns_with_nan_have_no_maximum_in_log_and_file(tmp_path: Path) -> None:
    data = pa.table(
        {
            "x": [1.0, math.nan, None, 2.0],
            "z": pa.array([-0.0, 3.0, None, 0.0], pa.float32()),
            "plain": [-1.5, 2.5, 0.0, 0.0],
            "n": [{"y": math.nan}, {"y": 2.0}, None, {"y": None}],
            "l": [[math.nan], [], None, [1.0]],
        }
    )
    snapshot = empty_table(tmp_path / "t", data.schema)
    (add,) = direct_append(tmp_path / "t", snapshot, data)
    stats = stats_of([add])
    assert stats["minValues"] == {"x": 1.0, "z": 0.0, "plain": -1.5, "n": {"y": 2.0}}
    assert stats["maxValues"] == {"z": 3.0, "plain": 2.5}
    assert stats["nullCount"] == {"x": 1, "z": 1, "plain": 0, "n": {"y": 2}}
    columns = pq.ParquetFile(tmp_path / "t" / add.path).metadata.row_group(0)
    told = {
        (c := columns.column(n)).path_in_schema: (c.statistics is not None, "RLE_DICTIONARY" in c.encodings)
        for n in range(columns.num_columns)
    }
    odd, usual = (False, False), (True, True)
    assert told == {"x": odd, "z": odd, "plain": usual, "n.y": odd, "l.list.element": usual}


def test_a_column_that_gets_nan_later_goes_on_in_a_new_file(tmp_path: Path) -> None:
    values = [1.0, 2.0, math.nan, 4.0, 5.0]
    data = pa.concat_tables(pa.table({"x": values[n : n + 2]}) for n in (0, 2, 4))
    snapshot = empty_table(tmp_path / "t", data.schema)
    one = WriterProperties(max_row_group_size=1)
    adds = direct_append(tmp_path / "t", snapshot, data, writer_properties=one)
    assert [json.loads(add.stats or "{}")["maxValues"] for add in adds] == [{"x": 2.0}, {}]
    found = pa.concat_tables(pq.read_table(tmp_path / "t" / add.path) for add in adds)["x"].to_pylist()
    assert [repr(x) for x in found] == [repr(x) for x in values]
