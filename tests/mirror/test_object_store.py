"""The mirror on an object store: in order, once, byte for byte; and nothing is lost on the way."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

import deltalake
import pytest

from deltalakedb import Catalog
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import DivergedWarning, StorageError, StorageUnavailableError, TableFrozenError
from deltalakedb.metastore import registry
from deltalakedb.mirror.publisher import publish
from deltalakedb.settings import Config
from deltalakedb.storage import open_store
from support.lake import ids_of
from support.s3 import Proxy, S3Table, proxy_before
from support.stores import KINDS, Bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.mirror.publisher import Published
    from support.s3 import Fault
    from support.stores import Kind, StoreServers

    Form = Literal["classic", "v2"]

only_sqlite = pytest.mark.parametrize("engine_name", ["sqlite"])
every_store = pytest.mark.parametrize(("engine_name", "kind"), [("sqlite", kind) for kind in KINDS])


@pytest.fixture
def kind() -> Kind:
    """S3, where a test asks for no other store."""
    return "s3"


@pytest.fixture
def bucket(store_servers: StoreServers, kind: Kind) -> Bucket:
    return store_servers.bucket(kind)


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with proxy_before(bucket.endpoint, bucket.secret) as found:
        yield found


def lake(catalog_uri: str, bucket: Bucket, options: dict[str, str]) -> Catalog:
    """A catalog whose settings hold the bucket's options."""
    return Catalog(catalog_uri, config=Config(storage={bucket.url: options}))


@pytest.fixture
def table(catalog_uri: str, bucket: Bucket, proxy: Proxy) -> S3Table:
    """A table of one version in the bucket, nothing published; the mirror goes through the proxy."""
    catalog = lake(catalog_uri, bucket, bucket.options(proxy.endpoint))
    made = S3Table(catalog._database, "t", f"{bucket.url}/tables/t", bucket.options())
    return made.create()


@pytest.fixture
def s3_catalog(catalog_uri: str, table: S3Table, bucket: Bucket, proxy: Proxy) -> Catalog:
    return lake(catalog_uri, bucket, bucket.options(proxy.endpoint))


def publish_all(table: S3Table, options: dict[str, str]) -> Published:
    return publish(table.database, registry.find(table.database, table.name), storage_options=options)


def logged(table: S3Table) -> list[int]:
    names = [meta.name for meta in table.store.list("_delta_log")]
    return [int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit()]


def same_everywhere(catalog: Catalog, table: S3Table, truth: list[list[int]]) -> None:
    """Every version is in the bucket, byte for byte, and stock reads each as it was."""
    log = catalog.log("t")
    assert logged(table) == list(log.versions()) == list(range(len(truth)))
    for version, expected in enumerate(truth):
        assert table.store.get(commit_path(version)) == log.commit_bytes(version)
        stock = deltalake.DeltaTable(table.location, version=version, storage_options=table.options)
        assert ids_of(stock) == expected, f"version {version}"


@pytest.mark.parametrize(
    ("engine_name", "kind"),
    [("sqlite", "s3"), ("duckdb", "s3"), ("postgres", "s3"), ("sqlite", "azure"), ("sqlite", "gcs")],
)
def test_every_version_reaches_the_bucket_in_order_and_stock_reads_it(
    s3_catalog: Catalog, table: S3Table, proxy: Proxy
) -> None:
    table.append(1, 2, 3)
    table.delete(2)
    assert s3_catalog.mirror.status("t")[0].versions_behind == 5
    assert s3_catalog.mirror.run().published == 5
    put = [path for method, path in proxy.done if method == "PUT"]
    assert [p.rpartition("/")[2] for p in put] == [f"{v:020}.json" for v in range(5)]
    same_everywhere(s3_catalog, table, [[], [1], [1, 2], [1, 2, 3], [1, 3]])
    status = s3_catalog.mirror.status("t")[0]
    assert (status.published_version, status.versions_behind, status.error) == (4, 0, None)
    assert s3_catalog.mirror.verify("t").ok
    assert s3_catalog.mirror.run().published == 0


@only_sqlite
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("s3", "classic"),
        ("s3", "v2"),
        ("azure", "classic"),
        ("azure", "v2"),
        ("gcs", "v2"),
    ],
)
def test_a_checkpoint_in_the_bucket_carries_readers_without_the_older_commits(
    catalog_uri: str, bucket: Bucket, form: Form
) -> None:
    options = bucket.options()
    catalog = lake(catalog_uri, bucket, options)
    table = S3Table(catalog._database, "t", f"{bucket.url}/tables/{form}", options)
    table.create(*(["v2Checkpoint"] if form == "v2" else []))
    table.append(1, 2, 3)
    table.delete(1)
    catalog.mirror.run()
    assert catalog.mirror.checkpoint("t", kind=form).version == 4
    for version in range(4):
        table.store.delete(commit_path(version))
    table.append(9)
    catalog.mirror.run()
    stock = deltalake.DeltaTable(table.location, storage_options=options)
    # by its files: stock's datasets refuse the feature, and its queries keep the server's threads waiting
    names = {uri.rpartition("/")[2] for uri in stock.file_uris()}
    assert (stock.version(), names) == (5, {f"part-{number}.parquet" for number in (2, 3, 9)})
    assert table.store.exists("_delta_log/_last_checkpoint")


