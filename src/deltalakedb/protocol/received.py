"""What a commit of another engine must be before it is ratified: as strict as what is written here.

Once ratified, a commit is published byte for byte. Readers differ in what they tolerate: delta-rs refuses
a byte order mark and a repeated key, Spark an unknown type. What any of them refuses is refused here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.actions import (
    Add,
    Cdc,
    CheckpointMetadata,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    UnknownAction,
    kind_of,
)
from deltalakedb.protocol.codec import decode_commit, decode_json
from deltalakedb.protocol.features import MAX_READER_VERSION, MAX_WRITER_VERSION, READABLE, reader_features
from deltalakedb.protocol.partition import canonical
from deltalakedb.protocol.paths import check_path
from deltalakedb.protocol.properties import MAPPING_MODE, mapping_mode
from deltalakedb.protocol.schema import (
    PHYSICAL_NAME,
    ArrayType,
    MapType,
    PrimitiveType,
    StructType,
    parse_schema,
)
from deltalakedb.protocol.stats import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.schema import DataType

__all__ = ["decode_received"]

#: levels of JSON that every reader accepts; serde_json, which delta-rs uses, stops at 128
_MAX_DEPTH: Final = 100
#: 31 December 9999 in epoch milliseconds: readers cannot show later times
_MAX_TIME: Final = 253_402_300_799_999
#: no table is larger, and the sum over many commits fits 64 bits
_MAX_BYTES: Final = 1 << 60
#: a column of this type has no values; delta-spark writes it into schemas
_VOID: Final = "void"
_VECTORS: Final = ("u", "i", "p")


def decode_received(
    data: bytes, *, version: int, protocol: Protocol | None, metadata: Metadata | None
) -> list[Action]:
    """The actions of a commit that another engine hands in.

    Args:
        data: The commit's bytes.
        version: The version it would become.
        protocol: The table's protocol before it, None for version 0.
        metadata: The table's metadata before it, None for version 0.

    Raises:
        LogCorruptError: The bytes are not a commit that every reader accepts.
        ProtocolError: An action contradicts the table's schema or itself.
    """
    source = f"version {version}"
    actions = decode_commit(data, source=source)
    lines = data.removesuffix(b"\n").split(b"\n")
    if len(actions) != len(lines):
        raise _broken(f"{source} has {len(lines)} lines and {len(actions)} actions")
    if data.startswith(b"\xef\xbb\xbf"):
        raise _broken(f"{source} begins with a byte order mark")
    for number, line in enumerate(lines, start=1):
        _check_json(line.decode(), f"{source}, line {number}")
    for action in actions:
        if isinstance(action, UnknownAction | Sidecar | CheckpointMetadata):
            raise ProtocolError(f"a commit cannot hold the action {kind_of(action)[:60]!r}", version=version)
    infos = [a for a in actions if isinstance(a, CommitInfo)]
    if len(infos) > 1:
        raise ProtocolError(f"a commit holds at most one commitInfo, this one {len(infos)}", version=version)
    for info in infos:
        _check_time("inCommitTimestamp", info.in_commit_timestamp)
    for action in actions:
        if isinstance(action, Metadata):
            metadata = action
            _check_metadata(action)
        elif isinstance(action, Protocol):
            protocol = action
            _check_protocol(action)
    if protocol is not None and metadata is not None and metadata.schema_string:
        schema = parse_schema(metadata.schema_string)
        _check_files(actions, metadata, schema)
        _check_features(actions, protocol, metadata, schema)
    return actions


def _broken(what: str) -> LogCorruptError:
    return LogCorruptError(what, suggestion="one JSON object a line, in UTF-8, with one action in each")


def _check_json(text: str, where: str) -> None:
    """Refuse JSON that some reader's parser refuses or reads otherwise."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise _broken(f"{where}: an object has the same key twice")
        return found

    # numbers stay text: only names, nesting and characters matter here
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as e:
        raise _broken(f"{where}: the JSON is not valid, or nested too deeply") from e
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise _broken(f"{where}: the JSON has more than {_MAX_DEPTH} levels")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, str) and "\x00" in one:
                raise _broken(f"{where}: a text holds a NUL character")
        level = inner


def _check_protocol(protocol: Protocol) -> None:
    readers, writers = protocol.reader_features, protocol.writer_features
    if readers is not None and protocol.min_reader_version != MAX_READER_VERSION:
        raise _contradiction("reader features need reader version 3")
    if writers is not None and protocol.min_writer_version != MAX_WRITER_VERSION:
        raise _contradiction("writer features need writer version 7")
    if missing := set(readers or ()) - set(writers or ()):
        raise _contradiction(f"the reader feature {min(missing)[:60]!r} is no writer feature")
    if missing := set(writers or ()) & READABLE - reader_features(protocol):
        raise _contradiction(f"the writer feature {min(missing)!r} has to be a reader feature too")


def _contradiction(what: str) -> ProtocolError:
    return ProtocolError(f"the protocol action is not valid: {what}")


def _check_metadata(metadata: Metadata) -> None:
    if metadata.format.provider != "parquet":
        raise ProtocolError(f"the table's format is {metadata.format.provider[:60]!r}, not parquet")
    _check_time("createdTime", metadata.created_time)
    schema = parse_schema(metadata.schema_string)
    _check_json(metadata.schema_string, "schemaString")
    mode = mapping_mode(metadata)
    if mode not in ("none", "name", "id"):
        raise ProtocolError(f"{MAPPING_MODE} is {mode[:60]!r}, and not none, name or id")
    _check_type(schema, "the schema", mapped=mode != "none")
    columns = metadata.partition_columns
    if len(set(columns)) < len(columns):
        raise ProtocolError("a partition column is named twice")
    for name in columns:
        found = next((f for f in schema.fields if f.name == name), None)
        if found is None or not isinstance(found.type, PrimitiveType):
            what = "is not in the schema" if found is None else "is no primitive column"
            raise ProtocolError(f"the partition column {name[:60]!r} {what}")


