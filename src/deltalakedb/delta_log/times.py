"""When a version was committed: the commit's own time where the table has it, else its file's."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.protocol.properties import number_or

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalakedb.delta_log.listing import LogListing
    from deltalakedb.protocol.actions import Metadata

ENABLED = "delta.enableInCommitTimestamps"
ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"


@dataclass(frozen=True, slots=True)
class Enablement:
    """Since when a table keeps in-commit timestamps."""

    version: int
    timestamp: int | None  # None: since its first version


def enablement(metadata: Metadata) -> Enablement | None:
    """Since when a table keeps in-commit timestamps, or None where it does not."""
    settings = metadata.configuration
    if (settings.get(ENABLED) or "").lower() != "true":
        return None
    version, timestamp = (
        _number(settings.get(ENABLEMENT_VERSION)),
        _number(settings.get(ENABLEMENT_TIMESTAMP)),
    )
    return Enablement(0, None) if version is None or timestamp is None else Enablement(version, timestamp)


def file_times(listing: LogListing) -> dict[int, int]:
    """Times of versions by their files, strictly increasing.

    A file that is not younger than its predecessor counts as 1 ms younger.
    A version whose commit file is gone takes its checkpoint's time, which may be later than the commit's, but
    not later than the next commit's.
    """
    times: dict[int, int] = {}
    last: int | None = None
    for version in sorted(listing.commits):
        own = listing.commits[version].modified_ms
        last = own if last is None or own > last else last + 1
        times[version] = last
    for version in sorted(set(listing.checkpoints) - set(times), reverse=True):
        own = min(meta.modified_ms for meta in listing.checkpoints[version][0].files)
        after = times.get(version + 1)
        times[version] = own if after is None else min(own, after - 1)
    return times


def newest_at(versions: Sequence[int], timestamp_ms: int, time_of: Callable[[int], int]) -> int | None:
    """The newest of ascending versions whose time is not after a moment, asking for few times only."""
    at = bisect_right(versions, timestamp_ms, key=time_of)
    return versions[at - 1] if at else None


def _number(text: str | None) -> int | None:
    number = number_or(text, -1)
    return None if number < 0 else number
