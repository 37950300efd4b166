"""A wire to Postgres that can be cut: it sits between client and server on a socket of its own."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pathlib import Path

_NAME = ".s.PGSQL.5432"
#: the server is ready for a query, and in no transaction
_COMMITTED = b"Z\x00\x00\x00\x05I"


class Wire:
    """Forwards connections, and loses what it is told to lose.

    Attributes:
        lose: ``"answer"``: the next COMMIT reaches the server and its answer never comes back;
            ``"request"``: the next COMMIT never reaches it; None: nothing is lost.
        then_dead: True where nobody gets through any more after that.
        lost: How many COMMITs were lost.
    """

    def __init__(self, server_dir: str, folder: Path) -> None:
        self._server = f"{server_dir}/{_NAME}"
        self.folder = folder
        self.lose: str | None = None
        self.then_dead = False
        self.lost = 0
        self._dead = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _NAME))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def uri(self, database: str, schema: str) -> str:
        """The address of a catalog at the far end."""
        return f"deltasql://postgres/postgres@{quote(str(self.folder), safe='')}/{database}/{schema}"

    def mend(self) -> None:
        """Let everything through again."""
        self.lose, self._dead = None, False

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            if self._dead:
                return
            server.connect(self._server)
            while True:
                for end in select.select([client, server], [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is client and self.lose and b"COMMIT" in data:
                        self._lose(client, server, data)
                        return
                    (server if end is client else client).sendall(data)

    def _lose(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        how, self.lose = self.lose, None
        self.lost += 1
        self._dead = self.then_dead
        if how == "request":
            return
        server.sendall(data)
        answers = b""
        while _COMMITTED not in answers:
            # a pipelined COMMIT takes effect only with what the client sends after it
            for end in select.select([client, server], [], [])[0]:
                more = end.recv(1 << 16)
                if not more:
                    return
                if end is client:
                    server.sendall(more)
                else:
                    answers += more
