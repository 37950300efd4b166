"""The file-backed log on logs as they lie on real disks: gaps, clean-ups, torn commits, odd clocks."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from deltalakedb.delta_log import FileTxnLogReader, FileTxnLogWriter, names, open_file_log
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.reader import StateBuilder
from deltalakedb.exceptions import (
    LogCorruptError,
    LogGapError,
    LogMissingError,
    ProtocolError,
    StorageError,
    VersionMissingError,
)
from deltalakedb.protocol.actions import action_to_dict, encode_commit
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.properties import ENABLEMENT_TIMESTAMP, ENABLEMENT_VERSION, IN_COMMIT_TIMESTAMPS
from deltalakedb.protocol.txn_log import Committed, Conflict
from deltalakedb.storage import open_store
from support.actions import add, info, metadata, protocol, remove

if TYPE_CHECKING:
    from pathlib import Path


def written(root: Path, count: int = 4) -> FileTxnLogWriter:
    """A table whose version n adds the file fn, committed at n seconds."""
    writer = FileTxnLogWriter(root)
    for version in range(count):
        first = [protocol(), metadata()] if version == 0 else []
        writer.commit(version, [info("WRITE", timestamp=1000 * (version + 1)), *first, add(f"f{version}")])
    return writer


def touch(root: Path, version: int, time_ms: int) -> None:
    os.utime(root / names.commit_path(version), ns=(time_ms * 10**6, time_ms * 10**6))


def paths(reader: FileTxnLogReader, version: int | None = None) -> list[str]:
    return sorted(file.path for file in reader.files(version))


def test_a_folder_without_a_log_is_no_table(tmp_path: Path) -> None:
    for location in (tmp_path, tmp_path / "missing"):
        with pytest.raises(LogMissingError) as caught:
            open_file_log(location)
        assert caught.value.suggestion
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text('{"version":3}')
    with pytest.raises(LogMissingError):
        open_file_log(tmp_path)


def test_a_file_where_the_log_should_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").write_text("")
    with pytest.raises(StorageError):
        open_file_log(tmp_path)


def test_a_gap_hides_the_head_but_not_what_is_before(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / names.commit_path(2)).unlink()
    reader = open_file_log(tmp_path)
    assert list(reader.versions()) == [0, 1]
    assert paths(reader, 1) == ["f0", "f1"]
    assert reader.snapshot(1).timestamp == 2000
    for version in (None, 2, 3):
        with pytest.raises(LogGapError) as caught:
            reader.snapshot(version)
        assert "lacks version 2" in str(caught.value)
        assert caught.value.table == str(tmp_path)
    with pytest.raises(LogGapError):
        reader.latest_version()


def test_a_log_that_starts_late_has_no_version_to_rebuild(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / names.commit_path(0)).unlink()
    reader = open_file_log(tmp_path)
    assert list(reader.versions()) == []
    with pytest.raises(LogGapError):
        reader.snapshot()
    with pytest.raises(VersionMissingError):
        reader.version_at(10**15)
    assert [commit.version for commit in reader.history()] == [3, 2, 1]


@pytest.mark.parametrize(
    "garbage", [b"", b"\n", b'{"add":{"path":"x"', b"PAR1", b'{"add":{"size":1}}\n', b"[]"]
)
def test_a_torn_commit_is_a_typed_error_that_names_it(tmp_path: Path, garbage: bytes) -> None:
    written(tmp_path)
    (tmp_path / names.commit_path(2)).write_bytes(garbage)
    reader = open_file_log(tmp_path)
    assert paths(reader, 1) == ["f0", "f1"]
    for ask in (lambda: reader.snapshot(), lambda: reader.files(3), lambda: reader.actions(2)):
        with pytest.raises(LogCorruptError, match=f"{2:020d}.json") as caught:
            ask()
        assert caught.value.suggestion
    # what failed leaves no half state behind
    assert paths(reader, 1) == ["f0", "f1"]


def test_a_commit_torn_further_on_leaves_no_half_state(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / names.commit_path(3)).write_bytes(b"{")
    store = open_store(tmp_path)
    listing, states = list_log(store), StateBuilder(store)
    assert len(states.build(listing, 1, files=True).files) == 2
    with pytest.raises(LogCorruptError):
        states.build(listing, 3, files=True)
    assert len(states.build(listing, 1, files=True).files) == 2


def test_a_clean_up_under_an_open_reader_is_noticed(tmp_path: Path) -> None:
    written(tmp_path)
    reader = open_file_log(tmp_path)
    assert reader.latest_version() == 3
    DeltaTable(tmp_path).create_checkpoint()
    for version in range(4):
        (tmp_path / names.commit_path(version)).unlink()
    assert paths(reader) == ["f0", "f1", "f2", "f3"]
    assert list(reader.versions()) == [3]
    with pytest.raises(VersionMissingError, match="any more"):
        reader.snapshot(1)
    with pytest.raises(VersionMissingError):
        reader.commit_bytes(3)


def test_a_version_whose_commit_is_gone_is_dated_by_its_checkpoint(tmp_path: Path) -> None:
    written(tmp_path)
    DeltaTable(tmp_path, version=1).create_checkpoint()
    for version in (0, 1):
        (tmp_path / names.commit_path(version)).unlink()
    reader = open_file_log(tmp_path)
    # the checkpoint was written long after version 2 was committed
    assert reader.timestamp_of(1) == 2999
    assert reader.version_at(2999) == 1
    assert list(reader.commit_versions()) == [2, 3]
    assert [commit.version for commit in reader.history()] == [3, 2]


def test_files_older_than_their_predecessors_are_dated_a_millisecond_later(tmp_path: Path) -> None:
    written(tmp_path, 5)
    for version, time in enumerate([5000, 4000, 5000, 5002, 9000]):
        touch(tmp_path, version, time)
    reader = open_file_log(tmp_path)
    assert [reader.timestamp_of(v) for v in range(5)] == [5000, 5001, 5002, 5003, 9000]
    assert reader.version_at(5002) == 2
    assert reader.version_at(8999) == 3


def in_commit(time: int) -> dict[str, Any]:
    return {"inCommitTimestamp": time}


def test_in_commit_timestamps_count_where_the_table_has_them(tmp_path: Path) -> None:
    writer = FileTxnLogWriter(tmp_path)
    on = metadata(configuration={IN_COMMIT_TIMESTAMPS: "true"})
    outcome = writer.commit(0, [info("CREATE", **in_commit(7000)), protocol(), on])
    assert outcome == Committed(0, 7000)
    writer.commit(1, [info("WRITE", **in_commit(8000)), add("a")])
    for version in (0, 1):
        touch(tmp_path, version, 10**12 + version)
    reader = open_file_log(tmp_path)
    assert [commit.committed_at for commit in reader.history()] == [8000, 7000]
    assert reader.snapshot(0).timestamp == 7000
    assert [reader.version_at(t) for t in (7000, 7999, 8000)] == [0, 0, 1]
    with pytest.raises(VersionMissingError):
        reader.version_at(6999)


def test_in_commit_timestamps_of_a_table_without_them_do_not_count(tmp_path: Path) -> None:
    writer = FileTxnLogWriter(tmp_path)
    writer.commit(0, [info("CREATE", **in_commit(7000)), protocol(), metadata()])
    touch(tmp_path, 0, 9000)
    assert open_file_log(tmp_path).timestamp_of(0) == 9000


def test_the_two_clocks_are_never_mixed(tmp_path: Path) -> None:
    writer = written(tmp_path, 2)
    settings = {IN_COMMIT_TIMESTAMPS: "true", ENABLEMENT_VERSION: "2", ENABLEMENT_TIMESTAMP: "5000"}
    writer.commit(2, [info("SET", **in_commit(5000)), metadata(configuration=settings)])
    writer.commit(3, [info("WRITE", **in_commit(6000)), add("a")])
    for version in range(4):  # as after a copy
        touch(tmp_path, version, 4000 + version)
    reader = open_file_log(tmp_path)
    assert [reader.timestamp_of(v) for v in range(4)] == [4000, 4001, 5000, 6000]
    assert [reader.version_at(t) for t in (4000, 4999, 5000, 6000)] == [0, 1, 2, 3]


def test_an_in_commit_timestamp_outlives_its_commit_in_the_checksum(tmp_path: Path) -> None:
    writer = FileTxnLogWriter(tmp_path)
    on = metadata(configuration={IN_COMMIT_TIMESTAMPS: "true"})
    writer.commit(0, [info("CREATE", **in_commit(7000)), protocol(), on, add("a")])
    DeltaTable(tmp_path).create_checkpoint()
    store = open_store(tmp_path)
    store.put(names.checksum_path(0), b'{"inCommitTimestampOpt":7000}')
    store.delete(names.commit_path(0))
    assert open_file_log(tmp_path).snapshot().timestamp == 7000


def test_a_compacted_file_gives_the_same_state_as_its_commits(tmp_path: Path) -> None:
    writer = written(tmp_path)
    writer.commit(4, [info("DELETE", timestamp=5000), remove("f1")])
    wanted = paths(open_file_log(tmp_path))
    store = open_store(tmp_path)
    lines = [action_to_dict(a) for a in (add("f2"), add("f3"), remove("f1"))]
    store.put(names.compacted_path(2, 4), "".join(encode_json(line) + "\n" for line in lines).encode())
    writer.commit(5, [info("WRITE", timestamp=6000), add("f5")])
    store.delete(names.commit_path(2))
    reader = open_file_log(tmp_path)
    assert paths(reader) == [*wanted, "f5"]
    assert [r.path for r in reader.tombstones()] == ["f1"]
    assert paths(reader, 1) == ["f0", "f1"]


def test_history_reads_the_info_wherever_it_stands(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    lines = encode_commit([protocol(), metadata(), add('odd"commitInfo"'), info("LAST")])
    store.put(names.commit_path(0), b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n"))
    reader = open_file_log(tmp_path)
    assert reader.history()[0].operation == "LAST"
    assert paths(reader) == ['odd"commitInfo"']


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    written(tmp_path, 12)
    reader = open_file_log(tmp_path)
    barrier = threading.Barrier(4)

    def ask(start: int) -> bool:
        barrier.wait()
        return all(
            len(list(reader.files(v % 12))) == v % 12 + 1 and reader.snapshot(v % 12).version == v % 12
            for v in range(start, start + 24)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, (0, 3, 6, 9)))


def test_stock_deltalake_reads_what_was_written_and_dates_it_the_same(tmp_path: Path) -> None:
    written(tmp_path, 3)
    stock = DeltaTable(tmp_path)
    assert stock.version() == 2
    assert sorted(path.rpartition("/")[2] for path in stock.file_uris()) == ["f0", "f1", "f2"]
    stock.load_as_version("1970-01-01T00:00:02.500Z")
    assert stock.version() == open_file_log(tmp_path).version_at(2500) == 1


def test_a_commit_keeps_its_time_and_never_precedes_the_one_before(tmp_path: Path) -> None:
    writer = written(tmp_path, 2)
    assert writer.commit(2, [info("WRITE", timestamp=500), add("x")]) == Committed(2, 2001)
    assert open_file_log(tmp_path).timestamp_of(2) == 2001
    outcome = writer.commit(3, [add("y")])
    assert isinstance(outcome, Committed)
    assert outcome.committed_at > 1_700_000_000_000


def test_a_version_that_was_cleaned_up_is_still_taken(tmp_path: Path) -> None:
    writer = written(tmp_path)
    DeltaTable(tmp_path).create_checkpoint()
    for version in range(4):
        (tmp_path / names.commit_path(version)).unlink()
    outcome = writer.commit(2, [info("WRITE"), add("late")])
    assert isinstance(outcome, Conflict)
    assert outcome.kind == "version_taken"
    assert not (tmp_path / names.commit_path(2)).exists()
    assert isinstance(writer.commit(4, [info("WRITE"), add("f4")]), Committed)
    assert paths(open_file_log(tmp_path)) == ["f0", "f1", "f2", "f3", "f4"]


def test_a_torn_winner_has_won_all_the_same(tmp_path: Path) -> None:
    writer = written(tmp_path, 2)
    (tmp_path / names.commit_path(2)).write_bytes(b'{"commitInfo":{')
    outcome = writer.commit(2, [info("WRITE"), add("x")])
    assert isinstance(outcome, Conflict)
    assert outcome.operation is None


@pytest.mark.parametrize(
    "actions",
    [[], [info("CREATE")], [protocol()], [metadata()], [protocol(), protocol(), metadata()]],
    ids=["nothing", "no table", "no metadata", "no protocol", "two protocols"],
)
def test_a_commit_that_nobody_could_read_is_refused(tmp_path: Path, actions: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        FileTxnLogWriter(tmp_path).commit(0, actions)
    assert not (tmp_path / "_delta_log").exists()
