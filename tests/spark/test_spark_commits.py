"""delta-spark's own writers on tables of the catalog: every commit of theirs is decided in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pytest

from deltalakedb import Catalog
from deltalakedb.redaction import Secret
from deltalakedb.service.running import commit_server
from deltalakedb.spark import read as read_table
from deltalakedb.spark import write as write_table
from deltalakedb.uri import parse_uri
from support.callers import TOKEN
from support.mirrors import append, commit_file, logged
from support.spark import committing, read, rows

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def catalog(uri: str, root: Path) -> Iterator[Catalog]:
    with Catalog(uri) as made:
        made.set_root(root)
        yield made


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path / "token"


@pytest.fixture
def configured(spark: Any, catalog: Catalog, uri: str, token_file: Path) -> Iterator[Any]:
    """The run's session, its commits ratified by a service of this process."""
    with (
        commit_server(parse_uri(uri), Secret(TOKEN), port=0) as server,
        committing(spark, server.url, token_file),
    ):
        yield spark


def numbers(spark: Any, *values: int, part: str = "a") -> Any:
    return spark.createDataFrame([(value, part) for value in values], "id BIGINT, part STRING").coalesce(1)


def save(frame: Any, root: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("delta").mode(mode).options(**options).save(str(root))


def agreed(spark: Any, catalog: Catalog, name: str) -> list[int]:
    """The ids in a table; the catalog, its log and all readers have to agree on everything."""
    table = catalog.describe(name)
    root = Path(table.location)
    assert logged(root) == list(range(table.head.version + 1))
    for version in range(table.head.version + 1):
        assert commit_file(root, version).read_bytes() == catalog.log(name).commit_bytes(version)
    assert catalog.mirror.verify(name).ok
    ours = read_table(spark, catalog.table_uri(name)).toArrow()
    assert rows(ours) == rows(read(spark, root)) == rows(catalog.table(name).to_pyarrow_table())
    return sorted(ours["id"].to_pylist())


def test_everything_that_delta_spark_writes_is_committed_in_sql(
    configured: Any, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    spark, table = configured, root / "sales" / "orders"
    here = f"delta.`{table}`"
    save(numbers(spark, 1, 2, 3, 4), table, "error", **{"delta.enableDeletionVectors": "true"})
    save(numbers(spark, 5), table)
    name = "sales.orders"
    assert agreed(spark, catalog, name) == [1, 2, 3, 4, 5]
    spark.sql(f"DELETE FROM {here} WHERE id = 2")
    spark.sql(f"UPDATE {here} SET part = 'b' WHERE id = 3")
    numbers(spark, 4, 6, part="m").createOrReplaceTempView("arriving")
    spark.sql(
        f"MERGE INTO {here} t USING arriving s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert agreed(spark, catalog, name) == [1, 3, 4, 5, 6]
    spark.sql(f"OPTIMIZE {here}")
    spark.sql(f"ALTER TABLE {here} SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    spark.sql(f"VACUUM {here} RETAIN 200 HOURS")
    operations = [commit.operation for commit in reversed(catalog.commits(name))]
    assert operations == [
        *("WRITE", "WRITE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE"),
        *("SET TBLPROPERTIES", "VACUUM START", "VACUUM END"),
    ]
    assert agreed(spark, catalog, name) == [1, 3, 4, 5, 6]

    # our own writers and theirs take turns; what we have not published yet, Spark sees all the same
    catalog.mirror.pause(name)
    append(catalog, 7, name=name)
    assert not commit_file(table, 9).exists()
    catalog.mirror._pause(name, paused=False)
    assert sorted(row["id"] for row in spark.read.format("delta").load(str(table)).collect())[-1] == 7
    save(numbers(spark, 8), table)
    write_table(numbers(spark, 9), catalog.table_uri(name), mode="append")
    save(numbers(spark, 1), table, "overwrite")
    assert agreed(spark, catalog, name) == [1]
    spark.sql(f"RESTORE {here} TO VERSION AS OF 11")
    assert agreed(spark, catalog, name) == [1, 3, 4, 5, 6, 7, 8, 9]
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))  # Spark's own

    # tables made by SQL, a stream into one of them, a plain table that stays one
    made = root / "made"
    spark.sql(f"CREATE TABLE delta.`{made}` USING delta AS SELECT * FROM {here}")
    stream = spark.readStream.format("delta").load(str(table)).writeStream.format("delta")
    stream = stream.option("checkpointLocation", str(tmp_path / "progress")).trigger(availableNow=True)
    for _ in range(2):  # the second run finds nothing to do
        stream.start(str(root / "streamed")).awaitTermination()
    assert agreed(spark, catalog, "made") == agreed(spark, catalog, "streamed")
    plain = tmp_path / "plain"
    save(numbers(spark, 1), plain)
    save(numbers(spark, 2), plain)
    assert deltalake.DeltaTable(plain).version() == 1
    assert sorted(t.name for t in catalog.tables()) == ["made", "sales.orders", "streamed"]
