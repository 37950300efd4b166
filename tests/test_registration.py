"""``register()``: deltalake itself understands our addresses, until it is taken back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import deltalake
import polars as pl
import polars.testing
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, convert_to_deltalake, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

import deltalakedb
from deltalakedb.exceptions import TableExistsError
from deltalakedb.table.handle import handle_of
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import TableUri

sqlite = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)


class Subclass(DeltaTable):
    """A user's own class, made before anything was registered."""

    def first(self) -> int:
        return min(ids_of(self))


def insides() -> list[Any]:
    return [
        vars(DeltaTable)["__init__"],
        vars(DeltaTable)["is_deltatable"],
        deltalake.table._create_deltalake,
        deltalake.writer.writer.write_deltalake_rust,  # type: ignore[attr-defined]
        deltalake.writer.convert_to._convert_to_deltalake,
        deltalake.transaction._create_table_with_add_actions,
    ]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = insides()
    yield
    deltalakedb.unregister()
    assert insides() == before


def test_names_imported_before_understand_addresses(table_uri: TableUri) -> None:
    uri = table_uri("t")
    with deltalakedb.register():
        assert not DeltaTable.is_deltatable(uri)
        write_deltalake(uri, ids(1), configuration={"delta.appendOnly": "true"})
        write_deltalake(uri, ids(2), mode="append")
        table = DeltaTable(uri)
        assert DeltaTable.is_deltatable(uri)
        assert type(table) is DeltaTable
        assert handle_of(table) is not None
        assert table.metadata().configuration == {"delta.appendOnly": "true"}
        assert ids_of(DeltaTable(uri, version=0)) == [1]
        assert Subclass(uri).first() == 1
        write_deltalake(uri, ids(9), mode="ignore")
        with pytest.raises(DeltaError):
            write_deltalake(uri, ids(9))
    # an open table stays what it is; addresses are unknown again
    assert ids_of(table) == [1, 2]
    assert not DeltaTable.is_deltatable(uri)
    with pytest.raises(DeltaError):
        DeltaTable(uri)


@sqlite
def test_tables_are_created_converted_and_made_of_files(table_uri: TableUri, tmp_path: Path) -> None:
    schema = deltalake.Schema.from_arrow(pa.schema([("id", pa.int64())]))
    for name in ("parquet", "adds"):
        (tmp_path / "lake" / name).mkdir(parents=True)
        pq.write_table(pa.table({"id": [7]}), tmp_path / "lake" / name / "a.parquet")
    with deltalakedb.register():
        made = DeltaTable.create(table_uri("made"), schema, description="by stock", partition_by="id")
        assert (made.metadata().description, made.metadata().partition_columns) == ("by stock", ["id"])
        with pytest.raises(TableExistsError):
            DeltaTable.create(table_uri("made"), schema)
        convert_to_deltalake(table_uri("parquet"), name="seven")
        convert_to_deltalake(table_uri("parquet"), mode="ignore")
        assert DeltaTable(table_uri("parquet")).metadata().name == "seven"
        size = (tmp_path / "lake" / "adds" / "a.parquet").stat().st_size
        add = AddAction("a.parquet", size, {}, 1, data_change=True, stats='{"numRecords":1}')
        create_table_with_add_actions(table_uri("adds"), schema, [add])
        assert ids_of(DeltaTable(table_uri("adds"))) == ids_of(DeltaTable(table_uri("parquet"))) == [7]


def test_plain_paths_go_on_as_before(tmp_path: Path) -> None:
    where = str(tmp_path / "plain")
    with deltalakedb.register():
        write_deltalake(where, ids(1))
        assert type(DeltaTable(where)) is DeltaTable
        assert type(Subclass(where)) is Subclass
        made = DeltaTable.create(str(tmp_path / "made"), DeltaTable(where).schema())
        assert made.version() == 0
        (tmp_path / "parquet").mkdir()
        pq.write_table(pa.table({"id": [7]}), tmp_path / "parquet" / "a.parquet")
        convert_to_deltalake(tmp_path / "parquet")
        create_table_with_add_actions(str(tmp_path / "adds"), DeltaTable(where).schema(), [])
        assert DeltaTable.is_deltatable(tmp_path / "parquet")
        assert DeltaTable.is_deltatable(str(tmp_path / "adds"))


@sqlite
def test_deprecated_arguments_warn_as_before(table_uri: TableUri) -> None:
    write = deltalakedb.write_deltalake
    write(table_uri("t"), ids(1))
    with deltalakedb.register():
        with pytest.warns(DeprecationWarning, match="skip_stats") as caught:
            DeltaTable(table_uri("t"), skip_stats=True)
        assert caught[0].filename == __file__
        with pytest.warns(DeprecationWarning, match="without_files") as caught:
            DeltaTable(table_uri("t"), None, None, True)
        assert len(caught) == 1


def test_polars_reads_and_writes_by_address(table_uri: TableUri) -> None:
    uri = table_uri("t")
    frame = pl.DataFrame({"id": [1, 2, 3], "name": ["a", "b", None]})
    with deltalakedb.register():
        frame.write_delta(uri)
        frame.write_delta(uri, mode="append")
        polars.testing.assert_frame_equal(pl.read_delta(uri, version=0), frame)
        assert pl.scan_delta(uri).filter(pl.col("id") > 1).select(pl.len()).collect().item() == 4
        (
            frame.with_columns(name=pl.lit("merged"))
            .write_delta(
                uri,
                mode="merge",
                delta_merge_options={
                    "predicate": "s.id = t.id",
                    "source_alias": "s",
                    "target_alias": "t",
                },
            )
            .when_matched_update_all()
            .execute()
        )
        assert pl.read_delta(uri)["name"].unique().to_list() == ["merged"]


def test_registrations_hold_until_the_last_one_is_taken_back(tmp_path: Path) -> None:
    before = insides()
    first = deltalakedb.register()
    with deltalakedb.register() as second:
        first.close()
        first.close()
        assert insides() != before
        assert (repr(first), repr(second)) == ("Registration(closed)", "Registration(holds)")
    assert insides() == before
    deltalakedb.register()
    deltalakedb.register()
    deltalakedb.unregister()
    assert insides() == before
    deltalakedb.unregister()
    assert insides() == before


def test_threads_register_side_by_side() -> None:
    before = insides()
    start = threading.Barrier(8)
    wrong: list[str] = []

    def work() -> None:
        start.wait()
        for _ in range(200):
            with deltalakedb.register():
                if insides() == before:
                    wrong.append("not registered inside the block")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert insides() == before
