"""The options of an import, the engines that load it (this process, or Spark), and what a transfer takes."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, get_args

from deltalakedb.address import Address, parse_address
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore import imports, leases
from deltalakedb.settings import get_config
from deltalakedb.table.locations import normal_location
from deltalakedb.transfer import FILE_LEVELS, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.protocol.digest import FileDigest
    from deltalakedb.transfer.importing.loader import LoadTask
    from deltalakedb.transfer.reports import ImportProgress
    from deltalakedb.transfer.verifying.data_rows import RowDigest

History: TypeAlias = Literal["auto", "checkpoint", "full"]
EngineName: TypeAlias = Literal["auto", "local", "spark"]
Tick: TypeAlias = "Callable[[], None]"
_STATUS = Path("/proc/self/status")


def require_one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidArgumentError(f"unknown {what} {value!r}", suggestion=f"use one of {', '.join(allowed)}")


def require_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise InvalidArgumentError(f"{name} must be {least} or more, not {value}")


class EngineArguments(TypedDict, total=False):
    """Keyword arguments that choose the engine and reach the source, as in ``import_table``."""

    engine: EngineName
    spark: Any
    master: str | None
    remote: str | None
    storage_options: Mapping[str, str] | None


class ImportArguments(EngineArguments, total=False):
    """Keyword arguments that every way to import has, as in ``import_table``."""

    history: History
    verify: Level
    batch_size: int | None
    rate_limit: int | None


class LoadEngine(Protocol):
    """Loads every batch of a plan that has no receipt yet.

    An engine writes each batch in one transaction with its receipt (`metastore.imports.write_receipt`), after
    `metastore.imports.require` has found that the lease is held. The batches of the base may be written in
    any order; the tail follows in the order of its versions.
    """

    name: str

    def load(self, task: LoadTask) -> None:
        """Load what is missing; raises TornCheckpointError if the plan's checkpoint cannot be read."""
        ...

    def log_digest(self, reader: FileTxnLogReader, version: int, *, tick: Tick) -> FileDigest | None:  # noqa: ARG002
        """The digest of the files that live at a version by the log; None leaves that to the caller."""
        return None

    def row_digest(self, location: str, version: int) -> RowDigest | None:  # noqa: ARG002
        """The digest of the rows that a plain table has at a version; None leaves that to the caller."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The arguments that choose an engine, checked; ``import_table`` describes them."""

    engine: EngineName = "auto"
    spark: Any = None
    master: str | None = None
    remote: str | None = None
    storage_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        require_one_of("engine", self.engine, get_args(EngineName))
        named = [n for n in ("spark", "master", "remote") if getattr(self, n) is not None]
        if len(named) > 1:
            raise InvalidArgumentError(f"{' and '.join(named)} exclude each other", suggestion="give one")
        if named and self.engine == "local":
            raise InvalidArgumentError(
                f"{named[0]} does not go with the local engine",
                suggestion="use engine='spark' or 'auto'",
                command="pass --engine spark or auto",
            )

    def storage_for(self, location: str) -> dict[str, str] | None:
        return get_config().storage_options_for(location, self.storage_options)

    def check_engine(self) -> None:
        """Check that a Spark that was asked for is available, before anything is created for it."""
        asked = self.engine == "spark" or self.master is not None or self.remote is not None
        if asked and self.spark is None and (self.remote is not None or active_session() is None):
            _spark("sessions").check_setup(self.remote, self.master)

    def choose(self) -> tuple[EngineName, str]:
        """The engine, and why: ``auto`` is this process unless a Spark session or cluster is named."""
        if self.engine != "auto":
            return self.engine, "as asked for"
        named = [n for n in ("spark", "master", "remote") if getattr(self, n) is not None]
        return ("spark", f"{named[0]} was given") if named else ("local", "no Spark cluster was named")

    def start(self) -> LoadEngine:
        """The engine that is chosen; Spark is started if it is not running."""
        if self.choose()[0] == "local":
            from deltalakedb.transfer.importing.loader import LocalEngine  # imports Arrow's functions

            return LocalEngine()
        session = self.spark if self.spark is not None else active_session()
        if session is None or self.master is not None or self.remote is not None:
            session = _spark("sessions").start(self.master, remote=self.remote)
        # unless Spark is asked for, a small table is not worth a job
        engine: LoadEngine = _spark("import_engine").SparkEngine(session, always=self.engine == "spark")
        return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions(EngineOptions):
    """The arguments of an import, checked; ``import_table`` describes them.

    With ``following`` other writers keep writing the table, and the catalog has a copy.
    """

    history: History = "auto"
    verify: Level = "digest"
    batch_size: int | None = None
    rate_limit: int | None = None
    progress: Callable[[ImportProgress], None] | None = None
    following: bool = False

    def __post_init__(self) -> None:
        EngineOptions.__post_init__(self)
        require_one_of("level", self.verify, FILE_LEVELS)
        require_one_of("history", self.history, get_args(History))
        require_at_least(0, "rate_limit", self.rate)
        require_at_least(1, "batch_size", 1 if self.batch_size is None else self.batch_size)

    @property
    def rate(self) -> int:
        """The rate limit in force; 0 is none."""
        return get_config().import_.rate_limit if self.rate_limit is None else self.rate_limit


def import_target(path: str, uri: str) -> tuple[Address, str]:
    """The address that an import goes to, and the location it comes from, both checked."""
    address = parse_address(uri)
    address.require_table()
    location = normal_location(path)
    if address.location and normal_location(address.location) != location:
        raise InvalidArgumentError(
            f"the address has location={address.location}, but the table is at {location}",
            table=address.table,
            suggestion="leave location= out of the address",
        )
    return address, location


def _spark(module: str) -> Any:
    """A module of the Spark room, which is above this one: it is known by name only."""
    return import_module(f"deltalakedb.spark.{module}")


def active_session() -> Any:
    """The Spark session of this thread, if Spark is in use at all."""
    sql = sys.modules.get("pyspark.sql")
    return None if sql is None else sql.SparkSession.getActiveSession()


# ---- what a transfer takes ----


def location_lease(database: Database, location: str) -> AbstractContextManager[Lease]:
    """Hold the right to import, undo or export the table at a location; CatalogBusyError if it is taken."""
    work = f"the import, export or rollback of {location}"
    return leases.leased(database, imports.lease_name(location), work=work, ttl_ms=imports.LEASE_MS)


class _Together:
    """The most memory that this process and a second one held at the same time."""

    peak = 0


def note_second_peak(size: int) -> None:
    """Record the most memory that the second process of an import has held so far."""
    _Together.peak = max(_Together.peak, _own_peak() + size)


def peak_bytes() -> int:
    """The most memory that this process ever held, with that of a second one that encoded files."""
    return max(_own_peak(), _Together.peak)


def _own_peak() -> int:
    if _STATUS.exists():  # getrusage counts what the parent held before it became this program
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bound() -> int:
    """The memory that a verification may use, beyond what the process holds anyway."""
    return get_config().import_.memory_mb << 19
