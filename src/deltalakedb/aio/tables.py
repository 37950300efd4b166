"""Tables whose methods await."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import deltalake.table as stock

from deltalakedb.aio.streams import Batches
from deltalakedb.aio.threads import Lane
from deltalakedb.aio.wrapping import Wrapped, awaits, awaits_function, streams
from deltalakedb.table.drop_in.delta_table import DeltaTable as SyncTable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from deltalakedb.aio.wrapping import Gives

P = ParamSpec("P")


class TableOptimizer(Wrapped[stock.TableOptimizer]):
    """``await table.optimize.compact()``."""

    compact = awaits(stock.TableOptimizer.compact)
    z_order = awaits(stock.TableOptimizer.z_order)


class TableAlterer(Wrapped[stock.TableAlterer]):
    """``await table.alter.add_columns(…)``."""

    add_columns = awaits(stock.TableAlterer.add_columns)
    add_constraint = awaits(stock.TableAlterer.add_constraint)
    add_feature = awaits(stock.TableAlterer.add_feature)
    drop_column_not_null = awaits(stock.TableAlterer.drop_column_not_null)
    drop_constraint = awaits(stock.TableAlterer.drop_constraint)
    set_column_metadata = awaits(stock.TableAlterer.set_column_metadata)
    set_table_description = awaits(stock.TableAlterer.set_table_description)
    set_table_name = awaits(stock.TableAlterer.set_table_name)
    set_table_properties = awaits(stock.TableAlterer.set_table_properties)


def _clause(method: Callable[Concatenate[Any, P], Any]) -> Gives[P, TableMerger]:
    """A clause of a merge: written down now, run with the others."""
    name = method.__name__

    @functools.wraps(method)
    def add(self: TableMerger, *args: Any, **options: Any) -> TableMerger:
        self._clauses.append((name, args, options))
        return self

    return add  # type: ignore[return-value]  # a function is such a descriptor


class TableMerger:
    """A merge in the making: clauses are chained as ever, and ``await merge.execute()`` runs them."""

    def __init__(self, table: DeltaTable, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._table = table
        self._begin = (args, options)
        self._clauses: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    when_matched_update = _clause(stock.TableMerger.when_matched_update)
    when_matched_update_all = _clause(stock.TableMerger.when_matched_update_all)
    when_matched_delete = _clause(stock.TableMerger.when_matched_delete)
    when_not_matched_insert = _clause(stock.TableMerger.when_not_matched_insert)
    when_not_matched_insert_all = _clause(stock.TableMerger.when_not_matched_insert_all)
    when_not_matched_by_source_update = _clause(stock.TableMerger.when_not_matched_by_source_update)
    when_not_matched_by_source_delete = _clause(stock.TableMerger.when_not_matched_by_source_delete)

    async def execute(self) -> dict[str, Any]:
        """Run the merge; its metrics."""

        def work(table: SyncTable) -> dict[str, Any]:
            args, options = self._begin
            merger = table.merge(*args, **options)
            for name, given, more in self._clauses:
                merger = getattr(merger, name)(*given, **more)
            return merger.execute()

        return await self._table._run(work)


def _merging(method: Callable[Concatenate[Any, P], Any]) -> Gives[P, TableMerger]:
    @functools.wraps(method)
    def merge(self: DeltaTable, *args: Any, **options: Any) -> TableMerger:
        return TableMerger(self, args, options)

    return merge  # type: ignore[return-value]  # a function is such a descriptor


class DeltaTable(Wrapped[SyncTable]):
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
            Lane(),
        )

    create = staticmethod(
        awaits_function(SyncTable.create, lambda made: DeltaTable._of(made, Lane())),
    )
    is_deltatable = staticmethod(awaits_function(SyncTable.is_deltatable))

    # ---- facts -----------------------------------------------------------------------------------------

    @property
    def table_uri(self) -> str:
        """The table's root: where its files lie."""
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
        return TableOptimizer._by(lambda: self._sync().optimize, self._runner)

    @property
    def alter(self) -> TableAlterer:
        """Changes of columns, constraints, properties and features."""
        return TableAlterer._by(lambda: self._sync().alter, self._runner)

    version = awaits(SyncTable.version)
    schema = awaits(SyncTable.schema)
    metadata = awaits(SyncTable.metadata)
    protocol = awaits(SyncTable.protocol)
    history = awaits(SyncTable.history)
    transaction_version = awaits(SyncTable.transaction_version)
    load_as_version = awaits(SyncTable.load_as_version)
    update_incremental = awaits(SyncTable.update_incremental)

    # ---- reading ---------------------------------------------------------------------------------------

    count = awaits(SyncTable.count)
    file_uris = awaits(SyncTable.file_uris)
    partitions = awaits(SyncTable.partitions)
    get_add_actions = awaits(SyncTable.get_add_actions)
    to_pandas = awaits(SyncTable.to_pandas)
    to_pyarrow_dataset = awaits(SyncTable.to_pyarrow_dataset)
    to_pyarrow_table = awaits(SyncTable.to_pyarrow_table)
    scan = streams(SyncTable.scan, Batches)
    load_cdf = streams(SyncTable.load_cdf, Batches)
    deletion_vectors = streams(SyncTable.deletion_vectors, Batches)

    # ---- changing --------------------------------------------------------------------------------------

    delete = awaits(SyncTable.delete)
    update = awaits(SyncTable.update)
    merge = _merging(SyncTable.merge)
    restore = awaits(SyncTable.restore)
    repair = awaits(SyncTable.repair)
    vacuum = awaits(SyncTable.vacuum)
    create_write_transaction = awaits(SyncTable.create_write_transaction)
    create_checkpoint = awaits(SyncTable.create_checkpoint)
    cleanup_metadata = awaits(SyncTable.cleanup_metadata)
    compact_logs = awaits(SyncTable.compact_logs)
    generate = awaits(SyncTable.generate)


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
