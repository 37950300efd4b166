"""A folder of Parquet files becomes a table in place, as stock would have it, or better."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb import CommitProperties, DeltaTable, Field, Schema, convert_to_deltalake, write_deltalake
from deltalakedb.exceptions import AddressError, InvalidArgumentError, TableExistsError
from support.lake import every_type, files_below
from support.twins import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

SQLITE = pytest.mark.parametrize("engine_name", ["sqlite"])
PARTS = Schema([Field("year", "integer"), Field("name", "string")])


def folder(root: Path, *paths: str) -> Path:
    """Parquet files at some paths."""
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(every_type(number * 10, 3).drop_columns(["part", "day"]), root / path)
    return root


HIVE = ("year=2020/name=a/1.parquet", "year=2020/name=b c/2.parquet", "year=2021/name=é/sub.parquet")
BARE = ("2020/a/1.parquet", "2021/b/2.parquet")
WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "flat": (("1.parquet", "2 with space.parquet", "notes.txt.parquet"), {}),
    "hive": (HIVE, {"partition_by": PARTS, "partition_strategy": "hive"}),
    "directory": (BARE, {"partition_by": PARTS, "partition_strategy": "directory"}),
    "without statistics": (("1.parquet",), {"collect_stats": False}),
    "with words": (
        ("1.parquet",),
        {
            "name": "n",
            "description": "d",
            "configuration": {"delta.appendOnly": "true"},
            "commit_properties": CommitProperties(custom_metadata={"who": "me"}),
        },
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_is_converted_where_it_lies(table_uri: TableUri, tmp_path: Path, way: str) -> None:
    paths, options = WAYS[way]
    plain, root = folder(tmp_path / "plain", *paths), folder(tmp_path / "lake" / "t", *paths)
    (root / "readme.txt").write_text("not data")
    before = files_below(root)
    deltalake.convert_to_deltalake(plain, **options)
    convert_to_deltalake(table_uri("t"), **options)
    assert {f for f in files_below(root) if not f.startswith("_delta_log")} == before
    ours, stock = DeltaTable(table_uri("t")), deltalake.DeltaTable(plain)
    assert rows_of(ours) == rows_of(stock) == rows_of(deltalake.DeltaTable(root))
    assert ours.schema() == stock.schema()
    assert ours.partitions() == stock.partitions() or ours.metadata().partition_columns
    mine, theirs = ours.history()[0], stock.history()[0]
    assert mine["operation"] == theirs["operation"] == "CONVERT"
    assert mine["operationParameters"] == theirs["operationParameters"]
    assert set(theirs) <= set(mine)
    assert ours.metadata().name == stock.metadata().name
    assert ours.metadata().configuration == stock.metadata().configuration
    assert sorted(
        map(str, pa.table(ours.get_add_actions(flatten=True))["num_records"].to_pylist())
    ) == sorted(map(str, pa.table(stock.get_add_actions(flatten=True))["num_records"].to_pylist()))


@SQLITE
def test_values_that_hive_has_escaped_are_found_again(table_uri: TableUri, tmp_path: Path) -> None:
    """Stock decodes the folder's name and then does not find the file."""
    root = folder(
        tmp_path / "lake" / "t",
        "year=2020/name=a%2Fb/1.parquet",
        "year=2020/name=50%25/2.parquet",
        "year=2020/name=__HIVE_DEFAULT_PARTITION__/3.parquet",
    )
    convert_to_deltalake(table_uri("t"), partition_by=PARTS, partition_strategy="hive")
    for table in (DeltaTable(table_uri("t")), deltalake.DeltaTable(root)):
        found = rows_of(table)
        assert len(found) == 9
        assert {r["name"] for r in found} == {"a/b", "50%", None}


@SQLITE
def test_what_cannot_be_converted_is_left_alone(table_uri: TableUri, tmp_path: Path) -> None:
    root = tmp_path / "lake" / "t"
    with pytest.raises(deltalake.exceptions.DeltaError, match="No parquet file"):
        convert_to_deltalake(table_uri("t"))
    assert not root.exists()
    root.mkdir(parents=True)
    plain = tmp_path / "plain"
    plain.mkdir()
    cases: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        ((), {}),
        (("year=2020/1.parquet",), {}),
        (("year=2020/1.parquet",), {"partition_by": PARTS}),
        (("year=2020/1.parquet",), {"partition_by": PARTS, "partition_strategy": "hive"}),
        (("year=x/name=y/1.parquet",), {"partition_by": PARTS, "partition_strategy": "hive"}),
        (("2020/1.parquet",), {"partition_by": PARTS, "partition_strategy": "directory"}),
        (("1.parquet",), {"partition_strategy": "no such"}),
    ]
    for paths, options in cases:
        for place in (root, plain):
            shutil.rmtree(place)
            place.mkdir()
            folder(place, *paths)
        before = files_below(root)
        with pytest.raises(Exception) as theirs:
            deltalake.convert_to_deltalake(plain, **options)
        with pytest.raises(type(theirs.value)):
            convert_to_deltalake(table_uri("t"), **options)
        assert files_below(root) == before
        assert not DeltaTable.is_deltatable(table_uri("t"))
    with pytest.raises(AddressError, match="has no location"):
        convert_to_deltalake(table_uri("t").partition("&location")[0])
    folder(root, "a%20b.parquet", "a b.parquet")
    with pytest.raises(InvalidArgumentError, match="same name"):
        convert_to_deltalake(table_uri("t"))


@SQLITE
def test_a_table_that_exists_is_not_converted_again(table_uri: TableUri, tmp_path: Path) -> None:
    folder(tmp_path / "lake" / "t", "1.parquet")
    convert_to_deltalake(table_uri("t"))
    with pytest.raises(TableExistsError):
        convert_to_deltalake(table_uri("t"))
    convert_to_deltalake(table_uri("t"), mode="ignore")
    write_deltalake(
        table_uri("t"), every_type(100, 2).drop_columns(["part", "day"]), mode="append", schema_mode="merge"
    )
    assert len(rows_of(DeltaTable(table_uri("t")))) == 5
    plain = tmp_path / "lake" / "other"
    deltalake.write_deltalake(plain, every_type(0, 2))
    with pytest.raises(TableExistsError, match="import_table"):
        convert_to_deltalake(table_uri("other"))
    # plain paths are stock's own
    convert_to_deltalake(folder(tmp_path / "third", "1.parquet"))
    assert deltalake.DeltaTable.is_deltatable(str(tmp_path / "third"))
