"""The HTTP server for commits of other engines: its token, callers, limits, and the form of answers."""

from __future__ import annotations

import hmac
import io
import ipaddress
import json
import logging
import math
import os
import re
import secrets
import socket
import stat
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qs

from deltalakedb._version import __version__
from deltalakedb.exceptions import ConfigError, DeltaSqlError
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.redaction import Secret, redact
from deltalakedb.service.ratifier import Ratifier
from deltalakedb.settings import Config, ServiceConfig, get_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import WriteableBuffer

    from deltalakedb.address import Address

    _Reply = tuple[HTTPStatus, str, str]

# ---- the token: from a file or the settings, never from a command line ----

#: a shorter one could be guessed
_SHORTEST: Final = 16
#: a longer file does not contain a token
_LONGEST: Final = 4096


def new_token() -> Secret:
    return Secret(secrets.token_urlsafe(32))


def write_token(path: Path, token: Secret) -> None:
    """Write a token to a new file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token.reveal()}\n")


def read_token(path: str | os.PathLike[str]) -> Secret:
    """The token in a file; ConfigError if it is missing or short, or other users may read or change it."""
    what = f"the token file {os.fspath(path)}"
    try:
        with Path(path).open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            text = file.read(_LONGEST + 1).strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{what} cannot be read: {error}", suggestion="check the path and its permissions"
        ) from error
    if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{what} is open to other users: its mode is {stat.S_IMODE(status.st_mode):04o} and its owner "
            f"has the id {status.st_uid}",
            suggestion=f"put a new token into a file of your own and run: chmod 600 {os.fspath(path)}",
        )
    return _checked(text, what)


def token_of(config: Config) -> Secret | None:
    """The token of the settings: ``service.token``, else that of ``service.token_file``; None for neither."""
    service = config.service
    if service.token is not None:
        return _checked(service.token.get_secret_value(), "the setting service.token")
    return None if service.token_file is None else read_token(Path(service.token_file).expanduser())


def _checked(text: str, where: str) -> Secret:
    if not _SHORTEST <= len(text) <= _LONGEST or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            f"{where} has no token of {_SHORTEST} letters and digits or more",
            suggestion="make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return Secret(text)


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
_TEXT: Final = "text/plain; charset=utf-8"
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

    ``tables`` are names of tables that may be created, with their locations. ``host``, ``port`` (0 for a free
    one) and ``max_bytes``, the size of the largest commit, replace those of the settings.
    """
    config = config or get_config()
    database = Database.open(catalog.catalog, config)
    database.ensure()
    given = {"host": host, "port": port, "max_bytes": max_bytes}
    service = config.service.model_copy(update={key: v for key, v in given.items() if v is not None})
    return CommitServer(Ratifier(database, tables), token, service)


class CommitServer(ThreadingHTTPServer):
    """A ratifier behind HTTP, served by threads of this process; a context starts and stops it."""

    # the end of the process does not wait for callers that only keep a connection open
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, ratifier: Ratifier, token: Secret, service: ServiceConfig) -> None:
        host, port = service.host, service.port
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.ratifier, self.token, self.limits = ratifier, token, service
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

    def count_request(self, change: int) -> None:
        with self._changed:
            self._busy += change
            self._changed.notify_all()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless there are too many."""
        with self._changed:
            full = len(self._connections) >= self.limits.max_connections
            if not full:
                self._connections.add(request)
        if not full:
            super().process_request(request, client_address)
            return
        logger.warning("a connection was refused: %d are open", self.limits.max_connections)
        with suppress(OSError):
            request.setblocking(False)
            request.send(_FULL)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        # its caller tries again, and finds the result of its request
        logger.info("a connection broke", exc_info=logger.isEnabledFor(logging.DEBUG))


class _BadRequestError(Exception):
    """A request that is refused before it is understood."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


