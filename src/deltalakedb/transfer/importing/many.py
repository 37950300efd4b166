"""Importing many tables: found below a folder or listed, in parallel; one that fails stops no other."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deltalakedb.address import parse_address, validate_table_name
from deltalakedb.delta_log.names import LOG_FOLDER, parse_name
from deltalakedb.exceptions import (
    AddressError,
    CatalogNotFoundError,
    DeltaSqlError,
    InvalidArgumentError,
    TableMissingError,
)
from deltalakedb.metastore import imports, registry
from deltalakedb.metastore.database import Database
from deltalakedb.settings import get_config
from deltalakedb.storage.store import RealPlaces, local_path, open_store
from deltalakedb.table.locations import SAFE_IN_URLS, normal_location
from deltalakedb.transfer.importing.api import import_with
from deltalakedb.transfer.importing.engines import EngineOptions, active_session
from deltalakedb.transfer.importing.options import ImportOptions
from deltalakedb.transfer.importing.plan import plan_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from deltalakedb.address import Address
    from deltalakedb.transfer.importing.engines import EngineName
    from deltalakedb.transfer.importing.options import History
    from deltalakedb.transfer.importing.plan import ImportPlan
    from deltalakedb.transfer.importing.report import ImportProgress, ImportReport
    from deltalakedb.transfer.verifying.report import Level


@dataclass(frozen=True, slots=True)
class Found:
    """A table that was found and the name it gets, or why it cannot get one."""

    path: str
    name: str
    error: DeltaSqlError | None = None


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """What happened to one table.

    Attributes:
        table: Its name.
        location: Its root.
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
    """What happened to many tables.

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
    """Import many tables. One that fails leaves the others alone; run it again to import what is left.

    Tables that are found get the names of their folders; tables that the catalog has keep their names. A
    table whose folder is not a valid name, or the name of another table, fails with an error that says so.

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
    address = parse_address(uri)
    if address.table is not None:
        raise InvalidArgumentError(
            f"{address.to_uri()} is a table's address, not a catalog's", suggestion="leave the table out"
        )
    workers = get_config().import_.parallel if parallel is None else parallel
    if workers < 1:
        raise InvalidArgumentError(f"parallel must be 1 or more, not {workers}")
    who = EngineOptions(engine, spark, master, remote)
    if engine != "local" and not who.names_spark:
        who = replace(who, spark=active_session())  # threads do not see it
    stopped = threading.Event()

    def stop_with_the_others(_: ImportProgress) -> None:
        if stopped.is_set():
            raise DeltaSqlError("stopped with the other tables", suggestion="run the same again to go on")

    options = ImportOptions(
        history, verify, batch_size, rate_limit, who, storage_options, stop_with_the_others
    )
    database = Database.open(address)
    if isinstance(source, str):
        storage = options.storage_for(normal_location(source))
        found = discover(source, namespace=namespace, storage_options=storage, known=_known(database))
    else:
        found = _listed(source)
    if found:
        who.check()  # no table can do without
    if not dry_run:
        database.ensure()
    work = partial(_plan_one, address, options)
    if not dry_run:
        work = partial(_import_one, database, address, options, catch_up)
    outcomes = []
    with ThreadPoolExecutor(workers, thread_name_prefix="deltasql-import") as pool:
        # settings are part of the context, and every thread begins with an empty one
        waiting = [pool.submit(copy_context().run, _one, work, table) for table in found]
        try:
            for future in waiting:
                outcomes.append(future.result())
                if progress is not None:
                    progress(len(outcomes), len(found), outcomes[-1])
        except BaseException:  # Ctrl-C: running imports stop at their next batch, the others do not begin
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return ManyReport(tuple(outcomes), round(time.perf_counter() - began, 3))


def _one(work: Callable[[Found], TableOutcome], found: Found) -> TableOutcome:
    """The outcome of one table, whatever happens to it."""
    error = found.error
    if error is None:
        try:
            return work(found)
        except DeltaSqlError as raised:
            error = raised
        except Exception as raised:  # the other tables go on
            error = DeltaSqlError(f"{type(raised).__name__}: {raised}", table=found.name)
    return TableOutcome(found.name, found.path, "failed", error=error)


def _plan_one(address: Address, options: ImportOptions, found: Found) -> TableOutcome:
    plan = plan_with(found.path, address.with_table(found.name).to_uri(redact=False), options)
    return TableOutcome(found.name, found.path, "planned", plan=plan)


