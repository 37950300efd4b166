"""A table's schema in Arrow, the way delta-rs maps it."""

from __future__ import annotations

import deltalake
import pyarrow as pa


def arrow_schema(schema_string: str, *, large: bool = False) -> pa.Schema:
    """The Arrow schema of a table, as delta-rs itself gives it."""
    schema = deltalake.Schema.from_json(schema_string)
    return pa.schema(schema.to_arrow(as_large_types=large))
