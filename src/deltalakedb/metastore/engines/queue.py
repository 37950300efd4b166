"""Turns of the threads of one process: short notes go before long transactions."""

from __future__ import annotations

import threading


class Queue:
    """A lock whose waiters come in two kinds; those in a hurry go first.

    What is in a hurry must be short and come seldom: nobody else has a turn while some of it waits.
    """

    def __init__(self) -> None:
        guard = threading.Lock()
        self._plain = threading.Condition(guard)
        self._hurried = threading.Condition(guard)
        self._in_a_hurry = 0
        self._held = False

    def acquire(self, *, timeout: float, hurry: bool = False) -> bool:
        """Wait for the turn; False where it did not come in time."""
        mine = False
        here = self._hurried if hurry else self._plain
        with here:
            self._in_a_hurry += hurry
            try:
                mine = here.wait_for(lambda: not self._held and (hurry or not self._in_a_hurry), timeout)
                self._held = self._held or mine
            finally:
                self._in_a_hurry -= hurry
                if not self._held:
                    self._wake()  # who was woken and cannot take it any more hands it on
        return mine

    def release(self) -> None:
        """Give the turn back."""
        with self._plain:
            self._held = False
            self._wake()

    def _wake(self) -> None:
        (self._hurried if self._in_a_hurry else self._plain).notify()
