"""Trouble with a log folder: commits stand, the lag is told, and everything works again afterwards."""

from __future__ import annotations

import resource
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog
from deltalakedb.config import Config
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


def test_a_deleted_log_is_told_and_mended(catalog: Catalog, root: Path) -> None:
    append(catalog, 1)
    shutil.rmtree(root / "_delta_log")
    append(catalog, 2)
    assert ids_of(catalog.table("t")) == [0, 1, 2], "the commit stands"
    assert not catalog.mirror.verify("t").ok
    catalog.mirror.repair("t")
    assert catalog.mirror.verify("t").ok
    append(catalog, 3)
    same_everywhere(catalog, root)


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


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_table_whose_folder_is_gone_takes_appends_again_once_it_is_back(
    catalog: Catalog, root: Path
) -> None:
    aside = root.parent / "aside"
    root.rename(aside)
    catalog.write("t", ids(1), mode="append")
    assert catalog.table("t").version() == 1
    shutil.copytree(root, aside, dirs_exist_ok=True)
    shutil.rmtree(root)
    aside.rename(root)
    append(catalog, 2)
    same_everywhere(catalog, root)
