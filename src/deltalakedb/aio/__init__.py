"""The same names for asyncio: methods and functions await, and no event loop is ever blocked.

Everything runs in a bounded pool of threads, by the synchronous implementation.

Example:
    >>> from deltalakedb.aio import Catalog, open_table, write_deltalake
    >>> await write_deltalake(uri, df, mode="append")
    >>> table = await open_table(uri)
    >>> async for batch in table.scan(columns=["id"]):
    ...     print(batch.num_rows)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import deltalake.table as stock

from deltalakedb import catalog
from deltalakedb.address import Address, parse_address
from deltalakedb.aio.threads import (
    AsyncProxy,
    Batches,
    SerialQueue,
    Stream,
    async_factory,
    async_function,
    async_function_on_table,
    async_method,
    run_to_the_end,
)
from deltalakedb.catalog import Catalog as SyncCatalog
from deltalakedb.catalog import Mirror as SyncMirror
from deltalakedb.metastore.commits import CommitWatch, TableCommit
from deltalakedb.mirror.reconciler import checked_interval
from deltalakedb.models import Add, Committed, File, Remove
from deltalakedb.protocol.txn_log import TxnLogReader
from deltalakedb.retry import RETRIED, Retries
from deltalakedb.table.drop_in import delta_table, functions
from deltalakedb.table.drop_in.delta_table import DeltaTable as SyncTable
from deltalakedb.table.transaction import CatalogTransaction as SyncTransaction
from deltalakedb.transfer import exporting, following, rollback
from deltalakedb.transfer.importing import api, plan
from deltalakedb.transfer.verifying import verifier

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from deltalakedb.aio.threads import Method
    from deltalakedb.mirror.reconciler import ReconcilerThread
    from deltalakedb.protocol.read_set import Isolation
    from deltalakedb.settings import Config

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "Batches",
    "Catalog",
    "DeltaTable",
    "Mirror",
    "Stream",
    "TableAlterer",
    "TableMerger",
    "TableOptimizer",
    "Transaction",
    "TxnLog",
    "convert_to_deltalake",
    "export_table",
    "follow_table",
    "import_status",
    "import_table",
    "import_tables",
    "open_log",
    "open_table",
    "plan_import",
    "rollback_import",
    "verify_table",
    "write_deltalake",
]


class TableOptimizer(AsyncProxy[stock.TableOptimizer]):
    """``await table.optimize.compact()``."""

    compact = async_method(stock.TableOptimizer.compact)
    z_order = async_method(stock.TableOptimizer.z_order)


class TableAlterer(AsyncProxy[stock.TableAlterer]):
    """``await table.alter.add_columns(…)``."""

    add_columns = async_method(stock.TableAlterer.add_columns)
    add_constraint = async_method(stock.TableAlterer.add_constraint)
    add_feature = async_method(stock.TableAlterer.add_feature)
    drop_column_not_null = async_method(stock.TableAlterer.drop_column_not_null)
    drop_constraint = async_method(stock.TableAlterer.drop_constraint)
    set_column_metadata = async_method(stock.TableAlterer.set_column_metadata)
    set_table_description = async_method(stock.TableAlterer.set_table_description)
    set_table_name = async_method(stock.TableAlterer.set_table_name)
    set_table_properties = async_method(stock.TableAlterer.set_table_properties)


def _clause(method: Callable[Concatenate[Any, P], Any]) -> Method[P, TableMerger]:
    """A clause of a merge: recorded now, run with the others."""

    @functools.wraps(method)
    def add(self: TableMerger, *args: Any, **options: Any) -> TableMerger:
        before = self._make
        self._make = lambda: getattr(before(), method.__name__)(*args, **options)
        return self

    return add  # type: ignore[return-value]  # a function is such a descriptor


class TableMerger(AsyncProxy[stock.TableMerger]):
    """A merge: its clauses are chained as usual, and ``await merge.execute()`` runs them."""

    when_matched_update = _clause(stock.TableMerger.when_matched_update)
    when_matched_update_all = _clause(stock.TableMerger.when_matched_update_all)
    when_matched_delete = _clause(stock.TableMerger.when_matched_delete)
    when_not_matched_insert = _clause(stock.TableMerger.when_not_matched_insert)
    when_not_matched_insert_all = _clause(stock.TableMerger.when_not_matched_insert_all)
    when_not_matched_by_source_update = _clause(stock.TableMerger.when_not_matched_by_source_update)
    when_not_matched_by_source_delete = _clause(stock.TableMerger.when_not_matched_by_source_delete)
    execute = async_method(stock.TableMerger.execute)


class DeltaTable(AsyncProxy[SyncTable]):
    """A Delta table whose methods await; parameters and results are those of ``deltalakedb.DeltaTable``.

    Calls on one table run one after the other, in the order they were made. Open it a second time to read
    side by side. It is opened by its first call, or by awaiting it.

    Example:
        >>> table = await DeltaTable("deltasql://sqlite//lake/meta.db?table=sales.orders")
        >>> async for batch in table.scan(predicate="id > 5"):
        ...     print(batch.num_rows)
    """

    def __init__(
        self,
        table_uri: str | Path | os.PathLike[str],
        version: int | None = None,
        storage_options: dict[str, str] | None = None,
        without_files: bool = False,
        log_buffer_size: int | None = None,
        skip_stats: bool = False,
    ) -> None:
        super().__init__(
            lambda: SyncTable(
                table_uri, version, storage_options, without_files, log_buffer_size, skip_stats
            ),
            SerialQueue(),
        )

    create = staticmethod(async_function(SyncTable.create, lambda made: DeltaTable._of(made, SerialQueue())))
    is_deltatable = staticmethod(async_function(SyncTable.is_deltatable))

    @property
    def table_uri(self) -> str:
        """The table's root."""
        return self._now().table_uri

    @property
    def name(self) -> str:
        """The table's name in its catalog."""
        return self._now().name

    @property
    def address(self) -> str:
        """The table's ``deltasql://`` address, without its password."""
        return self._now().address

    @property
    def table_config(self) -> stock.DeltaTableConfig:
        """Deprecated, as in ``deltalake``."""
        return self._now().table_config

    @property
    def optimize(self) -> TableOptimizer:
        """Compaction and Z-ordering."""
        return TableOptimizer._by(lambda: self._sync().optimize, self._queue)

    @property
    def alter(self) -> TableAlterer:
        """Changes of columns, constraints, properties and features."""
        return TableAlterer._by(lambda: self._sync().alter, self._queue)

    version = async_method(SyncTable.version)
    schema = async_method(SyncTable.schema)
    metadata = async_method(SyncTable.metadata)
    protocol = async_method(SyncTable.protocol)
    history = async_method(SyncTable.history)
    transaction_version = async_method(SyncTable.transaction_version)
    load_as_version = async_method(SyncTable.load_as_version)
    update_incremental = async_method(SyncTable.update_incremental)

    count = async_method(SyncTable.count)
    file_uris = async_method(SyncTable.file_uris)
    partitions = async_method(SyncTable.partitions)
    get_add_actions = async_method(SyncTable.get_add_actions)
    to_pandas = async_method(SyncTable.to_pandas)
    to_pyarrow_dataset = async_method(SyncTable.to_pyarrow_dataset)
    to_pyarrow_table = async_method(SyncTable.to_pyarrow_table)
    scan = async_factory(SyncTable.scan, Batches)
    load_cdf = async_factory(SyncTable.load_cdf, Batches)
    deletion_vectors = async_factory(SyncTable.deletion_vectors, Batches)

    delete = async_method(SyncTable.delete)
    update = async_method(SyncTable.update)
    merge = async_factory(SyncTable.merge, TableMerger._by)
    restore = async_method(SyncTable.restore)
    repair = async_method(SyncTable.repair)
    vacuum = async_method(SyncTable.vacuum)
    create_write_transaction = async_method(SyncTable.create_write_transaction)
    create_checkpoint = async_method(SyncTable.create_checkpoint)
    cleanup_metadata = async_method(SyncTable.cleanup_metadata)
    compact_logs = async_method(SyncTable.compact_logs)
    generate = async_method(SyncTable.generate)


