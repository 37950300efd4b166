"""A read-only copy follows a table that others own: in step after every look, and never in their way."""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from click.testing import CliRunner

from deltalakedb import (
    Catalog,
    DeltaTable,
    follow_table,
    import_status,
    import_table,
    rollback_import,
    verify_table,
    write_deltalake,
)
from deltalakedb.address import parse_address
from deltalakedb.cli.main import cli
from deltalakedb.doctor import examine
from deltalakedb.exceptions import (
    CatalogBusyError,
    InvalidArgumentError,
    LogCorruptError,
    LogGapError,
    TableExistsError,
    TableFollowedError,
)
from deltalakedb.metastore import imports
from deltalakedb.metastore.database import Database
from deltalakedb.settings import Config
from support.lake import files_below, ids, ids_of
from support.processes import Child, until

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.transfer.following import FollowReport


def append(root: Path, *numbers: int) -> None:
    deltalake.write_deltalake(root, ids(*numbers), mode="append")


def follow(path: str, uri: str) -> dict[str, Any]:
    return follow_table(path, uri, once=True).to_dict()


def test_a_copy_follows_and_refuses_to_be_written(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = tmp_path / "theirs", f"{catalog_uri}?table=copy"
    append(root, 0)
    assert follow_table(str(root), uri, once=True).action == "imported"
    assert follow_table(str(root), uri, once=True).action == "unchanged"
    for n in range(1, 13):  # past the point where a table of ours would get a checkpoint
        append(root, n)
    deltalake.DeltaTable(root).delete("id = 0")
    before = files_below(root)
    with Catalog(catalog_uri) as catalog:
        refused = [
            lambda: write_deltalake(uri, ids(99), mode="append"),
            lambda: DeltaTable(uri).delete("id = 0"),
            lambda: DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"}),
            lambda: DeltaTable(uri).create_checkpoint(),
            lambda: DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False),
            lambda: DeltaTable(uri).generate(),
            lambda: DeltaTable(uri).cleanup_metadata(),
            lambda: DeltaTable(uri).optimize.compact(),
            lambda: write_deltalake(uri, ids(99), mode="overwrite"),
            lambda: catalog.write("copy", ids(99), mode="append"),
            lambda: catalog.gc("copy"),
            lambda: catalog.mirror.checkpoint("copy"),
            lambda: catalog.mirror.clean("copy"),
            lambda: catalog.mirror.repair("copy"),
            lambda: catalog.mirror.fence("copy"),
        ]
        for attempt in refused:
            with pytest.raises(TableFollowedError) as caught:
                attempt()
            assert "import --undo" in (caught.value.suggestion or "")
        assert [c.status for c in examine(parse_address(catalog_uri), Config()) if c.title == "writers"] == [
            "warning"
        ]
        catalog.gc()
        catalog.mirror.run()
    report = follow_table(str(root), uri, once=True)
    assert (report.brought, report.lag, report.version, report.action) == (13, 0, 13, "caught up")
    assert files_below(root) == before
    assert ids_of(DeltaTable(uri)) == list(range(1, 13))
    assert ids_of(DeltaTable(uri, version=3)) == [0, 1, 2, 3]
    append(root, 50)
    assert verify_table(uri, "full").ok  # being late is no difference
    assert import_status(uri)[0].lag == 0  # as far as was seen
    assert rollback_import(uri).action == "released"
    assert ids_of(deltalake.DeltaTable(root)) == [*range(1, 13), 50]
    assert import_table(str(root), uri).version == 14
    with pytest.raises(TableExistsError, match="not a copy"):
        follow_table(str(root), uri, once=True)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_follower_that_is_killed_goes_on(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = tmp_path / "theirs", f"{catalog_uri}?table=copy"
    append(root, 0)
    for point in ("import.batch_done=kill", "import.verified=kill", "import.finalized=kill"):
        Child(follow, str(root), uri, folder=tmp_path, points=point).died()
    with pytest.raises(TableFollowedError):  # there was no moment at which it could be written
        write_deltalake(uri, ids(9), mode="append")
    append(root, 1)
    append(root, 2)
    Child(follow, str(root), uri, folder=tmp_path, points="follow.before_bringing=kill").died()
    Child(follow, str(root), uri, folder=tmp_path, points="commit.after=kill@2").died()
    assert DeltaTable(uri).version() == 2
    done = Child(follow, str(root), uri, folder=tmp_path).result()
    assert (done["version"], done["lag"]) == (2, 0)
    assert ids_of(DeltaTable(uri)) == [0, 1, 2]
    assert verify_table(uri, "full").ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_it_follows_until_it_is_told_to_stop_and_one_at_a_time(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = tmp_path / "theirs", f"{catalog_uri}?table=copy"
    append(root, 0)
    stop, seen = threading.Event(), []
    thread = threading.Thread(
        target=follow_table,
        args=(str(root), uri),
        kwargs={"interval": 0.01, "stop": stop, "on_report": lambda r: seen.append((r.version, r.action))},
    )
    thread.start()
    try:
        until(lambda: (0, "imported") in seen)
        with pytest.raises(CatalogBusyError):
            follow_table(str(root), uri, once=True)
        append(root, 1)
        until(lambda: (1, "caught up") in seen)
    finally:
        stop.set()
        thread.join()
    assert ids_of(DeltaTable(uri)) == [0, 1]
    with pytest.raises(InvalidArgumentError):
        follow_table(str(root), uri, interval=float("nan"))


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_log_that_cannot_be_followed_is_told_as_what_it_is(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = tmp_path / "theirs", f"{catalog_uri}?table=copy"
    append(root, 0)
    follow_table(str(root), uri, once=True)
    for n in range(1, 4):
        append(root, n)
    deltalake.DeltaTable(root).create_checkpoint()
    hidden = root / "_delta_log" / f"{1:020}.json"
    kept = hidden.read_bytes()
    hidden.unlink()
    with pytest.raises(LogGapError, match="cleaned up before the copy had it"):
        follow_table(str(root), uri, once=True)
    hidden.write_bytes(kept)
    assert follow_table(str(root), uri, once=True).version == 3
    shutil.rmtree(root)
    for n in range(6):
        append(root, n)
    with pytest.raises(LogCorruptError, match="rewritten"):
        follow_table(str(root), uri, once=True)
    assert rollback_import(uri).action == "released"
    assert follow_table(str(root), uri, once=True).action == "imported"


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_the_command_follows_and_tells_the_lag(tmp_path: Path, catalog_uri: str) -> None:
    root = tmp_path / "theirs"
    append(root, 0)
    words = ["import", str(root), "copy", "--follow", "--once", "--catalog", catalog_uri]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "Imported; copy is at version 0, the log's newest" in result.stdout
    append(root, 1)
    document = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert (document["brought"], document["lag"], document["version"]) == (1, 0, 1)
    shown = CliRunner().invoke(cli, ["import-status", "--catalog", catalog_uri])
    assert "up to date" in shown.stdout
    vacuum = ["vacuum", "copy", "--catalog", catalog_uri]  # nothing is due, and still it is not ours to do
    assert CliRunner().invoke(cli, [*vacuum, "--yes"]).exit_code == 1
    assert CliRunner().invoke(cli, [*vacuum, "--dry-run"]).exit_code == 1, "a dry run refuses the same"
    listed = CliRunner().invoke(cli, ["list", "--catalog", catalog_uri])
    assert "following" in listed.stdout
    for wrong in (["--catch-up"], ["--dry-run"]):
        assert CliRunner().invoke(cli, [*words, *wrong]).exit_code == 2
    assert CliRunner().invoke(cli, ["import", str(root), "x", "--once"]).exit_code == 2


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_follower_keeps_its_lease_while_it_is_busy_and_looks_no_more_once_it_is_lost(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "LEASE_MS", 900)
    root = tmp_path / "theirs"
    append(root, 0)
    database = Database.open(parse_address(catalog_uri))

    def deadline() -> int:
        with database.read() as session:
            return int(session.rows("SELECT expires_at FROM dl_leases")[0][0])

    looks = []

    def busy(report: FollowReport) -> None:
        looks.append(report.action)
        began = deadline()
        until(lambda: deadline() > began)
        with database.write() as session:
            session.run("UPDATE dl_leases SET expires_at = 1")

    with pytest.raises(CatalogBusyError, match="lost"):
        follow_table(str(root), f"{catalog_uri}?table=copy", interval=0.01, on_report=busy)
    assert looks == ["imported"]
