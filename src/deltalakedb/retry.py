"""Retries: how often failed work is repeated, and how long to wait before each attempt."""

from __future__ import annotations

import random
from typing import Final

from deltalakedb.exceptions import CatalogBusyError, ConflictError, InvalidArgumentError

#: errors after which a repetition may succeed
RETRIED: Final = (ConflictError, CatalogBusyError)
_FIRST_MS = 1_000


def backoff(attempt: int, *, first: float = 0.02, longest: float = 2.0, certain: float = 0.0) -> float:
    """Seconds to wait after so many earlier attempts: doubling from ``first`` to ``longest``, with jitter.

    ``certain`` is the share of the wait without jitter.
    """
    wait = min(longest, first * 2.0 ** min(attempt, 30))
    return wait * random.uniform(certain, 1)  # noqa: S311 - not a secret


def retry_in_ms(attempts: int) -> int:
    """Milliseconds until failed publishing, checkpoints or manifests are tried again."""
    return int(backoff(attempts, first=_FIRST_MS, longest=300_000, certain=0.8))


class Retries:
    """Counts the attempts of one piece of work; after ``most`` repetitions its error is raised."""

    def __init__(self, most: int) -> None:
        if most < 0:
            raise InvalidArgumentError(f"retries must be 0 or more, not {most}")
        self._most, self._made = most, 0

    def pause(self, error: ConflictError | CatalogBusyError) -> float:
        """Seconds to wait before the next attempt; raises the error if none is left."""
        if self._made >= self._most:
            raise error
        self._made += 1
        return backoff(self._made - 1)
