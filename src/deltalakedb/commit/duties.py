"""Who sees to the duties of a table's writer features: the committer, or whoever made the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.protocol.actions import Protocol
from deltalakedb.protocol.features import DECIDED_ELSEWHERE, FENCE, OURS, writer_features

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deltalakedb.commit.changes import TableChange
    from deltalakedb.protocol.actions import Action


def own_duties(change: TableChange, step: Sequence[Action], protocol: Protocol | None) -> Collection[str]:
    """Writer features that a change has seen to itself.

    Args:
        change: The change.
        step: The actions of one of its versions.
        protocol: The table's protocol before them.
    """
    if change.received is None:
        return {FENCE} if change.exact else OURS | change.kept
    # the engine that made it has seen to every duty but those that would let somebody else decide
    after = next((a for a in step if isinstance(a, Protocol)), protocol)
    return frozenset() if after is None else writer_features(after) - DECIDED_ELSEWHERE
