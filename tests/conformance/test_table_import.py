"""Importing plain tables: whole histories, checkpoints, what is refused, and going on afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, open_log, write_deltalake
from deltalakedb.delta_log import FileTxnLogReader
from deltalakedb.exceptions import (
    AddressError,
    CatalogNotFoundError,
    InvalidArgumentError,
    LogError,
    StorageError,
    TableExistsError,
    TableMissingError,
    TableNotFoundError,
    VersionMissingError,
)
from support.lake import every_type, files_below, hidden_log, ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Eight versions by stock: appends, an overwrite, a delete, and a checkpoint at version 5."""
    root = tmp_path / "plain"
    for number in range(3):
        deltalake.write_deltalake(root, ids(number, number + 10), mode="append", partition_by=["part"])
    deltalake.write_deltalake(root, ids(20, 21, part="b"), mode="overwrite")
    deltalake.write_deltalake(root, ids(22, part="c"), mode="append")
    deltalake.DeltaTable(root).delete("id = 20")
    deltalake.DeltaTable(root).create_checkpoint()
    deltalake.write_deltalake(root, ids(30), mode="append")
    deltalake.write_deltalake(root, ids(31), mode="append")
    return root


@pytest.fixture
def address(catalog_uri: str) -> Callable[[str], str]:
    return lambda name: f"{catalog_uri}?table={name}"


def assert_same(uri: str, root: Path, versions: Any) -> None:
    stock = deltalake.DeltaTable(root)
    files = FileTxnLogReader(root)
    wanted = {}
    for version in versions:
        stock.load_as_version(version)
        wanted[version] = (
            stock.to_pyarrow_table().sort_by("id").to_pylist(),
            stock.schema(),
            sorted(stock.file_uris()),
            files.snapshot(version),
        )
    with hidden_log(root):
        sql = open_log(uri)
        for version, (rows, schema, uris, snapshot) in wanted.items():
            table = DeltaTable(uri, version=version)
            assert table.to_pyarrow_table().sort_by("id").to_pylist() == rows
            assert table.schema() == schema
            assert sorted(table.file_uris()) == uris
            assert sql.snapshot(version) == snapshot


def test_a_full_history_is_answered_from_sql(plain: Path, address: Callable[[str], str]) -> None:
    before = files_below(plain)
    report = import_table(str(plain), address("t"), history="full")
    assert (report.version, report.first_version, report.num_versions) == (7, 0, 8)
    assert (report.table, report.location) == ("t", str(plain))
    assert report.num_files == len(deltalake.DeltaTable(plain).file_uris())
    assert files_below(plain) == before
    assert_same(address("t"), plain, range(8))
    told = [(h["version"], h["operation"]) for h in DeltaTable(address("t")).history()]
    assert told == [(h["version"], h["operation"]) for h in deltalake.DeltaTable(plain).history()]
    for version in range(8):
        published = (plain / "_delta_log" / f"{version:020}.json").read_bytes()
        assert open_log(address("t")).commit_bytes(version) == published


def test_from_a_checkpoint_on_older_versions_come_from_the_log(
    plain: Path, address: Callable[[str], str]
) -> None:
    report = import_table(str(plain), address("t"), history="checkpoint")
    assert report.first_version == 5
    assert_same(address("t"), plain, range(5, 8))
    old = DeltaTable(address("t"), version=2)
    assert old.version() == 2
    assert ids_of(old) == [0, 1, 2, 10, 11, 12]
    assert [h["version"] for h in old.history()] == [2, 1, 0]
    assert len(old.file_uris()) == 3
    assert old.to_pyarrow_table(filters=[("id", ">", 11)]).num_rows == 1
    with hidden_log(plain), pytest.raises(VersionMissingError) as caught:
        DeltaTable(address("t"), version=2)
    assert "history='full'" in (caught.value.suggestion or "")
    with pytest.raises(VersionMissingError):
        DeltaTable(address("t"), version=8)


def test_auto_takes_the_whole_history_of_a_short_log(plain: Path, address: Callable[[str], str]) -> None:
    assert import_table(str(plain), address("t")).first_version == 0


def test_a_log_that_was_cleaned_up_begins_where_it_can(plain: Path, address: Callable[[str], str]) -> None:
    for version in range(5):
        (plain / "_delta_log" / f"{version:020}.json").unlink()
    report = import_table(str(plain), address("t"), history="full")
    assert report.first_version == 5
    assert_same(address("t"), plain, range(5, 8))
    with pytest.raises(VersionMissingError):
        DeltaTable(address("t"), version=4)


