"""Spark in a transaction: changes of any size to several tables, committed together; batches of streams."""

from __future__ import annotations

import json
import uuid
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from deltalakedb.catalog import Catalog
from deltalakedb.exceptions import InvalidArgumentError, TableMissingError
from deltalakedb.metastore.commits import by_transaction
from deltalakedb.metastore.outbox import members
from deltalakedb.spark import dml, maintenance
from deltalakedb.spark.expressions import condition_of
from deltalakedb.spark.scratch import other_query, read_files
from deltalakedb.spark.sessions import check_delta, is_connect
from deltalakedb.spark.writer import CREATE_OPTIONS, Mode, WriteRequest
from deltalakedb.table.handle import require_handle, warn_nothing_written

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import deltalake
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.table.transaction import CatalogTransaction

P = ParamSpec("P")
T = TypeVar("T")


def _on_table(
    operation: Callable[Concatenate[SparkSession, deltalake.DeltaTable, P], T],
) -> Callable[Concatenate[SparkTransaction, str, P], T]:
    """An operation on a table of the transaction, by its name; further arguments are the operation's."""

    @wraps(operation)
    def run(self: SparkTransaction, name: str, *args: P.args, **kwargs: P.kwargs) -> T:
        return operation(self._spark, self._transaction.table(name), *args, **kwargs)

    return run  # type: ignore[return-value]  # the name may be a keyword too


class SparkTransaction:
    """Spark's operations on the tables of a transaction, by name; returned by ``tx.spark(spark)``.

    Every operation sees the earlier changes of the transaction, by Spark or not. Nothing is visible to other
    processes before the transaction commits.

    ``merge``, ``update``, ``delete``, ``optimize`` and ``restore`` take a table's name, then the arguments of
    the functions of the same names.

    Example:
        >>> with catalog.transaction() as tx:
        ...     work = tx.spark(spark)
        ...     work.merge("stock", news, "target.sku = source.sku").whenMatchedUpdateAll().execute()
        ...     work.write("arrivals", news, mode="append")
    """

    def __init__(self, transaction: CatalogTransaction, spark: SparkSession) -> None:
        check_delta(spark)
        self._transaction = transaction
        self._spark = spark

    def read(self, name: str, *, where: str | None = None) -> DataFrame:
        """A table as the transaction sees it now. The read takes part in the check for conflicts."""
        table = require_handle(self._transaction.table(name))
        snapshot = table.snapshot
        adds = list(table.source.adds(condition_of(self._spark, snapshot, where)))
        frame = read_files(self._spark, snapshot, adds, table.root, table=name)
        return frame if where is None else frame.where(where)

    def write(
        self,
        name: str,
        df: DataFrame,
        *,
        mode: Mode = "append",
        configuration: Mapping[str, str] | None = None,
        location: str | os.PathLike[str] | None = None,
        **arguments: Any,
    ) -> None:
        """Write a DataFrame, to a new table if there is none; further arguments as in `write`."""
        request = WriteRequest.of(df, mode, **arguments)
        request.check()
        try:
            table = require_handle(self._transaction.table(name))
        except TableMissingError:
            create = request.creation(name, configuration, location)
            self._transaction._create(name, location, create, create_options=CREATE_OPTIONS)  # noqa: SLF001
        else:
            table.refresh()
            request.apply(table)

    merge = _on_table(dml.merge)
    update = _on_table(dml.update)
    delete = _on_table(dml.delete)
    optimize = _on_table(maintenance.optimize)
    restore = _on_table(maintenance.restore)


# ---- batches of a stream -----------------------------------------------------------------------------------

#: the local properties in which Spark keeps the id of the query that a thread runs, and of its start
_QUERY: Final = "sql.streaming.queryId"
_RUN: Final = "spark.jobGroup.id"
#: the last batch of each application of a query that this process has committed, and in which start
_done: dict[tuple[str, str, str | None], tuple[str, int]] = {}
_NAMES: Final = uuid.UUID("9b1c9e3e-6f0d-4a52-8a3f-0d5f7e0c6b1a")


