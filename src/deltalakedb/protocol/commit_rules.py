"""The protocol's rules for a commit, and stricter rules for commits received from other engines.

Once ratified, a commit is published byte for byte. Readers differ in what they tolerate: delta-rs refuses
a byte order mark and a repeated key, Spark an unknown type. These rules refuse what any reader refuses.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.actions import (
    BOM,
    KINDS,
    Action,
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    decode_commit,
    kind_of,
)
from deltalakedb.protocol.dv import resolve_dv
from deltalakedb.protocol.features import (
    MAX_READER_VERSION,
    MAX_WRITER_VERSION,
    NAMEABLE,
    READABLE,
    check_writable,
    reader_features,
)
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.partition import canonical
from deltalakedb.protocol.paths import TablePaths, canonical_path, check_path
from deltalakedb.protocol.properties import APPEND_ONLY, MAPPING_MODE, is_on, mapping_mode
from deltalakedb.protocol.schema import PHYSICAL_NAME, PrimitiveType, StructType, parse_schema, walk
from deltalakedb.protocol.stats import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


_T = TypeVar("_T")

#: the kinds of actions that a commit may have
_KINDS: Final = KINDS.keys() - {"sidecar", "checkpointMetadata"}
#: levels of JSON that every reader accepts; serde_json, which delta-rs uses, stops at 128
_MAX_DEPTH: Final = 100
#: 31 December 9999 in epoch milliseconds: readers cannot show later times
_MAX_TIME: Final = 253_402_300_799_999
#: no table is larger, and the sum over many commits fits 64 bits
_MAX_BYTES: Final = 1 << 60
#: a column of this type has no values; delta-spark writes it into schemas
_VOID: Final = "void"


def check_commit(
    actions: Sequence[Action],
    *,
    version: int,
    protocol: Protocol | None,
    metadata: Metadata | None,
    paths: TablePaths,
    also: Collection[str] = (),
    own_commit: bool = True,
) -> tuple[Protocol, Metadata]:
    """Refuse a commit that violates the protocol; return protocol and metadata after it.

    Args:
        actions: The commit's actions.
        version: The version it would become.
        protocol: The table's protocol before it; None for version 0.
        metadata: The table's metadata before it; None for version 0.
        paths: Where the table's files may be, and its name.
        also: Writer features that the caller implements itself.
        own_commit: False for a commit that another writer has already made: only its form is checked.
    """
    error = partial(ProtocolError, table=paths.table, version=version)
    metadatas = [a for a in actions if isinstance(a, Metadata)]
    protocols = [a for a in actions if isinstance(a, Protocol)]
    for found in (metadatas, protocols):
        if len(found) > 1:
            raise error(f"at most one {type(found[0]).__name__} action is allowed, found {len(found)}")
    protocol_after = protocols[0] if protocols else protocol
    metadata_after = metadatas[0] if metadatas else metadata
    if protocol_after is None or metadata_after is None:
        raise error("version 0 must have protocol and metaData")
    if own_commit:
        # a commit without files may add a feature to the protocol that only later commits must implement
        bare = version > 0 and not any(isinstance(a, Add | Remove | Cdc) for a in actions)
        check_writable(protocol_after, table=paths.table, also={*also, *NAMEABLE} if bare else also)
    for name, file_kind in (("add", Add), ("remove", Remove)):
        if key := _repeated([a.key for a in actions if isinstance(a, file_kind)]):
            raise error(f"the file {key[0]} appears twice as {name}")
    check_unique_files(actions, paths, version=version)
    check_locations(actions, paths)
    if own_commit:
        for what, names in (
            ("application id", [a.app_id for a in actions if isinstance(a, Txn)]),
            ("metadata domain", [a.domain for a in actions if isinstance(a, DomainMetadata)]),
        ):
            if (twice := _repeated(names)) is not None:
                raise error(f"the {what} {twice!r} appears twice; each may appear once in a commit")
        # the old metadata decides: a commit that removes rows may enable it (replaced tables), not disable it
        append_only = metadata is not None and is_on(metadata, APPEND_ONLY)
        if append_only and any(isinstance(a, Remove) and a.data_change for a in actions):
            raise error(
                "the table is append-only (delta.appendOnly): rows cannot be removed or replaced",
                suggestion="append instead, or set delta.appendOnly to false",
            )
    return protocol_after, metadata_after


def _repeated(values: Sequence[_T]) -> _T | None:
    if len(set(values)) == len(values):
        return None
    return next(value for value, count in Counter(values).items() if count > 1)


def check_unique_files(actions: Iterable[Action], paths: TablePaths, *, version: int) -> None:
    """Refuse a commit that adds a data file with several deletion vectors: its rows would count twice."""
    seen: dict[str, str] = {}
    for action in actions:
        if isinstance(action, Add):
            path = canonical_path(action.path)
            if seen.setdefault(path, action.dv_id) != action.dv_id:
                raise ProtocolError(
                    f"the file {path} is added twice, with different deletion vectors",
                    table=paths.table,
                    version=version,
                    suggestion="a data file can be in a version once: have the writer remove the other entry",
                )


def check_locations(actions: Iterable[Action], paths: TablePaths) -> None:
    """Refuse data files and deletion vectors outside of the table's root, unless the settings allow them.

    OutsidePathError, or ProtocolError if a path or a deletion vector is malformed.
    """
    for action in actions:
        if isinstance(action, Add | Remove | Cdc):
            paths.resolve(action.path)
            if not isinstance(action, Cdc) and action.deletion_vector is not None:
                resolve_dv(paths, action.deletion_vector)


# ---- commits received from other engines ----


def decode_received(
    data: bytes, *, version: int, protocol: Protocol | None, metadata: Metadata | None
) -> list[Action]:
    """Decode a commit received from another engine; protocol and metadata are those before it.

    LogCorruptError if some reader would refuse the bytes, ProtocolError if an action is inconsistent or
    contradicts the table's schema.
    """
    source = f"version {version}"
    actions = decode_commit(data, source=source)
    lines = data.removesuffix(b"\n").split(b"\n")
    if len(actions) != len(lines):
        raise _broken(f"{source} has {len(lines)} lines and {len(actions)} actions")
    if data.startswith(BOM):
        raise _broken(f"{source} begins with a byte order mark")
    for number, line in enumerate(lines, start=1):
        _check_json(line.decode(), f"{source}, line {number}")
    if (infos := sum(isinstance(a, CommitInfo) for a in actions)) > 1:
        raise ProtocolError(f"at most one commitInfo is allowed, found {infos}", version=version)
    for action in actions:
        if (kind := kind_of(action)) not in _KINDS:
            raise ProtocolError(f"a commit cannot have the action {kind[:60]!r}", version=version)
        match action:
            case CommitInfo():
                _check_time("inCommitTimestamp", action.in_commit_timestamp)
            case Metadata():
                metadata = action
                _check_metadata(action)
            case Protocol():
                protocol = action
                _check_protocol(action)
    if protocol is not None and metadata is not None and metadata.schema_string:
        schema = parse_schema(metadata.schema_string)
        _check_files(actions, metadata, schema)
        _check_features(actions, protocol, metadata, schema)
    return actions


def _broken(what: str) -> LogCorruptError:
    return LogCorruptError(what, suggestion="write one JSON object per line, in UTF-8, each with one action")


def _check_json(text: str, where: str) -> None:
    """Refuse JSON that some reader refuses or parses differently."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise _broken(f"{where}: an object has the same key twice")
        return found

    # numbers stay text: only names, nesting and characters matter here
    try:
        level = [json.loads(text, object_pairs_hook=unique, parse_int=str, parse_float=str)]
    except (ValueError, RecursionError) as e:
        raise _broken(f"{where}: the JSON is not valid, or nested too deeply") from e
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict | list):
                inner += one
                inner += one.values() if isinstance(one, dict) else ()
            elif isinstance(one, str) and "\x00" in one:
                raise _broken(f"{where}: a string contains a NUL character")
        level = inner
    if level:
        raise _broken(f"{where}: the JSON has more than {_MAX_DEPTH} levels")


