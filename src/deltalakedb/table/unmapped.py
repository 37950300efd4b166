"""Tables with column mapping as their files know them: physical names, with the ids that Parquet carries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.features import without_features
from deltalakedb.protocol.properties import STATS_COLUMNS, mapping_mode
from deltalakedb.protocol.schema import (
    ArrayType,
    MapType,
    StructField,
    StructType,
    parse_schema,
)
from deltalakedb.protocol.stats import column_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.protocol.actions import Action, Metadata, Protocol
    from deltalakedb.protocol.schema import DataType
    from deltalakedb.protocol.txn_log import Snapshot

#: the field metadata that delta-rs writes into Parquet as the field's id
_PARQUET_ID: Final = "parquet.field.id"
#: properties and field metadata that speak of logical names; no row changes, so none needs to be checked
_LOGICAL: Final = (
    "delta.columnMapping.",
    "delta.constraints.",
    "delta.generationExpression",
    "delta.invariants",
)


def is_mapped(metadata: Metadata) -> bool:
    """Whether columns have other names in files than in the schema."""
    return mapping_mode(metadata) != "none"


class Unmapped:
    """A mapped table without its mapping, for operations that rewrite files and change no row.

    Statistics and partition values name columns physically in a mapped table's log, and so does everything
    that delta-rs makes of this one.

    Args:
        snapshot: The mapped table.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        metadata = snapshot.metadata
        schema = parse_schema(metadata.schema_string)
        self._physical = {f.name: f.physical_name for f in schema.fields}
        configuration = {k: v for k, v in metadata.configuration.items() if not k.startswith(_LOGICAL)}
        if columns := configuration.get(STATS_COLUMNS):
            configuration[STATS_COLUMNS] = ",".join(_physical_path(c, schema) for c in column_names(columns))
        plain = replace(
            metadata,
            schema_string=_struct(schema).to_json(),
            partition_columns=tuple(self.names(metadata.partition_columns)),
            configuration=configuration,
        )
        self.snapshot: Snapshot = replace(
            snapshot, metadata=plain, protocol=_without_mapping(snapshot.protocol)
        )

    def names(self, columns: Sequence[Any]) -> list[Any]:
        """Columns by their physical names; what is no column stays what it is."""
        return [self._physical.get(c, c) if isinstance(c, str) else c for c in columns]

    def filters(self, filters: Any) -> Any:
        """Partition filters with physical names."""
        if not isinstance(filters, list):
            return filters
        return [
            (*self.names(f[:1]), *f[1:]) if isinstance(f, tuple) and f else self.filters(f) for f in filters
        ]

    def told(self, action: Action) -> Action:
        """What delta-rs says of its work, with the names that users know."""
        if not isinstance(action, CommitInfo) or "operationParameters" not in action.extra:
            return action
        told = {k: self._logical(v) for k, v in action.extra["operationParameters"].items()}
        return replace(action, extra={**action.extra, "operationParameters": told})

    def _logical(self, value: Any) -> Any:
        if isinstance(value, str):
            for name, physical in self._physical.items():
                value = value.replace(physical, name)
        return value


def _without_mapping(protocol: Protocol) -> Protocol:
    if protocol.writer_features is None:
        # before features had names, reader version 2 and writer version 5 stood for this one
        return replace(protocol, min_reader_version=1, min_writer_version=min(protocol.min_writer_version, 4))
    return without_features(protocol, ("columnMapping",))


def _struct(struct: StructType) -> StructType:
    return replace(struct, fields=tuple(map(_field, struct.fields)))


def _field(field: StructField) -> StructField:
    metadata = {k: v for k, v in field.metadata.items() if not k.startswith(_LOGICAL)}
    if field.field_id is not None:
        metadata[_PARQUET_ID] = field.field_id
    return replace(field, name=field.physical_name, type=_type(field.type), metadata=metadata)


def _type(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return replace(kind, element_type=_type(kind.element_type))
    if isinstance(kind, MapType):
        return replace(kind, key_type=_type(kind.key_type), value_type=_type(kind.value_type))
    return kind


def _physical_path(column: tuple[str, ...], schema: StructType) -> str:
    """A column of a list of columns, perhaps inside structs."""
    here: DataType | None = schema
    out = []
    for part in column:
        field = here.field(part) if isinstance(here, StructType) else None
        out.append(part if field is None else field.physical_name)
        here = None if field is None else field.type
    return ".".join(p if p.isidentifier() else f"`{p.replace('`', '``')}`" for p in out)
