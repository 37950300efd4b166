"""Protocols that gain or lose a writer feature, with what their old version implied spelled out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltalakedb.protocol.actions import Protocol
from deltalakedb.protocol.features import MAX_READER_VERSION, MAX_WRITER_VERSION, writer_features

if TYPE_CHECKING:
    from collections.abc import Iterable

#: a writer feature without duties: only who knows it, and so goes through the catalog, may write
FENCE: Final = "deltasqlManaged"


def with_writer_features(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """The protocol with more writer features: writer version 7, where every feature has a name."""
    before = protocol.writer_features
    if protocol.min_writer_version < MAX_WRITER_VERSION or before is None:
        before = tuple(sorted(writer_features(protocol)))
    more = tuple(n for n in dict.fromkeys(names) if n not in before)
    return replace(protocol, min_writer_version=MAX_WRITER_VERSION, writer_features=(*before, *more))


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