def _check_protocol(protocol: Protocol) -> None:
    readers, writers = set(protocol.reader_features or ()), set(protocol.writer_features or ())
    if protocol.reader_features is not None and protocol.min_reader_version != MAX_READER_VERSION:
        wrong = "reader features need reader version 3"
    elif protocol.writer_features is not None and protocol.min_writer_version != MAX_WRITER_VERSION:
        wrong = "writer features need writer version 7"
    elif unlisted := readers - writers:
        wrong = f"the reader feature {min(unlisted)[:60]!r} is not a writer feature"
    elif unlisted := writers & READABLE - reader_features(protocol):
        wrong = f"the writer feature {min(unlisted)!r} has to be a reader feature too"
    else:
        return
    raise ProtocolError(f"the protocol action is not valid: {wrong}")


def _check_metadata(metadata: Metadata) -> None:
    if metadata.format.provider != "parquet":
        raise ProtocolError(f"the table's format is {metadata.format.provider[:60]!r}, not parquet")
    _check_time("createdTime", metadata.created_time)
    schema = parse_schema(metadata.schema_string)
    _check_json(metadata.schema_string, "schemaString")
    mode = mapping_mode(metadata)
    if mode not in ("none", "name", "id"):
        raise ProtocolError(f"{MAPPING_MODE} is {mode[:60]!r}, but must be none, name or id")
    _check_types(schema, mapped=mode != "none")
    columns = metadata.partition_columns
    if len(set(columns)) < len(columns):
        raise ProtocolError("a partition column is named twice")
    types = {f.name: f.type for f in schema.fields}
    for name in columns:
        if not isinstance(types.get(name), PrimitiveType):
            what = "is not of a primitive type" if name in types else "is not in the schema"
            raise ProtocolError(f"the partition column {name[:60]!r} {what}")


