"""Files that are created and flushed together: whole or not there, and one's trouble is not the others'."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from deltalakedb.exceptions import StorageError, StorageMissingError
from deltalakedb.storage.local import FileWrite, Flushes, LocalStore, write_files

if TYPE_CHECKING:
    from pathlib import Path


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_all_are_there_but_for_those_that_were_before_or_cannot_be(tmp_path: Path) -> None:
    stores = [LocalStore(tmp_path / name) for name in "abc"]
    stores[1].put_new("log/1.json", b"earlier")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "log").write_bytes(b"a file where a folder should be")
    puts = [FileWrite(store, "log/1.json", b"new", 1_700_000_000_000) for store in stores]
    asked: list[int] = []
    write_files(puts, linking=asked.append)
    assert [p.done for p in puts] == [True, False, False]
    assert [p.error is None for p in puts] == [True, True, False]
    assert asked == [0]
    assert content(tmp_path) == {
        "a/log/1.json": b"new",
        "b/log/1.json": b"earlier",
        "c/log": b"a file where a folder should be",
    }
    assert (tmp_path / "a/log/1.json").stat().st_mtime == 1_700_000_000


def test_nothing_is_left_where_a_name_is_taken_in_the_meantime(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put = FileWrite(store, "x", b"late", 0)
    write_files([put], linking=lambda _: store.put_new("x", b"first"))
    assert not put.done
    assert content(tmp_path) == {"x": b"first"}


def test_a_second_name_is_the_same_file(tmp_path: Path) -> None:
    one, other = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")
    one.put_new("m/x", b"1")
    assert other.link("m/x", one.name_of("m/x"))
    assert not other.link("m/x", one.name_of("m/x"))
    assert (tmp_path / "a/m/x").stat().st_ino == (tmp_path / "b/m/x").stat().st_ino
    with pytest.raises(StorageMissingError):
        other.link("m/y", one.name_of("m/missing"))


def test_many_files_are_flushed_with_few_of_them_open(tmp_path: Path) -> None:
    flushes, handles = Flushes(), []
    for number in range(150):
        path = tmp_path / str(number)
        handles.append(os.open(path, os.O_CREAT | os.O_WRONLY))
        flushes.file(handles[-1], str(path))
    flushes.folder(str(tmp_path))
    assert len(set(handles)) < 100  # those that were closed are given out again
    flushes.wait()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(handles[-1])
    flushes.wait()  # nothing is left


def test_trouble_with_one_file_is_told_and_closes_the_others(tmp_path: Path) -> None:
    flushes = Flushes()
    reader, writer = os.pipe()  # which cannot be flushed
    flushes.file(writer, "pipe")
    path = tmp_path / "x"
    flushes.file(handle := os.open(path, os.O_CREAT | os.O_WRONLY), str(path))
    with pytest.raises(StorageError, match="pipe"):
        flushes.wait()
    os.close(reader)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(handle)
    flushes.folder(str(tmp_path / "gone"))
    with pytest.raises(StorageMissingError):
        flushes.wait()
    flushes.file(handle := os.open(path, os.O_WRONLY), str(path))
    flushes.forget()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(handle)
