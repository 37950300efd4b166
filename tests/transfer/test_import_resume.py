"""Imports that are killed in every phase and batch: the next run ends as if nothing had happened."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow.parquet as pq
import pytest

from deltalakedb import Catalog, DeltaTable, import_status, import_table, rollback_import, verify_table
from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogBusyError, TableExistsError, TableMissingError
from deltalakedb.failpoints import FailpointError
from deltalakedb.metastore.database import Database
from deltalakedb.transfer.importing import loader
from support.lake import files_below
from support.processes import Child, arm
from support.sources import change, contents, count, many_files

if TYPE_CHECKING:
    from pathlib import Path

#: 42 rows of a checkpoint in batches of 15, its state, and the commits after it
BATCHES = 5


def run_import(path: str, uri: str) -> dict[str, Any]:
    return import_table(path, uri, history="checkpoint", batch_size=15).to_dict()


def run_with_two_processes(path: str, uri: str) -> dict[str, Any]:
    loader.SECOND_PROCESS_FROM = 0  # type: ignore[misc]
    return run_import(path, uri)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return many_files(tmp_path / "source")


def test_one_import_killed_in_every_phase_and_batch_ends_like_one_that_was_not(
    source: Path, catalog_uri: str, tmp_path: Path
) -> None:
    uri, before = f"{catalog_uri}?table=t", files_below(source)
    clean = import_table(str(source), uri, history="checkpoint", batch_size=15)
    wanted = contents(uri)
    rollback_import(uri)

    def killed(point: str, batches: int) -> None:
        Database.open(parse_address(catalog_uri)).close()
        Child(run_import, str(source), uri, folder=tmp_path, points=f"{point}=kill@1").died()
        (status, *_) = import_status(uri)
        assert (status.batches_done, status.at_work) == (batches, False), point
        with pytest.raises(TableMissingError):
            DeltaTable(uri)

    killed("import.planned", 0)
    for number in range(BATCHES):
        killed("import.batch_written", number)  # its transaction is gone with it
        killed("import.batch_done", number + 1)
    for point in ("import.loaded", "import.verified", "import.before_finalize"):
        killed(point, BATCHES)
    Database.open(parse_address(catalog_uri)).close()
    again = Child(run_import, str(source), uri, folder=tmp_path).result()
    assert (again["action"], again["digest"]) == ("resumed", clean.digest)
    assert again["verification"]["log_digest"] == clean.digest
    assert contents(uri) == wanted
    (status, *_) = import_status(uri)
    assert (status.phase, status.batches_done, status.batches_total) == ("finalized", BATCHES, BATCHES)
    rollback_import(uri)
    assert count(catalog_uri, "dl_files") == 0
    assert files_below(source) == before


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_an_import_by_two_processes_is_killed_and_resumed(
    source: Path, catalog_uri: str, tmp_path: Path
) -> None:
    uri = f"{catalog_uri}?table=t"
    clean = import_table(str(source), uri, history="checkpoint", batch_size=15)
    wanted = contents(uri)
    rollback_import(uri)
    for point, batches in (("import.batch_written=kill@2", 1), ("import.batch_done=kill@2", 3)):
        Database.open(parse_address(catalog_uri)).close()
        Child(run_with_two_processes, str(source), uri, folder=tmp_path, points=point).died()
        (status, *_) = import_status(uri)
        assert (status.batches_done, status.at_work) == (batches, False)
    Database.open(parse_address(catalog_uri)).close()
    again = Child(run_with_two_processes, str(source), uri, folder=tmp_path).result()
    assert (again["action"], again["digest"]) == ("resumed", clean.digest)
    assert contents(uri) == wanted


def test_an_import_killed_after_its_last_transaction_is_finished(
    source: Path, catalog_uri: str, tmp_path: Path
) -> None:
    uri = f"{catalog_uri}?table=t"
    Child(run_import, str(source), uri, folder=tmp_path, points="import.finalized=kill").died()
    assert DeltaTable(uri).version() == 7
    with pytest.raises(TableExistsError):
        run_import(str(source), uri)
    wanted = contents(uri)
    rollback_import(uri)
    run_import(str(source), uri)
    assert contents(uri) == wanted


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_two_imports_of_a_table_exclude_each_other(source: Path, catalog_uri: str, tmp_path: Path) -> None:
    uri = f"{catalog_uri}?table=t"
    first = Child(run_import, str(source), uri, folder=tmp_path, points="import.batch_done=stop@2")
    first.pause()
    with pytest.raises(CatalogBusyError) as caught:
        run_import(str(source), uri)
    assert str(first.pid) in caught.value.message
    assert import_status(uri)[0].at_work
    with pytest.raises(CatalogBusyError):
        rollback_import(uri)
    with pytest.raises(TableExistsError) as other:
        import_table(str(source), f"{catalog_uri}?table=other")
    assert "unfinished import" in other.value.message
    with pytest.raises(TableExistsError):
        import_table(str(many_files(tmp_path / "elsewhere")), uri)
    first.resume()
    assert first.result()["num_files"] == 40
    assert DeltaTable(uri).version() == 7


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_an_import_that_lost_its_lease_changes_nothing_more(
    source: Path, catalog_uri: str, tmp_path: Path
) -> None:
    uri = f"{catalog_uri}?table=t"
    late = Child(run_import, str(source), uri, folder=tmp_path, points="import.batch_done=stop@3")
    late.pause()
    change(uri, "UPDATE dl_leases SET expires_at = 0")
    done = import_table(str(source), uri, history="checkpoint", batch_size=15)
    assert done.action == "resumed"
    wanted = contents(uri)
    late.resume()
    with pytest.raises(AssertionError, match="the lease was lost before the import was done"):
        late.result()
    assert contents(uri) == wanted


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize("change_of_log", ["checkpoint", "gone", "shorter", "history"])
def test_what_was_loaded_from_another_log_is_loaded_anew(
    change_of_log: str, source: Path, catalog_uri: str, tmp_path: Path
) -> None:
    uri, log = f"{catalog_uri}?table=t", source / "_delta_log"
    checkpoint = log / f"{1:020}.checkpoint.parquet"
    history = "full" if change_of_log in ("shorter", "history") else "checkpoint"
    arm("import.loaded=error" if history == "full" else "import.batch_done=error@3")
    try:
        with pytest.raises(FailpointError):
            import_table(str(source), uri, history=history, batch_size=15)
    finally:
        arm("")
    if change_of_log == "checkpoint":  # the same rows, in another order
        rows = pq.read_table(checkpoint)
        pq.write_table(rows.take(list(reversed(range(rows.num_rows)))), checkpoint)
    elif change_of_log == "gone":
        deltalake.DeltaTable(source).create_checkpoint()
        checkpoint.unlink()
    else:
        shutil.rmtree(source)
        many_files(source, checkpointed=30, commits=1 if change_of_log == "shorter" else 6)
    # counting alone would not find files that stand in the place of others
    done = import_table(str(source), uri, history=history, batch_size=15, verify="counts")
    assert done.action == "imported"
    assert verify_table(uri, "full").ok
    newest, before = import_status(uri)
    assert (newest.phase, before.phase) == ("finalized", "failed")
    assert "version" in (before.error or "")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_an_error_on_the_way_is_noted_and_the_import_goes_on_later(source: Path, catalog_uri: str) -> None:
    uri = f"{catalog_uri}?table=t"
    arm("import.batch_done=error@2")
    try:
        with pytest.raises(FailpointError):
            run_import(str(source), uri)
    finally:
        arm("")
    (status,) = import_status(uri)
    assert (status.phase, status.batches_done, status.batches_total) == ("loading", 2, BATCHES)
    assert "failpoint" in (status.error or "")
    assert status.actions_done == 13  # metadata and protocol stand among the first 15 rows
    assert status.memory_bytes > 0
    assert status.rate is not None
    assert status.seconds_left is not None
    with Catalog(catalog_uri) as catalog:
        assert catalog.tables() == []
        view = catalog.query("SELECT * FROM dl_v_imports").to_pylist()
    assert [(v["table_name"], v["phase"], v["batches_done"], v["actions_done"]) for v in view] == [
        ("t", "loading", 2, 13)
    ]
    assert run_import(str(source), uri)["action"] == "resumed"
    (done,) = import_status(catalog_uri)
    assert (done.phase, done.error, done.digest is not None) == ("finalized", None, True)