@only_sqlite
def test_a_checkpoint_that_fails_half_way_leaves_no_hint_and_works_later(
    s3_catalog: Catalog, table: S3Table, proxy: Proxy
) -> None:
    table.append(1)
    s3_catalog.mirror.run()
    for place in (".checkpoint.parquet", "_last_checkpoint"):
        proxy.fail("503", path=place)
        with pytest.raises(StorageUnavailableError):
            s3_catalog.mirror.checkpoint("t")
        assert not table.store.exists("_delta_log/_last_checkpoint")
        stock = deltalake.DeltaTable(table.location, storage_options=table.options)
        assert ids_of(stock) == [1]
    assert s3_catalog.mirror.checkpoint("t").version == 1
    assert table.store.exists("_delta_log/_last_checkpoint")
    assert s3_catalog.mirror.status("t")[0].checkpoint_version == 1


@only_sqlite
@pytest.mark.parametrize(
    ("kind", "fault"),
    [("s3", fault) for fault in ("500", "503", "403", "409", "hang", "cut")]
    + [("azure", "403"), ("azure", "409"), ("azure", "cut"), ("gcs", "503"), ("gcs", "cut")],
)
def test_a_store_in_trouble_delays_the_log_and_loses_nothing(
    s3_catalog: Catalog,
    table: S3Table,
    bucket: Bucket,
    proxy: Proxy,
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = bucket.options(proxy.endpoint, timeout="300ms" if fault == "hang" else "20s")
    table.append(1, 2)
    publish_all(table, bucket.options(proxy.endpoint))
    table.append(3, 4)
    proxy.fail(fault, path=f"{3:020}.json", times=100)
    with caplog.at_level(logging.DEBUG):
        for attempt in (1, 2):
            result = publish_all(table, options)
            assert result.versions == ()
            assert isinstance(result.error, StorageError)
            status = s3_catalog.mirror.status("t")[0]
            assert (status.published_version, status.versions_behind) == (2, 2)
            assert status.attempts == attempt
            assert status.error
            assert status.state == "active"
            assert bucket.secret not in status.error
            assert "Signature" not in status.error
    assert bucket.secret not in caplog.text
    assert s3_catalog.log("t").snapshot().version == 4, "the commits stand"
    assert logged(table) == [0, 1, 2], "nothing overtakes the version that waits"
    stock = deltalake.DeltaTable(table.location, storage_options=table.options)
    assert ids_of(stock) == [1, 2], "readers outside see an older state that is whole"
    view = s3_catalog.query("SELECT version, state, error FROM dl_v_mirror ORDER BY version").to_pylist()
    assert [(r["version"], r["state"]) for r in view if r["state"] != "published"] == [
        (3, "failed"),
        (4, "pending"),
    ]

    proxy.heal()
    assert publish_all(table, bucket.options(proxy.endpoint)).versions == (3, 4)
    assert [proxy.puts(f"{v:020}.json") for v in range(5)] == [1] * 5
    same_everywhere(s3_catalog, table, [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]])
    assert s3_catalog.mirror.status("t")[0].error is None


@only_sqlite
def test_a_conflict_answer_that_passes_is_no_failure(
    s3_catalog: Catalog, table: S3Table, bucket: Bucket, proxy: Proxy
) -> None:
    proxy.fail("409", times=2)
    assert publish_all(table, bucket.options(proxy.endpoint)).versions == (0,)
    assert proxy.puts(f"{0:020}.json") == 1
    assert s3_catalog.mirror.status("t")[0].attempts == 0


@every_store
@pytest.mark.parametrize("retries", ["0", "3"])
def test_a_lost_answer_is_no_divergence_and_nothing_is_put_twice(
    s3_catalog: Catalog, table: S3Table, bucket: Bucket, proxy: Proxy, retries: str
) -> None:
    options = bucket.options(proxy.endpoint, max_retries=retries)
    table.append(1, 2)
    proxy.fail("lost answer", path=f"{1:020}.json")
    first = publish_all(table, options)
    assert not first.diverged
    if retries == "0":
        assert first.versions == (0,)
        assert s3_catalog.mirror.status("t")[0].attempts == 1
        assert publish_all(table, options).versions == (1, 2)
    assert s3_catalog.mirror.status("t")[0].versions_behind == 0
    assert [proxy.puts(f"{v:020}.json") for v in range(3)] == [1, 1, 1]
    assert s3_catalog.describe("t").state == "active"
    same_everywhere(s3_catalog, table, [[], [1], [1, 2]])


