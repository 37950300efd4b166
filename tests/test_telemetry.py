"""Signals: free while unused, harmless while used."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltalakedb import telemetry
from deltalakedb.telemetry import Event, emit, subscribe, timed
from support.statements import count_statements

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def events() -> Iterator[list[Event]]:
    seen: list[Event] = []
    unsubscribe = subscribe(seen.append)
    yield seen
    unsubscribe()


def test_nobody_listens_by_default_and_emitting_is_fine() -> None:
    assert not telemetry.active()
    emit("publish_total", outcome="ok")
    with timed("commit_duration_seconds", operation="WRITE", engine="sqlite") as timer:
        timer.outcome = "conflict"


def test_a_subscriber_hears_value_and_labels_until_it_leaves() -> None:
    seen: list[Event] = []
    unsubscribe = subscribe(seen.append)
    assert telemetry.active()
    emit("publish_lag_versions", 3, table="t")
    emit("publish_total", outcome="ok")
    unsubscribe()
    unsubscribe()
    emit("publish_total", outcome="late")
    assert seen == [
        Event("publish_lag_versions", 3.0, {"table": "t"}),
        Event("publish_total", 1.0, {"outcome": "ok"}),
    ]
    assert not telemetry.active()


def test_one_callback_subscribed_twice_leaves_once_at_a_time(events: list[Event]) -> None:
    first = subscribe(events.append)
    emit("publish_total", outcome="a")
    first()
    emit("publish_total", outcome="b")
    assert [e.labels["outcome"] for e in events] == ["a", "a", "b"]


def test_a_failing_subscriber_is_logged_and_the_others_still_hear(
    events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("boom")

    unsubscribe = subscribe(broken)
    late: list[Event] = []
    leave = subscribe(late.append)
    with caplog.at_level(logging.ERROR):
        emit("table_frozen", 1, table="t")
    unsubscribe()
    leave()
    assert len(events) == len(late) == 1
    assert "table_frozen" in caplog.text


def test_what_a_subscriber_causes_itself_is_dropped(events: list[Event]) -> None:
    unsubscribe = subscribe(lambda event: emit("sql_statement", 1, engine="sqlite", statement="echo"))
    emit("publish_total", outcome="ok")
    emit("publish_total", outcome="ok")
    unsubscribe()
    assert [e.name for e in events] == ["publish_total", "publish_total"]


def test_a_timer_tells_how_the_block_ended(events: list[Event]) -> None:
    labels = {"operation": "WRITE", "engine": "sqlite"}
    with timed("commit_duration_seconds", **labels):
        pass
    with timed("commit_duration_seconds", **labels) as timer:
        timer.outcome = "conflict"
    with pytest.raises(KeyError), timed("commit_duration_seconds", **labels):
        raise KeyError
    assert [e.labels["outcome"] for e in events] == ["ok", "conflict", "error"]
    assert all(e.value >= 0 and e.labels["engine"] == "sqlite" for e in events)
    assert set(events[0].labels) == set(telemetry.SIGNALS["commit_duration_seconds"].labels)


def test_statements_are_counted_by_name_and_thread() -> None:
    def other() -> None:
        emit("sql_statement", 1, engine="sqlite", statement="theirs")

    with count_statements() as everything, count_statements(this_thread=True) as mine:
        emit("sql_statement", 1, engine="sqlite", statement="ours")
        emit("publish_total", outcome="ok")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    emit("sql_statement", 1, engine="sqlite", statement="late")
    assert everything.statements == ["ours", "theirs"]
    assert mine.statements == ["ours"]
    assert len(mine) == 1
    assert not telemetry.active()


def test_subscribing_from_many_threads_loses_nobody() -> None:
    heard: list[int] = []
    leaves = []

    def join(number: int) -> None:
        leaves.append(subscribe(lambda event: heard.append(number)))

    threads = [threading.Thread(target=join, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emit("publish_total", outcome="ok")
    for leave in leaves:
        leave()
    assert sorted(heard) == list(range(32))
    assert not telemetry.active()


def test_every_signal_that_is_emitted_is_described() -> None:
    source = Path(telemetry.__file__).parent
    used = {
        name
        for file in source.rglob("*.py")
        for name in re.findall(r"telemetry\.(?:emit|timed)\(\s*\"(\w+)\"", file.read_text(encoding="utf-8"))
    }
    assert used == set(telemetry.SIGNALS)
    assert all(signal.help for signal in telemetry.SIGNALS.values())
