"""Tables as Spark DataFrames, read natively by delta-spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.delta_log.names import commit_path
from deltalakedb.spark.expressions import condition_of
from deltalakedb.spark.logstore import CLASS, KNOWN
from deltalakedb.spark.scratch import open_at, read_files, require_shared_path, spark_path
from deltalakedb.spark.sessions import check_delta
from deltalakedb.table.read.scan import arrow_schema, check_files, known
from deltalakedb.table.sources import LogSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.address import Address
    from deltalakedb.protocol.actions import Add
    from deltalakedb.table.handle import TableHandle

#: with fewer files, delta-spark replays the log faster than SQL picks files and a log of them is written
_MIN_FILES: Final = 10_000
#: a condition gets a log of its own if it selects at most this fraction of the files
_MAX_SELECTED_FRACTION: Final = 0.25


def read(
    spark: SparkSession,
    uri: str | Address,
    *,
    version: int | None = None,
    timestamp: str | datetime | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: dict[str, str] | None = None,
) -> DataFrame:
    """A table as a DataFrame, at one version, read natively.

    The version is fixed in SQL when this is called. A published version is read from the table's folder, any
    other from a temporary log that names its files.

    Args:
        spark: A session with Delta, such as one of `session`.
        uri: The table's address.
        version: The version to read; by default the newest.
        timestamp: Read the newest version at that time instead (a datetime, or an ISO 8601 string).
        where: A condition in SQL; the database picks the files that may match it.
        columns: The columns to read.
        storage_options: Options for the object store, for this process; Spark has its own settings.

    Raises:
        VersionMissingError: There is no such version.
        InvalidArgumentError: A column is unknown, or a version and a time are given.
        SparkSetupError: The session has no Delta.

    Example:
        >>> read(spark, "deltasql://sqlite//lake/meta.db?table=orders", where="day >= '2024-01-01'").count()
        42
    """
    check_delta(spark)
    table = open_at(uri, version, timestamp, storage_options)
    names = None
    if columns is not None:
        names = known(list(columns), arrow_schema(table.snapshot.metadata.schema_string))
    frame = _frame(spark, table, where)
    if where is not None:
        frame = frame.where(where)
    return frame if names is None else frame.select(*(f"`{name.replace('`', '``')}`" for name in names))


def _frame(spark: SparkSession, table: TableHandle, where: str | None) -> DataFrame:
    snapshot = table.snapshot
    selected = _selected_files(spark, table, where)
    if selected is None and _is_published(table):
        # delta-spark would follow any path in the log
        check_files(table.source, table.root)
        reader = spark.read.format("delta").option("versionAsOf", snapshot.version)
        if spark.conf.get("spark.delta.logStore.class", None) == CLASS:
            reader = reader.option(KNOWN, "true")  # it need not ask the service: the database has answered
        location = table.row.location
        require_shared_path(spark, location, f"{location}/{commit_path(snapshot.version)}", table=table.name)
        return reader.load(spark_path(location, table.root.options))
    adds = table.source.adds() if selected is None else selected
    return read_files(spark, snapshot, adds, table.root, table=table.name)


def _selected_files(spark: SparkSession, table: TableHandle, where: str | None) -> list[Add] | None:
    """The files that may match, if they are few of many; else None."""
    total = table.row.head.num_files
    if where is None or total < _MIN_FILES:
        return None
    if (expression := condition_of(spark, table.snapshot, where)) is None:
        return None
    adds = list(table.source.adds(expression))
    return adds if len(adds) <= total * _MAX_SELECTED_FRACTION else None


def _is_published(table: TableHandle) -> bool:
    """Whether the table's folder has the commit of the open version."""
    version = table.snapshot.version
    return isinstance(table.source, LogSource) or (
        table.row.published_version >= version and table.root.store.exists(commit_path(version))
    )