def test_writing_goes_on_after_an_import(plain: Path, address: Callable[[str], str]) -> None:
    for history in ("full", "checkpoint"):
        uri = address(f"t_{history}")
        root = plain.parent / history
        root.mkdir()
        for file in files_below(plain):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes((plain / file).read_bytes())
        import_table(str(root), uri, history=history)
        write_deltalake(uri, ids(40), mode="append")
        assert DeltaTable(uri).version() == 8
        write_deltalake(uri, ids(50), mode="overwrite")
        stock = deltalake.DeltaTable(root)
        assert stock.version() == 9
        assert ids_of(stock) == ids_of(DeltaTable(uri)) == [50]
        stock.load_as_version(8)
        assert ids_of(stock) == ids_of(DeltaTable(uri, version=8)) == [21, 22, 30, 31, 40]
        times = [h["timestamp"] for h in DeltaTable(uri).history()]
        assert times == sorted(set(times), reverse=True)


def test_an_import_twice_is_refused_and_changes_nothing(plain: Path, address: Callable[[str], str]) -> None:
    import_table(str(plain), address("t"))
    with pytest.raises(TableExistsError):
        import_table(str(plain), address("t"))
    with pytest.raises(TableExistsError) as caught:
        import_table(str(plain), address("other"))
    assert "'t'" in caught.value.message
    with pytest.raises(TableMissingError):
        DeltaTable(address("other"))
    assert DeltaTable(address("t")).version() == 7


def test_a_folder_without_a_log_is_refused(catalog_uri: str, tmp_path: Path) -> None:
    catalog = Catalog(catalog_uri)
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    (tmp_path / "file").write_text("no table")
    for place in ("missing", "empty", "file"):
        with pytest.raises((LogError, TableNotFoundError, StorageError)) as caught:
            import_table(str(tmp_path / place), catalog.table_uri("t"))
        assert str(tmp_path / place) in str(caught.value), place
    with pytest.raises(CatalogNotFoundError):  # nothing was created for it
        catalog.tables()
    assert not (tmp_path / "missing").exists()


def test_a_torn_log_is_refused_and_leaves_no_rows(catalog_uri: str, plain: Path) -> None:
    file = plain / "_delta_log" / f"{6:020}.json"
    file.write_bytes(file.read_bytes()[:-40])
    catalog = Catalog(catalog_uri)
    with pytest.raises(LogError):
        import_table(str(plain), catalog.table_uri("t"))
    assert catalog.tables() == []
    assert catalog.query("SELECT count(*) AS n FROM dl_files").to_pylist() == [{"n": 0}]


def test_a_gap_in_the_log_is_refused(catalog_uri: str, plain: Path) -> None:
    (plain / "_delta_log" / f"{6:020}.json").unlink()
    with pytest.raises(LogError):
        import_table(str(plain), f"{catalog_uri}?table=t")
    assert Catalog(catalog_uri).tables() == []


def test_wrong_arguments_are_named(plain: Path, catalog_uri: str) -> None:
    with pytest.raises(AddressError):
        import_table(str(plain), catalog_uri)
    with pytest.raises(InvalidArgumentError):
        import_table(str(plain), f"{catalog_uri}?table=t", history="some")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        import_table(str(plain), f"{catalog_uri}?table=t&location=/elsewhere")
    assert Catalog(catalog_uri, create=True).tables() == []


def test_an_unknown_reader_feature_is_refused(plain: Path, catalog_uri: str) -> None:
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["fromTheFuture"],
        "writerFeatures": ["fromTheFuture"],
    }
    (plain / "_delta_log" / f"{8:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(Exception, match="fromTheFuture"):
        import_table(str(plain), f"{catalog_uri}?table=t")
    assert Catalog(catalog_uri).tables() == []


def test_progress_is_told_up_to_the_end(plain: Path, address: Callable[[str], str]) -> None:
    told: list[Any] = []
    import_table(str(plain), address("t"), history="full", progress=told.append)
    assert [(t.done, t.total) for t in told if t.phase == "loading"][-1] == (8, 8)


def test_every_type_is_imported_with_its_statistics(tmp_path: Path, address: Callable[[str], str]) -> None:
    root = tmp_path / "typed"
    deltalake.write_deltalake(root, every_type(), partition_by=["part", "day"])
    deltalake.DeltaTable(root).create_checkpoint()
    deltalake.write_deltalake(root, every_type(10), mode="append")
    import_table(str(root), address("t"), history="checkpoint")
    assert_same(address("t"), root, range(2))
    table = DeltaTable(address("t"))
    assert 0 < len(table.file_uris(file_pruning_predicate="id >= 10")) < len(table.file_uris())
