"""Importing an existing Delta table, and catching up with commits that were made since."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from deltalakedb.coordinator import guard
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    TableExistsError,
    TableFrozenError,
    TableMissingError,
    UnsupportedOperationError,
    VerificationError,
)
from deltalakedb.metastore import outbox, registry
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import outside
from deltalakedb.storage.store import open_store
from deltalakedb.transfer.importing.engines import EngineOptions
from deltalakedb.transfer.importing.options import ImportOptions, import_target
from deltalakedb.transfer.importing.report import ImportReport
from deltalakedb.transfer.resources import peak_bytes
from deltalakedb.transfer.verifying.verifier import verify_head

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.address import Address
    from deltalakedb.metastore.rows import Table
    from deltalakedb.transfer.importing.engines import EngineName
    from deltalakedb.transfer.importing.options import History
    from deltalakedb.transfer.importing.report import ImportProgress
    from deltalakedb.transfer.verifying.report import Level


def import_table(
    path: str,
    uri: str,
    *,
    history: History = "auto",
    verify: Level = "digest",
    batch_size: int | None = None,
    rate_limit: int | None = None,
    catch_up: bool = False,
    engine: EngineName = "auto",
    spark: Any = None,
    master: str | None = None,
    remote: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[ImportProgress], None] | None = None,
) -> ImportReport:
    """Import the Delta table at a path. Nothing of the table itself is changed.

    The table becomes visible at the end, all at once. An import that was interrupted is resumed by the same
    call: what is loaded already is not loaded again.

    Args:
        path: The table's root.
        uri: The ``deltasql://`` address it will have.
        history: ``"full"`` loads every version that the log still holds, ``"checkpoint"`` begins with the
            newest checkpoint, ``"auto"`` is full up to 10,000 commits.
        verify: How thoroughly the load is compared with the log before the table becomes visible:
            ``"counts"``, ``"digest"``, ``"full"`` or ``"data"``.
        batch_size: Rows of the checkpoint in one transaction; by default as the settings say.
        rate_limit: File actions a second at most; by default as the settings say, 0 for no limit.
        catch_up: If the table was imported before, bring in the commits that other writers made since.
        engine: What loads it: ``"local"`` is this process, ``"spark"`` a cluster; ``"auto"`` takes Spark if
            a session is given or active, above 500,000 live files, or if the memory would not suffice.
        spark: A Spark session to use.
        master: A master URL to start a session with, such as ``local[*]``.
        remote: A Spark Connect server, such as ``sc://host:port``.
        storage_options: Options for the object store.
        progress: Called now and then with how far it is.

    Returns:
        A report of what was loaded.

    Raises:
        TableExistsError: The name or the location belongs to another table.
        LogError: The log cannot be read; nothing stays loaded.
        VerificationError: What was loaded is not what the log says, or at ``"data"`` the rows differ; the
            table is not made visible. In the second case what is loaded stays for the next call.
        CatalogBusyError: Another process imports the table.
        SparkSetupError: Spark was asked for and cannot be started; nothing was created.

    Example:
        >>> import_table("/lake/orders", "deltasql://sqlite//lake/meta.db?table=sales.orders")
    """
    options = ImportOptions(
        history,
        verify,
        batch_size,
        rate_limit,
        EngineOptions(engine, spark, master, remote),
        storage_options,
        progress,
    )
    return import_with(path, uri, options, catch_up=catch_up)


def import_with(path: str, uri: str, options: ImportOptions, *, catch_up: bool) -> ImportReport:
    """`import_table` with its options as one value."""
    address, location = import_target(path, uri)
    database, name = Database.open(address), address.table or ""
    known = None
    with suppress(TableMissingError):  # the catalog need not exist yet either
        known = registry.find(database, name)
    if known is None:
        return import_new(database, address, location, options)
    registry.refuse_elsewhere(known, location)
    if catch_up:
        return _catch_up(database, known, options)
    raise TableExistsError(
        f"{name!r} was imported before, and is at version {known.head.version}",
        table=name,
        version=known.head.version,
        suggestion="catch_up=True (--catch-up) imports the commits that were made since; "
        "`deltasql rollback` undoes the import",
    )


def import_new(database: Database, address: Address, location: str, options: ImportOptions) -> ImportReport:
    """Import a table that the catalog does not have, or go on with its interrupted import."""
    from deltalakedb.transfer.importing.pipeline import Import  # imports Arrow's functions

    # a source that is not there leaves no empty catalog behind
    reader = FileTxnLogReader(location, options.storage_for(location))
    reader.versions()
    options.engine.check()
    database.ensure()
    return Import(database, address, location, reader, options).run()


def _catch_up(database: Database, table: Table, options: ImportOptions) -> ImportReport:
    """Import the commits that the log has beyond the catalog."""
    began = time.perf_counter()
    storage = options.storage_for(table.location)
    added: tuple[int, ...] = ()
    checked = None
    outside.refuse_rewritten(database, table, open_store(table.location, storage))
    if outside.is_ahead(database, table, storage):
        added = _adopt(database, table, storage)
        table = registry.find(database, table.name)
        # other writers may have gone on since: that is for the next time, and no difference
        checked = verify_head(
            database, table, options.verify, storage, engine=EngineOptions(), look_ahead=False
        )
        if not checked.ok:
            raise VerificationError(
                f"after catching up the catalog is not what the log says: {checked.differences[0].detail}",
                table=table.name,
                version=table.head.version,
                suggestion="`deltasql verify` shows all differences",
                report=checked,
            )
    head = table.head
    return ImportReport(
        table.name,
        table.location,
        head.version,
        head.first_version,
        len(added),
        head.num_files,
        head.size_bytes,
        round(time.perf_counter() - began, 3),
        action="caught up" if added else "unchanged",
        digest=None if checked is None else checked.digest,
        verification=checked,
        peak_memory_bytes=peak_bytes(),
    )


def _adopt(database: Database, table: Table, storage: Mapping[str, str] | None) -> tuple[int, ...]:
    if waiting := outbox.lag(database, table.table_id).versions:
        raise UnsupportedOperationError(
            f"{waiting} commits of the catalog wait to be published, and others wrote to the log",
            table=table.name,
            suggestion="publish with `deltasql mirror run`; if both sides went on, `deltasql mirror resolve`",
        )
    if table.state == "frozen":
        # it was frozen because the log is ahead: that is what is repaired here, and nothing else
        try:
            return guard.recover(database, table.name, storage_options=storage).versions
        except TableFrozenError as error:
            error.suggestion = error.suggestion or "look at `deltasql mirror status`"
            raise
    return guard.adopt(database, table.name, storage, origin="import").versions
