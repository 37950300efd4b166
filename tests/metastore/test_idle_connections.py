"""Connections that nobody uses are closed by themselves, but for those that are to be kept."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from deltalakedb import Catalog
from deltalakedb.metastore.engines.pool import Pool
from deltalakedb.settings import PoolConfig
from support.lake import ids
from support.processes import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def opened() -> tuple[list[object], Callable[..., Pool[object]]]:
    """The connections that are open, and what makes a pool of them."""
    open_now: list[object] = []

    def connect() -> object:
        made = object()
        open_now.append(made)
        return made

    def make(*, idle: float, keep: int = 0) -> Pool[object]:
        limits = PoolConfig(max_size=4, timeout_s=1, health_check_s=0, idle_s=idle, min_size=keep)
        return Pool(connect, open_now.remove, lambda _: True, limits)

    return open_now, make


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_idle_connections_are_closed_although_nobody_borrows(
    opened: tuple[list[object], Callable[..., Pool[object]]], keep: int
) -> None:
    open_now, make = opened
    pool = make(idle=0.05, keep=keep)
    for connection in [pool.take() for _ in range(4)]:
        pool.give(connection)
    until(lambda: len(open_now) == keep)
    assert pool.usage() == (0, keep)
    again = pool.take()  # and it still lends
    assert pool.usage()[0] == 1
    pool.give(again)
    pool.close()
    assert open_now == []


def test_lent_connections_are_left_alone(
    opened: tuple[list[object], Callable[..., Pool[object]]],
) -> None:
    open_now, make = opened
    pool = make(idle=0.05)
    lent, other = pool.take(), pool.take()
    pool.give(other)
    until(lambda: open_now == [lent])
    pool.give(lent)
    until(lambda: not open_now)


def test_one_timer_serves_many_uses(opened: tuple[list[object], Callable[..., Pool[object]]]) -> None:
    _, make = opened
    pool = make(idle=60)
    before = threading.active_count()
    for _ in range(100):
        pool.give(pool.take())
    assert threading.active_count() <= before + 1
    pool.close()


@pytest.mark.parametrize("engine_name", ["postgres"])
def test_many_catalogs_hold_no_connection_when_they_are_idle(
    catalog_uri: str, pg_dsn: str, tmp_path: Path
) -> None:
    name = f"idle-{os.getpid()}"
    catalogs = [
        Catalog(f"{catalog_uri}?application_name={name}", config={"pool": {"idle_s": 0.2, "max_size": 2 + n}})
        for n in range(5)
    ]
    for number, catalog in enumerate(catalogs):
        catalog.write(f"t{number}", ids(1), location=str(tmp_path / f"t{number}"))
    with psycopg.connect(pg_dsn, autocommit=True) as watch:

        def held() -> int:
            asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            row = watch.execute(asked, (name,)).fetchone()
            assert row is not None
            return int(row[0])

        until(lambda: held() == 0)
    assert [len(c.tables()) for c in catalogs] == [5] * 5  # and they open again
    for catalog in catalogs:
        catalog.close()
