"""The checks of ``deltasql doctor``: they read a catalog and its tables, and change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.delta_log.names import LOG_FOLDER, commit_path
from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogNotFoundError,
    CatalogVersionError,
    DeltaSqlError,
    MissingExtraError,
)
from deltalakedb.metastore import files, imports, migrations, outbox, registry
from deltalakedb.metastore.database import Database
from deltalakedb.mirror.drift import broken_checkpoints, newest_commit_differences
from deltalakedb.mirror.outside import newest_beyond
from deltalakedb.protocol.paths import relative_to
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.address import Address
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.rows import Table
    from deltalakedb.settings import Config
    from deltalakedb.storage.store import Store

#: data files of a table on an object store whose existence is checked
_REMOTE_FILES = 3

Status = Literal["ok", "warning", "failed"]
Finding = Literal["", "drift", "diverged", "frozen", "late"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist.

    Attributes:
        title: What was checked.
        status: ``ok``, ``warning`` (it works, and needs attention) or ``failed``.
        detail: What was found.
        suggestion: What to do about it.
        table: The table, if the check is about one.
        finding: The kind of failure of a table.
        error: The error that ended the check.
    """

    title: str
    status: Status
    detail: str
    suggestion: str | None = None
    table: str | None = None
    finding: Finding = ""
    error: DeltaSqlError | None = None

    def to_dict(self) -> dict[str, Any]:
        """The check as plain data."""
        return {
            "check": self.title,
            "status": self.status,
            "detail": self.detail,
            "suggestion": self.suggestion,
            "table": self.table,
            "finding": self.finding or None,
            "error": None if self.error is None else self.error.to_dict(),
        }


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


# ---- the catalog ---------------------------------------------------------------------------------------


def _catalog(database: Database) -> Iterator[Check]:
    engine, known = database.engine, migrations.migrations()[-1].number
    try:
        if engine.is_absent():
            raise CatalogNotFoundError(
                f"there is no catalog at {database.address.to_uri()}",
                suggestion="check the address, or create the catalog with `deltasql migrate`",
            )
        with engine.read() as session:
            version = migrations.current_version(engine, session)
    except DeltaSqlError as error:
        yield _failed("connection", error)
        return
    yield Check("connection", "ok", f"{engine.dialect.name} answers")
    if (trouble := engine.encoding_trouble()) is not None:
        if version == 0:
            yield _failed("encoding", trouble)
            return
        yield Check("encoding", "warning", trouble.message, "move the catalog to a database with UTF8")
    where = database.address.to_uri()
    if version == 0:
        yield _failed(
            "schema",
            CatalogNotFoundError(
                f"there is no catalog at {where}", suggestion="create it with `deltasql migrate`"
            ),
        )
        return
    if version != known:
        hint = "run `deltasql migrate`" if version < known else "upgrade deltalakedb on this machine"
        found = f"the schema has version {version}, this client needs {known}"
        yield _failed("schema", CatalogVersionError(found, suggestion=hint))
        return
    yield Check("schema", "ok", f"version {version}")
    yield _rights(database)
    yield _durability(database)
    yield from _indexes(database)
    yield from _audit(database)


def _durability(database: Database) -> Check:
    try:
        found = database.engine.durability()
    except DeltaSqlError as error:
        return _failed("durability", error)
    return Check("durability", "ok" if found.safe else "warning", found.detail, found.suggestion)


def _indexes(database: Database) -> Iterator[Check]:
    """A warning if an abandoned import left files without indexes."""
    try:
        lost = imports.without_indexes(database)
    except DeltaSqlError as error:
        yield _failed("indexes", error)
        return
    if not lost:
        return
    names = ", ".join(row.name for row in lost)
    yield Check(
        "indexes",
        "warning",
        f"the interrupted import of {names} left the files without indexes: writes and plans are slow",
        "run the import again or take it back with `deltasql rollback`; the next process that writes "
        "builds them too",
    )


