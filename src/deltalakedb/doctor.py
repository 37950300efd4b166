"""The checks of ``deltasql doctor``: they read a catalog and its tables, and change nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.delta_log.names import LOG_FOLDER, commit_path
from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogNotFoundError,
    CatalogVersionError,
    DeltaSqlError,
    MissingExtraError,
)
from deltalakedb.metastore import migrations, outbox, registry
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import store_at
from deltalakedb.mirror.drift import (
    Difference,
    broken_checkpoints,
    lost_file,
    newest_commit_differences,
    versions_ahead,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from deltalakedb.address import Address
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.rows import Table
    from deltalakedb.settings import Config


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check; ``warning`` means that it works, but needs attention."""

    title: str
    status: Literal["ok", "warning", "failed"]
    detail: str
    suggestion: str | None = None
    table: str | None = None
    #: the kind of problem of a table
    finding: Literal["", "drift", "diverged", "frozen", "late"] = ""
    #: the error that ended the check
    error: DeltaSqlError | None = None

    def to_dict(self) -> dict[str, Any]:
        """The check as plain data, for ``--json``."""
        same = {name: getattr(self, name) for name in ("status", "detail", "suggestion", "table")}
        error = None if self.error is None else self.error.to_dict()
        return {"check": self.title, **same, "finding": self.finding or None, "error": error}


class _RolledBackError(Exception):
    """Ends a trial transaction."""


def examine(address: Address, config: Config, *, tables: Sequence[str] = ()) -> Iterator[Check]:
    """Check a catalog, then its tables; end early if the catalog itself cannot be used.

    Args:
        address: The catalog.
        config: The settings to connect with.
        tables: Names of the tables to check; by default all.

    Example:
        >>> address = parse_address("deltasql://sqlite//lake/meta.db")
        >>> [check.detail for check in examine(address, get_config()) if check.status != "ok"]
        []
    """
    yield Check("address", "ok", address.to_uri())
    try:
        database = Database.open(address, config)
    except MissingExtraError as error:
        yield _failed("driver", error)
        return
    yield Check("driver", "ok", f"the driver of {address.engine} is installed")
    with database:
        usable = True
        for check in _catalog(database):
            usable = usable and check.status != "failed"
            yield check
        if usable:
            yield from _tables(database, tables)


def _failed(title: str, error: DeltaSqlError) -> Check:
    return Check(title, "failed", error.message, error.suggestion, error=error)


def _run(title: str, check: Callable[..., Iterable[Check]], *args: object) -> Iterator[Check]:
    """Run a check; an error that ends it becomes a result."""
    try:
        yield from check(*args)
    except DeltaSqlError as error:
        yield _failed(title, error)


# ---- the catalog ---------------------------------------------------------------------------------------


def _catalog(database: Database) -> Iterator[Check]:
    engine, known = database.engine, migrations.migrations()[-1].number
    where = database.address.to_uri()
    absent, create = f"there is no catalog at {where}", f"create it with `deltasql init '{where}'`"
    title = "connection"
    try:
        if engine.is_absent():
            raise CatalogNotFoundError(absent, suggestion=f"check the address, or {create}")
        with engine.read() as session:
            version = migrations.current_version(engine, session)
        yield Check(title, "ok", f"connected to {engine.dialect.name}")
        title = "encoding"
        if (trouble := engine.encoding_error()) is not None:
            if version == 0:
                raise trouble
            yield Check(title, "warning", trouble.message, "move the catalog to a database with UTF8")
        title = "schema"
        if version == 0:
            raise CatalogNotFoundError(absent, suggestion=create)
        if version != known:
            hint = "run `deltasql migrate`" if version < known else "upgrade deltalakedb on this machine"
            found = f"the schema has version {version}, this client needs {known}"
            raise CatalogVersionError(found, suggestion=hint)
        yield Check(title, "ok", f"version {version}")
    except DeltaSqlError as error:
        yield _failed(title, error)
        return
    for title, check in _CATALOG_CHECKS.items():
        yield from _run(title, check, database)


def _rights(database: Database) -> Iterator[Check]:
    try:
        with database.engine.write() as session:
            session.run(database.sql("tables", "insert setting"), ("doctor", "trial"))
            raise _RolledBackError
    except _RolledBackError:
        yield Check("rights", "ok", "can write (tried and rolled back)")
    except CatalogAccessError as error:
        # a user may have permission only to read
        yield Check("rights", "warning", f"can only read: {error.message}", error.suggestion)


def _durability(database: Database) -> Iterator[Check]:
    found = database.engine.durability()
    yield Check("durability", "ok" if found.safe else "warning", found.detail, found.suggestion)


def _audit(database: Database) -> Iterator[Check]:
    """A failure if the audit log lacks rows: its first row must be older than every table."""
    with database.engine.read() as session:
        row = session.row(database.sql("tables", "beginnings"))
    first, table = row or (None, None)
    if table is not None and (first is None or first > table):
        what = "is empty" if first is None else "lacks its first rows"
        hint = "find out what deleted them, and restore dl_audit from a backup; tables are not affected"
        yield Check("audit", "failed", f"dl_audit {what}, but the catalog has tables", hint, finding="drift")


_CATALOG_CHECKS: dict[str, Callable[[Database], Iterator[Check]]] = {
    "rights": _rights,
    "durability": _durability,
    "audit": _audit,
}


# ---- tables --------------------------------------------------------------------------------------------


