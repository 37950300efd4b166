"""Signals for metrics and tests. Without a subscriber, one costs a comparison."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)


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


_COMMIT = ("operation", "engine", "outcome")
#: Every signal by name.
SIGNALS: Final[Mapping[str, Signal]] = {
    signal.name: signal
    for signal in (
        Signal("checkpoint_age_versions", "gauge", "Versions since the last checkpoint", ("table",)),
        Signal("commit_conflicts_total", "counter", "Commits refused because another was first", ("kind",)),
        Signal("commit_duration_seconds", "histogram", "From the call of commit to its answer", _COMMIT),
        Signal("commit_replays_total", "counter", "Commits that an earlier call had made", ("engine",)),
        Signal("follow_lag_versions", "gauge", "Versions of a followed log that its copy lacks", ("table",)),
        Signal("import_progress_ratio", "gauge", "Share of an import that is done, 0 to 1", ("table",)),
        Signal("open_duration_seconds", "histogram", "Opening a table at a version", ("engine", "outcome")),
        Signal("plan_duration_seconds", "histogram", "Finding the files of a read", ("engine", "outcome")),
        Signal("pool_connections", "gauge", "Connections of a pool, open and used", ("state",)),
        Signal("publish_lag_versions", "gauge", "Ratified versions that are not published yet", ("table",)),
        Signal("publish_oldest_unpublished_seconds", "gauge", "Age of the oldest of these", ("table",)),
        Signal("publish_total", "counter", "Log files published, or not", ("outcome",)),
        Signal("sql_statement", "counter", "Statements sent to the database", ("engine", "statement")),
        Signal("table_frozen", "gauge", "1 while the table refuses writes", ("table",)),
    )
}

_lock = threading.Lock()
_subscribers: tuple[Callable[[Event], object], ...] = ()
_inside = threading.local()


def active() -> bool:
    """Whether there is a subscriber: check before computing a costly label."""
    return bool(_subscribers)


def subscribe(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Call ``callback`` with every event, in the thread that emits it, until the returned function is called.

    A callback should be quick. Its exceptions are logged and not raised, and events that it causes itself,
    by a query for instance, are dropped.
    """
    # the wrapper distinguishes two subscriptions of one callback
    entry: Callable[[Event], object] = lambda event: callback(event)  # noqa: E731

    def change(*added: Callable[[Event], object]) -> None:
        global _subscribers
        with _lock:
            _subscribers = (*(e for e in _subscribers if e is not entry), *added)

    change(entry)
    return change


def emit(name: str, value: float = 1.0, /, **labels: str) -> None:
    """Call every subscriber. Returns at once if there is none, and never raises."""
    if _subscribers:
        _deliver(name, value, labels)


class Timer:
    """A context manager that emits its duration in seconds, with the ``outcome`` that was set on it.

    By default, that is ``ok``, or ``error`` if an exception leaves the block.

    Example:
        >>> with timed("commit_duration_seconds", operation="WRITE", engine="sqlite") as timer:
        ...     timer.outcome = "conflict"
    """

    __slots__ = ("_labels", "_name", "_start", "outcome")

    def __init__(self, name: str, /, **labels: str) -> None:
        self._name, self._labels = name, labels
        self._start: float | None = None
        self.outcome: str | None = None

    def __enter__(self) -> Self:
        if _subscribers:
            self._start = time.perf_counter()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._start is None or not _subscribers:
            return
        self._labels["outcome"] = self.outcome or ("ok" if kind is None else "error")
        _deliver(self._name, time.perf_counter() - self._start, self._labels)


timed = Timer


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