async def open_table(
    table_uri: str | Path | os.PathLike[str],
    version: int | None = None,
    storage_options: dict[str, str] | None = None,
) -> DeltaTable:
    """Open a table at its newest version, or at another one."""
    return await DeltaTable(table_uri, version, storage_options)


class TxnLog(AsyncProxy[TxnLogReader]):
    """A table's transaction log at the low level, file-backed or SQL-backed."""

    latest_version = async_method(TxnLogReader.latest_version)
    versions = async_method(TxnLogReader.versions)
    version_at = async_method(TxnLogReader.version_at)
    snapshot = async_method(TxnLogReader.snapshot)
    files = async_factory(TxnLogReader.files, Stream[Add])
    tombstones = async_factory(TxnLogReader.tombstones, Stream[Remove])
    txns = async_method(TxnLogReader.txns)
    domains = async_method(TxnLogReader.domains)
    history = async_method(TxnLogReader.history)
    commit_bytes = async_method(TxnLogReader.commit_bytes)
    actions = async_method(TxnLogReader.actions)


class Mirror(AsyncProxy[SyncMirror]):
    """How a catalog's tables reach their `_delta_log`."""

    status = async_method(SyncMirror.status)
    publish = async_method(SyncMirror.publish)
    run = async_method(SyncMirror.run)
    pause = async_method(SyncMirror.pause)
    resume = async_method(SyncMirror.resume)
    checkpoint = async_method(SyncMirror.checkpoint)
    clean = async_method(SyncMirror.clean)
    prune = async_method(SyncMirror.prune)
    compact_log = async_method(SyncMirror.compact_log)
    verify = async_method(SyncMirror.verify)
    repair = async_method(SyncMirror.repair)
    rebuild = async_method(SyncMirror.rebuild)
    recover = async_method(SyncMirror.recover)
    resolve = async_method(SyncMirror.resolve)
    policy = async_method(SyncMirror.policy)
    set_policy = async_method(SyncMirror.set_policy)
    fence = async_method(SyncMirror.fence)
    unfence = async_method(SyncMirror.unfence)

    async def thread(self, *, interval: float = 1.0) -> ReconcilerThread:
        """A reconciler for a long-lived process, as a context manager with a thread."""
        return await self._run(lambda mirror: mirror.thread(interval=interval))


