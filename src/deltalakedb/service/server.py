"""The HTTP server for commits of other engines: callers, limits, and the form of answers."""

from __future__ import annotations

import hmac
import io
import ipaddress
import json
import logging
import re
import socket
import threading
import time
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qs

from deltalakedb._version import __version__
from deltalakedb.exceptions import ConfigError, DeltaSqlError
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.redaction import redact
from deltalakedb.service.ratifier import Ratifier
from deltalakedb.settings import get_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from _typeshed import WriteableBuffer

    from deltalakedb.address import Address
    from deltalakedb.redaction import Secret
    from deltalakedb.settings import Config, ServiceConfig

logger = logging.getLogger(__name__)

#: marks an answer as ours: a 404 of another server must not be taken for "not a table of the catalog"
ANSWER_HEADER: Final = "Deltasql-Answer"
#: seconds between requests that an authenticated caller may be silent, and any other caller
_SILENCE_S: Final = 60.0
_STRANGER_S: Final = 10.0
#: seconds, bytes and lines that the head of a request may take, from its first byte on
_HEAD_S: Final = 10.0
_HEAD_BYTES: Final = 64 * 1024
_HEAD_LINES: Final = 100
#: seconds that a body may take, and the least bytes a second
_BODY_S: Final = 30.0
_BODY_RATE: Final = 100_000
#: headers that must not come twice: proxies and servers differ in which one they believe
_ONCE: Final = frozenset({"host", "content-length", "transfer-encoding", "authorization", "expect"})
_REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])\r\n")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):([^\x00-\x08\x0a-\x1f\x7f]*)\r\n")
_NUMBER: Final = re.compile("[0-9]{1,18}")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,60})\]|([A-Za-z0-9._-]{1,255}))(?::[0-9]{1,5})?")
#: bytes of a refused request that are read, so that its sender gets to read the answer
_DRAINED: Final = 1024**2
#: seconds that a stop waits for requests in progress
_PATIENCE_S: Final = 60.0
#: seconds until a stop is noticed
_LOOK_S: Final = 0.1
#: characters of a request that are logged
_LINE: Final = 1000
_BUSY: Final = b"the service has too many connections: ask again\n"
_FULL: Final = (
    f"HTTP/1.1 503 Service Unavailable\r\n{ANSWER_HEADER}: later\r\nContent-Type: text/plain\r\n"
    f"Content-Length: {len(_BUSY)}\r\nConnection: close\r\n\r\n"
).encode() + _BUSY
_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


def commit_server(
    catalog: Address,
    token: Secret,
    *,
    config: Config | None = None,
    tables: Mapping[str, str] | None = None,
    host: str | None = None,
    port: int | None = None,
    max_bytes: int | None = None,
) -> CommitServer:
    """A server for commits to a catalog's tables, not started yet.

    Args:
        catalog: The catalog.
        token: The token that callers must send.
        config: The settings; by default the current ones.
        tables: Names of tables that may be created, with their locations.
        host: The address to listen at, instead of ``service.host``.
        port: The port, instead of ``service.port``; 0 for a free one.
        max_bytes: The size of the largest commit, instead of ``service.max_bytes``.

    Raises:
        ConfigError: The server cannot listen at this address and port.
    """
    config = config or get_config()
    database = Database.open(catalog.catalog, config)
    database.ensure()
    given = {"host": host, "port": port, "max_bytes": max_bytes}
    service = config.service.model_copy(update={key: v for key, v in given.items() if v is not None})
    return CommitServer(Ratifier(database, tables), token, service)


