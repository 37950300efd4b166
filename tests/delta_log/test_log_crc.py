"""Version checksums: written once after a commit, read back, compared with what a log says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from deltalakedb.delta_log import FileTxnLogReader
from deltalakedb.delta_log.crc import VersionChecksum, read_checksum, write_checksum
from deltalakedb.delta_log.names import checksum_path, commit_path
from deltalakedb.exceptions import LogCorruptError
from deltalakedb.protocol.actions import DeletionVector, DomainMetadata, Txn
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.replay import Replay
from deltalakedb.storage import open_store
from support.actions import add, metadata, protocol, remove

if TYPE_CHECKING:
    from pathlib import Path

VECTOR = DeletionVector(storage_type="i", path_or_inline_dv="x", size_in_bytes=4, cardinality=3)


def replayed() -> Replay:
    state = Replay().commit([protocol(), metadata(), add("a"), add("b", size=5, deletion_vector=VECTOR)])
    return state.commit([remove("a"), Txn(app_id="x", version=1), DomainMetadata(domain="d")])


def test_a_checksum_tells_what_the_protocol_asks_for(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    checksum = VersionChecksum.of(replayed(), txn_id="me", in_commit_timestamp=7)
    assert write_checksum(store, 1, checksum)
    assert json.loads(store.get(checksum_path(1))) == {
        "txnId": "me",
        "tableSizeBytes": 5,
        "numFiles": 1,
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": 7,
        "numDeletedRecordsOpt": 3,
        "numDeletionVectorsOpt": 1,
        "setTransactions": [{"appId": "x", "version": 1}],
        "domainMetadata": [{"domain": "d", "configuration": "", "removed": False}],
        "metadata": metadata().to_dict(),
        "protocol": protocol().to_dict(),
    }
    assert read_checksum(store, 1) == checksum
    assert read_checksum(store, 2) is None


def test_a_checksum_is_never_overwritten(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = VersionChecksum.of(replayed())
    assert write_checksum(store, 1, first)
    assert not write_checksum(store, 1, VersionChecksum.of(replayed().commit([add("z")])))
    assert read_checksum(store, 1) == first


def test_differences_are_named_and_silence_is_none() -> None:
    mine = VersionChecksum.of(replayed())
    other = VersionChecksum.of(replayed().commit([add("z"), Txn(app_id="y", version=1), metadata(name="n")]))
    assert mine.differences(mine) == ()
    assert mine.differences(other) == ("tableSizeBytes", "numFiles", "metadata", "setTransactions")
    data = other.to_dict()
    del data["setTransactions"]
    assert "setTransactions" not in mine.differences(VersionChecksum.from_dict(data))


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"numFiles":1}'])
def test_a_damaged_checksum_is_a_typed_error(tmp_path: Path, damage: bytes) -> None:
    store = open_store(tmp_path)
    store.put(checksum_path(1), damage)
    with pytest.raises(LogCorruptError, match=r"1\.crc"):
        read_checksum(store, 1)
    good = VersionChecksum.of(replayed()).to_dict() | {"numProtocol": 2}
    store.put(checksum_path(1), json.dumps(good).encode())
    with pytest.raises(LogCorruptError, match="numProtocol"):
        read_checksum(store, 1)


@pytest.mark.golden
def test_the_checksums_of_delta_spark_agree_with_our_replay(golden: Path) -> None:
    checked = 0
    for name in ("commit-info-containing-arbitrary-operationParams-types", "v2-checkpoint-json"):
        folder = golden / "tables" / "delta" / name
        store = open_store(folder)
        state = Replay()
        for version in sorted(FileTxnLogReader(folder).commit_versions()):
            state.commit(decode_commit(store.get(commit_path(version))))
            theirs = read_checksum(store, version)
            if theirs is not None:
                assert VersionChecksum.of(state).differences(theirs) == ()
                checked += 1
    assert checked > 2


def test_stock_readers_are_content_with_our_checksums(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2]}))
    store = open_store(tmp_path)
    state = Replay().commit(decode_commit(store.get(commit_path(0))))
    write_checksum(store, 0, VersionChecksum.of(state))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 2
