"""Rows of SQL-backed tables updated and deleted by Spark."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.extras import require
from deltalakedb.spark.conditions import condition_of
from deltalakedb.spark.expressions import check_single, check_type, check_values
from deltalakedb.spark.operating import column_name, opened, operate, path_name, told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import deltalake
    from pyspark.sql import Column, SparkSession

    from deltalakedb.uri import Address


def delete(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    condition: str | Column | None = None,
    *,
    storage_options: dict[str, str] | None = None,
) -> dict[str, int]:
    """Delete rows, run by delta-spark and committed in SQL.

    Args:
        spark: A session with Delta, such as `session` gives.
        table: The table's address, or the table itself.
        condition: Which rows, in SQL; the database picks the files that may hold them. A Column works too, on
            all files, and over Spark Connect only where the server has Delta's own plugin.
        storage_options: Options for the object store, for the catalog's side; Spark has its own settings.

    Returns:
        ``num_affected_rows``; -1 where whole files went whose rows nobody counted.

    Raises:
        InvalidArgumentError: A text is not one expression.
        ConflictError: Somebody else changed what this depends on.

    Example:
        >>> delete(spark, "deltasql://sqlite//lake/meta.db?table=orders", "day < '2020-01-01'")
        {'num_affected_rows': 42}
    """
    if condition is not None:
        check_type("the condition", condition)
    found = opened(spark, table, storage_options)
    check_single(spark, {"the condition": condition})

    def run(folder: str) -> None:
        if condition is None or isinstance(condition, str):
            where = "" if condition is None else f" WHERE (\n{condition}\n)"
            spark.sql(f"DELETE FROM {path_name(folder)}{where}").collect()  # noqa: S608 - it is the user's
        else:
            with columns_of(spark):
                plain_table(spark, folder).delete(condition)

    where = condition_of(spark, found.source.snapshot, condition)
    metrics = operate(spark, found, run, where=where)
    return {"num_affected_rows": told(metrics, "numDeletedRows")}


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
        spark: A session with Delta, such as `session` gives.
        table: The table's address, or the table itself.
        set: By column, its new value as an expression in SQL, or a Column.
        condition: Which rows, in SQL; the database picks the files that may hold them. Columns work too, on
            all files, and over Spark Connect only where the server has Delta's own plugin.
        storage_options: Options for the object store, for the catalog's side; Spark has its own settings.

    Returns:
        ``num_affected_rows``.

    Raises:
        InvalidArgumentError: A text is not one expression.
        ConflictError: Somebody else changed what this depends on.

    Example:
        >>> update(spark, "deltasql://sqlite//lake/meta.db?table=orders", {"qty": "qty + 1"}, "sku = 7")
        {'num_affected_rows': 3}
    """
    if not set:
        raise InvalidArgumentError("an update sets at least one column", suggestion="name it in set=")
    check_values("set", set)
    if condition is not None:
        check_type("the condition", condition)
    found = opened(spark, table, storage_options)
    check_single(spark, {"the condition": condition, **{f"set[{c!r}]": value for c, value in set.items()}})

    def run(folder: str) -> None:
        if all_text(condition, *set.values()):
            # a line each: a value may end in a comment
            given = ", ".join(f"{column_name(column)} = {value}\n" for column, value in set.items())
            where = "" if condition is None else f" WHERE (\n{condition}\n)"
            spark.sql(f"UPDATE {path_name(folder)} SET {given}{where}").collect()  # noqa: S608 - the same
        else:
            with columns_of(spark):
                plain_table(spark, folder).update(condition=condition, set=dict(set))

    where = condition_of(spark, found.source.snapshot, condition)
    metrics = operate(spark, found, run, where=where)
    return {"num_affected_rows": told(metrics, "numUpdatedRows")}


def all_text(*parts: str | Column | None) -> bool:
    """Whether there is no Column among some expressions, so that they can be said in SQL."""
    return all(part is None or isinstance(part, str) for part in parts)


@contextmanager
def columns_of(spark: SparkSession) -> Iterator[None]:
    """Say what is missing where expressions that are Columns reach a Connect server that cannot take them."""
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


def plain_table(spark: SparkSession, folder: str) -> Any:
    """The table at a path as delta-spark's own class has it, which takes Columns."""
    return require("delta.tables", "spark", "expressions that are Columns").DeltaTable.forPath(spark, folder)
