"""Drivers killed around their commits: what the database has stands, once; the rest never happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.redaction import Secret
from deltalakedb.service.server import commit_server, write_token
from deltalakedb.spark import configure, merge, optimize, session, write
from support.callers import TOKEN
from support.invariants import check_table
from support.processes import Child, arm
from support.spark import attached, committing, quick_settings, read, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

NEWS = "SELECT id, 'new' AS part FROM range(2, 5)"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db") as made:
        yield made


def change(spark: Any, uri: str, kind: str) -> None:
    """One operation that may be asked for again after a crash."""
    if kind == "write":
        write(spark.sql(NEWS), uri, mode="append", app_id="job", version=1)
    elif kind == "merge":
        merging = merge(spark, uri, spark.sql(NEWS), "target.id = source.id")
        merging.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    else:
        optimize(spark, uri)


def _drive(port: int, secret: str, uri: str, kind: str) -> str:
    change(attached(port, secret), uri, kind)
    return "nobody killed me"


#: what is killed, where, and whether the commit stands
KILLS = [
    ("write", "data.after", False),
    ("write", "commit.before_commit", False),
    ("write", "commit.after", True),
    ("write", "publish.after_put", True),
    ("merge", "commit.before_commit", False),
    ("merge", "commit.after", True),
    ("optimize", "commit.before_commit", False),
    ("optimize", "publish.before_put", True),
]


def test_a_driver_killed_around_its_commit_has_one_effect_or_none(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    gateway = spark.sparkContext._gateway.java_parameters
    start = spark.sql("SELECT id, 'old' AS part FROM range(3)").repartition(2)
    for number, (kind, point, stands) in enumerate(KILLS):
        name, root = f"t{number}", tmp_path / f"t{number}"
        uri = f"{catalog.table_uri(name)}&location={quote(str(root))}"
        write(start, uri)
        Child(
            _drive, gateway.port, gateway.auth_token, uri, kind, folder=tmp_path, points=f"{point}=kill"
        ).died()
        case = f"{kind} killed at {point}"
        table = catalog.table(name)
        assert table.version() == int(stands), case
        before = {"optimize": 3, "write": 3, "merge": 3}[kind]
        after = {"optimize": 3, "write": 6, "merge": 5}[kind]
        assert table.to_pyarrow_table().num_rows == (after if stands else before), case
        catalog.mirror.publish(name)
        check_table(catalog, name, published=True)

        change(spark, uri, kind)  # as whoever starts the job again does
        assert catalog.table(name).to_pyarrow_table().num_rows == after, case
        if kind != "merge":  # a merge that is said again is a commit again, of the same rows
            assert catalog.table(name).version() == 1, case
        check_table(catalog, name, published=True)
        assert rows(read(spark, root)) == rows(catalog.table(name).to_pyarrow_table()), case
        # what the dead left is known, and goes: the rest of the files are those of versions
        catalog.gc(name, older_than_hours=0)
        assert not (root / "_deltasql").exists(), case
        log = catalog.log(name)
        named = {a.path for v in log.versions() for a in log.actions(v) if hasattr(a, "path")}
        assert {f.name for f in root.glob("*.parquet")} == named, case


def _drive_configured(uri: str, table: str, folder: str) -> str:
    """A driver with a Java of its own, whose tasks are tried twice and whose service kills it."""
    from pyspark.sql import SparkSession

    builder = configure(SparkSession.builder.config(map=quick_settings(Path(folder))), catalog=uri)
    spark = session("local[2,2]", builder=builder)
    retry(spark, f"{uri}?table=retried")
    append(spark, table, 1)
    arm("commit.after=kill")
    append(spark, table, 2)
    return "nobody killed me"


def retry(spark: Any, uri: str) -> None:
    """Write rows by tasks that die once, after their first rows."""

    def die_once(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt dies")

    frame = spark.range(0, 20, 1, 2).mapInArrow(die_once, "id BIGINT")
    write(frame, uri, mode="append")
    frame.write.format("deltasql").mode("append").save(uri)


def append(spark: Any, table: str, number: int) -> None:
    frame = spark.sql(f"SELECT {number}L AS id, 'a' AS part")
    options = {"txnAppId": "job", "txnVersion": str(number)}
    frame.write.format("delta").mode("append").options(**options).save(table)


def test_a_driver_that_dies_with_its_service_is_begun_again(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    catalog.set_root(tmp_path / "lake")
    catalog.write("retried", pa.table({"id": [100]}), location=tmp_path / "retried")
    uri, root = f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db", tmp_path / "lake" / "t"
    Child(
        _drive_configured, uri, str(root), str(tmp_path), folder=tmp_path, SPARK_LOCAL_IP="127.0.0.1"
    ).died()
    # tasks that were tried twice have one effect, and what their first attempts wrote is gone
    retried = catalog.table("retried")
    assert sorted(retried.to_pyarrow_table()["id"].to_pylist()) == sorted([*range(20), *range(20), 100])
    files = {f.rpartition("/")[2] for f in retried.file_uris()}
    assert {f.name for f in (tmp_path / "retried").rglob("*.parquet")} == files
    # the database has it, the log does not, and nobody was told
    assert catalog.describe("t").head.version == 1
    assert not (root / "_delta_log" / f"{1:020}.json").exists()
    write_token(tmp_path / "token", Secret(TOKEN))
    with (
        commit_server(parse_address(uri), Secret(TOKEN), port=0) as server,
        committing(spark, server.url, tmp_path / "token"),
    ):
        for number in (1, 2, 3):  # the job again, from its beginning
            append(spark, str(root), number)
        assert sorted(read(spark, root)["id"].to_pylist()) == [1, 2, 3]
    assert catalog.describe("t").head.version == 2
    assert check_table(catalog, "t", published=True).ids == [1, 2, 3]
