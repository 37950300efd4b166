"""A bucket on moto's S3 server, tables made of actions in it, and a proxy that makes trouble on the way."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from deltalakedb.commit.committer import commit
from deltalakedb.commit.txn_log import SqlTxnLogWriter
from deltalakedb.protocol.txn_log import Committed
from deltalakedb.storage import Store, open_store
from support.actions import add, info, metadata, protocol, remove
from support.lake import ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.protocol.actions import Action

SECRET = "wJalrXUtnFEMI-secret"
Fault = Literal["500", "503", "403", "409", "hang", "lost answer", "cut"]
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}
_FIELDS = [
    {"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("id", "long"), ("part", "string"))
]


def s3_options(endpoint: str, **options: str) -> dict[str, str]:
    """Storage options for a server that needs no true credentials; nothing is retried by the client."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing-id",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
        "timeout": "20s",
        **options,
    }


@dataclass
class S3Table:
    """A table in a bucket whose commits are made of actions; its data files are real."""

    database: Database
    name: str
    location: str
    options: dict[str, str]
    live: dict[str, int] = field(default_factory=dict)
    version: int = -1

    @property
    def store(self) -> Store:
        """The table's root, without trouble on the way."""
        return open_store(self.location, self.options)

    def create(self, *features: str) -> S3Table:
        """Version 0, without files; with the table features that are named, where any are."""
        schema = json.dumps({"type": "struct", "fields": _FIELDS})
        meta = metadata(schema_string=schema, partition_columns=())
        modern = {"min_reader_version": 3, "min_writer_version": 7}
        named = {"reader_features": features, "writer_features": features}
        self._commit([protocol(**(modern | named if features else {})), meta, info("CREATE TABLE")])
        return self

    def append(self, *numbers: int) -> None:
        """One commit with one file for each number."""
        for number in numbers:
            content = io.BytesIO()
            pq.write_table(ids(number), content)
            path = f"part-{number}.parquet"
            self.store.put(path, content.getvalue())
            stats = {"numRecords": 1, "minValues": {"id": number}, "maxValues": {"id": number}}
            size = len(content.getvalue())
            action = add(path, partition_values={}, size=size, stats=json.dumps(stats))
            self._commit([action, info("WRITE", number=number)])
            self.live[path] = size

    def delete(self, number: int) -> None:
        """Remove the file of a number."""
        path = f"part-{number}.parquet"
        size = self.live.pop(path)
        self._commit([remove(path, partition_values={}, size=size), info("DELETE")])

    def _commit(self, actions: Sequence[Action]) -> None:
        writer = SqlTxnLogWriter(self.database, self.name, self.location, partial(commit, self.database))
        assert isinstance(writer.commit(self.version + 1, actions), Committed)
        self.version += 1


class Proxy:
    """An HTTP proxy before a server; requests that a fault is meant for do not reach it unharmed.

    Args:
        upstream: The server's address.
        secret: What a careless server quotes in its errors.
    """

    def __init__(self, upstream: str, secret: str = SECRET) -> None:
        self._secret = secret
        self._host = urlsplit(upstream).netloc
        self._faults: list[tuple[str, str, Fault]] = []
        self._lock = threading.Lock()
        #: the server behind keeps an upload's parts in a dictionary that two requests must not change at once
        self._parts = threading.Lock()
        self._over = threading.Event()
        #: every request that was made, as method and path
        self.requests: list[tuple[str, str]] = []
        #: every request that the server has seen and carried out
        self.done: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits for a delayed ACK

            def _any(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any  # noqa: N815 - their names

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """The proxy's own address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, fault: Fault, *, method: str = "PUT", path: str = ".json", times: int = 1) -> None:
        """Let the next requests whose path contains a text fail."""
        with self._lock:
            self._faults += [(method, path, fault)] * times

    def heal(self) -> None:
        """Forget faults that have not struck yet."""
        with self._lock:
            self._faults.clear()

    def close(self) -> None:
        """End, hanging requests included."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def puts(self, name: str) -> int:
        """How often the server was made to accept an object of a name."""
        return sum(method == "PUT" and name in path for method, path in self.done)

    def _next(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            for number, (verb, text, fault) in enumerate(self._faults):
                if verb == method and text in path:
                    del self._faults[number]
                    return fault
        return None

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(request.path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        fault = self._next(request.command, path)
        if fault == "cut":
            self._hang_up(request)
        elif fault == "hang":
            self._over.wait()
            self._hang_up(request)
        elif fault in ("500", "503", "403", "409"):
            # a careless server quotes what it was given
            quoted = f"http://x/y?X-Amz-Signature={self._secret} key {self._secret}"
            text = f"<Error><Code>E{fault}</Code><Message>{quoted}</Message></Error>".encode()
            self._answer(request, int(fault), {"Content-Type": "application/xml"}, text)
        else:
            with self._parts if "uploadId=" in path else nullcontext():
                status, headers, answer = self._forward(request, body)
            if status < 300:
                self.done.append((request.command, path))
            if fault == "lost answer":
                self._hang_up(request)
            else:
                self._answer(request, status, headers, answer)

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self._host)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        connection.request(request.command, request.path, body, headers)
        with connection.getresponse() as response:
            content = response.read()
            found = dict(response.getheaders())
        if request.command != "HEAD":
            found = {k: v for k, v in found.items() if k.lower() != "content-length"}
        connection.close()
        return response.status, found, content

    @staticmethod
    def _answer(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
        request.send_response_only(status)
        for key, value in headers.items():
            if key.lower() not in _HOP_BY_HOP or key.lower() == "content-length":
                request.send_header(key, value)
        if request.command != "HEAD":
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(b"" if request.command == "HEAD" else body)

    @staticmethod
    def _hang_up(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        request.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_before(upstream: str, secret: str = SECRET) -> Iterator[Proxy]:
    """A proxy for as long as the block lasts."""
    proxy = Proxy(upstream, secret)
    try:
        yield proxy
    finally:
        proxy.close()
