"""Catalogs, transactions, mirrors and logs whose methods await."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

from deltalakedb.aio.spark import SparkTransaction
from deltalakedb.aio.streams import Stream
from deltalakedb.aio.tables import DeltaTable
from deltalakedb.aio.threads import Threads, run_to_the_end
from deltalakedb.aio.wrapping import Wrapped, awaits, gives, streams
from deltalakedb.catalog import Catalog as SyncCatalog
from deltalakedb.mirror.mirror import Mirror as SyncMirror
from deltalakedb.models import Add, Committed, File, Remove
from deltalakedb.protocol.txn_log import TxnLogReader
from deltalakedb.table.retries import RETRIED, Retries
from deltalakedb.table.transaction import Transaction as SyncTransaction
from deltalakedb.uri import parse_uri

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from deltalakedb.config import Config
    from deltalakedb.mirror.reconciler import ReconcilerThread
    from deltalakedb.protocol.read_set import Isolation
    from deltalakedb.uri import Address

T = TypeVar("T")


class TxnLog(Wrapped[TxnLogReader]):
    """A table's transaction log at the low level, file-backed or SQL-backed."""

    latest_version = awaits(TxnLogReader.latest_version)
    versions = awaits(TxnLogReader.versions)
    version_at = awaits(TxnLogReader.version_at)
    snapshot = awaits(TxnLogReader.snapshot)
    files = streams(TxnLogReader.files, Stream[Add])
    tombstones = streams(TxnLogReader.tombstones, Stream[Remove])
    txns = awaits(TxnLogReader.txns)
    domains = awaits(TxnLogReader.domains)
    history = awaits(TxnLogReader.history)
    commit_bytes = awaits(TxnLogReader.commit_bytes)
    actions = awaits(TxnLogReader.actions)


class Mirror(Wrapped[SyncMirror]):
    """How a catalog's tables reach their `_delta_log`."""

    status = awaits(SyncMirror.status)
    publish = awaits(SyncMirror.publish)
    run = awaits(SyncMirror.run)
    pause = awaits(SyncMirror.pause)
    resume = awaits(SyncMirror.resume)
    checkpoint = awaits(SyncMirror.checkpoint)
    clean = awaits(SyncMirror.clean)
    prune = awaits(SyncMirror.prune)
    compact = awaits(SyncMirror.compact)
    verify = awaits(SyncMirror.verify)
    repair = awaits(SyncMirror.repair)
    rebuild = awaits(SyncMirror.rebuild)
    recover = awaits(SyncMirror.recover)
    resolve = awaits(SyncMirror.resolve)
    policy = awaits(SyncMirror.policy)
    set_policy = awaits(SyncMirror.set_policy)
    fence = awaits(SyncMirror.fence)
    unfence = awaits(SyncMirror.unfence)

    async def thread(self, *, interval: float = 1.0) -> ReconcilerThread:
        """A reconciler for a long-lived process, as a context manager: it has a thread of its own."""
        return await self._run(lambda mirror: mirror.thread(interval=interval))


class Transaction(Wrapped[SyncTransaction]):
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

    table = awaits(SyncTransaction.table, DeltaTable)
    tables = awaits(SyncTransaction.tables)
    query = awaits(SyncTransaction.query)
    write = awaits(SyncTransaction.write)  # type: ignore[arg-type]  # **options
    create_table = awaits(SyncTransaction.create_table, DeltaTable)  # type: ignore[arg-type]  # **options
    rename_table = awaits(SyncTransaction.rename_table)
    drop_table = awaits(SyncTransaction.drop_table)
    execute = awaits(SyncTransaction.execute)
    spark = gives(SyncTransaction.spark, SparkTransaction)
    commit = awaits(SyncTransaction.commit)
    rollback = awaits(SyncTransaction.rollback)

    async def __aenter__(self) -> Self:
        try:
            await self._run(lambda tx: tx.__enter__())
        except asyncio.CancelledError:
            # it may have begun all the same, and nobody else would end it
            self._runner.submit(lambda: self._sync().rollback())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_to_the_end(self._runner, lambda: self._sync().__exit__(kind, error, trace))


class Catalog(Wrapped[SyncCatalog]):
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
        super().__init__(lambda: SyncCatalog(uri, config=config, create=create), Threads())
        self._uri = parse_uri(uri).to_uri()

    @property
    def uri(self) -> str:
        """The catalog's address, without its password."""
        return self._uri

    # ---- finding ---------------------------------------------------------------------------------------

    tables = awaits(SyncCatalog.tables)
    table = awaits(SyncCatalog.table, DeltaTable)
    table_uri = awaits(SyncCatalog.table_uri)
    describe = awaits(SyncCatalog.describe)
    find = awaits(SyncCatalog.find)
    files = streams(SyncCatalog.files, Stream[File])
    commits = awaits(SyncCatalog.commits)
    log = awaits(SyncCatalog.log, TxnLog)

    # ---- changing --------------------------------------------------------------------------------------

    create_table = awaits(SyncCatalog.create_table, DeltaTable)
    write = awaits(SyncCatalog.write)  # type: ignore[arg-type]  # **options
    register = awaits(SyncCatalog.register, DeltaTable)
    rename_table = awaits(SyncCatalog.rename_table)
    drop_table = awaits(SyncCatalog.drop_table)
    set_comment = awaits(SyncCatalog.set_comment)
    set_tags = awaits(SyncCatalog.set_tags)
    gc = awaits(SyncCatalog.gc)

    @property
    def mirror(self) -> Mirror:
        """How the catalog's tables reach their `_delta_log`: status, publishing, pausing, mending."""
        return Mirror._by(lambda: self._sync().mirror, self._runner)

    # ---- transactions ----------------------------------------------------------------------------------

    transaction = gives(SyncCatalog.transaction, Transaction)
    snapshot = gives(SyncCatalog.snapshot, Transaction)

    async def run(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        retries: int = 10,
        isolation: Isolation | None = None,
        txn_uuid: str | None = None,
    ) -> T:
        """Run an asynchronous function in a transaction, again where somebody else was first.

        Args:
            work: Called with a fresh transaction each time; what it does outside of it happens each time too.
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

    namespaces = awaits(SyncCatalog.namespaces)
    create_namespace = awaits(SyncCatalog.create_namespace)
    drop_namespace = awaits(SyncCatalog.drop_namespace)
    set_root = awaits(SyncCatalog.set_root)
    query = awaits(SyncCatalog.query)

    async def root(self) -> str | None:
        """Where new tables without a location lie; a method here, since it asks the database."""
        return await self._run(lambda catalog: catalog.root)

    # ---- end -------------------------------------------------------------------------------------------

    close = awaits(SyncCatalog.close)

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await run_to_the_end(self._runner, lambda: self._sync().close())
