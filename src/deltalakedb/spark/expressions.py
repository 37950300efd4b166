"""Expressions that users give to Spark's operations, and the conditions among them that pick files in SQL."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError, PredicateError, ProtocolError
from deltalakedb.extras import require
from deltalakedb.protocol.predicate import part_about, referenced_columns
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import PrimitiveType, StructField, StructType, parse_schema

if TYPE_CHECKING:
    import logging

    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Snapshot

#: a column's name with parts in backticks
_QUOTED: Final = re.compile(r"(?:`(?:[^`]|``)+`|\w+)(?:\.(?:`(?:[^`]|``)+`|\w+))*")
#: syntax that Spark parses differently, or by the session's settings: escapes, two quotes in a text, double
#: quotes (text or a name), `${variables}`, comments (which nest)
_SPARKS_OWN: Final = ("\\", "''", '"', "$", "--", "/*")
#: text types that are not compared by their bytes
_NOT_BYTES: Final = ("__CHAR_VARCHAR_TYPE_STRING", "__COLLATIONS")
_UTC: Final = frozenset({"UTC", "ETC/UTC", "GMT", "Z", "+00:00", "GMT+0", "UCT"})
_TIMES: Final = (PrimitiveType("timestamp"), PrimitiveType("timestamp_ntz"))
_DATE: Final = PrimitiveType("date")
#: with this setting Spark compares dates and times with strings as strings
_AS_TEXT: Final = "spark.sql.legacy.typeCoercion.datetimeToString.enabled"
#: Spark rounds decimals with more digits if they are compared with a literal, of which 15 digits may follow
_MOST_DIGITS: Final = 23
_LONG_FRACTION: Final = re.compile(r"\.\d{16}")
_LONG_NUMBER: Final = re.compile(r"[\d.]{17}")


def check_type(what: str, value: object, *, optional: bool = False) -> None:
    """Check that an expression is SQL text or a Column."""
    if value is None and optional:
        return
    if isinstance(value, str):
        if not value.strip():
            raise InvalidArgumentError(f"{what} is empty", suggestion="write an expression in SQL")
    elif not isinstance(value, require("pyspark.sql", "spark", "Spark").Column):
        raise ArgumentTypeError(
            f"{what} is SQL text or a Column, not {value!r}",
            suggestion="write values as SQL literals: '5', 'NULL', \"'a text'\"",
        )


def check_values(what: str, values: object) -> None:
    if not isinstance(values, Mapping):
        raise ArgumentTypeError(f"{what} is a mapping from columns to expressions, not {values!r}")
    for column, value in values.items():
        if not isinstance(column, str):
            raise ArgumentTypeError(f"a column name in {what} is a string, not {column!r}")
        check_type(f"{what}[{column!r}]", value)


def check_frame(what: str, value: object) -> None:
    if not isinstance(value, require("pyspark.sql", "spark", "Spark").DataFrame):
        raise ArgumentTypeError(
            f"{what} is a DataFrame of Spark, not {type(value).__name__}",
            suggestion="create one with spark.createDataFrame",
        )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep PySpark from logging pages about columns that the frame does not have, in this thread only."""
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
    """Check that each text is one expression, so that none can extend the statement that it is put into.

    The session's parser decides. Expressions come by their names in messages; Columns and None are ignored.
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
        return  # it was parsed; the statement resolves its names


def path_name(folder: str) -> str:
    return f"delta.`{folder.replace('`', '``')}`"


def column_name(name: str) -> str:
    """A column as Spark's SQL names it; a quoted name stays as it is."""
    if "`" not in name:
        return ".".join(f"`{part}`" for part in name.split("."))
    if _QUOTED.fullmatch(name) is None:
        hint = "quote each part once"
        raise InvalidArgumentError(f"{name!r} is not the name of one column", suggestion=hint)
    return name


# ---- conditions that pick files ----------------------------------------------------------------------------


def condition_of(spark: SparkSession, snapshot: Snapshot, text: str | Column | None) -> Expr | None:
    """The condition of an operation, over the table's columns; None if every file may hold matching rows.

    Spark decides about rows. Here a condition only picks files: one that Spark might interpret differently
    under the session's settings picks all of them.
    """
    schema = parse_schema(snapshot.metadata.schema_string)
    return None if text is None else _understood((spark,), snapshot, text, schema)


def target_condition(
    spark: SparkSession, snapshot: Snapshot, text: str | Column, source: DataFrame, aliases: tuple[str, str]
) -> Expr | None:
    """The part of a merge's condition that concerns the target alone: only such files can hold a match."""
    target, other = aliases
    schema = parse_schema(snapshot.metadata.schema_string)
    try:
        theirs = parse_schema(source.schema.json())
    except ProtocolError:
        return None  # a type that no table has: Spark decides
    both = StructType((StructField(target, schema), StructField(other, theirs)))
    # the statement runs in the source's session, which may be a different one
    whole = _understood((spark, source.sparkSession), snapshot, text, both)
    return None if whole is None else part_about(whole, target)


def _understood(
    sessions: Sequence[SparkSession], snapshot: Snapshot, text: str | Column, schema: StructType
) -> Expr | None:
    if not isinstance(text, str) or any(mark in text for mark in _SPARKS_OWN) or _LONG_FRACTION.search(text):
        return None
    if any(word in snapshot.metadata.schema_string for word in _NOT_BYTES):
        return None
    try:
        parsed = parse_predicate(text, schema)
    except PredicateError:
        return None  # Spark decides whether it is valid
    fields = (schema.find(path) for path in referenced_columns(parsed))
    kinds = {f.type for f in fields if f is not None and isinstance(f.type, PrimitiveType)}
    decimals = [decimal for kind in kinds if (decimal := kind.decimal) is not None]
    if decimals and (max(decimals)[0] > _MOST_DIGITS or _LONG_NUMBER.search(text)):
        return None
    for session in sessions:
        zone = session.conf.get("spark.sql.session.timeZone", None) or ""
        if kinds.intersection(_TIMES) and zone.upper() not in _UTC:
            return None
        as_text = session.conf.get(_AS_TEXT, "false") or "false"
        if kinds.intersection((*_TIMES, _DATE)) and as_text.lower() == "true":
            return None
    return parsed
