"""Importing an existing Delta table: its log becomes rows; its files stay untouched."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from deltalakedb.config import get_config
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import TableExistsError, TableMissingError
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.transfer.catchup import catch_up_table
from deltalakedb.transfer.plan import checked_rate, target_of
from deltalakedb.transfer.verify import check_level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.metastore.values import Table
    from deltalakedb.transfer.choosing import EngineName
    from deltalakedb.transfer.findings import Level
    from deltalakedb.transfer.plan import History
    from deltalakedb.transfer.report import ImportProgress, ImportReport


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
    """Take over the Delta table at a path. Nothing of the table itself is changed.

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
        catch_up: Where the table was imported before, bring in the commits that others made since, and do
            nothing where there are none.
        engine: Who loads it: ``"local"`` is this process, ``"spark"`` a cluster; ``"auto"`` takes Spark where
            a session is given or active, above 500,000 live files, or where the memory would not suffice.
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
            table is not made visible. In the second case what is loaded stays, to be gone on with.
        CatalogBusyError: Another import of the table is at work.
        SparkSetupError: Spark was asked for and cannot be started; nothing was created.

    Example:
        >>> import_table("/lake/orders", "deltasql://sqlite//lake/meta.db?table=sales.orders")
    """
    address, location = target_of(path, uri)
    check_level(verify)
    from deltalakedb.transfer.choosing import EngineWish  # Arrow's functions cost time to import

    wish = EngineWish(engine, spark, master, remote)
    limit = checked_rate(rate_limit)
    options = get_config().storage_options_for(location, storage_options)
    database, name = Database.open(address), address.table or ""
    known = None
    with suppress(TableMissingError):  # nor need there be a catalog yet
        known = registry.find(database, name)
    if known is not None:
        if not catch_up:
            _refuse_again(known, location)
        return catch_up_table(database, known, location, options, verify)
    # what is not there leaves no empty catalog behind
    reader = FileTxnLogReader(location, options)
    reader.versions()
    wish.check()
    database.ensure()
    from deltalakedb.transfer.pipeline import Pipeline  # Arrow's functions cost time to import

    run = Pipeline(
        database,
        address,
        location,
        reader,
        history=history,
        level=verify,
        batch_size=batch_size,
        rate_limit=limit,
        progress=progress,
        wish=wish,
        options=options,
    )
    return run.whole()


def _refuse_again(table: Table, location: str) -> None:
    """Say of a table that is there already what it needs: more commits perhaps, never another import."""
    registry.refuse_elsewhere(table, location)
    raise TableExistsError(
        f"{table.name!r} was imported before, and is at version {table.head.version}",
        table=table.name,
        version=table.head.version,
        suggestion="catch_up=True (--catch-up) brings in what others committed since; "
        "`deltasql rollback` takes the import back",
    )
