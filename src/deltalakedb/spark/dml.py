"""Rows updated, deleted and merged by Spark."""

# ruff: noqa: N802 - clauses have the names that delta-spark gives them

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.extras import require
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
from deltalakedb.spark.scratch import candidates, open_for_write, run_on_scratch
from deltalakedb.spark.sessions import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import deltalake
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.address import Address
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.handle import TableHandle

    _Condition = str | Column | None
    _Values = Mapping[str, str | Column]

_Action = Literal["UPDATE", "DELETE", "INSERT"]
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
    return _change_rows(spark, table, None, condition, storage_options)


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
    return _change_rows(spark, table, set, condition, storage_options)


def _change_rows(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    values: _Values | None,
    condition: _Condition,
    storage_options: dict[str, str] | None,
) -> dict[str, int]:
    """Update rows, or delete them if there are no values."""
    check_type("the condition", condition, optional=True)
    found = open_for_write(spark, table, storage_options)
    expressions = {"the condition": condition, **{f"set[{c!r}]": v for c, v in (values or {}).items()}}

    def by_sql(name: str) -> None:
        verb = f"DELETE FROM {name}" if values is None else f"UPDATE {name} SET {_assignments(values)}"  # noqa: S608 - it is the user's
        spark.sql(verb if condition is None else f"{verb} WHERE (\n{condition}\n)").collect()

    def by_columns(target: Any) -> None:
        target.delete(condition) if values is None else target.update(condition, dict(values))

    where = condition_of(spark, found.snapshot, condition)
    metric = _execute(spark, found, expressions, where, by_sql, by_columns)
    return {"num_affected_rows": metric("numDeletedRows" if values is None else "numUpdatedRows")}


def _execute(
    spark: SparkSession,
    table: TableHandle,
    expressions: Mapping[str, _Condition],
    where: Expr | None,
    by_sql: Callable[[str], object],
    by_columns: Callable[[Any], object],
) -> Callable[[str], int]:
    """Run an operation on the files that may hold matching rows; a function that returns its metrics.

    If every expression is text, SQL runs on the table's name, else delta-spark's own object of the table,
    which takes Columns. Expressions come by their names in messages.
    """
    check_single(spark, expressions)

    def run(folder: str) -> None:
        if all(part is None or isinstance(part, str) for part in expressions.values()):
            by_sql(path_name(folder))
            return
        delta = require("delta.tables", "spark", "expressions that are Columns")
        try:
            by_columns(delta.DeltaTable.forPath(spark, folder))
        except require("pyspark.errors", "spark", "Spark").PySparkException as error:
            if not is_connect(spark) or "extension" not in str(error):
                raise
            raise UnsupportedOperationError(
                "over Spark Connect, expressions that are Columns need a server with Delta's own plugin",
                suggestion="write conditions and values as SQL text, or use a session with its own driver",
            ) from error

    read = table.snapshot
    files, reads = candidates(table, where)
    done = run_on_scratch(spark, table, run, read=read, files=files, reads=reads)
    # -1, as in delta-spark, if whole files without a row count were removed
    return lambda name: 0 if done is None else int(done[0].get(name, -1))


def _assignments(values: _Values) -> str:
    # a line each: a value may end in a comment
    return ", ".join(f"{column_name(column)} = {value}\n" for column, value in values.items())


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
            hint = "use letters, digits and _"
            raise InvalidArgumentError(f"{alias!r} is not a valid alias", suggestion=hint)
    if target_alias.lower() == source_alias.lower():
        raise InvalidArgumentError("target and source need two aliases", suggestion="rename one of them")
    return MergeBuilder(spark, table, source, condition, target_alias, source_alias, storage_options)


