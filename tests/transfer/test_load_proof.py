"""An import is verified by what it read: the log is read once, and nothing that differs is overlooked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import import_table, verify_table
from deltalakedb.exceptions import CatalogCorruptError, VerificationError
from deltalakedb.transfer.verifying import verifier
from deltalakedb.transfer.verifying.log_replay import LogReplay
from deltalakedb.transfer.verifying.verifier import LoadProof, Subject
from support.sources import change, many_files, plain_table

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
    real = LoadProof.report

    def report(self: LoadProof, subject: Subject) -> Any:
        work()
        return real(self, subject)

    monkeypatch.setattr(LoadProof, "report", report)


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
    real = verifier.decode_block
    monkeypatch.setattr(verifier, "decode_block", lambda data: real(data).take([0] * len(real(data))))
    import_table(many_files(tmp_path / "source"), f"{catalog_uri}?table=t", history="checkpoint")
    assert reads == ["log"], "the general verification decides"