class BatchSinks:
    """One micro-batch of a query: its writes are committed together, and once.

    Attributes:
        transaction: The transaction, for other operations than writes.
    """

    def __init__(self, transaction: CatalogTransaction, df: DataFrame, app_id: str, batch_id: int) -> None:
        self.transaction = transaction
        self._spark = transaction.spark(df.sparkSession)
        self._app_id, self._batch_id = app_id, batch_id

    def write(self, name: str, df: DataFrame, **options: Any) -> None:
        """Write rows to a table, with the options of ``tx.spark(spark).write``.

        Raises:
            InvalidArgumentError: Another query has written such a batch under the same application id.
        """
        try:
            table = require_handle(self.transaction.table(name))
        except TableMissingError:
            pass  # it will be created
        else:
            recorded = table.source.committed_version(self._app_id)
            if recorded is not None and recorded >= self._batch_id:
                raise other_query(self._app_id, self._batch_id, recorded, table=name)
        self._spark.write(name, df, app_id=self._app_id, version=self._batch_id, **options)


def foreach_batch(
    catalog: str, app_id: str, work: Callable[[BatchSinks, DataFrame, int], None]
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that writes a batch to several tables in one transaction.

    A batch takes effect once: if it was committed before Spark could record that, ``work`` is not called
    again. A batch is identified by the application id, the query (which lives as long as its checkpoint
    location) and the batch's number. Over Spark Connect the query is not known: a batch that was committed
    before is skipped there with a `NothingWrittenWarning`.

    Args:
        catalog: The catalog's address.
        app_id: A name that no other query and no other function uses. A query with a new checkpoint
            location needs a new name.
        work: Called with the sinks, the batch and its number; it may be called again after a conflict.

    Raises:
        InvalidArgumentError: From the function: another one, or another query, has the same ``app_id``.

    Example:
        >>> def split(sinks, df, batch_id):
        ...     sinks.write("good", df.where("ok"))
        ...     sinks.write("bad", df.where("not ok"))
        >>> frame.writeStream.foreachBatch(foreach_batch(catalog, "splitter", split)).start()
    """

    def run(df: DataFrame, batch_id: int) -> None:
        query, start = _query_of(df.sparkSession)
        turn = None if query is None or start is None else (start, batch_id)
        if turn is not None and _done.get((catalog, app_id, query)) == turn:
            raise InvalidArgumentError(
                f"two functions of foreach_batch use application {app_id!r} in one query: the second one "
                "would be taken for a repetition of the first",
                suggestion="give each its own app_id, or combine them into one function",
            )

        def once(tx: CatalogTransaction) -> None:
            if not tx._repeats:  # noqa: SLF001
                work(BatchSinks(tx, rows, app_id, batch_id), rows, batch_id)
            elif query is None:
                _check_last(tx, app_id, batch_id)

        # the rows are used more than once, and a source may not be able to return them twice
        rows = df.persist()
        try:
            with Catalog(catalog) as opened:
                opened.run(once, txn_uuid=_transaction_id(app_id, query, batch_id))
            if turn is not None:
                _done[catalog, app_id, query] = turn
        finally:
            rows.unpersist()

    return run


def _transaction_id(app_id: str, query: str | None, batch_id: int) -> str:
    """The id of a batch's transaction, by which a repeated batch is recognised."""
    return f"spark-batch-{uuid.uuid5(_NAMES, json.dumps([app_id, query, batch_id]))}"


def _query_of(spark: SparkSession) -> tuple[str | None, str | None]:
    """The id of the query that calls, and of its start; None over Spark Connect, or if no query calls."""
    if is_connect(spark):
        return None, None
    context = spark.sparkContext
    return context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)


def _check_last(tx: CatalogTransaction, app_id: str, batch_id: int) -> None:
    """Refuse a batch that was committed before, and the next one too: Spark replays only the last batch."""
    database = tx._database  # noqa: SLF001
    with database.read() as session:
        later = by_transaction(session, _transaction_id(app_id, None, batch_id + 1))
    if later is not None:
        raise other_query(app_id, batch_id, batch_id + 1)
    warn_nothing_written(
        ", ".join(m.table for m in members(database, tx.uuid)),
        f"batch {batch_id} of application {app_id!r} was committed before; if the query has a new checkpoint "
        "location, it needs a new app_id",
    )