def _check_types(schema: StructType, *, mapped: bool) -> None:
    for kind in walk(schema):
        if isinstance(kind, StructType):
            names = [f.name.lower() for f in kind.fields]
            if "" in names or len(set(names)) < len(names):
                raise ProtocolError("the schema has a column without a name, or two of the same name")
            for f in kind.fields if mapped else ():
                if f.field_id is None or not isinstance(f.metadata.get(PHYSICAL_NAME), str):
                    raise ProtocolError(f"the column {f.name[:60]!r} has no column mapping")
        elif isinstance(kind, PrimitiveType) and not kind.known and kind.name != _VOID:
            raise ProtocolError(f"the schema has the unknown type {kind.name[:60]!r}")


def _check_features(
    actions: Sequence[Action], protocol: Protocol, metadata: Metadata, schema: StructType
) -> None:
    """Refuse a commit that uses a feature that the protocol does not list: readers would ignore it.

    Only the actions of this commit count: a table that was imported without the feature stays writable.
    """
    uses = {"deletionVectors": any(isinstance(a, Add) and a.deletion_vector is not None for a in actions)}
    if any(isinstance(a, Metadata | Protocol) for a in actions):
        types = {kind.name for kind in walk(schema) if isinstance(kind, PrimitiveType)}
        uses |= {
            "columnMapping": mapping_mode(metadata) != "none",
            "timestampNtz": "timestamp_ntz" in types,
            "variantType": "variant" in types,
        }
    named = {name.removesuffix("-preview") for name in reader_features(protocol)}
    if missing := [name for name, is_used in uses.items() if is_used and name not in named]:
        raise ProtocolError(f"the table uses the feature {missing[0]}, but its protocol does not list it")


def _check_files(actions: Sequence[Action], metadata: Metadata, schema: StructType) -> None:
    mapped = mapping_mode(metadata) != "none"
    fields = [f for c in metadata.partition_columns if (f := schema.field(c)) is not None]
    types = {
        f.physical_name if mapped else f.name: f.type for f in fields if isinstance(f.type, PrimitiveType)
    }
    total = 0
    for action in actions:
        if not isinstance(action, Add | Remove | Cdc):
            continue
        check_path(action.path)
        size = action.size or 0
        total += size
        if size < 0 or total > _MAX_BYTES:
            raise ProtocolError(f"the size of the file {action.path[:200]!r} is out of range")
        if not isinstance(action, Cdc) and (vector := action.deletion_vector) is not None:
            numbers = (vector.size_in_bytes, vector.offset or 0)
            valid = vector.storage_type in ("u", "i", "p") and all(0 <= n < 2**31 for n in numbers)
            if not valid or not 0 <= vector.cardinality <= MAX_ROWS:
                raise ProtocolError(f"the deletion vector of {action.path[:200]!r} is not valid")
        if isinstance(action, Remove):
            _check_time("deletionTimestamp", action.deletion_timestamp)
            continue
        if missing := types.keys() - action.partition_values.keys():
            raise ProtocolError(
                f"the file {action.path[:200]!r} has no value for the partition column {min(missing)[:60]!r}"
            )
        for name, kind in types.items():
            canonical(action.partition_values[name], kind)
        if isinstance(action, Add):
            _check_time("modificationTime", action.modification_time)
            _check_stats(action)


def _check_stats(add: Add) -> None:
    stats = {} if add.stats is None else decode_json(add.stats)
    if not isinstance(stats, dict):
        raise ProtocolError(f"the statistics of {add.path[:200]!r} are not a JSON object")
    rows = stats.get("numRecords")
    if rows is not None and (type(rows) is not int or not 0 <= rows <= MAX_ROWS):
        raise ProtocolError(f"numRecords of {add.path[:200]!r} is not a number of rows")
    for name in ("minValues", "maxValues", "nullCount"):
        if not isinstance(stats.get(name), dict | None):
            raise ProtocolError(f"{name} of {add.path[:200]!r} is not a JSON object")


def _check_time(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= _MAX_TIME:
        raise ProtocolError(f"{name} is not a time between 1970 and 9999 in milliseconds")
