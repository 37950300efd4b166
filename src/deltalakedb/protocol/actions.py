"""The actions of a Delta log as frozen values that lose nothing in a round trip.

Every action keeps the fields that nobody here knows in ``extra`` and gives them back in ``to_dict``. Numbers
that a float cannot hold arrive as exact values from the codec (`protocol.codec`) and leave unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias, cast

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.fields import Fields, JsonDict, nested
from deltalakedb.protocol.json_text import decode_json


@nested
@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector(Fields):
    """Where a file's deleted rows are listed: inline (``i``), beside the data (``u``), at a path (``p``)."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None

    _names = {
        "storage_type": "storageType",
        "path_or_inline_dv": "pathOrInlineDv",
        "offset": "offset",
        "size_in_bytes": "sizeInBytes",
        "cardinality": "cardinality",
    }
    _required = frozenset({"storage_type", "path_or_inline_dv", "size_in_bytes", "cardinality"})

    @property
    def unique_id(self) -> str:
        """The id that, with the path, identifies a logical file."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileAction(Fields):
    path: str
    deletion_vector: DeletionVector | None = None

    @property
    def dv_id(self) -> str:
        """The deletion vector's unique id, or an empty string."""
        return "" if self.deletion_vector is None else self.deletion_vector.unique_id

    @property
    def key(self) -> tuple[str, str]:
        """What identifies a logical file: its path as written in the log, and its deletion vector."""
        return self.path, self.dv_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(_FileAction):
    """A data file that belongs to the table from this version on."""

    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    tags: Mapping[str, str | None] | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    clustering_provider: str | None = None

    _names = {
        "path": "path",
        "partition_values": "partitionValues",
        "size": "size",
        "modification_time": "modificationTime",
        "data_change": "dataChange",
        "stats": "stats",
        "tags": "tags",
        "deletion_vector": "deletionVector",
        "base_row_id": "baseRowId",
        "default_row_commit_version": "defaultRowCommitVersion",
        "clustering_provider": "clusteringProvider",
    }
    _required = frozenset({"path", "size"})
    #: old writers leave these out
    _assumed = {"modification_time": 0, "data_change": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove(_FileAction):
    """A data file that no longer belongs to the table; kept as a tombstone until its retention ends."""

    deletion_timestamp: int | None = None
    data_change: bool = True
    extended_file_metadata: bool | None = None
    partition_values: Mapping[str, str | None] | None = None
    size: int | None = None
    stats: str | None = None
    tags: Mapping[str, str | None] | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None

    _names = {
        "path": "path",
        "deletion_timestamp": "deletionTimestamp",
        "data_change": "dataChange",
        "extended_file_metadata": "extendedFileMetadata",
        "partition_values": "partitionValues",
        "size": "size",
        "stats": "stats",
        "tags": "tags",
        "deletion_vector": "deletionVector",
        "base_row_id": "baseRowId",
        "default_row_commit_version": "defaultRowCommitVersion",
    }
    _required = frozenset({"path"})


@nested
@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Fields):
    """The data files' format: Parquet, for every table of today."""

    provider: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)

    _names = {"provider": "provider", "options": "options"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata(Fields):
    """A table's identity, schema, partition columns and properties.

    Some pipelines set a table up before they know its schema: ``schema_string`` is empty until then.
    """

    id: str
    name: str | None = None
    description: str | None = None
    format: Format = field(default_factory=Format)
    schema_string: str = ""
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str | None] = field(default_factory=dict)
    created_time: int | None = None

    _names = {
        "id": "id",
        "name": "name",
        "description": "description",
        "format": "format",
        "schema_string": "schemaString",
        "partition_columns": "partitionColumns",
        "created_time": "createdTime",
        "configuration": "configuration",
    }
    _required = frozenset({"id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(Fields):
    """What a reader and a writer must know to touch the table."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    _names = {
        "min_reader_version": "minReaderVersion",
        "min_writer_version": "minWriterVersion",
        "reader_features": "readerFeatures",
        "writer_features": "writerFeatures",
    }
    _required = frozenset({"min_reader_version", "min_writer_version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn(Fields):
    """An application's own version, for idempotent writes."""

    app_id: str
    version: int
    last_updated: int | None = None

    _names = {"app_id": "appId", "version": "version", "last_updated": "lastUpdated"}
    _required = frozenset({"app_id", "version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainMetadata(Fields):
    """A named piece of configuration that belongs to a feature or an application."""

    domain: str
    configuration: str = ""
    removed: bool = False

    _names = {"domain": "domain", "configuration": "configuration", "removed": "removed"}
    _required = frozenset({"domain"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdc(Fields):
    """A change data file."""

    path: str
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    size: int
    data_change: bool = False
    tags: Mapping[str, str | None] | None = None

    _names = {
        "path": "path",
        "partition_values": "partitionValues",
        "size": "size",
        "data_change": "dataChange",
        "tags": "tags",
    }
    _required = frozenset({"path", "size"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo(Fields):
    """Provenance of a commit: free-form by the protocol, so every field lives in ``extra``."""

    @property
    def operation(self) -> str | None:
        """What the writer says it did."""
        value = self.extra.get("operation")
        return value if isinstance(value, str) else None

    @property
    def timestamp(self) -> int | None:
        """The writer's clock in epoch milliseconds."""
        return _whole(self.extra.get("timestamp"))

    @property
    def in_commit_timestamp(self) -> int | None:
        """The commit's own time, where the table has in-commit timestamps."""
        return _whole(self.extra.get("inCommitTimestamp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar(Fields):
    """A part of a V2 checkpoint that lies in ``_sidecars``."""

    path: str
    size_in_bytes: int
    modification_time: int
    tags: Mapping[str, str | None] | None = None

    _names = {
        "path": "path",
        "size_in_bytes": "sizeInBytes",
        "modification_time": "modificationTime",
        "tags": "tags",
    }
    _required = frozenset({"path"})
    _assumed = {"size_in_bytes": 0, "modification_time": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata(Fields):
    """The first line of a V2 checkpoint."""

    version: int
    tags: Mapping[str, str | None] | None = None

    _names = {"version": "version", "tags": "tags"}
    _required = frozenset({"version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownAction(Fields):
    """An action kind that nobody here knows: kept whole, ignored by replay."""

    kind: str
    value: Any = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The action from a log line, which has one key: its kind."""
        if len(data) != 1:
            raise ProtocolError(f"a line holds one action, not {len(data)}")
        ((kind, value),) = data.items()
        return cls(kind=kind, value=value)

    def to_dict(self) -> JsonDict:
        """The whole log line: without its kind, nobody could tell what it is."""
        return {self.kind: self.value}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


Action: TypeAlias = (
    Add
    | Remove
    | Metadata
    | Protocol
    | Txn
    | DomainMetadata
    | Cdc
    | CommitInfo
    | Sidecar
    | CheckpointMetadata
    | UnknownAction
)

#: action kind in the log -> its class
KINDS: Mapping[str, type[Fields]] = {
    "add": Add,
    "remove": Remove,
    "metaData": Metadata,
    "protocol": Protocol,
    "txn": Txn,
    "domainMetadata": DomainMetadata,
    "cdc": Cdc,
    "commitInfo": CommitInfo,
    "sidecar": Sidecar,
    "checkpointMetadata": CheckpointMetadata,
}
_KIND_OF = {cls: kind for kind, cls in KINDS.items()}


def action_from_dict(line: Mapping[str, Any], warn: Callable[[str], None] | None = None) -> Action | None:
    """The action in one log line, or None for a line that holds none (``{}`` or only nulls).

    Args:
        line: The line.
        warn: Called with the unknown keys that stand beside the action.

    Raises:
        ProtocolError: The action is malformed, or the line holds more than one that is known.
    """
    present = [item for item in line.items() if item[1] is not None]
    if not present:
        return None
    if len(present) > 1:
        # other engines read the action that they know and pass over the rest
        known = [item for item in present if item[0] in KINDS]
        if len(known) > 1:
            kinds = ", ".join(kind for kind, _ in known)
            raise ProtocolError(f"a line holds one action, not {len(known)}: {kinds}")
        present = known or present
        if warn is not None:
            warn(", ".join(sorted(kind for kind, _ in line.items() if kind != present[0][0])))
    kind, value = present[0]
    if (cls := KINDS.get(kind)) is None:
        return UnknownAction(kind=kind, value=value)
    if type(value) is not dict and not isinstance(value, Mapping):
        raise ProtocolError(f"a {kind} action must be an object, not {type(value).__name__}")
    return cast("Action", cls.from_dict(value))


def action_to_dict(action: Action) -> JsonDict:
    """One log line as a JSON object."""
    if isinstance(action, UnknownAction):
        return action.to_dict()
    return {_KIND_OF[type(action)]: action.to_dict()}


def meaning(action: Fields) -> JsonDict:
    """An action as plain data that is the same for every spelling of the same state.

    Checkpoints spell states anew: the schema's JSON and the lists of features in another order, without
    fields that their writer does not know, and with empty values for missing ones.
    """
    out = {
        name: value
        for name, value in replace(action, extra={}).to_dict().items()
        if value is not None and value not in ({}, [], "")
    }
    if isinstance(action, Metadata):
        out["schemaString"] = _parsed(action.schema_string)
        out["configuration"] = {k: v for k, v in action.configuration.items() if v is not None}
        out["format"] = (action.format.provider, dict(action.format.options))
    elif isinstance(action, Protocol):
        out["readerFeatures"] = frozenset(action.reader_features or ())
        out["writerFeatures"] = frozenset(action.writer_features or ())
    elif isinstance(action, Txn):
        out.pop("lastUpdated", None)
    elif isinstance(action, DomainMetadata):
        out["configuration"] = _parsed(action.configuration)
    return out


def meaning_of(kind: str, data: JsonDict) -> JsonDict:
    """The same of an action as plain data; one that is malformed means itself."""
    try:
        return meaning(KINDS[kind].from_dict(data))
    except ProtocolError:
        return data


def _parsed(text: str) -> Any:
    try:
        return decode_json(text)
    except LogCorruptError:
        return text


def kind_of(action: Action) -> str:
    """The action's kind as the log spells it."""
    return action.kind if isinstance(action, UnknownAction) else _KIND_OF[type(action)]
