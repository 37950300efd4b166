"""Tables with every feature: made by delta-spark or through the catalog, continued by us, read alike."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.exceptions import ConflictError, UnsupportedFeatureError
from deltalakedb.redaction import Secret
from deltalakedb.service.server import commit_server, write_token
from deltalakedb.spark import merge, optimize, restore, vacuum, write
from deltalakedb.spark import read as read_table
from support.callers import TOKEN
from support.spark import committing, read_versions, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """A table that delta-spark makes.

    Attributes:
        columns: As SQL has them.
        properties: The table's properties.
        made: What follows the columns.
        steps: What happens to it afterwards; ``{}`` is the table.
        rows: A query whose rows have the columns that a writer gives, for ids from ``{}`` on.
        local: Whether Python alone may append to it.
        stock: Whether stock reads it.
    """

    columns: str
    properties: dict[str, str]
    steps: tuple[str, ...]
    rows: str
    made: str = ""
    local: bool = True
    stock: bool = True
    values: dict[str, str] = field(default_factory=lambda: {"v": "v + 1"})

    def make(self, spark: Any, root: Path) -> None:
        """Make the table, and its versions."""
        given = ", ".join(f"'{key}' = '{value}'" for key, value in self.properties.items())
        table = f"delta.`{root}`"
        spark.sql(f"CREATE TABLE {table} ({self.columns}) USING delta {self.made} TBLPROPERTIES ({given})")
        for step in self.steps:
            spark.sql(step.format(table))


LOCAL, MOMENT = "TIMESTAMP_NTZ'2024-01-01 10:00:00.123456'", "TIMESTAMP'1969-12-31 23:59:59.5Z'"
KINDS = {
    "vectors, names, feed, row ids, times, v2": Kind(
        "id BIGINT, part STRING, v INT, s STRUCT<a: INT, b: ARRAY<MAP<STRING, INT>>>",
        {
            "delta.enableDeletionVectors": "true",
            "delta.columnMapping.mode": "name",
            "delta.enableChangeDataFeed": "true",
            "delta.enableRowTracking": "true",
            "delta.enableInCommitTimestamps": "true",
            "delta.checkpointPolicy": "v2",
            "delta.checkpointInterval": "3",
        },
        (
            "INSERT INTO {} SELECT id, IF(id < 6, 'a b', 'c/d'), id, (id, array(map('k', id))) FROM range(9)",
            "DELETE FROM {} WHERE id % 5 = 0",
            "ALTER TABLE {} RENAME COLUMN v TO w",
            "UPDATE {} SET w = -1 WHERE id < 4",
            "MERGE INTO {} t USING (SELECT 3L id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        ),
        "SELECT id, 'e%f' AS part, CAST(id AS INT) AS w, NULL AS s FROM range({}, {} + 2)",
        "PARTITIONED BY (part)",
        values={"w": "w + 1"},
    ),
    "ids, local times, generated, constraints": Kind(
        "id BIGINT NOT NULL, at TIMESTAMP_NTZ, v INT, t TIMESTAMP,"
        " day DATE GENERATED ALWAYS AS (CAST(at AS DATE))",
        {"delta.columnMapping.mode": "id", "delta.enableDeletionVectors": "false"},
        (
            "ALTER TABLE {} ADD CONSTRAINT small CHECK (id < 1000)",
            f"INSERT INTO {{}} (id, at, t) SELECT id, {LOCAL} + make_dt_interval(id), {MOMENT} FROM range(6)",
            "DELETE FROM {} WHERE id = 3",
            "ALTER TABLE {} ADD COLUMN more DECIMAL(20, 3)",
            "UPDATE {} SET more = 1.5 WHERE id < 2",
        ),
        f"SELECT id, {LOCAL} AS at, CAST(id AS INT) AS v, {MOMENT} AS t, CAST(2 AS DECIMAL(20, 3)) AS more"
        " FROM range({}, {} + 2)",
        "PARTITIONED BY (day)",
    ),
    "identity and defaults": Kind(
        "n BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5), id BIGINT, v INT DEFAULT 7",
        {"delta.feature.allowColumnDefaults": "supported", "delta.enableDeletionVectors": "true"},
        (
            "INSERT INTO {} (id) SELECT id FROM range(5)",
            "UPDATE {} SET v = 8 WHERE id = 2",
            "INSERT INTO {} (id, v) VALUES (100, DEFAULT)",
            "DELETE FROM {} WHERE id = 0",
        ),
        "SELECT id, CAST(id AS INT) AS v FROM range({}, {} + 2)",
        local=False,
    ),
    "clustered and widened": Kind(
        "id BIGINT, part STRING, v SMALLINT",
        {"delta.enableTypeWidening": "true", "delta.enableDeletionVectors": "true"},
        (
            "INSERT INTO {} SELECT id, 'p', id FROM range(8)",
            "ALTER TABLE {} ALTER COLUMN v TYPE INT",
            "INSERT INTO {} VALUES (50, 'q', 1000000)",
            "DELETE FROM {} WHERE id = 2",
            "OPTIMIZE {}",
        ),
        "SELECT id, 'new' AS part, CAST(id AS INT) AS v FROM range({}, {} + 2)",
        "CLUSTER BY (id, part)",
        local=False,
        stock=False,
    ),
}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db") as made:
        made.set_root(tmp_path / "lake")
        yield made


def alike(spark: Any, catalog: Catalog, kind: Kind, root: Path, *, since: int = 0) -> int:
    """Compare all readers at every version; the number of rows in the newest."""
    versions = range(since, catalog.describe("t").head.version + 1)
    theirs = read_versions(spark, root, versions)
    for version in versions:
        ours = rows(pa.table(catalog.table("t", version=version).scan().read_all()))
        assert rows(theirs[version]) == ours, f"delta-spark at version {version}"
        if kind.stock:
            stock = deltalake.DeltaTable(root, version=version)
            assert rows(pa.table(stock.scan().read_all())) == ours, f"stock at version {version}"
    assert rows(read_table(spark, catalog.table_uri("t")).toArrow()) == ours, "our own read by Spark"
    assert catalog.mirror.verify("t").ok
    return ours.total()


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def made(
    request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Kind, Catalog, Path]]:
    """A table of each kind that delta-spark made through a catalog: its log is one that Spark wrote."""
    kind, folder = request.param, tmp_path_factory.mktemp("made")
    uri = f"deltasql://sqlite/{quote(str(folder))}/catalog.db"
    write_token(folder / "token", Secret(TOKEN))
    with Catalog(uri) as catalog:
        catalog.set_root(folder / "lake")
        with (
            commit_server(parse_address(uri), Secret(TOKEN), port=0) as server,
            committing(spark, server.url, folder / "token"),
        ):
            kind.make(spark, folder / "lake" / "t")
        yield kind, catalog, folder / "lake" / "t"


def test_a_table_made_through_the_catalog_is_read_alike_at_every_version(
    spark: Any, made: tuple[Kind, Catalog, Path]
) -> None:
    kind, catalog, root = made
    assert catalog.describe("t").head.version >= len(kind.steps)
    alike(spark, catalog, kind, root)


def test_a_table_of_delta_spark_is_imported_and_goes_on(
    spark: Any, catalog: Catalog, tmp_path: Path, made: tuple[Kind, Catalog, Path]
) -> None:
    kind, root = made[0], tmp_path / "t"
    shutil.copytree(made[2], root)
    catalog.register("t", root)
    uri, before = catalog.table_uri("t"), catalog.describe("t").head.version
    count = pa.table(catalog.table("t").scan().read_all()).num_rows

    write(spark.sql(kind.rows.format(200, 200)), uri, mode="append")
    merging = merge(spark, uri, spark.sql(kind.rows.format(201, 201)), "target.id = source.id")
    columns = {name: f"source.{name}" for name in spark.sql(kind.rows.format(0, 0)).columns}
    merging = merging.whenMatchedDelete().whenNotMatchedInsert(values=columns)
    merging.whenNotMatchedBySourceUpdate("target.id = 200", set=kind.values).execute()
    optimize(spark, uri)
    extra = spark.sql(kind.rows.format(300, 300)).toArrow()
    if kind.local:
        catalog.write("t", extra, mode="append")
    else:
        with pytest.raises(UnsupportedFeatureError):
            catalog.write("t", extra, mode="append")
    catalog.mirror.checkpoint("t")
    after = count + 2 + (2 if kind.local else 0)
    assert alike(spark, catalog, kind, root, since=before) == after
    names = {type(a).__name__ for v in range(before + 1, before + 4) for a in catalog.log("t").actions(v)}
    assert ("Cdc" in names) == ("delta.enableChangeDataFeed" in kind.properties)

    # and delta-spark on top of that, adopted again
    catalog.mirror.set_policy("t", "adopt")
    spark.sql(f"DELETE FROM delta.`{root}` WHERE id = 200")
    catalog.mirror.recover("t")
    newest = catalog.describe("t").head.version
    assert alike(spark, catalog, kind, root, since=newest) == after - 1


def test_numbers_that_delta_spark_counts_are_given_once(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    root, kind = tmp_path / "t", KINDS["identity and defaults"]
    kind.make(spark, root)
    catalog.register("t", root)
    uri, more = catalog.table_uri("t"), spark.sql(kind.rows.format(200, 200))

    def overtaken() -> None:
        with catalog.transaction() as tx:
            tx.spark(spark).write("t", more)
            write(more, uri, mode="append")  # both count on from the same number

    with pytest.raises(ConflictError):
        overtaken()
    write(more, uri, mode="append")
    with pytest.raises(UnsupportedFeatureError, match="identityColumns"):
        restore(spark, uri, version=1)
    vacuum(spark, uri, 0, enforce_retention_duration=False)
    catalog.mirror.fence("t")
    catalog.mirror.unfence("t")
    numbers = catalog.table("t").to_pyarrow_table()["n"].to_pylist()
    assert len(set(numbers)) == len(numbers) == 9
    assert all(n % 5 == 0 and n >= 10 for n in numbers)
