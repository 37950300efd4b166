"""Clocks that go wrong: commit times still increase, and time travel still finds the right version."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

import deltalake
import psycopg
import pytest
from psycopg import sql

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.engines.postgres import PostgresEngine
from support.invariants import check_table
from support.lake import ids
from support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000


def append_a_day_later(uri: str, location: str) -> None:
    """A machine whose clock is a day ahead."""
    right = time.time_ns
    time.time_ns = lambda: right() + DAY_MS * 1_000_000
    catalog = Catalog(uri)
    catalog.write("t", ids(1), location=location)
    catalog.write("t", ids(2), mode="append")


def append(uri: str, *numbers: int) -> None:
    catalog = Catalog(uri)
    for number in numbers:
        catalog.write("t", ids(number), mode="append")


def check(uri: str, root: Path) -> None:
    with Catalog(uri) as catalog:
        found = check_table(catalog, "t", published=True)
        history = catalog.log("t").history()
    assert found.ids == [1, 2, 3, 4]
    ahead = (time.time_ns() // 1_000_000) + DAY_MS // 2
    assert all(c.committed_at > ahead for c in history), "later commits follow the one from the future"
    for commit in history:
        moment = dt.datetime.fromtimestamp(commit.committed_at / 1000, dt.UTC)
        for table in (deltalake.DeltaTable(root), Catalog(uri).table("t")):
            table.load_as_version(moment)
            assert table.version() == commit.version


@pytest.mark.parametrize("engine_name", ["sqlite", "duckdb"])
def test_commit_times_increase_although_the_clock_was_set_back(catalog_uri: str, tmp_path: Path) -> None:
    Child(append_a_day_later, catalog_uri, str(tmp_path / "t"), folder=tmp_path).result()
    Child(append, catalog_uri, 3, 4, folder=tmp_path).result()
    check(catalog_uri, tmp_path / "t")


@pytest.mark.parametrize("engine_name", ["postgres"])
def test_commit_times_increase_although_the_servers_clock_was_set_back(
    catalog_uri: str, tmp_path: Path, pg_dsn: str, pg_schema: str
) -> None:
    with (
        Catalog(catalog_uri, create=True) as catalog,
        psycopg.connect(pg_dsn, autocommit=True) as server,
    ):
        # a function of the same name in front of the server's own is a clock that can be set
        schema = sql.Identifier(pg_schema)
        server.execute(
            sql.SQL(
                "CREATE FUNCTION {}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
                "$$ SELECT pg_catalog.clock_timestamp() + interval '1 day' $$"
            ).format(schema)
        )
        ahead = f"{catalog_uri}?application_name=ahead"
        engine = Database.open(parse_address(ahead)).engine
        assert isinstance(engine, PostgresEngine)
        engine.search_path = f'"{pg_schema}", pg_catalog'
        with Catalog(ahead) as early:
            early.write("t", ids(1), location=tmp_path / "t")
            early.write("t", ids(2), mode="append")
        server.execute(sql.SQL("DROP FUNCTION {}.clock_timestamp()").format(schema))
        del catalog
    Child(append, catalog_uri, 3, 4, folder=tmp_path).result()
    check(catalog_uri, tmp_path / "t")


@pytest.mark.parametrize("engine_name", ["postgres"])
def test_a_process_with_a_wrong_clock_cannot_lead_postgres_astray(catalog_uri: str, tmp_path: Path) -> None:
    Child(append_a_day_later, catalog_uri, str(tmp_path / "t"), folder=tmp_path).result()
    with Catalog(catalog_uri) as catalog:
        times: list[Any] = [c.committed_at for c in catalog.log("t").history()]
    assert max(times) < time.time_ns() // 1_000_000 + DAY_MS // 2