class Transaction(AsyncProxy[SyncTransaction]):
    """Any number of tables, changed together or not at all: ``async with catalog.transaction() as tx``.

    A clean exit commits, an exception rolls back, and so does a cancelled task. One that is cancelled during
    the commit itself waits until it is known what became of it.
    """

    @property
    def uuid(self) -> str:
        """The transaction's id."""
        return self._now().uuid

    @property
    def commits(self) -> Mapping[str, Committed]:
        """What the transaction became, by table name, once it is committed."""
        return self._now().commits

    table = async_method(SyncTransaction.table, DeltaTable)
    tables = async_method(SyncTransaction.tables)
    query = async_method(SyncTransaction.query)
    write = async_method(SyncTransaction.write)
    create_table = async_method(SyncTransaction.create_table, DeltaTable)
    rename_table = async_method(SyncTransaction.rename_table)
    drop_table = async_method(SyncTransaction.drop_table)
    execute = async_method(SyncTransaction.execute)
    commit = async_method(SyncTransaction.commit)
    rollback = async_method(SyncTransaction.rollback)

    async def __aenter__(self) -> Self:
        try:
            await self._run(lambda tx: tx.__enter__())
        except asyncio.CancelledError:
            # it may have begun all the same, and nothing else would end it
            self._child_queue().submit(lambda: self._sync().rollback())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_to_the_end(self._queue, lambda: self._sync().__exit__(kind, error, trace))


