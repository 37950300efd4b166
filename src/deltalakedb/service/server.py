"""The ratifier over HTTP: who may ask, how much, and in which form answers come."""

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
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qs

from deltalakedb._version import __version__
from deltalakedb.exceptions import ConfigError, DeltaSqlError
from deltalakedb.metastore import registry
from deltalakedb.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import WriteableBuffer

    from deltalakedb.redaction import Secret
    from deltalakedb.service.ratifier import Answer, Ratifier

logger = logging.getLogger(__name__)

#: says that an answer is ours: a 404 of any other server must not be taken for "not the catalog's"
ANSWER_HEADER: Final = "Deltasql-Answer"
MAX_BYTES: Final = 256 * 1024**2
#: connections at a time; more are told to ask again
MAX_CONNECTIONS: Final = 128
#: seconds that a caller who has shown the token may stay silent between requests, and any other caller
_SILENCE_S: Final = 60.0
_STRANGER_S: Final = 10.0
#: seconds, bytes and lines that the head of a request may take, from its first byte on
_HEAD_S: Final = 10.0
_HEAD_BYTES: Final = 64 * 1024
_HEAD_LINES: Final = 100
#: seconds that a body may take, and the bytes a second that it must come with at least
_BODY_S: Final = 30.0
_BODY_RATE: Final = 100_000
#: headers that must not come twice: proxies and servers differ in which one they believe
_ONCE: Final = frozenset({"host", "content-length", "transfer-encoding", "authorization", "expect"})
_REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])\r\n")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):([^\x00-\x08\x0a-\x1f\x7f]*)\r\n")
_NUMBER: Final = re.compile("[0-9]{1,18}")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,60})\]|([A-Za-z0-9._-]{1,255}))(?::[0-9]{1,5})?")
#: bytes of a refused request that are read, so that its sender reads the answer
_DRAINED: Final = 1024**2
#: seconds that a stop waits for requests under way
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