def _tables(database: Database, names: Sequence[str]) -> Iterator[Check]:
    try:
        rows = [registry.find(database, n) for n in names] if names else registry.list_tables(database)
    except DeltaSqlError as error:
        yield _failed("tables", error)
        return
    yield Check("tables", "ok", f"{len(rows)} to check")
    for table in rows:
        for title, check in (("state", _state), ("published", _published), ("log", _log)):
            for found in _run(title, check, database, table):
                yield replace(found, table=table.name)


def _state(_database: Database, table: Table) -> Iterator[Check]:
    if table.state == "frozen":
        hint = (
            "writes are refused: run `deltasql mirror recover` if the log is ahead of the catalog, "
            "`deltasql mirror resolve` if they have diverged"
        )
        reason = table.state_reason or "no reason was given"
        yield Check("state", "failed", f"frozen: {reason}", hint, finding="frozen")
    elif table.state == registry.FOLLOWING:
        detail = f"a read-only copy at version {table.head.version} of a table that other writers own"
        yield Check("state", "ok", detail)
    elif table.state != "active":
        yield Check("state", "warning", table.state)
    else:
        yield Check("state", "ok", f"active, version {table.head.version}")


def _published(database: Database, table: Table) -> Iterator[Check]:
    """Unpublished commits, then checkpoints and manifests that could not be written."""
    status = outbox.status_of(database, table.name)
    lag = outbox.lag(database, table.table_id)
    if lag.versions:
        yield _unpublished(table, lag.versions, status, outbox.last_error(database, table.table_id))
    else:
        yield Check("published", "ok", f"up to version {table.published_version}")
    if status is not None and status.checkpoint_error is not None:
        detail = f"no checkpoint could be written since version {max(status.checkpoint_version, 0)}: "
        hint = f"other readers get slower: fix the error, then `deltasql checkpoint {table.name}`"
        yield Check("checkpoint", "warning", detail + status.checkpoint_error, hint)
    if status is not None and status.manifests_missing:
        detail = f"missing manifests of transactions: {status.manifests_missing}: {status.manifest_error}"
        hint = f"fix the error, then `deltasql mirror run {table.name}`"
        yield Check("manifests", "warning", detail, hint)


def _unpublished(table: Table, versions: int, status: MirrorStatus | None, error: str | None) -> Check:
    detail = f"versions that are not in _delta_log yet: {versions} of {table.head.version + 1}"
    hint = "`deltasql mirror run` publishes them, and so does the next write"
    late = status is not None and status.alarm
    if status is not None and status.paused:
        hint = "publishing is paused: run `deltasql mirror resume`"
    if status is not None and late:
        detail += f", for {status.seconds_behind:.0f} s"
    if error is not None:
        detail, hint = f"{detail}: {error}", f"fix the error; {hint}"
    return Check("published", "failed" if late else "warning", detail, hint, finding="late" if late else "")


def _log(database: Database, table: Table) -> Iterator[Check]:
    """The verifier's quick checks of the log, and whether a few data files exist."""
    if table.published_version < 0:
        return
    store = store_at(database, table.location)
    if next(iter(store.list(LOG_FOLDER)), None) is None:
        hint = (
            f"mount its disk, or run `deltasql relocate {table.name} NEW_LOCATION` if it was moved; if only "
            f"the log is lost, `deltasql mirror repair {table.name}` rewrites it"
        )
        detail = f"there is no {LOG_FOLDER} at {table.location}"
        yield Check("location", "failed", detail, hint, finding="drift")
        return
    if lost := lost_file(database, table, store):
        hint = "restore it from a backup, or mount its disk; `repair()` removes lost files from the table"
        yield Check("location", "failed", f"a data file is missing: {lost}", hint, finding="drift")
    else:
        yield Check("location", "ok", table.location)
    yield _commits(table, newest_commit_differences(database, table, store))
    hint = f"`deltasql checkpoint {table.name}` writes a new one, `deltasql mirror repair` repairs this one"
    for found, _ in broken_checkpoints(database, table, store, quick=True):
        detail = f"version {found.version}: {found.detail}"
        yield Check("checkpoint", "failed", detail, hint, finding="drift")
    yield _writers(table, next(versions_ahead(database, table, store), None))


def _commits(table: Table, found: Sequence[Difference]) -> Check:
    """Whether the commits that readers need match the catalog."""
    if not found:
        return Check("log", "ok", f"matches the catalog up to version {table.published_version}")
    worst = next((f for f in found if f.kind == "foreign"), found[-1])
    more = f"; log files that differ: {len(found)}" if len(found) > 1 else ""
    name = commit_path(worst.version)
    if worst.kind == "foreign":
        hint = "another writer changed the file or bypassed the catalog: see `deltasql mirror verify`"
        detail = f"{name} differs from the catalog's copy{more}"
        return Check("log", "failed", detail, hint, finding="diverged")
    hint = f"other readers see an older table, or none: `deltasql mirror repair {table.name}` rewrites it"
    return Check("log", "failed", f"{name}: {worst.detail}{more}", hint, finding="drift")


def _writers(table: Table, ahead: Difference | None) -> Check:
    if ahead is None:
        return Check("writers", "ok", "no commits outside of the catalog")
    if table.state == registry.FOLLOWING:
        hint = "`deltasql import --follow` imports new commits; is it running?"
        return Check("writers", "warning", "the log is ahead of the copy", hint)
    hint = (
        "let writers use the table's deltasql:// address instead of the folder's path; "
        "`deltasql mirror recover` adopts their commits"
    )
    detail = f"version {ahead.version} is in the log, but not in the catalog"
    return Check("writers", "failed", detail, hint, finding="drift")
