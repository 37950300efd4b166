"""Rows changed by Spark through the catalog are what delta-spark alone makes of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import ConflictError, InvalidArgumentError
from deltalakedb.spark import delete, merge, optimize, restore, update, vacuum
from deltalakedb.spark.scratch import SparkScratchTable
from support.lake import ids_of
from support.spark import read
from support.spark_twins import SparkTwins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VECTORS = {"delta.enableDeletionVectors": "true"}
NO_VECTORS = {"delta.enableDeletionVectors": "false"}
FEATURES = {
    "mapped": {**NO_VECTORS, "delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"},
    "everything": {
        **VECTORS,
        "delta.columnMapping.mode": "name",
        "delta.enableChangeDataFeed": "true",
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
    },
}
NEWS = "SELECT id, -id AS v, 'new' AS s, CAST(id % 3 AS INT) AS p FROM range(25, 35)"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{tmp_path}/catalog.db") as found:
        yield found


@pytest.mark.parametrize("features", FEATURES)
def test_rows_change_whatever_the_table_needs(
    spark: Any, catalog: Catalog, tmp_path: Path, features: str
) -> None:
    twins = SparkTwins.make(spark, catalog, tmp_path, "t", FEATURES[features])
    tracked = "delta.enableRowTracking" in FEATURES[features]
    ids_before = twins.row_ids() if tracked else {}
    expected = {n: (n * 2, f"text {n}", n % 3) for n in range(30)}

    assert delete(spark, twins.uri, "id < 6 AND p = 1") == {"num_affected_rows": 2}
    del expected[1], expected[4]
    told = update(spark, twins.uri, {"`v`": "v + 1", "s": "'changed'"}, "id BETWEEN 5 AND 9")
    assert told == {"num_affected_rows": 5}
    expected |= {n: (n * 2 + 1, "changed", n % 3) for n in range(5, 10)}
    assert delete(spark, twins.uri, "id > 1000") == {"num_affected_rows": 0}
    assert twins.version == 3, "nothing to do is no version"
    told = (
        merge(spark, twins.uri, spark.sql(NEWS), "target.id = source.id AND target.p < 2")
        .whenMatchedDelete("source.id = 27")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsert(values={"id": "source.id + 100", "v": "0", "p": "source.p"})
        .execute()
    )
    assert told == {
        "num_affected_rows": 10, "num_updated_rows": 2, "num_deleted_rows": 1, "num_inserted_rows": 7,
    }  # fmt: skip
    del expected[27]
    expected |= {n: (-n, "new", n % 3) for n in (25, 28)}
    expected |= {n + 100: (0, None, n % 3) for n in (26, 29, 30, 31, 32, 33, 34)}

    found = twins.same_for_all(2, 3)
    assert {r["id"]: (r["v"], r["s"], r["p"]) for r in found.to_pylist()} == expected
    assert [commit["operation"] for commit in catalog.table("t").history()[:3]] == [
        "MERGE",
        "UPDATE",
        "DELETE",
    ]
    feed = read(spark, twins.root, readChangeFeed="true", startingVersion=2).to_pylist()
    kinds = Counter((row["_commit_version"], row["_change_type"]) for row in feed)
    assert kinds == {
        (2, "delete"): 2,
        (3, "update_preimage"): 5,
        (3, "update_postimage"): 5,
        (4, "update_preimage"): 2,
        (4, "update_postimage"): 2,
        (4, "delete"): 1,
        (4, "insert"): 7,
    }
    if tracked:
        ids_now = twins.row_ids()
        stayed = {n: number for n, number in ids_before.items() if n in ids_now}
        assert {n: ids_now[n] for n in stayed} == stayed, "rows keep their ids"
        assert len(set(ids_now.values())) == len(ids_now)
    assert catalog.mirror.verify("t").ok


def test_a_merge_has_all_clauses_and_takes_columns(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    from delta.tables import DeltaTable
    from pyspark.sql import functions as f

    twins = SparkTwins.make(spark, catalog, tmp_path, "t", VECTORS)
    wider = spark.sql(f"SELECT *, 0.5D AS new FROM ({NEWS})")

    def by_columns(builder: Any) -> Any:
        return (
            builder.whenMatchedUpdate(f.col("s.id") == 26, set={"v": f.col("s.v") + 1})
            .whenMatchedDelete("s.id = 27")
            .whenNotMatchedInsertAll(f.col("s.id") < 33)
            .whenNotMatchedBySourceUpdate("t.id < 2", set={"v": f.lit(7)})
            .whenNotMatchedBySourceDelete("t.id = 3")
            .withSchemaEvolution()
            .execute()
        )

    def by_text(builder: Any) -> Any:
        # the clauses in another order than SQL has them
        return (
            builder.whenNotMatchedBySourceUpdate(set={"s": "concat(t.s, '!')"})
            .whenNotMatchedInsert(values={"id": "s.id", "p": "s.p"})
            .whenMatchedUpdateAll("s.id > 30")
            .execute()
        )

    for clauses, condition in ((by_columns, f.expr("t.id = s.id")), (by_text, "t.id = s.id")):
        ours = clauses(merge(spark, twins.uri, wider, condition, target_alias="t", source_alias="s"))
        plain = DeltaTable.forPath(spark, str(twins.plain)).alias("t")
        theirs = clauses(plain.merge(wider.alias("s"), condition))
        assert [ours] == [row.asDict() for row in theirs.collect()]
        assert ours["num_affected_rows"] > ours["num_inserted_rows"] > 0
    assert twins.check().column_names == ["id", "v", "s", "p", "new"]

    table = catalog.table("t")
    assert update(spark, table, {"v": f.col("id")}, f.col("id") > 30) == {"num_affected_rows": 4}
    assert delete(spark, table, f.col("id") > 31) == {"num_affected_rows": 3}
    assert table.version() == twins.version == 5, "the table that was given shows what was done"
    assert ids_of(table) == [n for n in range(32) if n != 3]


def test_upkeep_changes_no_row(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    twins = SparkTwins.make(spark, catalog, tmp_path, "t", VECTORS)
    delete(spark, twins.uri, "id IN (1, 2, 3)")
    left = [0, *range(4, 30)]

    told = optimize(spark, twins.uri, where="p < 2")
    assert (told["numFilesRemoved"], told["numFilesAdded"], told["totalConsideredFiles"]) == (4, 2, 4)
    told = optimize(spark, twins.uri, z_order_by=["v", "id"])
    assert (told["numFilesRemoved"], told["numFilesAdded"]) == (4, 3)
    assert told["zOrderStats"]["inputOtherFiles"]["num"] == 4
    assert ids_of(catalog.table("t")) == left
    assert not any(a.data_change for a in catalog.log("t").actions(4) if hasattr(a, "data_change"))

    told = restore(spark, twins.uri, version=2)
    assert told["num_of_files_after_restore"] == told["num_restored_files"] == 6
    assert told["num_removed_files"] == 3
    assert told["restored_files_size"] == told["table_size_after_restore"] > 0
    assert sorted(row["id"] for row in twins.same_for_all().to_pylist()) == left
    with pytest.raises(InvalidArgumentError, match="a version or to a time"):
        restore(spark, twins.uri)

    (tmp_path / "the t" / "stray.parquet").write_bytes(b"nobody knows me")
    with pytest.raises(InvalidArgumentError, match="retention"):
        vacuum(spark, twins.uri, 0)
    going = vacuum(spark, twins.uri, 0, dry_run=True, enforce_retention_duration=False)
    assert "stray.parquet" in going
    assert len(going) == 1 + 2 + 3, "and the files of two OPTIMIZEs"
    assert sorted(vacuum(spark, twins.uri, 0, enforce_retention_duration=False)) == sorted(going)
    assert ids_of(catalog.table("t")) == left


def test_only_files_that_may_match_are_shown_to_spark(
    spark: Any, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = SparkTwins.make(spark, catalog, tmp_path, "t", NO_VECTORS)
    catalog.mirror.fence("t")  # which keeps out others, not ourselves
    shown: list[int] = []
    write_log = SparkScratchTable.write_log

    def counted(self: SparkScratchTable, snapshot: Any, adds: Any) -> None:
        shown.append(len(adds))
        write_log(self, snapshot, adds)

    monkeypatch.setattr(SparkScratchTable, "write_log", counted)
    assert update(spark, twins.uri, {"v": "0"}, "p = 1 AND id < 10") == {"num_affected_rows": 3}
    news = spark.sql(NEWS)
    merge(spark, twins.uri, news, "target.id = source.id AND target.p = 2").whenMatchedDelete().execute()
    assert shown == [1, 2], "of six"
    assert ids_of(catalog.table("t")) == [n for n in range(30) if n not in (26, 29)]


def test_a_change_that_depends_on_what_changed_meanwhile_is_refused(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    twins = SparkTwins.make(spark, catalog, tmp_path, "t", NO_VECTORS)
    uri = twins.uri

    # the job itself adds a row to partition 0, after the table was looked at and before the commit
    def interfere(batches: Any) -> Any:
        import pyarrow as pa

        with Catalog(uri.split("?", maxsplit=1)[0]) as other:
            if not other.table("t").history()[0].get("seen"):
                row = {"id": [100], "v": [0], "s": ["x"], "p": pa.array([0], pa.int32())}
                seen = deltalake.CommitProperties(custom_metadata={"seen": "yes"})
                other.write("t", pa.table(row), mode="append", commit_properties=seen)
        yield from batches

    schema = "id BIGINT, v BIGINT, s STRING, p INT"
    busy = spark.sql(NEWS).coalesce(1).mapInArrow(interfere, schema)
    with pytest.raises(ConflictError) as refused:
        merge(spark, uri, busy, "target.id = source.id").whenMatchedUpdateAll().execute()
    assert refused.value.kind == "concurrent_append"
    assert twins.version == 2
    assert twins.unknown_files() == set(), "its files are gone"
    assert ids_of(catalog.table("t")) == [*range(30), 100]

    # what happens in another partition than the one that the merge speaks of is none of its business
    catalog.write("t", catalog.table("t").to_pyarrow_table().slice(0, 0), mode="append")
    update(spark, uri, {"v": "1"}, "id = 100")
    told = merge(spark, uri, busy, "target.id = source.id AND target.p = 1").whenMatchedUpdateAll().execute()
    assert told["num_updated_rows"] == 2
    assert ids_of(catalog.table("t")) == [*range(30), 100, 100]


def test_what_makes_no_sense_is_refused_and_what_fails_leaves_nothing(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    twins = SparkTwins.make(spark, catalog, tmp_path, "t", VECTORS)
    news = spark.sql(NEWS)
    begun = merge(spark, twins.uri, news, "target.id = source.id")
    with pytest.raises(InvalidArgumentError, match="no clause"):
        begun.execute()
    with pytest.raises(InvalidArgumentError, match="sets no column"):
        begun.whenMatchedUpdate()
    with pytest.raises(InvalidArgumentError, match="two aliases"):
        merge(spark, twins.uri, news, "x.id = x.id", target_alias="x", source_alias="X")
    with pytest.raises(InvalidArgumentError, match="not a valid alias"):
        merge(spark, twins.uri, news, "true", target_alias="a b")
    with pytest.raises(InvalidArgumentError, match="at least one column"):
        update(spark, twins.uri, {})
    with pytest.raises(InvalidArgumentError, match="plain Delta table"):
        delete(spark, deltalake.DeltaTable(twins.plain))
    with pytest.raises(Exception, match="nowhere"):
        delete(spark, twins.uri, "nowhere = 1")
    with pytest.raises(Exception, match=r"(?i)overflow"):
        update(spark, twins.uri, {"v": "1 / (id - 7)"}, "id > 6")
    twice = news.union(news)
    with pytest.raises(Exception, match=r"(?i)multiple source rows"):
        merge(spark, twins.uri, twice, "target.id = source.id").whenMatchedUpdateAll().execute()
    assert twins.version == 1
    assert twins.unknown_files() == set()
    twins.check()
