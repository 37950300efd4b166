"""Verification: each level finds what it is for, says where it is, and keeps quiet where nothing is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, import_status, import_table, verify_table, write_deltalake
from deltalakedb.address import parse_address
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import InvalidArgumentError, VerificationError
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import digests
from deltalakedb.protocol.digest import BUCKETS, FileDigest
from deltalakedb.settings import Config, use_config
from deltalakedb.transfer.verifying import verifier
from deltalakedb.transfer.verifying.log_replay import LogReplay
from support.lake import every_type, ids
from support.sources import change, change_stats, count, many_files, plain_table

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = ("counts", "digest", "full", "data")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plain_table(tmp_path / "plain")


def test_every_level_is_content_with_a_table_that_went_on(root: Path, catalog_uri: str) -> None:
    uri = f"{catalog_uri}?table=t"
    report = import_table(str(root), uri, verify="data")
    assert report.verification is not None
    assert report.verification.rows_checked == 15
    write_deltalake(uri, ids(100, part="c"), mode="append")
    with Catalog(catalog_uri) as catalog:
        catalog.table("t").delete("id = 4")
        catalog.mirror.checkpoint("t")
    for level in LEVELS:
        found = verify_table(uri, level)
        assert found.ok, found.differences
        assert (found.version, found.num_files, found.log_num_files) == (10, 9, 9)
        assert (found.digest == found.log_digest) or level == "counts"
        assert found.to_dict()["ok"] is True
    full = verify_table(uri, "full")
    assert (full.first_version, full.versions_checked, full.commits_checked) == (0, 11, 11)
    commits = verify_table(uri, "commits")
    assert (commits.ok, commits.versions_checked, commits.commits_checked) == (True, 11, 11)


TAMPERED = {
    "size": (
        "UPDATE dl_files SET size = size + 1 WHERE file_id = (SELECT max(file_id) FROM dl_files)",
        "counts",
    ),
    "path": (
        "UPDATE dl_files SET path = path || 'x' WHERE file_id = (SELECT max(file_id) FROM dl_files)",
        "digest",
    ),
    "time": (
        "UPDATE dl_files SET modification_time = 5 WHERE file_id = (SELECT max(file_id) FROM dl_files)",
        "digest",
    ),
    "gone": (
        "UPDATE dl_files SET remove_version = 8 WHERE file_id = (SELECT max(file_id) FROM dl_files)",
        "counts",
    ),
    "too early": ("UPDATE dl_files SET remove_version = remove_version - 1 WHERE remove_version > 2", "full"),
    "metadata": ("UPDATE dl_metadata SET raw = replace(raw, '\"id\":', '\"Id\":')", "counts"),
    "txn": (
        "UPDATE dl_txns SET raw = replace(raw, '\"version\":7', '\"version\":8') WHERE app_version = 7",
        "counts",
    ),
    "old txn": (
        "UPDATE dl_txns SET raw = replace(raw, '\"version\":1', '\"version\":2') WHERE app_version = 1",
        "full",
    ),
    "bytes": ("UPDATE dl_commits SET sha256 = 'x' WHERE version = 3", "full"),
}


def test_each_level_finds_what_was_tampered_with(root: Path, catalog_uri: str) -> None:
    """On every engine, since each computes its digest in its own way."""
    for number, (what, (sql, level)) in enumerate(TAMPERED.items()):
        uri = f"{catalog_uri}?table=t{number}"
        import_table(str(root), uri, history="full")
        assert verify_table(uri, "full").ok
        assert change(uri, sql), what
        levels = LEVELS[:3]
        found = {one: verify_table(uri, one) for one in levels}  # type: ignore[arg-type]
        for one in levels:
            expected = levels.index(one) < levels.index(level)
            assert found[one].ok is expected, (what, one, found[one].differences)
        first = found[level].differences[0]
        assert first.detail
        change(uri, f"DELETE FROM dl_tables WHERE name = 't{number}'")
        for table in ("dl_files", "dl_commits", "dl_metadata", "dl_txns", "dl_commit_bytes", "dl_protocol"):
            change(uri, f"DELETE FROM {table}")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_difference_is_shown_file_by_file(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    import_table(str(root), uri, history="checkpoint", batch_size=15)
    change(uri, "UPDATE dl_files SET size = 1 WHERE path = 'part-00010.parquet'")
    change_stats(uri, lambda path, text: "{}" if path == "part-00011.parquet" else text)
    change(uri, "DELETE FROM dl_files WHERE path = 'part-00012.parquet'")
    found = verify_table(uri, "digest")
    shown = {(d.kind, d.path, d.detail) for d in found.differences}
    assert shown == {
        ("changed_file", "part-00010.parquet", "it differs in size"),
        ("changed_file", "part-00011.parquet", "it differs in stats"),
        ("missing_file", "part-00012.parquet", "the log has a file that the catalog does not"),
    }
    assert len(found.buckets) == 3
    assert (found.num_files, found.log_num_files) == (39, 40)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_another_spelling_of_the_same_statistics_is_no_difference(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    import_table(str(root), uri, history="checkpoint")
    change_stats(uri, lambda _, text: text and text.replace(", ", ",  "))
    found = verify_table(uri, "digest")
    assert found.ok
    assert found.respelled == 40
    assert found.digest != found.log_digest


def test_the_digest_is_the_same_wherever_it_is_computed(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = tmp_path / "typed", f"{catalog_uri}?table=t"
    deltalake.write_deltalake(root, every_type(count=12), partition_by=["part", "day"])
    deltalake.DeltaTable(root).create_checkpoint()
    deltalake.write_deltalake(root, every_type(20), mode="append")
    import_table(str(root), uri, history="checkpoint")
    database = Database.open(parse_address(uri))
    table_id = Catalog(catalog_uri).describe("t").table_id
    here = FileDigest()
    here.add_files(digests.files_in(database, table_id, 1, range(BUCKETS)))
    asked = digests.table_digest(database, table_id, 1)
    log = LogReplay(FileTxnLogReader(root), 1, memory_bytes=1 << 30).digest()
    assert here.differing(asked) == here.differing(log) == []
    assert here.hex() == asked.hex() == log.hex()
    assert here.num_files == len(deltalake.DeltaTable(root).file_uris())


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_log_that_does_not_fit_in_memory_is_read_in_passes(tmp_path: Path, catalog_uri: str) -> None:
    root = many_files(tmp_path / "many", commits=20)
    reader = FileTxnLogReader(root)
    whole = LogReplay(reader, 21, memory_bytes=1 << 30)
    small = LogReplay(reader, 21, memory_bytes=8_000)
    assert whole.base() is not None
    assert small.base() is None, "the commits after the checkpoint do not fit"
    assert whole.digest().hex() == small.digest().hex()
    wanted = {a.path for a in reader.files(21)}
    assert {a.path for a in small.files(range(4096))} == wanted


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_full_in_many_passes_finds_the_same(
    root: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    monkeypatch.setattr(verifier, "memory_bound", lambda: 9_000)
    assert verify_table(uri, "full").ok
    change(uri, "UPDATE dl_files SET add_version = add_version - 1 WHERE add_version = 6")
    assert {d.kind for d in verify_table(uri, "full").differences} == {"changed_file"}


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_load_that_differs_never_becomes_visible(
    root: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{catalog_uri}?table=t"
    whole = verifier._digests

    def tampered(subject, log):  # type: ignore[no-untyped-def]
        change(uri, "UPDATE dl_files SET size = size + 1 WHERE remove_version IS NULL")
        return whole(subject, log)

    monkeypatch.setattr(verifier, "_digests", tampered)
    with pytest.raises(VerificationError) as caught:
        import_table(str(root), uri)
    assert "differs in size" in caught.value.message
    assert Catalog(catalog_uri).tables() == []
    assert count(uri, "dl_files") == count(uri, "dl_commits") == 0
    (status,) = import_status(uri)
    assert status.phase == "failed"
    assert "size" in (status.error or "")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_drift_of_the_log_is_told(root: Path, catalog_uri: str) -> None:
    uri = f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    deltalake.write_deltalake(root, ids(70), mode="append")
    assert {d.kind for d in verify_table(uri, "counts").differences} == {"ahead"}
    (root / "_delta_log" / f"{9:020}.json").unlink()
    file = root / "_delta_log" / f"{7:020}.json"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"numRecords"', b'"numrecords"').replace(b"numRecords", b"numrecords"))
    assert {d.kind for d in verify_table(uri, "full").differences} == {"foreign"}, "nothing is replayed then"
    assert {d.kind for d in verify_table(uri, "digest").differences} == {"changed_file"}
    assert [(d.kind, d.version) for d in verify_table(uri, "commits").differences] == [("foreign", 7)]
    file.write_bytes(data[:-30])
    assert [d.kind for d in verify_table(uri, "digest").differences] == ["log"]
    file.write_bytes(data)
    assert verify_table(uri, "full").ok
    for version in range(4):
        (root / "_delta_log" / f"{version:020}.json").unlink()
    cleaned = verify_table(uri, "full")
    assert cleaned.ok, cleaned.differences
    assert (cleaned.first_version, cleaned.versions_checked) == (4, 5)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_vacuumed_data_shows_where_rows_are_compared(root: Path, catalog_uri: str) -> None:
    uri = f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    gone = next(iter((root / "part=a").glob("*.parquet")))
    for file in (root / "part=a").glob("*.parquet"):
        file.unlink()
    assert not gone.exists()
    assert verify_table(uri, "full").ok
    assert [d.kind for d in verify_table(uri, "data").differences] == ["rows"]


def test_rows_are_compared_before_a_table_becomes_visible(root: Path, catalog_uri: str) -> None:
    uri = f"{catalog_uri}?table=t"
    files = {f: f.read_bytes() for f in (root / "part=a").glob("*.parquet")}
    for file in files:
        file.unlink()
    with pytest.raises(VerificationError, match="could not be compared") as caught:
        import_table(str(root), uri, verify="data")
    assert "Traceback" not in str(caught.value)
    assert "\n" not in caught.value.message
    assert any(f.name in caught.value.message for f in files)
    assert Catalog(catalog_uri).tables() == []
    (status,) = import_status(uri)
    assert (status.phase, status.finished_at, status.at_work) == ("verifying", None, False)
    assert status.error == caught.value.message
    with pytest.raises(VerificationError):
        import_table(str(root), uri, verify="data")
    for file, data in files.items():
        file.write_bytes(data)
    done = import_table(str(root), uri, verify="data")
    assert (done.action, done.version) == ("resumed", 8)
    assert done.verification is not None
    assert (done.verification.ok, done.verification.rows_checked) == (True, 15)
    assert [s.phase for s in import_status(uri)] == ["finalized"]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_unknown_levels_are_named(root: Path, catalog_uri: str) -> None:
    with pytest.raises(InvalidArgumentError, match="everything"):
        verify_table(f"{catalog_uri}?table=t", "everything")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="some"):
        import_table(str(root), f"{catalog_uri}?table=t", verify="some")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="commits"):  # an import compares files at least
        import_table(str(root), f"{catalog_uri}?table=t", verify="commits")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_an_import_keeps_to_the_batches_that_its_memory_allows(tmp_path: Path, catalog_uri: str) -> None:
    root = many_files(tmp_path / "many")
    with use_config(Config(**{"import": {"memory_mb": 64, "batch_size": 1_000_000}})):
        import_table(str(root), f"{catalog_uri}?table=t", history="checkpoint", engine="local")
    (status,) = import_status(catalog_uri)
    assert status.batches_total == 3
    with Catalog(catalog_uri) as catalog:
        plan = catalog.query("SELECT plan FROM dl_imports").to_pylist()[0]["plan"]
    assert json.loads(plan)["batch_size"] < 10_000
