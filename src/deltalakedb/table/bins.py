"""Which files a compaction puts together: neighbours, up to a target size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file as the planning sees it."""

    file: int
    group: Hashable  # its partition
    size: int


def bins(candidates: Iterable[Candidate], target: int) -> list[list[Candidate]]:
    """The groups of files that become one file each.

    Files are taken in the order given. Those above the target stay as they are and part their neighbours; a
    bin ends where the next file would not fit any more. A bin of one file would change nothing, and is none.

    Args:
        candidates: The files, newest first.
        target: The size that a new file may have.
    """
    current: dict[Hashable, list[Candidate]] = {}
    sizes: dict[Hashable, int] = {}
    done: list[list[Candidate]] = []
    for candidate in candidates:
        group = candidate.group
        if sizes.get(group, 0) + candidate.size > target:
            done.append(current.pop(group, []))
            sizes[group] = 0
        if candidate.size <= target:
            current.setdefault(group, []).append(candidate)
            sizes[group] = sizes.get(group, 0) + candidate.size
    done += current.values()
    return [b for b in done if len(b) > 1]
