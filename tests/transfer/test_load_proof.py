"""An import is verified by what it read: the log is read once, and nothing that differs is overlooked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import import_table, verify_table
from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogCorruptError, VerificationError
from deltalakedb.metastore.database import Database
from deltalakedb.transfer.importing import pipeline, proof
from deltalakedb.transfer.verifying.log_replay import LogReplay
from support.processes import Child
from support.sources import change, count, many_files, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: ways to damage what was loaded
DAMAGE = {
    "size": "UPDATE dl_files SET size = size + 1 WHERE path = 'part-00011.parquet'",
    "path": "UPDATE dl_files SET path = 'part-x.parquet' WHERE path = 'part-00011.parquet'",
    "partition": "UPDATE dl_files SET partition_values = '{\"a\":\"b\"}' WHERE path = 'part-00011.parquet'",
    "removed": "UPDATE dl_files SET remove_version = 5 WHERE path = 'part-00011.parquet'",
    "lost": "DELETE FROM dl_files WHERE path = 'part-00011.parquet'",
    "tail": "UPDATE dl_files SET size = size + 1 WHERE file_id = (SELECT max(file_id) FROM dl_files)",
    "live again": "UPDATE dl_files SET remove_version = NULL WHERE remove_version IS NOT NULL",
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often a log was replayed for its digest."""
    seen: list[str] = []
    real = LogReplay.digest

    def digest(self: LogReplay, **options: Any) -> Any:
        seen.append("log")
        return real(self, **options)

    monkeypatch.setattr(LogReplay, "digest", digest)
    return seen


def before_verification(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    real = pipeline.proven

    def proven(*args: Any) -> Any:
        work()
        return real(*args)

    monkeypatch.setattr(pipeline, "proven", proven)


def test_the_log_is_read_once_and_the_digest_is_that_of_a_verification(
    catalog_uri: str, tmp_path: Path, reads: list[str]
) -> None:
    for number, make in enumerate((many_files, plain_table)):
        uri = f"{catalog_uri}?table=t{number}"
        report = import_table(make(tmp_path / f"source{number}"), uri, history="checkpoint")
        assert reads == []
        found = verify_table(uri)
        assert report.digest == found.digest == found.log_digest
        assert report.verification.num_files == found.num_files
        reads.clear()


@pytest.mark.parametrize("damage", DAMAGE)
def test_whatever_differs_is_found(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str], damage: str
) -> None:
    uri = f"{catalog_uri}?table=t"
    before_verification(monkeypatch, lambda: change(uri, DAMAGE[damage]))
    with pytest.raises(VerificationError):
        import_table(many_files(tmp_path / "source"), uri, history="checkpoint")
    assert reads == ["log"], "the difference is looked for in the log"


def test_a_damaged_pack_is_found(catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"{catalog_uri}?table=t"
    before_verification(monkeypatch, lambda: change(uri, "UPDATE dl_stats_blocks SET crc = crc + 1"))
    with pytest.raises((CatalogCorruptError, VerificationError)):
        import_table(many_files(tmp_path / "source"), uri, history="checkpoint")


def test_a_block_that_does_not_decode_to_what_was_read_is_found(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    real = proof.decode_block
    monkeypatch.setattr(proof, "decode_block", lambda data: real(data).take([0] * len(real(data))))
    import_table(many_files(tmp_path / "source"), f"{catalog_uri}?table=t", history="checkpoint")
    assert reads == ["log"], "the general verification decides"


def run_import(path: str, uri: str) -> str:
    return import_table(path, uri, history="checkpoint", batch_size=15).action


def killed_import(source: Path, uri: str, folder: Path) -> None:
    """Import until the second batch of files is loaded."""
    Database.open(parse_address(uri)).close()
    Child(run_import, str(source), uri, folder=folder, points="import.batch_done=kill@3").died()


def test_a_killed_and_resumed_import_is_verified_by_its_receipts(
    catalog_uri: str, tmp_path: Path, reads: list[str]
) -> None:
    source, uri = many_files(tmp_path / "source"), f"{catalog_uri}?table=t"
    killed_import(source, uri, tmp_path)
    report = import_table(source, uri, history="checkpoint", batch_size=15)
    assert (report.action, reads) == ("resumed", [])
    found = verify_table(uri)
    assert report.digest == found.digest == found.log_digest
    assert report.verification.num_files == found.num_files
    assert count(catalog_uri, "dl_import_batches WHERE proof IS NOT NULL") == 0, (
        "they are not needed any more"
    )


def test_a_row_that_is_damaged_before_an_import_is_resumed_is_found(
    catalog_uri: str, tmp_path: Path, reads: list[str]
) -> None:
    source, uri = many_files(tmp_path / "source"), f"{catalog_uri}?table=t"
    killed_import(source, uri, tmp_path)
    assert count(catalog_uri, "dl_files WHERE path = 'part-00011.parquet'") == 1
    change(uri, DAMAGE["size"])
    with pytest.raises(VerificationError):
        import_table(source, uri, history="checkpoint", batch_size=15)
    assert reads == ["log"], "the difference is looked for in the log"


def test_batches_without_a_proof_are_verified_by_the_log(
    catalog_uri: str, tmp_path: Path, reads: list[str]
) -> None:
    source, uri = many_files(tmp_path / "source"), f"{catalog_uri}?table=t"
    killed_import(source, uri, tmp_path)
    change(uri, "UPDATE dl_import_batches SET proof = NULL WHERE batch = 1")
    assert import_table(source, uri, history="checkpoint", batch_size=15).action == "resumed"
    assert reads == ["log"]
