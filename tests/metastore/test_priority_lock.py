"""Turns of threads: who is in a hurry goes first, and nobody is forgotten."""

from __future__ import annotations

import threading

from deltalakedb.metastore.engines.duckdb import PriorityLock
from support.processes import until


def waiting(queue: PriorityLock) -> int:
    with queue._ready:
        return len(queue._ready._waiters) + len(queue._urgent_ready._waiters)  # type: ignore[attr-defined]


def test_who_is_in_a_hurry_goes_before_those_who_came_earlier() -> None:
    queue, order = PriorityLock(), list[str]()

    def work(name: str) -> None:
        assert queue.acquire(timeout=60, urgent=name.startswith("hurry"))
        order.append(name)
        queue.release()

    assert queue.acquire(timeout=1)
    threads = []
    for number, name in enumerate(("plain 1", "plain 2", "hurry 1", "plain 3", "hurry 2"), start=1):
        threads.append(threading.Thread(target=work, args=(name,)))
        threads[-1].start()
        until(lambda number=number: waiting(queue) == number)  # type: ignore[misc]
    queue.release()
    for thread in threads:
        thread.join(60)
    assert order[:2] == ["hurry 1", "hurry 2"]
    assert sorted(order[2:]) == ["plain 1", "plain 2", "plain 3"]
    assert queue.acquire(timeout=1), "the last one gave its turn back"


def test_who_gives_up_is_not_served_and_blocks_nobody() -> None:
    queue = PriorityLock()
    assert queue.acquire(timeout=1)
    assert not queue.acquire(timeout=0.001)
    assert not queue.acquire(timeout=0.001, urgent=True)
    queue.release()
    assert queue.acquire(timeout=1)
    queue.release()
    assert queue.acquire(timeout=1, urgent=True)


def test_turns_of_many_threads_never_overlap() -> None:
    queue, inside, most = PriorityLock(), 0, 0

    def work(number: int) -> None:
        nonlocal inside, most
        for _ in range(50):
            assert queue.acquire(timeout=60, urgent=number == 0)
            inside += 1
            most = max(most, inside)
            inside -= 1
            queue.release()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, inside) == (1, 0)
