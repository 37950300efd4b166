"""Table features: which ones a table needs, and which of them this client reads and writes.

Read: what we understand the metadata and files of. delta-rs itself refuses to scan a table that names one
of `SCAN_DROPS`, although it reads the data rightly: they are left out of the protocol that a scan is given.

Write: what delta-rs 1.6 writes, measured by an append, a delete and a compaction on a table that has the
feature. It refuses identityColumns, rowTracking, domainMetadata, inCommitTimestamp, clustering, collations,
allowColumnDefaults, icebergCompatV1/V2, checkpointProtection, vacuumProtocolCheck, typeWidening and
variantShredding; a caller that takes care of such a feature itself says so by ``also=``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import LogCorruptError, ProtocolError, UnsupportedFeatureError

if TYPE_CHECKING:
    from collections.abc import Collection

    from deltalakedb.protocol.actions import Metadata, Protocol

__all__ = [
    "DECIDED_ELSEWHERE",
    "MAX_READER_VERSION",
    "MAX_WRITER_VERSION",
    "NAMES",
    "READABLE",
    "REQUIRES",
    "SCAN_DROPS",
    "WRITABLE",
    "check_readable",
    "check_schema",
    "check_writable",
    "reader_features",
    "without_features",
    "writer_features",
]

MAX_READER_VERSION: Final = 3
MAX_WRITER_VERSION: Final = 7

#: reader features that are understood
READABLE: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNanos",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)

#: readable features that a delta-rs scan must not see
SCAN_DROPS: Final = frozenset(
    {
        "typeWidening",
        "typeWidening-preview",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
    }
)

#: features of tables that may be written
WRITABLE: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNanos",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)

#: features by which somebody other than the catalog decides what a commit is
DECIDED_ELSEWHERE: Final = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"})

#: every feature that Delta has a name for
NAMES: Final = (
    READABLE
    | WRITABLE
    | frozenset(
        {
            "allowColumnDefaults",
            "catalogManaged",
            "checkpointProtection",
            "clustering",
            "domainMetadata",
            "icebergCompatV1",
            "icebergCompatV2",
            "icebergWriterCompatV1",
            "identityColumns",
            "inCommitTimestamp",
            "materializePartitionColumns",
            "rowTracking",
        }
    )
)

#: feature -> the features that it needs
REQUIRES: Final = {
    "clustering": ("domainMetadata",),
    "icebergCompatV1": ("columnMapping",),
    "icebergCompatV2": ("columnMapping",),
    "rowTracking": ("domainMetadata",),
    "variantShredding": ("variantType",),
}

#: writer version -> the features that it brought, before features had names in the log
_LEGACY_WRITER: Final = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}


def reader_features(protocol: Protocol) -> frozenset[str]:
    """The features that a reader must know: named ones, and what reader version 2 implies."""
    implied = {"columnMapping"} if protocol.min_reader_version == 2 else set()
    return frozenset(implied.union(protocol.reader_features or ()))


def writer_features(protocol: Protocol) -> frozenset[str]:
    """The features that a writer must know: named ones, or what an older writer version implies."""
    implied: set[str] = set()
    if protocol.min_writer_version < MAX_WRITER_VERSION:
        for version, features in _LEGACY_WRITER.items():
            if version <= protocol.min_writer_version:
                implied.update(features)
    return frozenset(implied.union(protocol.writer_features or ()))


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
    """Refuse a table that cannot be read rightly.

    Raises:
        UnsupportedFeatureError: The table needs a reader version or features that are not known here; unknown
            features of writers only are no hindrance.
        ProtocolError: The protocol action contradicts itself.
    """
    version = protocol.min_reader_version
    if not 1 <= version <= MAX_READER_VERSION:
        raise UnsupportedFeatureError(
            f"the table needs reader version {version}, this client knows 1 to {MAX_READER_VERSION}",
            table=table,
            suggestion="read it with a newer client",
        )
    if version == MAX_READER_VERSION and protocol.reader_features is None:
        raise _contradiction("reader version 3 needs a list of reader features", table)
    if version == MAX_READER_VERSION and protocol.min_writer_version < MAX_WRITER_VERSION:
        raise _contradiction("reader version 3 needs writer version 7", table)
    _refuse(reader_features(protocol) - READABLE, "reader", "read", table)


def check_schema(metadata: Metadata, *, table: str | None = None, version: int | None = None) -> None:
    """Refuse a version at which the table has no schema yet: nothing can be read from it.

    Raises:
        LogCorruptError: It has none.
    """
    if not metadata.schema_string:
        raise LogCorruptError(
            "the table's metaData action lacks schemaString",
            table=table,
            version=version,
            suggestion="ask for a later version, or restore the log from a copy",
        )


def check_writable(protocol: Protocol, *, table: str | None = None, also: Collection[str] = ()) -> None:
    """Refuse a table that cannot be written rightly.

    Args:
        protocol: The table's protocol action.
        table: The table's name, for the message.
        also: Writer features that the caller takes care of itself.

    Raises:
        UnsupportedFeatureError: The table needs a version or features that are not known here.
        ProtocolError: The protocol action contradicts itself.
    """
    check_readable(protocol, table=table)
    version = protocol.min_writer_version
    if not 1 <= version <= MAX_WRITER_VERSION:
        raise UnsupportedFeatureError(
            f"the table needs writer version {version}, this client knows 1 to {MAX_WRITER_VERSION}",
            table=table,
            suggestion="write it with a newer client; reading works",
        )
    if version == MAX_WRITER_VERSION and protocol.writer_features is None:
        raise _contradiction("writer version 7 needs a list of writer features", table)
    needed = writer_features(protocol) | reader_features(protocol)
    _refuse(needed - WRITABLE - frozenset(also), "writer", "write", table)


def _contradiction(what: str, table: str | None) -> ProtocolError:
    return ProtocolError(
        f"the table's protocol is not valid: {what}",
        table=table,
        suggestion="repair the protocol action with the engine that wrote it",
    )


def _refuse(unknown: frozenset[str], kind: str, verb: str, table: str | None) -> None:
    if not unknown:
        return
    names = ", ".join(sorted(unknown))
    raise UnsupportedFeatureError(
        f"the table needs the {kind} feature{'s' if len(unknown) > 1 else ''} {names}, not supported here",
        table=table,
        suggestion=f"{verb} it with an engine that supports {names}, or drop the feature there",
        features=sorted(unknown),
    )
