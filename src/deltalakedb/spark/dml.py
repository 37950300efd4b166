"""Rows updated, deleted and merged by Spark."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.extras import require
from deltalakedb.protocol.properties import is_on
from deltalakedb.protocol.read_set import EVERYTHING, ReadSet
from deltalakedb.protocol.row_tracking import tracks_rows
from deltalakedb.spark.expressions import (
    check_frame,
    check_single,
    check_type,
    check_values,
    column_name,
    condition_of,
    path_name,
    target_condition,
)
from deltalakedb.spark.scratch import open_for_write, run_on_scratch
from deltalakedb.spark.sessions import check_delta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    import deltalake
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.address import Address
    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.handle import TableHandle

_When = Literal["MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"]
#: delta-spark's metrics of a merge, by the names of its result
_MERGE_METRICS: Final = {
    "num_updated_rows": "numTargetRowsUpdated",
    "num_deleted_rows": "numTargetRowsDeleted",
    "num_inserted_rows": "numTargetRowsInserted",
}


def delete(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    condition: str | Column | None = None,
    *,
    storage_options: dict[str, str] | None = None,
) -> dict[str, int]:
    """Delete rows, run by delta-spark and committed in SQL.

    Args:
        spark: A session with Delta, such as one of `session`.
        table: The table's address, or the table itself.
        condition: Which rows, in SQL; the database picks the files that may hold them. A Column works too, on
            all files, and over Spark Connect only if the server has Delta's own plugin.
        storage_options: Options for the object store, for this process; Spark has its own settings.

    Returns:
        ``num_affected_rows``; -1 if whole files without a row count were removed.

    Raises:
        InvalidArgumentError: A text is not one expression.
        ConflictError: Another writer changed something that this depends on.

    Example:
        >>> delete(spark, "deltasql://sqlite//lake/meta.db?table=orders", "day < '2020-01-01'")
        {'num_affected_rows': 42}
    """
    if condition is not None:
        check_type("the condition", condition)
    found = open_for_write(spark, table, storage_options)
    check_single(spark, {"the condition": condition})

    def run(folder: str) -> None:
        if condition is None or isinstance(condition, str):
            where = "" if condition is None else f" WHERE (\n{condition}\n)"
            spark.sql(f"DELETE FROM {path_name(folder)}{where}").collect()  # noqa: S608 - it is the user's
        else:
            with _column_errors(spark):
                _delta_table(spark, folder).delete(condition)

    metrics = _run(spark, found, run, condition_of(spark, found.source.snapshot, condition))
    return {"num_affected_rows": _metric(metrics, "numDeletedRows")}


def update(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    set: Mapping[str, str | Column],  # noqa: A002 - as delta-spark calls it
    condition: str | Column | None = None,
    *,
    storage_options: dict[str, str] | None = None,
) -> dict[str, int]:
    """Update rows, run by delta-spark and committed in SQL.

    Args:
        spark: A session with Delta, such as one of `session`.
        table: The table's address, or the table itself.
        set: By column, its new value as an expression in SQL, or a Column.
        condition: Which rows, in SQL; the database picks the files that may hold them. Columns work too, on
            all files, and over Spark Connect only if the server has Delta's own plugin.
        storage_options: Options for the object store, for this process; Spark has its own settings.

    Returns:
        ``num_affected_rows``.

    Raises:
        InvalidArgumentError: A text is not one expression.
        ConflictError: Another writer changed something that this depends on.

    Example:
        >>> update(spark, "deltasql://sqlite//lake/meta.db?table=orders", {"qty": "qty + 1"}, "sku = 7")
        {'num_affected_rows': 3}
    """
    if not set:
        raise InvalidArgumentError("an update sets at least one column", suggestion="name it in set=")
    check_values("set", set)
    if condition is not None:
        check_type("the condition", condition)
    found = open_for_write(spark, table, storage_options)
    check_single(spark, {"the condition": condition, **{f"set[{c!r}]": value for c, value in set.items()}})

    def run(folder: str) -> None:
        if _all_text(condition, *set.values()):
            # a line each: a value may end in a comment
            given = ", ".join(f"{column_name(column)} = {value}\n" for column, value in set.items())
            where = "" if condition is None else f" WHERE (\n{condition}\n)"
            spark.sql(f"UPDATE {path_name(folder)} SET {given}{where}").collect()  # noqa: S608 - the same
        else:
            with _column_errors(spark):
                _delta_table(spark, folder).update(condition=condition, set=dict(set))

    metrics = _run(spark, found, run, condition_of(spark, found.source.snapshot, condition))
    return {"num_affected_rows": _metric(metrics, "numUpdatedRows")}


def merge(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    source: DataFrame,
    condition: str | Column,
    *,
    target_alias: str = "target",
    source_alias: str = "source",
    storage_options: dict[str, str] | None = None,
) -> MergeBuilder:
    """Begin a merge: rows of a DataFrame that update, delete or insert rows of a table.

    Args:
        spark: A session with Delta, such as one of `session`.
        table: The table's address, or the table itself.
        source: The rows that are merged in.
        condition: Which rows match, in SQL over both aliases, or a Column. The database picks files by the
            parts that concern the target alone.
        target_alias: The table's name in expressions.
        source_alias: The DataFrame's name in expressions.
        storage_options: Options for the object store, for this process; Spark has its own settings.

    Returns:
        A builder with delta-spark's clauses; nothing happens before its ``execute()``.

    Example:
        >>> (
        ...     merge(spark, "deltasql://sqlite//lake/meta.db?table=stock", news, "target.sku = source.sku")
        ...     .whenMatchedUpdate(set={"qty": "target.qty + source.qty"})
        ...     .whenNotMatchedInsertAll()
        ...     .execute()
        ... )
        {'num_affected_rows': 5, 'num_updated_rows': 3, 'num_deleted_rows': 0, 'num_inserted_rows': 2}
    """
    check_frame("the source", source)
    check_type("the condition", condition)
    for alias in (target_alias, source_alias):
        if not isinstance(alias, str) or not alias.isidentifier():
            raise InvalidArgumentError(
                f"{alias!r} is not a valid alias", suggestion="use letters, digits and _"
            )
    if target_alias.lower() == source_alias.lower():
        raise InvalidArgumentError("target and source need two aliases", suggestion="rename one of them")
    return MergeBuilder(
        spark, table, source, condition, target_alias, source_alias, _storage_options=storage_options
    )


@dataclass(frozen=True, eq=False)
class _Clause:
    when: _When
    condition: str | Column | None
    action: Literal["UPDATE", "DELETE", "INSERT"]
    #: None for every column of the source
    values: Mapping[str, str | Column] | None = None

    def to_sql(self) -> str:
        """The clause in SQL."""
        more = "" if self.condition is None else f" AND (\n{self.condition}\n)"
        return f"WHEN {self.when}{more} THEN {self.action}{self._values()}"

    def _values(self) -> str:
        if self.action == "DELETE":
            return ""
        if self.values is None:
            return " SET *" if self.action == "UPDATE" else " *"
        # a line each: a value may end in a comment
        if self.action == "UPDATE":
            return " SET " + ", ".join(f"{column_name(c)} = {value}\n" for c, value in self.values.items())
        columns = ", ".join(map(column_name, self.values))
        values = ", ".join(f"{value}\n" for value in self.values.values())
        return f" ({columns}) VALUES ({values})"

    def add_to(self, builder: Any) -> Any:
        """Add the clause to delta-spark's own builder."""
        name = {
            "MATCHED": "whenMatched",
            "NOT MATCHED": "whenNotMatched",
            "NOT MATCHED BY SOURCE": "whenNotMatchedBySource",
        }[self.when] + self.action.capitalize()
        if self.action == "DELETE":
            return getattr(builder, name)(self.condition)
        if self.values is None:
            return getattr(builder, f"{name}All")(self.condition)
        word = "set" if self.action == "UPDATE" else "values"
        return getattr(builder, name)(self.condition, **{word: dict(self.values)})


