"""The Spark engine of an import: executors read and encode the checkpoint, and copy it into Postgres."""

from __future__ import annotations

import time
from contextvars import copy_context
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.config import get_config, use_config
from deltalakedb.delta_log.checkpoint import CheckpointScan
from deltalakedb.delta_log.listing import list_log
from deltalakedb.exceptions import LogCorruptError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import imports
from deltalakedb.metastore.database import Database
from deltalakedb.spark.java import check_java
from deltalakedb.spark.reaching import check_master
from deltalakedb.spark.replaying import log_digests
from deltalakedb.spark.row_digests import plain_rows
from deltalakedb.spark.sessions import check_connect
from deltalakedb.spark.sessions import session as start_session
from deltalakedb.spark.shares import ANSWER, Share, answers, collect, cut, spread, watched, windows_of
from deltalakedb.spark.tails import TailJobs
from deltalakedb.spark.versions import check_versions
from deltalakedb.transfer.loader import TORN, LocalEngine, base_batch, receipt_of
from deltalakedb.transfer.pace import Pace
from deltalakedb.transfer.plan import base_checkpoint
from deltalakedb.transfer.windows import Encoders, ahead, prepare, write_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from deltalakedb.config import Config
    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.protocol.digest import FileDigest
    from deltalakedb.transfer.data_rows import RowDigest
    from deltalakedb.transfer.engines import LoadTask
    from deltalakedb.transfer.plan import ImportPlan
    from deltalakedb.transfer.windows import PreparedWindow
    from deltalakedb.uri import Address

#: windows that one task takes; a task that begins inside a row group reads it from its beginning
_WINDOWS_PER_TASK: Final = 4
#: the same where the driver writes; and how many such tasks a job has, the first of them soon
_WINDOWS_SENT: Final = 2
_TASKS_PER_JOB: Final = (2, 3, 4)
#: bytes of commits from which on executors parse them
_LONG_TAIL: Final = 16 * 1024 * 1024
#: databases that many processes may write to at a time
_SHARED: Final = frozenset({"postgres"})


def check(remote: str | None = None, master: str | None = None) -> None:
    """See that Spark could be started, or a Spark Connect server be spoken to.

    Raises:
        MissingExtraError: PySpark is not installed.
        SparkSetupError: Java is missing or does not fit, or master or server cannot be reached.
    """
    check_versions()
    if remote is None or remote.startswith("local"):
        check_java()
    if remote is not None:
        check_connect(remote)
    elif master is not None:
        check_master(master)


def start(*, master: str | None = None, remote: str | None = None) -> SparkSession:
    """A session for an import."""
    return start_session(master, remote=remote)


