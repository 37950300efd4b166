"""Sessions on Postgres: commits are durable whatever the server says, and users' own tables are found."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from deltalakedb import Catalog
from deltalakedb.exceptions import CatalogError
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.postgres import PostgresDatabase

pytestmark = pytest.mark.parametrize("engine_name", ["postgres"])


@contextmanager
def database_setting(database: PostgresDatabase, name: str, value: Any) -> Iterator[None]:
    """What ``ALTER DATABASE … SET`` gives to every new session."""
    target = sql.Identifier(database.name)
    with psycopg.connect(database.dsn, autocommit=True) as server:
        server.execute(
            sql.SQL("ALTER DATABASE {} SET {} = {}").format(target, sql.Identifier(name), sql.SQL(value))
        )
        try:
            yield
        finally:
            server.execute(sql.SQL("ALTER DATABASE {} RESET {}").format(target, sql.Identifier(name)))


@pytest.mark.parametrize(
    ("server", "ours"),
    [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "on"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ],
)
def test_commits_wait_for_the_disk_although_the_database_does_not_ask_for_it(
    catalog_uri: str, pg_database: PostgresDatabase, tmp_path: Path, server: str, ours: str
) -> None:
    setting = database_setting(pg_database, "synchronous_commit", server)
    with setting, Catalog(catalog_uri, create=True) as catalog:
        assert catalog.query("SHOW synchronous_commit").to_pydict() == {"synchronous_commit": [ours]}
        with catalog.transaction() as tx:
            tx.write("t", ids(1), location=tmp_path / "t")
            tx.execute("CREATE TABLE seen AS SELECT current_setting('synchronous_commit') AS level")
        assert catalog.query("SELECT level FROM seen").to_pydict() == {"level": [ours]}
        with psycopg.connect(pg_database.dsn) as other:
            assert other.execute("SHOW synchronous_commit").fetchone() == (server,)


def test_commits_take_the_head_as_it_is_whatever_the_database_says_of_isolation(
    catalog_uri: str, pg_database: PostgresDatabase
) -> None:
    setting = database_setting(pg_database, "default_transaction_isolation", "serializable")
    with setting, Catalog(catalog_uri, create=True) as catalog:
        with catalog.transaction() as tx:
            tx.execute("CREATE TABLE seen AS SELECT current_setting('transaction_isolation') AS level")
        assert catalog.query("SELECT level FROM seen").to_pydict() == {"level": ["read committed"]}


def test_own_tables_are_found_by_the_names_that_other_sessions_use(
    catalog_uri: str, pg_database: PostgresDatabase, pg_schema: str, tmp_path: Path
) -> None:
    app, log = f"{pg_schema}_app", f"log_{pg_schema}"
    with psycopg.connect(pg_database.dsn, autocommit=True) as server:
        server.execute(f"CREATE SCHEMA {app}")
        try:
            server.execute(f"CREATE TABLE public.{log} (id int, note text)")
            server.execute(f"CREATE TABLE {app}.orders_log (id int)")
            with database_setting(pg_database, "search_path", f"{app}, public"):
                _use_own_tables(catalog_uri, tmp_path, log)
            rows = server.execute(f"SELECT id, note FROM public.{log} ORDER BY id").fetchall()
            assert rows == [(1, "one"), (2, "two")]
            assert server.execute(f"SELECT id FROM {app}.orders_log").fetchall() == [(7,)]
            assert server.execute(f"SELECT id FROM {pg_schema}.beside").fetchall() == [(3,)]
        finally:
            server.execute(f"DROP SCHEMA {app} CASCADE")
            server.execute(f"DROP TABLE IF EXISTS public.{log}")


def _use_own_tables(catalog_uri: str, tmp_path: Path, log: str) -> None:
    with Catalog(catalog_uri) as catalog:
        with catalog.transaction() as tx:
            tx.write("t", ids(1), location=tmp_path / "t")
            tx.execute(f"INSERT INTO {log} VALUES (?, ?)", (1, "one"))
            tx.execute("INSERT INTO orders_log VALUES (7)")
            tx.execute("CREATE TABLE beside (id int)")  # new tables lie beside the catalog's
            tx.execute("INSERT INTO beside VALUES (3)")
        with catalog.transaction() as tx:
            # our own statements and the user's take turns on one snapshot
            assert tx.query(f"SELECT note FROM {log}").to_pydict() == {"note": ["one"]}
            assert tx.query("SELECT name FROM dl_v_tables").to_pydict() == {"name": ["t"]}
            assert ids_of(tx.table("t")) == [1]
            assert tx.query("SELECT id FROM orders_log").to_pydict() == {"id": [7]}
            tx.write("t", ids(2))
            tx.execute(f"INSERT INTO {log} VALUES (2, 'two')")
        # a connection that ran a user's statement is as good as new
        catalog.write("t", ids(3), mode="append")
        assert ids_of(catalog.table("t")) == [1, 2, 3]
        assert catalog.query(f"SELECT count(*) AS n FROM {log}").to_pydict() == {"n": [2]}


def test_a_path_of_the_users_own_does_not_lead_our_statements_astray(
    catalog_uri: str, pg_database: PostgresDatabase, pg_schema: str, tmp_path: Path
) -> None:
    decoy = f"{pg_schema}_decoy"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t")
    with psycopg.connect(pg_database.dsn, autocommit=True) as server:
        server.execute(f"CREATE SCHEMA {decoy}")
        try:
            server.execute(f"CREATE TABLE {decoy}.dl_tables (name text)")
            server.execute(
                f"CREATE FUNCTION {decoy}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
                "$$ SELECT timestamptz '1999-01-01' $$"
            )
            path = quote(f"-c search_path={decoy},pg_catalog")
            with Catalog(f"{catalog_uri}?options={path}") as catalog:
                catalog.write("t", ids(2), mode="append")
                assert [t.name for t in catalog.tables()] == ["t"]
                assert ids_of(catalog.table("t")) == [1, 2]
                times = [c.committed_at for c in catalog.log("t").history()]
                assert all(t > 1_600_000_000_000 for t in times)
        finally:
            server.execute(f"DROP SCHEMA {decoy} CASCADE")


def test_a_wrong_question_does_not_end_the_transaction(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t")
        with catalog.transaction() as tx:
            tx.write("t", ids(2))
            with pytest.raises(CatalogError):
                tx.query("SELECT * FROM no_such_table")
            tx.query("SELECT set_config('search_path', 'pg_catalog', true)")
            assert ids_of(tx.table("t")) == [1, 2]
            assert tx.query("SELECT count(*) AS n FROM dl_tables").to_pydict() == {"n": [1]}
        assert ids_of(catalog.table("t")) == [1, 2]


def test_an_idle_transaction_that_the_server_ends_can_be_committed_still(
    catalog_uri: str, pg_database: PostgresDatabase, tmp_path: Path
) -> None:
    """A server may limit how long a session idles in a transaction; only reading needs that session."""
    with Catalog(f"{catalog_uri}?application_name=idler") as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t")
        with catalog.transaction() as tx:
            tx.write("t", ids(2))
            with psycopg.connect(pg_database.dsn, autocommit=True) as server:
                ended = server.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'idler' AND state = 'idle in transaction'"
                ).fetchall()
            assert ended == [(True,)]
        assert ids_of(catalog.table("t")) == [1, 2]