def _import_one(
    database: Database, address: Address, options: ImportOptions, catch_up: bool, found: Found
) -> TableOutcome:
    if not catch_up and _is_there(database, found):
        return TableOutcome(found.name, found.path, "unchanged")
    uri = address.with_table(found.name).to_uri(redact=False)
    report = import_with(found.path, uri, options, catch_up=True)
    return TableOutcome(found.name, found.path, report.action, report=report)


def _known(database: Database) -> list[Found]:
    """The tables of a catalog, and those whose imports are not finished; none if there is no catalog."""
    try:
        begun = [Found(i.location, i.name) for i in imports.list_imports(database) if i.is_open]
        return [*begun, *(Found(t.location, t.name) for t in registry.list_tables(database))]
    except CatalogNotFoundError:
        return []


def _listed(source: Mapping[str, str]) -> list[Found]:
    """The tables of a list, by name; two with the same location get an error."""
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


# ---- finding tables ----


def discover(
    root: str,
    *,
    namespace: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    known: Iterable[Found] = (),
) -> list[Found]:
    """Every Delta table below a folder or a bucket's prefix, by name.

    A table's name is its path below the root, with dots for slashes; none is looked for inside another. Those
    whose folders make no name, or the name of another one, come with an error.

    Args:
        root: A folder, or the URL of an object store.
        namespace: Put before every name.
        storage_options: Options for the object store.
        known: Tables that a catalog has: they keep their names.

    Raises:
        InvalidArgumentError: There is nothing at the root.
    """
    if namespace is not None:
        validate_table_name(namespace)
    place = normal_location(root)
    local = local_path(place)
    below = _walk(local) if local is not None else _in_bucket(place, storage_options)
    real = RealPlaces()
    there = {real.of(k.path): k for k in known}
    found, taken = [], {k.name: k.path for k in there.values()}
    for part in sorted(below):
        # an object's name is spelled in a URL as the catalog keeps it
        spelled = part if local is not None else quote(part, safe=SAFE_IN_URLS)
        path = f"{place}/{spelled}" if part else place
        if (kept := there.get(real.of(path))) is not None:
            found.append(kept)
        else:
            found.append(_named(path, place, part, namespace))
    owners = Counter(one.name for one in found)
    return [_alone(one, owners, taken) for one in found]


def _named(path: str, root: str, below: str, namespace: str | None) -> Found:
    own = below.replace("/", ".") if below else root.rstrip("/").rpartition("/")[2]
    name = f"{namespace}.{own}" if namespace else own
    try:
        return Found(path, validate_table_name(name))
    except AddressError as error:
        return Found(path, name, _refused(path, f"its folder makes no name: {error.message}"))


def _alone(found: Found, owners: Mapping[str, int], taken: Mapping[str, str]) -> Found:
    """A table, with an error if another one has its name too."""
    owner = taken.get(found.name)
    if found.error is not None or owner == found.path:
        return found
    if owner is not None:
        message = f"its folder makes the name {found.name}, which the table at {owner} has"
    elif owners[found.name] > 1:
        message = f"its folder makes the name {found.name}, as another one does"
    else:
        return found
    return Found(found.path, found.name, _refused(found.path, message))


def _refused(path: str, message: str) -> DeltaSqlError:
    return InvalidArgumentError(
        f"{path}: {message}",
        suggestion="import it alone under a name of its own, which it keeps: "
        f"`deltasql import {shlex.quote(path)} NAME`",
    )


def _walk(root: Path) -> Iterator[str]:
    if not root.is_dir():
        raise InvalidArgumentError(f"there is no folder {root}", suggestion="check the path")
    for folder, names, _ in os.walk(root):
        if LOG_FOLDER in names and _is_log(Path(folder) / LOG_FOLDER):
            inside = Path(folder).relative_to(root).as_posix()
            yield "" if inside == "." else inside
            names.clear()  # folders below a table belong to it
        else:
            names[:] = sorted(n for n in names if not n.startswith(("_", ".")))


def _is_log(folder: Path) -> bool:
    try:
        return any(parse_name(entry.name) is not None for entry in os.scandir(folder))
    except OSError:
        return True  # reading it will say why it cannot be read


def _in_bucket(root: str, storage_options: Mapping[str, str] | None) -> set[str]:
    marker, found, is_there = f"{LOG_FOLDER}/", set(), False
    for meta in open_store(root, storage_options).list(recursive=True):
        is_there = True
        before, mark, after = f"/{meta.path}".partition(f"/{marker}")
        if mark and parse_name(after) is not None:
            found.add(before.strip("/"))
    if not is_there:
        raise InvalidArgumentError(f"there is nothing below {root}", suggestion="check the URL")
    return {p for p in found if not any(p != o and (not o or p.startswith(f"{o}/")) for o in found)}
