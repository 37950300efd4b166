"""`_last_checkpoint`: the protocol's checksum, and a hint that never moves backwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deltalakedb.delta_log.last_checkpoint import (
    LastCheckpoint,
    canonical_json,
    json_checksum,
    read_last_checkpoint,
    write_last_checkpoint,
)
from deltalakedb.delta_log.listing import last_checkpoint
from deltalakedb.delta_log.names import LAST_CHECKPOINT
from deltalakedb.protocol.codec import decode_json
from deltalakedb.storage import Store, open_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def test_the_protocols_own_example_has_its_checksum() -> None:
    sample = decode_json(
        """{"k0":"'v 0'", "checksum": "adsaskfljadfkjadfkj", "k1":{"k2": 2, "k3": ["v3", [1, 2],"""
        """ {"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}"""
    )
    assert canonical_json(sample) == (
        '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,'
        '"k1"+"k3"+2+"k4"="v4","k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6","k1"+"k3"+2+"k5"+2="v7"'
    )
    assert json_checksum(sample) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


def test_the_canonical_form_keeps_literals_numbers_and_unreserved_characters() -> None:
    assert canonical_json(
        decode_json('{"b":{"y":null,"x":"https://delta.io"},"a":[2.710,true,"ü~-._ "]}')
    ) == ('"a"+0=2.710,"a"+1=true,"a"+2="%C3%BC~-._%20","b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null')


@pytest.mark.golden
def test_the_checksums_of_delta_spark_are_ours(golden: Path) -> None:
    checked = 0
    for path in sorted((golden / "tables").rglob("_last_checkpoint")):
        text = path.read_bytes()
        if b'"checksum"' in text:
            data = decode_json(text)
            assert data["checksum"] == json_checksum(data), path
            checked += 1
    assert checked > 5


def test_a_hint_is_written_with_its_checksum_and_read_back(store: Store) -> None:
    hint = LastCheckpoint(version=10, size=4, parts=2, size_in_bytes=99, num_of_add_files=3)
    assert read_last_checkpoint(store) is None
    assert write_last_checkpoint(store, hint)
    found = read_last_checkpoint(store)
    assert found is not None
    assert found.checksum == json_checksum(hint.to_dict())
    assert json.loads(store.get(LAST_CHECKPOINT)) == {
        "version": 10,
        "size": 4,
        "parts": 2,
        "sizeInBytes": 99,
        "numOfAddFiles": 3,
        "checksum": found.checksum,
    }
    assert last_checkpoint(store) == 10


def test_a_hint_never_moves_backwards_unless_forced(store: Store) -> None:
    assert write_last_checkpoint(store, LastCheckpoint(version=10, size=4))
    assert not write_last_checkpoint(store, LastCheckpoint(version=9, size=4))
    assert last_checkpoint(store) == 10
    assert write_last_checkpoint(store, LastCheckpoint(version=10, size=5))
    assert write_last_checkpoint(store, LastCheckpoint(version=3, size=4), force=True)
    assert last_checkpoint(store) == 3


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"[]", b'{"version":-1,"size":1}', b'{"version":99,"size":1,"checksum":"0"}']
)
def test_garbage_is_no_hint_and_is_replaced(store: Store, garbage: bytes) -> None:
    store.put(LAST_CHECKPOINT, garbage)
    assert read_last_checkpoint(store) is None
    assert write_last_checkpoint(store, LastCheckpoint(version=1, size=4))
    assert last_checkpoint(store) == 1
