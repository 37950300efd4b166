"""How long to leave alone what failed."""

from __future__ import annotations

import random

#: wait before the first retry; doubles with every attempt
_FIRST_MS = 1_000
_LONGEST_MS = 300_000


def wait_ms(attempts: int) -> int:
    """Milliseconds until the next try, after so many that failed before this one."""
    wait = min(_FIRST_MS * 2 ** min(attempts, 20), _LONGEST_MS)
    return int(wait * random.uniform(0.8, 1.2))  # noqa: S311 - so that several do not try in step
