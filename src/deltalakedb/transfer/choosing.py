"""Which engine loads a table: this process, or Spark for what outgrows it."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from deltalakedb.config import get_config
from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError
from deltalakedb.transfer.loader import LocalEngine

if TYPE_CHECKING:
    from deltalakedb.transfer.engines import LoadEngine

logger = logging.getLogger(__name__)

EngineName: TypeAlias = Literal["auto", "local", "spark"]
ENGINES: Final = ("auto", "local", "spark")
#: live files from which on ``auto`` takes Spark
MANY_FILES: Final = 500_000


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that was decided on.

    Attributes:
        name: ``local`` or ``spark``.
        note: What to tell the user, where it is not what one would expect.
        always: Whether even a small table is worth a job.
    """

    name: Literal["local", "spark"]
    note: str | None = None
    always: bool = False


@dataclass(frozen=True, slots=True)
class EngineWish:
    """What the caller said about the engine.

    Attributes:
        engine: ``local``, ``spark``, or ``auto`` to let the table's size decide.
        spark: A session to use.
        master: A master URL to start a session with, where none runs.
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

    def check(self) -> None:
        """See that a Spark that was asked for can be had, before anything is made for it.

        Raises:
            MissingExtraError: PySpark is not installed.
            SparkSetupError: Java is missing or does not fit, or the master or server does not answer.
        """
        asked = self.engine == "spark" or self.master is not None or self.remote is not None
        if asked and self.spark is None and (self.remote is not None or active_session() is None):
            import_module("deltalakedb.spark.sessions").check_setup(self.remote, self.master)

    def decide(self, *, num_files: int, memory_bytes: int = 0) -> Choice:
        """The engine for a table of some size."""
        if self.engine == "local":
            return Choice("local")
        if self.engine == "spark":
            return Choice("spark", always=True)
        if self._is_named() or active_session() is not None:
            return Choice("spark")
        bound = get_config().import_.memory_mb * 1024 * 1024
        if num_files <= MANY_FILES and memory_bytes <= bound:
            return Choice("local")
        try:
            import_module("deltalakedb.spark.sessions").check_setup()
        except DeltaSqlError as error:
            why = f"{num_files:,} files" if num_files > MANY_FILES else "the memory it is estimated to take"
            return Choice("local", f"Spark would be used for {why}, and cannot be: {error.message}")
        return Choice("spark", always=True)

    def make(self, choice: Choice) -> LoadEngine:
        """The engine itself; Spark is started where it does not run.

        Raises:
            MissingExtraError: PySpark is not installed.
            SparkSetupError: Java is missing or does not fit.
        """
        if choice.note is not None:
            logger.warning("%s", choice.note)
        if choice.name == "local":
            return LocalEngine()
        # the rooms point downwards: nobody below the Spark room knows it but by name
        room = import_module("deltalakedb.spark.import_engine")
        session = self.spark if self.spark is not None else active_session()
        if session is None or self.master is not None or self.remote is not None:
            session = import_module("deltalakedb.spark.sessions").start(self.master, remote=self.remote)
        engine: LoadEngine = room.SparkEngine(session, always=choice.always)
        return engine

    def _is_named(self) -> bool:
        return any(given is not None for given in (self.spark, self.master, self.remote))


def active_session() -> Any:
    """The Spark session of this thread, where Spark is in use at all."""
    sql = sys.modules.get("pyspark.sql")
    return None if sql is None else sql.SparkSession.getActiveSession()
