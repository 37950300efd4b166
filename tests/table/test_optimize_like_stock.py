"""Compaction and z-order: the same files come together as in stock, no row changes, appends go on."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb import Catalog, CommitProperties, DeltaTable, WriterProperties, import_table, write_deltalake
from deltalakedb.exceptions import ConflictError, DeltaError
from deltalakedb.table.handle import require_handle
from deltalakedb.table.optimize import bins
from support.lake import files_below, ids, ids_of, root_of
from support.twins import Twins, rows_of, sales

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from conftest import TableUri

SQLITE = pytest.mark.parametrize("engine_name", ["sqlite"])
#: with metadata of its own a commit is written by delta-rs on both sides, so that sizes are the same
BY_DELTA_RS = CommitProperties(custom_metadata={"by": "delta-rs"})


def rows(start: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64())})


def appended(twins: Twins, counts: Sequence[int]) -> None:
    """One file for each count, of as many rows."""
    for number, count in enumerate(counts):
        twins.write(rows(number * 10_000, count), mode="append", commit_properties=BY_DELTA_RS)


def ranges(table: deltalake.DeltaTable) -> set[tuple[int, int]]:
    found = pa.table(table.get_add_actions(flatten=True))
    return set(zip(found["min.id"].to_pylist(), found["max.id"].to_pylist(), strict=True))


def sizes(table: deltalake.DeltaTable) -> list[int]:
    found: list[int] = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    return sorted(found)


def test_files_of_each_partition_become_one(twins: Twins) -> None:
    for start in (0, 10, 20):
        twins.write(sales(*range(start, start + 10)), mode="append", partition_by=["place"])
    twins.both(lambda t: t.optimize.compact(partition_filters=[("place", "=", "a b")]))
    twins.both(lambda t: t.optimize.compact(partition_filters=[("place", "in", ["x", "y"])]))
    twins.both(lambda t: t.optimize.compact())
    twins.both(lambda t: t.optimize.compact())
    ours, stock = twins.open()
    assert ours.version() == 5, "the last one found nothing to do"
    assert len(ours.file_uris()) == len(stock.file_uris()) == 5
    for line in (root_of(ours) / "_delta_log" / f"{5:020}.json").read_text().splitlines():
        action = json.loads(line)
        for kind in ("add", "remove"):
            assert kind not in action or action[kind]["dataChange"] is False
    info = ours.history(1)[0]
    assert info["isolationLevel"] == "SnapshotIsolation"
    twins.both(lambda t: t.optimize.z_order(["id"], partition_filters=[("place", "=", "x")]))
    twins.both(lambda t: t.optimize.z_order(["amount", "id"]))


@SQLITE
@pytest.mark.parametrize("target", [1, 3_000, 9_000, 30_000])
def test_the_same_neighbours_come_together_as_in_stock(twins: Twins, target: int) -> None:
    appended(twins, [10, 3000, 10, 10, 900, 300, 2000, 20, 20, 20, 5000, 10])
    ours, stock = twins.open()
    assert sizes(ours) == sizes(stock)
    twins.both(lambda t: t.optimize.compact(target_size=target))
    ours, stock = twins.open()
    assert ranges(ours) == ranges(stock)
    twins.both(lambda t: t.optimize.compact(target_size=target))
    assert ranges(DeltaTable(twins.uri)) == ranges(deltalake.DeltaTable(twins.plain))


@SQLITE
def test_the_table_says_how_large_files_should_be(twins: Twins) -> None:
    appended(twins, [100, 100, 100, 100])
    size = sizes(DeltaTable(twins.uri))[0]
    for table in twins.open():
        table.alter.set_table_properties({"delta.targetFileSize": str(size * 2 + 100)})
    twins.both(lambda t: t.optimize.compact())
    ours, stock = twins.open()
    assert ranges(ours) == ranges(stock) == {(20_000, 30_099), (0, 10_099)}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12)), max_size=12), st.integers(1, 12))
def test_bins_hold_neighbours_that_fit(files: list[tuple[str, int]], target: int) -> None:
    found = bins(files, target)
    for one in found:
        assert len(one) > 1
        assert sum(files[n][1] for n in one) <= target
        (group,) = {files[n][0] for n in one}
        of_group = [n for n, file in enumerate(files) if file[0] == group]
        places = [of_group.index(n) for n in one]
        assert places == list(range(places[0], places[-1] + 1)), "neighbours, in their order"
    taken = [n for one in found for n in one]
    assert len(taken) == len(set(taken))
    # two neighbours that stayed alone would not have fitted
    for group in "ab":
        alone = [n for n, file in enumerate(files) if file[0] == group]
        for left, right in pairwise(alone):
            if left not in taken and right not in taken:
                assert files[left][1] + files[right][1] > target


def test_several_commits_where_each_partition_shall_have_its_own(twins: Twins) -> None:
    for start in (0, 10):
        twins.write(sales(*range(start, start + 10)), mode="append", partition_by=["place"])
    twins.both(lambda t: t.optimize.compact(min_commit_interval=timedelta(0)))
    ours, stock = twins.open()
    assert ours.version() == stock.version() == 6
    assert {h["operation"] for h in ours.history(5)} == {"OPTIMIZE"}
    assert sorted(h["operationMetrics"]["numFilesRemoved"] for h in ours.history(5)) == sorted(
        h["operationMetrics"]["numFilesRemoved"] for h in stock.history(5)
    )


@SQLITE
def test_arguments_reach_delta_rs(twins: Twins) -> None:
    appended(twins, [10, 10])
    properties = WriterProperties(compression="GZIP")
    notes = CommitProperties(custom_metadata={"who": "me", "userName": "somebody"})

    def compact(table: Any) -> Any:
        return table.optimize.compact(
            max_concurrent_tasks=1,
            max_spill_size=100_000_000,
            max_temp_directory_size=100_000_000,
            writer_properties=properties,
            commit_properties=notes,
        )

    twins.both(compact)
    (uri,) = DeltaTable(twins.uri).file_uris()
    assert pq.read_metadata(uri).row_group(0).column(0).compression == "GZIP"
    info = DeltaTable(twins.uri).history(1)[0]
    assert (info["who"], info["userName"]) == ("me", "somebody")


@SQLITE
def test_what_stock_refuses_is_refused_alike(twins: Twins) -> None:
    twins.write(sales(1, 2, 3), partition_by=["place"])
    for refused in (
        lambda t: t.optimize.compact(target_size=0),
        lambda t: t.optimize.compact(target_size=-1),
        lambda t: t.optimize.compact(partition_filters=[("nowhere", "=", "x")]),
        lambda t: t.optimize.z_order([]),
        lambda t: t.optimize.z_order(["nowhere"]),
        lambda t: t.optimize.z_order(["place"]),
    ):
        twins.both_fail(refused)


def test_appends_and_a_compaction_do_not_disturb_each_other(table_uri: TableUri, catalog_uri: str) -> None:
    uri = table_uri("t")
    for number in range(3):
        write_deltalake(uri, ids(number), mode="append")
    slow, quick = DeltaTable(uri), DeltaTable(uri)
    slow.load_as_version(2)
    write_deltalake(uri, ids(3), mode="append")
    slow.optimize.compact()
    assert slow.version() == 4
    assert ids_of(DeltaTable(uri)) == [0, 1, 2, 3]
    # a delete that read files before they were put together has lost them
    quick.load_as_version(3)
    with pytest.raises(ConflictError):
        quick.delete("id = 1")
    late = DeltaTable(uri)
    late.load_as_version(3)
    before = files_below(root_of(late))
    with pytest.raises(ConflictError):
        late.optimize.compact()
    assert files_below(root_of(late)) == before
    assert ids_of(DeltaTable(uri)) == ids_of(deltalake.DeltaTable(late.table_uri)) == [0, 1, 2, 3]
    with Catalog(catalog_uri) as catalog:
        assert catalog.mirror.verify("t").ok


@pytest.mark.golden
@SQLITE
def test_rows_under_deletion_vectors_stay_deleted(table_uri: TableUri, tmp_path: Path, golden: Path) -> None:
    root = tmp_path / "lake" / "t"
    shutil.copytree(golden / "tables" / "delta" / "dv-partitioned-with-checkpoint", root)
    import_table(str(root), table_uri("t"))
    table = DeltaTable(table_uri("t"))
    before = rows_of(table)
    done = table.optimize.compact()
    assert done["numFilesRemoved"] > done["numFilesAdded"] > 0
    assert rows_of(DeltaTable(table_uri("t"))) == before
    assert rows_of(deltalake.DeltaTable(str(root))) == before
    left = require_handle(table).source.scan(("dv_id", "num_records")).to_pylist()
    assert len([r for r in left if r["dv_id"]]) < done["numFilesRemoved"]


@pytest.mark.golden
@SQLITE
@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("dv-with-columnmapping", "col2"),
        ("table-with-columnmapping-mode-id", "IntegerType"),
        ("table-with-columnmapping-mode-name", "StringType"),
    ],
)
def test_mapped_columns_keep_their_names_and_ids(
    table_uri: TableUri, tmp_path: Path, golden: Path, name: str, column: str
) -> None:
    def rows(table: deltalake.DeltaTable) -> list[str]:
        return sorted(map(str, pa.table(table.scan()).to_pylist()))

    def identities(path: str) -> list[tuple[str, bytes]]:
        return [(f.name, f.metadata[b"PARQUET:field_id"]) for f in pq.read_schema(path)]

    root = tmp_path / "lake" / "t"
    shutil.copytree(golden / "tables" / "delta" / name, root)
    import_table(str(root), table_uri("t"))
    table = DeltaTable(table_uri("t"))
    before, old = rows(table), identities(table.file_uris()[0])
    partition = [("part", "=", "1")] if table.metadata().partition_columns else None
    ways = [
        lambda t: t.optimize.compact(partition_filters=partition),
        lambda t: t.optimize.compact(),
        lambda t: t.optimize.z_order([column]),
    ]
    for optimize in ways:
        kept = set(table.file_uris())
        done = optimize(table)
        if not done["numFilesAdded"]:
            continue
        new = set(table.file_uris()) - kept
        assert len(new) == done["numFilesAdded"]
        assert {tuple(identities(path)) for path in new} == {tuple(old)}
        assert rows(DeltaTable(table_uri("t"))) == rows(deltalake.DeltaTable(str(root))) == before
        info = table.history(1)[0]
        assert info["operation"] == "OPTIMIZE"
        assert "col-" not in str(info["operationParameters"])
    assert table.version() > 0
    # what the new files say of themselves is used for planning
    some = table.to_pyarrow_table(columns=[column]).column(0).drop_null()[0].as_py()
    assert some in table.to_pyarrow_table(filters=[(column, "=", some)]).column(column).to_pylist()

    with pytest.raises(DeltaError):
        table.optimize.z_order(["nowhere"])
