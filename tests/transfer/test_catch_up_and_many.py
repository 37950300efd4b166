"""Sources that move on, and many tables at once."""

from __future__ import annotations

import json
import shlex
import shutil
import threading
from pathlib import Path
from typing import Any

import deltalake
import pytest

from deltalakedb import (
    Catalog,
    DeltaTable,
    ImportProgress,
    import_status,
    import_table,
    import_tables,
    open_log,
    plan_import,
    rollback_import,
    verify_table,
    write_deltalake,
)
from deltalakedb.coordinator import coordinator
from deltalakedb.exceptions import (
    AddressError,
    InvalidArgumentError,
    LogCorruptError,
    LogGapError,
    TableExistsError,
    UnsupportedFeatureError,
    UnsupportedOperationError,
)
from deltalakedb.transfer.importing import api, loader
from deltalakedb.transfer.importing.api import discover
from support.lake import ids, ids_of
from support.sources import plain_table
from support.statements import count_statements


def test_catching_up_brings_only_new_commits(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    first = import_table(str(root), uri, catch_up=True)
    assert (first.action, first.version) == ("imported", 8)
    with count_statements() as asked:
        nothing = import_table(str(root), uri, catch_up=True)
    assert (nothing.action, nothing.num_versions) == ("unchanged", 0)
    assert len(asked.statements) <= 3
    deltalake.write_deltalake(root, ids(50), mode="append")
    deltalake.DeltaTable(root).delete("id = 4")
    done = import_table(str(root), uri, catch_up=True, verify="full")
    assert (done.action, done.num_versions, done.version) == ("caught up", 2, 10)
    assert ids_of(DeltaTable(uri)) == ids_of(deltalake.DeltaTable(root))
    assert open_log(uri).commit_bytes(10) == (root / "_delta_log" / f"{10:020}.json").read_bytes()
    assert import_table(str(root), uri, catch_up=True).action == "unchanged"


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_commits_that_come_while_it_catches_up_are_for_the_next_time(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, uri = tmp_path / "plain", f"{catalog_uri}?table=t"
    deltalake.write_deltalake(root, ids(1))
    import_table(str(root), uri)
    deltalake.write_deltalake(root, ids(2), mode="append")
    compare = api.verify_head

    def write_meanwhile(*given: Any, **more: Any) -> Any:
        deltalake.write_deltalake(root, ids(3), mode="append")
        return compare(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(api, "verify_head", write_meanwhile)
        assert import_table(str(root), uri, catch_up=True, verify="data").version == 1
    link = tmp_path / "link"
    link.symlink_to(root)
    for again in (plan_import, import_table):
        with pytest.raises(TableExistsError, match="imported before, and is at version 1"):
            again(str(link), uri)
    assert import_table(str(link), uri, catch_up=True).version == 2
    assert not verify_table(uri).num_differences


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize("moment", ["before it is opened", "after it is opened"])
def test_two_that_catch_up_at_once_bring_every_commit_once(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    root, uri = plain_table(tmp_path / "plain", commits=2, checkpoint=None), f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    for number in (50, 51, 52):
        deltalake.write_deltalake(root, ids(number), mode="append")
    point = "refuse_rewritten" if moment == "before it is opened" else "read_foreign_commit"
    original, calls = getattr(coordinator, point), []

    def overtaken(*given: Any) -> Any:
        calls.append(1)
        found = original(*given)
        if len(calls) == 2:  # the other one is done with all of it now
            assert import_table(str(root), uri, catch_up=True).num_versions > 0
        return found

    monkeypatch.setattr(coordinator, point, overtaken)
    assert import_table(str(root), uri, catch_up=True).version == 4
    assert verify_table(uri, "full").ok
    assert ids_of(DeltaTable(uri)) == ids_of(deltalake.DeltaTable(root))


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_ctrl_c_leaves_the_tables_that_have_not_begun(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, gate = tmp_path / "lake", threading.Event()
    for number in range(6):
        deltalake.write_deltalake(lake / f"t{number}", ids(number))

    whole = api.import_with

    def import_second_late(path: str, *given: Any, **more: Any) -> Any:
        assert path.endswith("t0") or gate.wait(60)
        return whole(path, *given, **more)

    def interrupt(*_: object) -> None:
        gate.set()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(api, "import_with", import_second_late)
        with pytest.raises(KeyboardInterrupt):
            import_tables(str(lake), catalog_uri, parallel=1, progress=interrupt)
    with Catalog(catalog_uri) as catalog:
        assert len(catalog.tables()) <= 3
    assert import_tables(str(lake), catalog_uri).ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_an_import_tells_that_others_went_on(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain", commits=2, checkpoint=None), f"{catalog_uri}?table=t"

    def write_meanwhile(progress: ImportProgress) -> None:
        if progress.phase == "verifying" and progress.done == progress.total:
            deltalake.write_deltalake(root, ids(60), mode="append")

    done = import_table(str(root), uri, progress=write_meanwhile)
    assert done.version == 1
    assert "--catch-up" in (done.note or "")
    assert import_table(str(root), uri, catch_up=True).note is None


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_catching_up_mends_a_table_that_was_frozen_for_it(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    deltalake.write_deltalake(root, ids(50), mode="append")
    with pytest.raises(Exception, match="frozen"):
        write_deltalake(uri, ids(51), mode="append")
    assert import_table(str(root), uri, catch_up=True).version == 9
    write_deltalake(uri, ids(51), mode="append")
    with Catalog(catalog_uri) as catalog:
        catalog.mirror.pause("t")
        write_deltalake(uri, ids(52), mode="append")
        deltalake.write_deltalake(root, ids(53), mode="append")
        deltalake.write_deltalake(root, ids(54), mode="append")
        with pytest.raises(UnsupportedOperationError) as caught:
            import_table(str(root), uri, catch_up=True)
        assert "resolve" in (caught.value.suggestion or "")
    with pytest.raises(TableExistsError):
        import_table(str(plain_table(tmp_path / "other", commits=1)), uri, catch_up=True)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_catching_up_takes_nothing_from_a_log_that_does_not_go_on_from_the_catalog(
    tmp_path: Path, catalog_uri: str
) -> None:
    root, uri = tmp_path / "plain", f"{catalog_uri}?table=t"
    plain_table(root, commits=3, checkpoint=None)
    import_table(str(root), uri)
    known = DeltaTable(uri).version()
    for number in (50, 51, 52):
        deltalake.write_deltalake(root, ids(number), mode="append")
    log = root / "_delta_log"
    (log / f"{known + 2:020}.json").rename(tmp_path / "away")
    with pytest.raises(LogGapError, match=f"the log is at {known + 3}"):
        import_table(str(root), uri, catch_up=True)
    assert DeltaTable(uri).version() == known + 1, "up to the gap"
    (tmp_path / "away").rename(log / f"{known + 2:020}.json")
    last = log / f"{known + 3:020}.json"
    strange = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["zork"],
        "writerFeatures": ["zork"],
    }
    content = last.read_text()
    last.write_text(content.rstrip("\n") + "\n" + json.dumps({"protocol": strange}) + "\n")
    with pytest.raises(UnsupportedFeatureError, match="zork"):
        import_table(str(root), uri, catch_up=True)
    assert DeltaTable(uri).version() == known + 2
    last.write_text(content)
    assert import_table(str(root), uri, catch_up=True).version == known + 3
    shutil.rmtree(root)
    for versions in (known + 4, 2):
        plain_table(root, commits=versions, checkpoint=None)
        for _ in range(2):
            with pytest.raises(LogCorruptError, match="log was rewritten"):
                import_table(str(root), uri, catch_up=True)
    assert DeltaTable(uri).version() == known + 3


def test_a_source_that_moves_on_during_the_load_is_followed(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    moved: list[int] = []
    most = 2

    def write_meanwhile(progress: ImportProgress) -> None:
        if progress.phase == "loading" and progress.done == progress.total and len(moved) < most:
            moved.append(progress.done)
            deltalake.write_deltalake(root, ids(60 + len(moved)), mode="append")

    done = import_table(str(root), uri, history="full", verify="full", progress=write_meanwhile)
    assert (len(moved), done.version) == (2, 10)
    assert ids_of(DeltaTable(uri)) == ids_of(deltalake.DeltaTable(root))
    (status,) = import_status(uri)
    assert (status.version, status.batches_done) == (10, 3)
    # one that never rests is followed for a while, and finished as it is
    rollback_import(uri)
    moved.clear()
    most = 9
    done = import_table(str(root), uri, history="full", verify="counts", progress=write_meanwhile)
    assert (len(moved), done.version) == (3, 12)
    assert "13" in (done.note or "")
    assert import_table(str(root), uri, catch_up=True).version == 13


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Three tables, a broken one, and folders that are none."""
    root = tmp_path / "lake"
    for name in ("sales/orders", "sales/eu/stock", "logs"):
        deltalake.write_deltalake(root / name, ids(1, 2))
    broken = plain_table(root / "broken", commits=3, checkpoint=None)
    (broken / "_delta_log" / f"{1:020}.json").write_text("{")
    (root / "empty" / "_delta_log").mkdir(parents=True)
    (root / "files").mkdir()
    deltalake.write_deltalake(root / "logs" / "inside", ids(1))
    deltalake.write_deltalake(root / "_hidden" / "t", ids(1))
    return root


@pytest.mark.parametrize("parallel", [1, 3])
def test_many_tables_are_imported_side_by_side(lake: Path, catalog_uri: str, parallel: int) -> None:
    planned = import_tables(str(lake), catalog_uri, namespace="raw", dry_run=True)
    assert [t.outcome for t in planned.tables] == ["failed", "planned", "planned", "planned"]
    told: list[tuple[int, int]] = []
    done = import_tables(
        str(lake),
        catalog_uri,
        namespace="raw",
        parallel=parallel,
        progress=lambda n, of, _: told.append((n, of)),
    )
    assert {t.table: t.outcome for t in done.tables} == {
        "raw.broken": "failed",
        "raw.logs": "imported",
        "raw.sales.eu.stock": "imported",
        "raw.sales.orders": "imported",
    }
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert not done.ok
    assert done.failed[0].error is not None
    assert "line 1" in done.failed[0].error.message
    with Catalog(catalog_uri) as catalog:
        assert [t.name for t in catalog.tables()] == ["raw.logs", "raw.sales.eu.stock", "raw.sales.orders"]
    for version in (1, 2, 3):
        (lake / "broken" / "_delta_log" / f"{version:020}.json").unlink()
    deltalake.write_deltalake(lake / "sales/orders", ids(3), mode="append")
    again = import_tables(str(lake), catalog_uri, namespace="raw", parallel=parallel)
    assert [t.outcome for t in again.tables] == ["imported", "unchanged", "unchanged", "caught up"]
    assert again.ok
    assert again.to_dict()["num_failed"] == 0
    assert verify_table(f"{catalog_uri}?table=raw.sales.orders", "full").ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_list_of_tables_is_imported_under_its_names(lake: Path, catalog_uri: str) -> None:
    link = lake.parent / "link"
    link.symlink_to(lake / "logs")
    both = import_tables({"a": str(lake / "logs"), "b": str(link)}, catalog_uri, dry_run=True)
    assert [t.outcome for t in both.tables] == ["planned", "failed"]
    assert "twice: a and b" in str(both.tables[1].error)
    source = {"a": str(lake / "logs"), "b.c": str(lake / "sales/orders"), "d": str(lake / "files")}
    done = import_tables(source, catalog_uri)
    assert [(t.table, t.outcome) for t in done.tables] == [
        ("a", "imported"),
        ("b.c", "imported"),
        ("d", "failed"),
    ]
    deltalake.write_deltalake(lake / "logs", ids(9), mode="append")
    left = import_tables({"a": str(lake / "logs")}, catalog_uri, catch_up=False)
    assert [t.outcome for t in left.tables] == ["unchanged"]
    assert DeltaTable(f"{catalog_uri}?table=a").version() == 0


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_folders_without_a_name_of_their_own_leave_the_others_alone(tmp_path: Path, catalog_uri: str) -> None:
    lake = tmp_path / "lake"
    bad = ["trail.", "a..b", "back\\slash", " space"]
    deltalake.write_deltalake(lake / "good", ids(1))
    for name in (*bad, "x.y", "x/y"):
        shutil.copytree(lake / "good", lake / name)
    for dry_run in (True, False):
        done = import_tables(str(lake), catalog_uri, dry_run=dry_run)
        fate = {Path(t.location).relative_to(lake).as_posix(): t for t in done.tables}
        assert {name for name, t in fate.items() if t.outcome == "failed"} == {*bad, "x.y", "x/y"}
        assert fate["good"].outcome == ("planned" if dry_run else "imported")
        for failed in done.failed:
            assert failed.error is not None
            assert f"deltasql import {shlex.quote(failed.location)} NAME" in (failed.error.suggestion or "")
    # what the advice says helps, and for good
    import_table(str(lake / "x.y"), f"{catalog_uri}?table=mine")
    for name, own in zip(bad, "pqrs", strict=True):
        import_table(str(lake / name), f"{catalog_uri}?table={own}")
    for namespace in (None, "other"):
        again = import_tables(str(lake), catalog_uri, namespace=namespace)
        assert again.ok, again.failed
        outcomes = {t.table: t.outcome for t in again.tables}
        assert outcomes.pop("x.y") == ("imported" if namespace is None else "unchanged")
        assert outcomes == dict.fromkeys(["good", "mine", *"pqrs"], "unchanged")
    deltalake.write_deltalake(tmp_path / "more" / "good", ids(1))
    taken = import_tables(str(tmp_path / "more"), catalog_uri)
    assert taken.failed[0].error is not None
    assert str(lake / "good") in taken.failed[0].error.message
    listed = import_tables({"a..b": str(lake / "good"), "c": "ftp://host/x"}, catalog_uri)
    assert [t.outcome for t in listed.tables] == ["failed", "failed"]
    with pytest.raises(AddressError, match="empty part"):
        import_tables(str(lake), catalog_uri, namespace="a..b")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_discovery_names_tables_by_their_folders(lake: Path, catalog_uri: str) -> None:
    assert [(f.name, Path(f.path).relative_to(lake).as_posix()) for f in discover(str(lake))] == [
        ("broken", "broken"),
        ("logs", "logs"),
        ("sales.eu.stock", "sales/eu/stock"),
        ("sales.orders", "sales/orders"),
    ]
    assert [f.name for f in discover(str(lake / "logs"))] == ["logs"]
    with pytest.raises(InvalidArgumentError):
        discover(str(lake / "nowhere"))
    with pytest.raises(InvalidArgumentError):
        import_tables(str(lake), f"{catalog_uri}?table=t")
    with pytest.raises(InvalidArgumentError):
        import_tables({}, catalog_uri, parallel=0)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_rate_limit_slows_the_load_down(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(loader, "_sleep", slept.append)
    import_table(str(plain_table(tmp_path / "plain")), f"{catalog_uri}?table=t", rate_limit=1)
    assert sum(slept) > 5
    slept.clear()
    import_table(str(plain_table(tmp_path / "other")), f"{catalog_uri}?table=u")
    assert slept == []
    with pytest.raises(InvalidArgumentError):
        import_table(str(tmp_path / "other"), f"{catalog_uri}?table=v", rate_limit=-1)
