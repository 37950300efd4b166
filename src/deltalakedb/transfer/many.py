"""Many tables at once: from a list or a place, in parallel with a bound, failures kept apart, one report."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.config import get_config
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    DeltaSqlError,
    InvalidArgumentError,
    TableMissingError,
)
from deltalakedb.metastore import imports, registry
from deltalakedb.metastore.database import Database
from deltalakedb.storage.store import RealPlaces
from deltalakedb.table.places import normal_location
from deltalakedb.transfer.discovery import Found, discover
from deltalakedb.transfer.importer import import_table
from deltalakedb.transfer.plan import checked_rate, plan_import
from deltalakedb.uri import parse_uri, validate_table_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.transfer.choosing import EngineName
    from deltalakedb.transfer.findings import Level
    from deltalakedb.transfer.plan import History, ImportPlan
    from deltalakedb.transfer.report import ImportProgress, ImportReport


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """What became of one table.

    Attributes:
        table: Its name.
        location: Where it lies.
        outcome: ``imported``, ``resumed``, ``caught up``, ``unchanged``, ``planned`` or ``failed``.
        report: The import's report.
        plan: The plan, in a dry run.
        error: Why it failed.
    """

    table: str
    location: str
    outcome: str
    report: ImportReport | None = None
    plan: ImportPlan | None = None
    error: DeltaSqlError | None = None

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {
            "table": self.table,
            "location": self.location,
            "outcome": self.outcome,
            "report": None if self.report is None else self.report.to_dict(),
            "plan": None if self.plan is None else self.plan.to_dict(),
            "error": None if self.error is None else self.error.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class ManyReport:
    """What became of many tables.

    Attributes:
        tables: One outcome for each, by name.
        seconds: How long all of it took.
    """

    tables: tuple[TableOutcome, ...]
    seconds: float

    @property
    def failed(self) -> tuple[TableOutcome, ...]:
        """Those that failed."""
        return tuple(t for t in self.tables if t.outcome == "failed")

    @property
    def ok(self) -> bool:
        """Whether none failed."""
        return not self.failed

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "ok": self.ok,
            "num_tables": len(self.tables),
            "num_failed": len(self.failed),
            "seconds": self.seconds,
            "tables": [t.to_dict() for t in self.tables],
        }


def import_tables(
    source: str | Mapping[str, str],
    uri: str,
    *,
    namespace: str | None = None,
    history: History = "auto",
    verify: Level = "digest",
    catch_up: bool = True,
    parallel: int | None = None,
    batch_size: int | None = None,
    rate_limit: int | None = None,
    dry_run: bool = False,
    engine: EngineName = "auto",
    spark: Any = None,
    master: str | None = None,
    remote: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int, int, TableOutcome], None] | None = None,
) -> ManyReport:
    """Take over many tables. One that fails leaves the others alone; run it again to go on with what is left.

    Tables that are found get the names of their folders; those that the catalog has already keep theirs, and
    one whose folder makes no name, or another's, is a failure that says so.

    Args:
        source: A folder or a bucket's prefix below which tables are looked for, or a mapping of names to
            paths.
        uri: The catalog's ``deltasql://`` address.
        namespace: Put before the names of tables that are found.
        history: As in ``import_table``.
        verify: As in ``import_table``.
        catch_up: Bring in the new commits of tables that were imported before; else they stay as they are.
        parallel: Tables at a time; by default as the settings say.
        batch_size: As in ``import_table``.
        rate_limit: As in ``import_table``, for each table.
        dry_run: Only plan.
        engine: As in ``import_table``; the tables share the session.
        spark: As in ``import_table``.
        master: As in ``import_table``.
        remote: As in ``import_table``.
        storage_options: Options for the object store.
        progress: Called with the number of tables done, of all tables, and the newest outcome.

    Example:
        >>> import_tables("/lake", "deltasql://sqlite//lake/meta.db", namespace="raw").ok
        True
    """
    began = time.perf_counter()
    address = parse_uri(uri)
    if address.table is not None:
        raise InvalidArgumentError(
            f"{address.to_uri()} is a table's address, not a catalog's", suggestion="leave the table out"
        )
    workers = get_config().import_.parallel if parallel is None else parallel
    if workers < 1:
        raise InvalidArgumentError(f"parallel must be 1 or more, not {workers}")
    checked_rate(rate_limit)
    database = Database.open(address)
    if isinstance(source, str):
        options = get_config().storage_options_for(normal_location(source), storage_options)
        wanted = discover(source, namespace=namespace, storage_options=options, known=_known(database))
    else:
        wanted = _listed(source)
    if spark is None and master is None and remote is None and engine != "local":
        from deltalakedb.transfer.choosing import active_session  # Arrow's functions cost time to import

        spark = active_session()  # which the threads would not find
    if wanted:
        from deltalakedb.transfer.choosing import EngineWish

        EngineWish(engine, spark, master, remote).check()  # what no table can do without
    who: dict[str, Any] = {"engine": engine, "spark": spark, "master": master, "remote": remote}

    stopped = threading.Event()

    def go_on(_: ImportProgress) -> None:
        if stopped.is_set():
            raise DeltaSqlError("stopped with the other tables", suggestion="run the same again to go on")

    def one(found: Found) -> TableOutcome:
        if found.error is not None:
            return TableOutcome(found.name, found.path, "failed", error=found.error)
        try:
            target = address.with_table(found.name).to_uri(redact=False)
            if dry_run:
                plan = plan_import(
                    found.path,
                    target,
                    history=history,
                    batch_size=batch_size,
                    storage_options=storage_options,
                    **who,
                )
                return TableOutcome(found.name, found.path, "planned", plan=plan)
            if not catch_up and _is_there(database, found):
                return TableOutcome(found.name, found.path, "unchanged")
            report = import_table(
                found.path,
                target,
                history=history,
                verify=verify,
                batch_size=batch_size,
                rate_limit=rate_limit,
                catch_up=True,
                storage_options=storage_options,
                progress=go_on,
                **who,
            )
        except DeltaSqlError as error:
            return TableOutcome(found.name, found.path, "failed", error=error)
        except Exception as error:  # whatever it is, the other tables go on
            wrapped = DeltaSqlError(f"{type(error).__name__}: {error}", table=found.name)
            return TableOutcome(found.name, found.path, "failed", error=wrapped)
        return TableOutcome(found.name, found.path, report.action, report=report)

    if not dry_run:
        database.ensure()
    outcomes = []
    with ThreadPoolExecutor(workers, thread_name_prefix="deltasql-import") as pool:
        # settings are held by the context, and every thread begins with an empty one
        waiting = [pool.submit(copy_context().run, one, found) for found in wanted]
        try:
            for future in waiting:
                outcomes.append(future.result())
                if progress is not None:
                    progress(len(outcomes), len(wanted), outcomes[-1])
        except BaseException:  # Ctrl-C: those under way stop at their next batch, the others do not begin
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return ManyReport(tuple(outcomes), round(time.perf_counter() - began, 3))


def _known(database: Database) -> list[Found]:
    """The tables of a catalog, and those whose imports are not finished; none where there is no catalog."""
    try:
        begun = [Found(i.location, i.name) for i in imports.list_imports(database) if i.is_open]
        return [*begun, *(Found(t.location, t.name) for t in registry.list_tables(database))]
    except CatalogNotFoundError:
        return []


def _listed(source: Mapping[str, str]) -> list[Found]:
    """The tables of a list, by name; one whose place another one has is a failure that says so."""
    found: list[Found] = []
    names: dict[str, str] = {}
    real = RealPlaces()
    for name, path in sorted(source.items()):
        try:
            location = normal_location(path)
            other = names.setdefault(real.of(location), validate_table_name(name))
        except DeltaSqlError as error:
            found.append(Found(path, name, error))
            continue
        twice = InvalidArgumentError(
            f"the list names {location} twice: {other} and {name}", table=name, suggestion="keep one of them"
        )
        found.append(Found(location, name, None if other == name else twice))
    return found


def _is_there(database: Database, found: Found) -> bool:
    try:
        registry.refuse_elsewhere(registry.find(database, found.name), found.path)
    except TableMissingError:
        return False
    return True
