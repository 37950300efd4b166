"""Replay of logs by Spark: the digests of many tables' live files in one job.

Executors read checkpoints and commits and hash every file; Spark finds out which action on a file is the last
and sums the digests up. The sums are those that one process makes.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from deltalakedb.catalog.file_rows import path_hash
from deltalakedb.exceptions import DeltaSqlError, OperationError
from deltalakedb.log.checkpoint_scan import CheckpointScan, Piece
from deltalakedb.log.listing import list_log
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.digest import BUCKETS, FileDigest
from deltalakedb.spark.shares import cut, spread, watched, windows_of
from deltalakedb.transfer.live import hashed
from deltalakedb.transfer.vectors import hashed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.spark.shares import Share
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: what a task reads at the most
_ROWS: Final = 100_000
_BYTES: Final = 16 * 1024 * 1024
_WINDOW: Final = 16_384
#: an action takes about so many bytes in JSON
_JSON_PER_ACTION: Final = 500

#: an action on a file: ``at`` orders the actions of a version, removes first
_SCHEMA: Final = pa.schema(
    [
        ("t", pa.int32()),
        ("hash", pa.int64()),
        ("dv", pa.string()),
        ("at", pa.int64()),
        ("live", pa.bool_()),
        ("size", pa.int64()),
        ("first", pa.int64()),
        ("second", pa.int64()),
        ("error", pa.string()),
    ]
)
_DDL: Final = (
    "t int, hash bigint, dv string, at bigint, live boolean, size bigint, first bigint, "
    "second bigint, error string"
)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of a table's checkpoint."""

    table: int
    checkpoint: CheckpointScan
    share: Share
    version: int
    weight: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its files, hashed."""
        for window in windows_of(self.checkpoint, self.share, _WINDOW):
            for part in window.parts:
                if isinstance(part, Piece) and (fast := hashed_rows(part.batch, ())) is not None:
                    yield self._batch(fast)
                    continue
                actions = part.actions() if isinstance(part, Piece) else part
                yield self._batch([hashed(a) for a in actions if isinstance(a, Add)])

    def _batch(self, rows: Sequence[Sequence[object]]) -> pa.RecordBatch:
        at, live = [2 * self.version + 1] * len(rows), [True] * len(rows)
        return _batch(self.table, rows, at, live)


@dataclass(frozen=True, slots=True)
class _Commits:
    """Some commits of a table, and where they stand in its order."""

    table: int
    store: Store
    files: tuple[tuple[int, str], ...]
    weight: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Their file actions; a file that is removed and added in one commit lives."""
        for order, path in self.files:
            actions = decode_commit(self.store.get(path), source=path)
            found = [a for a in actions if isinstance(a, Add | Remove)]
            rows = [hashed(a) if isinstance(a, Add) else _gone(a) for a in found]
            live = [isinstance(a, Add) for a in found]
            yield _batch(self.table, rows, [2 * order + alive for alive in live], live)


_Part: TypeAlias = _Rows | _Commits


def log_digests(
    spark: SparkSession,
    tables: Sequence[tuple[Store, int]],
    *,
    least_rows: int = 0,
    look: Callable[[], None] = lambda: None,
) -> list[FileDigest | None]:
    """The digests of the files that live at a version of each log, made by one job.

    Args:
        spark: The session.
        tables: The tables' roots, and the version of each.
        least_rows: Where the logs have less than that to read, no job is started.
        look: Called now and then while the job runs.

    Returns:
        A digest for each; None where a log cannot be read so, and where no job was started.
    """
    made: list[FileDigest | None] = [FileDigest() for _ in tables]
    parts: list[_Part] = []
    for number, (store, version) in enumerate(tables):
        try:
            parts += _parts(number, store, version)
        except DeltaSqlError as error:
            logger.info("%s is read by the driver: %s", store.location, error.message)
            made[number] = None
    if not parts:
        return made
    if sum(part.weight for part in parts) < least_rows:
        return [None] * len(tables)
    try:
        rows = watched(spark, lambda: _sums(spark, parts).collect(), look)
    except OperationError as error:
        logger.info("the logs are read by the driver: %s", error.message)
        return [None] * len(tables)
    for row in rows:
        digest = made[row["t"]]
        if row["error"] is not None:
            logger.info("%s is read by the driver: %s", tables[row["t"]][0].location, row["error"])
            made[row["t"]] = None
        elif digest is not None:
            digest.add_sums(row["bucket"], row["n"], row["size"], row["first"], row["second"])
    return made


