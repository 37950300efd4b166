"""Reading from a bucket: only candidate files are opened, and what is too large is not fetched."""

from __future__ import annotations

import io
import pickle
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb import (
    Catalog,
    DeltaTable,
    QueryBuilder,
    convert_to_deltalake,
    import_table,
    open_log,
    write_deltalake,
)
from deltalakedb.exceptions import FetchLimitError, StorageMissingError
from deltalakedb.protocol.actions import Remove
from deltalakedb.settings import Config, use_config
from deltalakedb.storage import open_store
from deltalakedb.table import roots
from deltalakedb.table.handle import require_handle
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.places import Place
    from support.s3 import Proxy

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])

#: one of each kind that is read in a way of its own
GOLDEN = [
    "basic-with-inserts-deletes-checkpoint",
    "data-reader-partition-values",
    "data-reader-escaped-chars",
    "dv-partitioned-with-checkpoint",
    "dv-with-columnmapping",
    "table-with-columnmapping-mode-id",
    "multi-part-checkpoint",
    "v2-checkpoint-parquet",
    "data-reader-timestamp_ntz",
]


@pytest.fixture
def table(catalog_uri: str, watched: Place) -> DeltaTable:
    """Four files, one for each number, in two partitions; read through the proxy."""
    uri = f"{catalog_uri}?table=t&location={watched.at('t')}"
    for number in range(4):
        rows = ids(number, part="ab"[number % 2])
        write_deltalake(
            uri,
            rows,
            mode="append",
            partition_by=["part"] if number == 0 else None,
            storage_options=watched.options,
        )
    return DeltaTable(uri, storage_options=watched.options)


def opened(proxy: Proxy) -> set[str]:
    """The data files that were asked for since the last look."""
    names = {
        path for method, path in proxy.requests if method in ("GET", "HEAD") and path.endswith(".parquet")
    }
    proxy.requests.clear()
    return names


def test_only_candidate_files_are_opened(table: DeltaTable, proxy: Proxy, bucket: Place) -> None:
    proxy.requests.clear()
    reads: list[tuple[Any, list[int]]] = [
        (lambda: table.to_pyarrow_table(filters=[("id", "=", 2)]), [2]),
        (lambda: table.to_pyarrow_table(filters="id = 3"), [3]),
        (lambda: table.scan(columns=["id"], predicate="id = 1"), [1]),
        (lambda: table.to_pyarrow_table(filters=[("part", "=", "b")], columns=["id"]), [1, 3]),
        (lambda: table.to_pyarrow_dataset(file_pruning_predicate="part = 'a'").to_table(), [0, 2]),
        (lambda: table.to_pyarrow_table(filters=[("id", ">", 100)]), []),
    ]
    for read, expected in reads:
        assert sorted(pa.table(read())["id"].to_pylist()) == expected
        wanted = {uri.removeprefix("s3:/") for uri in _files(table, expected)}
        assert opened(proxy) == wanted
    # nothing was asked for the sizes that the catalog knows
    table.to_pyarrow_table()
    assert not [path for method, path in proxy.requests if method == "HEAD"]


def _files(table: DeltaTable, numbers: list[int]) -> list[str]:
    return [uri for n in numbers for uri in table.file_uris(file_pruning_predicate=f"id = {n}")]


