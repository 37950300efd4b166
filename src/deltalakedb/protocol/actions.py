"""The actions of a Delta log as frozen values that lose nothing in a round trip.

Fields are declared in the order in which the log has them; their JSON names are the same in camel case.
Unknown fields are kept in ``extra`` and written again by ``to_dict``. Numbers that a float cannot hold
arrive as exact values (`protocol.json_text`) and leave unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, lru_cache, partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NamedTuple,
    Self,
    TypeAlias,
    cast,
    get_args,
    get_type_hints,
)

import msgspec

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.json_text import JsonValue, decode_json, json_bytes
from deltalakedb.protocol.paths import canonical_path

logger = logging.getLogger(__name__)

JsonDict: TypeAlias = dict[str, Any]
StringMap: TypeAlias = Mapping[str, str | None]
#: canonical path and deletion vector id: what identifies a logical file
FileKey: TypeAlias = tuple[str, str]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStruct(JsonValue):
    """A JSON object of the log: fields with a default may be missing, unknown ones are kept."""

    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the value from a JSON object; a null counts as missing. ProtocolError if it is malformed."""
        shape = _shape(cls)
        names = shape.attributes
        known = {names[name]: value for name, value in data.items() if name in names and value is not None}
        for attribute, kind in shape.nested:
            if attribute in known and (inner := _nested(kind, known.pop(attribute), attribute)) is not None:
                known[attribute] = inner
        try:
            found = msgspec.convert(known, cls)
        except msgspec.ValidationError:
            found = _convert_leniently(known, cls)
        if not data.keys() <= names.keys():
            extra = {name: value for name, value in data.items() if name not in names}
            object.__setattr__(found, "extra", extra)
        return found

    def to_dict(self) -> JsonDict:
        """The JSON object: known fields in the protocol's order, then unknown ones."""
        out: JsonDict = {}
        for name, attribute in _shape(type(self)).attributes.items():
            if (value := getattr(self, attribute)) is not None:
                kind = type(value)
                out[name] = value if kind is str or kind is int or kind is bool else _plain(value)
        out.update(self.extra)
        return out


class _Shape(NamedTuple):
    """How a class is read and written."""

    #: name in the JSON -> attribute
    attributes: Mapping[str, str]
    nested: tuple[tuple[str, type[LogStruct]], ...]
    maps: frozenset[str]
    integers: frozenset[str]
    required: frozenset[str]


def _shape_of(cls: type[LogStruct]) -> _Shape:
    own = [f for f in fields(cls) if f.name != "extra"]
    hints = get_type_hints(cls, include_extras=True)
    # the type itself, and those that an optional one may have
    types = {f.name: (hints[f.name], *get_args(hints[f.name])) for f in own}
    return _Shape(
        {_camel(f.name): f.name for f in own},
        tuple(
            (name, kind)
            for name, kinds in types.items()
            for kind in kinds
            if isinstance(kind, type) and issubclass(kind, LogStruct)
        ),
        frozenset(name for name, kinds in types.items() if StringMap in kinds),
        frozenset(name for name, kinds in types.items() if Int64 in kinds),
        frozenset(f.name for f in own if f.default is MISSING and f.default_factory is MISSING),
    )


_shape: Callable[[Any], _Shape] = cache(_shape_of)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _nested(kind: type[LogStruct], value: Any, attribute: str) -> LogStruct | None:
    if not isinstance(value, Mapping):
        raise ProtocolError(f"{_camel(attribute)} must be an object, not {type(value).__name__}")
    # Parquet readers may give a struct of nulls for a null struct
    return None if value and all(v is None for v in value.values()) else kind.from_dict(value)


