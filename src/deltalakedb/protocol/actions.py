"""The actions of a Delta log as frozen values that lose nothing in a round trip.

Every action keeps the fields that nobody here knows in ``extra`` and gives them back in ``to_dict``. Numbers
that a float cannot hold arrive as exact values from the codec (`protocol.codec`) and leave unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypeAlias, cast

from deltalakedb.exceptions import ProtocolError

JsonDict: TypeAlias = dict[str, Any]

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """Shared by all values: JSON field names, unknown fields, and which fields a value must have."""

    extra: Mapping[str, Any] = field(default_factory=dict)

    #: attribute -> name in the log's JSON
    _names: ClassVar[Mapping[str, str]] = _NOTHING
    #: attributes that are written even when null
    _always: ClassVar[frozenset[str]] = frozenset()
    #: attributes without which the value is meaningless
    _required: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the value from the JSON object inside an action; unknown fields go to ``extra``."""
        known, rest = {}, {}
        by_json = {json: attr for attr, json in cls._names.items()}
        for key, value in data.items():
            if (attr := by_json.get(key)) is None:
                rest[key] = value
            else:
                known[attr] = cls._read(attr, value)
        missing = [cls._names[a] for a in cls._required if known.get(a) is None]
        if missing:
            raise ProtocolError(f"{cls.__name__} action lacks {', '.join(sorted(missing))}")
        return cls(**{k: v for k, v in known.items() if v is not None}, extra=rest)

    def to_dict(self) -> JsonDict:
        """The JSON object inside the action: known fields in the protocol's order, then unknown ones."""
        out: JsonDict = {}
        for attr, json in self._names.items():
            value = getattr(self, attr)
            if value is None and attr not in self._always:
                continue
            out[json] = value.to_dict() if isinstance(value, _Fields) else _plain(value)
        out.update(self.extra)
        return out

    @classmethod
    def _read(cls, attr: str, value: Any) -> Any:  # noqa: ARG003 - overridden where a field is a value itself
        return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector(_Fields):
    """Where a file's deleted rows are listed: inline (``i``), beside the data (``u``) or at a path (``p``)."""

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
class _FileAction(_Fields):
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

    @classmethod
    def _read(cls, attr: str, value: Any) -> Any:
        if attr == "deletion_vector" and value is not None:
            return DeletionVector.from_dict(value)
        return value


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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As in the base; old writers leave out fields that readers must then default."""
        return cast(
            Self, super(Add, cls).from_dict({"modificationTime": 0, "dataChange": True, **data})
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(_Fields):
    """The data files' format: Parquet, for every table of today."""

    provider: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)

    _names = {"provider": "provider", "options": "options"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata(_Fields):
    """A table's identity, schema, partition columns and properties."""

    id: str
    name: str | None = None
    description: str | None = None
    format: Format = field(default_factory=Format)
    schema_string: str
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
    _required = frozenset({"id", "schema_string"})

    @classmethod
    def _read(cls, attr: str, value: Any) -> Any:
        if attr == "format" and value is not None:
            return Format.from_dict(value)
        if attr == "partition_columns" and value is not None:
            return tuple(value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(_Fields):
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
class Txn(_Fields):
    """An application's own version, for idempotent writes."""

    app_id: str
    version: int
    last_updated: int | None = None

    _names = {"app_id": "appId", "version": "version", "last_updated": "lastUpdated"}
    _required = frozenset({"app_id", "version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainMetadata(_Fields):
    """A named piece of configuration that belongs to a feature or an application."""

    domain: str
    configuration: str = ""
    removed: bool = False

    _names = {"domain": "domain", "configuration": "configuration", "removed": "removed"}
    _required = frozenset({"domain"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdc(_Fields):
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
class CommitInfo(_Fields):
    """Provenance of a commit: free-form by the protocol, so every field lives in ``extra``."""

    @property
    def operation(self) -> str | None:
        """What the writer says it did."""
        return cast(str | None, self.extra.get("operation"))

    @property
    def timestamp(self) -> int | None:
        """The writer's clock in epoch milliseconds."""
        value = self.extra.get("timestamp")
        return value if isinstance(value, int) else None

    @property
    def in_commit_timestamp(self) -> int | None:
        """The commit's own time, where the table has in-commit timestamps."""
        value = self.extra.get("inCommitTimestamp")
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar(_Fields):
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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As in the base, with readers' defaults."""
        return cast(
            Self, super(Sidecar, cls).from_dict({"sizeInBytes": 0, "modificationTime": 0, **data})
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata(_Fields):
    """The first line of a V2 checkpoint."""

    version: int
    tags: Mapping[str, str | None] | None = None

    _names = {"version": "version", "tags": "tags"}
    _required = frozenset({"version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownAction(_Fields):
    """An action kind that nobody here knows: kept whole, ignored by replay."""

    kind: str
    value: Any = None


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
KINDS: Mapping[str, type[_Fields]] = {
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


def action_from_dict(line: Mapping[str, Any]) -> Action | None:
    """The action in one log line, or None for a line that holds none (``{}`` or only nulls)."""
    for kind, value in line.items():
        if value is None:
            continue
        if (cls := KINDS.get(kind)) is None:
            return UnknownAction(kind=kind, value=value)
        if not isinstance(value, Mapping):
            raise ProtocolError(f"a {kind} action must be an object, not {type(value).__name__}")
        return cast(Action, cls.from_dict(value))
    return None


def action_to_dict(action: Action) -> JsonDict:
    """One log line as a JSON object."""
    if isinstance(action, UnknownAction):
        return {action.kind: action.value}
    return {_KIND_OF[type(action)]: action.to_dict()}


def kind_of(action: Action) -> str:
    """The action's kind as the log spells it."""
    return action.kind if isinstance(action, UnknownAction) else _KIND_OF[type(action)]


assert all({f.name for f in fields(c)} - {"extra"} == set(c._names) for c in KINDS.values())  # noqa: S101
