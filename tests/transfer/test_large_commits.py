"""Commits that are read line by line become the same rows, and only their digests are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import (
    Catalog,
    DeltaTable,
    export_table,
    follow_table,
    import_table,
    rollback_import,
    verify_table,
    write_deltalake,
)
from deltalakedb.coordinator import rebase
from deltalakedb.delta_log import commit_file
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import LogCorruptError, ProtocolError, TableFrozenError
from deltalakedb.protocol import actions
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store
from deltalakedb.transfer.importing import plan
from support.lake import ids, ids_of
from support.sources import contents, count, many_files, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import TableUri


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_file, "LARGE", 1)
    monkeypatch.setattr(commit_file, "PIECE", 3)


def loaded(root: Path, uri: str, history: Any) -> dict[str, list[Any]]:
    import_table(str(root), uri, history=history, verify="full")
    found = contents(uri)
    rollback_import(uri)
    return {name: rows for name, rows in found.items() if name != "dl_commit_bytes"}


def test_large_commits_become_the_same_rows(
    tmp_path: Path, catalog_uri: str, request: pytest.FixtureRequest
) -> None:
    uri = f"{catalog_uri}?table=t"
    cases = [
        (many_files(tmp_path / "many"), "checkpoint"),
        (many_files(tmp_path / "other", checkpointed=7), "full"),
        (plain_table(tmp_path / "plain"), "full"),
    ]
    wanted = [loaded(root, uri, history) for root, history in cases]
    request.getfixturevalue("everything_is_large")
    assert [loaded(root, uri, history) for root, history in cases] == wanted
    root, _ = cases[-1]
    import_table(str(root), uri)
    assert count(uri, "dl_commit_bytes") == 0
    table = DeltaTable(uri)
    assert [c["operation"] for c in table.history()][-1] == "WRITE"
    write_deltalake(uri, ids(99, part="a"), mode="append")
    assert 99 in ids_of(DeltaTable(uri))
    assert verify_table(uri, "full").ok


def test_catching_up_and_following_take_large_commits_piece_by_piece(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    root, uri, copy = tmp_path / "plain", f"{catalog_uri}?table=t", f"{catalog_uri}?table=copy"
    wanted = loaded(plain_table(root), uri, "full")
    log, aside = root / "_delta_log", tmp_path / "aside"
    aside.mkdir()
    for file in log.glob("*checkpoint*"):
        file.unlink()
    later = sorted(log.glob("*.json"))[3:]  # among them a delete, and a file that is replaced
    request.getfixturevalue("everything_is_large")

    def whole(*_: object, **__: object) -> None:
        raise AssertionError("a large commit was read as a whole")

    def bring(*, first: Callable[[], Any], again: Callable[[], Any]) -> None:
        for file in later:
            file.rename(aside / file.name)
        first()
        with monkeypatch.context() as patched:
            for module in (rebase, actions):
                patched.setattr(module, "decode_commit", whole)
            for file in later:
                (aside / file.name).rename(file)
                again()

    bring(
        first=lambda: import_table(str(root), uri, history="full"),
        again=lambda: import_table(str(root), uri, catch_up=True, verify="counts"),
    )
    assert verify_table(uri, "full").ok
    found = contents(uri)
    assert found.pop("dl_commit_bytes") == []
    assert found == wanted
    assert ids_of(DeltaTable(uri)) == ids_of(deltalake.DeltaTable(root))
    rollback_import(uri)
    bring(
        first=lambda: follow_table(str(root), copy, once=True),
        again=lambda: follow_table(str(root), copy, once=True),
    )
    assert follow_table(str(root), copy, once=True).action == "unchanged"
    found = contents(copy)
    assert found.pop("dl_commit_bytes") == []
    assert found == wanted


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.usefixtures("everything_is_large")
def test_a_large_commit_that_breaks_the_rules_is_not_taken_over(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    newest = root / "_delta_log" / f"{7:020}.json"
    whole = newest.read_bytes()
    newest.unlink()
    import_table(str(root), uri)
    before = contents(uri)
    for broken in (
        whole.replace(b"part-01007", b"../part-01007"),
        whole + whole.splitlines(keepends=True)[1],  # the same file twice
        whole[:-20],
        b"",
    ):
        newest.write_bytes(broken)
        with pytest.raises((LogCorruptError, ProtocolError)):
            import_table(str(root), uri, catch_up=True)
        assert contents(uri) == before
    with pytest.raises(TableFrozenError):
        write_deltalake(uri, ids(99).select(["id"]), mode="append")
    newest.write_bytes(whole)
    # now by the way that mends a frozen table
    assert import_table(str(root), uri, catch_up=True, verify="full").version == 7


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.usefixtures("everything_is_large")
def test_damage_and_changed_bytes_of_a_large_commit_are_found(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    newest = root / "_delta_log" / f"{7:020}.json"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-20])
    with pytest.raises(LogCorruptError, match="line 3"):
        import_table(str(root), uri)
    newest.write_bytes(b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n"))
    assert import_table(str(root), uri).num_files == 40
    newest.write_bytes(whole)
    (found,) = verify_table(uri, "full").differences
    assert (found.kind, found.version) == ("foreign", 7)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_large_commits_that_differ_are_judged_line_by_line(
    table_uri: TableUri, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    for number in range(3):
        write_deltalake(uri, ids(number), mode="append")
    log = Path(DeltaTable(uri).table_uri.removeprefix("file://")) / "_delta_log"
    files = [log / f"{version:020}.json" for version in range(3)]
    ours = [file.read_bytes() for file in files]
    files[0].write_bytes(ours[0][:-20])
    files[1].write_bytes(ours[1].replace(b"part-", b"trap-"))
    files[2].write_bytes(ours[2][: ours[2].index(b"\n") + 1])  # what is left of it is well-formed
    monkeypatch.setattr(commit_file, "LARGE", 1)

    get = LocalStore.get

    def whole(store: LocalStore, path: str) -> bytes:
        assert not path.endswith(".json"), f"{path} was read as a whole"
        return get(store, path)

    monkeypatch.setattr(LocalStore, "get", whole)
    with Catalog(catalog_uri) as catalog:
        found = catalog.mirror.verify("t").differences
        assert [f.kind for f in found if f.version < 3] == ["damaged", "foreign", "damaged"]
        done = catalog.mirror.repair("t")
    assert (done.rewritten, [f.version for f in done.left]) == ((0, 2), [1])
    assert [files[0].read_bytes(), files[2].read_bytes()] == [ours[0], ours[2]]


def test_a_large_commit_is_a_batch_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = many_files(tmp_path / "many", commits=4)
    listing = list_log(open_store(root))
    assert list(plan.tail_batches(listing, range(6))) == [range(6)]
    monkeypatch.setattr(commit_file, "LARGE", listing.commits[0].size)
    assert list(plan.tail_batches(listing, range(6))) == [range(1), range(1, 6)]
    assert FileTxnLogReader(root).snapshot(0).version == 0


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.usefixtures("everything_is_large")
def test_large_commits_are_exported_from_the_log(
    tmp_path: Path, catalog_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    root, uri = plain_table(tmp_path / "plain", checkpoint=None), f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    write_deltalake(uri, ids(99, part="a"), mode="append")
    whole = tmp_path / "whole"
    done = export_table(uri, str(whole), verify="full")
    assert (done.first_version, done.version, done.versions_gone) == (0, 9, 0)
    for version in range(10):
        name = f"_delta_log/{version:020}.json"
        assert (whole / name).read_bytes() == (root / name).read_bytes()
        assert ids_of(deltalake.DeltaTable(whole, version=version)) == ids_of(
            DeltaTable(uri, version=version)
        )
    changed = root / "_delta_log" / f"{5:020}.json"
    changed.write_bytes(changed.read_bytes().replace(b"WRITE", b"WROTE"))
    done = export_table(uri, str(tmp_path / "part"))
    assert (done.first_version, done.versions_gone) == (5, 5)
    assert "begins with version 5" in caplog.text
    assert ids_of(deltalake.DeltaTable(tmp_path / "part", version=5)) == ids_of(DeltaTable(uri, version=5))
    assert export_table(uri, str(tmp_path / "part")).version == 9  # again


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.usefixtures("everything_is_large")
def test_a_lost_first_commit_is_exported_as_a_checkpoint(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain", commits=2, checkpoint=None), f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    (root / "_delta_log" / f"{0:020}.json").unlink()
    done = export_table(uri, str(tmp_path / "copy"))
    assert (done.first_version, done.versions_gone) == (0, 0)
    assert ids_of(deltalake.DeltaTable(tmp_path / "copy")) == ids_of(DeltaTable(uri))
