"""Spark inside an asynchronous transaction: jobs run in the transaction's thread."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from deltalakedb.aio.wrapping import Wrapped, awaits, gives, plain
from deltalakedb.spark.dml import MergeBuilder as SyncMergeBuilder
from deltalakedb.spark.transaction import SparkTransaction as SyncSparkTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.aio.wrapping import Gives

P = ParamSpec("P")


def _clause(method: Callable[Concatenate[Any, P], Any]) -> Gives[P, MergeBuilder]:
    name = method.__name__

    @functools.wraps(method)
    def add(self: MergeBuilder, *args: Any, **options: Any) -> MergeBuilder:
        given, more = plain(args), plain(options)
        return MergeBuilder._by(lambda: getattr(self._sync(), name)(*given, **more), self._runner)

    return add  # type: ignore[return-value]  # a function is such a descriptor


class MergeBuilder(Wrapped[SyncMergeBuilder]):
    """A merge in the making: clauses are chained as ever, and ``await merge.execute()`` runs them."""

    whenMatchedUpdate = _clause(SyncMergeBuilder.whenMatchedUpdate)  # noqa: N815 - as delta-spark's
    whenMatchedUpdateAll = _clause(SyncMergeBuilder.whenMatchedUpdateAll)  # noqa: N815
    whenMatchedDelete = _clause(SyncMergeBuilder.whenMatchedDelete)  # noqa: N815
    whenNotMatchedInsert = _clause(SyncMergeBuilder.whenNotMatchedInsert)  # noqa: N815
    whenNotMatchedInsertAll = _clause(SyncMergeBuilder.whenNotMatchedInsertAll)  # noqa: N815
    whenNotMatchedBySourceUpdate = _clause(SyncMergeBuilder.whenNotMatchedBySourceUpdate)  # noqa: N815
    whenNotMatchedBySourceDelete = _clause(SyncMergeBuilder.whenNotMatchedBySourceDelete)  # noqa: N815
    withSchemaEvolution = _clause(SyncMergeBuilder.withSchemaEvolution)  # noqa: N815
    execute = awaits(SyncMergeBuilder.execute)


class SparkTransaction(Wrapped[SyncSparkTransaction]):
    """Spark's operations on the tables of a transaction, by name: ``tx.spark(spark)``."""

    read = awaits(SyncSparkTransaction.read)
    write = awaits(SyncSparkTransaction.write)
    merge = gives(SyncSparkTransaction.merge, MergeBuilder)
    update = awaits(SyncSparkTransaction.update)
    delete = awaits(SyncSparkTransaction.delete)
    optimize = awaits(SyncSparkTransaction.optimize)
    restore = awaits(SyncSparkTransaction.restore)
