"""Mending touches only what we published, never overwrites others, and leaves a table that goes on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import InvalidArgumentError, LogError, TableFrozenError
from support.lake import ids_of
from support.mirrors import append, commit_file, logged, outside_ids, resume_diverged, same_everywhere
from support.processes import Child, arm

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])

FOREIGN = b'{"commitInfo":{"operation":"FOREIGN"}}\n'


def left(catalog: Catalog) -> list[tuple[str, int]]:
    done = catalog.mirror.repair("t")
    assert done.rewritten == ()
    return [(f.kind, f.version) for f in done.left]


def test_what_stands_in_the_place_of_a_waiting_version_is_never_overwritten(
    catalog: Catalog, root: Path
) -> None:
    catalog.mirror.pause("t")
    append(catalog, 1)
    for theirs in (FOREIGN, b"", b'{"commitInfo":{"oper', catalog.log("t").commit_bytes(1)[:-9]):
        commit_file(root, 1).write_bytes(theirs)
        assert [(f.kind, f.version) for f in catalog.mirror.verify("t").differences] == [("foreign", 1)]
        assert left(catalog) == [("foreign", 1)]
        assert commit_file(root, 1).read_bytes() == theirs


def test_a_resolution_begins_only_when_theirs_can_be_read(catalog: Catalog, root: Path) -> None:
    catalog.mirror.pause("t")
    append(catalog, 1, 2)
    commit_file(root, 1).write_bytes(FOREIGN)
    commit_file(root, 2).write_bytes(b'{"commitInfo":{"oper')
    resume_diverged(catalog)
    with pytest.raises(InvalidArgumentError, match="cannot be read, so nothing was changed") as caught:
        catalog.mirror.resolve("t")
    assert "mirror recover" in str(caught.value.suggestion)
    assert (catalog.describe("t").head.version, ids_of(catalog.table("t"))) == (2, [0, 1, 2])
    assert "take back" not in catalog.query("SELECT action FROM dl_audit")["action"].to_pylist()
    commit_file(root, 2).rename(commit_file(root, 4))
    with pytest.raises(
        InvalidArgumentError, match="version 2 is not in the log, which continues up to version 4"
    ):
        catalog.mirror.resolve("t")
    commit_file(root, 0).write_bytes(b'{"commitInfo":{"oper')
    with pytest.raises(InvalidArgumentError, match="version 0, which we published, is damaged"):
        catalog.mirror.resolve("t")
    assert catalog.mirror.repair("t").rewritten == (0,)
    features = b'"readerFeatures":["x"],"writerFeatures":["x"]'
    commit_file(root, 4).unlink()
    commit_file(root, 1).write_bytes(
        b'{"protocol":{"minReaderVersion":3,"minWriterVersion":7,%b}}' % features
    )
    with pytest.raises(InvalidArgumentError, match="cannot be read, so nothing was changed"):
        catalog.mirror.resolve("t")
    assert "take back" not in catalog.query("SELECT action FROM dl_audit")["action"].to_pylist()
    # the advice: theirs moved away, ours go on
    commit_file(root, 1).unlink()
    assert catalog.mirror.recover("t").versions == ()
    assert catalog.mirror.run().published == 2
    same_everywhere(catalog, root)


@pytest.mark.parametrize("by", ["repair", "recover"])
def test_a_table_whose_published_version_was_overwritten_goes_on_once_ours_is_back(
    catalog: Catalog, root: Path, by: str
) -> None:
    append(catalog, 1)
    ours = commit_file(root, 1).read_bytes()
    commit_file(root, 1).write_bytes(FOREIGN)
    with pytest.warns(UserWarning, match="frozen"):
        append(catalog, 2)
    done = catalog.mirror.repair("t")
    assert (done.unfrozen, catalog.mirror.status("t")[0].state) == (False, "frozen")
    with pytest.raises(TableFrozenError, match="both sides"):
        catalog.mirror.recover("t")
    if by == "repair":
        commit_file(root, 1).unlink()
        foreseen = catalog.mirror.repair("t", dry_run=True)
        assert catalog.mirror.status("t")[0].state == "frozen"
        done = catalog.mirror.repair("t")
        for one in (foreseen, done):
            assert (one.rewritten, one.unfrozen) == ((1,), True)
    else:
        commit_file(root, 1).write_bytes(ours)
        assert catalog.mirror.recover("t").versions == ()
    assert catalog.mirror.status("t")[0].state == "active"
    append(catalog, 3)
    catalog.mirror.run()
    same_everywhere(catalog, root)
    assert outside_ids(root) == [0, 1, 2, 3]


def test_recovering_takes_nothing_over_a_hole(catalog: Catalog, silent: Catalog, root: Path) -> None:
    append(silent, 1)
    commit_file(root, 2).write_bytes(FOREIGN)
    with pytest.raises(LogError, match="version 1 of the catalog is not in the log"):
        catalog.mirror.recover("t")
    assert catalog.describe("t").head.version == 1


def repair_in_child(uri: str, points: str) -> list[list[object]]:
    catalog = Catalog(uri)
    arm(points)
    done = catalog.mirror.repair("t")
    return [list(done.rewritten), [[f.kind, f.version, f.detail] for f in done.left]]


def test_a_repair_that_others_were_faster_than_tells_so(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    append(catalog, 1, 2, 3)
    whole = commit_file(root, 3).read_bytes()
    time = commit_file(root, 3).stat().st_mtime_ns
    commit_file(root, 1).unlink()
    for version in (2, 3):
        commit_file(root, version).write_bytes(b'{"commitInfo":{"oper')
    catalog.close()
    slow = Child(repair_in_child, catalog_uri, "publish.before_link=stop", folder=tmp_path)
    slow.pause()
    for version in (1, 2):
        commit_file(root, version).write_bytes(FOREIGN)
    slow.resume()
    rewritten, found = slow.result()
    assert rewritten == [3]
    assert [(kind, version) for kind, version, _ in found] == [("foreign", 1), ("foreign", 2)]
    assert all("while the log was repaired" in detail for _, _, detail in found)
    assert [commit_file(root, v).read_bytes() for v in (1, 2, 3)] == [FOREIGN, FOREIGN, whole]
    assert commit_file(root, 3).stat().st_mtime_ns // 10**6 == time // 10**6


def rebuild_in_child(uri: str, place: str, points: str) -> None:
    catalog = Catalog(uri)
    arm(points)
    catalog.mirror.rebuild("t", place)


def test_rebuilding_in_the_tables_own_place_goes_on_and_publishes_nothing_that_waits(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    append(catalog, 1, 2)
    catalog.mirror.pause("t")
    append(catalog, 3)
    shutil.rmtree(root / "_delta_log")
    catalog.close()
    Child(rebuild_in_child, catalog_uri, str(root), "publish.before_link=kill@2", folder=tmp_path).died()
    assert logged(root) == [0]
    commit_file(root, 2).write_bytes(FOREIGN)
    with pytest.raises(InvalidArgumentError, match="a log at"):
        catalog.mirror.rebuild("t", root)
    assert (logged(root), commit_file(root, 2).read_bytes()) == ([0, 2], FOREIGN), "nothing is added to it"
    commit_file(root, 2).unlink()
    assert catalog.mirror.rebuild("t", root) == (0, 2)
    assert logged(root) == [0, 1, 2], "what waits is not published"
    assert catalog.mirror.verify("t").ok
    with pytest.raises(InvalidArgumentError, match="a log at"):
        catalog.mirror.rebuild("t", root)
    assert catalog.mirror.resume("t").published == 1
    same_everywhere(catalog, root)