class _Incoming(io.RawIOBase):
    """The bytes of a connection; each part of a request has a deadline, however slowly its bytes arrive."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = 0.0
        self._left = math.inf

    def expect(self, seconds: float, most: float = math.inf) -> None:
        """Limit the seconds, and perhaps the bytes, of the next part."""
        self._until = time.monotonic() + seconds
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the request took too long")
        if self._left <= 0:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise _BadRequestError(status.phrase, status)
        self._connection.settimeout(remaining)
        count = self._connection.recv_into(buffer)
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
            if self.rfile.peek(1):
                self._incoming.expect(_HEAD_S, _HEAD_BYTES)
                super().handle_one_request()
        except TimeoutError:
            self.close_connection = True
            logger.info("a connection was closed: the caller was too slow")
        except _BadRequestError as error:
            self.send_error(error.status, str(error))

    def parse_request(self) -> bool:
        """Read the head of a request, and refuse what two parsers could read in two ways.

        A proxy that reads a head differently would let a caller hide one request inside another. So line
        ends are CRLF, a header is one line, and headers that frame a request must not be repeated.
        """
        self.close_connection = True
        fields: dict[str, str] = {}
        self._fields = fields
        self.requestline = self.raw_requestline.decode("latin-1").rstrip("\r\n")
        request = _REQUEST.fullmatch(self.raw_requestline)
        if request is None:
            raise _BadRequestError("Bad request: the request line is not METHOD /path HTTP/1.1")
        lines = 0
        while (line := self.rfile.readline(_HEAD_BYTES)) != b"\r\n":
            header, lines = _HEADER.fullmatch(line), lines + 1
            if header is None or lines > _HEAD_LINES:
                raise _BadRequestError(
                    "Bad request: a header is not NAME: VALUE on one line, or there are too many"
                )
            name = header[1].decode("ascii").lower()
            if name in fields and name in _ONCE:
                raise _BadRequestError(f"Bad request: the header {name} is repeated")
            fields[name] = header[2].decode("latin-1").strip(" \t")
        self.command, self.path = request[1].decode("ascii"), request[2].decode("ascii")
        if "content-length" in fields and "transfer-encoding" in fields:
            raise _BadRequestError("Bad request: Content-Length and Transfer-Encoding exclude each other")
        if not _NUMBER.fullmatch(fields.get("content-length", "0")):
            raise _BadRequestError("Bad request: Content-Length is not a number of bytes")
        if not self._is_host(fields.get("host", "")):
            hint = "add the name of the service to the setting service.allowed_hosts"
            raise _BadRequestError(f"unknown Host: {hint}", HTTPStatus.MISDIRECTED_REQUEST)
        self.close_connection = request[3] == b"0" or "close" in fields.get("connection", "").lower()
        self._incoming.expect(_HEAD_S)
        return True

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
        length = int(self._fields.get("content-length", 0))
        if length or "transfer-encoding" in self._fields:
            self._drain(length, _HEAD_BYTES)
        if self.path.partition("?")[0] != "/health":
            self._answer(
                HTTPStatus.NOT_FOUND, "unknown", "there is /health, and POST to /commit and /publish"
            )
            return
        status, health = HTTPStatus.OK, {"status": "ok", "version": __version__}
        try:
            registry.setting(self.server.ratifier.database, "root")
        except DeltaSqlError as error:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            health |= {"status": "unavailable", "error": type(error).__name__}
        self._answer(status, health["status"], json.dumps(health), "application/json")

    def do_POST(self) -> None:
        self.server.count_request(1)
        try:
            if (reply := self._post()) is not None:
                self._answer(*reply)
        finally:
            self.server.count_request(-1)
        self.close_connection |= self.server.stopping

    def _post(self) -> _Reply | None:
        """The answer to a POST; None if there is no caller any more."""
        if "content-length" not in self._fields:
            self.close_connection = True
            return HTTPStatus.LENGTH_REQUIRED, "malformed", "the request has no Content-Length"
        length, most = int(self._fields["content-length"]), self.server.limits.max_bytes
        if not self._is_allowed():
            self._drain(length, _DRAINED)
            why = "the token is missing or wrong: caller and service must have the same one"
            return HTTPStatus.UNAUTHORIZED, "unauthorized", why
        self._authenticated = True
        self._incoming.expect(_BODY_S + length / _BODY_RATE)
        if length > most:
            self._drain(length, 4 * most)
            hint = "start the service with a larger --max-bytes"
            why = f"the commit has {length} bytes; the limit is {most}: {hint}"
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large", why
        if self._fields.get("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # torn: nothing is done
            return None
        what, _, query = self.path.partition("?")
        try:
            paths = parse_qs(query, errors="strict", max_num_fields=8).get("path", [])
        except ValueError:
            paths = []
        if what not in ("/commit", "/publish") or len(paths) != 1:
            return HTTPStatus.BAD_REQUEST, "malformed", "post to /commit?path=… or /publish?path=…"
        ratifier = self.server.ratifier
        try:
            answer = ratifier.commit(paths[0], body) if what == "/commit" else ratifier.publish(paths[0])
        except Exception:
            logger.exception("a request to %s failed", what)
            return HTTPStatus.INTERNAL_SERVER_ERROR, "failed", "the service failed: see its log"
        return answer.status, answer.word, answer.text

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

    def _answer(self, status: HTTPStatus, word: str, text: str, kind: str = _TEXT) -> None:
        body = redact(text).encode("utf-8", "replace") + b"\n"
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

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer in our form what http.server itself refuses."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._answer(status, "malformed", message or status.phrase)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        if logger.isEnabledFor(logging.DEBUG):
            line = redact((format % args)[:_LINE])
            logger.debug("%s", line.encode("ascii", "backslashreplace").decode())
