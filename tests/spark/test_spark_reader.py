"""Tables as Spark DataFrames: every version, published or not, by both ways to ask for them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import InvalidArgumentError, SparkSetupError, VersionMissingError
from deltalakedb.settings import Config
from deltalakedb.spark import read, reader, scratch
from deltalakedb.spark.scratch import read_files
from support.lake import every_type, files_below, ids
from support.spark import rows


def uri_of(folder: Path, table: str = "t") -> str:
    return f"deltasql://sqlite/{quote(str(folder))}/catalog.db?table={table}"


def catalog_in(folder: Path, **settings: Any) -> Catalog:
    return Catalog(f"deltasql://sqlite/{quote(str(folder))}/catalog.db", config=Config(**settings))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of three published versions and two that wait: appends, a delete, and an append."""
    folder = tmp_path_factory.mktemp("read me")
    with catalog_in(folder) as catalog:
        catalog.write("t", every_type(0, 6), location=folder / "t", partition_by=["part", "day"])
        catalog.write("t", every_type(6, 6), mode="append")
        catalog.table("t").delete("id = 3")
    with catalog_in(folder, publish={"mode": "off"}) as silent:
        silent.write("t", every_type(12, 4), mode="append")
        silent.table("t").delete("id = 13")
    return folder


def ours(folder: Path, version: int | None = None, **options: Any) -> Any:
    with catalog_in(folder) as catalog:
        return rows(catalog.table("t", version=version).to_pyarrow_table(**options))