class CommitServer(ThreadingHTTPServer):
    """A ratifier behind HTTP, served by threads of this process.

    Args:
        ratifier: Decides on commits.
        token: The token that callers must send.
        service: The address to listen at, and the limits.

    Raises:
        ConfigError: The server cannot listen at this address and port.

    Example:
        >>> with commit_server(address, token, port=0) as server:
        ...     print(server.url)
        http://127.0.0.1:40713
    """

    # the end of the process does not wait for callers that only keep a connection open
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, ratifier: Ratifier, token: Secret, service: ServiceConfig) -> None:
        host, port = service.host, service.port
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.ratifier = ratifier
        self.token = token
        self.max_bytes = service.max_bytes
        self.max_connections = service.max_connections
        names = ("localhost", socket.gethostname(), host, *service.allowed_hosts.split(","))
        #: the host names by which callers may reach the service, beside IP addresses
        self.names = {bare for name in names if (bare := name.strip().lower().rstrip("."))}
        self.stopping = False
        self._connections: set[socket.socket] = set()
        self._busy = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"nothing can be served at {host}, port {port}: {error.strerror or error}",
                suggestion="choose another port (0 for any that is free), or an address of this machine",
            ) from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}"
        if host not in _LOCAL:
            logger.warning(
                "commits are served at %s, beyond this machine and unencrypted: put a TLS proxy before it",
                host,
            )

    def start(self) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_LOOK_S,), name="deltasql-commits", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests, and wait for those in progress; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.shutdown()
            thread.join()
        self.server_close()
        with self._changed:
            self.stopping = True
            for connection in self._connections:
                with suppress(OSError):  # a wait for the next request ends; answers can still be sent
                    connection.shutdown(socket.SHUT_RD)
            if not self._changed.wait_for(lambda: self._busy == 0, _PATIENCE_S):
                logger.warning("%d requests were still in progress when the service stopped", self._busy)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextmanager
    def request_in_progress(self) -> Iterator[None]:
        """A stop waits for the end of the block."""
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection by a thread of its own, unless there are too many."""
        with self._changed:
            full = len(self._connections) >= self.max_connections
            if not full:
                self._connections.add(request)
        if not full:
            super().process_request(request, client_address)
            return
        logger.warning("a connection was refused: %d are open", self.max_connections)
        with suppress(OSError):
            request.setblocking(False)
            request.send(_FULL)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._changed:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log a connection that broke: its caller asks again, and finds the result of its request."""
        logger.info("a connection broke", exc_info=logger.isEnabledFor(logging.DEBUG))


class _HeadTooLongError(Exception):
    """The head of a request is longer than any that makes sense."""


