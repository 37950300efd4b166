"""Trouble with a log folder: commits stand, the lag is told, and everything works again afterwards."""

from __future__ import annotations

import resource
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, import_table
from deltalakedb.mirror import publisher
from deltalakedb.settings import Config
from support.actions import add, info, metadata, protocol
from support.commits import Bench
from support.lake import ids, ids_of
from support.mirrors import append, blocked, commit_file, logged, outside_ids, same_everywhere
from support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path


def lag(catalog: Catalog) -> tuple[int, int]:
    """Versions that wait, and attempts that failed."""
    status = catalog.mirror.status("t")[0]
    return status.versions_behind, status.attempts


def test_a_file_in_the_place_of_the_log_makes_it_wait(catalog: Catalog, root: Path) -> None:
    with blocked(root):
        append(catalog, 1)
        assert lag(catalog) == (1, 1)
        append(catalog, 2)
        assert lag(catalog) == (2, 2)
        status = catalog.mirror.status("t")[0]
        assert status.error
        assert "_delta_log" in status.error
        assert status.seconds_behind >= 0
        assert ids_of(catalog.table("t")) == [0, 1, 2]
        assert catalog.mirror.publish("t").failed == ("t",)
    assert outside_ids(root) == [0]
    append(catalog, 3)
    assert lag(catalog) == (0, 0)
    same_everywhere(catalog, root)


def test_a_deleted_log_is_noticed_by_the_next_write_and_written_again(
    catalog: Catalog, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(catalog, 1)
    times = [commit_file(root, v).stat().st_mtime_ns for v in range(2)]
    shutil.rmtree(root / "_delta_log")
    assert not catalog.mirror.verify("t").ok
    append(catalog, 2)
    assert ids_of(catalog.table("t")) == outside_ids(root) == [0, 1, 2]
    assert "commit files of t were missing from _delta_log; restored: versions 0 to 1" in caplog.text
    assert [commit_file(root, v).stat().st_mtime_ns for v in range(2)] == times
    same_everywhere(catalog, root)
    commit_file(root, 2).unlink()
    assert outside_ids(root) == [0, 1], "a reader cannot see that the newest one is gone"
    append(catalog, 3)
    same_everywhere(catalog, root)
    assert catalog.mirror.verify("t").ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_files_below_a_checkpoint_stay_away_when_the_newest_is_written_again(
    catalog: Catalog, root: Path
) -> None:
    append(catalog, 1, 2, 3)
    catalog.mirror.checkpoint("t")
    append(catalog, 4, 5)
    for version in (0, 1, 2, 5):
        commit_file(root, version).unlink()
    append(catalog, 6)
    assert logged(root) == [3, 4, 5, 6]
    assert outside_ids(root) == list(range(7))


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_writer_does_not_put_a_very_long_log_back(
    catalog: Catalog, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_MAX_RESTORED", 3)
    append(catalog, *range(1, 8))
    shutil.rmtree(root / "_delta_log")
    append(catalog, 8)
    assert logged(root) == [7, 8]
    assert outside_ids(root) == list(range(9))
    assert "more than 3 commit files of t are missing" in caplog.text
    assert catalog.mirror.verify("t").ok
    assert ids_of(DeltaTable(catalog.table_uri("t"), version=3)) == [0, 1, 2, 3]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_deleted_log_whose_beginning_the_catalog_never_had_begins_with_a_checkpoint(
    catalog: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "old"
    for number in range(4):
        deltalake.write_deltalake(root, ids(number), mode="append")
    deltalake.DeltaTable(root).create_checkpoint()
    import_table(str(root), catalog.table_uri("old"), history="checkpoint")
    append(catalog, 4, 5, name="old")
    shutil.rmtree(root / "_delta_log")
    append(catalog, 6, name="old")
    assert logged(root) == [3, 4, 5, 6]
    assert outside_ids(root) == list(range(7))
    assert catalog.mirror.verify("old").ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_what_is_gone_on_both_sides_is_covered_by_a_checkpoint(catalog: Catalog, root: Path) -> None:
    append(catalog, 1, 2)
    database = catalog.log("t").database
    with database.write() as session:
        session.run("DELETE FROM dl_commit_bytes WHERE version = ?", (2,))
    catalog.mirror.checkpoint("t")
    append(catalog, 3)
    shutil.rmtree(root / "_delta_log")
    append(catalog, 4)
    # version 2 was pruned, as it may be below a checkpoint: the new log begins there
    assert logged(root) == [3, 4]
    assert outside_ids(root) == [0, 1, 2, 3, 4]
    with database.write() as session:
        session.run("DELETE FROM dl_commit_bytes WHERE version = ?", (4,))
    commit_file(root, 4).unlink()
    append(catalog, 5)
    assert outside_ids(root) == [0, 1, 2, 3, 4, 5], "a checkpoint stands for what nobody has any more"


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_read_only_log_makes_it_wait(catalog: Catalog, root: Path) -> None:
    log, aside = root / "_delta_log", root.parent / "aside"
    shutil.copytree(log, aside)
    made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(log)], capture_output=True)
    if made.returncode:
        pytest.skip(f"nothing can be mounted here: {made.stderr.decode().strip()}")
    try:
        shutil.copytree(aside, log, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", str(log)], check=True)
        append(catalog, 1, 2)
        assert lag(catalog) == (2, 2)
        assert outside_ids(root) == [0]
        subprocess.run(["mount", "-o", "remount,rw", str(log)], check=True)
        assert catalog.mirror.publish("t").published == 2
        same_everywhere(catalog, root)
    finally:
        subprocess.run(["umount", "-l", str(log)], check=True)


def publish_under_limit(uri: str, limit: int) -> dict[str, Any]:
    """Publish while no file may grow past a limit, as on a disk that is nearly full."""
    catalog = Catalog(uri)
    catalog.mirror.status("t")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    done = catalog.mirror.publish("t")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return {"published": done.published, "failed": list(done.failed)}


@pytest.mark.parametrize("engine_name", ["postgres"])  # whose own files the limit does not touch
def test_a_file_that_does_not_fit_leaves_nothing_half_written(catalog_uri: str, tmp_path: Path) -> None:
    root = tmp_path / "lake" / "t"
    quiet = Catalog(catalog_uri, config=Config(publish={"mode": "off"}))
    bench = Bench.make(quiet._database, "t", str(root), protocol_=protocol(), metadata_=metadata(), adds=[])
    bench.commit(*(add(f"f{n}") for n in range(400)), info("WRITE"))
    told = Child(publish_under_limit, catalog_uri, 20_000, folder=tmp_path).result()
    assert told == {"published": 1, "failed": ["t"]}
    assert logged(root) == [0]
    assert {p.name for p in (root / "_delta_log").iterdir()} == {commit_file(root, 0).name}, (
        "no part of a file"
    )
    assert lag(quiet) == (1, 1)
    assert quiet.mirror.publish("t").published == 1
    assert commit_file(root, 1).read_bytes() == quiet.log("t").commit_bytes(1)
    assert lag(quiet) == (0, 0)
