"""What programs written for ``deltalake`` rely on besides rows: shapes of data, words, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

import deltalakedb
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from conftest import TableUri

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)


class Made(Sequence[pa.RecordBatch]):
    """Batches that are made one after the other; nobody knows how many."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (self[at] for at in range(len(self._numbers)))

    def __getitem__(self, at: Any) -> Any:
        return ids(self._numbers[at]).to_batches()[0]

    def __len__(self) -> int:
        raise NotImplementedError


def test_a_sequence_of_batches_of_any_kind_is_written(table_uri: TableUri) -> None:
    uri = table_uri("t")
    deltalakedb.write_deltalake(uri, Made(1, 2))
    deltalakedb.write_deltalake(uri, Made(3), mode="append")
    deltalakedb.write_deltalake(uri, ids(4).to_batches(), mode="append")
    assert ids_of(deltalakedb.DeltaTable(uri)) == [1, 2, 3, 4]
    for nothing in ("id", b"id", []):
        with pytest.raises(ValueError, match="cannot be read"):
            deltalakedb.write_deltalake(uri, nothing, mode="append")


def test_a_conflict_is_told_in_the_words_that_programs_look_for(table_uri: TableUri, tmp_path: Path) -> None:
    made: list[tuple[ModuleType, str]] = [(deltalake, str(tmp_path / "plain")), (deltalakedb, table_uri("t"))]
    for package, where in made:
        package.write_deltalake(where, ids(1, 2))
        late = package.DeltaTable(where, version=0)
        package.write_deltalake(where, ids(3), mode="overwrite")
        with pytest.raises(
            CommitFailedError, match="a concurrent transaction deleted data this operation read"
        ):
            late.delete("id = 1")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delta.dataSkippingNumIndexedCols": "2"},
        {"delta.dataSkippingNumIndexedCols": "0"},
        {"delta.dataSkippingNumIndexedCols": "-1"},
        {"delta.dataSkippingStatsColumns": "a,c"},
    ],
)
def test_add_actions_tell_of_the_columns_that_have_statistics(
    properties: dict[str, str], table_uri: TableUri, tmp_path: Path
) -> None:
    rows = pa.table({name: [1] for name in ("part", "a", "b", "c", *(f"x{n}" for n in range(40)))})
    found = []
    for package, where in ((deltalake, str(tmp_path / "plain")), (deltalakedb, table_uri("t"))):
        package.write_deltalake(where, rows, partition_by=["part"], configuration=properties)
        package.write_deltalake(where, rows, mode="append")
        table = package.DeltaTable(where)
        nested, flat = (pa.table(table.get_add_actions(flatten=f)) for f in (False, True))
        varies = ["path", "size_bytes", "modification_time"]
        found.append(
            (nested.schema, flat.schema, *(t.drop_columns(varies).to_pylist() for t in (nested, flat)))
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("column", ["a:b", "file:", "s3:x"])
def test_a_partition_column_with_a_colon_in_its_name(
    table_uri: TableUri, tmp_path: Path, column: str
) -> None:
    uri, root = table_uri("t"), str(tmp_path / "lake" / "t")
    for number in (1, 2):
        rows = pa.table({"id": [number], column: ["x"]})
        deltalakedb.write_deltalake(uri, rows, partition_by=[column], mode="append")
    table = deltalakedb.DeltaTable(uri)
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    again = f"deltasql://sqlite/{tmp_path}/second.db?table=t"
    deltalakedb.import_table(root, again)
    for found in (deltalakedb.DeltaTable(uri), deltalakedb.DeltaTable(again), deltalake.DeltaTable(root)):
        assert sorted(found.to_pyarrow_table()["id"].to_pylist()) == [1, 2]
