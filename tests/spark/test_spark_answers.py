"""Operations of Spark through the catalog find the rows that Spark finds in a full scan."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, write_deltalake
from deltalakedb.exceptions import VersionMissingError
from deltalakedb.spark import delete, merge, read, restore, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAN = float("nan")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The address of a table that does not exist yet, in a folder ``t``."""
    where = quote(str(tmp_path))
    return f"deltasql://sqlite/{where}/catalog.db?table=t&location={where}/t"


@contextmanager
def configured(spark: Any, **settings: str) -> Iterator[None]:
    names = {"ansi": "spark.sql.ansi.enabled", "word": "fuzz.word"}
    before = {names[key]: spark.conf.get(names[key], None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(names[key], value)
        yield
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)


PARTITIONS = (
    "at TIMESTAMP, local TIMESTAMP_NTZ, x DOUBLE, f FLOAT, d DECIMAL(5,2), day DATE, ok BOOLEAN, s STRING"
)


def test_an_overwrite_of_partitions_goes_by_values_and_not_by_their_spelling(spark: Any, uri: str) -> None:
    moment = dt.datetime(2024, 1, 2, 3, 4, 5)
    key = (moment.replace(tzinfo=dt.UTC), moment, 1.0, 0.5, Decimal("1.50"), moment.date(), True, "a b")
    other = (*key[:2], 2.0, *key[3:])
    rows = [(1, *key), (2, *other), (3, *[None] * 8)]
    names = [column.split()[0] for column in PARTITIONS.split(", ")]

    def found() -> list[int]:
        return sorted(DeltaTable(uri).to_pyarrow_table(columns=["id"])["id"].to_pylist())

    write(spark.createDataFrame(rows, f"id LONG, {PARTITIONS}"), uri, partition_by=names)
    again = spark.createDataFrame([(11, *key), (13, *[None] * 8)], f"id LONG, {PARTITIONS}")
    dynamic = again.write.format("deltasql").mode("overwrite").option("partitionOverwriteMode", "dynamic")
    dynamic.save(uri)  # Python's spelling against Spark's
    assert found() == [2, 11, 13]
    write(
        again.selectExpr("id + 10 AS id", *names), uri, mode="overwrite", dynamic=True
    )  # the other way round
    assert found() == [2, 21, 23]


def test_an_overwrite_of_partitions_of_a_table_without_any_replaces_all(spark: Any, uri: str) -> None:
    write(spark.range(3), uri)
    write(spark.range(5, 6), uri, mode="overwrite", dynamic=True)
    assert DeltaTable(uri).to_pyarrow_table()["id"].to_pylist() == [5]


@pytest.fixture
def words(uri: str) -> str:
    """A table of four files, in which a text says what another column is called."""
    for k, word in enumerate(("a", "s", "b", "word")):
        data = {"id": [k, 44 if k == 2 else k], "s": [word] * 2, "a": ["x"] * 2}
        write_deltalake(uri, pa.table(data), mode="append")
    return uri


CONDITIONS = (
    ("false", "\"a\" = 'a' AND id < 2"),
    ("false", "id = CAST(300 AS TINYINT)"),
    ("false", "NOT id <=> TRY_CAST(3000000000 AS INT) AND id = 44"),
    ("true", "s = '${fuzz.word}'"),
    ("true", "id = TRY_CAST('44' AS BIGINT)"),
)


def test_deletes_find_what_a_full_scan_finds(spark: Any, words: str, tmp_path: Path) -> None:
    first = DeltaTable(words).version()
    for ansi, text in CONDITIONS:
        with configured(spark, ansi=ansi, word="word"):
            frame = spark.read.format("delta").option("versionAsOf", first).load(str(tmp_path / "t"))
            wanted = (
                frame.selectExpr(f"CAST(coalesce(({text}), false) AS INT) AS n").groupBy().sum().first()[0]
            )
            assert wanted, text
            assert delete(spark, words, text) == {"num_affected_rows": wanted}, text
        DeltaTable(words).restore(first)


def test_a_replacement_and_a_merge_find_what_a_full_scan_finds(spark: Any, words: str) -> None:
    new = spark.createDataFrame([(9, "word", "y")], "id LONG, s STRING, a STRING")
    with configured(spark, ansi="false", word="word"):
        write(new, words, mode="overwrite", replace_where="s = '${fuzz.word}'")
    found = DeltaTable(words).to_pyarrow_table()
    assert [row["id"] for row in found.to_pylist() if row["s"] == "word"] == [9]
    source = spark.createDataFrame([(44, "c", "z")], "id LONG, s STRING, a STRING")
    with configured(spark, ansi="false"):
        done = (
            merge(spark, words, source, "target.id = source.id AND target.id = CAST(300 AS TINYINT)")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )
    assert (done["num_updated_rows"], done["num_inserted_rows"]) == (1, 0)


def test_a_read_of_many_files_finds_what_a_full_scan_finds(
    spark: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltalakedb.spark.reader._MIN_FILES", 1)
    with configured(spark, ansi="false", word="word"):
        assert read(spark, words, where="id = CAST(300 AS TINYINT)").count() == 1
        assert read(spark, words, where="s = '${fuzz.word}'").count() == 2
        assert read(spark, words, where="id = 3").count() == 2


def test_the_option_where_filters_rows(spark: Any, words: str) -> None:
    frame = spark.read.format("deltasql").option("where", "id > 2 OR s = 'a'").option("columns", "a,id")
    assert sorted(row["id"] for row in frame.load(words).collect()) == [0, 0, 3, 3, 44]
    none = spark.read.format("deltasql").option("where", "id > 100").load(words)
    assert none.count() == 0


def test_nan_and_negative_zero_are_found_in_files_that_python_wrote(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    write_deltalake(uri, pa.table({"id": [0], "x": [7.0]}))
    write_deltalake(uri, pa.table({"id": [1, 2], "x": [1.0, NAN]}), mode="append")
    write_deltalake(uri, pa.table({"id": [3, 4, 5], "x": [-0.0, -0.0, -0.0]}), mode="append")
    plain = spark.read.format("delta").load(str(tmp_path / "t"))
    for text, wanted in (("x > 5", [0, 2]), ("x = 0", [3, 4, 5]), ("x >= 0 AND x < 1", [3, 4, 5])):
        assert sorted(row["id"] for row in plain.where(text).collect()) == wanted, text
        assert sorted(row["id"] for row in read(spark, uri, where=text).collect()) == wanted, text
    assert delete(spark, uri, "x > 5") == {"num_affected_rows": 2}
    assert delete(spark, uri, "x = 0") == {"num_affected_rows": 3}
    assert DeltaTable(uri).to_pyarrow_table()["id"].to_pylist() == [1]


def test_a_time_before_the_first_commit_is_refused(spark: Any, uri: str, tmp_path: Path) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    write_deltalake(uri, pa.table({"id": [2]}), mode="append")
    before = "2001-01-01T00:00:00Z"
    with pytest.raises(VersionMissingError, match="2001-01-01"):
        read(spark, uri, timestamp=before)
    with pytest.raises(VersionMissingError, match="2001-01-01"):
        restore(spark, uri, timestamp=before)
    with pytest.raises(Exception, match="no version was committed at or before 2001-01-01"):
        spark.read.format("deltasql").option("timestamp", before).load(uri)
    with pytest.raises(Exception, match="before the earliest"):
        spark.read.format("delta").option("timestampAsOf", "2001-01-01").load(str(tmp_path / "t"))
    # stock takes such a time for version 0
    for table in (DeltaTable(uri), deltalake.DeltaTable(tmp_path / "t")):
        table.load_as_version(before)
        assert table.version() == 0


def test_python_and_spark_keep_statistics_of_the_same_columns(spark: Any, uri: str, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 1L AS p, 2L AS a, struct(3L AS X, 4L AS y) AS s, array(5L) AS l, 6L AS z")
    properties = {"delta.dataSkippingNumIndexedCols": "2"}
    write(frame, uri, partition_by=["p"], configuration=properties)
    data = {"p": [1], "a": [2], "s": [{"X": 3, "y": 4}], "l": [[5]], "z": [6]}
    write_deltalake(uri, pa.table(data), mode="append")
    DeltaTable(uri).alter.set_table_properties({"delta.dataSkippingStatsColumns": "S.x,Z"})
    write(frame, uri, mode="append")
    write_deltalake(uri, pa.table(data), mode="append")
    logs = sorted((tmp_path / "t" / "_delta_log").glob("*.json"))
    adds = [
        json.loads(line)["add"] for log in logs for line in log.read_text().splitlines() if '"add"' in line
    ]
    stats = [json.loads(add["stats"])["minValues"] for add in adds]
    assert stats == [{"a": 2, "s": {"X": 3}}] * 2 + [{"s": {"X": 3}, "z": 6}] * 2
