"""Filters as users write them, turned into the predicate that the database prunes by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.predicate import And
from deltalakedb.protocol.predicate_filters import from_arrow_expression, from_dnf
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import parse_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Expr


def predicate_of(where: Any, metadata: Metadata, arrow_schema: pa.Schema | None = None) -> Expr | None:
    """The predicate of a SQL text, of filters in disjunctive normal form, or of a pyarrow expression."""
    if where is None or (isinstance(where, list | tuple) and not where):
        return None
    schema = parse_schema(metadata.schema_string)
    if isinstance(where, str):
        return parse_predicate(where, schema)
    if isinstance(where, list | tuple):
        return from_dnf(where, schema)
    return from_arrow_expression(where, arrow_schema, schema)


def both(first: Expr | None, second: Expr | None) -> Expr | None:
    """The conjunction of two predicates, either of which may be missing."""
    if first is None or second is None:
        return first if second is None else second
    return And((first, second))
