"""Batches of a stream that go to several tables, in one transaction each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.lake import Catalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from deltalakedb.table.transaction import Transaction


class BatchSinks:
    """One micro-batch of a query: what it writes becomes visible together, and once.

    Attributes:
        transaction: The transaction, for what is not a write of rows.
    """

    def __init__(self, transaction: Transaction, df: DataFrame, app_id: str, batch_id: int) -> None:
        self.transaction = transaction
        self._spark = transaction.spark(df.sparkSession)
        self._app_id, self._batch_id = app_id, batch_id

    def write(self, name: str, df: DataFrame, **options: Any) -> None:
        """Write rows to a table, with the options of ``tx.spark(spark).write``."""
        self._spark.write(name, df, app_id=self._app_id, version=self._batch_id, **options)


def foreach_batch(
    catalog: str, app_id: str, work: Callable[[BatchSinks, DataFrame, int], None]
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch``: it writes a batch to several tables, in one transaction.

    A batch that was committed before Spark could note that has no second effect: the query's id and the
    batch's number are recorded with each table that it writes.

    Args:
        catalog: The catalog's address.
        app_id: A name for the query that no other has.
        work: Called with the sinks, the batch and its number; it may be called again after a conflict.

    Example:
        >>> def split(sinks, df, batch_id):
        ...     sinks.write("good", df.where("ok"))
        ...     sinks.write("bad", df.where("not ok"))
        >>> frame.writeStream.foreachBatch(foreach_batch(catalog, "splitter", split)).start()
    """

    def run(df: DataFrame, batch_id: int) -> None:
        # the rows are used more than once, and a source may not give them twice
        rows = df.persist()
        try:
            with Catalog(catalog) as opened:
                opened.run(lambda tx: work(BatchSinks(tx, rows, app_id, batch_id), rows, batch_id))
        finally:
            rows.unpersist()

    return run
