"""`_last_checkpoint`: a hint that never moves backwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deltalakedb.delta_log.checkpoint_writer import WrittenCheckpoint
from deltalakedb.delta_log.names import LAST_CHECKPOINT
from deltalakedb.delta_log.optional_files import last_checkpoint, write_last_checkpoint
from deltalakedb.storage import Store, open_store

if TYPE_CHECKING:
    from pathlib import Path


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
