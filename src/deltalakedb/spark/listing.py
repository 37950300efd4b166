"""Full-scan listing for a vacuum: executors list the folders of a table and find what no version needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltalakedb.delta_log.cleanup import retention_ms
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore import audit
from deltalakedb.metastore.snapshots import open_table
from deltalakedb.mirror.clocks import checked_clock
from deltalakedb.mirror.outside import refuse_strangers
from deltalakedb.spark.shares import spread, watched
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.in_flight import oldest_pending_write
from deltalakedb.table.maintenance.live_files import (
    Deletable,
    data_files,
    linked,
    oldest_orphan,
    referenced_files,
    top_level,
)
from deltalakedb.table.maintenance.vacuum import CHANGES, DEFAULT_RETENTION_MS, DELETED_FILE_RETENTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_HOUR_MS: Final = 3_600_000
_DDL: Final = "path string, size bigint, modified_ms bigint"
_SCHEMA: Final = pa.schema([("path", pa.string()), ("size", pa.int64()), ("modified_ms", pa.int64())])
#: files in one batch
_BATCH: Final = 10_000
#: folders that one task lists
_FOLDERS_PER_TASK: Final = 16


@dataclass(frozen=True, slots=True)
class VacuumListing:
    """What a vacuum with a full scan would delete.

    Attributes:
        table: The table.
        version: The version it was made for.
        num_files: How many files.
        size_bytes: Their bytes.
        num_unknown: How many of them no version knows.
        paths: Their paths below the root, sorted; None where they were written to ``output`` instead.
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
    look: Callable[[], None] = lambda: None,
) -> VacuumListing:
    """List what a vacuum with a full scan would delete; nothing is deleted.

    Args:
        spark: The session.
        uri: The table's address.
        retention_hours: How long removed files stay; by default as the table's property says.
        output: Write the list there, as Parquet, instead of bringing it here.
        storage_options: Options for the object store.
        look: Called now and then while the job runs.

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
    refuse_strangers(table.database, table.row, root.options)
    clock = checked_clock(table.database, table.name, root.store, dry_run=True)
    cutoff = clock.now - (shortest if retention_hours is None else retention_hours * _HOUR_MS)
    # before anything is read: what is in flight now may be committed in the next moment
    oldest = oldest_pending_write(root.location)
    opened = open_table(table.database, table.name)
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
    _note(table, "begin vacuum listing by Spark")

    def run() -> VacuumListing:
        return _told(table.name, snapshot.version, frame, output)

    done = watched(spark, run, look)
    _note(table, "vacuum listing by Spark", files=done.num_files, bytes=done.size_bytes)
    return done


def _listed(
    spark: SparkSession,
    root: str,
    columns: Sequence[str],
    others: tuple[str, ...],
    options: Mapping[str, str] | None,
) -> DataFrame:
    """Every file below the root that may be data, listed by executors, some folders each."""
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

    below = spread(spark, len(tasks), work, _DDL)
    return below.unionByName(spark.createDataFrame(here, _DDL)) if here else below


def _batch(rows: Sequence[tuple[str, int, int]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
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
    if not paths:  # of which Spark Connect cannot tell the types
        return spark.range(0).selectExpr("cast(id as string) as path")
    return spark.createDataFrame(pa.table({"path": pa.array(paths, pa.string())}))


def _told(name: str, version: int, frame: DataFrame, output: str | None) -> VacuumListing:
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


def _note(table: TableHandle, what: str, **details: Any) -> None:
    with table.database.write() as session:
        audit.record(session, what, table_id=table.row.table_id, table=table.name, **details)
