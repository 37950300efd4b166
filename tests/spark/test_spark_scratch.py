"""Storage that executors and driver must share, paths as Hadoop spells them, and settings of a session."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.spark import read, scratch, write
from deltalakedb.spark.data_source import DeltaSqlSource, Written
from deltalakedb.spark.expressions import _unlogged
from deltalakedb.spark.scratch import _for_spark, log_parts, spark_path
from deltalakedb.table.roots import with_absolute_path
from support.lake import files_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTS = "spark.databricks.delta.snapshotPartitions"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{tmp_path}/catalog.db") as made:
        yield made


def test_a_cluster_is_asked_once_whether_it_sees_a_table(
    spark: Any, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, root = f"{catalog.table_uri('t')}&location={tmp_path}/t", tmp_path / "t"
    write(spark.range(3), uri)
    asked: list[Path] = []
    truly = scratch._is_readable

    def look(session: Any, file: Path) -> bool:
        asked.append(file)
        return truly(session, file)

    # the session's executors are threads, which see everything, a missing file is missing for them too
    assert truly(spark, root / "_delta_log" / f"{0:020}.json")
    assert not truly(spark, tmp_path / "nowhere.txt")
    monkeypatch.setattr(scratch, "runs_here", lambda session: False)
    monkeypatch.setattr(scratch, "_shared", {})
    monkeypatch.setattr(scratch, "_is_readable", look)
    assert read(spark, uri).count() == 3
    write(spark.range(3, 4), uri, mode="append")
    assert read(spark, uri).count() == 4
    assert len(asked) == 1
    write(spark.range(1), f"{catalog.table_uri('new')}&location={tmp_path}/new")
    assert len(asked) == 2
    assert not any("seen-" in name for name in files_below(tmp_path))

    monkeypatch.setattr(scratch, "_shared", {})
    monkeypatch.setattr(scratch, "_is_readable", lambda session, file: False)
    before = files_below(tmp_path)
    for act in (
        lambda: read(spark, uri),
        lambda: write(spark.range(9), uri, mode="append"),
        lambda: write(spark.range(9), f"{catalog.table_uri('other')}&location={tmp_path}/other"),
    ):
        with pytest.raises(
            UnsupportedOperationError, match=r"executors cannot read .*\n.*mount it on every node"
        ):
            act()
    assert files_below(tmp_path) == before
    assert catalog.table("t").version() == 1


def test_tasks_of_the_data_source_look_before_they_read_or_write(catalog: Catalog, tmp_path: Path) -> None:
    catalog.write("t", pa.table({"id": [1]}), location=tmp_path / "t")
    source = DeltaSqlSource({"path": catalog.table_uri("t")})
    reader, writer = source.reader(source.schema()), source.writer(source.schema(), overwrite=False)
    (partition,) = reader.partitions()
    batch = pa.record_batch({"id": [2]})
    written = writer.write(iter([batch]))  # type: ignore[arg-type]
    assert isinstance(written, Written)
    (tmp_path / "t").rename(tmp_path / "elsewhere")
    for act in (lambda: list(reader.read(partition)), lambda: writer.write(iter([batch]))):  # type: ignore[arg-type]
        with pytest.raises(UnsupportedOperationError, match="executors cannot read"):
            act()
    (tmp_path / "elsewhere").rename(tmp_path / "t")
    # the same path on another machine's disk: the driver does not find the file there
    (tmp_path / "t" / written.adds[0].path).unlink()
    with pytest.raises(UnsupportedOperationError, match="executors cannot read"):
        writer.commit([written])
    assert catalog.table("t").version() == 0


def test_operations_side_by_side_do_not_undo_each_others_settings(spark: Any) -> None:
    session = spark.newSession()
    session.conf.unset(PARTS)  # the run's session has one of its own

    def parts() -> str | None:
        return session.conf.get(PARTS, None)  # type: ignore[no-any-return]

    small, large = log_parts(session, 1), log_parts(session, 20_000)
    with ExitStack() as rest:
        with small:
            rest.enter_context(large)
            assert parts() == "5", "the longer log decides"
        assert parts() == "5", "the other one goes on"
    assert parts() is None
    with log_parts(session, 1):
        session.conf.set(PARTS, "7")
        with log_parts(session, 1):
            assert parts() == "7"
    assert parts() == "7", "what the user has set stays"


def test_threads_do_not_silence_pysparks_log_for_each_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.logger import PySparkLogger

    logger: Any = PySparkLogger.getLogger("SQLQueryContextLogger")
    # PySpark decides whether its records reach the root logger, so they are taken from this one
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    before = list(logger.filters)
    first, second = _unlogged(), _unlogged()
    with ExitStack() as rest, first:
        rest.enter_context(second)
        logger.error("hidden")
        other = threading.Thread(target=logger.error, args=("of another thread",))
        other.start()
        other.join()
    logger.error("afterwards")
    assert [record.getMessage() for record in caplog.records] == ["of another thread", "afterwards"]
    assert (logger.disabled, logger.filters) == (False, before)


@pytest.mark.parametrize(
    ("location", "called"),
    [
        ("/lake/t", "/lake/t"),
        ("file:///lake/t", "file:///lake/t"),
        ("s3://bucket/t", "s3a://bucket/t"),
        ("s3a://bucket/t", "s3a://bucket/t"),
        ("s3n://bucket/t", "s3a://bucket/t"),
        ("gs://bucket/t", "gs://bucket/t"),
        ("gcs://bucket/t", "gs://bucket/t"),
        ("az://box/t", "abfss://box@lake.dfs.core.windows.net/t"),
        ("azure://box/t", "abfss://box@lake.dfs.core.windows.net/t"),
        ("adl://box/t", "abfss://box@lake.dfs.core.windows.net/t"),
        ("abfs://box/t", "abfss://box@lake.dfs.core.windows.net/t"),
        ("abfss://box/t", "abfss://box@lake.dfs.core.windows.net/t"),
        ("az://box@own.dfs.core.windows.net/t", "abfss://box@own.dfs.core.windows.net/t"),
        ("abfs://box@own.dfs.core.windows.net/t", "abfs://box@own.dfs.core.windows.net/t"),
        ("abfss://box@own.dfs.core.windows.net/t", "abfss://box@own.dfs.core.windows.net/t"),
    ],
)
def test_spark_has_a_name_for_every_place(
    location: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "elsewhere")
    options = {"Azure_Storage_Account_Name": "lake"}
    assert spark_path(location, options) == called
    add = Add(path="a%20b.parquet", partition_values={}, size=1, modification_time=1, data_change=True)
    lent = _for_spark(with_absolute_path(add, TablePaths(location)), options)
    assert lent.path in (f"{called}/a%20b.parquet", f"file:{called.removeprefix('file://')}/a%20b.parquet")


def test_a_place_in_azure_needs_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidArgumentError, match="none is set") as caught:
        spark_path("az://box/t", {"azure_storage_account_key": "secret"})
    assert "azure_storage_account_name" in (caught.value.suggestion or "")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "lake")
    assert spark_path("az://box/t") == "abfss://box@lake.dfs.core.windows.net/t"
    with pytest.raises(InvalidArgumentError, match="endpoint is not the default one"):
        spark_path("az://box/t", {"azure_endpoint": "http://127.0.0.1:10000/lake"})
