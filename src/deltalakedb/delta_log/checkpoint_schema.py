"""The columns of a checkpoint: one struct an action kind, statistics as text, as typed columns, or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.schema import Leaf, StructField, parse_schema
from deltalakedb.protocol.stats import stats_leaves
from deltalakedb.protocol.stats_columns import type_tree

if TYPE_CHECKING:
    from deltalakedb.protocol.actions import Metadata, Protocol

STATS_AS_JSON = "delta.checkpoint.writeStatsAsJson"
STATS_AS_STRUCT = "delta.checkpoint.writeStatsAsStruct"
#: types whose bounds no writer records, or no reader uses
_UNORDERED = {"binary", "boolean", "variant"}

_TEXT = pa.string()
_LONG = pa.int64()
STRING_MAP = pa.map_(_TEXT, _TEXT)
_TEXTS = pa.list_(_TEXT)

DELETION_VECTOR = pa.struct(
    [
        ("storageType", _TEXT),
        ("pathOrInlineDv", _TEXT),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", _LONG),
    ]
)
REMOVE = pa.struct(
    [
        ("path", _TEXT),
        ("deletionTimestamp", _LONG),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", STRING_MAP),
        ("size", _LONG),
        ("deletionVector", DELETION_VECTOR),
        ("baseRowId", _LONG),
        ("defaultRowCommitVersion", _LONG),
    ]
)
METADATA = pa.struct(
    [
        ("id", _TEXT),
        ("name", _TEXT),
        ("description", _TEXT),
        ("format", pa.struct([("provider", _TEXT), ("options", STRING_MAP)])),
        ("schemaString", _TEXT),
        ("partitionColumns", _TEXTS),
        ("configuration", STRING_MAP),
        ("createdTime", _LONG),
    ]
)
PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", _TEXTS),
        ("writerFeatures", _TEXTS),
    ]
)
TXN = pa.struct([("appId", _TEXT), ("version", _LONG), ("lastUpdated", _LONG)])
DOMAIN = pa.struct([("domain", _TEXT), ("configuration", _TEXT), ("removed", pa.bool_())])
CHECKPOINT_METADATA = pa.struct([("version", _LONG), ("tags", STRING_MAP)])
SIDECAR = pa.struct(
    [("path", _TEXT), ("sizeInBytes", _LONG), ("modificationTime", _LONG), ("tags", STRING_MAP)]
)


@dataclass(frozen=True)
class CheckpointSchema:
    """What the files of one checkpoint hold, and which of a table's columns have statistics there.

    Attributes:
        stats_as_json: Whether an add has its statistics as text.
        counted: Columns with a null count in ``stats_parsed``; empty where there is no such column.
        bounded: Those of them that have a minimum and a maximum.
        partitions: Columns of ``partitionValues_parsed``.
        tight_bounds: Whether ``stats_parsed`` tells if bounds are tight.
        as_struct: Whether there is a ``stats_parsed``.
    """

    stats_as_json: bool
    as_struct: bool
    counted: tuple[Leaf, ...]
    bounded: tuple[Leaf, ...]
    partitions: tuple[StructField, ...]
    tight_bounds: bool

    @property
    def stats_parsed(self) -> pa.StructType:
        """The type of ``add.stats_parsed``."""
        bounds = type_tree({leaf.physical_path: arrow_type(leaf.type) for leaf in self.bounded})
        counts = type_tree({leaf.physical_path: _LONG for leaf in self.counted})
        groups = [("minValues", bounds), ("maxValues", bounds), ("nullCount", counts)]
        fields = [("numRecords", _LONG), *((n, t) for n, t in groups if t.num_fields)]
        return pa.struct(fields + ([("tightBounds", pa.bool_())] if self.tight_bounds else []))

    @property
    def partitions_parsed(self) -> pa.StructType:
        """The type of ``add.partitionValues_parsed``."""
        return pa.struct([(f.physical_name, arrow_type(f.type) or _TEXT) for f in self.partitions])

    @property
    def add(self) -> pa.StructType:
        """The type of an add."""
        fields = [
            ("path", _TEXT),
            ("partitionValues", STRING_MAP),
            ("size", _LONG),
            ("modificationTime", _LONG),
            ("dataChange", pa.bool_()),
            ("tags", STRING_MAP),
            ("deletionVector", DELETION_VECTOR),
            ("baseRowId", _LONG),
            ("defaultRowCommitVersion", _LONG),
            ("clusteringProvider", _TEXT),
        ]
        if self.stats_as_json:
            fields.append(("stats", _TEXT))
        if self.partitions:
            fields.append(("partitionValues_parsed", self.partitions_parsed))
        if self.as_struct:
            fields.append(("stats_parsed", self.stats_parsed))
        return pa.struct(fields)

    def classic(self) -> pa.Schema:
        """The columns of a classic checkpoint and of each part of a multi-part one."""
        return pa.schema(
            [
                ("txn", TXN),
                ("add", self.add),
                ("remove", REMOVE),
                ("metaData", METADATA),
                ("protocol", PROTOCOL),
                ("domainMetadata", DOMAIN),
            ]
        )

    def top_level(self) -> pa.Schema:
        """The columns of a V2 checkpoint's own file; its files' actions all lie in sidecars."""
        return pa.schema([*self.classic(), ("checkpointMetadata", CHECKPOINT_METADATA), ("sidecar", SIDECAR)])

    def sidecar(self) -> pa.Schema:
        """The columns of a sidecar."""
        return pa.schema([("add", self.add), ("remove", REMOVE)])


def checkpoint_schema(
    metadata: Metadata, protocol: Protocol, *, stats_as_json: bool, stats_as_struct: bool
) -> CheckpointSchema:
    """The columns of a table's checkpoints.

    Raises:
        ProtocolError: The table's schema cannot be read.
    """
    if not stats_as_struct:
        return CheckpointSchema(stats_as_json, False, (), (), (), False)
    schema = parse_schema(metadata.schema_string)
    found = (schema.field(name) for name in metadata.partition_columns)
    counted = tuple(stats_leaves(schema, metadata.partition_columns, metadata.configuration))
    return CheckpointSchema(
        stats_as_json,
        True,
        counted,
        tuple(x for x in counted if str(x.type) not in _UNORDERED and arrow_type(x.type) is not None),
        tuple(f for f in found if f is not None),
        "deletionVectors" in (protocol.writer_features or ()),
    )


def wants(metadata: Metadata, name: str, *, default: bool) -> bool:
    """A property that is true or false."""
    text = (metadata.configuration.get(name) or "").strip().lower()
    return default if text not in ("true", "false") else text == "true"
