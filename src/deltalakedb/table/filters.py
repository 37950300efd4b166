"""Filters as users write them, turned into the predicate that the database prunes by."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError, PredicateError, ProtocolError
from deltalakedb.protocol import partition
from deltalakedb.protocol.dnf import from_dnf
from deltalakedb.protocol.predicate import And, Unknown
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import PrimitiveType, parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.schema import StructType

_FORMS = "pass SQL (\"id > 5\"), or tuples ([('id', '>', 5)]), or a list of lists of tuples"


class ArrowFilterError(PredicateError, pa.ArrowInvalid, pa.ArrowNotImplementedError):  # type: ignore[misc]
    """Filters that Arrow refuses, for code that expects Arrow's own errors too."""


class ArrowColumnError(InvalidArgumentError, pa.ArrowInvalid):  # type: ignore[misc]
    """A column that the table does not have, for code that expects Arrow's own error too."""


def predicate_of(where: Any, metadata: Metadata, *, files_only: bool = False) -> Expr | None:
    """The predicate of a SQL text or of filters in disjunctive normal form.

    A pyarrow expression picks no files: pyarrow itself applies it to fragments and rows.

    Args:
        where: The filters.
        metadata: The table's metadata.
        files_only: They pick files alone: values are read in the types of their columns.

    Raises:
        ArgumentTypeError: It is none of these.
        PredicateError: It cannot be understood.
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
    """Filters in disjunctive normal form, with values in the types of their columns.

    Raises:
        PredicateError: Filters of another shape, or a value that the column's type does not have.
    """
    if all(isinstance(group, list) for group in where):
        groups = [list(group) for group in where]
    elif all(isinstance(condition, tuple) for condition in where):
        groups = [list(where)]
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
        return condition
    name, op, value = condition
    field = schema.find(name) if isinstance(name, str) else None
    if field is None or not isinstance(field.type, PrimitiveType):
        return condition
    if isinstance(value, list | tuple | set | frozenset):
        return name, op, [_value(name, v, field.type) for v in value]
    return name, op, _value(name, value, field.type)


def _value(name: str, value: Any, kind: PrimitiveType) -> Any:
    if value is not None and not isinstance(value, str | bytes | int | float | Decimal | date):
        raise PredicateError(
            f"Could not encode partition value for type: {value}",
            suggestion="compare with texts, numbers, dates or truth values",
        )
    if kind.name == "string":
        return _text(value)
    if isinstance(value, bool) and kind.name != "boolean":
        raise _misfit(name, value, kind)
    if isinstance(value, str) and value:
        try:
            partition.parse(value, kind)
        except ProtocolError as error:
            raise _misfit(name, value, kind) from error
    return value


def _text(value: Any) -> Any:
    """A value as partition values are written."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return str(value) if isinstance(value, int | float | date | datetime) else value


def _misfit(name: str, value: Any, kind: PrimitiveType) -> PredicateError:
    return PredicateError(
        f"Failed to parse value {value!r} as '{kind}'",
        suggestion=f"compare {name} with a value of its type",
    )


def both(first: Expr | None, second: Expr | None) -> Expr | None:
    """The conjunction of two predicates, either of which may be missing."""
    if first is None or second is None:
        return first if second is None else second
    return And((first, second))


def merged(older: Any, newer: Any, name: str) -> Any:
    """The filters of an argument that has an older and a newer name."""
    if older is None:
        return newer
    if newer is not None:
        raise InvalidArgumentError(
            f"`{name}` is deprecated; pass only `file_pruning_predicate`",
            suggestion=f"leave {name} out",
        )
    warnings.warn(
        f"`{name}` is deprecated; pass the filters to `file_pruning_predicate` instead",
        DeprecationWarning,
        stacklevel=3,
    )
    return older


@contextmanager
def typed_filtering() -> Iterator[None]:
    """What Arrow says of a filter that does not fit the columns, as a typed error."""
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


def sql_text(predicate: Any) -> str | None:
    """A SQL predicate; ArgumentTypeError for anything else."""
    if predicate is None or isinstance(predicate, str):
        return predicate
    raise ArgumentTypeError(
        f"a predicate is a text, not {type(predicate).__name__}", suggestion='write it in SQL: "id > 5"'
    )
