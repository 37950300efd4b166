"""Tables of the catalog as delta-spark reads their logs: the same rows at every version."""

from __future__ import annotations

import datetime as dt
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from deltalakedb.delta_log import checkpoint_writer
from deltalakedb.delta_log.names import commit_path
from support.actions import add, info, metadata, protocol
from support.commits import Bench
from support.lake import every_type, ids
from support.mirrors import append
from support.s3 import S3Table
from support.spark import read, read_moments, read_versions, rows

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog
    from deltalakedb.protocol.actions import Add

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


def ids_at(spark: Any, root: Path, **options: Any) -> list[int]:
    return sorted(read(spark, root, **options)["id"].to_pylist())


def same_at_every_version(spark: Any, catalog: Catalog, root: Path, *, since: int = 0) -> None:
    newest = catalog.table("t").version()
    theirs = read_versions(spark, root, range(since, newest + 1))
    for version in range(since, newest + 1):
        ours = rows(catalog.table("t", version=version).to_pyarrow_table())
        assert rows(theirs[version]) == ours, f"version {version}"
    assert rows(read(spark, root)) == ours


def forget_before(root: Path, version: int) -> None:
    """Without older commits nothing but the checkpoint can be read."""
    for older in range(version + 1):
        (root / commit_path(older)).unlink()


