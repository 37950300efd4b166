"""Arguments as users write them: predicates, filters, columns, numbers and times."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltalakedb.exceptions import (
    ArgumentRangeError,
    ArgumentTypeError,
    InvalidArgumentError,
    PredicateError,
    ProtocolError,
)
from deltalakedb.protocol import partition
from deltalakedb.protocol.predicate import And, Compare, Expr, In, Not, Unknown, conjuncts
from deltalakedb.protocol.predicate_parser import from_dnf, parse_predicate
from deltalakedb.protocol.schema import PrimitiveType, StructType, parse_schema

if TYPE_CHECKING:
    from deltalakedb.protocol.actions import Metadata

_FORMS = "pass SQL (\"id > 5\"), or tuples ([('id', '>', 5)]), or a list of lists of tuples"
#: databases count in 64 bits
_NUMBERS_END: Final = 2**63


class ArrowFilterError(PredicateError, pa.ArrowInvalid, pa.ArrowNotImplementedError):  # type: ignore[misc]
    """Filters that Arrow refuses, for code that expects Arrow's own errors too."""


class ArrowColumnError(InvalidArgumentError, pa.ArrowInvalid):  # type: ignore[misc]
    """A column that the table does not have, for code that expects Arrow's own error too."""


# ---- predicates ----------------------------------------------------------------------------------------


def predicate_of(where: Any, metadata: Metadata, *, files_only: bool = False) -> Expr | None:
    """The predicate of a SQL text or of filters in disjunctive normal form.

    With ``files_only`` it only selects files; values are then converted to their columns' types. A pyarrow
    expression selects no files: pyarrow itself applies it to fragments and rows.
    """
    if where is None or (isinstance(where, list | tuple) and not where):
        return None
    schema = parse_schema(metadata.schema_string)
    if isinstance(where, str):
        return parse_predicate(where, schema, files_only=files_only)
    if isinstance(where, list | tuple):
        return from_dnf(_fitted_filters(where, schema) if files_only else where, schema)
    if not hasattr(where, "to_substrait"):
        raise ArgumentTypeError(f"{where!r} is not a filter", suggestion=_FORMS)
    return Unknown(str(where))


def _fitted_filters(where: Any, schema: StructType) -> Any:
    """Filters with values in the types of their columns; the shapes and errors are those of stock."""
    if all(isinstance(group, list) for group in where):
        groups = where
    elif all(isinstance(condition, tuple) for condition in where):
        groups = [where]
    else:
        raise PredicateError(
            "filters must be a list of (column, op, value) tuples (a conjunction), "
            "or a list of such lists (an OR across conjunctions), not a mix of both",
            suggestion=_FORMS,
        )
    if not all(groups):
        raise PredicateError(
            "empty conjunction in filters; pass no filter to match all files", suggestion=_FORMS
        )
    return [[_fitted(condition, schema) for condition in group] for group in groups]


def _fitted(condition: Any, schema: StructType) -> Any:
    if not isinstance(condition, tuple) or len(condition) != 3:
        return condition  # from_dnf refuses it
    name, op, value = condition
    field = schema.find(name) if isinstance(name, str) else None
    if field is None or not isinstance(kind := field.type, PrimitiveType):
        return condition
    if isinstance(value, list | tuple | set | frozenset):
        return name, op, [_value(name, v, kind) for v in value]
    return name, op, _value(name, value, kind)


def _value(name: str, value: Any, kind: PrimitiveType) -> Any:
    if value is not None and not isinstance(value, str | bytes | int | float | Decimal | date):
        raise PredicateError(
            f"Could not encode partition value for type: {value}",
            suggestion="compare with texts, numbers, dates or truth values",
        )
    if kind.name == "string":  # as partition values are written
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="replace")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return text if isinstance(value, int | float | date) else value
    try:
        if isinstance(value, bool) and kind.name != "boolean":
            raise ProtocolError("a truth value")
        if isinstance(value, str) and value:
            partition.parse(value, kind)
    except ProtocolError as error:
        raise PredicateError(
            f"Failed to parse value {value!r} as '{kind}'",
            suggestion=f"compare {name} with a value of its type",
        ) from error
    return value


_NOT_FILTERS = (
    "join comparisons of partition columns with AND, such as day = '2026-11-15' AND city IN ('Rome', 'Oslo')"
)


