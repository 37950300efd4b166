"""Catalogs, transactions, mirrors and logs whose methods await."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

from deltalakedb.address import parse_address
from deltalakedb.aio.proxies import AsyncProxy, async_factory, async_iterator, async_method
from deltalakedb.aio.streams import Stream
from deltalakedb.aio.tables import DeltaTable
from deltalakedb.aio.threads import run_to_the_end
from deltalakedb.catalog import Catalog as SyncCatalog
from deltalakedb.catalog_mirror import Mirror as SyncMirror
from deltalakedb.models import Add, Committed, File, Remove
from deltalakedb.protocol.txn_log import TxnLogReader
from deltalakedb.retry import RETRIED, Retries
from deltalakedb.table.transaction import Transaction as SyncTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from deltalakedb.address import Address
    from deltalakedb.mirror.reconciler import ReconcilerThread
    from deltalakedb.protocol.read_set import Isolation
    from deltalakedb.settings import Config

T = TypeVar("T")


class TxnLog(AsyncProxy[TxnLogReader]):
    """A table's transaction log at the low level, file-backed or SQL-backed."""

    latest_version = async_method(TxnLogReader.latest_version)
    versions = async_method(TxnLogReader.versions)
    version_at = async_method(TxnLogReader.version_at)
    snapshot = async_method(TxnLogReader.snapshot)
    files = async_iterator(TxnLogReader.files, Stream[Add])
    tombstones = async_iterator(TxnLogReader.tombstones, Stream[Remove])
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
    compact = async_method(SyncMirror.compact)
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
        """A reconciler for a long-lived process, as a context manager: it has a thread of its own."""
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
    write = async_method(SyncTransaction.write)  # type: ignore[arg-type]  # **options
    create_table = async_method(SyncTransaction.create_table, DeltaTable)  # type: ignore[arg-type]  # **options
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

    Args:
        uri: A ``deltasql://`` address without a table.
        config: Settings; by default those of the process.

    Example:
        >>> async with Catalog("deltasql://sqlite//lake/meta.db") as catalog:
        ...     async with catalog.transaction() as tx:
        ...         await tx.write("sales.orders", orders)
    """

    def __init__(
        self,
        uri: str | Address,
        *,
        config: Config | Mapping[str, Any] | None = None,
        create: bool = False,
    ) -> None:
        super().__init__(lambda: SyncCatalog(uri, config=config, create=create), None)
        self._uri = parse_address(uri).to_uri()

    @property
    def uri(self) -> str:
        """The catalog's address, without its password."""
        return self._uri

    # ---- finding ---------------------------------------------------------------------------------------

    tables = async_method(SyncCatalog.tables)
    table = async_method(SyncCatalog.table, DeltaTable)
    table_uri = async_method(SyncCatalog.table_uri)
    describe = async_method(SyncCatalog.describe)
    find = async_method(SyncCatalog.find)
    files = async_iterator(SyncCatalog.files, Stream[File])
    commits = async_method(SyncCatalog.commits)
    log = async_method(SyncCatalog.log, TxnLog)

    # ---- changing --------------------------------------------------------------------------------------

    create_table = async_method(SyncCatalog.create_table, DeltaTable)
    write = async_method(SyncCatalog.write)  # type: ignore[arg-type]  # **options
    register = async_method(SyncCatalog.register, DeltaTable)
    rename_table = async_method(SyncCatalog.rename_table)
    drop_table = async_method(SyncCatalog.drop_table)
    set_comment = async_method(SyncCatalog.set_comment)
    set_tags = async_method(SyncCatalog.set_tags)
    gc = async_method(SyncCatalog.gc)

    @property
    def mirror(self) -> Mirror:
        """How the catalog's tables reach their `_delta_log`: status, publishing, pausing, repair."""
        return Mirror._by(lambda: self._sync().mirror, self._queue)

    # ---- transactions ----------------------------------------------------------------------------------

    transaction = async_factory(SyncCatalog.transaction, Transaction)
    snapshot = async_factory(SyncCatalog.snapshot, Transaction)

    async def run(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        retries: int = 10,
        isolation: Isolation | None = None,
        txn_uuid: str | None = None,
    ) -> T:
        """Run an asynchronous function in a transaction, and repeat it after a conflict.

        Args:
            work: Called with a fresh transaction each time; what it does outside of it is repeated, too.
            retries: How often it is repeated before the conflict is raised.
            isolation: As in ``transaction``.
            txn_uuid: As in ``transaction``.
        """
        attempts = Retries(retries)
        while True:
            try:
                async with self.transaction(isolation=isolation, txn_uuid=txn_uuid) as tx:
                    return await work(tx)
            except RETRIED as error:
                await asyncio.sleep(attempts.pause(error))

    # ---- namespaces and settings -----------------------------------------------------------------------

    namespaces = async_method(SyncCatalog.namespaces)
    create_namespace = async_method(SyncCatalog.create_namespace)
    drop_namespace = async_method(SyncCatalog.drop_namespace)
    set_root = async_method(SyncCatalog.set_root)
    query = async_method(SyncCatalog.query)

    async def root(self) -> str | None:
        """The folder or URL of new tables without a location; a method here, since it asks the database."""
        return await self._run(lambda catalog: catalog.root)

    # ---- end -------------------------------------------------------------------------------------------

    close = async_method(SyncCatalog.close)

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await run_to_the_end(self._queue, lambda: self._sync().close())