class SparkEngine:
    """Loads the first version's files by a Spark job; the commits after it are written by the driver.

    Where there are many of those, executors parse and encode them.

    Args:
        spark: The session.
        always: Run a job for small tables too; else the driver loads them alone.
    """

    name = "spark"

    def __init__(self, spark: SparkSession, *, always: bool = True) -> None:
        self._spark, self._always = spark, always

    def load(self, task: LoadTask) -> None:
        """Load every batch that has no receipt yet."""
        plan = task.plan
        if plan.base == "checkpoint" and (self._always or plan.base_rows > plan.batch_size):
            LocalEngine().open(task)
            try:
                self._base(task)
            except LogCorruptError as error:
                error.context[TORN] = plan.first_version
                raise
        # what is left, which is nothing of the base
        if plan.tail_bytes < _LONG_TAIL:
            LocalEngine().load(task)
            return
        with TailJobs(self._spark, task) as tails:
            LocalEngine().load(task, tails)

    def log_digest(
        self, reader: FileTxnLogReader, version: int, *, tick: Callable[[], None]
    ) -> FileDigest | None:
        """The digest of the log's files, by a job; None where the driver is as fast, or the job fails."""
        found = log_digests(
            self._spark,
            [(reader.store, version)],
            least_rows=0 if self._always else get_config().import_.batch_size,
            look=tick,
        )
        return found[0]

    def proof(self, version: int) -> None:  # noqa: ARG002
        """None: what executors read was not counted."""
        return

    def row_digest(self, location: str, version: int) -> RowDigest | None:
        """The digest of a plain table's rows, as delta-spark reads them."""
        return plain_rows(self._spark, location, version)

    def _base(self, task: LoadTask) -> None:
        scan = CheckpointScan(task.reader.store, base_checkpoint(list_log(task.reader.store), task.plan))
        done = imports.receipts(task.database, task.row.import_id)
        begun = {r.begins for r in done if r.kind == "base" and r.ends >= r.begins}
        with task.database.read() as session:
            encoders = Encoders.of(session, task.row.table_id, task.paths)
        here = task.database.address.engine not in _SHARED or task.rate_limit > 0
        windows = _WINDOWS_SENT if here else _WINDOWS_PER_TASK
        shares = cut(scan.rows, task.plan.batch_size, windows, begun)
        if not shares:
            return
        job = _Job(
            scan,
            tuple(shares),
            task.plan,
            encoders,
            task.database.address,
            get_config(),
            task.row.import_id,
            task.row.table_id,
            task.lease,
        )
        rows = sum(r.ends - r.begins + 1 for r in done if r.kind == "base")
        total = task.plan.base_rows + task.plan.version - task.plan.first_version
        pace = Pace(task, total, rows, sum(r.actions for r in done))
        (self._through_driver if here else self._by_executors)(task, job, pace)

    def _by_executors(self, task: LoadTask, job: _Job, pace: Pace) -> None:
        """Executors write: each batch in a transaction with its receipt."""
        seen = {r.batch for r in imports.receipts(task.database, task.row.import_id)}

        def look() -> None:
            with task.database.read() as session:
                imports.check_lease(session, task.lease)
            for receipt in imports.receipts(task.database, task.row.import_id):
                if receipt.batch not in seen and receipt.kind == "base":
                    seen.add(receipt.batch)
                    pace.step(receipt.ends - receipt.begins + 1, receipt.actions)

        def run() -> list[Any]:
            return collect(spread(self._spark, len(job.shares), answers(job.write), ANSWER))

        watched(self._spark, run, look)
        look()

    def _through_driver(self, task: LoadTask, job: _Job, pace: Pace) -> None:
        """Executors encode, the driver writes; the next windows are made meanwhile."""
        context = copy_context()

        def made() -> Iterator[list[PreparedWindow]]:
            at = 0
            for many in chain(_TASKS_PER_JOB, repeat(_TASKS_PER_JOB[-1])):
                some = min(many, len(job.shares) - at)
                if not some:
                    return
                yield context.run(self._prepared, job, at, some)
                at += some

        for windows in ahead(made()):
            for window in sorted(windows, key=lambda w: w.begin):
                began = time.monotonic()
                with task.database.write() as session:
                    imports.require(session, task.lease)
                    counts, actions = write_window(
                        session, job.table_id, task.plan.first_version, window, job.encoders
                    )
                    number = base_batch(task.plan, window.begin)
                    between = window.begin, window.end - 1
                    receipt = receipt_of(session, number, "base", between, actions, counts, window.end, began)
                    imports.write_receipt(session, job.import_id, receipt)
                    failpoint("import.batch_written")
                failpoint("import.batch_done")
                pace.step(window.end - window.begin, actions)

    def _prepared(self, job: _Job, at: int, some: int) -> list[PreparedWindow]:
        def work(number: int) -> Iterator[PreparedWindow]:
            return job.prepared(at + number)

        return watched(
            self._spark,
            lambda: collect(spread(self._spark, some, answers(work), ANSWER)),
            lambda: None,
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """What a task has to know; it is sent to the executors."""

    checkpoint: CheckpointScan
    shares: tuple[Share, ...]
    plan: ImportPlan
    encoders: Encoders
    address: Address
    config: Config
    import_id: str
    table_id: int
    lease: Lease

    def prepared(self, number: int) -> Iterator[PreparedWindow]:
        """The windows of a share as rows of the catalog."""
        for window in windows_of(self.checkpoint, self.shares[number], self.plan.batch_size):
            yield prepare(window, self.encoders)

    def write(self, number: int) -> Iterator[int]:
        """Write the windows of a share, each once whoever else tries."""
        with use_config(self.config):
            database = Database.open(self.address, self.config)
            try:
                for window in ahead(self.prepared(number)):
                    self._write(database, window)
                    yield window.begin
            finally:
                # the worker may be kept for other jobs, and a server's connections are few
                database.close()

    def _write(self, database: Database, window: PreparedWindow) -> None:
        began, batch = time.monotonic(), base_batch(self.plan, window.begin)
        with database.write() as session:
            imports.check_lease(session, self.lease)
            if not imports.claim_batch(session, self.import_id, batch):
                return
            counts, actions = write_window(
                session, self.table_id, self.plan.first_version, window, self.encoders
            )
            between = window.begin, window.end - 1
            receipt = receipt_of(session, batch, "base", between, actions, counts, window.end, began)
            imports.write_claimed_receipt(session, self.import_id, receipt)
            failpoint("import.batch_written")
            imports.check_lease(session, self.lease)
        failpoint("import.batch_done")
