"""Engines that load a table: this process, or Spark for tables that are too large for it."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError, LogCorruptError
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.settings import get_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.protocol.digest import FileDigest
    from deltalakedb.transfer.importing.plan import ImportPlan
    from deltalakedb.transfer.importing.report import ImportProgress
    from deltalakedb.transfer.verifying.data_rows import RowDigest

logger = logging.getLogger(__name__)

EngineName: TypeAlias = Literal["auto", "local", "spark"]
ENGINES: Final = ("auto", "local", "spark")
#: live files from which on ``auto`` takes Spark
MANY_FILES: Final = 500_000


class TornCheckpointError(LogCorruptError):
    """The checkpoint that an import begins with cannot be read to its end; an older one may do."""

    @classmethod
    def of(cls, error: LogCorruptError, version: int) -> TornCheckpointError:
        """The error that was met while the checkpoint of a version was read."""
        return cls(error.message, version=version, suggestion=error.suggestion, **error.context)


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Everything that an engine needs to load a table.

    Attributes:
        database: The catalog.
        row: The import; its ``table_id`` is reserved, its receipts say what is loaded already.
        plan: What to load.
        reader: The source's log.
        lease: The right to load, checked inside every batch's transaction.
        on_progress: Called with how far it is.
        rate_limit: File actions a second at most; 0 is no limit.
    """

    database: Database
    row: ImportRow
    plan: ImportPlan
    reader: FileTxnLogReader
    lease: Lease
    on_progress: Callable[[ImportProgress], None]
    rate_limit: int = 0

    @property
    def paths(self) -> TablePaths:
        """Where the table's files may be."""
        outside = self.database.engine.config.catalog.allow_outside_paths
        return TablePaths(self.row.location, outside, self.row.name)


class LoadEngine(Protocol):
    """Brings every batch of a plan into the catalog that has no receipt yet.

    An engine writes each batch in one transaction with its receipt (`metastore.imports.write_receipt`), after
    `metastore.imports.require` has found that the lease is held. The batches of the base may be written in
    any order; the tail follows in the order of its versions.
    """

    name: str

    def load(self, task: LoadTask) -> None:
        """Load what is missing; returns when every batch has its receipt.

        Raises:
            TornCheckpointError: The plan's checkpoint cannot be read.
        """
        ...

    def log_digest(
        self, reader: FileTxnLogReader, version: int, *, tick: Callable[[], None]
    ) -> FileDigest | None:
        """The digest of the files that live at a version by the log; None leaves that to the caller."""
        ...

    def row_digest(self, location: str, version: int) -> RowDigest | None:
        """The digest of the rows that a plain table has at a version; None leaves that to the caller."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that was decided on.

    Attributes:
        name: ``local`` or ``spark``.
        note: What the user should know about the decision.
        always: Whether even a small table is worth a job.
    """

    name: Literal["local", "spark"]
    note: str | None = None
    always: bool = False


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the caller said about the engine.

    Attributes:
        engine: ``local``, ``spark``, or ``auto`` to let the table's size decide.
        spark: A session to use.
        master: A master URL to start a session with, if none is active.
        remote: A Spark Connect server.
    """

    engine: EngineName = "auto"
    spark: Any = None
    master: str | None = None
    remote: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InvalidArgumentError(
                f"unknown engine {self.engine!r}", suggestion=f"use one of {', '.join(ENGINES)}"
            )
        named = [n for n in ("spark", "master", "remote") if getattr(self, n) is not None]
        if len(named) > 1:
            raise InvalidArgumentError(f"{' and '.join(named)} exclude each other", suggestion="give one")
        if named and self.engine == "local":
            raise InvalidArgumentError(
                f"{named[0]} is of no use to the local engine", suggestion="use engine='spark' or 'auto'"
            )

    @property
    def names_spark(self) -> bool:
        """Whether a session, a master or a server was given."""
        return any(given is not None for given in (self.spark, self.master, self.remote))

    def check(self) -> None:
        """Check that a Spark that was asked for is available, before anything is created for it.

        Raises:
            MissingExtraError: PySpark is not installed.
            SparkSetupError: Java is missing or does not fit, or the master or server does not answer.
        """
        asked = self.engine == "spark" or self.master is not None or self.remote is not None
        if asked and self.spark is None and (self.remote is not None or active_session() is None):
            _spark("sessions").check_setup(self.remote, self.master)

    def decide(self, *, num_files: int, memory_bytes: int = 0) -> Choice:
        """The engine for a table of some size."""
        if self.engine == "local":
            return Choice("local")
        if self.engine == "spark":
            return Choice("spark", always=True)
        if self.names_spark or active_session() is not None:
            return Choice("spark")
        bound = get_config().import_.memory_mb * 1024 * 1024
        if num_files <= MANY_FILES and memory_bytes <= bound:
            return Choice("local")
        try:
            _spark("sessions").check_setup()
        except DeltaSqlError as error:
            why = f"{num_files:,} files" if num_files > MANY_FILES else "the memory it is estimated to take"
            return Choice("local", f"Spark would be used for {why}, and cannot be: {error.message}")
        return Choice("spark", always=True)

    def make(self, choice: Choice) -> LoadEngine:
        """The engine itself; Spark is started if it does not run.

        Raises:
            MissingExtraError: PySpark is not installed.
            SparkSetupError: Java is missing or does not fit.
        """
        if choice.note is not None:
            logger.warning("%s", choice.note)
        if choice.name == "local":
            from deltalakedb.transfer.importing.loader import LocalEngine  # it knows tasks

            return LocalEngine()
        session = self.spark if self.spark is not None else active_session()
        if session is None or self.master is not None or self.remote is not None:
            session = _spark("sessions").start(self.master, remote=self.remote)
        engine: LoadEngine = _spark("import_engine").SparkEngine(session, always=choice.always)
        return engine


def _spark(module: str) -> Any:
    """A module of the Spark room, which is above this one: it is known by name only."""
    return import_module(f"deltalakedb.spark.{module}")


def active_session() -> Any:
    """The Spark session of this thread, if Spark is in use at all."""
    sql = sys.modules.get("pyspark.sql")
    return None if sql is None else sql.SparkSession.getActiveSession()