class _Incoming(io.RawIOBase):
    """The bytes of a connection; each part of a request has a deadline, however slowly its bytes arrive."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = 0.0
        self._left: int | None = None

    def expect(self, seconds: float, most: int | None = None) -> None:
        """Limit the seconds, and perhaps the bytes, of the next part."""
        self._until = time.monotonic() + seconds
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the request took too long")
        if self._left is not None and self._left <= 0:
            raise _HeadTooLongError
        self._connection.settimeout(remaining)
        count = self._connection.recv_into(buffer)
        if self._left is not None:
            self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"deltasql/{__version__}"
    sys_version = ""
    timeout = _SILENCE_S
    disable_nagle_algorithm = True
    server: CommitServer
    rfile: io.BufferedReader
    # needed by answers and logs even if a request cannot be read
    requestline = ""
    request_version = "HTTP/1.1"
    raw_requestline = b""
    command = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)
        self._authenticated = False
        self._fields: dict[str, str] = {}

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it within bounds of time and size."""
        self.close_connection = True
        try:
            self._incoming.expect(_SILENCE_S if self._authenticated else _STRANGER_S)
            if not self.rfile.peek(1):
                return
            self._incoming.expect(_HEAD_S, _HEAD_BYTES)
            super().handle_one_request()
        except TimeoutError:
            self.close_connection = True
            logger.info("a connection was closed: the caller was too slow")
        except _HeadTooLongError:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def parse_request(self) -> bool:
        """Read the head of a request, and refuse what two parsers could read in two ways.

        A proxy that reads a head differently would let a caller hide one request inside another. So line
        ends are CRLF, a header is one line, and headers that frame a request must not be repeated.
        """
        self.close_connection = True
        self._fields = fields = {}
        self.requestline = self.raw_requestline.decode("latin-1").rstrip("\r\n")
        request = _REQUEST.fullmatch(self.raw_requestline)
        if request is None:
            return self._malformed("the request line is not METHOD /path HTTP/1.1")
        for count in range(_HEAD_LINES + 1):
            line = self.rfile.readline(_HEAD_BYTES)
            if line == b"\r\n":
                break
            header = _HEADER.fullmatch(line)
            if header is None or count == _HEAD_LINES:
                return self._malformed("a header is not NAME: VALUE on one line, or there are too many")
            name, value = header[1].decode("ascii").lower(), header[2].decode("latin-1").strip(" \t")
            if name in fields and name in _ONCE:
                return self._malformed(f"the header {name} is repeated")
            fields[name] = value
        self.command, self.path = request[1].decode("ascii"), request[2].decode("ascii")
        if "content-length" in fields and "transfer-encoding" in fields:
            return self._malformed("Content-Length and Transfer-Encoding exclude each other")
        if "content-length" in fields and not _NUMBER.fullmatch(fields["content-length"]):
            return self._malformed("Content-Length is not a number of bytes")
        if not self._is_host(fields.get("host", "")):
            self.send_error(
                HTTPStatus.MISDIRECTED_REQUEST,
                "unknown Host: add the name of the service to the setting service.allowed_hosts",
            )
            return False
        self.close_connection = request[3] == b"0" or "close" in fields.get("connection", "").lower()
        self._incoming.expect(_HEAD_S)
        return True

    def _malformed(self, what: str) -> bool:
        self.send_error(HTTPStatus.BAD_REQUEST, f"Bad request: {what}")
        return False

    def _is_host(self, given: str) -> bool:
        """Whether a Host is this service: an attacker could let another name point here."""
        host = _HOST.fullmatch(given)
        if host is None:
            return False
        try:
            ipaddress.ip_address(host[1] or host[2])
        except ValueError:
            return host[2] is not None and host[2].lower().rstrip(".") in self.server.names
        return True

    def do_GET(self) -> None:
        if (length := self._length()) != 0:
            self._drain(length or 0, _HEAD_BYTES)
        if self.path.partition("?")[0] != "/health":
            self._answer(
                HTTPStatus.NOT_FOUND, "unknown", "there is /health, and POST to /commit and /publish"
            )
            return
        try:
            registry.setting(self.server.ratifier.database, "root")
        except DeltaSqlError as error:
            self._health(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", type(error).__name__)
            return
        self._health(HTTPStatus.OK, "ok", None)

    def do_POST(self) -> None:
        with self.server.request_in_progress():
            self._post()
        if self.server.stopping:
            self.close_connection = True

    def _post(self) -> None:
        length = self._length() if "content-length" in self._fields else None
        if length is None:
            self.close_connection = True
            self._answer(HTTPStatus.LENGTH_REQUIRED, "malformed", "the request has no Content-Length")
            return
        if not self._is_allowed():
            self._drain(length, _DRAINED)
            self._answer(
                HTTPStatus.UNAUTHORIZED,
                "unauthorized",
                "the token is missing or wrong: caller and service must have the same one",
            )
            return
        self._authenticated = True
        self._incoming.expect(_BODY_S + length / _BODY_RATE)
        if length > self.server.max_bytes:
            self._drain(length, 4 * self.server.max_bytes)
            self._answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too large",
                f"the commit has {length} bytes; the limit is {self.server.max_bytes}: "
                "start the service with a larger --max-bytes",
            )
            return
        if self._fields.get("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # torn: nothing is done, and there is no caller to answer
            return
        what, _, query = self.path.partition("?")
        try:
            paths = parse_qs(query, errors="strict", max_num_fields=8).get("path", [])
        except ValueError:
            paths = []
        if what not in ("/commit", "/publish") or len(paths) != 1:
            self._answer(HTTPStatus.BAD_REQUEST, "malformed", "post to /commit?path=… or /publish?path=…")
            return
        ratifier = self.server.ratifier
        try:
            answer = ratifier.commit(paths[0], body) if what == "/commit" else ratifier.publish(paths[0])
        except Exception:
            logger.exception("a request to %s failed", what)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", "the service failed: see its log")
            return
        self._answer(answer.status, answer.word, answer.text)

    def _length(self) -> int | None:
        """The length of the body; None if the request has a transfer encoding."""
        return None if "transfer-encoding" in self._fields else int(self._fields.get("content-length", 0))

    def _is_allowed(self) -> bool:
        kind, _, given = self._fields.get("authorization", "").partition(" ")
        ours = self.server.token.reveal().encode()
        return (
            hmac.compare_digest(given.strip().encode("utf-8", "replace"), ours) and kind.lower() == "bearer"
        )

    def _drain(self, length: int, most: int) -> None:
        """Read a part of a refused body, so that its sender gets to read the answer."""
        self.close_connection = True
        left = min(length, most)
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)

    def _answer(self, status: HTTPStatus, word: str, text: str) -> None:
        self._send(status, word, "text/plain; charset=utf-8", redact(text).encode("utf-8", "replace") + b"\n")

    def _health(self, status: HTTPStatus, word: str, error: str | None) -> None:
        document = {"status": word, "version": __version__} | ({} if error is None else {"error": error})
        self._send(status, word, "application/json", json.dumps(document).encode() + b"\n")

    def _send(self, status: HTTPStatus, word: str, kind: str, body: bytes) -> None:
        self.connection.settimeout(_SILENCE_S)
        self.send_response(status)
        self.send_header(ANSWER_HEADER, word)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection or self.server.stopping:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer in our form what http.server itself refuses."""
        del explain
        self.close_connection = True
        status = HTTPStatus(code)
        self._answer(status, "malformed", message or status.phrase)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        if logger.isEnabledFor(logging.DEBUG):
            line = redact((format % args)[:_LINE])
            logger.debug("%s", line.encode("ascii", "backslashreplace").decode())
