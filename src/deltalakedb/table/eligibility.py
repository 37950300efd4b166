"""Whether an append may be written directly; whatever is not certain goes through delta-rs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.protocol.actions import Protocol
from deltalakedb.protocol.features import check_writable, reader_features, writer_features
from deltalakedb.protocol.properties import MAPPING_MODE
from deltalakedb.protocol.schema import ArrayType, MapType, StructType, parse_schema
from deltalakedb.table.parquet_options import parquet_options
from deltalakedb.table.write_plan import casts_for, plan_for

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa

    from deltalakedb.protocol.schema import DataType
    from deltalakedb.protocol.txn_log import Snapshot

__all__ = ["eligible"]

#: features that ask nothing of an append, or only what is checked below
_KNOWN: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
#: what a writer must compute or check by itself
_RULES: Final = ("delta.constraints.", "delta.invariants")
_MAPPING: Final = "delta.columnMapping."
#: options that say nothing about data files, and those that are looked at here
_SILENT: Final = frozenset({"commit_properties", "post_commithook_properties", "storage_options", "mode"})
_READ: Final = frozenset({"partition_by", "target_file_size", "writer_properties"})


def eligible(
    snapshot: Snapshot,
    arrow_schema: pa.Schema,
    options: Mapping[str, Any] | None = None,
    *,
    also: Collection[str] = (),
) -> str | None:
    """Why an append cannot be written directly, or None where it can.

    Args:
        snapshot: The table.
        arrow_schema: The data's schema.
        options: The arguments of ``write_deltalake``, by name; those that are None do not count.
        also: Writer features that the caller takes care of in the commit, such as ``rowTracking``.

    Example:
        >>> eligible(snapshot, data.schema, {"schema_mode": "merge"})  # doctest: +SKIP
        'the option schema_mode is set'
    """
    metadata, protocol = snapshot.metadata, snapshot.protocol
    if options and (reason := _options(options, metadata.partition_columns)) is not None:
        return reason
    for key, value in metadata.configuration.items():
        if key.startswith(_RULES):
            return f"the table has the rule {key}"
        if key == MAPPING_MODE and value not in (None, "none"):
            return "the table has column mapping"
    if metadata.format.provider != "parquet":
        return f"the table's files are {metadata.format.provider}"
    reason = _protocol(
        protocol.min_reader_version,
        protocol.min_writer_version,
        protocol.reader_features,
        protocol.writer_features,
        frozenset(also),
    ) or _schema(metadata.schema_string)
    if reason is not None:
        return reason
    plan = plan_for(metadata)
    if isinstance(plan, str):
        return plan
    casts = casts_for(metadata, arrow_schema)
    return casts if isinstance(casts, str) else None


def _options(options: Mapping[str, Any], partitioned_by: tuple[str, ...]) -> str | None:
    for name, value in options.items():
        if value is not None and name not in _SILENT and name not in _READ:
            return f"the option {name} is set"
    named = options.get("partition_by")
    if named is not None and ((named,) if isinstance(named, str) else tuple(named)) != partitioned_by:
        return "the option partition_by differs from the table"
    size = options.get("target_file_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        return f"the option target_file_size is {size!r}"
    made = parquet_options(options.get("writer_properties"))
    return f"the writer properties ask for {made}" if isinstance(made, str) else None


@lru_cache(maxsize=128)
def _protocol(
    reader: int,
    writer: int,
    readers: tuple[str, ...] | None,
    writers: tuple[str, ...] | None,
    also: frozenset[str],
) -> str | None:
    protocol = Protocol(
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=readers,
        writer_features=writers,
    )
    needed = writer_features(protocol) | reader_features(protocol)
    if unknown := needed - _KNOWN - also:
        return f"the table needs {', '.join(sorted(unknown))}"
    try:
        check_writable(protocol, also=also | {"identityColumns"})
    except DeltaSqlError as e:
        return e.message
    return None


@lru_cache(maxsize=256)
def _schema(schema_string: str) -> str | None:
    return _rules(parse_schema(schema_string), top=True)


def _rules(kind: DataType, *, top: bool = False) -> str | None:
    """What a type asks of its writer beyond its values: generated or identity columns, inner NOT NULLs."""
    if isinstance(kind, ArrayType):
        return "an array refuses nulls" if not kind.contains_null else _rules(kind.element_type)
    if isinstance(kind, MapType):
        if not kind.value_contains_null:
            return "a map refuses null values"
        return _rules(kind.key_type) or _rules(kind.value_type)
    if not isinstance(kind, StructType):
        return None
    for f in kind.fields:
        if not f.nullable and not top:
            return f"the nested field {f.name!r} refuses nulls"
        for key in f.metadata:
            if key.startswith("delta.") and not key.startswith(_MAPPING):
                return f"the column {f.name!r} has {key}"
        if (reason := _rules(f.type)) is not None:
            return reason
    return None
