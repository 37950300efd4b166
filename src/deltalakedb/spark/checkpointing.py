"""V2 checkpoints of very large tables: executors read shards of the files from SQL and write sidecars."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from deltalakedb.config import get_config, use_config
from deltalakedb.delta_log.checkpoint_schema import STATS_AS_JSON, STATS_AS_STRUCT, checkpoint_schema, wants
from deltalakedb.delta_log.checkpoint_writer import (
    SIDECAR_ROWS,
    V2_FEATURE,
    CheckpointContent,
    WrittenCheckpoint,
    file_rows,
    new_sidecar_path,
    put_parquet,
    put_v2,
)
from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.metastore import audit, files, registry, snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import checkpointer
from deltalakedb.protocol.rules import is_on
from deltalakedb.spark.shares import ANSWER, answers, collect, spread, watched
from deltalakedb.spark.sight import runs_here
from deltalakedb.uri import parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from deltalakedb.config import Config
    from deltalakedb.delta_log.checkpoint_schema import CheckpointSchema
    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind
    from deltalakedb.metastore.values import OpenTable
    from deltalakedb.storage.store import Store
    from deltalakedb.uri import Address


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
        rows_per_part: Files in a sidecar, about.
        storage_options: Options for the object store.
        progress: Called with the number of sidecars that are written and the number of all.

    Raises:
        UnsupportedOperationError: Executors cannot read the catalog: it is a DuckDB file, which one process
            has for itself, or an SQLite file on the driver of a cluster.

    Example:
        >>> checkpoint(spark, "deltasql://postgres/lake/main/web.clicks").num_add_files
        10000000
    """
    address = parse_uri(uri)
    name = address.require_table()
    if rows_per_part < 1:
        raise InvalidArgumentError(f"rows_per_part must be 1 or more, not {rows_per_part}")
    if address.engine == "duckdb" or (address.engine == "sqlite" and not runs_here(spark)):
        raise UnsupportedOperationError(
            f"executors cannot read a catalog on {address.engine} beside this process",
            table=address.table,
            suggestion=f"write the checkpoint here: deltasql checkpoint {address.table}",
        )
    database = Database.open(address)
    location = registry.find(database, name).location
    options = get_config().storage_options_for(location, storage_options)
    writer = _Writer(spark, address, rows_per_part, progress)
    return checkpointer.checkpoint(database, name, storage_options=options, write=writer)


class _Writer:
    """Writes checkpoints by jobs; `checkpointer.checkpoint` does everything around it."""

    def __init__(
        self, spark: SparkSession, address: Address, rows: int, progress: Callable[[int, int], None]
    ) -> None:
        self._spark, self._address, self._rows, self._progress = spark, address, rows, progress

    def __call__(
        self, database: Database, name: str, version: int, *, store: Store, kind: CheckpointKind | None
    ) -> WrittenCheckpoint:
        """Write one; the kind follows from the table's features."""
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
        shards = _shards(database, opened, self._rows)
        first, *paths = (new_sidecar_path(version, n) for n in range(1, len(shards) + 2))
        content = checkpointer.content_of(database, opened, ())
        job = _Job(
            self._address, get_config(), name, store, replace(content, tombstones=()), schema, shards, paths
        )
        self._note(database, opened, "begin checkpoint by Spark", parts=len(paths) + 1)
        counts, _ = put_parquet(store, first, file_rows(content, schema, schema.sidecar()), schema.sidecar())
        counts["add"] = sum(self._run(store, job))
        self._note(database, opened, "checkpoint by Spark", parts=len(paths) + 1, files=counts["add"])
        return put_v2(store, content, schema, [first, *paths], counts)

    def _run(self, store: Store, job: _Job) -> list[int]:
        def look() -> None:
            there = sum(store.exists(path) for path in job.paths)
            self._progress(there, len(job.paths))

        def run() -> list[Any]:
            return collect(spread(self._spark, len(job.shards), answers(job.write), ANSWER))

        done = watched(self._spark, run, look)
        look()
        return done

    def _note(self, database: Database, opened: OpenTable, what: str, **details: Any) -> None:
        with database.write() as session:
            audit.record(
                session,
                what,
                table_id=opened.table.table_id,
                table=opened.table.name,
                version=opened.snapshot.version,
                **details,
            )


@dataclass(frozen=True, slots=True)
class _Job:
    """What a task has to know; the content has no files, tasks read their shards of them."""

    address: Address
    config: Config
    table: str
    store: Store
    content: CheckpointContent
    schema: CheckpointSchema
    shards: tuple[tuple[int, int], ...]
    paths: list[str]

    def write(self, number: int) -> Iterator[int]:
        """Write one sidecar; how many files it has. A second try leaves the first one's as it is."""
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
    """Ranges of sequence numbers that cover every file, about as many as there are parts to write."""
    count, end = files.totals(database, opened)[0], files.next_seq(database, opened.table)
    many = max(1, ceil(count / rows))
    step = max(1, ceil(end / many))
    return tuple((at, min(at + step, end)) for at in range(0, max(end, 1), step))
