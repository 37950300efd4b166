"""Every version reads the same from SQL, from stock deltalake and from delta-spark, whoever wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import UnsupportedFeatureError
from deltalakedb.spark import merge, optimize, restore, update, write
from support.golden import copy_of, go_on, golden_params
from support.lake import ids
from support.spark import read_versions, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.golden import GoldenTable

#: they differ in what a reader must know: types, paths, mapping, vectors, checkpoints, schema changes
CHOSEN = {
    "basic-with-inserts-merge",
    "data-reader-escaped-chars",
    "data-reader-partition-values",
    "data-reader-primitives",
    "dv-partitioned-with-checkpoint",
    "dv-with-columnmapping",
    "multi-part-checkpoint",
    "table-with-columnmapping-mode-name",
    "time-travel-schema-changes-b",
    "v2-checkpoint-parquet",
}
#: the newest versions of a long history are enough
NEWEST = 1


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{tmp_path}/catalog.db") as catalog:
        yield catalog


def same_for_all(spark: Any, catalog: Catalog, name: str, root: Path, *, since: int = 0) -> list[int]:
    """Compare the readers at every version; the number of rows of each."""
    counts = []
    versions = range(since, catalog.describe(name).head.version + 1)
    theirs = read_versions(spark, root, versions)
    for version in versions:
        ours = rows(pa.table(catalog.table(name, version=version).scan().read_all()))
        assert rows(theirs[version]) == ours, f"delta-spark at version {version}"
        stock = deltalake.DeltaTable(root, version=version)
        assert rows(pa.table(stock.scan().read_all())) == ours, f"stock at version {version}"
        counts.append(ours.total())
    return counts


@pytest.mark.parametrize("table", [p for p in golden_params() if p.id in CHOSEN or p.id == "missing"])
def test_a_golden_table_that_goes_on_reads_the_same(
    spark: Any, lake: Catalog, table: GoldenTable, tmp_path: Path
) -> None:
    root = copy_of(table, tmp_path)
    lake.register("t", root)
    before = lake.describe("t").head.version
    done, refused = go_on(lake, "t")
    assert all(isinstance(error, UnsupportedFeatureError) for error in refused)
    first = max(lake.log("t").versions()[0], before - NEWEST)
    counts = same_for_all(spark, lake, "t", root, since=first)
    if done:
        head = counts[before - first]
        assert counts[before - first + 1 :] == [head + 1, 0]


MADE_BY_SPARK = {
    "vectors and renamed columns": {
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "name",
    },
    "columns by id, v2 checkpoints": {
        "delta.columnMapping.mode": "id",
        "delta.checkpointPolicy": "v2",
        "delta.enableDeletionVectors": "false",
    },
    "times in commits, change feed": {
        "delta.enableInCommitTimestamps": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "true",
    },
}


@pytest.mark.parametrize("properties", MADE_BY_SPARK.values(), ids=MADE_BY_SPARK.keys())
def test_a_table_of_spark_goes_on_here_and_spark_reads_it(
    spark: Any, lake: Catalog, tmp_path: Path, properties: dict[str, str]
) -> None:
    root = tmp_path / "t"
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(
        f"CREATE TABLE delta.`{root}` (id BIGINT, part STRING) USING delta PARTITIONED BY (part)"
        f" TBLPROPERTIES ({listed}, 'delta.checkpointInterval' = '3')"
    )
    spark.sql(f"INSERT INTO delta.`{root}` SELECT id, IF(id % 2 = 0, 'a b', 'c/d') FROM range(20)")
    spark.sql(f"DELETE FROM delta.`{root}` WHERE id % 5 = 0")
    if properties.get("delta.columnMapping.mode") == "name":
        spark.sql(f"ALTER TABLE delta.`{root}` RENAME COLUMN id TO number")
        spark.sql(f"ALTER TABLE delta.`{root}` RENAME COLUMN number TO id")
    spark.sql(f"UPDATE delta.`{root}` SET id = id + 100 WHERE id < 4")
    lake.register("t", root)
    before = lake.describe("t").head.version

    lake.write("t", ids(200, 201, part="e%f"), mode="append")
    (
        lake.table("t")
        .merge(ids(200, 300, part="e%f"), "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_delete()
        .when_not_matched_insert_all()
        .execute()
    )
    lake.table("t").delete("id = 101")
    lake.mirror.checkpoint("t")
    assert lake.describe("t").head.version == before + 3
    since = 0 if "delta.columnMapping.mode" in properties else before
    assert same_for_all(spark, lake, "t", root, since=since)[-4:] == [16, 18, 18, 17]

    # and Spark on top of that, adopted again
    lake.mirror.set_policy("t", "adopt")
    spark.sql(f"DELETE FROM delta.`{root}` WHERE id = 300")
    lake.mirror.recover("t")
    assert same_for_all(spark, lake, "t", root, since=before + 4) == [16]


def test_a_table_with_row_ids_takes_appends_and_keeps_its_rows_from_being_rewritten(
    spark: Any, lake: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    spark.sql(
        f"CREATE TABLE delta.`{root}` (id BIGINT, part STRING) USING delta"
        " TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    )
    spark.sql(f"INSERT INTO delta.`{root}` VALUES (1, 'a'), (2, 'b')")
    lake.register("t", root)
    lake.write("t", ids(3, 4), mode="append")
    with pytest.raises(UnsupportedFeatureError, match="row tracking"):
        lake.table("t").delete("id = 1")
    same_for_all(spark, lake, "t", root, since=2)
    found = spark.read.format("delta").load(str(root)).select("id", "_metadata.row_id")
    assert sorted(row["row_id"] for row in found.collect()) == [0, 1, 2, 3], "ids go on where Spark ended"


def test_rows_of_a_table_that_was_made_here_keep_their_ids_where_spark_changes_them(
    spark: Any, lake: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    asked = {"delta.enableRowTracking": "true", "delta.checkpointPolicy": "v2"}
    lake.create_table("t", ids(0).schema, location=root, configuration=asked)
    lake.write("t", ids(1, 2, 3), mode="append")
    assert lake.mirror.checkpoint("t").kind == "v2"
    spark.sql(f"UPDATE delta.`{root}` SET id = 20 WHERE id = 2")
    assert lake.mirror.recover("t").versions == (2,)
    lake.write("t", ids(4), mode="append")
    assert same_for_all(spark, lake, "t", root) == [0, 3, 3, 4]
    found = spark.read.format("delta").load(str(root)).select("id", "_metadata.row_id").collect()
    known = {row["id"]: row["row_id"] for row in found}
    assert {known[1], known[20], known[3]} == {0, 1, 2}
    assert known[20] == 1, "the second row is still the second"
    assert known[4] > 2


def test_rows_of_a_table_that_spark_made_here_have_an_id_each(
    spark: Any, lake: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    uri = f"{lake.table_uri('t')}&location={root}"
    asked = {"delta.enableRowTracking": "true", "delta.enableDeletionVectors": "true"}
    write(spark.range(0, 10, 1, 1), uri, configuration=asked)

    def known() -> dict[int, int]:
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        found = spark.read.format("delta").load(str(root)).select("id", "_metadata.row_id").collect()
        return {row["id"]: row["row_id"] for row in found}

    before = known()
    update(spark, uri, {"id": "id + 100"}, "id = 3")
    write(spark.range(10, 12), uri, mode="append")
    merging = merge(spark, uri, spark.range(11, 13), "target.id = source.id")
    merging.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    optimize(spark, uri)
    after = known()
    assert [after[n] for n in (*range(3), 103, *range(4, 10))] == [before[n] for n in range(10)]
    assert len(set(after.values())) == len(after) == 13
    restore(spark, uri, version=0)
    write(spark.range(50, 52), uri, mode="append")
    again = known()
    assert {n: again[n] for n in range(10)} == before
    assert min(again[50], again[51]) > max(after.values())