def _audit(database: Database) -> Iterator[Check]:
    """A failure if rows of the audit are gone: its first row is older than every table."""
    try:
        with database.engine.read() as session:
            row = session.row(database.sql("tables", "beginnings"))
    except DeltaSqlError as error:
        yield _failed("audit", error)
        return
    first, table = row or (None, None)
    if table is not None and (first is None or first > table):
        what = "is empty" if first is None else "lacks its first rows"
        hint = "find out what deleted them, and restore dl_audit from a backup; tables are not affected"
        yield Check("audit", "failed", f"dl_audit {what}, and the catalog has tables", hint, finding="drift")


def _rights(database: Database) -> Check:
    try:
        with database.engine.write() as session:  # changes nothing, so it builds no lost indexes either
            session.run(database.sql("tables", "insert setting"), ("doctor", "trial"))
            raise _RolledBackError
    except _RolledBackError:
        return Check("rights", "ok", "may write (tried and rolled back)")
    except CatalogAccessError as error:
        # a user may have the right to read alone
        return Check("rights", "warning", f"may only read: {error.message}", error.suggestion)
    except DeltaSqlError as error:
        return _failed("rights", error)


# ---- tables --------------------------------------------------------------------------------------------


def _tables(database: Database, names: Sequence[str]) -> Iterator[Check]:
    try:
        rows = [registry.find(database, n) for n in names] if names else registry.list_tables(database)
    except DeltaSqlError as error:
        yield _failed("tables", error)
        return
    yield Check("tables", "ok", f"{len(rows)} to look at")
    for table in rows:
        yield _state(table)
        status = outbox.status_of(database, table.name)
        yield _unpublished(database, table, status)
        if status is not None:
            yield from _follow_up(table, status)
        try:
            yield from _log(database, table)
        except DeltaSqlError as error:
            yield _failed("log", error, table=table.name)


def _state(table: Table) -> Check:
    if table.state == "frozen":
        reason = table.state_reason or "no reason was given"
        hint = (
            "writes are refused: `deltasql mirror recover` adopts the commits of a log that is ahead, "
            "`deltasql mirror resolve` decides if both sides committed"
        )
        return Check("state", "failed", f"frozen: {reason}", hint, table.name, "frozen")
    if table.state == registry.FOLLOWING:
        detail = f"a read-only copy at version {table.head.version} of a table that others write"
        return Check("state", "ok", detail, table=table.name)
    if table.state != "active":
        return Check("state", "warning", table.state, table=table.name)
    return Check("state", "ok", f"active, version {table.head.version}", table=table.name)


def _unpublished(database: Database, table: Table, status: MirrorStatus | None) -> Check:
    lag = outbox.lag(database, table.table_id)
    if not lag.versions:
        return Check("published", "ok", f"up to version {table.published_version}", table=table.name)
    error = outbox.last_error(database, table.table_id)
    detail = f"versions that are not in _delta_log yet: {lag.versions} of {table.head.version + 1}"
    hint = "`deltasql mirror run` publishes them, and so does the next write"
    if status is not None and status.paused:
        hint = "publishing is paused: `deltasql mirror resume` ends that"
    if error is not None:
        hint = f"fix the error; {hint}"
    late = status is not None and status.alarm
    if status is not None and late:
        detail += f", since {status.seconds_behind:.0f} s"
    detail += f": {error}" if error else ""
    return Check(
        "published", "failed" if late else "warning", detail, hint, table.name, "late" if late else ""
    )


def _follow_up(table: Table, status: MirrorStatus) -> Iterator[Check]:
    """Warnings about checkpoints and manifests that could not be written."""
    if status.checkpoint_error is not None:
        detail = f"none could be written since version {max(status.checkpoint_version, 0)}: "
        hint = f"other readers get slower: fix the error, then `deltasql checkpoint {table.name}`"
        yield Check("checkpoint", "warning", detail + status.checkpoint_error, hint, table.name)
    if status.manifests_missing:
        detail = f"transactions without their manifest: {status.manifests_missing}: {status.manifest_error}"
        hint = f"fix the error, then `deltasql mirror run {table.name}`"
        yield Check("manifests", "warning", detail, hint, table.name)