def partition_filters(where: str, metadata: Metadata) -> list[tuple[str, str, Any]]:
    """A SQL condition on partition columns as the filters that ``optimize`` takes."""
    predicate = parse_predicate(where, parse_schema(metadata.schema_string), files_only=True)
    found: list[tuple[str, str, Any]] = []
    for part in conjuncts(predicate):
        match part:
            case Compare((column,), "=" | "!=" | "<" | "<=" | ">" | ">=" as op, value) if value is not None:
                found.append((column, op, value))
            case In((column,), values):
                found.append((column, "in", list(values)))
            case Not(In((column,), values)) | Not(And((In((column,), values), Unknown()))):
                found.append((column, "not in", list(values)))
            case Unknown() if found and found[-1][1] == "in":
                pass  # a doubt of readers about the list before it: rows stay the same here
            case _:
                raise PredicateError(f"{where!r} does not select partitions", suggestion=_NOT_FILTERS)
    for column, *_ in found:
        if column not in metadata.partition_columns:
            columns = ", ".join(metadata.partition_columns)
            hint = f"the partition columns are {columns}" if columns else "the table has no partitions"
            raise PredicateError(f"{column} is not a partition column", suggestion=hint)
    return found


@contextmanager
def typed_filtering() -> Iterator[None]:
    """Report what Arrow raises for a filter that does not fit the columns as a typed error."""
    try:
        yield
    except (ArrowFilterError, ArrowColumnError, ArgumentTypeError):
        raise
    except PredicateError as error:
        raise ArrowFilterError(error.message, suggestion=error.suggestion) from error
    except InvalidArgumentError as error:
        raise ArrowColumnError(error.message, suggestion=error.suggestion) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ArrowFilterError(
            f"the filters do not fit the table: {error}",
            suggestion="compare each column with values of its own type",
        ) from error


def sql_text(predicate: Any) -> str | None:
    """A SQL predicate; ArgumentTypeError for anything else."""
    if predicate is None or isinstance(predicate, str):
        return predicate
    raise ArgumentTypeError(
        f"a predicate is a text, not {type(predicate).__name__}", suggestion='write it in SQL: "id > 5"'
    )


def names_of(columns: Any) -> list[str] | None:
    """Column names as a list; ArgumentTypeError for anything else."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Collection):
        raise ArgumentTypeError(
            f"columns is a list of names, not {columns!r}", suggestion=f"write [{columns!r}]"
        )
    found = list(columns)
    if not all(isinstance(c, str) for c in found):
        raise ArgumentTypeError(f"columns is a list of names, not {columns!r}")
    return found


# ---- numbers and times ---------------------------------------------------------------------------------


def whole_number(value: Any) -> int | None:
    """A whole number of Python, numpy or others like it as an int; None for everything else and for bools."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def checked_number(value: Any, what: str) -> int:
    """A version or a limit as an int; an error if it cannot be one."""
    number = whole_number(value)
    if number is None:
        raise ArgumentTypeError(f"a {what} is a whole number, not {value!r}")
    if not 0 <= number < _NUMBERS_END:
        raise ArgumentRangeError(f"a {what} is a whole number from 0 to 2⁶³, not {value}")
    return number


def epoch_ms(when: str | datetime) -> int:
    """A time as epoch milliseconds; one without a zone is UTC."""
    read = _parsed(when) if isinstance(when, str) else when
    if not isinstance(read, datetime):
        raise ArgumentTypeError(
            f"a time is a datetime or an ISO 8601 text, not {when!r}",
            suggestion="write it as 2026-11-15T12:00:00Z",
        )
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    return int(read.timestamp() * 1000)


def instant_ms(when: str | datetime) -> int:
    """The same, but a text must name its zone, so that every reader takes it for the same instant."""
    if isinstance(when, str) and (read := _parsed(when)).tzinfo is None:
        raise InvalidArgumentError(
            f"Failed to parse datetime string: {when!r} has no time zone",
            suggestion=f"write {read.isoformat()}Z for UTC, or pass a datetime",
        )
    return epoch_ms(when)


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.upper())  # RFC 3339 has small letters too
    except ValueError as error:
        raise InvalidArgumentError(
            f"Failed to parse datetime string: {text!r} is not a time",
            suggestion="write it as 2026-11-15T12:00:00Z",
        ) from error
