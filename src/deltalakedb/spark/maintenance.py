"""Maintenance of tables from Spark: optimize, restore, vacuum, and V2 checkpoints written by executors."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.address import Address, parse_address
from deltalakedb.delta_log.checkpoint_writer import (
    SIDECAR_ROWS,
    V2_FEATURE,
    WrittenCheckpoint,
    file_rows,
    new_sidecar_path,
    put_parquet,
    put_v2,
)
from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError, UnsupportedOperationError
from deltalakedb.metastore import audit, files, registry, snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import checkpointer
from deltalakedb.mirror.drift import require_no_foreign_commits
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.settings import get_config, use_config
from deltalakedb.spark.expressions import check_single, check_type, column_name, condition_of, path_name
from deltalakedb.spark.jobs import run_monitored, run_tasks
from deltalakedb.spark.scratch import candidates, open_for_write, run_on_scratch, runs_here
from deltalakedb.table.arguments import epoch_ms
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.maintenance.vacuum import plan_vacuum
from deltalakedb.table.maintenance.vacuum import vacuum as delete_files
from deltalakedb.table.restore import restore as restore_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import deltalake
    from pyspark.sql import SparkSession

    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind
    from deltalakedb.metastore.rows import OpenTable, Table
    from deltalakedb.storage.store import ObjectMeta, Store
    from deltalakedb.table.maintenance.live_files import DataFiles

#: folders that one task lists
_FOLDERS_PER_TASK: Final = 16


def optimize(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    *,
    where: str | None = None,
    z_order_by: Sequence[str] | str = (),
    storage_options: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Combine small files, or cluster rows by Z-order. No row changes.

    Args:
        spark: A session with Delta, such as one of `session`.
        table: The table's address, or the table itself.
        where: A condition on partition columns, in SQL: only these partitions.
        z_order_by: Columns to cluster by.
        storage_options: Options for the object store, for this process; Spark has its own settings.

    Returns:
        delta-spark's metrics, such as ``numFilesAdded`` and ``numFilesRemoved``.

    Raises:
        ConflictError: Another writer removed one of the files.

    Example:
        >>> optimize(spark, "deltasql://sqlite//lake/meta.db?table=orders", z_order_by="day")["numFilesAdded"]
        1
    """
    columns = [z_order_by] if isinstance(z_order_by, str) else list(z_order_by)
    if where is not None and not isinstance(where, str):
        raise ArgumentTypeError(f"where is SQL text, not {where!r}")
    check_type("where", where, optional=True)
    found = open_for_write(spark, table, storage_options)
    check_single(spark, {"where": where})
    metrics: dict[str, Any] = {}

    def run(folder: str) -> None:
        only = "" if where is None else f" WHERE {where}\n"
        order = f" ZORDER BY ({', '.join(map(column_name, columns))})" if columns else ""
        (row,) = spark.sql(f"OPTIMIZE {path_name(folder)}{only}{order}").collect()
        metrics.update(row["metrics"].asDict(recursive=True))

    read = found.snapshot
    with found.source.without_tracking():  # no row changes, so the operation depends on no other
        files, _ = candidates(found, condition_of(spark, read, where))
    run_on_scratch(spark, found, run, read=read, files=files, reads=NOTHING)
    return metrics