@dataclass(frozen=True, eq=False)
class MergeBuilder:
    """Builds a merge with the clauses of delta-spark's builder. Every clause returns a new builder."""

    _spark: SparkSession
    _table: str | Address | deltalake.DeltaTable
    _source: DataFrame
    _condition: str | Column
    _target_alias: str
    _source_alias: str
    _clauses: tuple[_Clause, ...] = ()
    _evolves: bool = False
    _storage_options: dict[str, str] | None = None

    def whenMatchedUpdate(  # noqa: N802 - as delta-spark calls it, like the other clauses
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002
    ) -> Self:
        """Update some columns of rows that have a match."""
        return self._with(_Clause("MATCHED", condition, "UPDATE", _columns(set, "set")))

    def whenMatchedUpdateAll(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Update all columns of rows that have a match with those of the source."""
        return self._with(_Clause("MATCHED", condition, "UPDATE"))

    def whenMatchedDelete(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Delete rows that have a match."""
        return self._with(_Clause("MATCHED", condition, "DELETE"))

    def whenNotMatchedInsert(  # noqa: N802
        self,
        condition: str | Column | None = None,
        values: Mapping[str, str | Column] | None = None,
    ) -> Self:
        """Insert rows of the source that have no match, some columns of them."""
        return self._with(_Clause("NOT MATCHED", condition, "INSERT", _columns(values, "values")))

    def whenNotMatchedInsertAll(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Insert rows of the source that have no match."""
        return self._with(_Clause("NOT MATCHED", condition, "INSERT"))

    def whenNotMatchedBySourceUpdate(  # noqa: N802
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002
    ) -> Self:
        """Update rows of the table that have no match in the source; every file is read."""
        return self._with(_Clause("NOT MATCHED BY SOURCE", condition, "UPDATE", _columns(set, "set")))

    def whenNotMatchedBySourceDelete(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Delete rows of the table that have no match in the source; every file is read."""
        return self._with(_Clause("NOT MATCHED BY SOURCE", condition, "DELETE"))

    def withSchemaEvolution(self) -> Self:  # noqa: N802
        """Add columns of the source that the table does not have."""
        return replace(self, _evolves=True)

    def execute(self) -> dict[str, int]:
        """Run the merge and commit it.

        Returns:
            ``num_affected_rows``, ``num_updated_rows``, ``num_deleted_rows`` and ``num_inserted_rows``.

        Raises:
            InvalidArgumentError: A text is not one expression.
            ConflictError: Another writer changed something that this depends on.
        """
        if not self._clauses:
            raise InvalidArgumentError(
                "the merge has no clause", suggestion="add one, such as whenMatchedUpdateAll()"
            )
        check_delta(self._spark)
        check_single(self._spark, self._expressions())
        found = open_for_write(self._spark, self._table, self._storage_options)
        where = None
        if not any(clause.when == "NOT MATCHED BY SOURCE" for clause in self._clauses):
            aliases = (self._target_alias, self._source_alias)
            where = target_condition(
                self._spark, found.source.snapshot, self._condition, self._source, aliases
            )
        metrics = _run(self._spark, found, self._run, where)
        numbers = {name: _metric(metrics, metric) for name, metric in _MERGE_METRICS.items()}
        return {"num_affected_rows": sum(numbers.values()), **numbers}

    def _with(self, clause: _Clause) -> Self:
        if clause.condition is not None:
            check_type("the clause's condition", clause.condition)
        return replace(self, _clauses=(*self._clauses, clause))

    def _expressions(self) -> dict[str, str | Column | None]:
        """All expressions, by their names in messages."""
        found: dict[str, str | Column | None] = {"the condition": self._condition}
        for number, clause in enumerate(self._clauses, 1):
            found[f"the condition of clause {number}"] = clause.condition
            for column, value in (clause.values or {}).items():
                found[f"{column!r} of clause {number}"] = value
        return found

    def _run(self, folder: str) -> None:
        if _all_text(*self._expressions().values()):
            self._run_text(folder)
            return
        with _column_errors(self._spark):
            target = _delta_table(self._spark, folder).alias(self._target_alias)
            builder = target.merge(self._source.alias(self._source_alias), self._condition)
            for clause in self._clauses:
                builder = clause.add_to(builder)
            (builder.withSchemaEvolution() if self._evolves else builder).execute()

    def _run_text(self, folder: str) -> None:
        # the source's own session, which may be a different one
        spark, view = self._source.sparkSession, f"deltasql_{uuid.uuid4().hex}"
        evolving = " WITH SCHEMA EVOLUTION" if self._evolves else ""
        # SQL requires the kinds in this order; only the order within a kind matters
        clauses = "\n".join(c.to_sql() for when in get_args(_When) for c in self._clauses if c.when == when)
        self._source.createTempView(view)
        try:
            spark.sql(
                f"MERGE{evolving} INTO {path_name(folder)} AS {self._target_alias}\n"
                f"USING {view} AS {self._source_alias} ON (\n{self._condition}\n)\n{clauses}"
            ).collect()
        finally:
            spark.catalog.dropTempView(view)


def _columns(values: Mapping[str, str | Column] | None, name: str) -> Mapping[str, str | Column]:
    if not values:
        raise InvalidArgumentError(
            "the clause sets no column",
            suggestion=f"name them in {name}=, or use the clause for all columns",
        )
    check_values(name, values)
    return values


# ---- shared ------------------------------------------------------------------------------------------------


def _run(
    spark: SparkSession, table: TableHandle, run: Callable[[str], object], where: Expr | None
) -> Mapping[str, Any] | None:
    """Run an operation on the files that may hold matching rows; its metrics, None if nothing was to do."""
    files = list(table.source.adds(where))
    check_row_ids(table, files)
    reads = EVERYTHING
    if where is not None and not table.source.schema_changed:
        reads = ReadSet(predicates=(where,), files=frozenset(add.key for add in files))
    done = run_on_scratch(spark, table, run, files=files, reads=reads)
    return None if done is None else done.metrics


def check_row_ids(table: TableHandle, files: Sequence[Add]) -> None:
    """Refuse to rewrite rows of an open transaction, whose row ids its commit assigns."""
    snapshot = table.source.snapshot
    tracked = tracks_rows(snapshot.protocol) and is_on(snapshot.metadata, "delta.enableRowTracking")
    if tracked and any(add.base_row_id is None for add in files):
        raise UnsupportedOperationError(
            "rows of this transaction get their row ids when it commits, and cannot be rewritten before",
            table=table.name,
            suggestion="commit first, or combine the two operations into one",
        )


def _metric(metrics: Mapping[str, Any] | None, name: str) -> int:
    """A number among metrics; -1, as in delta-spark, if whole files without a row count were removed."""
    return 0 if metrics is None else int(metrics.get(name, -1))


def _all_text(*parts: str | Column | None) -> bool:
    """Whether no expression is a Column, so that they fit into an SQL statement."""
    return all(part is None or isinstance(part, str) for part in parts)


@contextmanager
def _column_errors(spark: SparkSession) -> Iterator[None]:
    """Explain the error of a Connect server without Delta's plugin, which cannot take Columns."""
    errors = require("pyspark.errors", "spark", "Spark")
    try:
        yield
    except errors.PySparkException as error:
        if not type(spark).__module__.startswith("pyspark.sql.connect") or "extension" not in str(error):
            raise
        raise UnsupportedOperationError(
            "over Spark Connect, expressions that are Columns need a server with Delta's own plugin",
            suggestion="write conditions and values as SQL text, or use a session with a driver of its own",
        ) from error


def _delta_table(spark: SparkSession, folder: str) -> Any:
    """delta-spark's own object of the table at a path, which takes Columns."""
    return require("delta.tables", "spark", "expressions that are Columns").DeltaTable.forPath(spark, folder)
