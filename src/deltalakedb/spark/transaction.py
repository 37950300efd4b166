"""Spark in a transaction: changes of any size to several tables, committed together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.exceptions import TableMissingError
from deltalakedb.protocol.features import SPARK_FEATURES
from deltalakedb.spark import dml, maintenance
from deltalakedb.spark.expressions import condition_of
from deltalakedb.spark.scratch import read_files
from deltalakedb.spark.sessions import check_delta
from deltalakedb.spark.writer import WriteRequest
from deltalakedb.table.handle import require_handle
from deltalakedb.table.write.create import CreateOptions

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.table.transaction import Transaction


class SparkTransaction:
    """Spark's operations on the tables of a transaction, by name; returned by ``tx.spark(spark)``.

    Every operation sees the earlier changes of the transaction, by Spark or not. Nothing is visible to other
    processes before the transaction commits.

    Args:
        transaction: The transaction.
        spark: A session with Delta.

    Example:
        >>> with catalog.transaction() as tx:
        ...     work = tx.spark(spark)
        ...     work.merge("stock", news, "target.sku = source.sku").whenMatchedUpdateAll().execute()
        ...     work.write("arrivals", news, mode="append")
    """

    def __init__(self, transaction: Transaction, spark: SparkSession) -> None:
        check_delta(spark)
        self._transaction = transaction
        self._spark = spark

    def read(self, name: str, *, where: str | None = None) -> DataFrame:
        """A table as the transaction sees it now. The read takes part in the check for conflicts."""
        table = require_handle(self._transaction.table(name))
        snapshot = table.source.snapshot
        adds = list(table.source.adds(condition_of(self._spark, snapshot, where)))
        frame = read_files(self._spark, snapshot, adds, table.root, table=name)
        return frame if where is None else frame.where(where)

    def write(
        self,
        name: str,
        df: DataFrame,
        *,
        mode: Literal["error", "errorifexists", "append", "overwrite", "ignore"] = "append",
        partition_by: Sequence[str] | str | None = None,
        schema_mode: Literal["merge", "overwrite"] | None = None,
        replace_where: str | None = None,
        dynamic: bool = False,
        app_id: str | None = None,
        version: int | None = None,
        configuration: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        location: str | os.PathLike[str] | None = None,
    ) -> None:
        """Write a DataFrame, to a new table if there is none; arguments as in `write`."""
        request = WriteRequest.of(
            df,
            mode,
            partition_by=partition_by,
            schema_mode=schema_mode,
            replace_where=replace_where,
            dynamic=dynamic,
            app_id=app_id,
            version=version,
            options=options,
        )
        request.check()
        try:
            table = require_handle(self._transaction.table(name))
        except TableMissingError:
            self._transaction._create(  # noqa: SLF001 - this is a part of the transaction
                name,
                location,
                lambda folder: request.create(folder, configuration or {}, table=name),
                create_options=CreateOptions(handled_features=SPARK_FEATURES),
            )
        else:
            table.refresh()
            request.apply(table)

    def merge(
        self,
        name: str,
        source: DataFrame,
        condition: str | Column,
        *,
        target_alias: str = "target",
        source_alias: str = "source",
    ) -> dml.MergeBuilder:
        """Begin a merge; clauses and arguments as in `merge`."""
        return dml.merge(
            self._spark,
            self._transaction.table(name),
            source,
            condition,
            target_alias=target_alias,
            source_alias=source_alias,
        )

    def update(
        self,
        name: str,
        set: Mapping[str, str | Column],  # noqa: A002 - as delta-spark calls it
        condition: str | Column | None = None,
    ) -> dict[str, int]:
        """Update rows; arguments as in `update`."""
        return dml.update(self._spark, self._transaction.table(name), set, condition)

    def delete(self, name: str, condition: str | Column | None = None) -> dict[str, int]:
        """Delete rows; arguments as in `delete`."""
        return dml.delete(self._spark, self._transaction.table(name), condition)

    def optimize(
        self, name: str, *, where: str | None = None, z_order_by: Sequence[str] | str = ()
    ) -> dict[str, Any]:
        """Combine small files; arguments as in `optimize`."""
        return maintenance.optimize(
            self._spark, self._transaction.table(name), where=where, z_order_by=z_order_by
        )

    def restore(
        self, name: str, *, version: int | None = None, timestamp: str | datetime | None = None
    ) -> dict[str, int]:
        """Restore an earlier version; arguments as in `restore`."""
        return maintenance.restore(
            self._spark, self._transaction.table(name), version=version, timestamp=timestamp
        )