def _parts(number: int, store: Store, version: int) -> Iterator[_Part]:
    plan = list_log(store).plan(version)
    if plan.checkpoint is not None:
        scan = CheckpointScan(store, plan.checkpoint)
        for share in cut(scan.rows, _WINDOW, max(1, _ROWS // _WINDOW)):
            yield _Rows(number, scan, share, plan.base, share.end - share.begin)
    waiting, size = list[tuple[int, str]](), 0
    for order, meta in enumerate(plan.files, start=plan.base + 1):
        waiting.append((order, meta.path))
        size += meta.size
        if size >= _BYTES:
            yield _Commits(number, store, tuple(waiting), size // _JSON_PER_ACTION)
            waiting, size = [], 0
    if waiting:
        yield _Commits(number, store, tuple(waiting), size // _JSON_PER_ACTION)


def _packed(parts: Iterable[_Part]) -> Iterator[tuple[_Part, ...]]:
    """Parts for one task each; small ones go together."""
    waiting: list[_Part] = []
    weight = 0
    for part in parts:
        if waiting and weight + part.weight > _ROWS:
            yield tuple(waiting)
            waiting, weight = [], 0
        waiting.append(part)
        # opening a file takes its time, however few rows it has
        weight += part.weight + 1_000
    if waiting:
        yield tuple(waiting)


def _actions(spark: SparkSession, parts: Iterable[_Part]) -> DataFrame:
    bins = list(_packed(parts))

    def work(number: int) -> Iterator[pa.RecordBatch]:
        for part in bins[number]:
            try:
                yield from part.batches()
            except DeltaSqlError as error:
                if error.transient:
                    raise
                yield _failed(part.table, error)

    return spread(spark, len(bins), work, _DDL)


def _sums(spark: SparkSession, parts: Sequence[_Part]) -> DataFrame:
    """The sums of every table and bucket, over the last action on each file where that is an add."""
    from pyspark.sql import functions as f

    key = ["t", "hash", "dv"]
    tail = _actions(spark, [part for part in parts if isinstance(part, _Commits)])
    last = tail.groupBy(*key).agg(
        f.max_by(f.struct("live", "size", "first", "second", "error"), "at").alias("last")
    )
    # a file of the checkpoint lives unless a later commit names it
    files = _actions(spark, [part for part in parts if isinstance(part, _Rows)])
    base = files.join(last.select(*key), on=key, how="left_anti")
    columns = [*key, "size", "first", "second", "error"]
    newer = last.where("last.live").select(*key, *(f"last.{name}" for name in columns[3:]))
    return (
        base.select(*columns)
        .unionByName(newer)
        .groupBy("t", (f.col("hash").bitwiseAND(BUCKETS - 1)).alias("bucket"))
        .agg(
            f.count("*").alias("n"),
            f.sum("size").alias("size"),
            f.sum("first").alias("first"),
            f.sum("second").alias("second"),
            f.max("error").alias("error"),
        )
    )


def _batch(table: int, rows: Sequence[Sequence[object]], at: list[int], live: list[bool]) -> pa.RecordBatch:
    digests = b"".join(_digest(row) for row in rows)
    lanes = np.frombuffer(digests, dtype=">u4").reshape(-1, 4).astype(np.int64)
    many = len(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(table, pa.int32()), many),
            pa.array([row[0] for row in rows], pa.int64()),
            pa.array([row[2] for row in rows], pa.string()),
            pa.array(at, pa.int64()),
            pa.array(live, pa.bool_()),
            pa.array([row[3] for row in rows], pa.int64()),
            pa.array(lanes[:, 0]),
            pa.array(lanes[:, 1]),
            pa.nulls(many, pa.string()),
        ],
        schema=_SCHEMA,
    )


def _digest(row: Sequence[object]) -> bytes:
    _, path, dv_id, size, modified, values, stats = row
    text = f"{path}\x1f{dv_id}\x1f{size}\x1f{modified}\x1f{values}\x1f{stats}"
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def _gone(remove: Remove) -> tuple[int, str, str, int, int, str, str]:
    return path_hash(remove.path), remove.path, remove.dv_id, 0, 0, "", ""


def _failed(table: int, error: DeltaSqlError) -> pa.RecordBatch:
    row = {
        "t": [table],
        "hash": [0],
        "dv": ["\x1f"],
        "at": [0],
        "live": [True],
        "size": [0],
        "first": [0],
        "second": [0],
        "error": [error.message],
    }
    return pa.RecordBatch.from_pydict(row, schema=_SCHEMA)
