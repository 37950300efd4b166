"""Object stores: a memory store, S3 as moto serves it, Azure on Azurite, and Google's by a small fake."""

from __future__ import annotations

import io
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from deltalakedb.exceptions import (
    ConfigError,
    InvalidArgumentError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.storage import Store, open_store
from deltalakedb.storage import remote as remote_module
from deltalakedb.storage.remote import RemoteStore, split_options
from support.s3 import SECRET
from support.stores import KINDS, Bucket

if TYPE_CHECKING:
    from pathlib import Path

    from support.stores import Kind, StoreServers


@pytest.fixture(params=["memory", *KINDS])
def store(request: pytest.FixtureRequest, store_servers: StoreServers) -> Store:
    if request.param == "memory":
        return RemoteStore(MemoryStore(), location="memory:///")
    bucket = store_servers.bucket(request.param)
    return open_store(f"{bucket.url}/tables/a b", bucket.options())


def test_a_remote_store_is_a_store(store: Store) -> None:
    assert isinstance(store, Store)


def test_put_new_creates_once_and_leaves_the_first_content(store: Store) -> None:
    assert store.put_new("_delta_log/0.json", b"first", mtime_ms=1)
    assert not store.put_new("_delta_log/0.json", b"second")
    assert store.get("_delta_log/0.json") == b"first"
    store.put("_delta_log/0.json", b"third")
    assert store.get("_delta_log/0.json") == b"third"


@pytest.mark.parametrize("size", [10, (6 << 20) + 3])
def test_put_file_uploads_files_of_any_size(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    # two parts, without the time that a file of the true limit would take
    monkeypatch.setattr(remote_module, "_ONE_REQUEST", 1 << 20)
    monkeypatch.setattr(remote_module, "_CHUNK", 5 << 20)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1" * size)
    second.write_bytes(b"2" * size)
    assert store.put_file("_delta_log/x", first)
    assert not store.put_file("_delta_log/x", second)
    assert store.get("_delta_log/x") == b"1" * size
    assert store.put_file("_delta_log/x", second, new=False)
    assert store.get("_delta_log/x") == b"2" * size
    with pytest.raises(StorageMissingError):
        store.put_file("y", tmp_path / "missing")


def test_exactly_one_thread_creates_an_object() -> None:
    # moto checks and writes in two steps, so only the memory store can show a race fairly
    store = RemoteStore(MemoryStore(), location="memory:///")
    contents = [bytes([65 + i]) * 1000 for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(lambda data: store.put_new("x", data), contents))
    assert won.count(True) == 1
    assert store.get("x") == contents[won.index(True)]


def test_listing_is_sorted_and_flat(store: Store) -> None:
    for path in ("log/2", "log/10", "log/1", "log/sub/3", "log2/x", "other"):
        store.put(path, b"1")
    assert [m.path for m in store.list("log")] == ["log/1", "log/10", "log/2"]
    assert [m.path for m in store.list("log", recursive=True)] == ["log/1", "log/10", "log/2", "log/sub/3"]
    assert [m.path for m in store.list("log", start_after="log/1")] == ["log/10", "log/2"]
    assert [m.name for m in store.list()] == ["other"]
    assert list(store.list("nowhere")) == []


def test_heads_ranges_and_deletes(store: Store) -> None:
    store.put("x", b"0123456789")
    assert store.head("x").size == 10
    assert store.head("x").modified_ms > 1_600_000_000_000
    assert store.get_range("x", 3, 4) == b"3456"
    assert store.exists("x")
    store.delete("x")
    store.delete("x")
    assert not store.exists("x")
    for act in (store.get, store.head, store.open):
        with pytest.raises(StorageMissingError):
            act("x")


def test_files_are_fetched_and_many_are_deleted_at_once(store: Store, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    for number in range(5):
        store.put(f"folder/{number}", content)
    assert store.fetch("folder/3", tmp_path / "copy") == len(content)
    assert (tmp_path / "copy").read_bytes() == content
    with pytest.raises(StorageMissingError):
        store.fetch("folder/9", tmp_path / "none")
    with pytest.raises(StorageError, match="cannot write"):
        store.fetch("folder/3", tmp_path / "no" / "folder")
    store.delete_all(["folder/0", "folder/gone", "folder/2"])
    store.delete_all([])
    assert [m.path for m in store.list("folder")] == ["folder/1", "folder/3", "folder/4"]


def test_objects_that_are_gone_do_not_keep_the_others(store: Store) -> None:
    for number in range(0, 60, 2):
        store.put(f"folder/{number}", b"1")
    store.delete_all([f"folder/{number}" for number in range(60)])
    assert list(store.list("folder")) == []


@pytest.mark.parametrize("size", [0, 10, (11 << 20) + 3])
def test_an_upload_appears_when_it_is_finished_and_never_when_it_is_given_up(
    store: RemoteStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(remote_module, "_CHUNK", 5 << 20)
    wanted, unwanted, late = (store.begin(f"folder/{name}") for name in ("wanted", "unwanted", "late"))
    for upload in (wanted, unwanted, late):
        for start in range(0, size, 1 << 20):
            upload.write(b"x" * min(1 << 20, size - start))
        assert upload.tell() == size
    assert list(store.list("folder")) == []
    assert wanted.finish() == late.finish() == size
    unwanted.discard()
    late.discard()
    assert [(m.name, m.size) for m in store.list("folder")] == [("wanted", size)]


def test_parquet_is_read_through_the_reader(store: Store) -> None:
    buffer = io.BytesIO()
    table = pa.table({"a": list(range(1000))})
    pq.write_table(table, buffer, row_group_size=100)
    store.put("x.parquet", buffer.getvalue())
    with store.open("x.parquet") as file:
        assert pq.ParquetFile(file).read() == table


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_store_can_be_pickled_and_shows_no_secret(store_servers: StoreServers, kind: Kind) -> None:
    bucket = store_servers.bucket(kind)
    store = open_store(f"{bucket.url}/t", bucket.options())
    store.put("x", b"1")
    assert pickle.loads(pickle.dumps(store)).get("x") == b"1"
    assert repr(store) == f"RemoteStore('{bucket.url}/t')"


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_away_is_a_transient_error(kind: Kind) -> None:
    away = Bucket(kind, "lake", "http://127.0.0.1:9")
    with pytest.raises(StorageUnavailableError) as caught:
        open_store(f"{away.url}/t", away.options()).put_new("x", b"1")
    assert caught.value.suggestion
    assert away.secret not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_bucket_is_an_error_without_secrets(store_servers: StoreServers, kind: Kind) -> None:
    bucket = store_servers.bucket(kind)
    missing = bucket.url.replace("lake", "nowhere")
    with pytest.raises(StorageError) as caught:
        open_store(f"{missing}/t", bucket.options()).put("x", b"1")
    assert bucket.secret not in f"{caught.value}{caught.value.__cause__}"


def test_an_error_that_quotes_a_secret_loses_it_and_its_cause() -> None:
    class Leaking:
        def put(self, *_: object, **__: object) -> None: ...

    store = RemoteStore(Leaking(), location="s3://id:pw@lake/t?sig=abc", secrets=(SECRET,))
    with pytest.raises(StorageError) as caught, store._translated("read", "x"):
        raise ValueError(f"401 for https://host/x?sig=abc with {SECRET}")
    text = f"{caught.value!r}{caught.value}"
    assert SECRET not in text
    assert "sig=abc" not in text
    assert "pw" not in text
    assert caught.value.__cause__ is None


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="ftp://x/y"):
        open_store("ftp://x/y")


def test_an_unknown_option_is_named_but_its_value_is_not() -> None:
    with pytest.raises(ConfigError, match="bogus_secret") as caught:
        open_store("s3://b/x", {"bogus_secret": SECRET})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    ["az://container/some/path", "abfss://fs@acc.dfs.core.windows.net/t", "gs://bucket/t", "s3a://bucket/t"],
)
def test_every_kind_of_url_opens(location: str) -> None:
    options = {"account_name": "acc", "account_key": "a2V5"} if location.startswith("a") else {}
    assert open_store(location, {**options, "allow_http": "true"}).location == location


def test_options_are_sorted_by_who_must_know_them() -> None:
    sorted_options = split_options(
        {
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_S3_ADDRESSING_STYLE": "virtual",
            "AWS_S3_LOCKING_PROVIDER": "dynamodb",
            "aws_allow_http": "1",
            "connect_timeout": "3s",
            "max_retries": "3",
            "backoff_config.max_backoff": "500ms",
        }
    )
    assert sorted_options.config == {
        "aws_secret_access_key": SECRET,
        "virtual_hosted_style_request": "true",
    }
    assert sorted_options.client == {"allow_http": True, "connect_timeout": "3s"}
    assert sorted_options.retry["max_retries"] == 3
    assert sorted_options.retry["backoff"]["max_backoff"].total_seconds() == 0.5
    assert sorted_options.secrets == (SECRET,)
    assert SECRET not in repr(sorted_options)


def test_the_private_key_of_a_service_account_is_a_secret_of_its_own() -> None:
    account = json.dumps({"client_email": "a@b.c", "private_key": SECRET})
    assert set(split_options({"GOOGLE_SERVICE_ACCOUNT_KEY": account}).secrets) == {account, SECRET}
    assert split_options({"GOOGLE_SERVICE_ACCOUNT_KEY": "{broken"}).secrets == ("{broken",)


@pytest.mark.parametrize("option", ["allow_http", "max_retries", "retry_timeout"])
def test_a_wrong_option_value_is_named(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        split_options({option: "sometimes"})


def test_stores_share_their_connections_until_options_or_environment_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened(location: str = "s3://lake/t", **options: str) -> object:
        store = open_store(location, {"aws_region": "us-east-1", **options})
        assert isinstance(store, RemoteStore)
        return store._store

    first = opened()
    assert opened() is first
    assert opened(timeout="9s") is not first
    assert opened("s3://lake/u") is not first
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    assert opened() is not first
