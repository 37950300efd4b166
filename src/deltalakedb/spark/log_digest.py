"""The digests of logs by Spark: the live files of many tables, hashed and summed in one job.

Executors read checkpoints and commits, hash every file and sum the digests. If many commits follow a
checkpoint, Spark determines the last action on each file. The sums equal those of one process.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from deltalakedb.delta_log.checkpoint_scan import CheckpointScan, Piece
from deltalakedb.delta_log.large_commits import is_large, iter_pieces
from deltalakedb.delta_log.listing import list_log
from deltalakedb.exceptions import DeltaSqlError, OperationError
from deltalakedb.metastore.file_rows import path_hash
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.digest import BUCKETS, FileDigest
from deltalakedb.protocol.replay import file_key
from deltalakedb.spark.jobs import map_tasks, run_monitored, split_rows, windows_of
from deltalakedb.transfer.live import hashed
from deltalakedb.transfer.vectors import hashed_files, hashed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.protocol.replay import FileKey
    from deltalakedb.spark.jobs import RowRange
    from deltalakedb.storage import Store

logger = logging.getLogger(__name__)

#: what a task reads at the most; one that begins inside a row group decodes it from its beginning
_ROWS: Final = 250_000
_BYTES: Final = 16 * 1024 * 1024
#: commits after a checkpoint that the driver reads sooner than a task would begin
_SHORT_TAIL: Final = 20_000
#: files that the commits after checkpoints name at the most for every task to know all of them
_BROADCAST: Final = 500_000
#: an action takes about so many bytes in JSON
_JSON_PER_ACTION: Final = 500

#: rows of a checkpoint in memory at once
_WINDOW: Final = 16_384

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
#: what a task has summed up for a bucket
_SUMS: Final = pa.schema(
    [
        ("t", pa.int32()),
        ("bucket", pa.int64()),
        ("n", pa.int64()),
        ("size", pa.int64()),
        ("first", pa.int64()),
        ("second", pa.int64()),
        ("error", pa.string()),
    ]
)
_SUMS_DDL: Final = "t int, bucket bigint, n bigint, size bigint, first bigint, second bigint, error string"
_ACTIONS_DDL: Final = (
    "t int, hash bigint, dv string, at bigint, live boolean, size bigint, first bigint, "
    "second bigint, error string"
)


def log_digests(
    spark: SparkSession,
    tables: Sequence[tuple[Store, int]],
    *,
    least_rows: int = 0,
    look: Callable[[], None] = lambda: None,
) -> list[FileDigest | None]:
    """The digests of the live files at a version of each log, computed by one job.

    Args:
        spark: The session.
        tables: The tables' roots, and the version of each.
        least_rows: No job is started if the logs have fewer rows to read.
        look: Called now and then while the job runs.

    Returns:
        A digest for each; None if a log cannot be read this way, or no job was started.
    """
    made: list[FileDigest | None] = [FileDigest() for _ in tables]
    parts: list[Part] = []
    for number, (store, version) in enumerate(tables):
        try:
            parts += _shortened(list(_parts(number, store, version)), made[number] or FileDigest())
        except DeltaSqlError as error:
            logger.info("%s is read by the driver: %s", store.location, error.message)
            made[number] = None
    if not parts:
        return made
    if sum(part.weight for part in parts) < least_rows:
        return [None] * len(tables)
    try:
        rows = run_monitored(spark, lambda: _sums(spark, parts).toArrow().to_pylist(), look)
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


# ---- parts of logs that tasks read -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointRows:
    """Some rows of a table's checkpoint."""

    table: int
    checkpoint: CheckpointScan
    rows: RowRange
    version: int
    weight: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its files, hashed."""
        for window in windows_of(self.checkpoint, self.rows, _WINDOW):
            for part in window.parts:
                if isinstance(part, Piece) and (fast := hashed_rows(part.batch, ())) is not None:
                    yield self._batch(fast)
                    continue
                actions = part.actions() if isinstance(part, Piece) else part
                yield self._batch([hashed(a) for a in actions if isinstance(a, Add)])

    def _batch(self, rows: Sequence[Sequence[object]]) -> pa.RecordBatch:
        at, live = [2 * self.version + 1] * len(rows), [True] * len(rows)
        return _batch(self.table, rows, at, live)

    def failed(self, error: DeltaSqlError) -> pa.RecordBatch:
        """A row that reports an error."""
        return _failed(self.table, error)

    def without(self, touched: frozenset[FileKey]) -> SummedRows:
        """The same rows, to be summed by the task itself."""
        return SummedRows(self.table, self.checkpoint, self.rows, touched, self.weight)


@dataclass(frozen=True, slots=True)
class SummedRows:
    """Some rows of a checkpoint with so few commits after it that each task knows their files."""

    table: int
    checkpoint: CheckpointScan
    rows: RowRange
    touched: frozenset[FileKey]
    weight: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The sums of its files that no later commit names."""
        made = FileDigest()
        for window in windows_of(self.checkpoint, self.rows, _WINDOW):
            for part in window.parts:
                if isinstance(part, Piece) and (fast := hashed_files(part.batch, self.touched)) is not None:
                    fast.add_to(made, None)
                    continue
                actions = part.actions() if isinstance(part, Piece) else part
                adds = (a for a in actions if isinstance(a, Add) and file_key(a) not in self.touched)
                made.add_rows(hashed(a) for a in adds)
        some = np.flatnonzero(made.counts)
        sums = (some, *(getattr(made, name)[some] for name in ("counts", "sizes", "first", "second")))
        yield pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(self.table, pa.int32()), len(some)),
                *(pa.array(numbers, pa.int64()) for numbers in sums),
                pa.nulls(len(some), pa.string()),
            ],
            schema=_SUMS,
        )

    def failed(self, error: DeltaSqlError) -> pa.RecordBatch:
        """A row that reports an error."""
        row = {name: [0] for name in _SUMS.names} | {"t": [self.table], "error": [error.message]}
        return pa.RecordBatch.from_pydict(row, schema=_SUMS)