def _check_type(kind: DataType, where: str, *, mapped: bool) -> None:
    if isinstance(kind, StructType):
        names = [f.name.lower() for f in kind.fields]
        if "" in names or len(set(names)) < len(names):
            raise ProtocolError(f"{where} has a column without a name, or two of the same name")
        for f in kind.fields:
            if mapped and (f.field_id is None or not isinstance(f.metadata.get(PHYSICAL_NAME), str)):
                raise ProtocolError(f"the column {f.name[:60]!r} is mapped to no column of the data files")
            _check_type(f.type, f"the column {f.name[:60]!r}", mapped=mapped)
    elif isinstance(kind, ArrayType):
        _check_type(kind.element_type, where, mapped=mapped)
    elif isinstance(kind, MapType):
        _check_type(kind.key_type, where, mapped=mapped)
        _check_type(kind.value_type, where, mapped=mapped)
    elif not kind.known and kind.name != _VOID:
        raise ProtocolError(f"{where} has the unknown type {kind.name[:60]!r}")


def _check_features(
    actions: Sequence[Action], protocol: Protocol, metadata: Metadata, schema: StructType
) -> None:
    """Refuse what needs a feature that the protocol does not name: readers would not look for it.

    A table that was imported without them goes on: only what this commit brings is judged.
    """
    uses = {"deletionVectors": any(isinstance(a, Add) and a.deletion_vector is not None for a in actions)}
    if any(isinstance(a, Metadata | Protocol) for a in actions):
        types = set(_type_names(schema))
        uses |= {
            "columnMapping": mapping_mode(metadata) != "none",
            "timestampNtz": "timestamp_ntz" in types,
            "variantType": "variant" in types,
        }
    named = {name.removesuffix("-preview") for name in reader_features(protocol)}
    if missing := [name for name, is_used in uses.items() if is_used and name not in named]:
        raise ProtocolError(f"the table uses the feature {missing[0]}, and its protocol does not name it")


def _type_names(kind: DataType) -> Iterator[str]:
    if isinstance(kind, StructType):
        for f in kind.fields:
            yield from _type_names(f.type)
    elif isinstance(kind, ArrayType):
        yield from _type_names(kind.element_type)
    elif isinstance(kind, MapType):
        yield from _type_names(kind.key_type)
        yield from _type_names(kind.value_type)
    else:
        yield kind.name


def _check_files(actions: Sequence[Action], metadata: Metadata, schema: StructType) -> None:
    types = dict(_partition_types(metadata, schema))
    total = 0
    for action in actions:
        if not isinstance(action, Add | Remove | Cdc):
            continue
        check_path(action.path)
        size = action.size or 0
        total += size
        if size < 0 or total > _MAX_BYTES:
            raise ProtocolError(f"the size of the file {action.path[:200]!r} is out of range")
        if not isinstance(action, Cdc):
            _check_vector(action)
        if isinstance(action, Remove):
            _check_time("deletionTimestamp", action.deletion_timestamp)
            continue
        _check_partition(action, types)
        if isinstance(action, Add):
            _check_time("modificationTime", action.modification_time)
            _check_stats(action)


def _partition_types(metadata: Metadata, schema: StructType) -> Iterator[tuple[str, PrimitiveType]]:
    mapped = mapping_mode(metadata) != "none"
    for column in metadata.partition_columns:
        found = schema.field(column)
        if found is not None and isinstance(found.type, PrimitiveType):
            yield (found.physical_name if mapped else found.name), found.type


def _check_partition(action: Add | Cdc, types: Mapping[str, PrimitiveType]) -> None:
    if missing := types.keys() - action.partition_values.keys():
        raise ProtocolError(
            f"the file {action.path[:200]!r} has no value for the partition column {min(missing)[:60]!r}"
        )
    for name, kind in types.items():
        canonical(action.partition_values[name], kind)


def _check_vector(action: Add | Remove) -> None:
    vector = action.deletion_vector
    if vector is None:
        return
    numbers = (vector.size_in_bytes, vector.offset or 0)
    valid = vector.storage_type in _VECTORS and all(0 <= n < 2**31 for n in numbers)
    if not valid or not 0 <= vector.cardinality <= MAX_ROWS:
        raise ProtocolError(f"the deletion vector of {action.path[:200]!r} is not valid")


def _check_stats(add: Add) -> None:
    if add.stats is None:
        return
    stats = decode_json(add.stats)
    if not isinstance(stats, dict):
        raise ProtocolError(f"the statistics of {add.path[:200]!r} are no JSON object")
    rows = stats.get("numRecords")
    if rows is not None and (type(rows) is not int or not 0 <= rows <= MAX_ROWS):
        raise ProtocolError(f"numRecords of {add.path[:200]!r} is no number of rows")
    for name in ("minValues", "maxValues", "nullCount"):
        if not isinstance(stats.get(name), dict | None):
            raise ProtocolError(f"{name} of {add.path[:200]!r} is no JSON object")


def _check_time(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= _MAX_TIME:
        raise ProtocolError(f"{name} is no time of the years 1970 to 9999 in milliseconds")
