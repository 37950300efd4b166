"""``register()``: deltalake itself understands our addresses, until it is taken back."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

import deltalake
import polars as pl
import polars.testing
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, convert_to_deltalake, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

import deltalakedb
import deltalakedb.address
from deltalakedb.exceptions import TableExistsError, TableMissingError
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
        deltalake.fs.DeltaStorageHandler.__init__,
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


# --- libraries that write files themselves, and then commit them


@pytest.fixture
def registered() -> Iterator[None]:
    with deltalakedb.register():
        yield


def commits_of(uri: str) -> list[tuple[str | None, str | None]]:
    """Operation and origin of each commit, which must all have come through the catalog."""
    address = deltalakedb.address.parse_address(uri)
    with deltalakedb.Catalog(address.catalog) as catalog:
        assert catalog.mirror.verify(address.table or "").ok
        return [(c.operation, c.origin) for c in reversed(catalog.commits(address.table or ""))]


@pytest.mark.usefixtures("registered")
def test_the_file_handler_is_rooted_at_the_table_of_an_address(table_uri: TableUri, tmp_path: Path) -> None:
    uri = table_uri("t")
    root = pafs.PyFileSystem(deltalake.fs.DeltaStorageHandler(uri))  # before there is a table
    with root.open_output_stream("one.parquet") as stream:
        pq.write_table(ids(1), stream)
    size = root.get_file_info("one.parquet").size
    add = AddAction("one.parquet", size, {}, 0, True, '{"numRecords":1}')
    create_table_with_add_actions(uri, deltalake.Schema.from_arrow(ids(1).schema), [add], "error", [])
    table = DeltaTable(uri)
    assert ids_of(table) == [1]
    again = pafs.PyFileSystem(deltalake.fs.DeltaStorageHandler(uri, known_sizes={"one.parquet": size}))
    assert pq.read_table("one.parquet", filesystem=again).num_rows == 1
    plain = pafs.PyFileSystem(deltalake.fs.DeltaStorageHandler(str(tmp_path)))
    assert plain.get_file_info("nothing.parquet").type == pafs.FileType.NotFound


@sqlite
@pytest.mark.usefixtures("registered")
def test_the_files_of_a_new_table_need_a_location(table_uri: TableUri) -> None:
    without = table_uri("t").partition("&location")[0]
    with pytest.raises(TableMissingError):
        deltalake.fs.DeltaStorageHandler(without)


@sqlite
def test_a_table_that_is_opened_again_by_its_root_stays_in_the_catalog(table_uri: TableUri) -> None:
    """Dask opens tables so, and would commit to the log past the catalog."""
    uri = table_uri("t")
    deltalakedb.write_deltalake(uri, ids(1))
    root = deltalakedb.DeltaTable(uri).table_uri
    with deltalakedb.register():
        write_deltalake(DeltaTable(root), ids(2), mode="append")
        assert handle_of(DeltaTable(str(root))) is None  # a text that has nothing to do with the catalog
    assert handle_of(DeltaTable(root)) is None
    deltalakedb.unregister()
    sent = pickle.loads(pickle.dumps(root))  # as in a process of Dask's
    assert sent == root
    write_deltalake(DeltaTable(sent), ids(3), mode="append")
    assert commits_of(uri) == [("WRITE", "sql")] * 3


@sqlite
@pytest.mark.usefixtures("registered")
def test_daft_writes_and_reads_by_address(table_uri: TableUri) -> None:
    daft = pytest.importorskip("daft", reason="no daft allows pyarrow 26: pip install --no-deps daft==0.7.10")
    uri = table_uri("t")
    for number in (1, 2):
        daft.from_pydict({"id": [number]}).write_deltalake(uri, mode="append")
    daft.from_pydict({"id": [3]}).write_deltalake(uri, mode="overwrite")
    assert daft.read_deltalake(uri).to_pydict() == {"id": [3]}
    assert [origin for _, origin in commits_of(uri)] == ["sql"] * 3


@sqlite
@pytest.mark.usefixtures("registered")
def test_dask_writes_by_address(table_uri: TableUri) -> None:
    dask_deltatable = pytest.importorskip("dask_deltatable", reason="the extra dev is not installed")
    import dask.dataframe as dd
    import pandas as pd

    uri = table_uri("t")
    for first in (1, 3):
        rows = dd.from_pandas(pd.DataFrame({"id": [first, first + 1]}), npartitions=2)
        dask_deltatable.to_deltalake(uri, rows, mode="append")
    assert ids_of(DeltaTable(uri)) == [1, 2, 3, 4]
    assert [origin for _, origin in commits_of(uri)] == ["sql"] * 2
    rows = dask_deltatable.read_deltalake(DeltaTable(uri).table_uri).compute()
    assert sorted(rows["id"]) == [1, 2, 3, 4]
