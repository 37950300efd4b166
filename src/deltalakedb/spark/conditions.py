"""Conditions in Spark's SQL, as far as the catalog may choose files by them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import PredicateError, ProtocolError
from deltalakedb.protocol.predicate import (
    Unknown,
    conjunction,
    conjuncts,
    map_columns,
    referenced_columns,
)
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import PrimitiveType, StructField, StructType, parse_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Snapshot

#: what Spark reads in its own way, or by the session's settings: escapes, two quotes in a text, double quotes
#: (text or a name), `${variables}`, comments (which nest)
_SPARKS_OWN: Final = ("\\", "''", '"', "$", "--", "/*")
#: types of text whose comparison is not that of their bytes
_NOT_BYTES: Final = ("__CHAR_VARCHAR_TYPE_STRING", "__COLLATIONS")
_UTC: Final = frozenset({"UTC", "ETC/UTC", "GMT", "Z", "+00:00", "GMT+0", "UCT"})
_TIMES: Final = (PrimitiveType("timestamp"), PrimitiveType("timestamp_ntz"))
_DATE: Final = PrimitiveType("date")
#: a setting that makes Spark compare dates and times with texts as texts
_AS_TEXT: Final = "spark.sql.legacy.typeCoercion.datetimeToString.enabled"
#: Spark rounds decimals of more digits when they meet a literal: 38 digits hold this many and 15 of a literal
_MOST_DIGITS: Final = 23
_LONG_FRACTION: Final = re.compile(r"\.\d{16}")
_LONG_NUMBER: Final = re.compile(r"[\d.]{17}")


def condition_of(spark: SparkSession, snapshot: Snapshot, text: str | Column | None) -> Expr | None:
    """The condition of an operation, over the table's columns; None if every file may hold such rows.

    Spark decides about rows. Here a condition only picks files, so what might mean something else to Spark
    under the session's settings picks all of them.
    """
    schema = parse_schema(snapshot.metadata.schema_string)
    return None if text is None else _understood((spark,), snapshot, text, schema)


def target_condition(
    spark: SparkSession, snapshot: Snapshot, text: str | Column, source: DataFrame, aliases: tuple[str, str]
) -> Expr | None:
    """The part of a merge's condition that speaks of the target alone: only such files can hold a match.

    Args:
        spark: The session.
        snapshot: The table.
        text: The condition.
        source: The rows that are merged in.
        aliases: What the condition calls target and source.
    """
    target, other = aliases
    schema = parse_schema(snapshot.metadata.schema_string)
    try:
        theirs = parse_schema(source.schema.json())
    except ProtocolError:
        return None  # a type that no table has: Spark decides what to do with it
    both = StructType((StructField(target, schema), StructField(other, theirs)))
    # the statement runs in the source's session, which may be another one
    whole = _understood((spark, source.sparkSession), snapshot, text, both)
    if whole is None:
        return None
    mine = []
    for part in conjuncts(whole):
        columns = referenced_columns(part)
        alone = columns and all(len(c) > 1 and c[0] == target for c in columns)
        if alone and not isinstance(part, Unknown):
            mine.append(map_columns(part, lambda path: path[1:]))
    return conjunction(mine) if mine else None


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
        return None  # Spark decides whether it is one
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
