"""Operations that delta-spark runs on a scratch table, harvested and committed in SQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import snapshots
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.features import check_writable
from deltalakedb.protocol.reads import EVERYTHING, NOTHING, ReadSet
from deltalakedb.protocol.rows import tracks_rows
from deltalakedb.protocol.rules import OURS, SPARKS, is_on
from deltalakedb.spark.failures import own_words
from deltalakedb.spark.scratch import SparkScratch, log_parts
from deltalakedb.spark.sessions import check_delta
from deltalakedb.table.handle import TableHandle, handle_of
from deltalakedb.table.scratch import ErrorContext, submit
from deltalakedb.uri import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import deltalake
    from pyspark.sql import SparkSession

    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.predicate import Expr

#: a column's name with parts in backticks
_QUOTED: Final = re.compile(r"(?:`(?:[^`]|``)+`|\w+)(?:\.(?:`(?:[^`]|``)+`|\w+))*")


def opened(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    storage_options: dict[str, str] | None = None,
) -> TableHandle:
    """A table that an operation is about to change, at its newest version.

    Args:
        spark: A session with Delta.
        table: The table's address, or the table itself, inside a transaction too.
        storage_options: Options for the object store, where the table is given by its address.

    Raises:
        InvalidArgumentError: It is a plain Delta table.
        SparkSetupError: The session has no Delta.
    """
    check_delta(spark)
    if isinstance(table, str | Address):
        found = TableHandle.open(table, storage_options=storage_options)
    elif (handle := handle_of(table)) is not None:
        found = handle
    else:
        raise InvalidArgumentError(
            f"{table.table_uri} is a plain Delta table, which no catalog decides about",
            suggestion="hand it to delta-spark, or import it into a catalog first",
        )
    found.refresh()
    return found


def operate(
    spark: SparkSession,
    table: TableHandle,
    run: Callable[[str], object],
    *,
    where: Expr | None = None,
    same_rows: bool = False,
) -> Mapping[str, Any] | None:
    """Run an operation of delta-spark on the files that it may touch, and commit what it did.

    Args:
        spark: The session.
        table: The open table.
        run: Calls delta-spark on the table at a path.
        where: Only files that may hold such rows are shown to it; None for all of them.
        same_rows: No row changes, so that nothing is read whose change would matter.

    Returns:
        delta-spark's metrics of the operation; None where there was nothing to do.

    Raises:
        ConflictError: Somebody else changed what the operation depends on.
        OperationError: delta-spark refused it, for example for a row that a constraint forbids.
    """
    snapshot = table.source.snapshot
    check_writable(snapshot.protocol, table=table.name, also=OURS | SPARKS)
    if same_rows:
        with table.source.without_tracking():
            adds, reads = list(table.source.adds(where)), NOTHING
    else:
        adds, reads = _candidates(table, where)
    _check_row_ids(table, adds)
    domains = snapshots.domains(table.database, table.row, snapshot.version)
    failpoint("data.before")
    with SparkScratch.at(table.root, spark, table=table.name) as scratch, log_parts(spark, len(adds)):
        scratch.lay_all(snapshot, adds, domains)
        with own_words(ErrorContext.at(table)):
            run(str(scratch.folder))
        harvest = scratch.harvest(after=0)
        if all(isinstance(action, CommitInfo) for action in harvest.actions):
            return None
        submit(table, scratch, harvest, reads, kept=SPARKS)
    infos = [action for action in harvest.actions if isinstance(action, CommitInfo)]
    return infos[0].extra.get("operationMetrics") or {} if infos else {}


def told(metrics: Mapping[str, Any] | None, name: str) -> int:
    """A number among metrics; -1, as with delta-spark, where whole files went whose rows nobody counted."""
    return 0 if metrics is None else int(metrics.get(name, -1))


def path_name(folder: str) -> str:
    """A table at a path, as Spark's SQL names it."""
    return f"delta.`{folder.replace('`', '``')}`"


def column_name(name: str) -> str:
    """A column as Spark's SQL names it; one that is quoted already stays as it is."""
    if "`" not in name:
        return ".".join(f"`{part}`" for part in name.split("."))
    if _QUOTED.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name!r} is not the name of one column", suggestion="quote each part once"
        )
    return name


def _candidates(table: TableHandle, where: Expr | None) -> tuple[list[Add], ReadSet]:
    """The files whose rows an operation may rewrite, and what its result then depends on."""
    adds = list(table.source.adds(where))
    if where is None or table.source.schema_changed:
        return adds, EVERYTHING
    return adds, ReadSet(predicates=(where,), files=frozenset(a.key for a in adds))


def _check_row_ids(table: TableHandle, adds: list[Add]) -> None:
    """Refuse to rewrite rows whose ids are given when the transaction commits, and not before."""
    snapshot = table.source.snapshot
    tracked = tracks_rows(snapshot.protocol) and is_on(snapshot.metadata, "delta.enableRowTracking")
    if tracked and any(add.base_row_id is None for add in adds):
        raise UnsupportedOperationError(
            "rows of this transaction get their row ids when it commits, and cannot be rewritten before",
            table=table.name,
            suggestion="commit first, or make one operation of the two",
        )