class CommitServer:
    """A ratifier behind HTTP, served by threads of this process.

    Args:
        ratifier: Decides.
        token: What callers have to know.
        host: The address to listen at.
        port: The port; 0 for a free one.
        max_bytes: The longest commit that is taken.
        max_connections: The most connections at a time.
        names: Host names by which callers may reach the service, beside this machine's own and IP addresses.

    Raises:
        ConfigError: Host or port cannot be had.

    Example:
        >>> with CommitServer(Ratifier(database), token) as server:
        ...     print(server.url)
        http://127.0.0.1:40713
    """

    def __init__(
        self,
        ratifier: Ratifier,
        token: Secret,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_bytes: int = MAX_BYTES,
        max_connections: int = MAX_CONNECTIONS,
        names: Iterable[str] = (),
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._http = _Http((host, port), ratifier, token, max_bytes, max_connections, family)
        except OSError as error:
            raise ConfigError(
                f"nothing can be served at {host}, port {port}: {error.strerror or error}",
                suggestion="choose another port (0 for any that is free), or an address of this machine",
            ) from error
        self._http.names |= {name.lower().rstrip(".") for name in (host, *names)}
        self._thread: threading.Thread | None = None
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{shown}:{self._http.server_address[1]}"
        if host not in _LOCAL:
            logger.warning(
                "commits are served at %s, beyond this machine and unencrypted: put a TLS proxy before it",
                host,
            )

    def start(self) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_LOOK_S,), name="deltasql-commits", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End, once requests under way are answered; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._http.shutdown()
            thread.join()
        self._http.finish()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Http(ThreadingHTTPServer):
    # at the end of the process nobody waits for callers that only keep a connection open
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        at: tuple[str, int],
        ratifier: Ratifier,
        token: Secret,
        max_bytes: int,
        max_connections: int,
        family: socket.AddressFamily,
    ) -> None:
        self.address_family = family
        self.ratifier = ratifier
        self.token = token
        self.max_bytes = max_bytes
        self.max_connections = max_connections
        self.names = {"localhost", socket.gethostname().lower()}
        self.stopping = False
        self._open: set[socket.socket] = set()
        self._busy = 0
        self._quiet = threading.Condition()
        super().__init__(at, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection by a thread of its own, unless there are too many."""
        with self._quiet:
            full = len(self._open) >= self.max_connections
            if not full:
                self._open.add(request)
        if not full:
            super().process_request(request, client_address)
            return
        logger.warning("a connection was refused: %d are open", self.max_connections)
        try:
            request.setblocking(False)
            request.send(_FULL)
        except OSError:
            logger.debug("a refused connection broke")
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._quiet:
            self._open.discard(request)
        super().shutdown_request(request)

    def begin(self) -> None:
        with self._quiet:
            self._busy += 1

    def end(self) -> None:
        with self._quiet:
            self._busy -= 1
            self._quiet.notify_all()

    def finish(self) -> None:
        """Take no more requests, and let those under way end."""
        self.server_close()
        with self._quiet:
            self.stopping = True
            for connection in self._open:
                try:
                    connection.shutdown(
                        socket.SHUT_RD
                    )  # whoever waits for a request ends; answers still go out
                except OSError:
                    continue
            if not self._quiet.wait_for(lambda: self._busy == 0, _PATIENCE_S):
                logger.warning("%d requests were still under way when the service stopped", self._busy)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        # a caller that went away: it asks again, and finds what became of its request
        logger.info("a connection broke", exc_info=logger.isEnabledFor(logging.DEBUG))


class _HeadTooLongError(Exception):
    """The head of a request is longer than any that makes sense."""


class _Incoming(io.RawIOBase):
    """What a connection sends: each part of a request has a deadline, however slowly its bytes trickle in."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = 0.0
        self._left: int | None = None

    def expect(self, seconds: float, most: int | None = None) -> None:
        """Let what comes next take so many seconds, and so many bytes."""
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
    server: _Http
    rfile: io.BufferedReader
    # what answers and logs need even if a request cannot be read
    requestline = ""
    request_version = "HTTP/1.1"
    raw_requestline = b""
    command = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)
        self._known = False
        self._fields: dict[str, str] = {}

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it within bounds of time and size."""
        self.close_connection = True
        try:
            self._incoming.expect(_SILENCE_S if self._known else _STRANGER_S)
            if not self.rfile.peek(1):
                return
            self._incoming.expect(_HEAD_S, _HEAD_BYTES)
            super().handle_one_request()
        except TimeoutError:
            self.close_connection = True
            logger.info("a connection was closed: nothing came in time")
        except _HeadTooLongError:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def parse_request(self) -> bool:
        """Read the head of a request. What two parsers could read in two ways is refused.

        A proxy that reads a head otherwise than this service would let a caller hide one request inside of
        another. So line ends are CRLF, a header is one line, and headers that frame a request come once.
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
                return self._malformed(f"the header {name} comes twice")
            fields[name] = value
        self.command, self.path = request[1].decode("ascii"), request[2].decode("ascii")
        if "content-length" in fields and "transfer-encoding" in fields:
            return self._malformed("Content-Length and Transfer-Encoding exclude each other")
        if "content-length" in fields and not _NUMBER.fullmatch(fields["content-length"]):
            return self._malformed("Content-Length is no number of bytes")
        if not self._is_host(fields.get("host", "")):
            self.send_error(
                HTTPStatus.MISDIRECTED_REQUEST,
                "the service is not known by this Host: add its name to the setting service.allowed_hosts",
            )
            return False
        self.close_connection = request[3] == b"0" or "close" in fields.get("connection", "").lower()
        self._incoming.expect(_HEAD_S)
        return True

    def _malformed(self, what: str) -> bool:
        self.send_error(HTTPStatus.BAD_REQUEST, f"Bad request: {what}")
        return False

    def _is_host(self, given: str) -> bool:
        """Whether a caller means this service: a name could be one that an attacker lets point here."""
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
            self._tell(HTTPStatus.NOT_FOUND, "unknown", "there is /health, and POST to /commit and /publish")
            return
        try:
            registry.setting(self.server.ratifier.database, "root")
        except DeltaSqlError as error:
            self._health(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", type(error).__name__)
            return
        self._health(HTTPStatus.OK, "ok", None)

    def do_POST(self) -> None:
        self.server.begin()
        try:
            self._answer()
        finally:
            self.server.end()
            if self.server.stopping:
                self.close_connection = True

    def _answer(self) -> None:
        length = self._length() if "content-length" in self._fields else None
        if length is None:
            self.close_connection = True
            self._tell(HTTPStatus.LENGTH_REQUIRED, "malformed", "the request has no Content-Length")
            return
        if not self._is_allowed():
            self._drain(length, _DRAINED)
            self._tell(
                HTTPStatus.UNAUTHORIZED,
                "unauthorized",
                "the token is missing or wrong: caller and service must have the same one",
            )
            return
        self._known = True
        self._incoming.expect(_BODY_S + length / _BODY_RATE)
        if length > self.server.max_bytes:
            self._drain(length, 4 * self.server.max_bytes)
            self._tell(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too large",
                f"the commit has {length} bytes, and {self.server.max_bytes} are taken: "
                "start the service with a larger --max-bytes",
            )
            return
        if self._fields.get("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # torn: nothing is done, and nobody is there to be told
            return
        what, _, query = self.path.partition("?")
        try:
            paths = parse_qs(query, errors="strict", max_num_fields=8).get("path", [])
        except ValueError:
            paths = []
        if what not in ("/commit", "/publish") or len(paths) != 1:
            self._tell(HTTPStatus.BAD_REQUEST, "malformed", "post to /commit?path=… or /publish?path=…")
            return
        self._decide(what, paths[0], body)

    def _decide(self, what: str, path: str, body: bytes) -> None:
        ratifier = self.server.ratifier
        try:
            answer: Answer = ratifier.commit(path, body) if what == "/commit" else ratifier.publish(path)
        except Exception:
            logger.exception("a request to %s failed", what)
            text = "the service failed: its log says why"
            self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", text)
            return
        self._tell(answer.status, answer.word, answer.text)

    def _length(self) -> int | None:
        """The length of the body; None if only a transfer encoding could tell."""
        return None if "transfer-encoding" in self._fields else int(self._fields.get("content-length", 0))

    def _is_allowed(self) -> bool:
        kind, _, given = self._fields.get("authorization", "").partition(" ")
        ours = self.server.token.reveal().encode()
        return (
            hmac.compare_digest(given.strip().encode("utf-8", "replace"), ours) and kind.lower() == "bearer"
        )

    def _drain(self, length: int, most: int) -> None:
        """Read what is refused, so that its sender gets to read why."""
        self.close_connection = True
        left = min(length, most)
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)

    def _tell(self, status: HTTPStatus, word: str, text: str) -> None:
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
        """What http.server itself refuses, in our form."""
        del explain
        self.close_connection = True
        status = HTTPStatus(code)
        self._tell(status, "malformed", message or status.phrase)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        if logger.isEnabledFor(logging.DEBUG):
            line = redact((format % args)[:_LINE])
            logger.debug("%s", line.encode("ascii", "backslashreplace").decode())
