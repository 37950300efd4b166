"""DataFrames into tables: every mode, committed in SQL, read the same by everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import (
    ConflictError,
    InvalidArgumentError,
    NothingWrittenWarning,
    TableExistsError,
    TableFolderMissingError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.spark import delete, merge, optimize, read, update, write
from deltalakedb.spark.scratch import require_shared_path
from support.lake import every_type, files_below, ids
from support.spark import rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db") as found:
        yield found


@pytest.fixture
def uri(catalog: Catalog, tmp_path: Path) -> str:
    """The address of a table that does not exist yet."""
    where = quote(str(tmp_path))
    return f"deltasql://sqlite/{where}/catalog.db?table=t&location={where}/t"


def numbers(spark: Any, *values: int, part: str = "a") -> Any:
    return spark.createDataFrame([(value, part) for value in values], "id BIGINT, part STRING")


def found(catalog: Catalog, root: Path) -> list[tuple[int, str]]:
    """The rows of the newest version, which the catalog and readers of the folder agree on."""
    ours = catalog.table("t").to_pyarrow_table(columns=["id", "part"])
    stock = deltalake.DeltaTable(root)
    assert stock.version() == catalog.table("t").version()
    assert rows(stock.to_pyarrow_table(columns=["id", "part"])) == rows(ours)
    return sorted((row["id"], row["part"]) for row in ours.to_pylist())


def test_a_table_is_made_and_changed_in_every_mode(
    spark: Any, catalog: Catalog, uri: str, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    assert write(numbers(spark, 1, 2), uri, partition_by="part") == 0
    assert catalog.table("t").metadata().partition_columns == ["part"]
    with pytest.raises(TableExistsError):
        write(numbers(spark, 3), uri)
    assert write(numbers(spark, 3), uri, mode="ignore") is None
    assert write(numbers(spark, 3, part="b c"), uri, mode="append") == 1
    assert found(catalog, root) == [(1, "a"), (2, "a"), (3, "b c")]

    assert write(numbers(spark, 9), uri, mode="overwrite", dynamic=True) == 2
    assert found(catalog, root) == [(3, "b c"), (9, "a")]
    replaced = numbers(spark, 10, 11, part="b c")
    assert write(replaced, uri, mode="overwrite", replace_where="part = 'b c'") == 3
    assert found(catalog, root) == [(9, "a"), (10, "b c"), (11, "b c")]
    # rows of a file that match only in part: the others are written anew
    assert write(numbers(spark, 20, part="b c"), uri, mode="overwrite", replace_where="id >= 11") == 4
    assert found(catalog, root) == [(9, "a"), (10, "b c"), (20, "b c")]
    with pytest.raises(Exception, match=r"(?i)replaceWhere|DELTA_REPLACE_WHERE_MISMATCH"):
        write(numbers(spark, 1, part="z"), uri, mode="overwrite", replace_where="part = 'a'")

    sizes = [add.size for add in catalog.log("t").files()]
    assert write(numbers(spark, 5), uri, mode="overwrite") == 5
    assert found(catalog, root) == [(5, "a")]
    counted = catalog.table("t").history(1)[0]["operationMetrics"]
    assert (counted["numRemovedFiles"], counted["numRemovedBytes"]) == (str(len(sizes)), str(sum(sizes)))
    assert "num_removed_files" not in counted
    assert write(numbers(spark), uri, mode="append") is None, "nothing to write is no version"
    assert catalog.table("t").version() == 5
    assert files_below(root / "_deltasql") == set(), "nothing is left of the scratch tables"
    assert catalog.mirror.verify("t").ok
    told = catalog.table("t").history()[0]
    assert (told["operation"], told["engineInfo"].split(":")[0]) == ("WRITE", "deltalakedb")


def test_an_append_is_one_job(spark: Any, uri: str) -> None:
    asked = ("enableInCommitTimestamps", "enableDeletionVectors")
    write(numbers(spark, 1), uri, configuration={f"delta.{name}": "true" for name in asked})
    frame = numbers(spark, 2)  # what the rows cost is not the write's
    group = "an append"
    spark.sparkContext.setJobGroup(group, group)
    try:
        write(frame, uri, mode="append")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    # the log of the scratch table is not replayed by jobs of its own
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == 1
    assert sorted(row["id"] for row in read(spark, uri).collect()) == [1, 2]


def test_schemas_grow_and_are_replaced_only_when_asked(
    spark: Any, catalog: Catalog, uri: str, tmp_path: Path
) -> None:
    write(numbers(spark, 1), uri)
    wider = spark.createDataFrame([(2, "b", 0.5)], "id BIGINT, part STRING, new DOUBLE")
    with pytest.raises(Exception, match=r"(?i)schema"):
        write(wider, uri, mode="append")
    assert write(wider, uri, mode="append", schema_mode="merge") == 1
    assert [f.name for f in catalog.table("t").schema().fields] == ["id", "part", "new"]
    assert found(catalog, tmp_path / "t") == [(1, "a"), (2, "b")]
    other = spark.createDataFrame([("x",)], "word STRING")
    assert write(other, uri, mode="overwrite", schema_mode="overwrite") == 2
    assert catalog.table("t").to_pyarrow_table().to_pylist() == [{"word": "x"}]
    assert deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist() == [{"word": "x"}]


def test_an_application_writes_each_of_its_versions_once(spark: Any, catalog: Catalog, uri: str) -> None:
    assert write(numbers(spark, 1), uri, mode="append", app_id="job", version=1) == 0
    with pytest.warns(NothingWrittenWarning, match="nothing was written to t"):
        assert write(numbers(spark, 1), uri, mode="append", app_id="job", version=1) is None
    assert write(numbers(spark, 2), uri, mode="append", app_id="job", version=2) == 1
    with pytest.warns(NothingWrittenWarning):
        assert write(numbers(spark, 1), uri, mode="append", app_id="job", version=1) is None
    assert catalog.table("t").transaction_version("job") == 2
    assert catalog.table("t").count() == 2


def test_rows_and_statistics_of_every_type_are_complete(spark: Any, catalog: Catalog, uri: str) -> None:
    from pyspark.sql.functions import expr

    data = every_type(0, 8)
    frame = spark.createDataFrame(data).withColumn("local", expr("CAST(local AS TIMESTAMP_NTZ)"))
    write(frame.coalesce(1), uri)
    assert rows(catalog.table("t").to_pyarrow_table()) == rows(data)
    (add,) = catalog.log("t").files()
    stats = parse_stats(add.stats)
    assert stats is not None
    assert stats.num_records == 8
    counted = {"id", "byte", "short", "int", "float", "double", "text", "date", "at", "local", "money", "big"}
    assert counted <= set(stats.min_values), "timestamps and decimals too"
    picked = catalog.table("t").file_uris(file_pruning_predicate="at > '2030-01-01T00:00:00Z'")
    assert picked == []


def test_variants_are_kept_and_do_not_pass_through_python(spark: Any, catalog: Catalog, uri: str) -> None:
    frame = spark.sql("""SELECT id, parse_json(concat('{"a": ', id, '}')) AS v FROM range(0, 2, 1, 1)""")
    write(frame, uri)
    write(frame, uri, mode="append")
    assert update(spark, uri, {"id": "id + 10"}, "id = 1") == {"num_affected_rows": 2}
    told = read(spark, uri).selectExpr("id", "v:a::int AS a").collect()
    assert sorted((row["id"], row["a"]) for row in told) == [(0, 0), (0, 0), (11, 1), (11, 1)]
    assert "variantType" in (catalog.table("t").protocol().reader_features or ())
    by_format = spark.read.format("deltasql")
    with pytest.raises(Exception, match="column 'v' holds variants"):
        by_format.load(uri)
    assert by_format.option("columns", "id").load(uri).count() == 4


def test_constraints_and_generated_columns_hold(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "t"
    spark.sql(
        f"CREATE TABLE delta.`{root}` (id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true',"
        " 'delta.enableInCommitTimestamps' = 'true')"
    )
    spark.sql(f"ALTER TABLE delta.`{root}` ADD CONSTRAINT positive CHECK (id > 0)")
    catalog.register("t", root)
    uri = f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db?table=t"
    before = catalog.table("t").version()
    assert write(spark.range(1, 4), uri, mode="append") == before + 1
    with pytest.raises(Exception, match="positive"):
        write(spark.range(0, 4), uri, mode="append")
    assert catalog.table("t").version() == before + 1, "what fails leaves nothing visible"
    # rows are deleted by a vector that Spark writes, and their ids stay with them
    assert write(spark.range(3, 5), uri, mode="overwrite", replace_where="id >= 3") == before + 2
    table = spark.read.format("delta").load(str(root))
    assert sorted((r["id"], r["twice"]) for r in table.collect()) == [(1, 2), (2, 4), (3, 6), (4, 8)]
    row_ids = {r["id"]: r["row_id"] for r in table.select("id", "_metadata.row_id").collect()}
    assert len(set(row_ids.values())) == 4
    assert rows(read(spark, uri).toArrow()) == rows(table.toArrow())
    assert catalog.mirror.verify("t").ok


def test_a_write_that_depends_on_what_changed_meanwhile_is_refused(
    spark: Any, catalog: Catalog, uri: str, tmp_path: Path
) -> None:
    write(numbers(spark, 1, 2), uri)
    outside = ids(7)

    # the job itself appends a row before it ends: after the table was looked at, before the commit
    def interfere(batches: Any) -> Any:
        with Catalog(uri.split("?", maxsplit=1)[0]) as other:
            if other.table("t").version() == 0:
                other.write("t", outside, mode="append")
        yield from batches

    busy = numbers(spark, 5).coalesce(1).mapInArrow(interfere, "id BIGINT, part STRING")
    with pytest.raises(ConflictError):
        write(busy, uri, mode="overwrite")
    assert found(catalog, tmp_path / "t") == [(1, "a"), (2, "a"), (7, "a")]
    named = {add.path for add in catalog.log("t").files()}
    on_disk = {f for f in files_below(tmp_path / "t") if f.endswith(".parquet") and "_delta_log" not in f}
    assert on_disk == named, "its files are gone"
    assert write(numbers(spark, 8), uri, mode="append") == 2


def test_the_python_data_source_appends_and_overwrites(
    spark: Any, catalog: Catalog, uri: str, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    table = uri.split("&", maxsplit=1)[0]
    with pytest.raises(Exception, match=r"(?i)no table|no catalog|not found|does not exist"):
        numbers(spark, 1).write.format("deltasql").mode("append").save(table)
    catalog.write("t", ids(1, part="x/y"), location=root, partition_by=["part"])
    many = numbers(spark, 2, 3).union(numbers(spark, 4, part="b")).repartition(2)
    many.write.format("deltasql").mode("append").save(table)
    assert found(catalog, root) == [(1, "x/y"), (2, "a"), (3, "a"), (4, "b")]
    assert catalog.table("t").version() == 1, "one commit for all tasks"
    numbers(spark, 5).write.format("deltasql").mode("overwrite").save(table)
    assert found(catalog, root) == [(5, "a")]

    def broken(batches: Any) -> Any:
        yield from batches
        raise RuntimeError("a task broke")

    half = numbers(spark, 6, 7).repartition(2).mapInArrow(broken, "id BIGINT, part STRING")
    with pytest.raises(Exception, match="a task broke"):
        half.write.format("deltasql").mode("append").save(table)
    assert found(catalog, root) == [(5, "a")]


def test_what_makes_no_sense_is_refused_before_anything_runs(spark: Any, uri: str) -> None:
    frame = numbers(spark, 1)
    for wrong in (
        {"mode": "upsert"},
        {"mode": "append", "replace_where": "id = 1"},
        {"mode": "append", "dynamic": True},
        {"mode": "overwrite", "dynamic": True, "replace_where": "id = 1"},
        {"mode": "append", "schema_mode": "overwrite"},
        {"mode": "append", "schema_mode": "strict"},
        {"mode": "append", "app_id": "job"},
    ):
        with pytest.raises(InvalidArgumentError):
            write(frame, uri, **wrong)
    with pytest.raises(TableMissingError):
        read(spark, uri)


def test_a_cluster_cannot_write_through_the_disk_of_its_driver() -> None:
    class Cluster:
        conf = {"spark.master": "spark://somewhere:7077"}

    with pytest.raises(UnsupportedOperationError, match="driver's disk"):
        require_shared_path(Cluster(), "s3://bucket/t", "/tmp/scratch", table="t")  # type: ignore[arg-type]


def _in_a_transaction(catalog: Catalog, spark: Any, rows: Any) -> None:
    with catalog.transaction() as tx:
        tx.spark(spark).write("t", rows)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_nothing_is_written_to_a_table_whose_folder_is_gone(
    spark: Any, catalog_uri: str, tmp_path: Path
) -> None:
    catalog, root = Catalog(catalog_uri, create=True), tmp_path / "t"
    catalog.write("t", ids(0), location=root)
    uri, rows = catalog.table_uri("t"), spark.createDataFrame(ids(1).to_pandas())
    root.rename(tmp_path / "aside")
    for work in (
        lambda: write(rows, uri, mode="append"),
        lambda: write(rows, uri, mode="overwrite"),
        lambda: delete(spark, uri, "id = 0"),
        lambda: merge(spark, uri, rows, "target.id = source.id").whenNotMatchedInsertAll().execute(),
        lambda: optimize(spark, uri),
        lambda: _in_a_transaction(catalog, spark, rows),
    ):
        with pytest.raises(TableFolderMissingError, match="folder is missing"):
            work()
        assert not root.exists()
    with pytest.raises(Exception, match="folder is missing"):
        rows.write.format("deltasql").mode("append").save(uri)
    assert not root.exists()
    assert catalog.describe("t").head.version == 0