@dataclass(frozen=True, eq=False)
class _Clause:
    when: _When
    action: _Action
    condition: _Condition
    #: None for every column of the source
    values: _Values | None = None

    def to_sql(self) -> str:
        more = "" if self.condition is None else f" AND (\n{self.condition}\n)"
        match self.action, self.values:
            case "DELETE", _:
                what = ""
            case "UPDATE", values:
                what = f"SET {'*' if values is None else _assignments(values)}"
            case _, None:
                what = "*"
            case _, values:
                given = ", ".join(f"{value}\n" for value in values.values())
                what = f"({', '.join(map(column_name, values))}) VALUES ({given})"
        return f"WHEN {self.when}{more} THEN {self.action} {what}"

    def add_to(self, builder: Any) -> Any:
        """Add the clause to delta-spark's own builder."""
        name = f"when{self.when.title().replace(' ', '')}{self.action.capitalize()}"
        if self.action == "DELETE" or self.values is None:
            every = "" if self.action == "DELETE" else "All"
            return getattr(builder, f"{name}{every}")(self.condition)
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
    _storage_options: dict[str, str] | None
    _clauses: tuple[_Clause, ...] = ()
    _evolves: bool = False

    def whenMatchedUpdate(self, condition: _Condition = None, set: _Values | None = None) -> Self:  # noqa: A002
        """Update some columns of rows that have a match."""
        return self._with("MATCHED", "UPDATE", condition, set=set)

    def whenMatchedUpdateAll(self, condition: _Condition = None) -> Self:
        """Update all columns of rows that have a match with those of the source."""
        return self._with("MATCHED", "UPDATE", condition)

    def whenMatchedDelete(self, condition: _Condition = None) -> Self:
        """Delete rows that have a match."""
        return self._with("MATCHED", "DELETE", condition)

    def whenNotMatchedInsert(self, condition: _Condition = None, values: _Values | None = None) -> Self:
        """Insert rows of the source that have no match, some columns of them."""
        return self._with("NOT MATCHED", "INSERT", condition, values=values)

    def whenNotMatchedInsertAll(self, condition: _Condition = None) -> Self:
        """Insert rows of the source that have no match."""
        return self._with("NOT MATCHED", "INSERT", condition)

    def whenNotMatchedBySourceUpdate(self, condition: _Condition = None, set: _Values | None = None) -> Self:  # noqa: A002
        """Update rows of the table that have no match in the source; every file is read."""
        return self._with("NOT MATCHED BY SOURCE", "UPDATE", condition, set=set)

    def whenNotMatchedBySourceDelete(self, condition: _Condition = None) -> Self:
        """Delete rows of the table that have no match in the source; every file is read."""
        return self._with("NOT MATCHED BY SOURCE", "DELETE", condition)

    def withSchemaEvolution(self) -> Self:
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
            hint = "add one, such as whenMatchedUpdateAll()"
            raise InvalidArgumentError("the merge has no clause", suggestion=hint)
        found = open_for_write(self._spark, self._table, self._storage_options)
        expressions: dict[str, _Condition] = {"the condition": self._condition}
        for number, clause in enumerate(self._clauses, 1):
            expressions[f"the condition of clause {number}"] = clause.condition
            expressions |= {f"{c!r} of clause {number}": value for c, value in (clause.values or {}).items()}

        where = None
        if not any(clause.when == "NOT MATCHED BY SOURCE" for clause in self._clauses):
            aliases = self._target_alias, self._source_alias
            where = target_condition(self._spark, found.snapshot, self._condition, self._source, aliases)
        metric = _execute(self._spark, found, expressions, where, self._by_sql, self._by_columns)
        numbers = {name: metric(theirs) for name, theirs in _MERGE_METRICS.items()}
        return {"num_affected_rows": sum(numbers.values()), **numbers}

    def _with(self, when: _When, action: _Action, condition: _Condition, **given: _Values | None) -> Self:
        for name, values in given.items():
            if not values:
                hint = f"name them in {name}=, or use the clause for all columns"
                raise InvalidArgumentError("the clause sets no column", suggestion=hint)
            check_values(name, values)
        check_type("the clause's condition", condition, optional=True)
        clause = _Clause(when, action, condition, next(iter(given.values()), None))
        return replace(self, _clauses=(*self._clauses, clause))

    def _by_columns(self, target: Any) -> None:
        source = self._source.alias(self._source_alias)
        builder = target.alias(self._target_alias).merge(source, self._condition)
        for clause in self._clauses:
            builder = clause.add_to(builder)
        (builder.withSchemaEvolution() if self._evolves else builder).execute()

    def _by_sql(self, name: str) -> None:
        # the source's own session, which may be a different one
        spark, view = self._source.sparkSession, f"deltasql_{uuid.uuid4().hex}"
        evolving = " WITH SCHEMA EVOLUTION" if self._evolves else ""
        # SQL requires the kinds in this order; only the order within a kind matters
        clauses = "\n".join(c.to_sql() for when in get_args(_When) for c in self._clauses if c.when == when)
        self._source.createTempView(view)
        try:
            spark.sql(
                f"MERGE{evolving} INTO {name} AS {self._target_alias}\n"
                f"USING {view} AS {self._source_alias} ON (\n{self._condition}\n)\n{clauses}"
            ).collect()
        finally:
            spark.catalog.dropTempView(view)