def test_every_version_is_read_whether_it_is_published_or_not(
    spark: Any, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_logs = []

    def noted(spark: Any, snapshot: Any, *rest: Any, **names: Any) -> Any:
        own_logs.append(snapshot.version)
        return read_files(spark, snapshot, *rest, **names)

    monkeypatch.setattr(reader, "read_files", noted)
    for version in range(5):
        frame = read(spark, uri_of(lake), version=version)
        assert rows(frame.toArrow()) == ours(lake, version), f"version {version}"
    assert own_logs == [3, 4], "what is published is read from its folder"
    assert files_below(lake / "t" / "_deltasql") == set(), "nothing is written near the table"
    logs = dict(scratch._logs[spark])
    assert rows(read(spark, uri_of(lake), version=4).toArrow()) == ours(lake, 4)
    assert scratch._logs[spark] == logs, "Delta knows the same files by the same log"


def test_the_python_data_source_reads_the_same(spark: Any, lake: Path) -> None:
    source = spark.read.format("deltasql")
    assert rows(source.load(uri_of(lake)).toArrow()) == ours(lake)
    assert rows(source.option("version", 1).load(uri_of(lake)).toArrow()) == ours(lake, 1)


def test_conditions_and_columns_narrow_a_read(spark: Any, lake: Path) -> None:
    frame = read(spark, uri_of(lake), where="part = 'x' AND id > 1", columns=["id", "money"])
    assert frame.columns == ["id", "money"]
    expected = ours(lake, columns=["id", "money"], filters=[("part", "=", "x"), ("id", ">", 1)])
    assert rows(frame.toArrow()) == expected
    narrow = spark.read.format("deltasql").option("columns", "id, money").load(uri_of(lake))
    assert narrow.columns == ["id", "money"]
    assert rows(narrow.where("id > 1 AND money < 0.06").toArrow()) == ours(
        lake, columns=["id", "money"], filters=[("id", ">", 1), ("money", "<", 0.06)]
    )


def test_few_of_many_files_are_picked_in_sql(spark: Any, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MIN_FILES", 1)
    frame = read(spark, uri_of(lake), version=2, where="id = 7")
    assert len(frame.inputFiles()) == 1
    assert rows(frame.toArrow()) == ours(lake, 2, filters=[("id", "=", 7)])


def test_a_frame_of_the_data_source_stays_at_its_version_and_forgets_filters(
    spark: Any, tmp_path: Path
) -> None:
    with catalog_in(tmp_path) as catalog:
        catalog.write("t", ids(1, 2), location=tmp_path / "t")
        catalog.write("t", ids(8, 9), mode="append")
        frame = spark.read.format("deltasql").load(uri_of(tmp_path))
        assert [row["id"] for row in frame.where("id IN (1, 3) AND id < 5").collect()] == [1]
        catalog.write("t", ids(20), mode="append")
        assert sorted(row["id"] for row in frame.collect()) == [1, 2, 8, 9]
        (gone,) = catalog.table("t").file_uris(file_pruning_predicate="id = 9")
    # a file that is not there can only be missed by who opens it
    Path(gone).unlink()
    picked = spark.read.format("deltasql").option("where", "id < 5").load(uri_of(tmp_path))
    assert picked.count() == 2
    with pytest.raises(Exception, match="StorageMissingError: a data file of the version"):
        frame.collect()


def test_a_moment_leads_to_its_version(spark: Any, lake: Path) -> None:
    with catalog_in(lake) as catalog:
        told = catalog.table("t").history()
    moment = next(h["timestamp"] for h in told if h["version"] == 1)
    at = dt.datetime.fromtimestamp(moment / 1000, dt.UTC)
    assert rows(read(spark, uri_of(lake), timestamp=at).toArrow()) == ours(lake, 1)
    frame = spark.read.format("deltasql").option("timestamp", at.isoformat()).load(uri_of(lake))
    assert rows(frame.toArrow()) == ours(lake, 1)
    vague = at.replace(tzinfo=None).isoformat()
    with pytest.raises(InvalidArgumentError, match="no time zone"):
        read(spark, uri_of(lake), timestamp=vague)
    with pytest.raises(Exception, match="no time zone"):
        spark.read.format("deltasql").option("timestamp", vague).load(uri_of(lake))


def test_deletion_vectors_and_mapped_columns_that_wait_to_be_published_are_read(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "t"
    spark.sql(
        f"CREATE TABLE delta.`{root}` (id BIGINT, part STRING) USING delta PARTITIONED BY (part)"
        " TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(f"INSERT INTO delta.`{root}` SELECT id, 'a b' FROM range(10)")
    spark.sql(f"DELETE FROM delta.`{root}` WHERE id IN (2, 5)")
    with catalog_in(tmp_path, publish={"mode": "off"}) as catalog:
        catalog.register("t", root)
        catalog.write("t", ids(20, part="c/d"), mode="append")
    expected = ours(tmp_path)
    assert expected.total() == 9
    assert rows(read(spark, uri_of(tmp_path)).toArrow()) == expected
    assert rows(spark.read.format("deltasql").load(uri_of(tmp_path)).toArrow()) == expected
    # executors of a cluster see the table's root, but not the driver's temporary folder
    monkeypatch.setattr(scratch, "runs_here", lambda session: False)
    monkeypatch.setattr(scratch, "_logs", {})
    assert rows(read(spark, uri_of(tmp_path)).toArrow()) == expected
    (log,) = files_below(root / "_deltasql")
    assert log.endswith(f"_delta_log/{0:020}.json")


def test_what_makes_no_sense_is_told(spark: Any, lake: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no column 'nope'"):
        read(spark, uri_of(lake), columns=["nope"])
    with pytest.raises(InvalidArgumentError, match="exclude each other"):
        read(spark, uri_of(lake), version=1, timestamp="2024-01-01")
    with pytest.raises(VersionMissingError):
        read(spark, uri_of(lake), version=99)
    with pytest.raises(Exception, match="has no option 'bogus'"):
        spark.read.format("deltasql").option("bogus", "1").load(uri_of(lake))
    bare = SimpleNamespace(conf={"spark.sql.extensions": "some.other.Extension"})
    with pytest.raises(SparkSetupError, match="without Delta"):
        read(bare, uri_of(lake))  # type: ignore[arg-type]
