"""How often work is repeated after a conflict, and after what pause."""

from __future__ import annotations

import random
from typing import Final

from deltalakedb.exceptions import CatalogBusyError, ConflictError, InvalidArgumentError

#: what may go better the next time
RETRIED: Final = (ConflictError, CatalogBusyError)


class Retries:
    """Counts the attempts of one piece of work.

    Args:
        most: How often it is repeated before its error is raised.
    """

    def __init__(self, most: int) -> None:
        if most < 0:
            raise InvalidArgumentError(f"retries must be 0 or more, not {most}")
        self._left = most
        self._made = 0

    def pause(self, error: ConflictError | CatalogBusyError) -> float:
        """Seconds to wait before the next attempt; where none is left, the error is raised."""
        if not self._left:
            raise error
        self._left -= 1
        self._made += 1
        return backoff(self._made - 1)


def backoff(attempt: int, *, first: float = 0.02, longest: float = 2.0) -> float:
    """Seconds to wait before an attempt is repeated: doubling, with full jitter."""
    return random.uniform(0, min(longest, first * 2**attempt))  # noqa: S311 - not a secret
