"""How fast an import goes: what it tells, and how long it rests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalakedb.transfer.report import ImportProgress

if TYPE_CHECKING:
    from deltalakedb.transfer.engines import LoadTask


@dataclass(slots=True)
class Pace:
    """Progress and the rate limit of one run."""

    task: LoadTask
    total: int
    done: int
    seen: int
    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    here: int = 0

    def step(self, steps: int, actions: int) -> None:
        """Count a batch, wait where it came too fast, and tell."""
        self.done += steps
        self.steps += steps
        self.seen += actions
        self.here += actions
        if limit := self.task.rate_limit:
            ahead = self.here / limit - (time.monotonic() - self.began)
            if ahead > 0:
                _rest(ahead)
        self.tell()

    def tell(self) -> None:
        """Say how far it is."""
        passed = max(time.monotonic() - self.began, 1e-6)
        left = passed / self.steps * max(0, self.total - self.done) if self.steps else None
        progress = ImportProgress(
            "loading",
            self.done,
            self.total,
            self.seen,
            round(self.here / passed, 1),
            None if left is None else round(left, 1),
        )
        self.task.tell(progress)


def _rest(seconds: float) -> None:
    """Do nothing for a while."""
    time.sleep(seconds)
