"""The queue of SQLite's writers: first come, first served, across threads and processes."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.metastore.engines.sqlite import WriterLock
from support.processes import Child, event, until

if TYPE_CHECKING:
    from collections.abc import Iterator

WAITERS = 6


@contextmanager
def turn_at(path: Path, timeout: float) -> Iterator[bool]:
    """Take a turn, if it comes in time, for as long as the block runs."""
    turn = WriterLock(path)
    mine = turn.acquire(timeout)
    try:
        yield mine
    finally:
        if mine:
            turn.release()


def waiting(path: Path) -> int:
    """How many wait for a lock on a file, by the kernel's own list."""
    inode = f":{path.stat().st_ino} "
    return sum("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def take_turn(path: str, order: str, number: int) -> None:
    """Wait for the turn, and write down that it came."""
    with turn_at(Path(path), 60) as mine:
        assert mine
        with Path(order).open("a") as file:
            file.write(f"{number}\n")


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who waits for a file lock")
def test_turns_come_in_the_order_of_arrival(tmp_path: Path) -> None:
    path, order = tmp_path / "turn", tmp_path / "order"
    everybody: list[Any] = []
    with turn_at(path, 1) as mine:
        assert mine
        for number in range(WAITERS):
            if number % 2:
                everybody.append(Child(take_turn, str(path), str(order), number, folder=tmp_path))
            else:
                thread = threading.Thread(target=take_turn, args=(str(path), str(order), number))
                thread.start()
                everybody.append(thread)
            until(lambda number=number: waiting(path) == number + 1)  # type: ignore[misc]
        with turn_at(path, 0.01) as late:
            assert not late, "somebody who gives up is not served"
    for one in everybody:
        one.result() if isinstance(one, Child) else one.join(60)
    assert order.read_text().split() == [str(n) for n in range(WAITERS)]


def hold(path: str, held: Any) -> None:
    with turn_at(Path(path), 1):
        held.set()
        threading.Event().wait(60)


def test_the_turn_of_a_dead_process_is_free(tmp_path: Path) -> None:
    held = event()
    holder = Child(hold, str(tmp_path / "turn"), held, folder=tmp_path)
    assert held.wait(60)
    with turn_at(tmp_path / "turn", 0.01) as mine:
        assert not mine
    holder.kill()
    with turn_at(tmp_path / "turn", 60) as mine:
        assert mine
