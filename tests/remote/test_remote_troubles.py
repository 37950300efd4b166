"""A bucket that says no, and writers that die: typed errors, nothing half done, no secret shown or kept."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import (
    AddressError,
    ConflictError,
    DeltaError,
    OperationError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.settings import Config, use_config
from deltalakedb.storage import remote as remote_module
from support.lake import ids, ids_of
from support.places import Place, with_endpoint
from support.processes import Child, until
from support.s3 import SECRET, Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

only_sqlite = pytest.mark.parametrize("engine_name", ["sqlite"])


def address(catalog_uri: str, place: Place, name: str = "t") -> str:
    return f"{catalog_uri}?table={name}&location={place.at(name)}"


@pytest.fixture
def uri(catalog_uri: str, watched: Place) -> str:
    """A table of two files behind the proxy."""
    made = address(catalog_uri, watched)
    write_deltalake(made, ids(1), storage_options=watched.options)
    write_deltalake(made, ids(2), mode="append", storage_options=watched.options)
    return made


def _merge(table: DeltaTable) -> None:
    merger = table.merge(ids(2, 3), "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


OPERATIONS: dict[str, Any] = {
    "append": lambda t: write_deltalake(t, ids(9), mode="append"),
    "overwrite": lambda t: write_deltalake(t, ids(9), mode="overwrite"),
    "update": lambda t: t.update({"part": "'z'"}),
    "merge": _merge,
}


@only_sqlite
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", ["403", "503", "cut", "lost answer"])
def test_an_upload_that_fails_leaves_nothing_and_shows_no_secret(
    operation: str, fault: Any, uri: str, watched: Place, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    before = watched.files()
    table = DeltaTable(uri, storage_options=watched.options)
    proxy.fail(fault, path=".parquet")
    with caplog.at_level(logging.DEBUG, "deltalakedb"), pytest.raises(StorageError) as caught:
        OPERATIONS[operation](table)
    assert caught.value.suggestion
    assert caught.value.transient == (fault != "403")
    assert SECRET not in f"{caught.value!r}{caught.value}{caught.value.__cause__!r}{caplog.text}"
    assert (watched.files(), watched.uploads()) == (before, [])
    # the next attempt is as if nothing had been
    OPERATIONS[operation](table)
    assert DeltaTable(uri, storage_options=watched.options).version() == 2


@only_sqlite
def test_a_large_append_goes_up_in_parts_and_a_failed_one_takes_them_back(
    uri: str, watched: Place, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "_CHUNK", 5 << 20)
    table = DeltaTable(uri, storage_options=watched.options)
    count = 900_000

    def rows() -> Iterator[pa.RecordBatch]:
        numbers = pa.array(range(count), pa.int64())
        mixed = pa.array([(n * 2654435761) % (1 << 62) for n in range(count)], pa.int64())
        data = pa.table({"id": mixed, "part": numbers.cast(pa.string())})
        yield from data.to_batches(100_000)

    schema = ids(1).schema
    before = watched.files()
    proxy.fail("503", method="PUT", path="partNumber=2")
    with pytest.raises(StorageUnavailableError):
        write_deltalake(table, pa.RecordBatchReader.from_batches(schema, rows()), mode="append")
    assert watched.files() == before
    until(lambda: watched.uploads() == [])  # the store is asked to forget the parts while the error is told
    write_deltalake(table, pa.RecordBatchReader.from_batches(schema, rows()), mode="append")
    assert (table.version(), table.to_pyarrow_dataset().count_rows()) == (2, count + 2)
    assert [path for _, path in proxy.done if "partNumber=2" in path]
    assert watched.uploads() == []


@only_sqlite
def test_data_that_breaks_off_leaves_no_object(uri: str, watched: Place, proxy: Proxy) -> None:
    before = watched.files()

    def rows() -> Iterator[pa.RecordBatch]:
        yield from ids(*range(100)).to_batches()
        raise RuntimeError("the source broke off")

    reader = pa.RecordBatchReader.from_batches(ids(1).schema, rows())
    with pytest.raises(OperationError, match="broke off") as caught:
        write_deltalake(uri, reader, mode="append", target_file_size=1, storage_options=watched.options)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert watched.files() == before
    assert len([path for method, path in proxy.done if method == "PUT" and path.endswith(".parquet")]) > 10
    assert (watched.files(), watched.uploads()) == (before, [])


@only_sqlite
def test_the_loser_of_a_race_takes_its_files_back(uri: str, watched: Place) -> None:
    loser = DeltaTable(uri, version=1, storage_options=watched.options)
    DeltaTable(uri, storage_options=watched.options).delete("id = 1")
    before = watched.files()
    with pytest.raises(ConflictError):
        loser.update({"part": "'z'"})
    assert watched.files() == before


def test_tables_on_disk_and_in_a_bucket_change_together_or_not_at_all(
    catalog_uri: str, bucket: Place, tmp_path: Path
) -> None:
    options = bucket.options
    with Catalog(catalog_uri) as catalog:
        catalog.write("here", ids(1, 2), location=tmp_path / "here")
        catalog.write("there", ids(1, 2), location=bucket.at("there"), storage_options=options)
        before = bucket.files()
        tx = catalog.transaction()
        with tx:
            tx.write("here", ids(3))
            tx.write("there", ids(3), storage_options=options)
            tx.table("there", storage_options=options).delete("id = 1")
            assert bucket.files() > before
            tx.rollback()
        assert bucket.files() == before
        with catalog.transaction() as tx:
            tx.table("here").delete("id = 1")
            there = tx.table("there", storage_options=options)
            there.update({"part": "'z'"}, predicate="id = 2")
            tx.write("there", ids(7))
            tx.write("new", ids(5), location=bucket.at("new"), storage_options=options)
            assert (ids_of(there), ids_of(tx.table("new"))) == ([1, 2, 7], [5])
        assert {name: done.version for name, done in tx.commits.items()} == {"here": 1, "there": 1, "new": 0}
        for name, expected in (("there", [1, 2, 7]), ("new", [5])):
            stock = deltalake.DeltaTable(bucket.at(name), storage_options=options)
            assert ids_of(stock) == ids_of(catalog.table(name, storage_options=options)) == expected
        # one manifest beside each table names the versions that belong together
        manifests = [f for f in bucket.files() if "_delta_transactions" in f]
        assert len(manifests) == 2
        vanished = [f for f in bucket.files("there") if f.endswith(".parquet")]
        named = {u.rpartition("/")[2] for v in (0, 1) for u in _uris(catalog, "there", v, options)}
        assert {f.rpartition("/")[2] for f in vanished} == named


def _uris(catalog: Catalog, name: str, version: int, options: dict[str, str] | None) -> list[str]:
    return catalog.table(name, version=version, storage_options=options).file_uris()


def rewrite_and_die(uri: str, options: dict[str, str], folder: str) -> None:
    with use_config(Config(remote={"folder": folder})):
        DeltaTable(uri, storage_options=options).update({"part": "'z'"})


@only_sqlite
@pytest.mark.parametrize(
    "point", ["data.after", "commit.before_commit", "commit.after", "publish.before_put"]
)
def test_a_writer_that_is_killed_leaves_data_files_at_most(
    point: str, catalog_uri: str, bucket: Place, tmp_path: Path
) -> None:
    uri = address(catalog_uri, bucket)
    write_deltalake(uri, ids(1, 2), storage_options=bucket.options)
    before = bucket.files("t")
    work = tmp_path / "work"
    Child(rewrite_and_die, uri, bucket.options, str(work), folder=tmp_path, points=f"{point}=kill").died()
    stands = point in ("commit.after", "publish.before_put")
    table = DeltaTable(uri, storage_options=bucket.options)
    assert table.to_pyarrow_table()["part"].to_pylist() == (["z", "z"] if stands else ["a", "a"])
    # one data file went up, whole, and neither a scratch log nor part of anything is there
    (left,) = bucket.files("t") - before
    assert (left.startswith("part-"), left.endswith(".parquet"), bucket.uploads()) == (True, True, [])
    assert len(list(work.iterdir())) == 1
    # what the dead one fetched is cleared away by the next, and publishing goes on
    with use_config(Config(remote={"folder": str(work)}, storage={bucket.base: bucket.options})):
        DeltaTable(uri).delete("id = 1")
    assert list(work.iterdir()) == []
    stock = deltalake.DeltaTable(bucket.at("t"), storage_options=bucket.options)
    assert (stock.version(), ids_of(stock)) == (1 + stands, [2])


@only_sqlite
def test_options_come_from_arguments_settings_or_the_environment(
    catalog_uri: str, bucket: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert bucket.options is not None
    uri = address(catalog_uri, bucket)
    write_deltalake(uri, ids(1), storage_options=bucket.options)
    away = with_endpoint(bucket.options, "http://127.0.0.1:9") | {"max_retries": "0"}
    with use_config(Config(storage={bucket.base: away, f"{bucket.base}/t": bucket.options})):
        write_deltalake(uri, ids(2), mode="append")
        DeltaTable(uri).delete("id = 1")
    with use_config(Config(storage={"s3://": away})):
        # what is given explicitly counts alone
        assert ids_of(DeltaTable(uri, storage_options=bucket.options)) == [2]
    for name, value in bucket.options.items():
        upper = name.upper()
        monkeypatch.setenv(upper if upper.startswith("AWS_") else f"AWS_{upper}", value)
    write_deltalake(uri, ids(3), mode="append")
    DeltaTable(uri).update({"part": "'z'"}, predicate="id = 3")
    assert ids_of(DeltaTable(uri)) == ids_of(deltalake.DeltaTable(bucket.at("t"))) == [2, 3]
    # none of them is in the database, its log included
    kept = b"".join(p.read_bytes() for p in tmp_path.glob("catalog.db*"))
    assert bucket.base.encode() in kept
    assert SECRET.encode() not in kept
    assert b"testing-id" not in kept


@only_sqlite
@pytest.mark.parametrize("trouble", ["bucket", "rights", "endpoint"])
def test_a_store_that_refuses_says_what_to_do(
    trouble: str, catalog_uri: str, watched: Place, proxy: Proxy, uri: str
) -> None:
    assert watched.options is not None
    options, place, expected, advice = {
        "bucket": (watched.options, Place("s3://no-such-bucket"), StorageMissingError, "bucket"),
        "rights": (watched.options, watched, StorageError, "credentials"),
        "endpoint": (
            with_endpoint(watched.options, "http://127.0.0.1:9"),
            watched,
            StorageUnavailableError,
            "endpoint",
        ),
    }[trouble]
    if trouble == "rights":
        for method in ("GET", "PUT", "HEAD"):
            proxy.fail("403", method=method, path="", times=50)
    attempts: list[Any] = [
        lambda: write_deltalake(address(catalog_uri, place, "new"), ids(1), storage_options=options),
        lambda: DeltaTable.create(address(catalog_uri, place, "new"), ids(1).schema, storage_options=options),
    ]
    if trouble != "bucket":
        table = DeltaTable(uri, storage_options=options)
        attempts += [
            lambda: table.to_pyarrow_table(),
            lambda: pa.RecordBatchReader.from_stream(table.scan()).read_all(),
            lambda: write_deltalake(table, ids(3), mode="append"),
            lambda: table.delete("id = 1"),
        ]
    for attempt in attempts:
        with pytest.raises(expected) as caught:
            attempt()
        assert advice in (caught.value.suggestion or "")
        assert SECRET not in str(caught.value)
    proxy.heal()
    with Catalog(catalog_uri) as catalog:
        assert [(t.name, t.head.version) for t in catalog.tables()] == [("t", 1)]


@only_sqlite
def test_a_location_with_credentials_or_of_no_known_store_is_refused(catalog_uri: str) -> None:
    with Catalog(catalog_uri, create=True) as catalog:
        for location in (
            f"s3://id:{SECRET}@lake/t",
            f"https://account.blob.core.windows.net/c/t?sig={SECRET}",
            f"az://c/t?sig={SECRET}",
            "ftp://host/t",
        ):
            with pytest.raises(AddressError) as caught:
                catalog.write("t", ids(1), location=location)
            assert SECRET not in f"{caught.value}{json.dumps(caught.value.to_dict())}"
        assert catalog.find(location="s3a://lake/a b/") is None
        with pytest.raises(DeltaError):
            catalog.table("t")


@only_sqlite
def test_a_folder_for_fetched_files_that_cannot_be_made_is_named_with_its_setting(
    uri: str, watched: Place, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with use_config(Config(remote={"folder": str(tmp_path / "file" / "below")})):
        table = DeltaTable(uri, storage_options=watched.options)
        for operation in (lambda: table.scan(), lambda: table.delete("id = 1")):
            with pytest.raises(StorageError, match="fetched files") as caught:
                operation()
            assert "remote.folder" in (caught.value.suggestion or "")
