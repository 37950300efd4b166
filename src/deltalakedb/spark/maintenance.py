"""Maintenance of tables from Spark: optimize, restore, vacuum, and V2 checkpoints written by executors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltalakedb.address import parse_address
from deltalakedb.delta_log.checkpoint_schema import STATS_AS_JSON, STATS_AS_STRUCT, checkpoint_schema, wants
from deltalakedb.delta_log.checkpoint_writer import (
    SIDECAR_ROWS,
    V2_FEATURE,
    WrittenCheckpoint,
    file_rows,
    new_sidecar_path,
    put_parquet,
    put_v2,
)
from deltalakedb.delta_log.cleanup import retention_ms
from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError, UnsupportedOperationError
from deltalakedb.metastore import audit, files, registry, snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import checkpointer
from deltalakedb.mirror.clocks import checked_clock
from deltalakedb.mirror.outside import require_no_foreign_commits
from deltalakedb.protocol.properties import is_on
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.settings import get_config, use_config
from deltalakedb.spark.dml import check_row_ids
from deltalakedb.spark.expressions import check_single, check_type, column_name, condition_of, path_name
from deltalakedb.spark.jobs import map_tasks, run_monitored, run_tasks
from deltalakedb.spark.scratch import open_for_write, run_on_scratch, runs_here
from deltalakedb.table.arguments import epoch_ms
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.maintenance.live_files import (
    Deletable,
    data_files,
    linked,
    oldest_orphan,
    referenced_files,
    top_level,
)
from deltalakedb.table.maintenance.vacuum import CHANGES, DEFAULT_RETENTION_MS, DELETED_FILE_RETENTION
from deltalakedb.table.maintenance.vacuum import vacuum as delete_files
from deltalakedb.table.restore import restored
from deltalakedb.table.write_locks import oldest_pending_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import deltalake
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.address import Address
    from deltalakedb.delta_log.checkpoint_schema import CheckpointSchema
    from deltalakedb.delta_log.checkpoint_writer import CheckpointContent, CheckpointKind
    from deltalakedb.metastore.rows import OpenTable
    from deltalakedb.settings import Config
    from deltalakedb.storage.store import Store

_HOUR_MS: Final = 3_600_000
_FILES_DDL: Final = "path string, size bigint, modified_ms bigint"
_FILES: Final = pa.schema([("path", pa.string()), ("size", pa.int64()), ("modified_ms", pa.int64())])
#: files in one batch
_BATCH: Final = 10_000
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
    if where is not None:
        check_type("where", where)
    found = open_for_write(spark, table, storage_options)
    check_single(spark, {"where": where})
    metrics: dict[str, Any] = {}

    def run(folder: str) -> None:
        only = "" if where is None else f" WHERE {where}\n"
        order = f" ZORDER BY ({', '.join(map(column_name, columns))})" if columns else ""
        (row,) = spark.sql(f"OPTIMIZE {path_name(folder)}{only}{order}").collect()
        metrics.update(row["metrics"].asDict(recursive=True))

    with found.source.without_tracking():  # no row changes, so the operation depends on no other
        adds = list(found.source.adds(condition_of(spark, found.source.snapshot, where)))
    check_row_ids(found, adds)
    run_on_scratch(spark, found, run, files=adds, reads=NOTHING)
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
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise ArgumentTypeError(f"a version is a whole number, not {version!r}")
    if timestamp is not None and not isinstance(timestamp, str | datetime):
        raise ArgumentTypeError(f"a time is a datetime or a text, not {timestamp!r}")
    found = open_for_write(spark, table, storage_options)
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
    """Delete data files that no retained version references.

    Args:
        spark: A session with Delta, as for the other operations.
        table: The table's address, or the table itself.
        retention_hours: How long removed files stay; by default the table's property.
        dry_run: Only return the files.
        full: Also delete files under the table's root that no version referenced_files, as delta-spark does.
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
        enforce=enforce_retention_duration,
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
    snapshot, root = table.source.snapshot, table.root
    shortest = retention_ms(snapshot.metadata, DELETED_FILE_RETENTION, DEFAULT_RETENTION_MS)
    if retention_hours is not None and retention_hours * _HOUR_MS < shortest:
        raise InvalidArgumentError(
            f"the table keeps removed files for {shortest // _HOUR_MS} hours, not {retention_hours}",
            table=table.name,
            suggestion=f"change its property {DELETED_FILE_RETENTION} first",
        )
    require_no_foreign_commits(table.database, table.row, root.options)
    clock = checked_clock(table.database, table.name, root.store, dry_run=True)
    cutoff = clock.now - (shortest if retention_hours is None else retention_hours * _HOUR_MS)
    # before anything is read: a write in progress may be committed the next moment
    oldest = oldest_pending_write(root.location)
    opened = snapshots.open_table(table.database, table.name)
    found = referenced_files(table.database, opened, cutoff=cutoff, with_changes=True)
    before = clock.on_store(cutoff)
    before = oldest_orphan(
        root.location, before=before if oldest is None else min(before, oldest), now=clock.on_store(clock.now)
    )
    columns = snapshot.metadata.partition_columns
    rule = Deletable(table.database, opened.table, partition_columns=columns, storage_options=root.options)
    listed = _listed(spark, root.location, columns, rule.others, root.options)
    if not found.changes_known:
        listed = listed.where(~listed["path"].startswith(CHANGES))
    expired = set(rule.among(found.expired))
    needed = found.needed | (found.expired.keys() - expired)
    needed |= linked(root.location, needed) if root.is_local else set()
    frame = _garbage(spark, listed, needed, expired, before)
    _record(table.database, opened, "begin vacuum listing by Spark")

    done = run_monitored(spark, lambda: _listing(table.name, snapshot.version, frame, output), lambda: None)
    _record(table.database, opened, "vacuum listing by Spark", files=done.num_files, bytes=done.size_bytes)
    return done


