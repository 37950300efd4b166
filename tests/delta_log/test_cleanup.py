"""Compaction and clean-up: what a log can do without, and what it never loses."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from deltalakedb.delta_log import FileTxnLogReader, FileTxnLogWriter
from deltalakedb.delta_log.checkpoint_writer import write_checkpoint
from deltalakedb.delta_log.cleanup import clean_log, plan_cleanup, retention_ms
from deltalakedb.delta_log.names import (
    LOG_FOLDER,
    SIDECAR_FOLDER,
    checkpoint_path,
    checksum_path,
    commit_path,
    compacted_path,
)
from deltalakedb.delta_log.optional_files import compact, write_compaction, write_last_checkpoint
from deltalakedb.exceptions import ConfigError, InvalidArgumentError, LogGapError, ProtocolError
from deltalakedb.protocol.actions import DomainMetadata, Txn, UnknownAction, decode_commit, encode_commit
from deltalakedb.protocol.properties import DAY_MS
from deltalakedb.storage import ObjectMeta, Store, open_store
from support.actions import add, info, metadata, protocol, remove
from support.checkpoints import content, part_path, state

if TYPE_CHECKING:
    from pathlib import Path


# ---- compaction ----


def test_a_compacted_file_holds_the_reconciled_actions() -> None:
    commits = [
        (4, [info("WRITE"), add("f2"), remove("f1"), DomainMetadata(domain="d", configuration="1")]),
        (5, [add("f3"), add("f4"), Txn(app_id="a", version=4389)]),
        (6, [remove("f3"), Txn(app_id="a", version=4390), DomainMetadata(domain="d", removed=True)]),
    ]
    found = decode_commit(compact((version, encode_commit(actions)) for version, actions in commits))
    assert {(type(a).__name__, getattr(a, "path", None)) for a in found} == {
        ("Txn", None),
        ("DomainMetadata", None),
        ("Remove", "f1"),
        ("Remove", "f3"),
        ("Add", "f2"),
        ("Add", "f4"),
    }
    assert Txn(app_id="a", version=4390) in found
    assert DomainMetadata(domain="d", removed=True) in found


def test_what_cannot_be_compacted_is_refused() -> None:
    one = encode_commit([add("a")])
    with pytest.raises(LogGapError):
        compact([(1, one), (3, one)])
    with pytest.raises(ProtocolError, match="actionOfTomorrow"):
        compact([(1, one), (2, encode_commit([UnknownAction(kind="actionOfTomorrow", value={})]))])
    with pytest.raises(InvalidArgumentError):
        write_compaction(open_store("/nowhere"), 3, 3)


def test_stock_readers_read_over_a_compacted_file(tmp_path: Path) -> None:
    for number in range(4):
        write_deltalake(tmp_path, pa.table({"id": [number]}), mode="append")
    DeltaTable(tmp_path).delete("id = 1")
    assert write_compaction(open_store(tmp_path), 1, 4) == compacted_path(1, 4)
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table().column("id").to_pylist()) == [0, 2, 3]


# ---- clean-up: the decision ----

NOW = 1_000 * DAY_MS


def at(path: str, age_days: float) -> ObjectMeta:
    return ObjectMeta(path, 1, NOW - int(age_days * DAY_MS))


def log(newest: int) -> list[ObjectMeta]:
    """Commits of a day each, the newest an hour old."""
    return [at(commit_path(v), newest - v + 0.04) for v in range(newest + 1)]


def planned(files: list[ObjectMeta], days: int = 5, **options: Any) -> list[str]:
    plan = plan_cleanup(files, now_ms=NOW, retention=days * DAY_MS, **options)
    assert plan.reason
    assert plan.checkpoint is not None or not plan.delete
    return [meta.path for meta in plan.delete]


def test_nothing_goes_without_a_covering_checkpoint() -> None:
    assert planned(log(20)) == []
    assert planned([*log(20), at(checkpoint_path(16), 4)]) == []
    half = at(part_path(10, 1, 2), 10)
    assert planned([*log(20), half]) == []
    assert planned([]) == []
    assert planned(log(3), days=30) == []


def test_everything_before_the_newest_covering_checkpoint_goes_oldest_first() -> None:
    files = [
        *log(20),
        at(checkpoint_path(5), 15),
        at(part_path(3, 1, 2), 15),
        at(checkpoint_path(10), 10),
        at(checkpoint_path(18), 2),
        at(checksum_path(9), 11),
        at(checksum_path(10), 10),
        at(compacted_path(8, 12), 8),
        at(compacted_path(11, 13), 7),
        at(f"{LOG_FOLDER}/_last_checkpoint", 90),
        at(f"{LOG_FOLDER}/notes.txt", 90),
    ]
    gone = planned(files)
    assert set(gone) == {
        *(commit_path(v) for v in range(10)),
        checkpoint_path(5),
        part_path(3, 1, 2),
        checksum_path(9),
        compacted_path(8, 12),
    }
    assert gone == sorted(gone)


def test_versions_that_are_needed_stay() -> None:
    files = [*log(20), at(checkpoint_path(5), 15), at(checkpoint_path(10), 10)]
    assert set(planned(files, needed_from=9)) == {commit_path(v) for v in range(5)}
    assert planned(files, needed_from=4) == []


def test_a_torn_checkpoint_covers_nothing() -> None:
    files = [*log(20), at(checkpoint_path(5), 15), at(checkpoint_path(10), 10)]
    assert set(planned(files, whole=lambda c: c.version == 5)) == {commit_path(v) for v in range(5)}
    assert planned(files, whole=lambda _: False) == []


def test_a_log_with_a_gap_is_left_alone() -> None:
    files = [m for m in [*log(20), at(checkpoint_path(5), 15)] if m.path != commit_path(12)]
    assert planned(files) == []
    covered = [*files, at(checkpoint_path(14), 6)]
    assert set(planned(covered)) == {commit_path(v) for v in range(14)} - {commit_path(12)} | {
        checkpoint_path(5)
    }


def test_times_of_commits_count_more_than_times_of_files() -> None:
    files = [*log(20), at(checkpoint_path(10), 10)]
    assert planned(files, times={v: NOW - 60_000 + v for v in range(21)}) == []


def test_a_retention_is_read_from_the_tables_properties() -> None:
    def of(text: str) -> int:
        return retention_ms(metadata(configuration={"delta.logRetentionDuration": text}))

    assert retention_ms(metadata()) == 30 * DAY_MS
    assert of("interval 7 days") == 7 * DAY_MS
    assert of("INTERVAL 1 day 2 hours") == DAY_MS + 7_200_000
    assert of("interval 1 week") == 7 * DAY_MS
    for wrong in ("", "interval", "7", "interval 7 moons", "interval 7 days or so", "interval 1 month"):
        with pytest.raises(ConfigError):
            of(wrong)


# ---- clean-up: the deed ----


def aged_table(folder: Path, *, v2: bool = False) -> tuple[Store, int]:
    """Ten commits, the last one now, the others a day apart before."""
    now = time.time_ns() // 1_000_000
    features = {
        "min_reader_version": 3,
        "min_writer_version": 7,
        "reader_features": ("v2Checkpoint",),
        "writer_features": ("v2Checkpoint",),
    }
    writer = FileTxnLogWriter(folder)
    for version in range(10):
        head = [protocol(**(features if v2 else {})), metadata()] if version == 0 else []
        stamp = now - (9 - version) * DAY_MS
        writer.commit(version, [info("WRITE", timestamp=stamp), *head, add(f"f{version}")])
    return open_store(folder), now


def test_a_cleaned_log_reads_the_same_from_its_checkpoint_on(tmp_path: Path) -> None:
    store, now = aged_table(tmp_path)
    reader = FileTxnLogReader(tmp_path)
    expected = {v: state(reader, v) for v in range(4, 10)}
    assert clean_log(store, now_ms=now, retention=3 * DAY_MS).delete == ()
    for version in (2, 4):
        write_last_checkpoint(store, write_checkpoint(store, content(reader, version)))
    plan = clean_log(store, now_ms=now, retention=3 * DAY_MS)
    assert plan.checkpoint == 4
    after = FileTxnLogReader(tmp_path)
    assert list(after.versions()) == list(range(4, 10))
    assert store.exists(commit_path(4))
    assert {v: state(after, v) for v in range(4, 10)} == expected
    assert len(DeltaTable(tmp_path).file_uris()) == 10
    assert len(DeltaTable(tmp_path, version=5).file_uris()) == 6
    assert clean_log(store, now_ms=now, retention=3 * DAY_MS).delete == ()


def test_a_checkpoint_that_the_hint_names_stays(tmp_path: Path) -> None:
    store, now = aged_table(tmp_path)
    reader = FileTxnLogReader(tmp_path)
    write_last_checkpoint(store, write_checkpoint(store, content(reader, 2)))
    write_checkpoint(store, content(reader, 4))
    assert clean_log(store, now_ms=now, retention=3 * DAY_MS).checkpoint == 2
    assert len(DeltaTable(tmp_path).file_uris()) == 10


def test_sidecars_go_when_no_checkpoint_names_them_and_not_while_they_are_young(tmp_path: Path) -> None:
    store, now = aged_table(tmp_path, v2=True)
    reader = FileTxnLogReader(tmp_path)
    old = write_checkpoint(store, content(reader, 2), kind="v2")
    kept = write_checkpoint(store, content(reader, 4), kind="v2")
    store.put(f"{SIDECAR_FOLDER}/young.parquet", b"about to be named")
    for path in (*old.paths, *kept.paths):
        os.utime(tmp_path / path, (now / 1000 - 5 * 86_400,) * 2)
    write_last_checkpoint(store, kept)
    gone = {meta.path for meta in clean_log(store, now_ms=now, retention=3 * DAY_MS).delete}
    assert set(old.paths) <= gone
    assert not gone & {*kept.paths, f"{SIDECAR_FOLDER}/young.parquet"}
    assert state(FileTxnLogReader(tmp_path), 9) == state(reader, 9)


def test_a_torn_checkpoint_keeps_all_sidecars(tmp_path: Path) -> None:
    store, now = aged_table(tmp_path, v2=True)
    reader = FileTxnLogReader(tmp_path)
    kept = write_checkpoint(store, content(reader, 4), kind="v2")
    torn = write_checkpoint(store, content(reader, 5), kind="v2")
    for path in (*kept.paths, *torn.paths):
        os.utime(tmp_path / path, (now / 1000 - 5 * 86_400,) * 2)
    store.put(torn.paths[-1], b"PAR1 torn")
    plan = clean_log(store, now_ms=now, retention=3 * DAY_MS)
    assert plan.checkpoint == 4
    assert store.exists(torn.paths[0])
