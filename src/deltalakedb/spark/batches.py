"""Batches of a stream that go to several tables, in one transaction each."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.catalog import Catalog
from deltalakedb.exceptions import InvalidArgumentError, TableMissingError
from deltalakedb.metastore.commits import by_transaction
from deltalakedb.metastore.outbox import group
from deltalakedb.spark.sinks import other_query
from deltalakedb.table.overlay import committed_version
from deltalakedb.table.work import tell_nothing_written

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.table.transaction import Transaction

#: where Spark tells the thread of a query which query it runs, and which start of it this is
_QUERY: Final = "sql.streaming.queryId"
_RUN: Final = "spark.jobGroup.id"
#: the last batch that each application of a query has done here, and in which start
_done: dict[tuple[str, str, str | None], tuple[str, int]] = {}
_NAMES: Final = uuid.UUID("9b1c9e3e-6f0d-4a52-8a3f-0d5f7e0c6b1a")


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
        """Write rows to a table, with the options of ``tx.spark(spark).write``.

        Raises:
            InvalidArgumentError: Another query has written such a batch under the same application id.
        """
        try:
            table = self.transaction.table(name)
        except TableMissingError:
            pass  # it is created
        else:
            recorded = committed_version(table._source, self._app_id)
            if recorded is not None and recorded >= self._batch_id:
                raise other_query(self._app_id, self._batch_id, recorded, table=name)
        self._spark.write(name, df, app_id=self._app_id, version=self._batch_id, **options)


def foreach_batch(
    catalog: str, app_id: str, work: Callable[[BatchSinks, DataFrame, int], None]
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch``: it writes a batch to several tables, in one transaction.

    A batch has one effect, whatever it does in its transaction: if it was committed before Spark could note
    that, ``work`` is not called again. The batch is known by the application id, the query (which lives as
    long as its checkpoint location) and the batch's number. Over Spark Connect the query is not known: there
    a batch that was committed before is passed over with a `NothingWrittenWarning`.

    Args:
        catalog: The catalog's address.
        app_id: A name that no other query and no other function has. A query with a new checkpoint location
            needs a new name.
        work: Called with the sinks, the batch and its number; it may be called again after a conflict.

    Raises:
        InvalidArgumentError: By the function: another one, or another query, has the same ``app_id``.

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
                f"two functions of foreach_batch are application {app_id!r} in one query: the second one "
                "would be taken for a repetition of the first",
                suggestion="give each an app_id of its own, or make one function of them",
            )

        def once(tx: Transaction) -> None:
            if not tx._repeats:
                work(BatchSinks(tx, rows, app_id, batch_id), rows, batch_id)
            elif query is None:
                _check_last(tx, app_id, batch_id)

        # the rows are used more than once, and a source may not give them twice
        rows = df.persist()
        try:
            with Catalog(catalog) as opened:
                opened.run(once, txn_uuid=_id(app_id, query, batch_id))
            if turn is not None:
                _done[catalog, app_id, query] = turn
        finally:
            rows.unpersist()

    return run


def _id(app_id: str, query: str | None, batch_id: int) -> str:
    """The id of a batch's transaction, by which a replayed batch is known again."""
    return f"spark-batch-{uuid.uuid5(_NAMES, json.dumps([app_id, query, batch_id]))}"


def _query_of(spark: SparkSession) -> tuple[str | None, str | None]:
    """The id of the query that calls, and of its start; None over Spark Connect, or if no query calls."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return None, None
    context = spark.sparkContext
    return context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)


def _check_last(tx: Transaction, app_id: str, batch_id: int) -> None:
    """Refuse a batch that was committed before, and the next one too: Spark replays only the last batch."""
    with tx._database.read() as session:
        later = by_transaction(session, _id(app_id, None, batch_id + 1))
    if later is not None:
        raise other_query(app_id, batch_id, batch_id + 1)
    tell_nothing_written(
        ", ".join(m.table for m in group(tx._database, tx.uuid)),
        f"batch {batch_id} of application {app_id!r} was committed before; if the query has a new checkpoint "
        "location, it needs a new app_id",
    )
