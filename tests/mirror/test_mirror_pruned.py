"""Commits whose bytes were pruned: what can still be mended says so, and what cannot is not promised."""

from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING

import deltalake
import pytest

from support.lake import ids, ids_of
from support.mirrors import append, append_outside, commit_file, logged, outside_ids, same_everywhere

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def pruned(catalog: Catalog, root: Path) -> Path:
    """The table at version 4, whose checkpoint of version 3 let the bytes of 0 to 2 go."""
    append(catalog, 1, 2, 3)
    catalog.mirror.checkpoint("t")
    append(catalog, 4)
    assert catalog.mirror.prune("t").upto == 2
    return root


def goes_on(place: Path, since: int, *numbers: int) -> None:
    """Stock reads a log at its versions and writes the next ones; a checkpoint of its own works too."""
    table = deltalake.DeltaTable(place)
    assert table.version() == since
    assert ids_of(table) == sorted(numbers)
    append_outside(place, 100)
    table = deltalake.DeltaTable(place)
    table.delete("id = 100")
    table.create_checkpoint()
    assert outside_ids(place) == sorted(numbers)
    assert table.version() == since + 2


def test_a_repair_promises_only_what_it_can_do(catalog: Catalog, pruned: Path) -> None:
    whole = commit_file(pruned, 1).read_bytes()
    commit_file(pruned, 1).write_bytes(whole.split(b"\n")[0] + b"\n")
    commit_file(pruned, 3).unlink()
    found = catalog.mirror.verify("t")
    assert [(f.version, f.kind) for f in found.differences] == [(1, "damaged"), (3, "missing")]
    for dry_run in (True, False):
        told = catalog.mirror.repair("t", dry_run=dry_run)
        assert told.rewritten == (3,)
        (left,) = told.left
        assert (left.version, left.kind) == (1, "damaged")
        assert "not in the catalog" in left.detail
    assert logged(pruned) == [0, 1, 2, 3, 4]
    commit_file(pruned, 1).write_bytes(b'{"commitInfo":{"operation":"WRITE"}}\n')
    assert [f.kind for f in catalog.mirror.verify("t").differences] == ["foreign"]


def test_a_lost_log_is_repaired_into_one_that_begins_at_a_checkpoint(catalog: Catalog, pruned: Path) -> None:
    shutil.rmtree(pruned / "_delta_log")
    would = catalog.mirror.repair("t", dry_run=True)
    assert (would.rewritten, would.begins_at, would.left) == ((3, 4), 3, ())
    assert logged(pruned) == []
    done = catalog.mirror.repair("t")
    assert (done.rewritten, done.begins_at, done.left) == ((3, 4), 3, ())
    assert logged(pruned) == [3, 4]
    assert catalog.mirror.verify("t").ok
    assert outside_ids(pruned) == [0, 1, 2, 3, 4]
    append(catalog, 5)
    assert outside_ids(pruned) == [0, 1, 2, 3, 4, 5]
    again = catalog.mirror.repair("t")
    assert (again.rewritten, again.begins_at) == ((), None)


def test_the_next_write_tells_what_came_back_and_what_could_not(
    catalog: Catalog, pruned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(pruned / "_delta_log")
    with caplog.at_level(logging.ERROR):
        append(catalog, 5)
    (told,) = [r.getMessage() for r in caplog.records if "restored" in r.getMessage()]
    assert "versions 3 to 4" in told
    assert "checkpoint of version 3" in told
    assert logged(pruned) == [3, 4, 5]
    assert outside_ids(pruned) == ids_of(catalog.table("t")) == [0, 1, 2, 3, 4, 5]
    assert catalog.mirror.verify("t").ok, "what was pruned is not missed"
    same_everywhere(catalog, pruned, since=3)


def test_a_pruned_table_is_rebuilt_from_a_checkpoint_on(
    catalog: Catalog, pruned: Path, tmp_path: Path
) -> None:
    place = tmp_path / "rebuilt"
    assert catalog.mirror.rebuild("t", place) == (3, 4)
    assert logged(place) == [3, 4]
    for file in pruned.glob("*.parquet"):
        os.link(file, place / file.name)
    assert outside_ids(place, version=3) == [0, 1, 2, 3]
    goes_on(place, 4, 0, 1, 2, 3, 4)


def test_a_table_without_any_bytes_is_rebuilt_as_one_that_others_can_write(
    catalog: Catalog, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    append_outside(source, 0, 1, 2)
    deltalake.DeltaTable(source).create_checkpoint()
    for version in (0, 1):
        commit_file(source, version).unlink()
    catalog.register("t", source)
    with catalog._database.write() as session:
        session.run("DELETE FROM dl_commit_bytes")
        session.run("UPDATE dl_commits SET sha256 = NULL, size_bytes = NULL")
    place = tmp_path / "rebuilt"
    assert catalog.mirror.rebuild("t", place) == (2, 2)
    assert (place / "_delta_log" / "_last_checkpoint").exists()
    for file in source.glob("*.parquet"):
        os.link(file, place / file.name)
    before = deltalake.DeltaTable(source).history(1)[0]
    after = deltalake.DeltaTable(place).history(1)[0]
    assert {k: after[k] for k in ("timestamp", "operation")} == {
        k: before[k] for k in ("timestamp", "operation")
    }
    goes_on(place, 2, 0, 1, 2)
    shutil.rmtree(source / "_delta_log")
    catalog.write("t", ids(3), mode="append")
    assert outside_ids(source) == [0, 1, 2, 3]
    assert catalog.mirror.verify("t").ok
