"""Tables whose methods await."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import deltalake.table as stock

from deltalakedb.aio.proxies import AsyncProxy, async_function, async_iterator, async_method
from deltalakedb.aio.streams import Batches
from deltalakedb.aio.threads import SerialQueue
from deltalakedb.table.delta_table import DeltaTable as SyncTable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from deltalakedb.aio.proxies import Method

P = ParamSpec("P")


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
        self._clauses.append((method.__name__, args, options))
        return self

    return add  # type: ignore[return-value]  # a function is such a descriptor


class TableMerger:
    """A merge: its clauses are chained as usual, and ``await merge.execute()`` runs them."""

    def __init__(self, table: DeltaTable, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._table = table
        self._clauses: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [("merge", args, options)]

    when_matched_update = _clause(stock.TableMerger.when_matched_update)
    when_matched_update_all = _clause(stock.TableMerger.when_matched_update_all)
    when_matched_delete = _clause(stock.TableMerger.when_matched_delete)
    when_not_matched_insert = _clause(stock.TableMerger.when_not_matched_insert)
    when_not_matched_insert_all = _clause(stock.TableMerger.when_not_matched_insert_all)
    when_not_matched_by_source_update = _clause(stock.TableMerger.when_not_matched_by_source_update)
    when_not_matched_by_source_delete = _clause(stock.TableMerger.when_not_matched_by_source_delete)

    async def execute(self) -> dict[str, Any]:
        """Run the merge and return its metrics."""

        def work(table: SyncTable) -> dict[str, Any]:
            merger: Any = table
            for name, args, options in self._clauses:
                merger = getattr(merger, name)(*args, **options)
            metrics: dict[str, Any] = merger.execute()
            return metrics

        return await self._table._run(work)


def _merging(method: Callable[Concatenate[Any, P], Any]) -> Method[P, TableMerger]:
    @functools.wraps(method)
    def merge(self: DeltaTable, *args: Any, **options: Any) -> TableMerger:
        return TableMerger(self, args, options)

    return merge  # type: ignore[return-value]  # a function is such a descriptor


class DeltaTable(AsyncProxy[SyncTable]):
    """A Delta table whose methods await; parameters and results are those of ``deltalakedb.DeltaTable``.

    Calls on one table run one after the other, in the order they were made. Open it a second time to read
    side by side. It is opened by its first call, or by awaiting it.

    Args:
        table_uri: A path, URL or ``deltasql://`` address.
        version: The version to open; by default the newest.
        storage_options: Options for the object store.
        without_files: Deprecated and ignored.
        log_buffer_size: Deprecated and ignored.
        skip_stats: Deprecated and ignored.

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

    create = staticmethod(
        async_function(SyncTable.create, lambda made: DeltaTable._of(made, SerialQueue())),
    )
    is_deltatable = staticmethod(async_function(SyncTable.is_deltatable))

    # ---- facts -----------------------------------------------------------------------------------------

    @property
    def table_uri(self) -> str:
        """The table's root."""
        return self._now().table_uri

    @property
    def name(self) -> str:
        """The table's name in its catalog."""
        return str(getattr(self._now(), "name"))  # noqa: B009 - plain tables have none

    @property
    def address(self) -> str:
        """The table's ``deltasql://`` address, without its password."""
        return str(getattr(self._now(), "address"))  # noqa: B009 - plain tables have none

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

    # ---- reading ---------------------------------------------------------------------------------------

    count = async_method(SyncTable.count)
    file_uris = async_method(SyncTable.file_uris)
    partitions = async_method(SyncTable.partitions)
    get_add_actions = async_method(SyncTable.get_add_actions)
    to_pandas = async_method(SyncTable.to_pandas)
    to_pyarrow_dataset = async_method(SyncTable.to_pyarrow_dataset)
    to_pyarrow_table = async_method(SyncTable.to_pyarrow_table)
    scan = async_iterator(SyncTable.scan, Batches)
    load_cdf = async_iterator(SyncTable.load_cdf, Batches)
    deletion_vectors = async_iterator(SyncTable.deletion_vectors, Batches)

    # ---- changing --------------------------------------------------------------------------------------

    delete = async_method(SyncTable.delete)
    update = async_method(SyncTable.update)
    merge = _merging(SyncTable.merge)
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
    """Open a table.

    Args:
        table_uri: A path, URL or ``deltasql://`` address.
        version: The version to open; by default the newest.
        storage_options: Options for the object store.
    """
    return await DeltaTable(table_uri, version, storage_options)
