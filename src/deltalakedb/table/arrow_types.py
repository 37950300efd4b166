"""Delta types as Arrow types, the way delta-rs maps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa

from deltalakedb.protocol.schema import PrimitiveType

if TYPE_CHECKING:
    from deltalakedb.protocol.schema import DataType

_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_type(kind: DataType) -> pa.DataType | None:
    """The Arrow type of a primitive Delta type; None for what has no simple one."""
    if not isinstance(kind, PrimitiveType):
        return None
    if (decimal := kind.decimal) is not None:
        return pa.decimal128(*decimal)
    return _PRIMITIVES.get(kind.name)


def arrow_schema(schema_string: str, *, large: bool = False) -> pa.Schema:
    """The Arrow schema of a table, as delta-rs itself gives it."""
    schema = deltalake.Schema.from_json(schema_string)
    return pa.schema(schema.to_arrow(as_large_types=large))
