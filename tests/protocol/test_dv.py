"""Deletion vectors: real ones, our own, and damaged ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.actions import Add, DeletionVector, decode_commit
from deltalakedb.protocol.dv import (
    dv_path,
    inline_dv,
    resolve_dv,
    z85_decode,
    z85_encode,
)
from deltalakedb.protocol.paths import TablePaths
from support.vectors import decode_dv, encode_file

if TYPE_CHECKING:
    from pathlib import Path

rows = st.sets(st.integers(0, 300) | st.integers(2**31, 2**33) | st.integers(0, 2**63), max_size=30)
IN_FILE = DeletionVector(
    storage_type="u", path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^", size_in_bytes=1, cardinality=1, offset=4
)


@given(rows)
def test_an_inline_vector_survives_a_round_trip(deleted: set[int]) -> None:
    dv = inline_dv(deleted)
    assert list(decode_dv(dv)) == sorted(deleted)
    assert dv.cardinality == len(deleted)


@given(st.lists(rows, min_size=1, max_size=3))
def test_vectors_in_a_file_survive_a_round_trip(vectors: list[set[int]]) -> None:
    data, places = encode_file(vectors)
    for deleted, (offset, size, cardinality) in zip(vectors, places, strict=True):
        dv = replace(IN_FILE, offset=offset, size_in_bytes=size, cardinality=cardinality)
        assert list(decode_dv(dv, data)) == sorted(deleted)


@given(st.binary(max_size=40).filter(lambda b: len(b) % 4 == 0))
def test_z85_survives_a_round_trip(data: bytes) -> None:
    assert z85_decode(z85_encode(data)) == data


def test_z85_is_that_of_its_specification() -> None:
    assert z85_encode(bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])) == "HelloWorld"


@pytest.mark.parametrize("text", ["abc", "ab de", "#####", "é0000"])
def test_what_is_not_z85_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        z85_decode(text)


def test_the_protocols_own_examples_are_understood() -> None:
    # the examples of the Delta protocol: a relative path with prefix, and an inline vector
    assert dv_path(IN_FILE) == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    inline = DeletionVector(
        storage_type="i",
        path_or_inline_dv="wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        size_in_bytes=40,
        cardinality=6,
    )
    assert dv_path(inline) is None
    assert resolve_dv(TablePaths("/t", outside=True), inline) is None
    assert list(decode_dv(inline)) == [3, 4, 7, 11, 18, 29]


def test_paths_are_resolved_against_the_root() -> None:
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert resolve_dv(TablePaths("s3://b/t", outside=True), IN_FILE) == f"s3://b/t/ab/{name}"
    bare = replace(IN_FILE, path_or_inline_dv=IN_FILE.path_or_inline_dv[2:])
    assert resolve_dv(TablePaths("/t", outside=True), bare) == f"/t/{name}"
    elsewhere = replace(IN_FILE, storage_type="p", path_or_inline_dv="file:///x/a%20b.bin")
    assert resolve_dv(TablePaths("/t", outside=True), elsewhere) == dv_path(elsewhere) == "/x/a b.bin"
    odd = replace(IN_FILE, path_or_inline_dv="%41" + bare.path_or_inline_dv)
    assert resolve_dv(TablePaths("/t", outside=True), odd) == f"/t/%41/{name}"


@pytest.mark.parametrize(
    "dv",
    [replace(IN_FILE, storage_type="x"), replace(IN_FILE, path_or_inline_dv="short")],
    ids=["storage type", "uuid"],
)
def test_descriptors_that_make_no_sense_are_refused(dv: DeletionVector) -> None:
    with pytest.raises(ProtocolError):
        dv_path(dv)


@given(st.data())
def test_no_damage_goes_unnoticed(data: st.DataObject) -> None:
    whole, [(offset, size, cardinality)] = encode_file([{1, 5, 70_000, 2**33}])
    dv = replace(IN_FILE, offset=offset, size_in_bytes=size, cardinality=cardinality)
    at = data.draw(st.integers(1, len(whole) - 1))
    broken = bytearray(whole)
    broken[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(broken), whole[:at]):
        with pytest.raises(LogCorruptError, match="deletion vector"):
            decode_dv(dv, damaged)


@given(st.data())
def test_damage_of_an_inline_vector_never_crashes(data: st.DataObject) -> None:
    dv = inline_dv({1, 5, 70_000, 2**33})
    raw = bytearray(z85_decode(dv.path_or_inline_dv))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_dv(replace(dv, path_or_inline_dv=z85_encode(bytes(raw))))
    except LogCorruptError:
        return
    assert len(found) == 4


@pytest.mark.parametrize("change", [{"cardinality": 9}, {"size_in_bytes": 400}, {"path_or_inline_dv": "x"}])
def test_an_inline_vector_unlike_its_descriptor_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(LogCorruptError):
        decode_dv(replace(inline_dv({1, 2}), **change))  # type: ignore[arg-type]


@pytest.mark.golden
@pytest.mark.parametrize("name", ["dv-partitioned-with-checkpoint", "dv-with-columnmapping"])
def test_vectors_written_by_spark_are_read(golden: Path, name: str) -> None:
    root = golden / "tables" / "delta" / name
    read = 0
    for file in sorted((root / "_delta_log").glob("*.json")):
        for action in decode_commit(file.read_bytes(), source=file.name):
            if isinstance(action, Add) and (dv := action.deletion_vector) is not None:
                where = resolve_dv(TablePaths(str(root), outside=True), dv)
                data = None if where is None else (root / where).read_bytes()
                bitmap = decode_dv(dv, data)
                height = pq.ParquetFile(TablePaths(str(root)).resolve(action.path)).metadata.num_rows
                assert len(bitmap) == dv.cardinality
                assert bitmap.max() < height
                read += 1
    assert read
