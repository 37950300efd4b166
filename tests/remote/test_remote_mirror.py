"""The mirror in a bucket, with options that only the caller has: times, checkpoints, manifests, holes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.delta_log.names import commit_path
from deltalakedb.mirror import publisher
from deltalakedb.protocol.features import FENCE
from deltalakedb.settings import Config, use_config
from deltalakedb.storage import open_store
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.storage import Store
    from support.places import Place

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


def address(catalog_uri: str, place: Place, name: str = "t") -> str:
    return f"{catalog_uri}?table={name}&location={place.at(name)}"


def store_of(place: Place, name: str = "t") -> Store:
    return open_store(place.at(name), place.options)


def outside(place: Place, name: str = "t") -> deltalake.DeltaTable:
    return deltalake.DeltaTable(place.at(name), storage_options=place.options)


def test_new_tables_in_buckets_tell_their_times_by_a_setting(catalog_uri: str, bucket: Place) -> None:
    uri = address(catalog_uri, bucket)
    with use_config(Config(catalog={"in_commit_timestamps": "remote", "fence": True})):
        write_deltalake(uri, ids(1), storage_options=bucket.options)
        write_deltalake(uri, ids(2), mode="append", storage_options=bucket.options)
        ours = DeltaTable(uri, storage_options=bucket.options)
    times = {h["version"]: h["timestamp"] for h in ours.history()}
    for version, at in times.items():
        first = json.loads(store_of(bucket).get(commit_path(version)).splitlines()[0])
        assert first["commitInfo"]["inCommitTimestamp"] == at
    assert ids_of(outside(bucket)) == [1, 2]
    with pytest.raises(deltalake.exceptions.CommitFailedError, match=FENCE):
        deltalake.write_deltalake(bucket.at("t"), ids(3), mode="append", storage_options=bucket.options)


def test_a_writer_checkpoints_in_the_bucket_and_puts_back_what_was_deleted(
    catalog_uri: str, bucket: Place
) -> None:
    uri = address(catalog_uri, bucket)
    every = {"delta.checkpointInterval": "2"}
    write_deltalake(uri, ids(0), configuration=every, storage_options=bucket.options)
    for number in (1, 2, 3):
        write_deltalake(uri, ids(number), mode="append", storage_options=bucket.options)
    store = store_of(bucket)
    assert json.loads(store.get("_delta_log/_last_checkpoint"))["version"] == 2
    store.delete(commit_path(3))
    assert outside(bucket).version() == 2
    publisher._predecessor_seen.clear()  # as in a new process
    write_deltalake(uri, ids(4), mode="append", storage_options=bucket.options)
    assert ids_of(outside(bucket)) == [0, 1, 2, 3, 4]


def test_a_transaction_over_a_bucket_and_a_folder_has_its_manifest_in_both(
    catalog_uri: str, bucket: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("near", ids(0), location=tmp_path / "near")
        catalog.write("far", ids(0), location=bucket.at("far"), storage_options=bucket.options)
        with catalog.transaction() as tx:
            tx.write("near", ids(1))
            tx.write("far", ids(1), storage_options=bucket.options)
            tx.write("new", ids(1), location=bucket.at("new"), storage_options=bucket.options)
    assert not caplog.records, "the options that the caller gave are those of every step"
    name = f"_delta_transactions/{tx.uuid}.json"
    found = json.loads(store_of(bucket, "far").get(name))
    assert {t["name"]: t["version"] for t in found["tables"]} == {"near": 1, "far": 1, "new": 0}
    assert json.loads((tmp_path / "near" / name).read_text()) == found
    assert json.loads(store_of(bucket, "new").get(name)) == found
