"""Writers on Postgres that stop or are cut off while others wait: every wait has an end."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.engines.postgres import PostgresSession
from deltalakedb.settings import Config
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


def _forward(listener: socket.socket, socket_dir: str) -> None:
    """Send what comes in at a listener to the server's socket, and back."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=forward, args=(client,), daemon=True).start()

    def forward(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(f"{socket_dir}/.s.PGSQL.5432")
            while True:
                for end in select.select([client, server], [], [])[0]:
                    if not (data := end.recv(1 << 16)):
                        return
                    (server if end is client else client).sendall(data)

    threading.Thread(target=serve, daemon=True).start()


@pytest.fixture
def tcp_uri(pg_database: PostgresDatabase, pg_schema: str) -> Iterator[str]:
    """A catalog's address over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _forward(listener, pg_database.socket_dir)
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
    database = Database.open(parse_address(tcp_uri))
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
    database = Database.open(parse_address(f"{tcp_uri}?keepalives_idle=77&tcp_user_timeout=99000"))
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


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def far_side() -> Iterator[tuple[str, str]]:
    """Another network stack: its name, and our address as it sees us. The link to it can be taken down."""
    number = os.getpid() % 250
    name, ours, theirs = f"dl{os.getpid()}", f"10.97.{number}.1", f"10.97.{number}.2"
    try:
        _ip("netns", "add", name)
        _ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        _ip("addr", "add", f"{ours}/24", "dev", f"{name}a")
        _ip("link", "set", f"{name}a", "up")
        _ip("-n", name, "addr", "add", f"{theirs}/24", "dev", f"{name}b")
        _ip("-n", name, "link", "set", f"{name}b", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        with suppress(OSError, subprocess.CalledProcessError):
            _ip("netns", "del", name)
        pytest.skip(f"this user cannot make a network that can be cut: {error}")
    yield name, ours
    _ip("netns", "del", name)


READS = """
import sys
from deltalakedb import Catalog
from deltalakedb.exceptions import CatalogUnavailableError
catalog = Catalog(sys.argv[1], config={"postgres": {"network_timeout_s": 3, "connect_timeout_s": 2}})
print(len(catalog.tables()), flush=True)
sys.stdin.readline()
try:
    print(catalog.tables())
except CatalogUnavailableError:
    print("given up")
"""


def test_a_read_over_a_dead_network_is_given_up(
    far_side: tuple[str, str], pg_database: PostgresDatabase, pg_schema: str
) -> None:
    name, address = far_side
    Catalog(pg_database.catalog_uri(pg_schema), create=True).close()
    with socket.create_server((address, 0)) as listener:
        _forward(listener, pg_database.socket_dir)
        port = listener.getsockname()[1]
        uri = f"deltasql://postgres/postgres@{address}:{port}/{pg_database.name}/{pg_schema}?sslmode=disable"
        with subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", READS, uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "0\n"
            _ip("link", "set", f"{name}a", "down")  # from now on nothing arrives, and nobody is told
            # without limits the kernel tries for a quarter of an hour
            assert reader.communicate("\n", timeout=60)[0] == "given up\n"
        listener.shutdown(socket.SHUT_RDWR)
