"""Drift is found by its kind, repaired from SQL where it is damage, and left alone where it is somebody's."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError, TableExistsError
from support.lake import files_below, ids, ids_of
from support.mirrors import append, append_outside, commit_file, logged, outside_ids, same_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltalakedb import Catalog, VerifyReport


@pytest.fixture
def history(catalog: Catalog, root: Path) -> Path:
    """The table at version 4: appends, a delete, an overwrite."""
    append(catalog, 1, 2)
    catalog.table("t").delete("id = 1")
    catalog.write("t", ids(7, 8), mode="overwrite")
    return root


def kinds(report: VerifyReport) -> list[tuple[str, int]]:
    return [(f.kind, f.version) for f in report.differences]


def test_a_log_that_agrees_has_no_findings(catalog: Catalog, history: Path) -> None:
    report = catalog.mirror.verify("t")
    assert (report.ok, report.versions_checked, report.differences) == (True, 5, ())
    assert report.to_dict()["ok"] is True
    catalog.mirror.checkpoint("t")
    assert catalog.mirror.verify("t").ok


def test_waiting_versions_are_no_drift(catalog: Catalog, silent: Catalog, history: Path) -> None:
    append(silent, 9)
    report = catalog.mirror.verify("t")
    assert (report.ok, report.versions_checked) == (True, 5)


def test_missing_files_are_found_and_rewritten_as_they_were(catalog: Catalog, history: Path) -> None:
    before = {
        v: (commit_file(history, v).read_bytes(), commit_file(history, v).stat().st_mtime_ns) for v in (1, 4)
    }
    for version in before:
        commit_file(history, version).unlink()
    assert kinds(catalog.mirror.verify("t")) == [("missing", 1), ("missing", 4)]
    would = catalog.mirror.repair("t", dry_run=True)
    assert (would.rewritten, would.dry_run) == ((1, 4), True)
    assert logged(history) == [0, 2, 3], "a dry run changes nothing"
    done = catalog.mirror.repair("t")
    assert (done.rewritten, done.left) == ((1, 4), ())
    for version, (data, mtime) in before.items():
        assert commit_file(history, version).read_bytes() == data
        assert commit_file(history, version).stat().st_mtime_ns // 10**6 == mtime // 10**6
    assert catalog.mirror.verify("t").ok
    same_everywhere(catalog, history)
    assert catalog.mirror.repair("t").rewritten == (), "nothing is left to do"


@pytest.mark.parametrize("damage", ["empty", "torn", "cut at a line", "flipped"])
def test_damaged_files_are_found_and_rewritten(catalog: Catalog, history: Path, damage: str) -> None:
    file = commit_file(history, 2)
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    assert len(lines) > 1
    bad = {
        "empty": b"",
        "torn": data[: len(data) - 20],
        "cut at a line": b"".join(lines[:-1]),
        "flipped": b"\xff" + data[1:],
    }[damage]
    file.write_bytes(bad)
    assert kinds(catalog.mirror.verify("t")) == [("damaged", 2)]
    assert catalog.mirror.repair("t").rewritten == (2,)
    assert file.read_bytes() == data
    assert catalog.mirror.verify("t").ok


def test_a_whole_lost_log_is_rewritten(catalog: Catalog, history: Path) -> None:
    shutil.rmtree(history / "_delta_log")
    assert kinds(catalog.mirror.verify("t")) == [("missing", v) for v in range(5)]
    assert catalog.mirror.repair("t").rewritten == (0, 1, 2, 3, 4)
    same_everywhere(catalog, history)


def test_a_foreign_commit_in_the_place_of_ours_is_never_rewritten(catalog: Catalog, history: Path) -> None:
    foreign = b'{"commitInfo":{"operation":"FOREIGN"}}\n'
    commit_file(history, 3).write_bytes(foreign)
    commit_file(history, 1).unlink()
    assert kinds(catalog.mirror.verify("t")) == [("missing", 1), ("foreign", 3)]
    done = catalog.mirror.repair("t")
    assert done.rewritten == (1,)
    assert [(f.kind, f.version) for f in done.left] == [("foreign", 3)]
    assert commit_file(history, 3).read_bytes() == foreign


def test_a_version_beyond_the_head_is_ahead(catalog: Catalog, history: Path) -> None:
    append_outside(history, 9)
    assert kinds(catalog.mirror.verify("t")) == [("ahead", 5)]
    assert catalog.mirror.repair("t").rewritten == ()
    assert logged(history) == [0, 1, 2, 3, 4, 5]


def test_below_a_checkpoint_a_missing_file_is_no_drift(catalog: Catalog, history: Path) -> None:
    catalog.mirror.checkpoint("t")
    for version in range(4):
        commit_file(history, version).unlink()
    assert catalog.mirror.verify("t").ok
    commit_file(history, 4).unlink()
    assert kinds(catalog.mirror.verify("t")) == [("missing", 4)], "the checkpoint's own commit must stay"


def test_a_checkpoint_that_replays_to_something_else_is_found(
    catalog: Catalog, history: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    catalog.write("other", ids(1), location=other)
    append(catalog, 2, 3, 4, 5, name="other")
    catalog.mirror.checkpoint("other")
    catalog.mirror.checkpoint("t")
    name = f"{4:020}.checkpoint.parquet"
    shutil.copyfile(other / "_delta_log" / name, history / "_delta_log" / name)
    # the checkpoint itself, and what readers who begin there believe the table to be
    found = kinds(catalog.mirror.verify("t"))
    assert found[:2] == [("checkpoint", 4), ("state", 4)]
    assert {kind for kind, _ in found[2:]} == {"extra_file", "missing_file"}
    assert catalog.mirror.verify("t", replay=False).ok, "bytes alone do not show it"


def test_a_torn_checkpoint_is_found(catalog: Catalog, history: Path) -> None:
    catalog.mirror.checkpoint("t")
    file = history / "_delta_log" / f"{4:020}.checkpoint.parquet"
    file.write_bytes(file.read_bytes()[:100])
    assert kinds(catalog.mirror.verify("t")) == [("checkpoint", 4)]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_table_of_which_nothing_is_published_is_no_drift(
    catalog: Catalog, silent: Catalog, tmp_path: Path
) -> None:
    silent.write("new", ids(1), location=tmp_path / "new")
    report = catalog.mirror.verify("new")
    assert (report.ok, report.versions_checked) == (True, 0)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_log_is_not_rebuilt_inside_a_table(
    catalog: Catalog, silent: Catalog, history: Path, tmp_path: Path
) -> None:
    silent.write("new", ids(1), location=tmp_path / "new")  # its place has no log yet
    before = files_below(tmp_path)
    for place in (tmp_path / "new", history / "below", history / "_delta_log"):
        with pytest.raises(TableExistsError):
            catalog.mirror.rebuild("t", place)
    with pytest.raises(ArgumentTypeError):
        catalog.mirror.rebuild("t", None)  # type: ignore[arg-type]
    for start in ("0", None, 0.0, False):
        with pytest.raises(ArgumentTypeError):
            catalog.mirror.compact_log("t", start, 1)  # type: ignore[arg-type]
    for name in (3, None):
        with pytest.raises(ArgumentTypeError):
            catalog.mirror.publish(name)  # type: ignore[arg-type]
    assert files_below(tmp_path) == before


def swap(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes())


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_broken_checkpoints_are_written_again(catalog: Catalog, root: Path, tmp_path: Path) -> None:
    append(catalog, 1, 2)
    catalog.mirror.checkpoint("t")
    for version in range(2):
        commit_file(root, version).unlink()  # as a clean-up does: readers have nothing but the checkpoint
    append(catalog, 3)
    other = tmp_path / "other"
    catalog.write("other", ids(9), location=other)
    append(catalog, 8, 7, name="other")
    catalog.mirror.checkpoint("other")
    name = f"_delta_log/{2:020}.checkpoint.parquet"
    whole = (root / name).read_bytes()
    damages: dict[str, Callable[[Path], object]] = {
        "cut": lambda file: file.write_bytes(whole[:100]),
        "another table's": lambda file: swap(file, other / name),
        "no Parquet": lambda file: file.write_bytes(b"PAR1" + bytes(200) + b"PAR1"),
    }
    for told, damage in damages.items():
        damage(root / name)
        assert ("checkpoint", 2) in kinds(catalog.mirror.verify("t")), told
        would = catalog.mirror.repair("t", dry_run=True)
        assert (would.checkpoints, would.rewritten, would.left) == ((2,), (), ())
        assert not catalog.mirror.verify("t").ok, "a dry run changes nothing"
        assert catalog.mirror.repair("t").checkpoints == (2,)
        assert catalog.mirror.verify("t").ok, told
        assert outside_ids(root) == [0, 1, 2, 3]
        assert catalog.mirror.repair("t").checkpoints == (), "nothing is left to do"


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_lost_checkpoint_that_readers_are_pointed_to_is_written_again(catalog: Catalog, root: Path) -> None:
    append(catalog, 1)
    catalog.mirror.checkpoint("t")
    append(catalog, 2)
    for file in (root / "_delta_log").glob("*.checkpoint.*"):
        file.unlink()
    assert kinds(catalog.mirror.verify("t")) == [("checkpoint", 1)]
    done = catalog.mirror.repair("t")
    assert (done.checkpoints, done.rewritten) == ((1,), ())
    assert catalog.mirror.verify("t").ok
    assert outside_ids(root) == [0, 1, 2]
    hint = root / "_delta_log" / "_last_checkpoint"
    hint.write_text('{"version":99,"size":1}')  # as of a log that was put back from an older copy
    assert kinds(catalog.mirror.verify("t")) == [("checkpoint", 99)]
    assert catalog.mirror.repair("t").checkpoints == (99,)
    assert (catalog.mirror.verify("t").ok, outside_ids(root)) == (True, [0, 1, 2])
    hint.write_text("{garbage")
    (found,) = catalog.mirror.verify("t").differences
    assert (found.kind, found.version) == ("checkpoint", 1)
    assert "_last_checkpoint" in found.detail
    assert catalog.mirror.repair("t").checkpoints == (1,)
    assert (catalog.mirror.verify("t").ok, outside_ids(root)) == (True, [0, 1, 2])


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_checkpoint_beyond_somebody_elses_commit_is_left_as_it_is(catalog: Catalog, root: Path) -> None:
    append(catalog, 1, 2)
    catalog.mirror.checkpoint("t")
    torn = root / "_delta_log" / f"{2:020}.checkpoint.parquet"
    torn.write_bytes(b"torn")
    commit_file(root, 1).write_bytes(b'{"commitInfo":{"operation":"FOREIGN"}}\n')
    done = catalog.mirror.repair("t")
    assert (done.checkpoints, [(f.kind, f.version) for f in done.left]) == ((), [("foreign", 1)])
    assert torn.read_bytes() == b"torn"


def test_a_rebuilt_log_reads_the_same_at_every_version(
    catalog: Catalog, silent: Catalog, history: Path, tmp_path: Path
) -> None:
    append(silent, 9)  # not published yet, and part of the table all the same
    place = tmp_path / "rebuilt"
    assert catalog.mirror.rebuild("t", place) == (0, 5)
    for file in history.glob("*.parquet"):
        os.link(file, place / file.name)
    for version in range(6):
        stock = deltalake.DeltaTable(place, version=version)
        assert ids_of(stock) == ids_of(catalog.table("t", version=version))
        assert commit_file(place, version).read_bytes() == catalog.log("t").commit_bytes(version)
    assert logged(history) == [0, 1, 2, 3, 4], "the table's own log is left alone"
    with pytest.raises(InvalidArgumentError, match="empty place"):
        catalog.mirror.rebuild("t", place)
    with pytest.raises(InvalidArgumentError):
        catalog.mirror.rebuild("t", history)


def test_a_log_imported_from_its_checkpoint_is_rebuilt_from_there(catalog: Catalog, tmp_path: Path) -> None:
    source = tmp_path / "source"
    append_outside(source, 0, 1, 2)
    deltalake.DeltaTable(source).create_checkpoint()
    append_outside(source, 3)
    for version in (0, 1):
        commit_file(source, version).unlink()
    catalog.register("imported", source)
    append(catalog, 4, name="imported")
    place = tmp_path / "rebuilt"
    first, last = catalog.mirror.rebuild("imported", place)
    assert (first, last) == (2, 4)
    for file in source.glob("*.parquet"):
        os.link(file, place / file.name)
    for version in range(first, last + 1):
        assert outside_ids(place, version=version) == list(range(version + 1))
    assert catalog.mirror.verify("imported").ok