def test_a_scan_of_any_size_holds_few_files_at_a_time(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max(pa.table(table.get_add_actions())["size_bytes"].to_pylist())
    monkeypatch.setattr(roots, "_GROUP_BYTES", size * 2)
    groups = list(require_handle(table).root.groups(require_handle(table).source.adds()))
    assert sum(map(len, groups)) == 4
    assert len(groups) > 1
    assert all(sum(add.size for add in group) <= size * 2 for group in groups)
    found = pa.RecordBatchReader.from_stream(table.scan(predicate="id <> 1")).read_all()
    assert sorted(found["id"].to_pylist()) == [0, 2, 3]


def test_what_is_larger_than_the_limit_is_refused_before_anything_is_fetched(
    catalog_uri: str, watched: Place, table: DeltaTable, proxy: Proxy
) -> None:
    size = max(pa.table(table.get_add_actions())["size_bytes"].to_pylist())
    config = Config(
        remote={"fetch_limit_bytes": size}, storage={watched.base: watched.options}, publish={"mode": "off"}
    )
    with Catalog(catalog_uri, config=config) as catalog:
        small = catalog.table("t")
        before = watched.files()
        proxy.requests.clear()
        for operation in (
            lambda: small.delete("id >= 0"),
            lambda: small.update({"part": "'c'"}),
            lambda: (
                small.merge(ids(2), "t.id = s.id", source_alias="s", target_alias="t")
                .when_matched_update_all()
                .execute()
            ),
        ):
            with pytest.raises(FetchLimitError, match=r"remote\.fetch_limit_bytes") as caught:
                operation()
            assert "Spark" in (caught.value.suggestion or "")
        assert (opened(proxy), watched.files(), small.version()) == (set(), before, 3)
        # reads go on in pieces, and a candidate that fits is rewritten
        assert ids_of(small) == [0, 1, 2, 3]
        small.delete("id = 3")
        assert ids_of(small) == [0, 1, 2]


@pytest.mark.parametrize("builder", [QueryBuilder, deltalake.QueryBuilder], ids=["ours", "stock"])
def test_queries_read_the_published_log_and_else_fetch_what_they_need(
    builder: type[QueryBuilder], catalog_uri: str, bucket: Place
) -> None:
    uri = f"{catalog_uri}?table=t&location={bucket.at('t')}"
    write_deltalake(uri, ids(1, 2), storage_options=bucket.options)
    deltalakedb.register().close()  # stock's takes SQL-backed tables from then on

    def asked(table: DeltaTable) -> list[int]:
        made = builder().register("t", table)
        answer = made.execute("SELECT sum(id) AS n FROM t WHERE id > 1")
        found: list[int] = pa.RecordBatchReader.from_stream(answer).read_all()["n"].to_pylist()
        return found

    settings = {"remote": {"fetch_limit_bytes": 1}, "storage": {bucket.base: bucket.options}}
    with use_config(Config(**settings)):
        assert asked(DeltaTable(uri)) == [2]
    with use_config(Config(**settings, publish={"mode": "off"})):
        write_deltalake(uri, ids(3), mode="append")
        with pytest.raises(FetchLimitError):
            asked(DeltaTable(uri))
    # what is not published yet is fetched, and so is a table whose log is gone
    table = DeltaTable(uri, storage_options=bucket.options)
    assert asked(table) == [5]
    bucket.client.delete_object(Bucket=bucket.base.removeprefix("s3://"), Key=f"t/_delta_log/{0:020}.json")
    older = DeltaTable(uri, version=0, storage_options=bucket.options)
    assert asked(older) == [2]


def test_the_change_feed_is_read_from_the_bucket(catalog_uri: str, place: Place) -> None:
    uri = f"{catalog_uri}?table=t&location={place.at('t')}"
    feed: dict[str, str | None] = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(uri, ids(1, 2), configuration=feed, storage_options=place.options)
    table = DeltaTable(uri, storage_options=place.options)
    table.update({"part": "'z'"}, predicate="id = 2")
    table.delete("id = 1")
    rows = pa.RecordBatchReader.from_stream(table.load_cdf(columns=["id", "_change_type"])).read_all()
    assert sorted((r["_change_type"], r["id"]) for r in rows.to_pylist()) == [
        ("delete", 1),
        ("insert", 1),
        ("insert", 2),
        ("update_postimage", 2),
        ("update_preimage", 2),
    ]


def test_a_folder_of_parquet_files_becomes_a_table_where_it_is(catalog_uri: str, place: Place) -> None:
    store = open_store(place.at("t"), place.options)
    for part in "ab":
        content = io.BytesIO()
        pq.write_table(ids(1, 2).drop_columns(["part"]), content)
        store.put(f"part={part}/data.parquet", content.getvalue())
    before = place.files("t")
    uri = f"{catalog_uri}?table=t&location={place.at('t')}"
    by = deltalake.Schema.from_arrow(pa.schema([("part", pa.string())]))
    convert_to_deltalake(uri, partition_by=by, partition_strategy="hive", storage_options=place.options)
    table = DeltaTable(uri, storage_options=place.options)
    assert ids_of(table) == [1, 1, 2, 2]
    assert place.files("t") - before == {f"_delta_log/{0:020}.json"}


def test_a_data_file_that_is_gone_is_a_typed_error(table: DeltaTable, bucket: Place) -> None:
    key = table.file_uris(file_pruning_predicate="id = 2")[0].removeprefix(f"{bucket.base}/")
    bucket.client.delete_object(Bucket=bucket.base.removeprefix("s3://"), Key=key)
    for read in (
        lambda: table.to_pyarrow_table(),
        lambda: pa.RecordBatchReader.from_stream(table.scan()).read_all(),
        lambda: table.delete("id >= 0"),
    ):
        with pytest.raises(StorageMissingError, match=re.escape(key.rpartition("/")[2])):
            read()
    assert ids_of_files(table, [0, 1, 3]) == [0, 1, 3]


def ids_of_files(table: DeltaTable, numbers: list[int]) -> list[int]:
    found = table.to_pyarrow_table(filters=[("id", "in", numbers)])
    return sorted(found["id"].to_pylist())


@pytest.mark.golden
def test_a_rewrite_of_files_with_deletion_vectors_is_what_it_is_on_local_disk(
    catalog_uri: str, bucket: Place, golden: Path, tmp_path: Path
) -> None:
    folder = golden / "tables" / "delta" / "dv-partitioned-with-checkpoint"
    shutil.copytree(folder, tmp_path / "here")
    bucket.copy(folder, "there")
    made = []
    for name, location, options in (
        ("here", str(tmp_path / "here"), None),
        ("there", bucket.at("there"), bucket.options),
    ):
        import_table(location, f"{catalog_uri}?table={name}", storage_options=options)
        table = DeltaTable(f"{catalog_uri}?table={name}", storage_options=options)
        table.delete("col1 % 3 = 0")
        removed = list(open_log(f"{catalog_uri}?table={name}").actions(table.version()))
        vectors = {a.path: a.deletion_vector for a in removed if isinstance(a, Remove)}
        made.append((_sorted(pa.RecordBatchReader.from_stream(table.scan()).read_all()), vectors))
    assert made[0] == made[1]
    assert any(vector is not None for vector in made[0][1].values())


@pytest.mark.golden
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables_read_the_same_from_a_bucket(
    name: str, catalog_uri: str, bucket: Place, golden: Path
) -> None:
    folder = golden / "tables" / "delta" / name
    bucket.copy(folder, "t")
    import_table(str(folder), f"{catalog_uri}?table=here")
    import_table(bucket.at("t"), f"{catalog_uri}?table=there", storage_options=bucket.options)
    here = DeltaTable(f"{catalog_uri}?table=here")
    there = DeltaTable(f"{catalog_uri}?table=there", storage_options=bucket.options)
    for version in {here.version(), max(0, here.version() - 1)}:
        here.load_as_version(version)
        there.load_as_version(version)
        expected = _sorted(here.to_pyarrow_table())
        assert _sorted(there.to_pyarrow_table()) == expected
        assert _sorted(pa.RecordBatchReader.from_stream(there.scan()).read_all()) == expected
        assert there.to_pyarrow_dataset().count_rows() == len(expected)


def _sorted(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_a_table_travels_in_a_pickle_with_its_options(table: DeltaTable, watched: Place) -> None:
    copy = pickle.loads(pickle.dumps(table))
    assert (copy, ids_of(copy)) == (table, [0, 1, 2, 3])
    data = pickle.loads(pickle.dumps(table.to_pyarrow_dataset()))
    assert data.count_rows() == 4
    assert watched.options is not None
    assert watched.options["AWS_SECRET_ACCESS_KEY"] not in f"{table!r}{require_handle(table).root!r}"


def test_one_table_serves_many_threads(table: DeltaTable) -> None:
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: table.to_pyarrow_table(filters=[("id", "=", n % 4)]), range(12)))
    assert [t["id"].to_pylist() for t in found] == [[n % 4] for n in range(12)]
