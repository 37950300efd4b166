"""Retries: how often failed work is repeated, and how long to wait before each attempt."""

from __future__ import annotations

import random
from typing import Final

from deltalakedb.exceptions import CatalogBusyError, ConflictError, InvalidArgumentError

#: errors after which a repetition may succeed
RETRIED: Final = (ConflictError, CatalogBusyError)

#: for work that the catalog notes as failed: publishing, checkpoints, manifests
_FIRST_MS = 1_000
_LONGEST_MS = 300_000


def backoff(attempt: int, *, first: float = 0.02, longest: float = 2.0, certain: float = 0.0) -> float:
    """Seconds to wait before an attempt is repeated: doubling up to a limit, with jitter.

    Args:
        attempt: Attempts before this one, from 0.
        first: The longest wait after the first attempt.
        longest: The limit.
        certain: The share of the wait without jitter, from 0 to 1.
    """
    wait = min(longest, first * 2.0 ** min(attempt, 30))
    return wait * random.uniform(certain, 1)  # noqa: S311 - not a secret


def retry_in_ms(attempts: int) -> int:
    """Milliseconds until noted work is tried again, after that many earlier failures."""
    return int(backoff(attempts, first=_FIRST_MS, longest=_LONGEST_MS, certain=0.8))


class Retries:
    """Counts the attempts of one piece of work.

    Args:
        most: Repetitions before its error is raised.
    """

    def __init__(self, most: int) -> None:
        if most < 0:
            raise InvalidArgumentError(f"retries must be 0 or more, not {most}")
        self._left = most
        self._made = 0

    def pause(self, error: ConflictError | CatalogBusyError) -> float:
        """Seconds to wait before the next attempt; raises the error if none is left."""
        if not self._left:
            raise error
        self._left -= 1
        self._made += 1
        return backoff(self._made - 1)
