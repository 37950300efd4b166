"""Replay of logs by Spark: the digests of many tables' live files in one job.

Executors read checkpoints and commits, hash every file and sum the digests up; where many commits follow a
checkpoint, Spark finds out which action on a file is the last. The sums are those that one process makes.
"""

from __future__ import annotations

import logging
from functools import reduce
from typing import TYPE_CHECKING, Final

from deltalakedb.delta_log.checkpoint import CheckpointScan
from deltalakedb.delta_log.commit_file import is_large
from deltalakedb.delta_log.listing import list_log
from deltalakedb.exceptions import DeltaSqlError, OperationError
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.digest import BUCKETS, FileDigest
from deltalakedb.spark.log_parts import ACTIONS, SUMS, WINDOW, CheckpointRows, Commits, SummedRows
from deltalakedb.spark.shares import cut, spread, watched
from deltalakedb.transfer.live import hashed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.spark.log_parts import Part
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
        rows = watched(spark, lambda: _sums(spark, parts).toArrow().to_pylist(), look)
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


def _parts(number: int, store: Store, version: int) -> Iterator[Part]:
    plan = list_log(store).plan(version)
    if plan.checkpoint is not None:
        scan = CheckpointScan(store, plan.checkpoint)
        for share in cut(scan.rows, WINDOW, max(1, _ROWS // WINDOW)):
            yield CheckpointRows(number, scan, share, plan.base, share.end - share.begin)
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
    """The parts of a table; the few commits that follow a checkpoint are read here, and counted in."""
    commits = [part for part in parts if isinstance(part, Commits)]
    rows = [part for part in parts if isinstance(part, CheckpointRows)]
    if not rows or len(commits) > 1 or any(c.large or c.weight > _SHORT_TAIL for c in commits):
        return parts
    last = commits[0].last() if commits else {}
    made.add_rows(hashed(action) for action in last.values() if isinstance(action, Add))
    touched = frozenset(last)
    return [part.without(touched) for part in rows]


def _packed(parts: Iterable[Part]) -> Iterator[tuple[Part, ...]]:
    """Parts for one task each; small ones go together."""
    waiting: list[Part] = []
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


def _actions(spark: SparkSession, parts: Iterable[Part], schema: str = ACTIONS) -> DataFrame:
    bins = list(_packed(parts))

    def work(number: int) -> Iterator[pa.RecordBatch]:
        for part in bins[number]:
            try:
                yield from part.batches()
            except DeltaSqlError as error:
                if error.transient:
                    raise
                yield part.failed(error)

    return spread(spark, len(bins), work, schema)


def _sums(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    """The sums of tables and buckets, over the last action on each file where that is an add."""
    from pyspark.sql import functions as f

    summed = [part for part in parts if isinstance(part, SummedRows)]
    others = [part for part in parts if not isinstance(part, SummedRows)]
    frames = [_actions(spark, summed, SUMS)] if summed else []
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
