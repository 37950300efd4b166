"""SQL-backed tables as Spark DataFrames, at native speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.spark.conditions import condition_of
from deltalakedb.spark.logstore import CLASS, KNOWN
from deltalakedb.spark.scratch import frame_over, spark_path
from deltalakedb.spark.sessions import check_delta
from deltalakedb.spark.sight import check_seen
from deltalakedb.table.arguments import instant_ms
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.read.scan import arrow_schema, check_files, known
from deltalakedb.table.sources import LogSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.protocol.actions import Add
    from deltalakedb.uri import Address

#: from this many files on, replaying the log costs delta-spark more than SQL's choice of a few files
_MANY_FILES: Final = 10_000
#: a condition is worth a log of its own where it leaves no more than this part of the files
_FEW: Final = 4


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

    The version is chosen in SQL when this is called. A published version is read from the table's folder, any
    other from a log of its own that names its files.

    Args:
        spark: A session with Delta, such as `session` gives.
        uri: The table's address.
        version: The version to read; by default the newest.
        timestamp: Read the newest version at that time instead (a datetime, or an ISO 8601 text).
        where: A condition in SQL; the database picks the files that may match it.
        columns: The columns to read.
        storage_options: Options for the object store, for the catalog's side; Spark has its own settings.

    Raises:
        VersionMissingError: There is no such version.
        InvalidArgumentError: A column is unknown, or a version and a time are given.
        SparkSetupError: The session has no Delta.

    Example:
        >>> read(spark, "deltasql://sqlite//lake/meta.db?table=orders", where="day >= '2024-01-01'").count()
        42
    """
    if version is not None and timestamp is not None:
        raise InvalidArgumentError("a version and a timestamp exclude each other", suggestion="give one")
    check_delta(spark)
    table = TableHandle.open(uri, version=version, storage_options=storage_options)
    if timestamp is not None:
        table.load_at(instant_ms(timestamp), strict=True)
    names = None
    if columns is not None:
        names = known(list(columns), arrow_schema(table.source.snapshot.metadata.schema_string))
    frame = _frame(spark, table, where)
    if where is not None:
        frame = frame.where(where)
    if names is not None:
        frame = frame.select(*(f"`{name.replace('`', '``')}`" for name in names))
    return frame


def _frame(spark: SparkSession, table: TableHandle, where: str | None) -> DataFrame:
    snapshot = table.source.snapshot
    picked = _picked(spark, table, where)
    if picked is None and _is_published(table):
        # delta-spark goes wherever the log sends it
        check_files(table.source, table.root)
        reader = spark.read.format("delta").option("versionAsOf", snapshot.version)
        if spark.conf.get("spark.delta.logStore.class", None) == CLASS:
            reader = reader.option(KNOWN, "true")  # it need not ask what the database has told already
        location = table.row.location
        check_seen(spark, location, f"{location}/{commit_path(snapshot.version)}", table=table.name)
        return reader.load(spark_path(location, table.root.options))
    adds = table.source.adds() if picked is None else picked
    return frame_over(spark, snapshot, adds, table.root, table=table.name)


def _picked(spark: SparkSession, table: TableHandle, where: str | None) -> list[Add] | None:
    """The few of many files that may match, or None where that is not so."""
    total = table.row.head.num_files
    if where is None or total < _MANY_FILES:
        return None
    if (expression := condition_of(spark, table.source.snapshot, where)) is None:
        return None
    adds = list(table.source.adds(expression))
    return adds if len(adds) * _FEW <= total else None


def _is_published(table: TableHandle) -> bool:
    """Whether the folder has the version that is open, so that readers of the log find it there."""
    version = table.source.snapshot.version
    if isinstance(table.source, LogSource):
        return True
    if table.row.published_version < version:
        return False
    return table.root.store.exists(commit_path(version))
