"""A table's schema in Arrow, the way delta-rs maps it."""

from __future__ import annotations

import deltalake
import pyarrow as pa

from deltalakedb.exceptions import ProtocolError


def stock_schema(schema_string: str) -> deltalake.Schema:
    """A table's schema as delta-rs has it.

    Raises:
        ProtocolError: delta-rs does not know a type of it.
    """
    try:
        return deltalake.Schema.from_json(schema_string)
    except ValueError as error:
        raise ProtocolError(
            f"delta-rs cannot read the table's schema: {str(error)[:300]}",
            suggestion="read an older version of the table, or have its writer mend the schema",
        ) from error


def arrow_schema(schema_string: str, *, large: bool = False) -> pa.Schema:
    """The Arrow schema of a table, as delta-rs itself gives it."""
    return pa.schema(stock_schema(schema_string).to_arrow(as_large_types=large))
