"""The direct writer when data, disk or table say no: typed errors, and nothing left behind."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.exceptions import (
    DeltaError,
    OperationError,
    SchemaError,
    StorageError,
    UnsupportedOperationError,
)
from support.appends import data_files, direct_append, empty_table, write

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "part": ["x", "y", "x"]})
BIG = pa.table({"id": pa.array(range(200_000)), "text": [f"{i * 7919:09d}" for i in range(200_000)]})


@pytest.mark.parametrize("by", [[], ["name"]])
def test_a_null_in_a_not_null_column_is_refused_and_leaves_nothing(tmp_path: Path, by: list[str]) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    snapshot = empty_table(tmp_path / "t", schema, partition_by=by)
    good = pa.table({"id": [1], "name": ["x"]})
    bad = pa.table({"id": [1, 2], "name": ["x", None]})
    with pytest.raises(DeltaError, match="Invalid data found"):
        deltalake.write_deltalake(tmp_path / "t", bad, mode="append")
    with pytest.raises(SchemaError, match="Invalid data found: 1 rows failed validation check"):
        write(pa.concat_tables([good, bad]), tmp_path / "t", snapshot)
    assert data_files(tmp_path / "t") == []


def test_an_empty_text_in_a_not_null_partition_column_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    snapshot = empty_table(tmp_path / "t", schema, partition_by=["name"])
    with pytest.raises(SchemaError, match="NOT NULL"):
        direct_append(tmp_path / "t", snapshot, pa.table({"id": [1], "name": [""]}))


def test_a_partition_value_that_no_text_can_spell_is_refused(tmp_path: Path) -> None:
    data = pa.table({"v": [1], "d": pa.array([2_932_897], pa.int32()).cast(pa.date32())})
    snapshot = empty_table(tmp_path / "t", data.schema, partition_by=["d"])
    with pytest.raises(SchemaError, match="'d'"):
        direct_append(tmp_path / "t", snapshot, data)


def test_data_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    snapshot = empty_table(tmp_path / "t", BIG.schema)
    seen: list[Path] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield from BIG.to_batches(20_000)
        seen.extend(data_files(tmp_path / "t"))
        raise RuntimeError("the source broke off")

    reader = pa.RecordBatchReader.from_batches(BIG.schema, batches())
    with pytest.raises(OperationError, match="broke off") as caught:
        write(reader, tmp_path / "t", snapshot, target_file_size=300_000)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert any(p.name.startswith("part-") for p in seen)
    assert data_files(tmp_path / "t") == []


def test_files_are_hidden_until_they_are_whole(tmp_path: Path) -> None:
    snapshot = empty_table(tmp_path / "t", BIG.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in BIG.to_batches(20_000):
            for path in data_files(tmp_path / "t"):
                if not path.name.startswith("."):
                    assert pq.ParquetFile(path).metadata.num_rows
            yield batch

    reader = pa.RecordBatchReader.from_batches(BIG.schema, batches())
    adds = write(reader, tmp_path / "t", snapshot, target_file_size=300_000, fsync=False)
    assert [p.name for p in data_files(tmp_path / "t")] == sorted(a.path for a in adds)


def test_a_disk_that_takes_no_more_gives_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    snapshot = empty_table(tmp_path / "t", BIG.schema)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot write"):
            write(BIG, tmp_path / "t", snapshot, fsync=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert data_files(tmp_path / "t") == []


def test_a_root_that_is_a_file_gives_a_typed_error(tmp_path: Path) -> None:
    snapshot = empty_table(tmp_path / "t", ROWS.schema, partition_by=["part"])
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        write(ROWS, tmp_path / "file", snapshot)


def test_what_is_not_eligible_is_not_written(tmp_path: Path) -> None:
    snapshot = empty_table(tmp_path / "t", ROWS.schema)
    with pytest.raises(UnsupportedOperationError, match="other columns"):
        write(ROWS.drop_columns(["id"]), tmp_path / "t", snapshot)
    assert data_files(tmp_path / "t") == []


def test_files_and_all_new_folders_reach_the_disk_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    data = pa.table({"v": [1], "a": [1], "b": [date(2024, 1, 1)]})
    snapshot = empty_table(tmp_path / "t", data.schema, partition_by=["a", "b"])
    write(data, tmp_path / "t", snapshot, fsync=False)
    assert synced == []
    data = data.set_column(1, "a", [[2]])
    (add,) = write(data, tmp_path / "t", snapshot, fsync=True)
    folder, _, name = add.path.rpartition("/")
    root = tmp_path / "t"
    assert synced[0] == str(root / folder / name)
    assert set(synced[1:]) == {str(root), str(root / "a=2"), str(root / folder)}
