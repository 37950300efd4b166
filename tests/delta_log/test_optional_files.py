"""Files that readers can do without: checksums as delta-spark has them, and the hint `_last_checkpoint`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from deltalakedb.delta_log import FileTxnLogReader
from deltalakedb.delta_log.checkpoint_writer import WrittenCheckpoint
from deltalakedb.delta_log.names import LAST_CHECKPOINT, checksum_path, commit_path
from deltalakedb.delta_log.optional_files import (
    last_checkpoint,
    version_checksum,
    write_checksum,
    write_last_checkpoint,
)
from deltalakedb.protocol.actions import DeletionVector, DomainMetadata, Txn, decode_commit
from deltalakedb.protocol.replay import Replay
from deltalakedb.storage import Store, open_store
from support.actions import add, metadata, protocol, remove

if TYPE_CHECKING:
    from pathlib import Path


def checksum_of(state: Replay, **more: int) -> dict[str, Any]:
    """The checksum of a replayed state."""
    return version_checksum(
        *state.require(),
        num_files=len(state.files),
        size_bytes=sum(file.size for file in state.files.values()),
        txns=state.txns.values(),
        domains=state.domains.values(),
        **more,
    )


VECTOR = DeletionVector(storage_type="i", path_or_inline_dv="x", size_in_bytes=4, cardinality=3)


def replayed() -> Replay:
    state = Replay().commit([protocol(), metadata(), add("a"), add("b", size=5, deletion_vector=VECTOR)])
    return state.commit([remove("a"), Txn(app_id="x", version=1), DomainMetadata(domain="d")])


def test_a_checksum_tells_what_the_protocol_asks_for(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    checksum = checksum_of(replayed(), in_commit_timestamp=7)
    assert write_checksum(store, 1, checksum)
    assert json.loads(store.get(checksum_path(1))) == {
        "tableSizeBytes": 5,
        "numFiles": 1,
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": 7,
        "setTransactions": [{"appId": "x", "version": 1}],
        "domainMetadata": [{"domain": "d", "configuration": "", "removed": False}],
        "metadata": metadata().to_dict(),
        "protocol": protocol().to_dict(),
    }
    assert "inCommitTimestampOpt" not in checksum_of(replayed())


def test_a_checksum_is_never_overwritten(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert write_checksum(store, 1, checksum_of(replayed()))
    first = store.get(checksum_path(1))
    assert not write_checksum(store, 1, checksum_of(replayed().commit([add("z")])))
    assert store.get(checksum_path(1)) == first


@pytest.mark.golden
def test_the_checksums_of_delta_spark_agree_with_our_replay(golden: Path) -> None:
    checked = 0
    for name in ("commit-info-containing-arbitrary-operationParams-types", "v2-checkpoint-json"):
        folder = golden / "tables" / "delta" / name
        store = open_store(folder)
        state = Replay()
        for version in sorted(FileTxnLogReader(folder).commit_versions()):
            state.commit(decode_commit(store.get(commit_path(version))))
            if store.exists(checksum_path(version)):
                theirs, ours = json.loads(store.get(checksum_path(version))), checksum_of(state)
                both = ours.keys() & theirs.keys()
                assert {"tableSizeBytes", "numFiles", "metadata", "protocol"} <= both
                assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}
                checked += 1
    assert checked > 2


def test_stock_readers_are_content_with_our_checksums(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2]}))
    store = open_store(tmp_path)
    state = Replay().commit(decode_commit(store.get(commit_path(0))))
    write_checksum(store, 0, checksum_of(state))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 2


# `_last_checkpoint`: a hint that never moves backwards.


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def hint(version: int) -> WrittenCheckpoint:
    return WrittenCheckpoint(version, "classic", (), size=4, size_in_bytes=99, num_add_files=3)


def test_a_hint_is_written_and_read_back(store: Store) -> None:
    assert last_checkpoint(store) is None
    assert write_last_checkpoint(store, hint(10))
    assert json.loads(store.get(LAST_CHECKPOINT)) == {
        "version": 10,
        "size": 4,
        "sizeInBytes": 99,
        "numOfAddFiles": 3,
    }
    assert last_checkpoint(store) == 10


def test_a_hint_never_moves_backwards(store: Store) -> None:
    assert write_last_checkpoint(store, hint(10))
    assert not write_last_checkpoint(store, hint(9))
    assert last_checkpoint(store) == 10
    assert write_last_checkpoint(store, hint(10))


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"version":-1,"size":1}', b'{"version":"1"}'])
def test_garbage_is_no_hint_and_is_replaced(store: Store, garbage: bytes) -> None:
    store.put(LAST_CHECKPOINT, garbage)
    assert last_checkpoint(store) is None
    assert write_last_checkpoint(store, hint(1))
    assert last_checkpoint(store) == 1


@pytest.mark.golden
def test_the_hints_of_delta_spark_are_read(golden: Path) -> None:
    found = sorted((golden / "tables").rglob("_last_checkpoint"))
    assert len(found) > 5
    for path in found:
        wanted = json.loads(path.read_bytes() or b"{}").get("version")
        assert last_checkpoint(open_store(path.parent.parent)) == wanted