def restore(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    *,
    version: int | None = None,
    timestamp: str | datetime | None = None,
    storage_options: dict[str, str] | None = None,
) -> dict[str, int]:
    """Restore an earlier version of a table. No data file is read or written.

    Args:
        spark: A session with Delta, as for the other operations.
        table: The table's address, or the table itself.
        version: The version to restore.
        timestamp: Or the newest version at a time (a datetime, or an ISO 8601 string with a time zone).
        storage_options: Options for the object store.

    Returns:
        delta-spark's metrics: ``num_restored_files``, ``num_removed_files``, their sizes, and the table's
        size afterwards.

    Raises:
        VersionMissingError: There is no such version, or the time is before the first commit.
        StorageMissingError: A file of that version is missing.
        ConflictError: Another writer changed the table meanwhile.

    Example:
        >>> restore(spark, "deltasql://sqlite//lake/meta.db?table=orders", version=7)["num_restored_files"]
        3
    """
    if (version is None) == (timestamp is None):
        raise InvalidArgumentError("a table is restored to a version or to a time", suggestion="give one")
    target, kinds = (version, (int,)) if timestamp is None else (timestamp, (str, datetime))
    if isinstance(target, bool) or not isinstance(target, kinds):
        raise ArgumentTypeError(f"a version is a whole number, a time a text or datetime; not {target!r}")
    found = open_for_write(spark, table, storage_options)
    if timestamp is not None:
        found.version_at(epoch_ms(timestamp), strict=True)  # before the first commit there is nothing
    done = restore_table(found, timestamp.isoformat() if isinstance(timestamp, datetime) else target)
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
    """Delete data files that no retained version references.

    Args:
        spark: A session with Delta, as for the other operations.
        table: The table's address, or the table itself.
        retention_hours: How long removed files stay; by default the table's property.
        dry_run: Only return the files.
        full: Also delete files under the table's root that no version references, as delta-spark does.
        enforce_retention_duration: Refuse a shorter retention than the property.
        storage_options: Options for the object store.

    Returns:
        The paths below the table's root.

    Example:
        >>> vacuum(spark, "deltasql://sqlite//lake/meta.db?table=orders", dry_run=True)
        []
    """
    return delete_files(
        open_for_write(spark, table, storage_options),
        retention_hours=retention_hours,
        dry_run=dry_run,
        full=full,
        enforce_retention_duration=enforce_retention_duration,
    )


# ---- the files that a vacuum would delete, listed by executors ---------------------------------------------


@dataclass(frozen=True, slots=True)
class VacuumListing:
    """The files that a full vacuum would delete.

    Attributes:
        table: The table.
        version: The table's version.
        num_files: How many files there are.
        size_bytes: Their total size.
        num_unknown: How many of them no version references.
        paths: Their paths below the root, sorted; None if they were written to ``output`` instead.
        output: Where the list was written, as Parquet.
    """

    table: str
    version: int
    num_files: int
    size_bytes: int
    num_unknown: int
    paths: tuple[str, ...] | None
    output: str | None = None


