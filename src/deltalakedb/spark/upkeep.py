"""Upkeep of SQL-backed tables from Spark: files put together, older versions brought back, files deleted."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError
from deltalakedb.spark.conditions import condition_of
from deltalakedb.spark.expressions import check_single, check_type
from deltalakedb.spark.operating import column_name, opened, operate, path_name
from deltalakedb.table.arguments import epoch_ms
from deltalakedb.table.maintenance.vacuum import vacuum as delete_files
from deltalakedb.table.restore import restored

if TYPE_CHECKING:
    from collections.abc import Sequence

    import deltalake
    from pyspark.sql import SparkSession

    from deltalakedb.uri import Address


def optimize(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    *,
    where: str | None = None,
    z_order_by: Sequence[str] | str = (),
    storage_options: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Put small files together, or order rows along a curve through columns. No row changes.

    Args:
        spark: A session with Delta, such as `session` gives.
        table: The table's address, or the table itself.
        where: A condition on partition columns, in SQL: only these partitions.
        z_order_by: Columns to order by.
        storage_options: Options for the object store, for the catalog's side; Spark has its own settings.

    Returns:
        delta-spark's metrics, such as ``numFilesAdded`` and ``numFilesRemoved``.

    Raises:
        ConflictError: Somebody else removed one of the files.

    Example:
        >>> optimize(spark, "deltasql://sqlite//lake/meta.db?table=orders", z_order_by="day")["numFilesAdded"]
        1
    """
    columns = [z_order_by] if isinstance(z_order_by, str) else list(z_order_by)
    if where is not None and not isinstance(where, str):
        raise ArgumentTypeError(f"where is SQL text, not {where!r}")
    if where is not None:
        check_type("where", where)
    found = opened(spark, table, storage_options)
    check_single(spark, {"where": where})
    told: dict[str, Any] = {}

    def run(folder: str) -> None:
        only = "" if where is None else f" WHERE {where}\n"
        order = f" ZORDER BY ({', '.join(map(column_name, columns))})" if columns else ""
        (row,) = spark.sql(f"OPTIMIZE {path_name(folder)}{only}{order}").collect()
        told.update(row["metrics"].asDict(recursive=True))

    operate(spark, found, run, where=condition_of(spark, found.source.snapshot, where), same_rows=True)
    return told


def restore(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    *,
    version: int | None = None,
    timestamp: str | datetime | None = None,
    storage_options: dict[str, str] | None = None,
) -> dict[str, int]:
    """Make a table what it was at a version or a time. No file is read or written: the database knows both.

    Args:
        spark: A session with Delta, as for the other operations.
        table: The table's address, or the table itself.
        version: The version to go back to.
        timestamp: Or the time (a datetime, or an ISO 8601 text with its zone).
        storage_options: Options for the object store.

    Returns:
        delta-spark's metrics: ``num_restored_files``, ``num_removed_files``, their sizes, and what the table
        has afterwards.

    Raises:
        VersionMissingError: There is no such version, or the time is before the first commit.
        StorageMissingError: A file of that version is gone.
        ConflictError: Somebody else changed the table meanwhile.

    Example:
        >>> restore(spark, "deltasql://sqlite//lake/meta.db?table=orders", version=7)["num_restored_files"]
        3
    """
    if (version is None) == (timestamp is None):
        raise InvalidArgumentError("a table is restored to a version or to a time", suggestion="give one")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise ArgumentTypeError(f"a version is a whole number, not {version!r}")
    if timestamp is not None and not isinstance(timestamp, str | datetime):
        raise ArgumentTypeError(f"a time is a datetime or a text, not {timestamp!r}")
    found = opened(spark, table, storage_options)
    target = version if timestamp is None else timestamp
    if not isinstance(target, int | str) and target is not None:
        target = target.isoformat()
    if timestamp is not None:
        found.version_at(epoch_ms(timestamp), strict=True)  # before the first commit there is nothing
    done = restored(found, target)
    sizes = done.then.scan(("size",)).column("size").to_pylist()
    return {
        "table_size_after_restore": sum(sizes),
        "num_of_files_after_restore": len(sizes),
        "num_removed_files": len(done.away),
        "num_restored_files": len(done.back),
        "removed_files_size": sum(add.size for add in done.away),
        "restored_files_size": sum(add.size for add in done.back),
    }


def vacuum(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    retention_hours: int | None = None,
    *,
    dry_run: bool = False,
    full: bool = True,
    enforce_retention_duration: bool = True,
    storage_options: dict[str, str] | None = None,
) -> list[str]:
    """Delete files that no version needs which the retention lets a reader ask for; the database knows them.

    Args:
        spark: A session with Delta, as for the other operations.
        table: The table's address, or the table itself.
        retention_hours: How long removed files stay; by default as the table's property says.
        dry_run: Only tell.
        full: Also look for files under the table's root that no version knows, as delta-spark does.
        enforce_retention_duration: Refuse a shorter retention than the property's.
        storage_options: Options for the object store.

    Returns:
        The paths below the table's root.

    Example:
        >>> vacuum(spark, "deltasql://sqlite//lake/meta.db?table=orders", dry_run=True)
        []
    """
    return delete_files(
        opened(spark, table, storage_options),
        retention_hours=retention_hours,
        dry_run=dry_run,
        full=full,
        enforce=enforce_retention_duration,
    )
