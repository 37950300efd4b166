"""What is counted while a load passes says the same as reading both sides again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import import_table, verify_table
from deltalakedb.exceptions import VerificationError
from deltalakedb.transfer import proofs, verify, windows
from support.sources import many_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions at which both sides were read as a whole."""
    found: list[int] = []
    whole = verify._both_read

    def counted(subject: Any, log: Any) -> Any:
        found.append(subject.version)
        return whole(subject, log)

    monkeypatch.setattr(verify, "_both_read", counted)
    return found


def test_a_load_is_compared_by_what_was_counted(
    tmp_path: Path, catalog_uri: str, read_again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    made = import_table(str(root), uri, history="checkpoint", batch_size=10)
    assert read_again == []
    checked = verify_table(uri)
    assert read_again == [made.version]
    assert made.digest == checked.digest == checked.log_digest
    # files that are encoded one by one, with the same digest
    monkeypatch.setattr(windows, "plain_files", lambda _: None)
    one_by_one = import_table(
        str(many_files(tmp_path / "other")), f"{catalog_uri}?table=o", history="checkpoint"
    )
    assert one_by_one.digest == made.digest
    assert read_again == [made.version]


def test_a_file_that_was_written_wrongly_is_found(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = windows.write_columns

    def wrong(session: Any, table_id: int, columns: Mapping[str, pa.Array], *rest: Any) -> None:
        times = columns["modification_time"].to_pylist()
        times[30] += 1
        write(session, table_id, {**columns, "modification_time": pa.array(times, pa.int64())}, *rest)

    monkeypatch.setattr(windows, "write_columns", wrong)
    with pytest.raises(VerificationError, match=r"1 differences.*modification_time"):
        import_table(str(many_files(tmp_path / "many")), f"{catalog_uri}?table=t", history="checkpoint")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_count_that_does_not_tell_of_the_version_is_not_used(
    tmp_path: Path, catalog_uri: str, read_again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    look, late = proofs.BaseProof.look, root / "_delta_log" / f"{8:020}.json"

    def moves_on(proof: Any, window: Any) -> None:
        late.write_text('{"commitInfo":{"operation":"WRITE"}}\n')
        look(proof, window)

    monkeypatch.setattr(proofs.BaseProof, "look", moves_on)
    assert import_table(str(root), uri, history="checkpoint").version == 8
    assert read_again == [8]
