"""The direct writer: files, sizes, failures, options, and what delta-rs makes of the result."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import ColumnProperties, WriterProperties

from deltalakedb import DeltaTable, write_deltalake
from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.protocol.partition import HIVE_NULL
from deltalakedb.table.handle import require_handle
from deltalakedb.table.roots import LocalFiles
from deltalakedb.table.write import parquet as file_set
from deltalakedb.table.write.parquet import arrow_source
from support.appends import (
    data_files,
    direct_append,
    empty_table,
    plain,
    rows_of,
    same_bound,
    stats_of,
    stock_append,
    trimmed,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "part": ["x", "y", "x"]})
BIG = pa.table({"id": pa.array(range(200_000)), "text": [f"{i * 7919:09d}" for i in range(200_000)]})


def test_an_add_names_a_whole_file_by_its_size_and_time(tmp_path: Path) -> None:
    snapshot = empty_table(tmp_path / "t", ROWS.schema)
    (add,) = direct_append(tmp_path / "t", snapshot, ROWS)
    file = tmp_path / "t" / add.path
    assert add.path.startswith("part-00000-")
    assert add.path.endswith("-c000.snappy.parquet")
    assert add.size == file.stat().st_size
    assert add.modification_time == file.stat().st_mtime_ns // 1_000_000
    assert add.data_change
    assert data_files(tmp_path / "t") == [file]


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    snapshot = empty_table(tmp_path / "t", ROWS.schema, partition_by=["part"])
    assert write(ROWS.slice(0, 0), tmp_path / "t", snapshot) == []
    assert data_files(tmp_path / "t") == []


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        ROWS.to_reader(),
        ROWS.to_batches()[0],
        ROWS.to_batches(),
        ROWS.to_pandas().astype({"name": object}),
        pa.chunked_array(ROWS.to_struct_array().chunks),
    ],
    ids=["table", "reader", "batch", "batches", "pandas", "chunks"],
)
def test_any_arrow_data_is_taken(tmp_path: Path, data: Any) -> None:
    snapshot = empty_table(tmp_path / "t", ROWS.schema)
    (add,) = direct_append(tmp_path / "t", snapshot, data)
    assert json.loads(add.stats or "")["numRecords"] == 3
    assert len(rows_of(tmp_path / "t")) == 3


def test_data_that_is_no_table_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="dict"):
        arrow_source({"a": [1]})


def test_partition_values_lie_in_folders_and_paths_are_encoded_twice(tmp_path: Path) -> None:
    data = pa.table({"v": [1, 2, 3, 4], "p q": ["a b/c", "é", None, HIVE_NULL]})
    snapshot = empty_table(tmp_path / "t", data.schema, partition_by=["p q"])
    adds = direct_append(tmp_path / "t", snapshot, data)
    paths = {a.partition_values["p q"]: a.path.rpartition("/")[0] for a in adds}
    assert paths == {
        "a b/c": "p%2520q=a%2520b%252Fc",
        "é": "p%2520q=%25C3%25A9",
        None: "p%2520q=" + HIVE_NULL,
        HIVE_NULL: "p%2520q=" + HIVE_NULL,
    }
    assert (tmp_path / "t" / "p%20q=a%20b%2Fc").is_dir()
    read = pa.table(deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()).sort_by("v").to_pylist()
    assert read == data.to_pylist()


def test_a_negative_fraction_is_a_partition_value(tmp_path: Path) -> None:
    data = pa.table({"v": [1, 2], "p": pa.array([Decimal("-0.01"), Decimal("-1.05")], pa.decimal128(9, 2))})
    snapshot = empty_table(tmp_path / "t", data.schema, partition_by=["p"])
    adds = direct_append(tmp_path / "t", snapshot, data)
    assert [a.partition_values["p"] for a in adds] == ["-0.01", "-1.05"]
    assert rows_of(tmp_path / "t") == sorted(repr(plain(row)) for row in data.to_pylist())


def test_an_empty_partition_text_is_null(tmp_path: Path) -> None:
    data = pa.table({"v": [1, 2], "p": ["", None]})
    snapshot = empty_table(tmp_path / "t", data.schema, partition_by=["p"])
    adds = direct_append(tmp_path / "t", snapshot, data)
    assert [dict(a.partition_values) for a in adds] == [{"p": None}]
    assert stats_of(adds)["numRecords"] == 2


def test_rows_keep_their_order_within_a_partition(tmp_path: Path) -> None:
    data = pa.table({"v": list(range(300)), "p": [i % 3 for i in range(300)]})
    snapshot = empty_table(tmp_path / "t", data.schema, partition_by=["p"])
    adds = direct_append(tmp_path / "t", snapshot, data)
    for add in adds:
        values = pq.ParquetFile(tmp_path / "t" / add.path).read().column("v").to_pylist()
        assert values == list(range(int(add.partition_values["p"] or 0), 300, 3))


def test_the_file_schema_is_what_delta_rs_and_spark_write(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("b", pa.int8()),
            pa.field("ts", pa.timestamp("us", "UTC")),
            pa.field("ntz", pa.timestamp("us")),
            pa.field("d9", pa.decimal128(9, 2)),
            pa.field("d18", pa.decimal128(18, 2)),
            pa.field("d38", pa.decimal128(38, 2)),
            pa.field("l", pa.list_(pa.int64())),
            pa.field("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    snapshot = empty_table(tmp_path / "t", schema)
    row = [
        1,
        1,
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1),
        *[Decimal("1.5")] * 3,
        [1],
        [("a", 1)],
    ]
    data = pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True))], schema)
    (add,) = direct_append(tmp_path / "t", snapshot, data)
    file = pq.ParquetFile(tmp_path / "t" / add.path)
    leaves = [file.schema.column(i) for i in range(len(file.schema))]
    assert [(leaf.path, leaf.physical_type) for leaf in leaves] == [
        ("id", "INT64"),
        ("b", "INT32"),
        ("ts", "INT64"),
        ("ntz", "INT64"),
        ("d9", "INT32"),
        ("d18", "INT64"),
        ("d38", "FIXED_LEN_BYTE_ARRAY"),
        ("l.list.element", "INT64"),
        ("m.key_value.key", "BYTE_ARRAY"),
        ("m.key_value.value", "INT64"),
    ]
    times = [json.loads(leaves[i].logical_type.to_json()) for i in (2, 3)]
    assert [(t["timeUnit"], t["isAdjustedToUTC"]) for t in times] == [
        ("microseconds", True),
        ("microseconds", False),
    ]
    assert all(leaf.max_definition_level >= 1 for leaf in leaves[:7])
    assert file.metadata.metadata is None  # the table's schema is the only one


@pytest.mark.parametrize("by_table", [True, False])
def test_files_end_near_their_target(tmp_path: Path, by_table: bool) -> None:
    settings = {"delta.targetFileSize": "500000"} if by_table else {}
    snapshot = empty_table(tmp_path / "t", BIG.schema, configuration=settings)
    adds = direct_append(
        tmp_path / "t", snapshot, BIG.to_reader(10_000), target_file_size=None if by_table else 500_000
    )
    assert len(adds) > 2
    assert all(a.path.startswith(f"part-{number:05d}-") for number, a in enumerate(adds))
    assert all(400_000 < a.size < 600_000 for a in adds[:-1])
    assert len(rows_of(tmp_path / "t")) == BIG.num_rows


def test_a_target_must_be_positive(tmp_path: Path) -> None:
    snapshot = empty_table(tmp_path / "t", BIG.schema)
    with pytest.raises(UnsupportedOperationError, match="target_file_size is 0"):
        write(BIG, tmp_path / "t", snapshot, target_file_size=0)


def test_few_open_files_and_little_memory_are_enough_for_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFiles, "most_open", 3)
    monkeypatch.setattr(file_set, "PENDING_BYTES", 4000)
    monkeypatch.setattr(file_set, "GROUP_BYTES", 1000)
    data = pa.table({"v": list(range(5000)), "p": [i % 11 for i in range(5000)]})
    snapshot = empty_table(tmp_path / "t", data.schema, partition_by=["p"])
    most = 0
    opened = file_set._OpenFile.__init__

    def counted(self: Any, *args: Any) -> None:
        nonlocal most
        opened(self, *args)
        most = max(most, sum(p.name.startswith(".part") for p in data_files(tmp_path / "t")))

    monkeypatch.setattr(file_set._OpenFile, "__init__", counted)
    adds = direct_append(tmp_path / "t", snapshot, data.to_reader(100))
    assert most == 3
    assert len(adds) > 11
    assert sum(json.loads(a.stats or "")["numRecords"] for a in adds) == 5000
    read = pa.table(deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()).sort_by("v")
    assert read.to_pylist() == data.to_pylist()


def test_row_groups_have_the_rows_that_were_asked_for(tmp_path: Path) -> None:
    snapshot = empty_table(tmp_path / "t", BIG.schema)
    (add,) = direct_append(
        tmp_path / "t",
        snapshot,
        BIG.slice(0, 2500).to_reader(700),
        writer_properties=WriterProperties(max_row_group_size=1000),
    )
    footer = pq.ParquetFile(tmp_path / "t" / add.path).metadata
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [1000, 1000, 500]


@pytest.mark.parametrize(
    ("properties", "codec", "ending"),
    [
        (WriterProperties(), "UNCOMPRESSED", "c000.parquet"),
        (WriterProperties(compression="SNAPPY"), "SNAPPY", "c000.snappy.parquet"),
        (WriterProperties(compression="ZSTD", compression_level=7), "ZSTD", "c000.zstd.parquet"),
        (WriterProperties(compression="GZIP"), "GZIP", "c000.gz.parquet"),
        (WriterProperties(compression="BROTLI"), "BROTLI", "c000.br.parquet"),
        (WriterProperties(compression="LZ4_RAW"), "LZ4", "c000.lz4raw.parquet"),
    ],
)
def test_compression_and_file_names_are_those_of_delta_rs(
    tmp_path: Path, properties: WriterProperties, codec: str, ending: str
) -> None:
    empty_table(tmp_path / "theirs", ROWS.schema)
    snapshot = empty_table(tmp_path / "ours", ROWS.schema)
    (theirs,) = stock_append(tmp_path / "theirs", ROWS, writer_properties=properties)
    (ours,) = direct_append(tmp_path / "ours", snapshot, ROWS, writer_properties=properties)
    for root, add in ((tmp_path / "theirs", theirs), (tmp_path / "ours", ours)):
        assert add.path.endswith(ending)
        group = pq.ParquetFile(root / add.path).metadata.row_group(0)
        assert group.column(0).compression == codec
    assert rows_of(tmp_path / "ours") == rows_of(tmp_path / "theirs")


def test_pages_dictionaries_and_cuts_follow_the_properties(tmp_path: Path) -> None:
    properties = WriterProperties(
        data_page_size_limit=1000,
        dictionary_page_size_limit=1000,
        write_batch_size=100,
        statistics_truncate_length=3,
        default_column_properties=ColumnProperties(dictionary_enabled=False, statistics_enabled="PAGE"),
    )
    # they are left to delta-rs
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    write_deltalake(uri, BIG.slice(0, 1))
    write_deltalake(uri, BIG.slice(0, 5000), mode="append", writer_properties=properties)
    adds = require_handle(DeltaTable(uri)).source.adds()
    add = max(adds, key=lambda add: add.size)
    column = pq.ParquetFile(tmp_path / "t" / add.path).metadata.row_group(0).column(1)
    assert not column.has_dictionary_page
    assert column.has_column_index
    stats = json.loads(add.stats or "")
    assert (stats["minValues"]["text"], stats["maxValues"]["text"]) == ("000", "03:")


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([-1, -1001, 1001, None], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array([-1, -1001, 1001, None], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([-1, 1001], pa.timestamp("ms", "Europe/Berlin")), pa.timestamp("us", "UTC")),
        (pa.array([-1, 1001], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array(["a", None], pa.string_view()), pa.string()),
        (pa.array([b"a", None], pa.binary_view()), pa.binary()),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
        (pa.nulls(2), pa.string()),
        (pa.array([1, None], pa.int8()), pa.int64()),
        (pa.array([0.1, None], pa.float32()), pa.float64()),
        (pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)), pa.decimal128(10, 2)),
        (pa.array([[1, None], None], pa.large_list(pa.int8())), pa.list_(pa.int64())),
        (
            pa.array(
                [{"a": 1, "b": ["x"]}, None], pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string_view()))])
            ),
            pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
        ),
        (
            pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int16())),
            pa.map_(pa.string(), pa.int64()),
        ),
    ],
    ids=str,
)
def test_data_of_other_types_becomes_what_delta_rs_makes_of_it(
    tmp_path: Path, column: pa.Array, wanted: pa.DataType
) -> None:
    data = pa.table({"other": pa.array(range(len(column))), "c": column})
    schema = pa.schema([("c", wanted), ("other", pa.int64())])
    empty_table(tmp_path / "theirs", schema)
    snapshot = empty_table(tmp_path / "ours", schema)
    theirs = stats_of(stock_append(tmp_path / "theirs", data))
    ours = stats_of(direct_append(tmp_path / "ours", snapshot, data))
    for name in ("minValues", "maxValues", "nullCount"):
        assert same_bound(trimmed(ours[name]), trimmed(theirs[name]))
    assert rows_of(tmp_path / "ours") == rows_of(tmp_path / "theirs")
