"""Checkpoints of very large tables: executors read shards of the files out of SQL and write the parts."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from deltalakedb.config import get_config, use_config
from deltalakedb.delta_log.checkpoint import is_whole
from deltalakedb.delta_log.checkpoint_rows import add_rows, remove_rows, state_rows, table_of
from deltalakedb.delta_log.checkpoint_schema import STATS_AS_JSON, STATS_AS_STRUCT, checkpoint_schema, wants
from deltalakedb.delta_log.checkpoint_writer import ROWS_PER_PART, V2_FEATURE, WrittenCheckpoint
from deltalakedb.delta_log.listing import Checkpoint
from deltalakedb.delta_log.names import LOG_FOLDER, SIDECAR_FOLDER, checkpoint_part_path, v2_checkpoint_path
from deltalakedb.exceptions import AddressError, InvalidArgumentError, UnsupportedOperationError
from deltalakedb.metastore import audit, files, registry, snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import checkpointer
from deltalakedb.protocol.actions import CheckpointMetadata, Sidecar
from deltalakedb.protocol.properties import is_on
from deltalakedb.spark.shares import ANSWER, answers, collect, spread, watched
from deltalakedb.spark.sight import runs_here
from deltalakedb.uri import parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from deltalakedb.config import Config
    from deltalakedb.delta_log.checkpoint_rows import CheckpointContent
    from deltalakedb.delta_log.checkpoint_schema import CheckpointSchema
    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind
    from deltalakedb.metastore.values import OpenTable
    from deltalakedb.storage.store import Store
    from deltalakedb.uri import Address

_PREFIX: Final = "deltalakedb-checkpoint-"


def checkpoint(
    spark: SparkSession,
    uri: str,
    *,
    rows_per_part: int = ROWS_PER_PART,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> WrittenCheckpoint:
    """Write a checkpoint of a table's newest published version in parts, by executors.

    A table with the feature ``v2Checkpoint`` gets a V2 checkpoint with sidecars, any other a multi-part one.

    Args:
        spark: The session.
        uri: The table's address.
        rows_per_part: Files in a part or sidecar, about.
        storage_options: Options for the object store.
        progress: Called with the parts that are there and the parts that there will be.

    Raises:
        UnsupportedOperationError: Executors cannot read the catalog: it is a DuckDB file, which one process
            has for itself, or an SQLite file on the driver of a cluster.

    Example:
        >>> checkpoint(spark, "deltasql://postgres/lake/main/web.clicks").parts
        40
    """
    address = parse_uri(uri)
    if address.table is None:
        raise AddressError(
            f"{address.to_uri()} is a catalog's address, not a table's", suggestion="add ?table=NAME"
        )
    if rows_per_part < 1:
        raise InvalidArgumentError(f"rows_per_part must be 1 or more, not {rows_per_part}")
    if address.engine == "duckdb" or (address.engine == "sqlite" and not runs_here(spark)):
        raise UnsupportedOperationError(
            f"executors cannot read a catalog on {address.engine} beside this process",
            table=address.table,
            suggestion=f"write the checkpoint here: deltasql checkpoint {address.table}",
        )
    database = Database.open(address)
    location = registry.find(database, address.table).location
    options = get_config().storage_options_for(location, storage_options)
    writer = _Writer(spark, address, rows_per_part, progress)
    return checkpointer.checkpoint(database, address.table, storage_options=options, write=writer)


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
        v2 = kind == "v2" or V2_FEATURE in (protocol.writer_features or ())
        schema = checkpoint_schema(
            metadata,
            protocol,
            stats_as_json=wants(metadata, STATS_AS_JSON, default=True),
            stats_as_struct=is_on(metadata, STATS_AS_STRUCT),
        )
        shards = _shards(database, opened, self._rows)
        total = len(shards) + 1
        if v2:
            stem = f"{SIDECAR_FOLDER}/{version:020d}.checkpoint"
            paths = [f"{stem}.{n:010d}.{total:010d}.{uuid.uuid4()}.parquet" for n in range(1, total + 1)]
        else:
            paths = [checkpoint_part_path(version, n, total) for n in range(1, total + 1)]
            if found := _already(store, version, paths):
                return found
        job = _Job(
            self._address,
            get_config(),
            name,
            version,
            store,
            schema.sidecar() if v2 else schema.classic(),
            schema,
            shards,
            tuple(paths[1:]),
        )
        self._note(database, opened, "begin checkpoint by Spark", parts=total)
        content = checkpointer.content_of(database, opened, ())
        # the first part is the driver's: everything that is no live file
        few = _put(store, paths[0], _others(content, job.schema, state=not v2), job.schema)
        adds = sum(self._run(store, job))
        self._note(database, opened, "checkpoint by Spark", parts=total, files=adds)
        size = sum(store.head(path).size for path in paths)
        if not v2:
            return WrittenCheckpoint(version, "multipart", tuple(paths), few + adds, size, adds, total)
        return _top(store, content, schema, paths, few + adds, adds, size)

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
    """What a task has to know."""

    address: Address
    config: Config
    table: str
    version: int
    store: Store
    schema: pa.Schema
    columns: CheckpointSchema
    shards: tuple[tuple[int, int], ...]
    paths: tuple[str, ...]

    def write(self, number: int) -> Iterator[int]:
        """Write one part; how many files it has. A second try writes the same once more."""
        with use_config(self.config):
            database = Database.open(self.address, self.config)
            try:
                opened = snapshots.open_table(database, self.table, self.version)
                batches = files.stream_files(database, opened, between=self.shards[number])
                tables = (table_of("add", rows, self.schema) for rows in add_rows(batches, self.columns))
                yield _put(self.store, self.paths[number], tables, self.schema)
            finally:
                database.close()


def _shards(database: Database, opened: OpenTable, rows: int) -> tuple[tuple[int, int], ...]:
    """Ranges of sequence numbers that cover every file, about as many as there are parts to write."""
    count, end = files.totals(database, opened)[0], files.next_seq(database, opened.table)
    many = max(1, ceil(count / rows))
    step = max(1, ceil(end / many))
    return tuple((at, min(at + step, end)) for at in range(0, max(end, 1), step))


def _already(store: Store, version: int, paths: list[str]) -> WrittenCheckpoint | None:
    """A whole checkpoint under the same names, which stays; a dead writer's parts go."""
    found = {meta.path: meta for meta in store.list(LOG_FOLDER) if meta.path in paths}
    if len(found) == len(paths):
        whole = Checkpoint(version, tuple(found[p] for p in paths))
        if is_whole(store, whole):
            size = sum(m.size for m in whole.files)
            return WrittenCheckpoint(
                version, "multipart", tuple(paths), 0, size, 0, len(paths), created=False
            )
    for path in sorted(found):
        store.delete(path)
    return None


