"""Writers on Postgres that stop or are cut off while others wait: every wait has an end."""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltalakedb import Catalog
from deltalakedb.catalog.database import Database
from deltalakedb.catalog.engines.postgres_session import PostgresSession
from deltalakedb.config import Config
from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.uri import parse_uri
from support.invariants import check_table
from support.lake import ids
from support.processes import Child, arm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.postgres import PostgresDatabase


@pytest.fixture
def engine_name() -> str:
    """Only a server outlives a client that stops."""
    return "postgres"


def writes_and_stops(uri: str, operation: str) -> str:
    """Stop while the head is held; what came of it once the process went on."""
    with Catalog(uri, config=Config(postgres={"hold_timeout_s": 0.5})) as catalog:
        arm("commit.locked=stop@1")
        try:
            if operation == "delete":
                catalog.table("a").delete("id = 1")
            else:
                catalog.write("a", ids(10), mode="append")
        except DeltaSqlError as error:
            return type(error).__name__
    return "done"


@pytest.mark.parametrize("operation", ["append", "delete"])
def test_a_writer_that_stops_while_it_holds_a_head_does_not_hold_up_others(
    operation: str, catalog_uri: str, tmp_path: Path
) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("a", ids(1, 2), location=str(tmp_path / "a"))
        child = Child(writes_and_stops, catalog_uri, operation, folder=tmp_path)
        child.pause()
        catalog.write("a", ids(3), mode="append")  # waits until the server has ended the other
        assert check_table(catalog, "a", published=True).ids == [1, 2, 3]
        child.resume()
        told = child.result()
        expected = {"append": [1, 2, 3, 10], "delete": [2, 3]}[operation] if told == "done" else [1, 2, 3]
        assert check_table(catalog, "a").ids == expected, told
        catalog.write("a", ids(4), mode="append")
        assert 4 in check_table(catalog, "a", published=True).ids


def test_a_transaction_that_only_reads_may_rest(catalog_uri: str, pg_dsn: str, tmp_path: Path) -> None:
    settings = Config(postgres={"hold_timeout_s": 0.2})
    with Catalog(catalog_uri, config=settings) as catalog:
        catalog.write("a", ids(1), location=str(tmp_path / "a"))
        with catalog.transaction() as tx, psycopg.connect(pg_dsn, autocommit=True) as server:
            assert tx.table("a").version() == 0
            server.execute("SELECT pg_sleep(1)")  # the user computes
            assert tx.query("SELECT version FROM dl_v_tables").to_pylist() == [{"version": 0}]
            tx.write("a", ids(2))
        assert check_table(catalog, "a", published=True).ids == [1, 2]


@pytest.fixture
def tcp_uri(pg_database: PostgresDatabase, pg_schema: str) -> Iterator[str]:
    """A catalog's address over TCP: what comes in there goes to the server's socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=forward, args=(client,), daemon=True).start()

        def forward(client: socket.socket) -> None:
            with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
                server.connect(f"{pg_database.socket_dir}/.s.PGSQL.5432")
                while True:
                    for end in select.select([client, server], [], [])[0]:
                        if not (data := end.recv(1 << 16)):
                            return
                        (server if end is client else client).sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        yield f"deltasql://postgres/postgres@127.0.0.1:{port}/{pg_database.name}/{pg_schema}"
        listener.shutdown(socket.SHUT_RDWR)


def _options(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """What the kernel has been told about the connection's socket."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        get = end.getsockopt
        return {
            "keepalive": get(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            "idle": get(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            "interval": get(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            "count": get(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            "user": get(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        }


def test_both_ends_give_up_a_dead_network_within_half_a_minute(tcp_uri: str) -> None:
    database = Database.open(parse_uri(tcp_uri))
    with database.engine.read() as session:
        assert isinstance(session, PostgresSession)
        mine = _options(session.connection)
        assert mine["keepalive"] == 1
        assert mine["idle"] + mine["interval"] * mine["count"] <= 30
        assert 0 < mine["user"] <= 30_000
        # the server's own end is a socket here: what it was asked for is what it would do
        asked = dict(
            part.split("=")
            for part in session.connection.info.get_parameters()["options"].split()
            if "=" in part
        )
        assert int(asked["tcp_keepalives_idle"]) + 2 * int(asked["tcp_keepalives_interval"]) <= 30
        assert 0 < int(asked["tcp_user_timeout"]) <= 30_000
    database.close()


def test_an_address_overrides_the_limits(tcp_uri: str) -> None:
    database = Database.open(parse_uri(f"{tcp_uri}?keepalives_idle=77&tcp_user_timeout=99000"))
    with database.engine.read() as session:
        assert isinstance(session, PostgresSession)
        mine = _options(session.connection)
        assert (mine["idle"], mine["user"]) == (77, 99_000)
    database.close()


def test_a_server_that_never_answers_a_connection_is_given_up() -> None:
    """It takes the connection and says nothing: connecting ends by its own limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        uri = f"deltasql://postgres/u@127.0.0.1:{port}/db/s?connect_timeout=2"
        with pytest.raises(DeltaSqlError):
            Catalog(uri, create=True)
