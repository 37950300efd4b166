"""What threads of one session share, and how Spark's file systems call the places of tables."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.spark.expressions import _unlogged
from deltalakedb.spark.scratch import _for_spark, log_parts, spark_path
from deltalakedb.table.lending import Absolute

PARTS = "spark.databricks.delta.snapshotPartitions"


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


def test_threads_do_not_silence_pysparks_log_for_each_other(caplog: pytest.LogCaptureFixture) -> None:
    from pyspark.logger import PySparkLogger

    logger: Any = PySparkLogger.getLogger("SQLQueryContextLogger")
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
    (lent,) = (_for_spark(one, options) for one in Absolute(TablePaths(location)).lend([add]))
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