def vacuum_list(
    spark: SparkSession,
    uri: str,
    *,
    retention_hours: int | None = None,
    output: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> VacuumListing:
    """List the files that a full vacuum would delete, by executors. Nothing is deleted.

    Args:
        spark: The session.
        uri: The table's address.
        retention_hours: How long removed files stay; by default the table's property.
        output: Write the list there, as Parquet, instead of returning the paths.
        storage_options: Options for the object store.

    Example:
        >>> vacuum_list(spark, "deltasql://sqlite//lake/meta.db?table=orders").num_files
        3
    """
    table = TableHandle.open(uri, storage_options=storage_options)
    require_no_foreign_commits(table.database, table.row, table.root.options)

    def list_files(data: DataFiles) -> Iterator[ObjectMeta]:
        # called once the arguments and the clocks are checked
        _record(table.database, table.row, table.version, "begin vacuum listing by Spark")
        return _list_files(spark, data)

    plan = plan_vacuum(table, retention_hours, enforce=True, full=True, dry_run=True, list_files=list_files)
    rows = sorted((path, size, path in plan.strangers) for path, size in plan.files.items())
    if output is not None:
        frame = spark.createDataFrame(rows, "path string, size bigint, unknown boolean")
        run_monitored(spark, lambda: frame.write.mode("errorifexists").parquet(output), lambda: None)
    size, unknown = sum(plan.files.values()), sum(unknown for *_, unknown in rows)
    _record(table.database, table.row, table.version, "vacuum listing by Spark", files=len(rows), bytes=size)
    paths = tuple(path for path, *_ in rows) if output is None else None
    return VacuumListing(table.name, plan.version, len(rows), size, unknown, paths, output)


def _list_files(spark: SparkSession, data: DataFiles) -> Iterator[ObjectMeta]:
    """All data files below the root, listed by executors, some folders each."""
    folders, files = data.top_level()
    tasks = [folders[at : at + _FOLDERS_PER_TASK] for at in range(0, len(folders), _FOLDERS_PER_TASK)]

    def work(number: int) -> Iterator[list[ObjectMeta]]:
        yield [meta for folder in tasks[number] for meta in data.list(folder)]

    yield from files
    for found in run_tasks(spark, len(tasks), work):
        yield from found


# ---- checkpoints written by executors ----------------------------------------------------------------------


def checkpoint(
    spark: SparkSession,
    uri: str,
    *,
    rows_per_part: int = SIDECAR_ROWS,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> WrittenCheckpoint:
    """Write a checkpoint of a table's newest published version.

    If the table has the feature ``v2Checkpoint``, executors write the sidecars of a V2 checkpoint. Any other
    table gets a classic checkpoint, which is one file and is written by the driver.

    Args:
        spark: The session.
        uri: The table's address.
        rows_per_part: The approximate number of files in a sidecar.
        storage_options: Options for the object store.
        progress: Called with the number of sidecars that are written, and of all.

    Raises:
        UnsupportedOperationError: Executors cannot read the catalog: it is a DuckDB file, which only one
            process can open, or an SQLite file on the driver of a cluster.

    Example:
        >>> checkpoint(spark, "deltasql://postgres/lake/main/web.clicks").num_add_files
        10000000
    """
    address = parse_address(uri)
    name = address.require_table()
    if rows_per_part < 1:
        raise InvalidArgumentError(f"rows_per_part must be 1 or more, not {rows_per_part}")
    if address.engine == "duckdb" or (address.engine == "sqlite" and not runs_here(spark)):
        raise UnsupportedOperationError(
            f"executors cannot read a catalog on {address.engine} beside this process",
            table=name,
            suggestion=f"write it in this process: deltasql checkpoint {name}",
        )
    database = Database.open(address)
    location = registry.find(database, name).location
    options = get_config().storage_options_for(location, storage_options)

    def write(
        database: Database, name: str, version: int, *, store: Store, kind: CheckpointKind | None
    ) -> WrittenCheckpoint:
        opened = snapshots.open_table(database, name, version)
        if kind != "v2" and V2_FEATURE not in (opened.snapshot.protocol.writer_features or ()):
            return checkpointer.write_checkpoint_of(database, name, version, store=store, kind="classic")
        shards = _shards(database, opened, rows_per_part)
        first, *paths = (new_sidecar_path(version, n) for n in range(1, len(shards) + 2))
        content = checkpointer.content_of(database, opened, ())
        live, columns, config = replace(content, tombstones=()), content.schema.sidecar(), get_config()

        def write_sidecar(number: int) -> Iterator[int]:
            """Write a shard's files, and return how many; a repeated task leaves the sidecar as it is."""
            with use_config(config), closing(Database.open(address, config)) as catalog:
                table = snapshots.open_table(catalog, name, version)
                batches = files.stream_files(catalog, table, between=shards[number])
                tables = file_rows(replace(live, files=batches), columns)
                yield put_parquet(store, paths[number], tables, columns)[0]["add"]

        def look() -> None:
            progress(sum(store.exists(path) for path in paths), len(paths))

        parts = len(paths) + 1
        _record(database, opened.table, version, "begin checkpoint by Spark", parts=parts)
        # the driver writes the first one: everything but live files
        counts, _ = put_parquet(store, first, file_rows(content, columns), columns)
        counts["add"] = sum(run_tasks(spark, len(shards), write_sidecar, look))
        look()
        _record(database, opened.table, version, "checkpoint by Spark", parts=parts, files=counts["add"])
        return put_v2(store, content, [first, *paths], counts)

    return checkpointer.checkpoint(database, name, storage_options=options, write=write)


def _shards(database: Database, opened: OpenTable, rows: int) -> tuple[tuple[int, int], ...]:
    """Ranges of sequence numbers that cover every file, about one per sidecar."""
    count, end = files.totals(database, opened)[0], files.next_seq(database, opened.table)
    many = max(1, ceil(count / rows))
    step = max(1, ceil(end / many))
    return tuple((at, min(at + step, end)) for at in range(0, max(end, 1), step))


def _record(database: Database, table: Table, version: int, action: str, **details: Any) -> None:
    with database.write() as session:
        audit.record(session, action, table, version=version, **details)
