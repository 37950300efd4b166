"""Table features: which ones a table needs, and which of them this client reads and writes.

A feature is added to the table `_FEATURES`; everything else follows from it. Writing by delta-rs 1.6 was
measured by an append, a delete and a compaction on a table that has the feature. A caller that fulfils the
duties of a feature that delta-rs refuses passes it as ``also=``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogCorruptError,
    ProtocolError,
    UnsupportedFeatureError,
)
from deltalakedb.protocol.properties import (
    APPEND_ONLY,
    CHANGE_DATA_FEED,
    CHECKPOINT_POLICY,
    CONSTRAINT_PREFIX,
    FEATURE_PREFIX,
    is_on,
    mapping_mode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from deltalakedb.protocol.actions import Metadata, Protocol

MAX_READER_VERSION: Final = 3
MAX_WRITER_VERSION: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Feature:
    """A feature that Delta has a name for.

    Attributes:
        reader: Readers must know it too. Every such feature here is understood.
        scanned: delta-rs scans tables that name it; the data of others is read correctly if a scan does not
            see the feature's name.
        writer: Who fulfils its duties: delta-rs, the committer, or delta-spark, which must for new rows only.
        needs: The features that it needs.
        since: The first writer version that implies it, before the log named features.
        nameable: A user may name it for other engines, although the table is then not written here any more.
    """

    reader: bool = False
    scanned: bool = True
    writer: Literal["delta-rs", "committer", "spark"] | None = None
    needs: tuple[str, ...] = ()
    since: int = MAX_WRITER_VERSION
    nameable: bool = False


_FEATURES: Final[Mapping[str, _Feature]] = {
    "allowColumnDefaults": _Feature(writer="spark"),
    "appendOnly": _Feature(writer="delta-rs", since=2),
    "catalogManaged": _Feature(),
    "changeDataFeed": _Feature(writer="delta-rs", since=4),
    "checkConstraints": _Feature(writer="delta-rs", since=3),
    "checkpointProtection": _Feature(),
    "clustering": _Feature(writer="spark", needs=("domainMetadata",)),
    "columnMapping": _Feature(reader=True, writer="delta-rs", since=5),
    "deletionVectors": _Feature(reader=True, writer="delta-rs"),
    "domainMetadata": _Feature(writer="committer"),
    "generatedColumns": _Feature(writer="delta-rs", since=4),
    "icebergCompatV1": _Feature(needs=("columnMapping",), nameable=True),
    "icebergCompatV2": _Feature(needs=("columnMapping",)),
    "icebergWriterCompatV1": _Feature(),
    "identityColumns": _Feature(writer="spark", since=6, nameable=True),
    "inCommitTimestamp": _Feature(writer="committer"),
    "invariants": _Feature(writer="delta-rs", since=2),
    "materializePartitionColumns": _Feature(),
    "rowTracking": _Feature(writer="committer", needs=("domainMetadata",)),
    "timestampNanos": _Feature(reader=True, writer="delta-rs"),
    "timestampNtz": _Feature(reader=True, writer="delta-rs"),
    "typeWidening": _Feature(reader=True, scanned=False, writer="spark"),
    "typeWidening-preview": _Feature(reader=True, scanned=False, writer="spark"),
    "v2Checkpoint": _Feature(reader=True, writer="delta-rs"),
    "vacuumProtocolCheck": _Feature(reader=True, scanned=False, writer="committer"),
    "variantShredding": _Feature(reader=True, scanned=False, needs=("variantType",)),
    "variantShredding-preview": _Feature(reader=True, scanned=False),
    "variantType": _Feature(reader=True, writer="delta-rs"),
    "variantType-preview": _Feature(reader=True, writer="delta-rs"),
}
#: a writer feature without duties: only a writer that knows it, and so goes through the catalog, may write
FENCE: Final = "deltasqlManaged"
#: features that take the decision on commits away from the catalog
EXTERNALLY_MANAGED: Final = frozenset(
    {"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"}
)


def _names(wanted: Callable[[_Feature], bool]) -> frozenset[str]:
    return frozenset(name for name, feature in _FEATURES.items() if wanted(feature))


#: reader features that are understood
READABLE: Final = _names(lambda f: f.reader)
#: readable features that a delta-rs scan must not see
SCAN_DROPS: Final = _names(lambda f: not f.scanned)
#: features of tables that delta-rs writes
WRITABLE: Final = _names(lambda f: f.writer == "delta-rs")
#: writer features whose duties the committer itself fulfils, whatever wrote the data files
COMMITTER_FEATURES: Final = _names(lambda f: f.writer == "committer") | {FENCE}
#: writer features that delta-spark keeps and delta-rs does not; they ask nothing of a commit without new rows
SPARK_FEATURES: Final = _names(lambda f: f.writer == "spark")
#: features that a commit without files may name
NAMEABLE: Final = _names(lambda f: f.nameable)


def reader_features(protocol: Protocol) -> frozenset[str]:
    """The features that a reader must know: named ones, and what reader version 2 implies."""
    implied = {"columnMapping"} if protocol.min_reader_version == 2 else set()
    return frozenset(implied.union(protocol.reader_features or ()))


def writer_features(protocol: Protocol) -> frozenset[str]:
    """The features that a writer must know: named ones, or what an older writer version implies."""
    return _implied(protocol.min_writer_version).union(protocol.writer_features or ())


def tracks_rows(protocol: Protocol) -> bool:
    return "rowTracking" in writer_features(protocol)


@cache
def _implied(version: int) -> frozenset[str]:
    return _names(lambda f: f.since <= version) if version < MAX_WRITER_VERSION else frozenset()


def without_features(protocol: Protocol, features: Collection[str]) -> Protocol:
    """The protocol without some of its named features, for a reader or writer that need not know them."""
    if protocol.writer_features is None:
        return protocol
    readers = protocol.reader_features
    return replace(
        protocol,
        reader_features=None if readers is None else tuple(f for f in readers if f not in features),
        writer_features=tuple(f for f in protocol.writer_features if f not in features),
    )


def check_readable(protocol: Protocol, *, table: str | None = None) -> None:
    """Refuse a table that cannot be read correctly; unknown features of writers only do not matter.

    Raises:
        UnsupportedFeatureError: The table needs a reader version or features that are not known here.
        ProtocolError: The protocol action contradicts itself.
    """
    version, newest = protocol.min_reader_version, MAX_READER_VERSION
    if version == newest and protocol.min_writer_version < MAX_WRITER_VERSION:
        raise _contradiction("reader version 3 needs writer version 7", table)
    _check("reader", version, newest, protocol.reader_features, reader_features(protocol) - READABLE, table)


def check_writable(protocol: Protocol, *, table: str | None = None, also: Collection[str] = ()) -> None:
    """Refuse a table that cannot be written correctly; ``also`` are features that the caller handles.

    It raises what `check_readable` raises.
    """
    check_readable(protocol, table=table)
    unknown = (writer_features(protocol) | reader_features(protocol)) - WRITABLE - frozenset(also)
    version, newest = protocol.min_writer_version, MAX_WRITER_VERSION
    _check("writer", version, newest, protocol.writer_features, unknown, table)


def check_schema(metadata: Metadata, *, table: str | None = None, version: int | None = None) -> None:
    """Refuse a version at which the table has no schema yet: nothing can be read from it."""
    if not metadata.schema_string:
        raise LogCorruptError(
            "the table's metaData action lacks schemaString",
            table=table,
            version=version,
            suggestion="ask for a later version, or restore the log from a copy",
        )


def _check(
    kind: Literal["reader", "writer"],
    version: int,
    newest: int,
    named: Sequence[str] | None,
    unknown: Collection[str],
    table: str | None,
) -> None:
    verb = {"reader": "read", "writer": "write"}[kind]
    if not 1 <= version <= newest:
        raise UnsupportedFeatureError(
            f"the table needs {kind} version {version}, this client knows 1 to {newest}",
            table=table,
            suggestion=f"{verb} it with a newer client",
        )
    if version == newest and named is None:
        raise _contradiction(f"{kind} version {newest} needs a list of {kind} features", table)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise UnsupportedFeatureError(
            f"the table needs the {kind} feature{'s'[: len(unknown) - 1]} {names}, not supported here",
            table=table,
            suggestion=f"{verb} it with an engine that supports {names}, or drop the feature there",
            features=sorted(unknown),
        )


def _contradiction(what: str, table: str | None) -> ProtocolError:
    return ProtocolError(
        f"the table's protocol is not valid: {what}",
        table=table,
        suggestion="repair the protocol action with the engine that wrote it",
    )


def features_named(
    given: Mapping[str, str | None], *, also: Collection[str] = (), table: str | None = None
) -> tuple[str, ...]:
    """The features that properties (``delta.feature.…``) name and delta-rs does not handle.

    ``also`` are features beyond those of delta-rs that the caller can write. InvalidArgumentError if there is
    no such feature, UnsupportedFeatureError if tables with it cannot be written here.
    """
    named = [name.removeprefix(FEATURE_PREFIX) for name in given if name.startswith(FEATURE_PREFIX)]
    allowed = WRITABLE | frozenset(also)
    for feature in named:
        if feature not in _FEATURES and feature not in allowed:
            raise InvalidArgumentError(
                f"there is no table feature {feature!r}",
                table=table,
                suggestion=f"use one of {', '.join(sorted(allowed))}",
            )
        if feature not in allowed:
            raise UnsupportedFeatureError(
                f"a table with the feature {feature} is not supported for writing",
                table=table,
                suggestion=f"leave {FEATURE_PREFIX}{feature} out"
                + ("; such tables can be imported and read" if feature in READABLE else ""),
                features=[feature],
            )
    if str(given.get(CHECKPOINT_POLICY) or "").strip().lower() == "v2":
        named.append("v2Checkpoint")
    return tuple(dict.fromkeys(named))


def with_writer_features(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """The protocol with more writer features: writer version 7, which names every feature."""
    before = protocol.writer_features
    if protocol.min_writer_version < MAX_WRITER_VERSION or before is None:
        before = tuple(sorted(writer_features(protocol)))
    all_names = tuple(dict.fromkeys((*before, *names)))
    return replace(protocol, min_writer_version=MAX_WRITER_VERSION, writer_features=all_names)


def with_features(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """The protocol with more features, those that they need, and the versions that can name them."""
    known = ((name, _FEATURES.get(name, _Feature())) for name in names)
    wanted = dict.fromkeys(need for name, feature in known for need in (*feature.needs, name))
    reading = [name for name in wanted if name in READABLE]
    if not writer_features(protocol).issuperset(wanted) or not reader_features(protocol).issuperset(reading):
        protocol = with_writer_features(protocol, wanted)
    if reader_features(protocol).issuperset(reading):
        return protocol
    before = protocol.reader_features
    if protocol.min_reader_version < MAX_READER_VERSION or before is None:
        # a reader's feature must be a writer's too
        before = tuple(sorted(reader_features(protocol) & writer_features(protocol)))
    all_names = tuple(dict.fromkeys((*before, *reading)))
    return replace(protocol, min_reader_version=MAX_READER_VERSION, reader_features=all_names)


def used_features(metadata: Metadata) -> frozenset[str]:
    """The features of writers before version 7 that a table uses, and so must name if it names any."""
    schema = metadata.schema_string
    uses = {
        "appendOnly": is_on(metadata, APPEND_ONLY),
        "changeDataFeed": is_on(metadata, CHANGE_DATA_FEED),
        "checkConstraints": any(name.startswith(CONSTRAINT_PREFIX) for name in metadata.configuration),
        "columnMapping": mapping_mode(metadata) != "none",
        "generatedColumns": "delta.generationExpression" in schema,
        "identityColumns": "delta.identity." in schema,
        "invariants": "delta.invariants" in schema,
    }
    return frozenset(feature for feature, is_used in uses.items() if is_used)


def union_of(now: Protocol, then: Protocol, metadata: Metadata) -> Protocol:
    """The least protocol that promises all of ``now`` and what a table with ``metadata`` uses of ``then``."""
    reader = max(now.min_reader_version, then.min_reader_version)
    writer = max(now.min_writer_version, then.min_writer_version)
    used = used_features(metadata)
    reading = {*reader_features(now), *(then.reader_features or ()), *(reader_features(then) & used)}
    writing = {*writer_features(now), *(then.writer_features or ()), *(writer_features(then) & used)}
    return replace(
        now,
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=tuple(sorted(reading)) if reader >= MAX_READER_VERSION else None,
        writer_features=tuple(sorted(writing)) if writer >= MAX_WRITER_VERSION else None,
    )


def without_writer_feature(protocol: Protocol, name: str) -> Protocol:
    """The protocol without a writer feature; with an older version if that implies all other features."""
    left = without_features(protocol, (name,))
    if left.writer_features is not None and left.min_reader_version < MAX_READER_VERSION:
        for version in range(2, MAX_WRITER_VERSION):
            if _implied(version) == frozenset(left.writer_features):
                return replace(left, min_writer_version=version, writer_features=None)
    return left