def _convert_leniently(known: JsonDict, cls: type[LogStruct]) -> Any:
    """Accept what some writers and Parquet readers give: 1.0 for 1, and maps as pairs or of scalars."""
    shape = _shape(cls)
    if missing := shape.required - known.keys():
        raise ProtocolError(f"{cls.__name__} lacks {', '.join(sorted(map(_camel, missing)))}")
    try:
        for attribute in known.keys() & shape.integers:
            value = known[attribute]
            if isinstance(value, float) and value.is_integer():
                known[attribute] = int(value)
        for attribute in known.keys() & shape.maps:
            known[attribute] = {key: _scalar_text(value) for key, value in dict(known[attribute]).items()}
        return msgspec.convert(known, cls)
    except (msgspec.ValidationError, TypeError, ValueError) as e:
        raise ProtocolError(f"{cls.__name__}: {e}") from None


def _scalar_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else value


def _plain(value: Any) -> Any:
    if isinstance(value, LogStruct):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector(LogStruct):
    """Where a file's deleted rows are listed: inline (``i``), beside the data (``u``), at a path (``p``)."""

    storage_type: str
    path_or_inline_dv: str
    offset: Int64 | None = None
    size_in_bytes: Int64
    cardinality: Int64

    @property
    def unique_id(self) -> str:
        """The id that, with the path, identifies a logical file."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileAction(LogStruct):
    path: str
    if TYPE_CHECKING:  # at another place in each kind of action
        deletion_vector: DeletionVector | None

    @property
    def dv_id(self) -> str:
        """The deletion vector's unique id, or an empty string."""
        return "" if self.deletion_vector is None else self.deletion_vector.unique_id

    @property
    def key(self) -> FileKey:
        """What identifies a logical file: its canonical path, however the log spells it, and its vector."""
        return canonical_path(self.path), self.dv_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(_FileAction):
    """A data file that belongs to the table from this version on."""

    partition_values: StringMap = field(default_factory=dict)
    size: Int64
    #: old writers leave this and the next one out
    modification_time: Int64 = 0
    data_change: bool = True
    stats: str | None = None
    tags: StringMap | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Int64 | None = None
    default_row_commit_version: Int64 | None = None
    clustering_provider: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove(_FileAction):
    """A data file that no longer belongs to the table; kept as a tombstone until its retention ends."""

    deletion_timestamp: Int64 | None = None
    data_change: bool = True
    extended_file_metadata: bool | None = None
    partition_values: StringMap | None = None
    size: Int64 | None = None
    stats: str | None = None
    tags: StringMap | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Int64 | None = None
    default_row_commit_version: Int64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(LogStruct):
    """The data files' format: Parquet, for every table of today."""

    provider: str = "parquet"
    options: StringMap = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata(LogStruct):
    """A table's identity, schema, partition columns and properties.

    Some pipelines set a table up before they know its schema: ``schema_string`` is empty until then.
    """

    id: str
    name: str | None = None
    description: str | None = None
    format: Format = field(default_factory=Format)
    schema_string: str = ""
    partition_columns: tuple[str, ...] = ()
    created_time: Int64 | None = None
    configuration: StringMap = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(LogStruct):
    """What a reader and a writer must know to touch the table."""

    min_reader_version: Int64
    min_writer_version: Int64
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn(LogStruct):
    """An application's own version, for idempotent writes."""

    app_id: str
    version: Int64
    last_updated: Int64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainMetadata(LogStruct):
    """A named piece of configuration that belongs to a feature or an application."""

    domain: str
    configuration: str = ""
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdc(LogStruct):
    """A change data file."""

    path: str
    partition_values: StringMap = field(default_factory=dict)
    size: Int64
    data_change: bool = False
    tags: StringMap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo(LogStruct):
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
        """The commit's own time, if the table has in-commit timestamps."""
        return _whole(self.extra.get("inCommitTimestamp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar(LogStruct):
    """A part of a V2 checkpoint in ``_sidecars``."""

    path: str
    size_in_bytes: Int64 = 0
    modification_time: Int64 = 0
    tags: StringMap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata(LogStruct):
    """The first line of a V2 checkpoint."""

    version: Int64
    tags: StringMap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownAction(LogStruct):
    """An action of an unknown kind: kept whole, ignored by replay."""

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
        """The whole log line, with its kind."""
        return {self.kind: self.value}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_State: TypeAlias = Metadata | Protocol | Txn | DomainMetadata
Action: TypeAlias = Add | Remove | Cdc | _State | CommitInfo | Sidecar | CheckpointMetadata | UnknownAction

#: action kind in the log -> its class
KINDS: Mapping[str, type[LogStruct]] = {
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

    ``warn`` is called with the unknown keys beside the action. ProtocolError if the action is malformed, or
    the line holds more than one of a known kind.
    """
    present = [kind for kind, value in line.items() if value is not None]
    if len(present) > 1:
        # other engines read the action that they know and ignore the rest
        known = [kind for kind in present if kind in KINDS]
        if len(known) > 1:
            raise ProtocolError(f"a line holds one action, not {len(known)}: {', '.join(known)}")
        present = known or present
        if warn is not None:
            warn(", ".join(sorted(kind for kind in line if kind != present[0])))
    if not present:
        return None
    kind, value = present[0], line[present[0]]
    if (cls := KINDS.get(kind)) is None:
        return UnknownAction(kind=kind, value=value)
    if type(value) is not dict and not isinstance(value, Mapping):
        raise ProtocolError(f"a {kind} action must be an object, not {type(value).__name__}")
    return cast("Action", cls.from_dict(value))


def action_to_dict(action: Action) -> JsonDict:
    """One log line as a JSON object."""
    return action.to_dict() if isinstance(action, UnknownAction) else {kind_of(action): action.to_dict()}


def meaning(action: LogStruct) -> JsonDict:
    """An action as plain data that is the same for every spelling of the same state.

    Checkpoints respell states: the schema's JSON and the lists of features in another order, without fields
    that their writer does not know, and with empty values for missing ones.
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


# ---- lines of the log, exact in both directions ------------------------------------------------------------

BOM: Final = b"\xef\xbb\xbf"
_RESTORE: Final = "restore the file from a copy or repair the log: a commit is either whole or not there"


def decode_line(line: str | bytes, *, source: str = "commit", number: int = 1) -> Action | None:
    """The action in one line of a log file, or None for a blank line or an empty object.

    LogCorruptError if the line is broken; the message names its source and its number there, from 1.
    """
    if isinstance(line, str):
        line = line.encode("utf-8", "surrogatepass")
    if not (line := line.strip()):
        return None
    try:
        value = decode_json(line)
        if not isinstance(value, dict):
            raise ProtocolError(f"a line must be a JSON object, not {type(value).__name__}")
        return action_from_dict(value, partial(_warn_of_unknown_keys, source))
    except (LogCorruptError, ProtocolError) as e:
        raise LogCorruptError(f"{source}, line {number}: {e.message}", suggestion=_RESTORE) from e


@lru_cache(maxsize=1000)  # log once: a commit may have many such lines, and is read often
def _warn_of_unknown_keys(source: str, keys: str) -> None:
    logger.warning("%s: ignored unknown keys beside an action: %s", source, keys[:200])


def decode_commit(data: bytes, *, source: str = "commit") -> list[Action]:
    """The actions of a commit, in the order written; see `decode_lines`."""
    return list(decode_lines(data.removeprefix(BOM).split(b"\n"), source=source))


def decode_lines(lines: Iterable[bytes], *, source: str) -> Iterator[Action]:
    """The actions in the lines of a commit; CRLF, blank lines and empty objects are tolerated.

    LogCorruptError, which names ``source``, if a line is broken or there is no action at all.
    """
    nothing = True
    for number, line in enumerate(lines, start=1):
        if line and (action := decode_line(line, source=source, number=number)) is not None:
            nothing = False
            yield action
    if nothing:
        raise LogCorruptError(f"{source} holds no action", suggestion=_RESTORE)


def encode_action(action: Action) -> bytes:
    """One action as a line of the log, without the line break."""
    return json_bytes(action_to_dict(action))


def encode_commit(actions: Iterable[Action]) -> bytes:
    """A commit's bytes: one action a line, every line ended by a line feed."""
    return b"".join(encode_action(action) + b"\n" for action in actions)
