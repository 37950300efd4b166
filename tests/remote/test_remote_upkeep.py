"""What keeps a table in shape does the same in a bucket as stock does on a plain table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.schema import Field, PrimitiveType, Schema

from deltalakedb import Catalog, DeltaTable, convert_to_deltalake, open_log, write_deltalake
from deltalakedb.exceptions import DeltaError
from deltalakedb.settings import Config
from deltalakedb.table.maintenance import live_files as orphans

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.places import Place

only_sqlite = pytest.mark.parametrize("engine_name", ["sqlite"])


def sales(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "part": ["xy" if i % 2 else "z" for i in ids]})


def rows(table: deltalake.DeltaTable) -> list[dict[str, Any]]:
    return list(table.to_pyarrow_table().sort_by("id").to_pylist())


def feed(table: deltalake.DeltaTable) -> list[tuple[Any, ...]]:
    found = pa.table(table.load_cdf(starting_version=0))
    names = ("id", "_change_type", "_commit_version")
    return sorted(zip(*(found.column(n).to_pylist() for n in names), strict=True))


STEPS: list[tuple[str, Callable[[Any], Any]]] = [
    ("compact", lambda t: t.optimize.compact()),
    ("z-order", lambda t: t.optimize.z_order(["id"])),
    ("delete", lambda t: t.delete("id = 3")),
    ("update", lambda t: t.update({"id": "id + 100"}, predicate="part = 'z'")),
    (
        "merge",
        lambda t: (
            t.merge(sales(1, 50), "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_delete()
            .when_not_matched_insert_all()
            .execute()
        ),
    ),
    ("constraint", lambda t: t.alter.add_constraint({"positive": "id > 0"})),
    ("drop constraint", lambda t: t.alter.drop_constraint("positive")),
    ("column", lambda t: t.alter.add_columns([Field("new", PrimitiveType("integer"))])),
    ("comment", lambda t: t.alter.set_column_metadata("id", {"comment": "a number"})),
    ("name", lambda t: t.alter.set_table_name("sales")),
    ("property", lambda t: t.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})),
    ("restore", lambda t: t.restore(2)),
    ("repair", lambda t: t.repair()),
    ("checkpoint", lambda t: t.create_checkpoint()),
    ("compact logs", lambda t: t.compact_logs(1, 4)),
    ("clean", lambda t: t.cleanup_metadata()),
    (
        "vacuum",
        lambda t: len(t.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)) > 0,
    ),
]


@only_sqlite
def test_upkeep_does_what_stock_does_and_leaves_nothing_behind(
    catalog_uri: str, bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, plain = f"{catalog_uri}?table=t&location={bucket.at('t')}", str(tmp_path / "plain")
    settings = {"delta.enableChangeDataFeed": "true"}
    for numbers in ((1, 2, 3), (4, 5), (6,)):
        write_deltalake(
            uri,
            sales(*numbers),
            mode="append",
            partition_by=["part"],
            configuration=settings,
            storage_options=bucket.options,
        )
        deltalake.write_deltalake(
            plain, sales(*numbers), mode="append", partition_by=["part"], configuration=settings
        )
    ours, twin = DeltaTable(uri, storage_options=bucket.options), deltalake.DeltaTable(plain)
    for name, step in STEPS:
        if name == "restore":
            assert feed(ours) == feed(twin)
        mine, theirs = step(ours), step(twin)
        assert type(mine) is type(theirs), name
        if isinstance(theirs, dict):
            assert mine.keys() == theirs.keys(), name
        if isinstance(theirs, bool):
            assert mine == theirs, name
        twin.update_incremental()
        assert rows(ours) == rows(twin), name
        assert ours.history(1)[0]["operation"] == twin.history(1)[0]["operation"], name
        assert not [f for f in bucket.files("t") if "_deltasql" in f or f.endswith(".tmp")], name
    log = open_log(uri)
    told = b"".join(log.commit_bytes(version) for version in log.versions())
    assert b"_deltasql" not in told, "nobody is to know of scratch folders"
    assert b"deltasql-" not in told
    stock = deltalake.DeltaTable(bucket.at("t"), storage_options=bucket.options)
    assert (stock.version(), rows(stock)) == (ours.version(), rows(ours))
    data = {f for f in bucket.files("t") if f.endswith(".parquet") and not f.startswith("_")}
    assert data == {u.removeprefix(f"{bucket.at('t')}/") for u in ours.file_uris()}

    stray = f"{bucket.at('t')}/part=z/stray.parquet"
    assert bucket.client is not None
    name, _, key = stray.removeprefix("s3://").partition("/")
    bucket.client.put_object(Bucket=name, Key=key, Body=b"not ours")
    look = {"retention_hours": 0, "dry_run": True, "enforce_retention_duration": False, "full": True}
    assert "part=z/stray.parquet" not in ours.vacuum(**look), "too young: somebody may be about to commit it"
    monkeypatch.setattr(orphans, "REMOTE_GRACE_MS", 0)
    assert "part=z/stray.parquet" in ours.vacuum(**look)
    with pytest.raises(DeltaError):
        ours.vacuum(retention_hours=0, dry_run=False)
    ours.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not [f for f in bucket.files("t") if "stray" in f]
    ours.generate()
    assert any("_symlink_format_manifest" in f for f in bucket.files("t"))
    assert bucket.uploads() == []


@only_sqlite
def test_a_folder_of_parquet_in_a_bucket_becomes_a_table(
    catalog_uri: str, bucket: Place, tmp_path: Path
) -> None:
    assert bucket.client is not None
    assert bucket.options is not None
    name, _, prefix = bucket.at("c").removeprefix("s3://").partition("/")
    for part, number in (("a", 1), ("b c", 2)):
        pq.write_table(pa.table({"id": [number]}), tmp_path / "one.parquet")
        key = f"{prefix}/part={part}/{number}.parquet"
        bucket.client.put_object(Bucket=name, Key=key, Body=(tmp_path / "one.parquet").read_bytes())
    uri = f"{catalog_uri}?table=c&location={bucket.at('c')}"
    before = bucket.files("c")
    convert_to_deltalake(
        uri,
        partition_by=Schema([Field("part", PrimitiveType("string"))]),
        partition_strategy="hive",
        storage_options=dict(bucket.options),
    )
    table = DeltaTable(uri, storage_options=bucket.options)
    assert b"_deltasql" not in open_log(uri).commit_bytes(0)
    assert rows(table) == [{"id": 1, "part": "a"}, {"id": 2, "part": "b c"}]
    assert rows(deltalake.DeltaTable(bucket.at("c"), storage_options=bucket.options)) == rows(table)
    assert bucket.files("c") - before == {"_delta_log/00000000000000000000.json"}


@only_sqlite
def test_what_died_in_a_bucket_is_collected(
    catalog_uri: str, bucket: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{catalog_uri}?table=t&location={bucket.at('t')}"
    write_deltalake(uri, sales(1, 2), storage_options=bucket.options)
    assert bucket.client is not None
    name, _, prefix = bucket.at("t").removeprefix("s3://").partition("/")
    bucket.client.put_object(Bucket=name, Key=f"{prefix}/lost.parquet", Body=b"x")
    before = bucket.files("t")
    monkeypatch.setattr(orphans, "REMOTE_GRACE_MS", 0)
    with Catalog(catalog_uri, config=Config(storage={f"{bucket.base}/": bucket.options})) as catalog:
        with catalog.log("t").database.write() as session:
            session.run("UPDATE dl_tables SET created_at = created_at - 1000")  # stores tell whole seconds
        (found,) = catalog.gc("t", older_than_hours=0, dry_run=True)
        assert found.files == ("lost.parquet",)
        assert bucket.files("t") == before
        catalog.gc("t", older_than_hours=0)
    assert bucket.files("t") == before - {"lost.parquet"}