@only_sqlite
def test_an_answer_lost_while_comparing_freezes_nothing(
    s3_catalog: Catalog, table: S3Table, bucket: Bucket, proxy: Proxy
) -> None:
    options = bucket.options(proxy.endpoint)
    proxy.fail("lost answer")
    assert publish_all(table, options).error is not None
    proxy.fail("503", method="GET")
    result = publish_all(table, options)
    assert (result.versions, result.diverged) == ((), False)
    assert s3_catalog.describe("t").state == "active"
    assert publish_all(table, options).versions == (0,)


@every_store
def test_a_foreign_object_freezes_the_table_and_stays_as_it_is(
    s3_catalog: Catalog, table: S3Table, proxy: Proxy
) -> None:
    table.append(1, 2)
    foreign = b'{"commitInfo":{"operation":"FOREIGN"}}\n'
    table.store.put(commit_path(1), foreign)
    with pytest.warns(DivergedWarning):
        done = s3_catalog.mirror.run()
    assert (done.published, done.diverged) == (1, ("t",))
    assert table.store.get(commit_path(1)) == foreign
    assert logged(table) == [0, 1]
    assert s3_catalog.describe("t").state == "frozen"
    requests = len(proxy.requests)
    assert s3_catalog.mirror.run().published == 0
    assert len(proxy.requests) == requests, "a frozen table is left alone"
    with pytest.raises(TableFrozenError):
        table.append(3)
    with pytest.raises(TableFrozenError):
        s3_catalog.mirror.checkpoint("t")


FOREIGN = b'{"commitInfo":{"operation":"FOREIGN"}}\n'


@every_store
def test_a_log_in_a_bucket_is_mended_rebuilt_and_taken_over(
    s3_catalog: Catalog, table: S3Table, bucket: Bucket
) -> None:
    mirror, store = s3_catalog.mirror, table.store
    table.append(1, 2, 3)
    assert mirror.run().published == 4
    store.delete(commit_path(1))
    store.put(commit_path(2), store.get(commit_path(2))[:40])
    assert {f.version: f.kind for f in mirror.verify("t").differences} == {1: "missing", 2: "damaged"}
    assert mirror.repair("t").rewritten == (1, 2)
    same_everywhere(s3_catalog, table, [[], [1], [1, 2], [1, 2, 3]])
    place = f"{bucket.url}/tables/rebuilt"
    assert mirror.rebuild("t", place) == (0, 3)
    rebuilt = open_store(place, bucket.options())
    for version in range(4):
        assert rebuilt.get(commit_path(version)) == store.get(commit_path(version))
    store.put(commit_path(4), FOREIGN)
    assert mirror.status("t", look=True)[0].ahead == 1
    assert mirror.recover("t").versions == (4,)
    mirror.pause("t")
    table.version = 4
    table.append(5)
    store.put(commit_path(5), FOREIGN)
    with pytest.warns(DivergedWarning):
        assert mirror.resume("t").diverged == ("t",)
    assert mirror.resolve("t").ours == {5: 6}
    same_everywhere(s3_catalog, table, [[], [1], [1, 2], *[[1, 2, 3]] * 3, [1, 2, 3, 5]])
    assert mirror.compact_log("t", 1, 3) is not None
    assert mirror.verify("t").ok


@only_sqlite
def test_a_checkpoint_that_cannot_be_fetched_is_not_taken_for_a_broken_one(
    s3_catalog: Catalog, table: S3Table, proxy: Proxy
) -> None:
    table.append(1, 2)
    s3_catalog.mirror.run()
    name = s3_catalog.mirror.checkpoint("t").paths[0]
    whole = table.store.get(name)
    for look in (s3_catalog.mirror.verify, s3_catalog.mirror.repair):
        proxy.fail("503", method="GET", path=".checkpoint.parquet")
        with pytest.raises(StorageUnavailableError):
            look("t")
    assert table.store.get(name) == whole
    table.store.put(name, whole[:100])
    assert s3_catalog.mirror.repair("t").checkpoints == (2,)
    assert s3_catalog.mirror.verify("t").ok


@only_sqlite
def test_a_missing_bucket_is_a_failure_with_a_reason(catalog_uri: str, bucket: Bucket) -> None:
    options = bucket.options()
    catalog = lake(catalog_uri, bucket, options)
    table = S3Table(catalog._database, "t", "s3://nowhere/t", options).create()
    result = publish_all(table, options)
    assert isinstance(result.error, StorageError)
    assert catalog.mirror.status("t")[0].attempts == 1


@only_sqlite
@pytest.mark.usefixtures("long_waits")
def test_the_reconciler_gives_a_store_in_trouble_time_and_comes_at_once_when_asked(
    s3_catalog: Catalog, table: S3Table, proxy: Proxy
) -> None:
    table.append(*range(1, 6))
    proxy.fail("503", times=1)
    assert s3_catalog.mirror.run().failed == ("t",)
    # its turn has not come yet: the store gets the time that the backoff gives it
    requests = len(proxy.requests)
    assert s3_catalog.mirror.run().published == 0
    assert len(proxy.requests) == requests
    # on demand at once
    assert s3_catalog.mirror.publish("t").published == 6
    same_everywhere(s3_catalog, table, [list(range(1, n + 1)) for n in range(6)])
