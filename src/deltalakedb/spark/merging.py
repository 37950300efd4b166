"""Merges of DataFrames into SQL-backed tables, run by Spark."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.spark.conditions import target_condition
from deltalakedb.spark.dml import all_text, columns_of, plain_table
from deltalakedb.spark.expressions import check_frame, check_single, check_type, check_values
from deltalakedb.spark.operating import column_name, opened, operate, path_name, told
from deltalakedb.spark.sessions import check_delta

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    import deltalake
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.uri import Address

_When = Literal["MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"]
#: delta-spark's metric of each number that it tells
_TOLD = {
    "num_updated_rows": "numTargetRowsUpdated",
    "num_deleted_rows": "numTargetRowsDeleted",
    "num_inserted_rows": "numTargetRowsInserted",
}


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
        spark: A session with Delta, such as `session` gives.
        table: The table's address, or the table itself.
        source: The rows that are merged in.
        condition: Which rows belong together, in SQL over both aliases, or a Column. By what it says of the
            target alone the database picks the files.
        target_alias: What the expressions call the table.
        source_alias: What they call the DataFrame.
        storage_options: Options for the object store, for the catalog's side; Spark has its own settings.

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
            raise InvalidArgumentError(f"{alias!r} is no alias", suggestion="use letters, digits and _")
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

    def text(self) -> str:
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

    def say(self, builder: Any) -> Any:
        """The clause said to delta-spark's own builder."""
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
    """A merge in the making, with the clauses of delta-spark's builder; every clause gives a new one."""

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
        return self._with(_Clause("MATCHED", condition, "UPDATE", _given(set, "set")))

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
        return self._with(_Clause("NOT MATCHED", condition, "INSERT", _given(values, "values")))

    def whenNotMatchedInsertAll(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Insert rows of the source that have no match."""
        return self._with(_Clause("NOT MATCHED", condition, "INSERT"))

    def whenNotMatchedBySourceUpdate(  # noqa: N802
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002
    ) -> Self:
        """Update rows of the table that have no match in the source; every file is looked at."""
        return self._with(_Clause("NOT MATCHED BY SOURCE", condition, "UPDATE", _given(set, "set")))

    def whenNotMatchedBySourceDelete(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Delete rows of the table that have no match in the source; every file is looked at."""
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
            ConflictError: Somebody else changed what this depends on.
        """
        if not self._clauses:
            raise InvalidArgumentError("the merge has no clause", suggestion="say what is to be done when")
        check_delta(self._spark)
        check_single(self._spark, self._expressions())
        found = opened(self._spark, self._table, self._storage_options)
        where = None
        if not any(clause.when == "NOT MATCHED BY SOURCE" for clause in self._clauses):
            aliases = (self._target_alias, self._source_alias)
            where = target_condition(
                self._spark, found.source.snapshot, self._condition, self._source, aliases
            )
        metrics = operate(self._spark, found, self._run, where=where)
        numbers = {name: told(metrics, metric) for name, metric in _TOLD.items()}
        return {"num_affected_rows": sum(numbers.values()), **numbers}

    def _with(self, clause: _Clause) -> Self:
        if clause.condition is not None:
            check_type("the clause's condition", clause.condition)
        return replace(self, _clauses=(*self._clauses, clause))

    def _expressions(self) -> dict[str, str | Column | None]:
        """Everything that was said, by what a message calls it."""
        said: dict[str, str | Column | None] = {"the condition": self._condition}
        for number, clause in enumerate(self._clauses, 1):
            said[f"the condition of clause {number}"] = clause.condition
            for column, value in (clause.values or {}).items():
                said[f"{column!r} of clause {number}"] = value
        return said

    def _run(self, folder: str) -> None:
        if all_text(*self._expressions().values()):
            self._run_text(folder)
            return
        with columns_of(self._spark):
            target = plain_table(self._spark, folder).alias(self._target_alias)
            builder = target.merge(self._source.alias(self._source_alias), self._condition)
            for clause in self._clauses:
                builder = clause.say(builder)
            (builder.withSchemaEvolution() if self._evolves else builder).execute()

    def _run_text(self, folder: str) -> None:
        # the source's own session, which is another one where somebody made several
        spark, view = self._source.sparkSession, f"deltasql_{uuid.uuid4().hex}"
        evolving = " WITH SCHEMA EVOLUTION" if self._evolves else ""
        # SQL wants the kinds in this order; the order within a kind is what counts
        clauses = "\n".join(c.text() for when in get_args(_When) for c in self._clauses if c.when == when)
        self._source.createTempView(view)
        try:
            spark.sql(
                f"MERGE{evolving} INTO {path_name(folder)} AS {self._target_alias}\n"
                f"USING {view} AS {self._source_alias} ON (\n{self._condition}\n)\n{clauses}"
            ).collect()
        finally:
            spark.catalog.dropTempView(view)


def _given(values: Mapping[str, str | Column] | None, name: str) -> Mapping[str, str | Column]:
    if not values:
        raise InvalidArgumentError(
            "the clause names no column",
            suggestion=f"name them in {name}=, or use the clause for all columns",
        )
    check_values(name, values)
    return values
