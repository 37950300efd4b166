"""Every operation does the same on local disk and in a bucket, and what stock does on a plain table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties

from deltalakedb import Catalog, DeltaTable, QueryBuilder, open_log, write_deltalake
from deltalakedb.delta_log import FileTxnLogReader
from deltalakedb.protocol.actions import Add, Cdc, decode_commit
from deltalakedb.protocol.paths import decode_path
from support.catalogs import ENGINES
from support.lake import every_type, ids, ids_of
from support.places import Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.stores import Kind, StoreServers

only_sqlite = pytest.mark.parametrize("engine_name", ["sqlite"])
Step = tuple[str, "Callable[..., Any]"]


def _source() -> pa.Table:
    changed = every_type(4, 4)
    return pa.concat_tables([changed, every_type(40, 1)])


def _merge(table: deltalake.DeltaTable) -> Any:
    merger = table.merge(_source(), "t.id = s.id", source_alias="s", target_alias="t")
    return merger.when_matched_update_all().when_not_matched_insert_all().execute()


STEPS: list[Step] = [
    ("append", lambda t, write: write(t, every_type(6, 9), mode="append")),
    (
        "append by delta-rs",
        lambda t, write: write(
            t,
            every_type(15, 2),
            mode="append",
            commit_properties=CommitProperties(custom_metadata={"who": "me"}),
        ),
    ),
    ("delete", lambda t, _: t.delete("part = 'x y' AND id > 3")),
    ("delete a whole file", lambda t, _: t.delete("part = 'a/b'")),
    ("update", lambda t, _: t.update({"text": "'new'"}, predicate="id % 4 = 1")),
    ("merge", lambda t, _: _merge(t)),
    (
        "overwrite by predicate",
        lambda t, write: write(t, every_type(1, 1), mode="overwrite", predicate="part = 'y'"),
    ),
    (
        "a wider schema",
        lambda t, write: write(
            t,
            every_type(60, 2).append_column("new", pa.array([1, None], pa.int64())),
            mode="append",
            schema_mode="merge",
        ),
    ),
    ("delete nothing", lambda t, _: t.delete("id = 12345")),
    ("overwrite", lambda t, write: write(t, every_type(80, 3), mode="overwrite", schema_mode="overwrite")),
]


def rows(table: deltalake.DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pyarrow_table().sort_by("id").to_pylist()
    return found


def scanned(table: DeltaTable, **options: Any) -> list[dict[str, Any]]:
    found = pa.RecordBatchReader.from_stream(table.scan(**options)).read_all()
    return list(found.sort_by("id").to_pylist())


def named_files(uri: str) -> set[str]:
    """The files that any version of a table names, and its log's own."""
    log = open_log(uri)
    named = set()
    for version in log.versions():
        named.add(f"_delta_log/{version:020}.json")
        actions = decode_commit(log.commit_bytes(version), source="a version")
        named |= {decode_path(a.path) for a in actions if isinstance(a, Add | Cdc)}
    return named


def address(catalog_uri: str, name: str, place: Place) -> str:
    return f"{catalog_uri}?table={name}&location={place.at(name)}"


# the other engines run this body in the bucket only: local disk is their own suite's
@pytest.mark.parametrize(
    ("engine_name", "place"),
    [("sqlite", "folder"), *((engine, "bucket") for engine in ENGINES)],
    indirect=["place"],
)
def test_every_operation_does_what_stock_does_on_a_plain_table(
    catalog_uri: str, place: Place, tmp_path: Path
) -> None:
    operate_as_stock(catalog_uri, place, tmp_path)


@only_sqlite
@pytest.mark.parametrize("kind", ["azure", "gcs"])
def test_other_stores_do_the_same(
    kind: Kind, catalog_uri: str, tmp_path: Path, store_servers: StoreServers
) -> None:
    found = store_servers.bucket(kind)
    operate_as_stock(catalog_uri, Place(found.url, found.options()), tmp_path)


