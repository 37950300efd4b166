"""Work in shares: what tasks of a Spark job read of a log, and how a job is run and watched."""

from __future__ import annotations

import logging
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from deltalakedb.exceptions import DeltaSqlError, OperationError, SparkSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.delta_log.checkpoint import CheckpointScan, Window

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: seconds between two looks at a job
_LOOK: Final = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """A run of a checkpoint's rows that is one task's."""

    begin: int
    end: int


def windows_of(scan: CheckpointScan, share: Share, size: int) -> Iterator[Window]:
    """The windows of a share."""
    for window in scan.windows(size, after=share.begin):
        if window.begin >= share.end:
            return
        yield window


def cut(rows: int, size: int, windows: int, begun: Collection[int] = ()) -> list[Share]:
    """Shares of so many windows at the most; windows that begin where others were begun are left out."""
    shares: list[Share] = []
    for begin in range(0, rows, size):
        if begin in begun:
            continue
        end = min(begin + size, rows)
        last = shares[-1] if shares else None
        if last is not None and last.end == begin and end - last.begin <= windows * size:
            shares[-1] = Share(last.begin, end)
        else:
            shares.append(Share(begin, end))
    return shares


def spread(
    spark: SparkSession, count: int, work: Callable[[int], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """A DataFrame of what some work gives for each number below a count, a task for each."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(number)

    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, schema)


#: what tasks answer with: a value, or the error that ended them
ANSWER: Final = "number bigint, ok boolean, payload binary"
_ANSWER: Final = pa.schema([("number", pa.int64()), ("ok", pa.bool_()), ("payload", pa.binary())])


def answers(work: Callable[[int], Iterator[Any]]) -> Callable[[int], Iterator[pa.RecordBatch]]:
    """Work whose values travel as `ANSWER`; an error that no second try mends travels too."""

    def run(number: int) -> Iterator[pa.RecordBatch]:
        try:
            for value in work(number):
                yield _answer(number, ok=True, value=value)
        except DeltaSqlError as error:
            if error.transient:
                raise  # Spark tries a task again
            yield _answer(number, ok=False, value=error)

    return run


def _answer(number: int, *, ok: bool, value: Any) -> pa.RecordBatch:
    row = {"number": [number], "ok": [ok], "payload": [pickle.dumps(value)]}
    return pa.RecordBatch.from_pydict(row, schema=_ANSWER)


def collect(frame: DataFrame) -> list[Any]:
    """The values of an `ANSWER` frame.

    Raises:
        DeltaSqlError: The first error that a task met.
    """
    values: list[Any] = []
    errors: list[Any] = []
    # as Arrow, since payloads are large: rows would be pickled once more on their way
    for batch in frame.toArrow().to_batches():
        for ok, payload in zip(batch.column("ok"), batch.column("payload"), strict=True):
            # tasks run our own code: what they pickle is ours
            (values if ok.as_py() else errors).append(pickle.loads(payload.as_buffer()))  # noqa: S301
    if errors:
        raise errors[0]
    return values


def watched(spark: SparkSession, job: Callable[[], T], look: Callable[[], None]) -> T:
    """Run a job in a thread while this one looks after it; what ends the looking ends the job.

    Raises:
        OperationError: Spark could not do it.
        SparkSetupError: An executor lacks this package.
    """
    tag = f"deltasql-{uuid.uuid4().hex}"

    def run() -> T:
        spark.addTag(tag)
        try:
            return job()
        finally:
            spark.removeTag(tag)

    with ThreadPoolExecutor(1, thread_name_prefix="deltasql-spark") as pool:
        future = pool.submit(copy_context().run, run)
        try:
            while not wait([future], _LOOK).done:
                look()
            return future.result()
        except DeltaSqlError:
            spark.interruptTag(tag)
            raise
        except Exception as error:
            spark.interruptTag(tag)
            if (told := as_ours(error)) is not None:
                raise told from error
            raise
        except BaseException:
            spark.interruptTag(tag)
            raise


def as_ours(error: Exception) -> DeltaSqlError | None:
    """What Spark says of a failed job, in one line; None for what is not Spark's."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("No module named 'deltalakedb'" in line for line in lines):
        return SparkSetupError(
            "Spark's executors do not have deltalakedb",
            suggestion="install it in their Python, or send it along (spark.archives); see PYSPARK_PYTHON",
        )
    told = [line for line in lines if "Error: " in line and "PythonException" not in line]
    return OperationError(
        f"a Spark job failed: {told[-1] if told else (lines or ['no reason is given'])[0]}",
        suggestion="look at the executors' logs; what was done stays, so the same call goes on from there",
    )
