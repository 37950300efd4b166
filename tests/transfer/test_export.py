"""Giving tables away: copies that stock deltalake reads the same, and tables that leave in place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, export_table, import_table, verify_table, write_deltalake
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogError,
    TableExistsError,
    TableMissingError,
    VerificationError,
)
from deltalakedb.settings import Config, use_config
from deltalakedb.transfer import exporting
from support.lake import every_type, files_below, ids, ids_of
from support.processes import Child
from support.sources import change, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import TableUri
    from deltalakedb.transfer.exporting import DataMode


@pytest.fixture
def uri(tmp_path: Path, catalog_uri: str) -> str:
    """A table that was imported and written to afterwards."""
    address = f"{catalog_uri}?table=t"
    import_table(str(plain_table(tmp_path / "plain")), address)
    write_deltalake(address, ids(100, 101, part="z"), mode="append")
    DeltaTable(address).delete("id = 3")
    return address


def test_a_copy_elsewhere_reads_the_same_at_every_version(uri: str, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    would = export_table(uri, str(target), dry_run=True)
    assert (would.dry_run, would.version, target.exists()) == (True, 10, False)
    done = export_table(uri, str(target), verify="data")
    assert (done.version, done.first_version, done.in_place, done.files_gone) == (10, 0, False, 0)
    assert done.verification is not None
    assert done.verification.rows_checked == len(ids_of(DeltaTable(uri)))
    for version in range(11):
        mine, stock = DeltaTable(uri, version=version), deltalake.DeltaTable(target, version=version)
        assert ids_of(mine) == ids_of(stock), version
        assert mine.schema() == stock.schema()
    assert [h["version"] for h in deltalake.DeltaTable(target).history()] == list(range(10, -1, -1))
    # the copy is a table of its own
    deltalake.write_deltalake(target, ids(900, part="z"), mode="append")
    assert DeltaTable(uri).version() == 10
    assert verify_table(uri, "full").ok
    with pytest.raises(InvalidArgumentError):
        export_table(uri, str(target))


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_the_newest_version_alone_can_be_linked(uri: str, tmp_path: Path) -> None:
    target = tmp_path / "linked"
    done = export_table(uri, str(target), history="newest", data="link", verify="full")
    assert (done.version, done.first_version) == (10, 10)
    assert done.num_files == len(DeltaTable(uri).file_uris())
    stock = deltalake.DeltaTable(target)
    assert (stock.version(), ids_of(stock)) == (10, ids_of(DeltaTable(uri)))
    linked = [f for f in target.rglob("*.parquet") if "_delta_log" not in f.parts]
    assert all(f.stat().st_nlink == 2 for f in linked)
    deltalake.write_deltalake(target, ids(901, part="z"), mode="append")
    assert deltalake.DeltaTable(target).version() == 11
    bare = tmp_path / "bare"
    assert export_table(uri, str(bare), data="none").num_files == 0
    assert {Path(f).parts[0] for f in files_below(bare)} == {"_delta_log"}


def test_a_table_leaves_the_catalog_in_place(uri: str, catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.mirror.pause("t")
        write_deltalake(uri, ids(102, part="z"), mode="append")
        expected = ids_of(DeltaTable(uri))
        with pytest.raises(NotImplementedError):
            export_table(uri)
        assert DeltaTable(uri).version() == 11
        catalog.mirror.resume("t")
    done = export_table(uri, verify="full")
    assert (done.in_place, done.version, done.location) == (True, 11, str(tmp_path / "plain"))
    with pytest.raises(TableMissingError):
        DeltaTable(uri)
    stock = deltalake.DeltaTable(tmp_path / "plain")
    assert (stock.version(), ids_of(stock)) == (11, expected)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_table_that_was_created_here_can_leave_too(table_uri: TableUri, tmp_path: Path) -> None:
    uri = table_uri("made")
    write_deltalake(uri, every_type(), partition_by=["part", "day"])
    location = Catalog(uri.partition("?")[0]).describe("made").location
    copy = export_table(uri, str(tmp_path / "copy"), verify="data")
    assert copy.verification is not None
    assert copy.verification.ok
    alias = tmp_path / "alias"
    alias.symlink_to(location)
    for own in (location, f"{location}/", str(alias)):
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match="own location"):
                export_table(uri, own, dry_run=dry_run)
    assert DeltaTable(uri).version() == 0
    export_table(uri)
    for root in (location, tmp_path / "copy"):
        assert deltalake.DeltaTable(root).to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_an_export_that_is_killed_goes_on(uri: str, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    Child(export_to, uri, str(target), folder=tmp_path, points="export.before_log=kill").died()
    assert not (target / "_delta_log").exists()
    Child(export_to, uri, str(target), folder=tmp_path).result()
    assert ids_of(deltalake.DeltaTable(target)) == ids_of(DeltaTable(uri))
    (target / "_delta_log" / f"{10:020}.json").unlink()
    assert export_table(uri, str(target)).version == 10
    Child(export_to, uri, None, folder=tmp_path, points="export.verified=kill").died()
    assert DeltaTable(uri).version() == 10
    export_to(uri, None)
    with pytest.raises(TableMissingError):
        DeltaTable(uri)


def export_to(uri: str, path: str | None) -> None:
    export_table(uri, path)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_files_that_are_gone_or_lie_elsewhere_are_told(uri: str, tmp_path: Path, catalog_uri: str) -> None:
    live = {Path(f).name for f in DeltaTable(uri).file_uris()}
    removed = [f for f in (tmp_path / "plain").rglob("part-*.parquet") if f.name not in live]
    assert removed
    for file in removed:
        file.unlink()
    assert export_table(uri, str(tmp_path / "one")).files_gone == len(removed)
    outside = tmp_path / "shallow"
    log = outside / "_delta_log"
    log.mkdir(parents=True)
    lines = (tmp_path / "plain" / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = str(tmp_path / "plain" / action["add"]["path"])
    (log / f"{0:020}.json").write_text("".join(json.dumps(a) + "\n" for a in actions))
    with use_config(Config(catalog={"allow_outside_paths": True})):
        import_table(str(outside), f"{catalog_uri}?table=shallow")
        assert export_table(f"{catalog_uri}?table=shallow", str(tmp_path / "two")).files_outside == 1
    next((tmp_path / "plain").rglob(next(iter(live)))).unlink()
    with pytest.raises(LogError, match="is gone"):
        export_table(uri, str(tmp_path / "three"))


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize("mode", ["copy", "link"])
def test_another_file_at_the_target_is_neither_taken_nor_overwritten(
    uri: str, tmp_path: Path, mode: DataMode
) -> None:
    target = tmp_path / "copy"
    export_table(uri, str(target), data=mode)
    log = target / "_delta_log"
    live = Path(DeltaTable(uri).file_uris()[0])
    victim = target / live.relative_to(tmp_path / "plain")
    shutil.rmtree(log)
    victim.unlink()
    whole = live.read_bytes()
    others: list[Callable[[], object]] = [
        lambda: victim.write_bytes(b"short"),
        lambda: victim.write_bytes(b"\0" * len(whole)),
        lambda: victim.symlink_to(tmp_path / "nowhere"),
    ]
    for put in others:
        put()
        with pytest.raises(InvalidArgumentError, match=victim.name):
            export_table(uri, str(target), data=mode, verify="full")
        assert not log.exists()
        if not victim.is_symlink():
            assert victim.read_bytes() != whole
        victim.unlink()
    assert live.read_bytes() == whole
    victim.write_bytes(whole)  # the same bytes are as good as a copy
    assert export_table(uri, str(target), data=mode, verify="data").version == 10


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_missing_file_that_a_restore_made_live_again_is_an_error(tmp_path: Path, catalog_uri: str) -> None:
    uri = f"{catalog_uri}?table=t"
    Catalog(catalog_uri, create=True).write("t", ids(1), location=tmp_path / "t")
    (old,) = DeltaTable(uri).file_uris()
    write_deltalake(uri, ids(2), mode="overwrite")
    DeltaTable(uri).restore(0)
    (tmp_path / "t" / old.rpartition("/")[2]).unlink()
    for dry_run in (True, False):
        with pytest.raises(LogError, match="is gone"):
            export_table(uri, str(tmp_path / "copy"), dry_run=dry_run)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_an_export_that_differs_is_not_trusted(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exporting._Copy.write_log

    def tampered(*arguments: object) -> None:
        whole(*arguments)  # type: ignore[arg-type]
        change(uri, "UPDATE dl_files SET size = size + 1 WHERE remove_version IS NULL")

    monkeypatch.setattr(exporting._Copy, "write_log", tampered)
    with pytest.raises(VerificationError):
        export_table(uri, str(tmp_path / "copy"))
    assert DeltaTable(uri).version() == 10


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_wrong_arguments_of_an_export_are_named(uri: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="history"):
        export_table(uri, str(tmp_path / "x"), history="some")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="data"):
        export_table(uri, str(tmp_path / "x"), data="some")  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_the_places_of_tables_are_no_targets(uri: str, catalog_uri: str, tmp_path: Path) -> None:
    other = tmp_path / "lake" / "other"
    with Catalog(catalog_uri) as catalog:
        catalog.create_table("other", schema=ids(1).schema, location=str(other))
    before = {f for f in files_below(tmp_path) if not f.startswith("catalog.db")}
    for target in (other, other / "inside", other.parent, tmp_path / "plain" / "inside", tmp_path):
        for dry_run in (True, False):
            with pytest.raises(TableExistsError):
                export_table(uri, str(target), dry_run=dry_run)
    assert {f for f in files_below(tmp_path) if not f.startswith("catalog.db")} == before
    write_deltalake(f"{catalog_uri}?table=other", ids(1), mode="append")
    assert verify_table(f"{catalog_uri}?table=other", "full").ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_table_imported_from_a_checkpoint_is_exported(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    import_table(str(root), uri, history="checkpoint")
    for version in range(5):
        (root / "_delta_log" / f"{version:020}.json").unlink()
    done = export_table(uri, str(tmp_path / "copy"))
    assert (done.first_version, done.version, done.versions_gone) == (4, 8, 0)
    assert ids_of(deltalake.DeltaTable(tmp_path / "copy", version=4)) == ids_of(DeltaTable(uri, version=4))