def _others(content: CheckpointContent, schema: pa.Schema, *, state: bool) -> Iterator[pa.Table]:
    if state:
        yield state_rows(content, schema)
    for rows in remove_rows(content.tombstones):
        yield table_of("remove", rows, schema)


def _put(store: Store, path: str, tables: Iterable[pa.Table], schema: pa.Schema) -> int:
    """Write a Parquet file, whole before it has its name; its rows."""
    rows = 0
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        local = Path(folder) / "part.parquet"
        # other engines have no use for Arrow's own copy of the schema
        with pq.ParquetWriter(local, schema, compression="snappy", store_schema=False) as writer:
            for table in tables:
                writer.write_table(table)
                rows += table.num_rows
        store.put_file(path, local, new=False)
    return rows


def _top(
    store: Store,
    content: CheckpointContent,
    schema: CheckpointSchema,
    paths: list[str],
    actions: int,
    adds: int,
    size: int,
) -> WrittenCheckpoint:
    """The file that makes sidecars a checkpoint."""
    version = content.version
    found = [store.head(path) for path in paths]
    sidecars = [
        Sidecar(path=m.path.rpartition("/")[2], size_in_bytes=m.size, modification_time=m.modified_ms)
        for m in found
    ]
    table = state_rows(content, schema.top_level(), more=[CheckpointMetadata(version=version), *sidecars])
    path = v2_checkpoint_path(version, str(uuid.uuid4()))
    _put(store, path, [table], table.schema)
    whole = size + store.head(path).size
    return WrittenCheckpoint(version, "v2", (*paths, path), table.num_rows + actions, whole, adds)