def _log(database: Database, table: Table) -> Iterator[Check]:
    store = open_store(table.location, database.engine.config.storage_options_for(table.location))
    if table.published_version < 0:
        return
    if next(iter(store.list(LOG_FOLDER)), None) is None:
        hint = (
            "was the folder moved, or its disk not mounted? If only the log is lost, "
            f"`deltasql mirror repair {table.name}` writes it again"
        )
        detail = f"there is no {LOG_FOLDER} at {table.location}"
        yield Check("location", "failed", detail, hint, table.name, "drift")
        return
    if lost := _lost_data(database, table, store):
        hint = "restore it from a backup, or mount its disk; `repair()` removes lost files from the table"
        yield Check("location", "failed", f"a data file is missing: {lost}", hint, table.name, "drift")
    else:
        yield Check("location", "ok", table.location, table=table.name)
    yield _tail(database, table, store)
    yield from _newest_checkpoint(database, table, store)
    yield _foreign_commits(database, table, store)


def _lost_data(database: Database, table: Table, store: Store) -> str | None:
    """One of a few live files that is not there; on an object store each costs a request."""
    below = [relative_to(store.location, path) for path in files.some_live(database, table)]
    some = [path for path in below if path is not None]
    some = some if isinstance(store, LocalStore) else some[:_REMOTE_FILES]
    return next((path for path in some if not store.exists(path)), None)


def _tail(database: Database, table: Table, store: Store) -> Check:
    """The commits that readers need; the newest ones are read, of the others only sizes are compared."""
    found = newest_commit_differences(database, table, store)
    if not found:
        version = table.published_version
        return Check("log", "ok", f"as in the catalog up to version {version}", table=table.name)
    worst = next((f for f in found if f.kind == "foreign"), found[-1])
    more = f"; log files with findings: {len(found)}" if len(found) > 1 else ""
    name = commit_path(worst.version)
    if worst.kind == "foreign":
        hint = "another writer changed the file or bypassed the catalog: see `deltasql mirror verify`"
        detail = f"{name} differs from the catalog's copy{more}"
        return Check("log", "failed", detail, hint, table.name, "diverged")
    hint = f"other readers see an older table, or none: `deltasql mirror repair {table.name}` writes it again"
    return Check("log", "failed", f"{name}: {worst.detail}{more}", hint, table.name, "drift")


def _newest_checkpoint(database: Database, table: Table, store: Store) -> Iterator[Check]:
    """A failure if the newest checkpoint is broken, or the hint that names it."""
    for finding, _ in broken_checkpoints(database, table, store, quick=True):
        detail = f"version {finding.version}: {finding.detail}"
        hint = (
            f"`deltasql checkpoint {table.name}` writes a new one, `deltasql mirror repair` repairs this one"
        )
        yield Check("checkpoint", "failed", detail, hint, table.name, "drift")


def _foreign_commits(database: Database, table: Table, store: Store) -> Check:
    if (newest := newest_beyond(database, table, store)) is None:
        return Check("writers", "ok", "no commits outside of the catalog", table=table.name)
    if table.state == registry.FOLLOWING:
        hint = "`deltasql import --follow` brings new commits in; is it running?"
        return Check("writers", "warning", "the log is ahead of the copy", hint, table.name)
    hint = (
        "let writers use the table's deltasql:// address instead of the folder's path; "
        "`deltasql mirror recover` adopts their commits"
    )
    detail = f"version {newest} is in the log and not in the catalog"
    return Check("writers", "failed", detail, hint, table.name, "drift")


def _failed(title: str, error: DeltaSqlError, *, table: str | None = None) -> Check:
    return Check(title, "failed", error.message, error.suggestion, table, error=error)
