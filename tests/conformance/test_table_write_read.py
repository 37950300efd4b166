"""Writing and reading tables from SQL alone: modes, schemas, properties, inputs and time travel."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from deltalakedb import Catalog, CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalakedb.exceptions import (
    DeltaError,
    InvalidArgumentError,
    TableExistsError,
    VersionMissingError,
)
from support.lake import every_type, files_below, hidden_log, ids, ids_of, root_of

if TYPE_CHECKING:
    from conftest import TableUri


@pytest.mark.parametrize("partition_by", [None, ["part"], ["part", "day"]])
def test_every_type_comes_back_as_it_went(table_uri: TableUri, partition_by: list[str] | None) -> None:
    uri, rows = table_uri("t"), every_type()
    write_deltalake(uri, rows, partition_by=partition_by)
    write_deltalake(uri, every_type(6), mode="append")
    table = DeltaTable(uri)
    found = table.to_pyarrow_table().sort_by("id")
    assert found.slice(0, 6).to_pylist() == rows.to_pylist()
    assert len(found) == 12
    assert table.metadata().partition_columns == (partition_by or [])
    with hidden_log(root_of(table)):
        again = DeltaTable(uri)
        assert again.to_pyarrow_table().sort_by("id").equals(found)
        assert again.to_pandas().shape == (12, len(rows.column_names))
        assert len(again.file_uris()) == len(table.file_uris())
        assert len(again.history()) == 2
        read = pa.RecordBatchReader.from_stream(again.scan()).read_all().sort_by("id")
        assert read.to_pylist() == found.to_pylist()


def test_the_modes_do_what_stock_does(table_uri: TableUri, tmp_path: Path) -> None:
    uri, plain = table_uri("t"), str(tmp_path / "plain")
    steps: list[tuple[str, pa.Table]] = [
        ("error", ids(1)),
        ("append", ids(2)),
        ("ignore", ids(3)),
        ("overwrite", ids(4, 5)),
        ("append", ids(6)),
        ("overwrite", ids()),
        ("append", ids()),
        ("append", ids(7)),
    ]
    for mode, rows in steps:
        write_deltalake(uri, rows, mode=mode)  # type: ignore[arg-type]
        deltalake.write_deltalake(plain, rows, mode=mode)  # type: ignore[call-overload]
        ours, stock = DeltaTable(uri), deltalake.DeltaTable(plain)
        assert ids_of(ours) == ids_of(stock), mode
        assert ours.version() == stock.version(), mode
    with pytest.raises(TableExistsError):
        write_deltalake(uri, ids(9))
    with pytest.raises(FileExistsError):  # what a caller of stock may catch
        write_deltalake(uri, ids(9), mode="error")
    with pytest.raises(InvalidArgumentError):
        write_deltalake(uri, ids(9), mode="upsert")  # type: ignore[arg-type]
    assert DeltaTable(uri).version() == stock.version()


@pytest.mark.parametrize("mode", ["append", "overwrite", "ignore"])
def test_any_mode_creates_a_table_that_is_not_there(table_uri: TableUri, mode: Any) -> None:
    write_deltalake(table_uri("t"), ids(1), mode=mode)
    assert ids_of(DeltaTable(table_uri("t"))) == [1]


def test_an_empty_table_is_a_table(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(), partition_by=["part"])
    table = DeltaTable(table_uri("t"))
    assert (table.version(), ids_of(table)) == (0, [])
    assert table.to_pyarrow_table().column_names == ["id", "part"]
    assert table.partitions() == []
    assert pa.table(table.get_add_actions(flatten=True)).num_rows == 0


def test_create_makes_an_empty_table_with_all_that_was_said(table_uri: TableUri) -> None:
    schema = deltalake.Schema.from_arrow(ids().schema)
    table = DeltaTable.create(
        table_uri("t"),
        schema,
        partition_by="part",
        name="a name",
        description="what it is",
        configuration={"delta.appendOnly": "false"},
    )
    assert isinstance(table, DeltaTable)
    assert table.version() == 0
    assert table.schema() == schema
    metadata = table.metadata()
    assert (metadata.name, metadata.description) == ("a name", "what it is")
    assert metadata.partition_columns == ["part"]
    assert metadata.configuration == {"delta.appendOnly": "false"}
    stock = deltalake.DeltaTable(table.table_uri).metadata()
    assert (stock.id, stock.configuration) == (metadata.id, metadata.configuration)
    with pytest.raises(TableExistsError):
        DeltaTable.create(table_uri("t"), schema)
    assert DeltaTable.create(table_uri("t"), schema, mode="ignore").version() == 0


def test_create_with_overwrite_replaces_schema_and_rows(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1, 2))
    other = deltalake.Schema.from_arrow(pa.schema([("other", pa.string())]))
    table = DeltaTable.create(table_uri("t"), other, mode="overwrite")
    assert table.version() == 1
    assert table.schema() == other
    assert table.to_pyarrow_table().num_rows == 0
    stock = deltalake.DeltaTable(table.table_uri)
    assert stock.schema() == other
    assert stock.to_pyarrow_table().num_rows == 0
    assert ids_of(DeltaTable(table_uri("t"), version=0)) == [1, 2]


def test_properties_of_a_written_table_are_kept(table_uri: TableUri) -> None:
    kept = {"delta.logRetentionDuration": "interval 1 days"}
    write_deltalake(table_uri("t"), ids(1), name="n", description="d", configuration=kept)
    for table in (DeltaTable(table_uri("t")), deltalake.DeltaTable(DeltaTable(table_uri("t")).table_uri)):
        metadata = table.metadata()
        assert (metadata.name, metadata.description) == ("n", "d")
        assert metadata.configuration == kept


def test_rows_that_do_not_fit_leave_nothing_behind(catalog: Catalog, table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1), partition_by=["part"])
    root = root_of(DeltaTable(uri))
    before = files_below(root)
    rows_before = catalog.query("SELECT count(*) AS n FROM dl_audit").to_pylist()
    wrong = pa.table({"id": ["text"], "part": ["a"], "extra": [1]})
    for options in ({"mode": "append"}, {"mode": "overwrite"}):
        with pytest.raises(DeltaError):
            write_deltalake(uri, wrong, **options)  # type: ignore[arg-type]
    with pytest.raises(DeltaError):
        write_deltalake(uri, ids(2), mode="append", partition_by=["id"])
    assert files_below(root) == before
    assert not (root / "_deltasql").exists()
    assert DeltaTable(uri).version() == 0
    assert catalog.query("SELECT count(*) AS n FROM dl_audit").to_pylist() == rows_before


def test_a_table_that_cannot_be_created_leaves_no_folder(
    catalog: Catalog, table_uri: TableUri, tmp_path: Path
) -> None:
    with pytest.raises(DeltaError):
        write_deltalake(table_uri("t"), ids(1), partition_by=["nope"])
    assert catalog.tables() == []
    assert not (tmp_path / "lake" / "t").exists()
    (tmp_path / "lake" / "t").mkdir()  # a folder that was there before stays
    with pytest.raises(DeltaError):
        write_deltalake(table_uri("t"), ids(1), partition_by=["nope"])
    assert list((tmp_path / "lake" / "t").iterdir()) == []
    write_deltalake(table_uri("t"), ids(1))
    assert ids_of(DeltaTable(table_uri("t"))) == [1]


def test_a_source_that_breaks_midway_commits_nothing(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    before = files_below(root_of(DeltaTable(uri)))

    def batches() -> Any:
        yield ids(2).to_batches()[0]
        raise RuntimeError("the source broke")

    reader = pa.RecordBatchReader.from_batches(ids().schema, batches())
    with pytest.raises((DeltaError, RuntimeError)):
        write_deltalake(uri, reader, mode="append")
    assert ids_of(DeltaTable(uri)) == [1]
    assert files_below(root_of(DeltaTable(uri))) == before


def test_schema_merge_adds_a_column_and_overwrite_replaces_all(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    wider = pa.table({"id": [2], "part": ["b"], "extra": [0.5]})
    write_deltalake(uri, wider, mode="append", schema_mode="merge")
    found = DeltaTable(uri).to_pyarrow_table().sort_by("id")
    assert found["extra"].to_pylist() == [None, 0.5]
    stock = deltalake.DeltaTable(DeltaTable(uri).table_uri)
    assert stock.to_pyarrow_table().sort_by("id").equals(found)
    write_deltalake(uri, ids(3), mode="append", schema_mode="merge")
    assert DeltaTable(uri).to_pyarrow_table().sort_by("id")["extra"].to_pylist() == [None, 0.5, None]
    write_deltalake(uri, pa.table({"x": ["y"]}), mode="overwrite", schema_mode="overwrite")
    assert DeltaTable(uri).to_pyarrow_table().to_pylist() == [{"x": "y"}]
    assert deltalake.DeltaTable(DeltaTable(uri).table_uri).to_pyarrow_table().to_pylist() == [{"x": "y"}]
    for version, names in enumerate(
        [["id", "part"], ["id", "part", "extra"], ["id", "part", "extra"], ["x"]]
    ):
        old = DeltaTable(uri, version=version)
        assert [f.name for f in old.schema().fields] == names
        assert old.to_pyarrow_table().column_names == names


def test_custom_metadata_and_application_transactions_are_recorded(table_uri: TableUri) -> None:
    uri = table_uri("t")
    said = CommitProperties(custom_metadata={"job": "nightly"}, app_transactions=[Transaction("stream", 7)])
    write_deltalake(uri, ids(1), commit_properties=said)
    write_deltalake(
        uri,
        ids(2),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("stream", 8, 5)]),
    )
    table = DeltaTable(uri)
    stock = deltalake.DeltaTable(table.table_uri)
    assert table.transaction_version("stream") == stock.transaction_version("stream") == 8
    assert table.transaction_version("other") is None
    assert DeltaTable(uri, version=0).transaction_version("stream") == 7
    assert table.history()[-1]["job"] == "nightly"
    assert stock.history()[-1]["job"] == "nightly"


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t,
        lambda t: t.to_reader(),
        lambda t: t.to_batches()[0],
        lambda t: t.to_pandas(),
        lambda t: pl.from_arrow(t),
        lambda t: pa.dataset.dataset(t).scanner().to_reader(),
    ],
    ids=["table", "reader", "batch", "pandas", "polars", "scanner"],
)
def test_anything_that_speaks_arrow_can_be_written(table_uri: TableUri, make: Any) -> None:
    uri = table_uri("t")
    write_deltalake(uri, make(ids(1, 2)))
    write_deltalake(uri, make(ids(3)), mode="append")
    assert ids_of(DeltaTable(uri)) == [1, 2, 3]


def test_time_travel_by_number_datetime_and_text(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    for number in range(1, 4):
        write_deltalake(uri, ids(number), mode="overwrite")
    table = DeltaTable(uri)
    times = {h["version"]: h["timestamp"] for h in table.history()}
    assert sorted(times.values()) == [times[v] for v in range(4)]
    assert len(set(times.values())) == 4
    for version, milliseconds in times.items():
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
        for asked in (version, moment, moment.replace(tzinfo=None), moment.isoformat()):
            table.load_as_version(asked)
            assert (table.version(), ids_of(table)) == (version, [version])
        if version:
            table.load_as_version(moment - timedelta(milliseconds=1))
            assert table.version() == version - 1
    table.load_as_version("2999-01-01T00:00:00Z")
    assert table.version() == 3
    table.load_as_version(1)
    assert [h["version"] for h in table.history()] == [1, 0]
    table.update_incremental()
    assert table.version() == 3
    with hidden_log(root_of(table)):
        assert [ids_of(DeltaTable(uri, version=v)) for v in range(4)] == [[0], [1], [2], [3]]


def test_versions_and_times_that_are_not_there(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    with pytest.raises(VersionMissingError) as caught:
        DeltaTable(uri, version=5)
    assert caught.value.version == 5
    assert "0 to 0" in (caught.value.suggestion or "")
    table = DeltaTable(uri)
    with pytest.raises(VersionMissingError):
        table.load_as_version(2**40)
    for wrong in (-1, 2**70, True, 1.5, None):
        with pytest.raises((InvalidArgumentError, TypeError)):
            table.load_as_version(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        table.load_as_version("yesterday")
    assert (table.version(), ids_of(table)) == (0, [1])


def test_history_is_limited_and_newest_first(table_uri: TableUri) -> None:
    uri = table_uri("t")
    for number in range(4):
        write_deltalake(uri, ids(number), mode="append")
    table = DeltaTable(uri)
    assert [h["version"] for h in table.history()] == [3, 2, 1, 0]
    assert [h["version"] for h in table.history(2)] == [3, 2]
    assert table.history(0) == []
    with pytest.raises(InvalidArgumentError):
        table.history(-1)


def test_a_table_is_stocks_class_and_survives_pickling(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    write_deltalake(uri, ids(2), mode="append")
    table = DeltaTable(uri, version=0)
    assert isinstance(table, deltalake.DeltaTable)
    again = pickle.loads(pickle.dumps(table))
    assert (again.version(), ids_of(again)) == (0, [1])
    assert again == table
    assert table != DeltaTable(uri)
    assert table != deltalake.DeltaTable(table.table_uri)


def test_an_open_table_can_be_written_to_and_moves_along(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    table = DeltaTable(uri)
    write_deltalake(table, ids(2), mode="append")
    assert (table.version(), ids_of(table)) == (1, [1, 2])


def test_a_users_own_subclass_keeps_its_methods(table_uri: TableUri) -> None:
    class Mine(DeltaTable):
        def count(self) -> int:
            return len(ids_of(self))

    write_deltalake(table_uri("t"), ids(1, 2))
    mine = Mine(table_uri("t"))
    assert mine.count() == 2
    assert isinstance(mine, Mine)


def test_stock_code_that_is_handed_our_table_writes_to_sql(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1))
    table = DeltaTable(table_uri("t"))
    deltalake.write_deltalake(table, ids(2), mode="append")
    deltalake.DeltaTable.delete(table, "id = 1")
    assert ids_of(DeltaTable(table_uri("t"))) == [2]
    assert DeltaTable(table_uri("t")).version() == table.version() == 2


def test_operations_of_the_raw_table_that_are_not_offered_never_lose_a_write(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1))
    table = DeltaTable(table_uri("t"))
    with pytest.raises(AttributeError):
        table._table.something_that_delta_rs_may_learn_to_do()
    assert ids_of(DeltaTable(table_uri("t"))) == [1]
    assert DeltaTable(table_uri("t")).version() == 0


def test_plain_paths_stay_stock(tmp_path: Path) -> None:
    path = str(tmp_path / "plain")
    write_deltalake(path, ids(1))
    write_deltalake(path, ids(2), mode="append")
    table = DeltaTable(path)
    assert isinstance(table, deltalake.DeltaTable)
    assert ids_of(table) == [1, 2]
    table.delete("id = 1")
    write_deltalake(table, ids(3), mode="append")
    assert ids_of(DeltaTable(path)) == [2, 3]
    assert DeltaTable.is_deltatable(path)
    assert not DeltaTable.is_deltatable(str(tmp_path / "nope"))
    created = DeltaTable.create(str(tmp_path / "created"), table.schema())
    assert created.version() == 0


def test_is_deltatable_answers_for_addresses(table_uri: TableUri) -> None:
    assert not DeltaTable.is_deltatable(table_uri("t"))
    write_deltalake(table_uri("t"), ids(1))
    assert DeltaTable.is_deltatable(table_uri("t"))


def test_an_address_with_another_location_is_refused(table_uri: TableUri, tmp_path: Path) -> None:
    write_deltalake(table_uri("t"), ids(1))
    elsewhere = table_uri("t", location=str(tmp_path / "elsewhere"))
    with pytest.raises(InvalidArgumentError):
        DeltaTable(elsewhere)
    with pytest.raises(InvalidArgumentError):
        write_deltalake(elsewhere, ids(2), mode="append")
    assert ids_of(DeltaTable(table_uri("t"))) == [1]


def test_frames_read_what_arrow_reads(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1, 2, 3), partition_by=["part"])
    table = DeltaTable(table_uri("t"))
    frame = table.to_pandas(columns=["id"], filters=[("id", ">", 1)])
    assert isinstance(frame, pd.DataFrame)
    assert sorted(frame["id"]) == [2, 3]
    assert table.to_pyarrow_table(filters=[("part", "=", "zz")]).num_rows == 0
    assert pl.read_delta(table).sort("id")["id"].to_list() == [1, 2, 3]
    wanted = pl.scan_delta(table).filter(pl.col("id") == 2).collect()
    assert wanted["id"].to_list() == [2]


def test_files_come_in_one_order_whatever_is_asked_of_them(table_uri: TableUri) -> None:
    # readers such as polars pair the answers by position
    uri = table_uri("t")
    for number in range(4):
        write_deltalake(uri, every_type(number * 10), mode="append", partition_by=["part"])
    write_deltalake(uri, every_type(50), mode="overwrite")
    write_deltalake(uri, every_type(60), mode="append")
    for version in (3, 5):
        table = DeltaTable(uri, version=version)
        names = [Path(uri).name for uri in table.file_uris()]
        assert len(set(names)) == len(names) > 1
        for flatten in (True, False):
            paths = pa.table(table.get_add_actions(flatten=flatten))["path"].to_pylist()
            assert [Path(path).name for path in paths] == names
        assert [Path(path).name for path in table._table.get_add_file_sizes()] == names


def test_the_raw_table_answers_as_stocks_does(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), every_type(), name="n", partition_by=["part"])
    ours = DeltaTable(table_uri("t"))
    stock = deltalake.DeltaTable(ours.table_uri)
    for name in ("id", "name", "description", "partition_columns", "created_time", "configuration"):
        assert getattr(ours._table.metadata(), name) == getattr(stock._table.metadata(), name), name
    for name in ("version", "protocol_versions", "get_add_file_sizes", "get_num_index_cols"):
        assert getattr(ours._table, name)() == getattr(stock._table, name)(), name
