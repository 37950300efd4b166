"""Signals for metrics and tests: hooks that cost one comparison while nobody listens."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

__all__ = ["SIGNALS", "Event", "Signal", "StatementCounter", "Timer"]
__all__ += ["active", "count_statements", "emit", "subscribe", "timed"]

_log = logging.getLogger(__name__)

BUILD_INFO: Final = "build_info"
CHECKPOINT_AGE_VERSIONS: Final = "checkpoint_age_versions"
COMMIT_CONFLICTS_TOTAL: Final = "commit_conflicts_total"
COMMIT_DURATION_SECONDS: Final = "commit_duration_seconds"
COMMIT_REPLAYS_TOTAL: Final = "commit_replays_total"
FOLLOW_LAG_VERSIONS: Final = "follow_lag_versions"
IMPORT_PROGRESS_RATIO: Final = "import_progress_ratio"
OPEN_DURATION_SECONDS: Final = "open_duration_seconds"
PLAN_DURATION_SECONDS: Final = "plan_duration_seconds"
POOL_CONNECTIONS: Final = "pool_connections"
PUBLISH_LAG_VERSIONS: Final = "publish_lag_versions"
PUBLISH_OLDEST_UNPUBLISHED_SECONDS: Final = "publish_oldest_unpublished_seconds"
PUBLISH_TOTAL: Final = "publish_total"
SQL_STATEMENT: Final = "sql_statement"
TABLE_FROZEN: Final = "table_frozen"


@dataclass(frozen=True, slots=True)
class Signal:
    """What a signal means: an exporter needs no other source."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One value of a signal."""

    name: str
    value: float
    labels: Mapping[str, str]


#: Every signal by name.
SIGNALS: Final[Mapping[str, Signal]] = {
    signal.name: signal
    for signal in (
        Signal(BUILD_INFO, "gauge", "1, with the versions as labels", ("version", "deltalake", "python")),
        Signal(CHECKPOINT_AGE_VERSIONS, "gauge", "Versions since the last published checkpoint", ("table",)),
        Signal(COMMIT_CONFLICTS_TOTAL, "counter", "Commits refused because another was first", ("kind",)),
        Signal(
            COMMIT_DURATION_SECONDS,
            "histogram",
            "From the call of commit to its answer",
            ("operation", "engine", "outcome"),
        ),
        Signal(COMMIT_REPLAYS_TOTAL, "counter", "Commits that an earlier call had made already", ("engine",)),
        Signal(FOLLOW_LAG_VERSIONS, "gauge", "versions of a followed log that its copy lacks", ("table",)),
        Signal(IMPORT_PROGRESS_RATIO, "gauge", "Share of an import that is done, 0 to 1", ("table",)),
        Signal(OPEN_DURATION_SECONDS, "histogram", "Opening a table at a version", ("engine", "outcome")),
        Signal(PLAN_DURATION_SECONDS, "histogram", "Finding the files of a read", ("engine", "outcome")),
        Signal(POOL_CONNECTIONS, "gauge", "Connections of a pool, open and used", ("state",)),
        Signal(PUBLISH_LAG_VERSIONS, "gauge", "Ratified versions that are not published yet", ("table",)),
        Signal(PUBLISH_OLDEST_UNPUBLISHED_SECONDS, "gauge", "Age of the oldest of these", ("table",)),
        Signal(PUBLISH_TOTAL, "counter", "Log files published, or not", ("outcome",)),
        Signal(SQL_STATEMENT, "counter", "Statements sent to the database", ("engine", "statement")),
        Signal(TABLE_FROZEN, "gauge", "1 while the table refuses writes", ("table",)),
    )
}

_lock = threading.Lock()
_subscribers: tuple[Callable[[Event], object], ...] = ()
_inside = threading.local()


def active() -> bool:
    """True while somebody listens: ask before computing a costly label."""
    return bool(_subscribers)


def subscribe(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Call ``callback`` with every event, in the thread that emits it, until the returned function is called.

    A callback should be quick. What it raises is logged and goes no further, and events that it causes
    itself, by a query for instance, are dropped.
    """
    # A wrapper of its own makes two subscriptions of one callback two, each ended by its own function.
    entry: Callable[[Event], object] = lambda event: callback(event)  # noqa: E731
    _change(lambda entries: (*entries, entry))

    def unsubscribe() -> None:
        _change(lambda entries: tuple(e for e in entries if e is not entry))

    return unsubscribe


def emit(name: str, value: float = 1.0, /, **labels: str) -> None:
    """Tell every subscriber; returns at once where there is none, and never raises."""
    if _subscribers:
        _deliver(name, value, labels)


def timed(name: str, /, **labels: str) -> Timer:
    """A context manager that emits its duration in seconds, with the ``outcome`` that was set on it.

    Example:
        >>> with timed(COMMIT_DURATION_SECONDS, operation="WRITE", engine="sqlite") as timer:
        ...     timer.outcome = "conflict"
    """
    return Timer(name, labels)


class Timer:
    """A running ``timed`` block; ``outcome`` is ``ok``, or ``error`` where an exception leaves the block."""

    __slots__ = ("_labels", "_name", "_start", "outcome")

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self._name = name
        self._labels = labels
        self._start: float | None = None
        self.outcome: str | None = None

    def __enter__(self) -> Self:
        if _subscribers:
            self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._start is None or not _subscribers:
            return
        signal = SIGNALS.get(self._name)
        if signal is None or "outcome" in signal.labels:
            self._labels["outcome"] = self.outcome or ("ok" if kind is None else "error")
        _deliver(self._name, time.perf_counter() - self._start, self._labels)


@dataclass(slots=True)
class StatementCounter:
    """The statements that were sent, by name and in order."""

    statements: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.statements)


@contextmanager
def count_statements(*, this_thread: bool = False) -> Iterator[StatementCounter]:
    """Collect the SQL statements of a block, those of all threads or of this one alone.

    Example:
        >>> with count_statements() as counter:
        ...     emit(SQL_STATEMENT, 1, engine="sqlite", statement="open_table")
        >>> counter.statements
        ['open_table']
    """
    counter = StatementCounter()
    thread = threading.get_ident()

    def collect(event: Event) -> None:
        if event.name == SQL_STATEMENT and (not this_thread or threading.get_ident() == thread):
            counter.statements.append(event.labels.get("statement", ""))

    unsubscribe = subscribe(collect)
    try:
        yield counter
    finally:
        unsubscribe()


def _change(edit: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    global _subscribers
    with _lock:
        _subscribers = edit(_subscribers)


def _deliver(name: str, value: float, labels: dict[str, str]) -> None:
    if getattr(_inside, "callback", False):
        return
    event = Event(name, float(value), labels)
    _inside.callback = True
    try:
        for callback in _subscribers:
            try:
                callback(event)
            except Exception:
                _log.exception("a telemetry subscriber failed on %s", name)
    finally:
        _inside.callback = False