def _listed(
    spark: SparkSession,
    root: str,
    columns: Sequence[str],
    others: tuple[str, ...],
    options: Mapping[str, str] | None,
) -> DataFrame:
    """All data files below the root, listed by executors, some folders each."""
    folders, files = top_level(root, partition_columns=columns, storage_options=options)
    here = [(m.path, m.size, m.modified_ms) for m in files if not m.path.startswith(others)]
    tasks = [tuple(folders[at : at + _FOLDERS_PER_TASK]) for at in range(0, len(folders), _FOLDERS_PER_TASK)]

    def work(number: int) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[str, int, int]] = []
        for folder in tasks[number]:
            for meta in data_files(
                root, folder, partition_columns=columns, others=others, storage_options=options
            ):
                rows.append((meta.path, meta.size, meta.modified_ms))
                if len(rows) >= _BATCH:
                    yield _batch(rows)
                    rows = []
        if rows:
            yield _batch(rows)

    below = map_tasks(spark, len(tasks), work, _FILES_DDL)
    return below.unionByName(spark.createDataFrame(here, _FILES_DDL)) if here else below


def _batch(rows: Sequence[tuple[str, int, int]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, _FILES, strict=True)], schema=_FILES
    )


def _garbage(
    spark: SparkSession, listed: DataFrame, needed: set[str], expired: set[str], before: int
) -> DataFrame:
    from pyspark.sql import functions as f

    keep = _paths(spark, sorted(needed)).withColumnRenamed("path", "needed")
    gone = _paths(spark, sorted(expired)).withColumnRenamed("path", "expired")
    rest = listed.join(keep, listed["path"] == keep["needed"], "left_anti")
    known = rest.join(gone, rest["path"] == gone["expired"], "left")
    return known.where(f.col("expired").isNotNull() | (f.col("modified_ms") <= before)).select(
        "path", "size", "modified_ms", f.col("expired").isNull().alias("unknown")
    )