@dataclass(frozen=True, slots=True)
class Commits:
    """Some commits of a table, with their positions in its order."""

    table: int
    store: Store
    files: tuple[tuple[int, str], ...]
    weight: int
    #: its one commit is read in pieces, not as a whole
    large: bool = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Their file actions; a file that is removed and added in one commit lives."""
        for order, path in self.files:
            for found in self._actions(path):
                rows = [hashed(a) if isinstance(a, Add) else _gone(a) for a in found]
                live = [isinstance(a, Add) for a in found]
                yield _batch(self.table, rows, [2 * order + alive for alive in live], live)

    def _actions(self, path: str) -> Iterator[Sequence[Add | Remove]]:
        if self.large:
            yield from iter_pieces(self.store, path)
            return
        actions = decode_commit(self.store.get(path), source=path)
        yield [a for a in actions if isinstance(a, Add | Remove)]

    def failed(self, error: DeltaSqlError) -> pa.RecordBatch:
        """A row that reports an error."""
        return _failed(self.table, error)

    def last(self) -> dict[FileKey, Add | Remove]:
        """The last action on each file, if these are all commits after a checkpoint."""
        found: dict[FileKey, Add | Remove] = {}
        for _, path in self.files:
            actions = [a for some in self._actions(path) for a in some]
            for kind in (Remove, Add):
                found.update((file_key(a), a) for a in actions if isinstance(a, kind))
        return found


Part: TypeAlias = CheckpointRows | Commits | SummedRows


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


# ---- the job -----------------------------------------------------------------------------------------------


def _parts(number: int, store: Store, version: int) -> Iterator[Part]:
    plan = list_log(store).plan(version)
    if plan.checkpoint is not None:
        scan = CheckpointScan(store, plan.checkpoint)
        for rows in split_rows(scan.rows, _WINDOW, max(1, _ROWS // _WINDOW)):
            yield CheckpointRows(number, scan, rows, plan.base, rows.end - rows.begin)
    waiting, size = list[tuple[int, str]](), 0
    for order, meta in enumerate(plan.files, start=plan.base + 1):
        if is_large(meta):
            yield Commits(number, store, ((order, meta.path),), meta.size // _JSON_PER_ACTION, large=True)
            continue
        waiting.append((order, meta.path))
        size += meta.size
        if size >= _BYTES:
            yield Commits(number, store, tuple(waiting), size // _JSON_PER_ACTION)
            waiting, size = [], 0
    if waiting:
        yield Commits(number, store, tuple(waiting), size // _JSON_PER_ACTION)


def _shortened(parts: list[Part], made: FileDigest) -> list[Part]:
    """The parts of a table; if few commits follow a checkpoint, they are read here and added."""
    commits = [part for part in parts if isinstance(part, Commits)]
    rows = [part for part in parts if isinstance(part, CheckpointRows)]
    if not rows or len(commits) > 1 or any(c.large or c.weight > _SHORT_TAIL for c in commits):
        return parts
    last = commits[0].last() if commits else {}
    made.add_rows(hashed(action) for action in last.values() if isinstance(action, Add))
    touched = frozenset(last)
    return [part.without(touched) for part in rows]


def _packed(parts: Iterable[Part]) -> Iterator[tuple[Part, ...]]:
    """The parts of each task; small ones are combined."""
    waiting: list[Part] = []
    weight = 0
    for part in parts:
        if waiting and weight + part.weight > _ROWS:
            yield tuple(waiting)
            waiting, weight = [], 0
        waiting.append(part)
        # opening a file takes time, however few rows it has
        weight += part.weight + 1_000
    if waiting:
        yield tuple(waiting)


def _actions(spark: SparkSession, parts: Iterable[Part], schema: str = _ACTIONS_DDL) -> DataFrame:
    bins = list(_packed(parts))

    def work(number: int) -> Iterator[pa.RecordBatch]:
        for part in bins[number]:
            try:
                yield from part.batches()
            except DeltaSqlError as error:
                if error.transient:
                    raise
                yield part.failed(error)

    return map_tasks(spark, len(bins), work, schema)


def _sums(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    """The sums by table and bucket, over files whose last action is an add."""
    from pyspark.sql import functions as f

    summed = [part for part in parts if isinstance(part, SummedRows)]
    others = [part for part in parts if not isinstance(part, SummedRows)]
    frames = [_actions(spark, summed, _SUMS_DDL)] if summed else []
    frames += [_joined(spark, others)] if others else []
    totals = [f.sum(name).alias(name) for name in ("n", "size", "first", "second")]
    every = reduce(lambda a, b: a.unionByName(b), frames)
    return every.groupBy("t", "bucket").agg(*totals, f.max("error").alias("error"))


def _joined(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    """Files of checkpoints that no later commit names, and those that commits added last."""
    from pyspark.sql import functions as f

    key = ["t", "hash", "dv"]
    tail = _actions(spark, [part for part in parts if isinstance(part, Commits)])
    last = tail.groupBy(*key).agg(
        f.max_by(f.struct("live", "size", "first", "second", "error"), "at").alias("last")
    )
    named = last.select(*key)
    if sum(part.weight for part in parts if isinstance(part, Commits)) <= _BROADCAST:
        named = f.broadcast(named)
    # a file of the checkpoint lives unless a later commit names it
    files = _actions(spark, [part for part in parts if isinstance(part, CheckpointRows)])
    base = files.join(named, on=key, how="left_anti")
    columns = [*key, "size", "first", "second", "error"]
    newer = last.where("last.live").select(*key, *(f"last.{name}" for name in columns[3:]))
    return (
        base.select(*columns)
        .unionByName(newer)
        .select(
            "t",
            f.col("hash").bitwiseAND(BUCKETS - 1).alias("bucket"),
            f.lit(1).cast("bigint").alias("n"),
            *columns[3:],
        )
    )
