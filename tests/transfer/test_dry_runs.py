"""Dry runs: they refuse what the real run refuses, report what it reports, and change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, export_table, plan_import, write_deltalake
from deltalakedb.exceptions import DeltaSqlError, TableFrozenError
from deltalakedb.transfer.importing.options import EngineOptions
from support.lake import files_below, ids, ids_of
from support.mirrors import commit_file
from support.sources import many_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltalakedb.transfer.exporting import ExportReport


@pytest.fixture
def catalog(catalog_uri: str, tmp_path: Path) -> Catalog:
    """A catalog with a table `t` of three versions, whose oldest file is gone."""
    made = Catalog(catalog_uri, create=True)
    made.write("t", ids(0, 1), location=tmp_path / "t")
    old = DeltaTable(made.table_uri("t")).file_uris()
    made.write("t", ids(2), mode="append")
    made.table("t").delete("id = 0")
    for path in old:
        (tmp_path / "t" / path.rpartition("/")[2]).unlink()
    return made


def seen(report: ExportReport) -> ExportReport:
    """A report but for what tells the two kinds of runs apart."""
    checked = None if report.verification is None else replace(report.verification, seconds=0.0)
    return replace(report, dry_run=False, seconds=0.0, verification=checked)


def test_an_export_in_place_does_what_its_dry_run_says(catalog: Catalog) -> None:
    uri = catalog.table_uri("t")
    would = export_table(uri, dry_run=True)
    assert would.verification is not None
    assert catalog.describe("t").head.version == 2
    assert seen(would) == seen(export_table(uri))


@pytest.mark.parametrize("data", ["copy", "link", "none"])
@pytest.mark.parametrize("history", ["full", "newest"])
def test_an_export_elsewhere_does_what_its_dry_run_says(
    catalog: Catalog, tmp_path: Path, history: Any, data: Any
) -> None:
    uri, target = catalog.table_uri("t"), tmp_path / "copy"
    would = export_table(uri, str(target), history=history, data=data, dry_run=True)
    assert not target.exists()
    done = export_table(uri, str(target), history=history, data=data)
    assert seen(would) == replace(seen(done), verification=None)


def fence(catalog: Catalog, root: Path) -> None:
    catalog.mirror.fence("t")


def pause(catalog: Catalog, root: Path) -> None:
    catalog.mirror.pause("t")
    catalog.write("t", ids(9), mode="append")


def damage(catalog: Catalog, root: Path) -> None:
    commit_file(root, 1).write_bytes(b"{}")


def go_around(catalog: Catalog, root: Path) -> None:
    deltalake.write_deltalake(root, ids(9), mode="append")


def occupy(catalog: Catalog, root: Path) -> None:
    pause(catalog, root)
    commit_file(root, 3).write_bytes(b'{"commitInfo":{"operation":"FOREIGN"}}\n')
    with catalog._database.write() as session:
        session.run("UPDATE dl_mirror SET paused = ?", (False,))


def lose(catalog: Catalog, root: Path) -> None:
    root.rename(root.with_name("aside"))


@pytest.mark.filterwarnings("ignore:the table t is frozen")
@pytest.mark.parametrize("trouble", [fence, pause, damage, go_around, occupy, lose])
def test_an_export_in_place_is_refused_by_its_dry_run_too(
    catalog: Catalog, tmp_path: Path, trouble: Callable[[Catalog, Path], None]
) -> None:
    root = tmp_path / "t"
    trouble(catalog, root)
    before = files_below(tmp_path)
    state = catalog.describe("t")
    with pytest.raises(DeltaSqlError) as would:
        export_table(catalog.table_uri("t"), dry_run=True)
    assert (files_below(tmp_path), catalog.describe("t")) == (before, state)
    with pytest.raises(DeltaSqlError) as done:
        export_table(catalog.table_uri("t"))
    assert type(would.value) is type(done.value)


@pytest.mark.parametrize("trouble", [fence, pause])
def test_a_drop_is_refused_by_its_dry_run_too(
    catalog: Catalog, tmp_path: Path, trouble: Callable[[Catalog, Path], None]
) -> None:
    trouble(catalog, tmp_path / "t")
    for dry_run in (True, False):
        with pytest.raises(DeltaSqlError):
            catalog.drop_table("t", dry_run=dry_run)
    assert catalog.drop_table("t", force=True, dry_run=True).name == "t"
    assert [t.name for t in catalog.tables()] == ["t"]


def test_a_repair_that_releases_a_frozen_table_says_so_before(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "t"
    ours = commit_file(root, 2).read_bytes()
    commit_file(root, 2).write_bytes(b'{"commitInfo":{"operation":"FOREIGN"}}\n')
    with pytest.warns(UserWarning, match="frozen"):
        write_deltalake(catalog.table_uri("t"), ids(9), mode="append")
    commit_file(root, 2).write_bytes(ours[:-5])  # theirs was moved away, ours came back in part
    would = catalog.mirror.repair("t", dry_run=True)
    done = catalog.mirror.repair("t")
    assert (would.rewritten, would.unfrozen, would.left) == (done.rewritten, done.unfrozen, done.left)
    assert done.unfrozen


@pytest.mark.parametrize("frozen", [False, True])
def test_a_repair_of_lost_files_refuses_before_what_it_refuses_then(
    catalog: Catalog, tmp_path: Path, frozen: bool
) -> None:
    uri, root = catalog.table_uri("t"), tmp_path / "t"
    for path in DeltaTable(uri).file_uris():
        (root / path.rpartition("/")[2]).unlink()
    deltalake.write_deltalake(root, ids(9), mode="overwrite")
    if frozen:
        with pytest.raises(TableFrozenError):
            write_deltalake(uri, ids(8), mode="append")
    for dry_run in (True, False):
        with pytest.raises(TableFrozenError, match="missing files"):
            DeltaTable(uri).repair(dry_run=dry_run)
    assert catalog.describe("t").head.version == 2


def test_a_repair_of_lost_files_takes_commits_of_others_over_if_they_are_allowed(
    catalog: Catalog, tmp_path: Path
) -> None:
    uri, root = catalog.table_uri("t"), tmp_path / "t"
    catalog.mirror.set_policy("t", "adopt")
    for path in DeltaTable(uri).file_uris():
        (root / path.rpartition("/")[2]).unlink()
    deltalake.write_deltalake(root, ids(9), mode="append")
    would = DeltaTable(uri).repair(dry_run=True)
    assert DeltaTable(uri).repair()["files_removed"] == would["files_removed"] != []
    assert ids_of(DeltaTable(uri)) == ids_of(deltalake.DeltaTable(root)) == [9]


def test_the_dry_run_of_an_import_names_the_engine_and_why(tmp_path: Path) -> None:
    source, uri = many_files(tmp_path / "source"), f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    plan = plan_import(str(source), uri)
    assert (plan.engine, plan.engine_reason) == ("local", "no Spark cluster was named")
    assert plan_import(str(source), uri, engine="local").engine_reason == "as asked for"


def test_the_reason_for_an_engine_holds_no_secret() -> None:
    assert EngineOptions(remote="sc://host/;token=secret").choose() == ("spark", "remote was given")
