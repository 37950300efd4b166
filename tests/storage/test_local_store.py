"""Local disk: whole files or none, one winner, typed errors."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.exceptions import (
    InvalidArgumentError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.storage import Store, local, open_store
from deltalakedb.storage.local import LocalStore, rename_noreplace

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "root")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_local_store_is_a_store(store: Store) -> None:
    assert isinstance(store, Store)


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_a_local_location_has_many_forms(tmp_path: Path, form: str) -> None:
    (tmp_path / "x").write_bytes(b"1")
    assert open_store(form.format(tmp_path)).get("x") == b"1"


def test_a_file_url_is_percent_decoded_and_a_path_is_not(tmp_path: Path) -> None:
    for name in ("a b", "a%20b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(name.encode())
    assert open_store(f"file://{tmp_path}/a%20b").get("x") == b"a b"
    assert open_store(f"{tmp_path}/a%20b").get("x") == b"a%20b"


def test_a_relative_location_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("t/u").location == str(tmp_path / "t" / "u")


@pytest.mark.parametrize("location", ["", "a\0b", "file://elsewhere/x"])
def test_a_location_that_names_nothing_is_refused(location: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        open_store(location)
    assert caught.value.suggestion


@pytest.mark.parametrize("path", ["", "/x", "../x", "a/../../x", "a//b", "./x", "a\0b"])
def test_a_path_outside_the_root_is_refused(store: Store, path: str) -> None:
    for act in (store.get, store.head, store.delete, lambda p: store.put_new(p, b"1")):
        with pytest.raises(InvalidArgumentError):
            act(path)


def test_put_new_creates_once_and_leaves_the_first_content(store: Store) -> None:
    assert store.put_new("log/0.json", b"first")
    assert not store.put_new("log/0.json", b"second")
    assert store.get("log/0.json") == b"first"


def test_put_new_sets_the_modification_time_before_the_file_appears(store: Store) -> None:
    store.put_new("x", b"1", mtime_ms=1_500_000_000_123)
    assert store.head("x").modified_ms == 1_500_000_000_123


def test_put_new_leaves_no_temporary_file(store: Store, tmp_path: Path) -> None:
    store.put_new("x", b"1")
    store.put_new("x", b"2")
    store.put("x", b"3")
    assert names(tmp_path / "root") == ["x"]


def test_put_replaces_the_whole_content(store: Store) -> None:
    store.put("x", b"a long content")
    store.put("x", b"short")
    assert store.get("x") == b"short"


def test_put_file_copies_whole_files_and_replaces_only_when_told(store: Store, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1" * 3_000_001)
    second.write_bytes(b"2")
    assert store.put_file("_delta_log/x", first)
    assert not store.put_file("_delta_log/x", second)
    assert store.get("_delta_log/x") == b"1" * 3_000_001
    assert store.put_file("_delta_log/x", second, new=False)
    assert store.get("_delta_log/x") == b"2"
    assert names(tmp_path / "root" / "_delta_log") == ["x"]
    with pytest.raises(StorageMissingError):
        store.put_file("y", tmp_path / "missing")
    assert first.exists()


def test_put_new_works_without_hard_links(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(local.os, "link", refused)
    assert store.put_new("x", b"1")
    assert not rename_noreplace(f"{tmp_path}/root/x", f"{tmp_path}/root/x")
    assert not store.put_new("x", b"2")
    assert store.get("x") == b"1"
    assert names(tmp_path / "root") == ["x"]


def test_what_hadoop_remembers_of_a_file_goes_with_it(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")
    changes: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("log/x", b"2"),
        "put_new": lambda: store.put_new("log/x", b"2"),
        "put_file": lambda: store.put_file("log/x", source),
        "put_file over": lambda: store.put_file("log/x", source, new=False),
        "delete": lambda: store.delete("log/x"),
    }
    for name, change in changes.items():
        if name in ("put", "put_file over", "delete"):
            store.put("log/x", b"1")
        else:
            store.delete("log/x")
        checksum = tmp_path / "root" / "log" / ".x.crc"
        checksum.write_bytes(b"crc of other bytes")
        change()
        assert not checksum.exists(), name
    store.put("log/x", b"1")
    checksum.write_bytes(b"crc of these bytes")
    assert not store.put_new("log/x", b"2")
    assert checksum.exists(), "what stays keeps what belongs to it"


def test_a_file_and_its_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def record(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(local.os, "fsync", record)
    LocalStore(tmp_path).put_new("a/b/x", b"1")
    temporary = [s for s in synced if s.endswith(".tmp")]
    assert len(temporary) == 1
    assert [s for s in synced if s not in temporary] == [str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b"]
    assert synced.index(temporary[0]) < len(synced) - 1, "the folder is synced after the file"
    synced.clear()
    LocalStore(tmp_path, durable=False).put_new("y", b"1")
    assert synced == []


def test_exactly_one_thread_creates_a_file_and_readers_never_see_a_part(store: Store, tmp_path: Path) -> None:
    writers, rounds = 8, 20
    contents = [bytes([65 + i]) * 50_000 for i in range(writers)]
    for number in range(rounds):
        path = f"log/{number}.json"
        barrier = threading.Barrier(writers)

        def create(data: bytes, path: str = path, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            won = store.put_new(path, data)
            assert len(store.get(path)) == len(data)
            return won

        with ThreadPoolExecutor(writers) as pool:
            won = list(pool.map(create, contents))
        assert won.count(True) == 1
        assert store.get(path) == contents[won.index(True)]
    assert len(names(tmp_path / "root" / "log")) == rounds


def _create_all(root: str, mark: int, count: int, start: object, answers: object) -> None:
    store = open_store(root, durable=False)
    start.wait()  # type: ignore[attr-defined]
    won = [i for i in range(count) if store.put_new(f"{i}.json", bytes([mark]) * 10_000)]
    answers.put((mark, won))  # type: ignore[attr-defined]


def test_exactly_one_process_creates_each_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, answers, count = context.Event(), context.Queue(), 50
    processes = [
        context.Process(target=_create_all, args=(str(tmp_path), mark, count, start, answers))
        for mark in (65, 66, 67)
    ]
    for process in processes:
        process.start()
    start.set()
    winners = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert sorted(i for won in winners.values() for i in won) == list(range(count))
    store = open_store(tmp_path)
    for mark, won in winners.items():
        for i in won:
            assert store.get(f"{i}.json") == bytes([mark]) * 10_000


def test_listing_is_sorted_flat_and_without_temporary_files(store: Store, tmp_path: Path) -> None:
    for path in ("log/2", "log/10", "log/1", "log/sub/3", "other"):
        store.put_new(path, b"1")
    (tmp_path / "root" / "log" / ".dl-0123.tmp").write_bytes(b"half a fi")
    assert [m.path for m in store.list("log")] == ["log/1", "log/10", "log/2"]
    assert [m.path for m in store.list("log", recursive=True)] == ["log/1", "log/10", "log/2", "log/sub/3"]
    assert [m.path for m in store.list("log/", start_after="log/1")] == ["log/10", "log/2"]
    assert [m.name for m in store.list()] == ["other"]
    assert [m.size for m in store.list()] == [1]


def test_listing_a_missing_folder_gives_nothing(store: Store) -> None:
    assert list(store.list()) == []
    assert list(store.list("nowhere")) == []


def test_ranges_and_readers_give_parts(store: Store) -> None:
    store.put("x", b"0123456789")
    assert store.get_range("x", 3, 4) == b"3456"
    with store.open("x") as file:
        file.seek(8)
        assert file.read() == b"89"


def test_a_missing_file_is_a_missing_error_and_deleting_it_is_fine(store: Store) -> None:
    for act in (store.get, store.head, store.open):
        with pytest.raises(StorageMissingError) as caught:
            act("nothing")
        assert isinstance(caught.value, FileNotFoundError)
        assert not caught.value.transient
    assert not store.exists("nothing")
    store.delete("nothing")
    store.put("x", b"1")
    store.delete("x")
    assert not store.exists("x")


def test_a_file_where_a_folder_is_expected_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"I am a file")
    store = open_store(tmp_path / "root")
    for act in (
        lambda: store.put_new("log/x", b"1"),
        lambda: store.put("x", b"1"),
        lambda: store.get("x"),
        lambda: list(store.list()),
    ):
        with pytest.raises(StorageError) as caught:
            act()
        assert "folder" in (caught.value.suggestion or "")
    assert (tmp_path / "root").read_bytes() == b"I am a file"


def test_a_folder_where_a_file_is_expected_is_a_storage_error(store: Store, tmp_path: Path) -> None:
    (tmp_path / "root" / "x").mkdir(parents=True)
    for act in (lambda: store.get("x"), lambda: store.put("x", b"1"), lambda: store.put_new("x", b"1")):
        with pytest.raises(StorageError):
            act()
    assert names(tmp_path / "root") == ["x"]


@pytest.mark.parametrize(
    ("code", "transient"),
    [
        (errno.EACCES, False),
        (errno.EROFS, False),
        (errno.ENOSPC, True),
        (errno.EDQUOT, True),
        (errno.EIO, True),
    ],
)
def test_what_the_system_says_becomes_a_typed_error_with_advice(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, transient: bool
) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local.os, "fsync", refused)
    with pytest.raises(StorageError) as caught:
        store.put_new("x", b"1")
    assert caught.value.transient is transient
    assert caught.value.suggestion
    assert isinstance(caught.value.__cause__, OSError)
    # the folder itself was made, and nothing is left in it
    assert not (tmp_path / "root").exists() or names(tmp_path / "root") == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    program = """
        import json, resource, sys
        from deltalakedb.exceptions import StorageUnavailableError
        from deltalakedb.storage import open_store
        store = open_store(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for put in (store.put_new, store.put):
            try:
                put("log/0.json", b"x" * 10_000)
            except StorageUnavailableError as e:
                print(json.dumps(e.to_dict()))
    """
    source = str(Path(local.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        check=True,
        text=True,
    )
    errors = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["error"] for e in errors] == [StorageUnavailableError.__name__] * 2
    assert all(e["transient"] and "raise it" in e["suggestion"] for e in errors)
    assert names(tmp_path / "log") == []


def test_a_store_can_be_pickled(store: Store) -> None:
    store.put("x", b"1")
    assert pickle.loads(pickle.dumps(store)).get("x") == b"1"


@settings(max_examples=40, deadline=None)
@given(
    writes=st.lists(
        st.tuples(
            st.sampled_from(["put", "put_new", "delete"]), st.sampled_from("abc"), st.binary(max_size=5)
        ),
        max_size=12,
    )
)
def test_a_store_behaves_like_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, str, bytes]]
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("model"), durable=False)
    model: dict[str, bytes] = {}
    for verb, path, data in writes:
        if verb == "put":
            store.put(path, data)
            model[path] = data
        elif verb == "put_new":
            assert store.put_new(path, data) is (path not in model)
            model.setdefault(path, data)
        else:
            store.delete(path)
            model.pop(path, None)
    assert {m.path: store.get(m.path) for m in store.list()} == model


def test_files_are_copied_out_and_many_are_deleted(store: LocalStore, tmp_path: Path) -> None:
    for number in range(3):
        store.put(f"folder/{number}", b"0123456789")
    assert store.fetch("folder/1", tmp_path / "copy") == 10
    assert (tmp_path / "copy").read_bytes() == b"0123456789"
    with pytest.raises(StorageMissingError):
        store.fetch("folder/9", tmp_path / "none")
    store.delete_all(["folder/0", "folder/gone", "folder/2"])
    assert [m.path for m in store.list("folder")] == ["folder/1"]