class Catalog(AsyncProxy[SyncCatalog]):
    """A catalog whose methods await; parameters and results are those of ``deltalakedb.Catalog``.

    Its calls run side by side. It is opened by its first call, or by awaiting or entering it.

    Example:
        >>> async with Catalog("deltasql://sqlite//lake/meta.db") as catalog:
        ...     async with catalog.transaction() as tx:
        ...         await tx.write("sales.orders", orders)
    """

    def __init__(
        self, uri: str | Address, *, config: Config | Mapping[str, Any] | None = None, create: bool = False
    ) -> None:
        super().__init__(lambda: SyncCatalog(uri, config=config, create=create), None)
        self._uri = parse_address(uri).to_uri()

    @property
    def uri(self) -> str:
        """The catalog's address, without its password."""
        return self._uri

    tables = async_method(SyncCatalog.tables)
    table = async_method(SyncCatalog.table, DeltaTable)
    table_uri = async_method(SyncCatalog.table_uri)
    describe = async_method(SyncCatalog.describe)
    find = async_method(SyncCatalog.find)
    files = async_factory(SyncCatalog.files, Stream[File])
    commits = async_method(SyncCatalog.commits)
    head = async_method(SyncCatalog.head)
    stats = async_method(SyncCatalog.stats)
    diff = async_method(SyncCatalog.diff)
    sql = async_factory(SyncCatalog.sql, Batches)

    async def watch(
        self,
        *names: str,
        from_version: int | None = None,
        interval: float = 1.0,
        once: bool = False,
        stop: asyncio.Event | None = None,
    ) -> AsyncIterator[TableCommit]:
        """Yield the commits of some tables, or of all, as they arrive; in the order of their versions."""
        pause, ends = checked_interval(interval), stop or asyncio.Event()
        watch = await self._run(lambda catalog: CommitWatch(catalog._database, names, from_version))
        while True:
            for found in await self._run(lambda _: list(watch.look())):
                yield found
            if once:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ends.wait(), pause)
            if ends.is_set():
                return

    pack_status = async_method(SyncCatalog.pack_status)
    rebuild_packs = async_method(SyncCatalog.rebuild_packs)
    log = async_method(SyncCatalog.log, TxnLog)

    create_table = async_method(SyncCatalog.create_table, DeltaTable)
    write = async_method(SyncCatalog.write)
    write_files = async_method(SyncCatalog.write_files)
    alter_table = async_method(SyncCatalog.alter_table)
    restore_table = async_method(SyncCatalog.restore_table)
    register = async_method(SyncCatalog.register, DeltaTable)
    rename_table = async_method(SyncCatalog.rename_table)
    drop_table = async_method(SyncCatalog.drop_table)
    set_comment = async_method(SyncCatalog.set_comment)
    set_tags = async_method(SyncCatalog.set_tags)
    update_tags = async_method(SyncCatalog.update_tags)
    relocate_table = async_method(SyncCatalog.relocate_table)
    relocate_tables = async_method(SyncCatalog.relocate_tables)
    gc = async_method(SyncCatalog.gc)

    @property
    def mirror(self) -> Mirror:
        """How the catalog's tables reach their `_delta_log`: status, publishing, pausing, repair."""
        return Mirror._by(lambda: self._sync().mirror, self._queue)

    transaction = async_factory(SyncCatalog.transaction, Transaction._by)
    snapshot = async_factory(SyncCatalog.snapshot, Transaction._by)

    async def run(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        retries: int = 10,
        isolation: Isolation | None = None,
        txn_uuid: str | None = None,
    ) -> T:
        """Run an asynchronous function in a transaction, and repeat it after a conflict."""
        attempts = Retries(retries)
        while True:
            try:
                async with self.transaction(isolation=isolation, txn_uuid=txn_uuid) as tx:
                    return await work(tx)
            except RETRIED as error:
                await asyncio.sleep(attempts.pause(error))

    namespaces = async_method(SyncCatalog.namespaces)
    create_namespace = async_method(SyncCatalog.create_namespace)
    drop_namespace = async_method(SyncCatalog.drop_namespace)
    set_root = async_method(SyncCatalog.set_root)
    query = async_method(SyncCatalog.query)

    async def root(self) -> str | None:
        """The folder or URL of new tables without a location; a method here, since it asks the database."""
        return await self._run(lambda catalog: catalog.root)

    close = async_method(SyncCatalog.close)

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await run_to_the_end(self._queue, lambda: self._sync().close())


write_deltalake = async_function_on_table(delta_table.write_deltalake, DeltaTable)
convert_to_deltalake = async_function(functions.convert_to_deltalake)
open_log = async_function(catalog.open_log, lambda log: TxnLog._of(log, None))
follow_table = async_function(following.follow_table)
import_table = async_function(api.import_table)
import_tables = async_function(api.import_tables)
import_status = async_function(api.import_status)
plan_import = async_function(plan.plan_import)
rollback_import = async_function(rollback.rollback_import)
verify_table = async_function(verifier.verify_table)
export_table = async_function(exporting.export_table)
