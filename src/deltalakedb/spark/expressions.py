"""Expressions that users give to Spark's operations: each is one expression, as text or as a Column."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError
from deltalakedb.extras import require

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession


def check_type(what: str, value: object) -> None:
    """Refuse what is neither a text nor a Column.

    Raises:
        ArgumentTypeError: It is something else.
        InvalidArgumentError: The text is empty.
    """
    if isinstance(value, str):
        if not value.strip():
            raise InvalidArgumentError(f"{what} is empty", suggestion="write an expression in SQL")
    elif not isinstance(value, require("pyspark.sql", "spark", "Spark").Column):
        raise ArgumentTypeError(
            f"{what} is SQL text or a Column, not {value!r}",
            suggestion="write a value as SQL has it: '5', 'NULL', \"'a text'\"",
        )


def check_values(what: str, values: object) -> None:
    """Refuse what is no mapping from columns to expressions."""
    items = getattr(values, "items", None)
    if items is None:
        raise ArgumentTypeError(f"{what} has an expression for each column, and is no {values!r}")
    for column, value in items():
        if not isinstance(column, str):
            raise ArgumentTypeError(f"a column in {what} is named by a text, not {column!r}")
        check_type(f"{what}[{column!r}]", value)


def check_frame(what: str, value: object) -> None:
    """Refuse what is no DataFrame of Spark."""
    if not isinstance(value, require("pyspark.sql", "spark", "Spark").DataFrame):
        raise ArgumentTypeError(
            f"{what} is a DataFrame of Spark, not {type(value).__name__}",
            suggestion="make one with spark.createDataFrame",
        )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep PySpark from writing pages about columns that this frame does not have, in this thread only."""
    logger = require("pyspark.logger", "spark", "Spark").PySparkLogger.getLogger("SQLQueryContextLogger")
    mine = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != mine

    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


def check_single(spark: SparkSession, given: Mapping[str, Any]) -> None:
    """Refuse texts that are not one expression each, so that none says more than its place in a statement.

    Args:
        spark: The session, whose parser decides.
        given: The expressions by what messages call them; Columns and None are passed over.

    Raises:
        InvalidArgumentError: A text is more or less than one expression.
    """
    texts = {what: text for what, text in given.items() if isinstance(text, str)}
    if not texts:
        return
    errors = require("pyspark.errors", "spark", "Spark")
    try:
        with _unlogged():
            # the schema is what makes Spark Connect look at a frame at all
            _ = spark.range(0).selectExpr(*texts.values()).schema
    except errors.ParseException as error:
        if len(texts) > 1:
            for what, text in texts.items():
                check_single(spark, {what: text})
        first = str(error).strip().partition("\n")[0]
        raise InvalidArgumentError(
            f"{' or '.join(texts)} is not one expression: {first}",
            suggestion="give one expression in Spark's SQL",
        ) from error
    except errors.PySparkException:
        return  # it was parsed; what its names mean is for the statement to say