def test_rows_of_every_type_are_the_same_at_every_version(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "lake" / "t"
    catalog.write("t", every_type(0, 8), location=root, partition_by=["part", "day"])
    catalog.write("t", every_type(8, 8), mode="append")
    catalog.table("t").delete("id in (1, 9)")
    catalog.table("t").update(predicate="id = 3", updates={"text": "'changed'", "money": "money + 1"})
    source = every_type(14, 6)
    (
        catalog.table("t")
        .merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    catalog.write("t", every_type(20, 3), mode="overwrite", predicate="id >= 20")
    catalog.mirror.checkpoint("t")
    catalog.write("t", every_type(30, 2), mode="append")
    same_at_every_version(spark, catalog, root)
    forget_before(root, 4)
    same_at_every_version(spark, catalog, root, since=5)


@pytest.mark.parametrize("properties", ["json", "struct", "struct only"])
def test_a_checkpoint_with_typed_statistics_is_read(
    spark: Any, catalog: Catalog, tmp_path: Path, properties: str
) -> None:
    root = tmp_path / "lake" / "t"
    configuration = {
        "delta.checkpoint.writeStatsAsStruct": "false" if properties == "json" else "true",
        "delta.checkpoint.writeStatsAsJson": "false" if properties == "struct only" else "true",
    }
    options: dict[str, Any] = {"partition_by": ["part", "day"], "configuration": configuration}
    catalog.write("t", every_type(0, 8), location=root, **options)
    catalog.write("t", every_type(8, 8), mode="append")
    catalog.table("t").delete("id = 2")
    catalog.mirror.checkpoint("t")
    forget_before(root, 1)
    same_at_every_version(spark, catalog, root, since=2)
    found = spark.read.format("delta").load(str(root)).where("id = 9 and day = date'2024-01-02'")
    assert [r["id"] for r in found.select("id").collect()] == [9], "skipping by those statistics"


def test_a_v2_checkpoint_is_read(
    spark: Any, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "GROUP_ROWS", 1)
    monkeypatch.setattr(checkpoint_writer, "SIDECAR_ROWS", 1)
    root = tmp_path / "lake" / "v2"
    table = S3Table(catalog._database, "t", str(root), {}).create("v2Checkpoint")
    table.append(1, 2, 3)
    table.delete(2)
    catalog.mirror.run()
    assert len(catalog.mirror.checkpoint("t", kind="v2").paths) == 3, "a sidecar for each file"
    table.append(4)
    catalog.mirror.run()
    expected = [[], [1], [1, 2], [1, 2, 3], [1, 3], [1, 3, 4]]
    found = read_versions(spark, root, range(len(expected)))
    assert [sorted(found[version]["id"].to_pylist()) for version in range(len(expected))] == expected
    forget_before(root, 3)
    assert ids_at(spark, root) == [1, 3, 4]


def history_of(catalog: Catalog, name: str) -> dict[int, int]:
    found = catalog.query(
        "SELECT c.version, c.timestamp FROM dl_commits c JOIN dl_tables t ON t.table_id = c.table_id"
        " WHERE t.name = ?",
        (name,),
    )
    return {row["version"]: row["timestamp"] for row in found.to_pylist()}


def travels_the_same(spark: Any, root: Path, history: dict[int, int]) -> None:
    """Each commit's own moment leads to its version, and Spark tells the same moments."""
    moments = {
        version: dt.datetime.fromtimestamp(moment / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        for version, moment in history.items()
    }
    found = read_moments(spark, root, moments)
    for version in history:
        assert sorted(found[version]["id"].to_pylist()) == list(range(version + 1)), f"version {version}"
    told = spark.sql(f"DESCRIBE HISTORY delta.`{root}`").select("version", "timestamp").toArrow()
    times = dict(zip(told["version"].to_pylist(), told["timestamp"].to_pylist(), strict=True))
    assert {v: round(t.timestamp() * 1000) for v, t in times.items()} == history


def test_times_of_files_travel_the_same(spark: Any, catalog: Catalog, root: Path) -> None:
    append(catalog, 1, 2, 3)
    travels_the_same(spark, root, history_of(catalog, "t"))


def test_times_in_commits_travel_the_same_whatever_the_files_say(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "lake" / "ict"
    root.mkdir(parents=True)

    def file(number: int) -> Add:
        at = root / f"{number}.parquet"
        pq.write_table(ids(number), at)
        return add(at.name, partition_values={}, size=at.stat().st_size, stats='{"numRecords":1}')

    fields = [
        {"name": n, "type": t, "nullable": True, "metadata": {}}
        for n, t in (("id", "long"), ("part", "string"))
    ]
    meta = metadata(
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        partition_columns=(),
        configuration={"delta.enableInCommitTimestamps": "true"},
    )
    modern = protocol(min_reader_version=1, min_writer_version=7, writer_features=("inCommitTimestamp",))
    bench = Bench.make(catalog._database, "ict", str(root), protocol_=modern, metadata_=meta, adds=[file(0)])
    for number in (1, 2, 3):
        bench.commit(info("WRITE"), file(number))
    assert catalog.mirror.publish("ict").published == 4
    # an object store has its own times: only those in the commits are right
    for version in range(4):
        os.utime(root / commit_path(version), (1_900_000_000 - version,) * 2)
    travels_the_same(spark, root, history_of(catalog, "ict"))


def test_spark_goes_on_where_the_catalog_wrote_and_the_catalog_adopts_it(
    spark: Any, catalog: Catalog, root: Path
) -> None:
    append(catalog, 1)
    catalog.mirror.checkpoint("t")
    catalog.mirror.set_policy("t", "adopt")
    spark.sql(f"INSERT INTO delta.`{root}` VALUES (7, 'a')")
    spark.sql(f"DELETE FROM delta.`{root}` WHERE id = 0")
    catalog.mirror.recover("t")
    append(catalog, 8)
    assert ids_at(spark, root) == [1, 7, 8]
    same_at_every_version(spark, catalog, root)


def test_delta_spark_accepts_the_checksums_beside_checkpoints(
    spark: Any, catalog: Catalog, root: Path
) -> None:
    append(catalog, 1, 2)
    catalog.mirror.checkpoint("t")
    checksum = json.loads((root / "_delta_log" / f"{2:020}.crc").read_text())
    assert checksum["numFiles"] == 3
    same_at_every_version(spark, catalog, root)
    spark.sql(f"INSERT INTO delta.`{root}` VALUES (7, 'a')")
    written = json.loads((root / "_delta_log" / f"{3:020}.crc").read_text())
    assert written["numFiles"] == 4, "Spark counts on from ours"