def _paths(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    if not paths:  # Spark Connect cannot infer the type of an empty frame
        return spark.range(0).selectExpr("cast(id as string) as path")
    return spark.createDataFrame(pa.table({"path": pa.array(paths, pa.string())}))


def _listing(name: str, version: int, frame: DataFrame, output: str | None) -> VacuumListing:
    from pyspark.sql import functions as f

    if output is not None:
        frame.write.mode("errorifexists").parquet(output)
        frame = frame.sparkSession.read.parquet(output)
        row = frame.agg(
            f.count("*").alias("n"), f.sum("size").alias("size"), f.sum(f.col("unknown").cast("int"))
        ).collect()[0]
        return VacuumListing(name, version, row[0], row[1] or 0, row[2] or 0, None, output)
    rows = frame.collect()
    return VacuumListing(
        name,
        version,
        len(rows),
        sum(r["size"] for r in rows),
        sum(r["unknown"] for r in rows),
        tuple(sorted(r["path"] for r in rows)),
    )


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
    writer = _CheckpointWriter(spark, address, rows_per_part, progress)
    return checkpointer.checkpoint(database, name, storage_options=options, write=writer)


@dataclass(frozen=True, slots=True)
class _CheckpointWriter:
    """Writes the files of a checkpoint by a job, as `checkpointer.checkpoint` asks for."""

    spark: SparkSession
    address: Address
    rows_per_sidecar: int
    progress: Callable[[int, int], None]

    def __call__(
        self, database: Database, name: str, version: int, *, store: Store, kind: CheckpointKind | None
    ) -> WrittenCheckpoint:
        """Write one of the kind that the table's features ask for."""
        opened = snapshots.open_table(database, name, version)
        metadata, protocol = opened.snapshot.metadata, opened.snapshot.protocol
        if kind != "v2" and V2_FEATURE not in (protocol.writer_features or ()):
            return checkpointer.write_checkpoint_of(database, name, version, store=store, kind="classic")
        schema = checkpoint_schema(
            metadata,
            protocol,
            stats_as_json=wants(metadata, STATS_AS_JSON, default=True),
            stats_as_struct=is_on(metadata, STATS_AS_STRUCT),
        )
        shards = _shards(database, opened, self.rows_per_sidecar)
        first, *paths = (new_sidecar_path(version, n) for n in range(1, len(shards) + 2))
        content = checkpointer.content_of(database, opened, ())
        job = _SidecarJob(
            self.address, get_config(), name, store, replace(content, tombstones=()), schema, shards, paths
        )
        _record(database, opened, "begin checkpoint by Spark", parts=len(paths) + 1)
        # the driver writes the first one: everything but live files
        counts, _ = put_parquet(store, first, file_rows(content, schema, schema.sidecar()), schema.sidecar())

        def look() -> None:
            self.progress(sum(store.exists(path) for path in paths), len(paths))

        counts["add"] = sum(run_tasks(self.spark, len(shards), job.write, look))
        look()
        _record(database, opened, "checkpoint by Spark", parts=len(paths) + 1, files=counts["add"])
        return put_v2(store, content, schema, [first, *paths], counts)


@dataclass(frozen=True, slots=True)
class _SidecarJob:
    """What tasks need. The content has no files: tasks read their shards of them."""

    address: Address
    config: Config
    table: str
    store: Store
    content: CheckpointContent
    schema: CheckpointSchema
    shards: tuple[tuple[int, int], ...]
    paths: list[str]

    def write(self, number: int) -> Iterator[int]:
        """Write one sidecar; its number of files. A repeated task leaves the first one's sidecar as it is."""
        with use_config(self.config):
            database = Database.open(self.address, self.config)
            try:
                opened = snapshots.open_table(database, self.table, self.content.version)
                batches = files.stream_files(database, opened, between=self.shards[number])
                tables = file_rows(replace(self.content, files=batches), self.schema, self.schema.sidecar())
                counts, _ = put_parquet(self.store, self.paths[number], tables, self.schema.sidecar())
                yield counts["add"]
            finally:
                database.close()


def _shards(database: Database, opened: OpenTable, rows: int) -> tuple[tuple[int, int], ...]:
    """Ranges of sequence numbers that cover every file, about one per sidecar."""
    count, end = files.totals(database, opened)[0], files.next_seq(database, opened.table)
    many = max(1, ceil(count / rows))
    step = max(1, ceil(end / many))
    return tuple((at, min(at + step, end)) for at in range(0, max(end, 1), step))


def _record(database: Database, opened: OpenTable, action: str, **details: Any) -> None:
    with database.write() as session:
        audit.record(
            session,
            action,
            table_id=opened.table.table_id,
            table=opened.table.name,
            version=opened.snapshot.version,
            **details,
        )
