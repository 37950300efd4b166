"""The test bench itself: real engines, and nothing shared between two tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from deltalakedb.address import parse_address

if TYPE_CHECKING:
    from conftest import TableUri
    from support.postgres import PostgresDatabase

seen: set[str] = set()


@pytest.mark.parametrize("turn", ["first", "second"])
def test_every_test_gets_a_catalog_of_its_own(catalog_uri: str, engine_name: str, turn: str) -> None:
    assert catalog_uri.startswith(f"deltasql://{engine_name}/")
    assert catalog_uri not in seen
    seen.add(catalog_uri)


def test_a_table_address_extends_the_catalog_address(catalog_uri: str, table_uri: TableUri) -> None:
    address = table_uri("sales.orders")

    assert address.startswith(f"{catalog_uri}?table=sales.orders&location=/")
    assert table_uri("a b", sslmode="disable").endswith("/a%20b&sslmode=disable")


def test_the_library_reads_the_addresses_of_the_bench(
    catalog_uri: str, table_uri: TableUri, engine_name: str
) -> None:
    assert parse_address(catalog_uri).table is None

    address = parse_address(table_uri("orders"))

    assert (address.engine, address.table) == (engine_name, "orders")
    assert (address.location or "").endswith("/lake/orders")


def test_postgres_is_a_real_server_that_trades_safety_for_speed(pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn) as connection:
        assert connection.info.server_version >= 160000
        assert connection.execute("SHOW fsync").fetchone() == ("off",)


def test_a_schema_is_dropped_even_when_a_session_still_holds_it(pg_database: PostgresDatabase) -> None:
    with psycopg.connect(pg_database.dsn, autocommit=True) as owner:
        owner.execute("CREATE SCHEMA held")
        owner.execute("CREATE TABLE held.t (x int)")
    forgotten = psycopg.connect(pg_database.dsn)
    forgotten.execute("LOCK TABLE held.t IN ACCESS SHARE MODE")

    pg_database.drop_schema("held")

    with psycopg.connect(pg_database.dsn) as check:
        found = check.execute(sql.SQL("SELECT count(*) FROM pg_namespace WHERE nspname = 'held'")).fetchone()
        assert found == (0,)
    forgotten.close()
