"""The SQL statements that a block sends."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalakedb.telemetry import subscribe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.telemetry import Event


@dataclass(slots=True)
class StatementCounter:
    """The statements that were sent, by name and in order."""

    statements: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.statements)


@contextmanager
def count_statements(*, this_thread: bool = False) -> Iterator[StatementCounter]:
    """Collect the SQL statements of a block, those of all threads or of this one alone."""
    counter, thread = StatementCounter(), threading.get_ident()

    def collect(event: Event) -> None:
        if event.name == "sql_statement" and (not this_thread or threading.get_ident() == thread):
            counter.statements.append(event.labels.get("statement", ""))

    unsubscribe = subscribe(collect)
    try:
        yield counter
    finally:
        unsubscribe()
