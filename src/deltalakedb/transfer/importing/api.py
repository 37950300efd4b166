"""Importing Delta tables, one or many, catching up with commits made since, and the status of imports."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack
from urllib.parse import quote

from deltalakedb.address import Address, parse_address, validate_table_name
from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.delta_log.names import LOG_FOLDER, parse_name
from deltalakedb.exceptions import (
    AddressError,
    CatalogNotFoundError,
    DeltaSqlError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.metastore import imports, leases, outbox, registry
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import drift
from deltalakedb.settings import get_config
from deltalakedb.storage.store import LinkResolver, local_path, open_store
from deltalakedb.table.locations import SAFE_IN_URLS, normal_location
from deltalakedb.transfer.importing.options import (
    EngineOptions,
    ImportOptions,
    active_session,
    import_target,
    peak_bytes,
    require_at_least,
)
from deltalakedb.transfer.importing.plan import plan_with
from deltalakedb.transfer.reports import ImportProgress, ImportReport, ImportStatus, ManyReport, TableOutcome
from deltalakedb.transfer.verifying.verifier import require_equal, verify_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.imports import ImportRow, Receipt
    from deltalakedb.metastore.rows import Table
    from deltalakedb.transfer.importing.options import ImportArguments


def import_table(
    path: str,
    uri: str,
    *,
    catch_up: bool = False,
    progress: Callable[[ImportProgress], None] | None = None,
    **options: Unpack[ImportArguments],
) -> ImportReport:
    """Import the Delta table at a path. Nothing of the table itself is changed.

    The table becomes visible at the end, all at once. An import that was interrupted is resumed by the same
    call: what is loaded already is not loaded again.

    Args:
        path: The table's root.
        uri: The ``deltasql://`` address it will have.
        catch_up: If the table was imported before, import the commits that other writers made since.
        progress: Called now and then with how far it is.
        **options: Any of the following.

            - history: ``"full"`` loads every version that the log still holds, ``"checkpoint"`` begins with
              the newest checkpoint, ``"auto"`` (the default) is full up to 10,000 commits.
            - verify: How thoroughly the load is compared with the log before the table becomes visible:
              ``"counts"``, ``"digest"`` (the default), ``"full"`` or ``"data"``.
            - batch_size: Rows of the checkpoint in one transaction; by default as the settings say.
            - rate_limit: File actions a second at most; by default as the settings say, 0 for no limit.
            - engine: What loads it: ``"local"`` is this process, ``"spark"`` a cluster; ``"auto"`` (the
              default) is local unless ``spark``, ``master`` or ``remote`` is given.
            - spark: A Spark session to use.
            - master: A master URL to start a session with, such as ``local[*]``.
            - remote: A Spark Connect server, such as ``sc://host:port``.
            - storage_options: Options for the object store.

    Returns:
        A report of what was loaded.

    Raises:
        TableExistsError: The name or the location belongs to another table.
        LogError: The log cannot be read; nothing stays loaded.
        VerificationError: What was loaded differs from the log, or at ``"data"`` the rows differ; the
            table is not made visible. In the second case what is loaded stays for the next call.
        CatalogBusyError: Another process imports the table.
        SparkSetupError: Spark was asked for and cannot be started; nothing was created.

    Example:
        >>> import_table("/lake/orders", "deltasql://sqlite//lake/meta.db?table=sales.orders")
    """
    return import_with(path, uri, ImportOptions(progress=progress, **options), catch_up=catch_up)


def import_with(path: str, uri: str, options: ImportOptions, *, catch_up: bool) -> ImportReport:
    address, location = import_target(path, uri)
    database, name = Database.open(address), address.table or ""
    known = None
    with suppress(TableMissingError):  # the catalog need not exist yet either
        known = registry.find(database, name)
    if known is None:
        return import_new(database, address, location, options)
    registry.require_location(known, location)
    if catch_up:
        return _catch_up(database, known, options)
    raise TableExistsError(
        f"{name!r} was imported before, and is at version {known.head.version}",
        table=name,
        version=known.head.version,
        suggestion="catch_up=True (--catch-up) imports the commits that were made since; "
        f"`deltasql import --undo {name}` undoes the import",
    )


def import_new(database: Database, address: Address, location: str, options: ImportOptions) -> ImportReport:
    """Import a table that the catalog does not have, or resume its interrupted import."""
    from deltalakedb.transfer.importing.pipeline import Import  # imports Arrow's functions

    # a source that is not there leaves no empty catalog behind
    begun = Import(database, address, location, options)
    options.check_engine()
    database.ensure()
    return begun.run()


def _catch_up(database: Database, table: Table, options: ImportOptions) -> ImportReport:
    """Import the commits that the log has beyond the catalog."""
    began = time.perf_counter()
    storage = options.storage_for(table.location)
    added: tuple[int, ...] = ()
    checked = None
    store = open_store(table.location, storage)
    drift.refuse_rewritten(database, table, store)
    if drift.newest_beyond(database, table, store) is not None:
        added = _adopt(database, table, storage)
        table = registry.find(database, table.name)
        # versions that other writers have added since are for the next time, and no difference
        checked = verify_head(
            database, table, options.verify, storage, engine=EngineOptions(), look_ahead=False
        )
        hint = "`deltasql verify` shows all differences"
        require_equal(checked, "the catalog differs from the log after catching up", hint)
    head = table.head
    return ImportReport(
        table.name,
        table.location,
        *(head.version, head.first_version, len(added), head.num_files, head.size_bytes),
        seconds=round(time.perf_counter() - began, 3),
        action="caught up" if added else "unchanged",
        digest=None if checked is None else checked.digest,
        verification=checked,
        peak_memory_bytes=peak_bytes(),
    )


def _adopt(database: Database, table: Table, storage: Mapping[str, str] | None) -> tuple[int, ...]:
    if waiting := outbox.lag(database, table.table_id).versions:
        raise UnsupportedOperationError(
            f"{waiting} commits of the catalog wait to be published, and other writers committed to the log",
            table=table.name,
            suggestion="publish with `deltasql mirror run`; if both sides have commits, "
            "`deltasql mirror resolve`",
        )
    coordinator = Coordinator(database, {table.location: storage})
    if table.state == "frozen":
        # it was frozen because the log is ahead: that is what is repaired here, and nothing else
        return coordinator.recover(table.name).versions
    return coordinator.adopt(table.name, origin="import").versions


# ---- status ----


def import_status(uri: str) -> list[ImportStatus]:
    """The imports of a catalog, or those under a table's name, newest first.

    Args:
        uri: A catalog's or a table's ``deltasql://`` address.

    Example:
        >>> [s.phase for s in import_status("deltasql://sqlite//lake/meta.db")]
        ['finalized']
    """
    address = parse_address(uri)
    database = Database.open(address)
    return [_status(database, row) for row in imports.list_imports(database, address.table)]


def _status(database: Database, row: ImportRow) -> ImportStatus:
    done = imports.receipts(database, row.import_id)
    actions, spent = sum(r.actions for r in done), _seconds(row, done)
    left = None
    if row.phase == "loading" and done:
        left = round(spent / len(done) * max(0, row.batches_total - len(done)), 1)
    looked_at = lag = None
    if row.phase == "finalized" and "looked_at" in row.details:
        with suppress(TableMissingError):
            lag = max(0, row.details["seen_version"] - registry.find(database, row.name).head.version)
            looked_at = row.details["looked_at"]
    holding = leases.holding(database, imports.lease_name(row.location)) if row.is_open else None
    return ImportStatus(
        table=row.name,
        location=row.location,
        phase=row.phase,
        first_version=row.first_version,
        version=row.source_version,
        batches_done=len(done),
        batches_total=row.batches_total,
        actions_done=actions,
        actions_expected=row.files_expected,
        rate=round(actions / spent, 1) if actions else None,
        seconds_left=left,
        memory_bytes=max((r.memory_bytes for r in done), default=0),
        started_at=row.started_at,
        updated_at=max([row.updated_at, *(r.written_at for r in done)]),
        finished_at=row.finished_at,
        error=row.error,
        digest=row.digest,
        import_id=row.import_id,
        at_work=holding is not None and not holding.is_abandoned,
        looked_at=looked_at,
        lag=lag,
    )


def _seconds(row: ImportRow, done: Sequence[Receipt]) -> float:
    """The time that batches took, with pauses for a rate limit and without interruptions."""
    spent, before = 0, row.started_at
    for receipt in done:
        gap = receipt.written_at - before
        own = max(receipt.milliseconds, 1)  # the clock does not show less
        spent += own if gap < own or gap > own + imports.LEASE_MS else gap
        before = receipt.written_at
    return spent / 1000


# ---- many tables ----


@dataclass(frozen=True, slots=True)
class Found:
    """A table that was found and the name it gets, or why it cannot get one."""

    path: str
    name: str
    error: DeltaSqlError | None = None


def import_tables(
    source: str | Mapping[str, str],
    uri: str,
    *,
    namespace: str | None = None,
    catch_up: bool = True,
    parallel: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int, TableOutcome], None] | None = None,
    **options: Unpack[ImportArguments],
) -> ManyReport:
    """Import many tables. One that fails leaves the others alone; run it again to import what is left.

    Tables that are found get the names of their folders; tables that the catalog has keep their names. A
    table whose folder is not a valid name, or the name of another table, fails.

    Args:
        source: A folder or a bucket's prefix below which tables are looked for, or a mapping of names to
            paths.
        uri: The catalog's ``deltasql://`` address.
        namespace: Put before the names of tables that are found.
        catch_up: Import the new commits of tables that were imported before; else they stay as they are.
        parallel: Tables at a time; by default as the settings say.
        dry_run: Only plan.
        progress: Called with the number of tables done, of all tables, and the newest outcome.
        **options: As in ``import_table``, for each table; the tables share a Spark session.

    Example:
        >>> import_tables("/lake", "deltasql://sqlite//lake/meta.db", namespace="raw").ok
        True
    """
    began = time.perf_counter()
    address = parse_address(uri).require_catalog()
    workers = get_config().import_.parallel if parallel is None else parallel
    require_at_least(1, "parallel", workers)
    stopped = threading.Event()

    def stop_with_the_others(_: ImportProgress) -> None:
        if stopped.is_set():
            raise DeltaSqlError("stopped with the other tables", suggestion="run the same again to resume")

    asked = ImportOptions(progress=stop_with_the_others, **options)
    if asked.engine == "spark" and asked.master is None and asked.remote is None and asked.spark is None:
        asked = replace(asked, spark=active_session())  # threads do not see it
    database = Database.open(address)
    if isinstance(source, str):
        storage = asked.storage_for(normal_location(source))
        found = discover(source, namespace=namespace, storage_options=storage, known=_known(database))
    else:
        found = _listed(source)
    if found:
        asked.check_engine()  # no table can do without
    if not dry_run:
        database.ensure()

    def work(table: Found) -> TableOutcome:
        done = partial(TableOutcome, table.name, table.path)
        try:
            if table.error is not None:
                raise table.error
            address_of_table = address.with_table(table.name).to_uri(redact=False)
            if dry_run:
                return done("planned", plan=plan_with(table.path, address_of_table, asked))
            if not catch_up:
                with suppress(TableMissingError):
                    registry.require_location(registry.find(database, table.name), table.path)
                    return done("unchanged")
            report = import_with(table.path, address_of_table, asked, catch_up=True)
            return done(report.action, report=report)
        except DeltaSqlError as error:
            return done("failed", error=error)
        except Exception as error:  # it does not stop the other tables
            return done("failed", error=DeltaSqlError(f"{type(error).__name__}: {error}", table=table.name))

    outcomes = []
    with ThreadPoolExecutor(workers, thread_name_prefix="deltasql-import") as pool:
        # settings are part of the context, and every thread begins with an empty one
        waiting = [pool.submit(copy_context().run, work, table) for table in found]
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
    links = LinkResolver()
    for name, path in sorted(source.items()):
        try:
            location = normal_location(path)
            other = names.setdefault(links.resolve(location), validate_table_name(name))
        except DeltaSqlError as error:
            found.append(Found(path, name, error))
            continue
        twice = InvalidArgumentError(
            f"the list names {location} twice: {other} and {name}", table=name, suggestion="keep one of them"
        )
        found.append(Found(location, name, None if other == name else twice))
    return found


# ---- finding tables ----


def discover(
    root: str,
    *,
    namespace: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    known: Iterable[Found] = (),
) -> list[Found]:
    """Every Delta table below a folder or a bucket's prefix, by name; known tables keep their names.

    A table's name is its path below the root, with dots for slashes; none is looked for inside another. Those
    whose folders are no valid names, or have the name of another table, come with an error.
    """
    if namespace is not None:
        validate_table_name(namespace)
    place = normal_location(root)
    local = local_path(place)
    below = _walk(local) if local is not None else _in_bucket(place, storage_options)
    links = LinkResolver()
    there = {links.resolve(k.path): k for k in known}
    found, taken = [], {k.name: k.path for k in there.values()}
    for part in sorted(below):
        # an object's name is spelled in a URL as the catalog keeps it
        spelled = part if local is not None else quote(part, safe=SAFE_IN_URLS)
        path = f"{place}/{spelled}" if part else place
        own = part.replace("/", ".") if part else place.rstrip("/").rpartition("/")[2]
        name = f"{namespace}.{own}" if namespace else own
        found.append(there.get(links.resolve(path)) or Found(path, name))
    owners = Counter(one.name for one in found)
    return [replace(one, error=_name_error(one, owners, taken)) for one in found]


def _name_error(found: Found, owners: Mapping[str, int], taken: Mapping[str, str]) -> DeltaSqlError | None:
    """The error of a table that cannot have the name of its folder."""
    owner = taken.get(found.name)
    if owner == found.path:
        return None
    try:
        validate_table_name(found.name)
    except AddressError as error:
        why = f"its folder is not a valid name: {error.message}"
    else:
        if owner is None and owners[found.name] == 1:
            return None
        other = "as another folder does" if owner is None else f"which the table at {owner} has"
        why = f"its folder gives it the name {found.name}, {other}"
    return InvalidArgumentError(
        f"{found.path}: {why}",
        suggestion="import it alone under another name, which it keeps: "
        f"`deltasql import {shlex.quote(found.path)} NAME`",
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
        return True  # the import reports why it cannot be read


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