def operate_as_stock(catalog_uri: str, place: Place, tmp_path: Path) -> None:
    """Every step on a table at a place and on a plain twin; then every version, by stock too."""
    options = place.options
    uri, plain = address(catalog_uri, "t", place), str(tmp_path / "plain")
    settings: dict[str, str | None] = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(uri, every_type(), partition_by=["part"], configuration=settings, storage_options=options)
    deltalake.write_deltalake(plain, every_type(), partition_by=["part"], configuration=settings)
    ours, twin = DeltaTable(uri, storage_options=options), deltalake.DeltaTable(plain)
    truth = [rows(twin)]
    for name, step in STEPS:
        mine, theirs = step(ours, write_deltalake), step(twin, deltalake.write_deltalake)
        if isinstance(theirs, dict):
            assert mine.keys() == theirs.keys(), name
            assert {k: v for k, v in mine.items() if k.endswith("rows")} == {
                k: v for k, v in theirs.items() if k.endswith("rows")
            }, name
        twin.update_incremental()
        assert ours.version() == twin.version(), name
        assert rows(ours) == rows(twin), name
        if twin.version() == len(truth):
            truth.append(rows(twin))
    # both ways of reading, whole and in part
    assert scanned(ours) == truth[-1]
    assert scanned(ours, columns=["id", "part"], predicate="id > 80") == [
        {"id": r["id"], "part": r["part"]} for r in truth[-1] if r["id"] > 80
    ]
    # stock reads every version from the log that was published
    stock = deltalake.DeltaTable(place.at("t"), storage_options=options)
    for version, expected in enumerate(truth):
        ours.load_as_version(version)
        stock.load_as_version(version)
        assert rows(ours) == rows(stock) == expected, version
        assert set(ours.file_uris()) == set(stock.file_uris()), version
    # and nothing else lies there: no scratch log, no file that no version names
    assert place.files("t") == named_files(uri)
    assert place.uploads() == []


@only_sqlite
def test_a_table_is_created_checkpointed_and_read_in_every_way(catalog_uri: str, place: Place) -> None:
    with Catalog(catalog_uri) as catalog:
        made = catalog.create_table(
            "t", ids(1).schema, location=place.at("t"), partition_by=["part"], storage_options=place.options
        )
        assert (made.version(), ids_of(made)) == (0, [])
        for number in range(1, 4):
            part = "ab"[number % 2]
            catalog.write(
                "t",
                ids(number, part=part),
                mode="append",
                storage_options=place.options,
                location=place.at("t"),
            )
        table = catalog.table("t", storage_options=place.options)
    assert sorted(table.to_pandas()["id"]) == [1, 2, 3]
    assert ids_of(table) == [1, 2, 3]
    assert table.to_pyarrow_table(filters=[("part", "=", "b")])["id"].to_pylist() in ([1, 3], [3, 1])
    assert table.to_pyarrow_table(filters="id > 2")["id"].to_pylist() == [3]
    assert table.to_pyarrow_dataset(file_pruning_predicate=[("part", "=", "a")]).count_rows() == 1
    assert sorted(p["part"] for p in table.partitions()) == ["a", "b"]
    answer = QueryBuilder().register("t", table).execute("SELECT sum(id) AS n FROM t")
    found = pa.RecordBatchReader.from_stream(answer).read_all()
    assert found["n"].to_pylist() == [6]
    log = FileTxnLogReader(place.at("t"), place.options)
    assert log.latest_version() == 3


@only_sqlite
def test_a_second_table_at_the_same_place_is_refused(catalog_uri: str, place: Place) -> None:
    deltalake.write_deltalake(place.at("t"), ids(1), storage_options=place.options)
    before = place.files()
    with pytest.raises(FileExistsError, match="plain Delta table"):
        write_deltalake(address(catalog_uri, "t", place), ids(2), storage_options=place.options)
    assert place.files() == before
