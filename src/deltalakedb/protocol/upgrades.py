"""Protocols that gain or lose a feature, with what their old version implied spelled out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltalakedb.protocol.actions import Protocol
from deltalakedb.protocol.features import (
    MAX_READER_VERSION,
    MAX_WRITER_VERSION,
    READABLE,
    REQUIRES,
    reader_features,
    writer_features,
)
from deltalakedb.protocol.properties import mapping_mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalakedb.protocol.actions import Metadata

#: a writer feature without duties: only who knows it, and so goes through the catalog, may write
FENCE: Final = "deltasqlManaged"


def with_writer_features(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """The protocol with more writer features: writer version 7, where every feature has a name."""
    before = protocol.writer_features
    if protocol.min_writer_version < MAX_WRITER_VERSION or before is None:
        before = tuple(sorted(writer_features(protocol)))
    more = tuple(n for n in dict.fromkeys(names) if n not in before)
    return replace(protocol, min_writer_version=MAX_WRITER_VERSION, writer_features=(*before, *more))


def with_features(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """The protocol with more features, those that they need, and the versions that can name them.

    What an older version implies already is not spelled out.
    """
    wanted = dict.fromkeys(need for name in names for need in (*REQUIRES.get(name, ()), name))
    reading = [name for name in wanted if name in READABLE]
    if frozenset(wanted) <= writer_features(protocol) and frozenset(reading) <= reader_features(protocol):
        return protocol
    protocol = with_writer_features(protocol, wanted)
    if frozenset(reading) <= reader_features(protocol):
        return protocol
    before = protocol.reader_features
    if protocol.min_reader_version < MAX_READER_VERSION or before is None:
        # a reader's feature must be a writer's too
        before = tuple(sorted(reader_features(protocol) & writer_features(protocol)))
    more = tuple(name for name in reading if name not in before)
    return replace(protocol, min_reader_version=MAX_READER_VERSION, reader_features=(*before, *more))


def used_features(metadata: Metadata) -> frozenset[str]:
    """The features of writers before version 7 that a table makes use of.

    A table that names its features must name these; what it could use but does not, it need not.
    """
    properties, schema = metadata.configuration, metadata.schema_string
    on = {name for name, value in properties.items() if (value or "").lower() == "true"}
    uses = {
        "appendOnly": "delta.appendOnly" in on,
        "changeDataFeed": "delta.enableChangeDataFeed" in on,
        "checkConstraints": any(name.startswith("delta.constraints.") for name in properties),
        "columnMapping": mapping_mode(metadata) != "none",
        "generatedColumns": "delta.generationExpression" in schema,
        "identityColumns": "delta.identity." in schema,
        "invariants": "delta.invariants" in schema,
    }
    return frozenset(feature for feature, is_used in uses.items() if is_used)


def joined(now: Protocol, then: Protocol, metadata: Metadata) -> Protocol:
    """The least protocol that promises all of one, and what a table of the other's time makes use of.

    Args:
        now: The protocol to keep.
        then: The other protocol.
        metadata: The metadata that goes with the other.
    """
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
    """The protocol without a writer feature; an older version where that says all that is left."""
    if protocol.writer_features is None:
        return protocol
    left = tuple(f for f in protocol.writer_features if f != name)
    if protocol.min_reader_version < MAX_READER_VERSION:
        for version in range(2, MAX_WRITER_VERSION):
            older = Protocol(min_reader_version=protocol.min_reader_version, min_writer_version=version)
            if writer_features(older) == frozenset(left):
                return replace(protocol, min_writer_version=version, writer_features=None)
    return replace(protocol, writer_features=left)
