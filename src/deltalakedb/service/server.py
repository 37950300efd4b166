"""The ratifier over HTTP: who may ask, how much, and in which form answers come."""

from __future__ import annotations

import hmac
import json
import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from deltalakedb._version import __version__
from deltalakedb.catalog import registry
from deltalakedb.exceptions import ConfigError, DeltaSqlError
from deltalakedb.redaction import redact

if TYPE_CHECKING:
    from deltalakedb.redaction import Secret
    from deltalakedb.service.ratifier import Answer, Ratifier

logger = logging.getLogger(__name__)

#: says that an answer is ours: a 404 of any other server must not be taken for "not the catalog's"
ANSWER_HEADER: Final = "Deltasql-Answer"
MAX_BYTES: Final = 256 * 1024**2
#: seconds that a connection may stay silent
_SILENCE_S: Final = 60
#: bytes of a refused request that are read, so that its sender reads the answer
_DRAINED: Final = 1024**2
#: seconds that a stop waits for requests under way
_PATIENCE_S: Final = 60.0
#: seconds until a stop is noticed
_LOOK_S: Final = 0.1
#: characters of a request that are logged
_LINE: Final = 1000
_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


class CommitServer:
    """A ratifier behind HTTP, served by threads of this process.

    Args:
        ratifier: Decides.
        token: What callers have to know.
        host: The address to listen at.
        port: The port; 0 for a free one.
        max_bytes: The longest commit that is taken.

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
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._http = _Http((host, port), ratifier, token, max_bytes, family)
        except OSError as error:
            raise ConfigError(
                f"nothing can be served at {host}, port {port}: {error.strerror or error}",
                suggestion="choose another port (0 for any that is free), or an address of this machine",
            ) from error
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
        family: socket.AddressFamily,
    ) -> None:
        self.address_family = family
        self.ratifier = ratifier
        self.token = token
        self.max_bytes = max_bytes
        self.stopping = False
        self._open: set[socket.socket] = set()
        self._busy = 0
        self._quiet = threading.Condition()
        super().__init__(at, _Handler)

    def opened(self, connection: socket.socket) -> None:
        with self._quiet:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._quiet:
            self._open.discard(connection)

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"deltasql/{__version__}"
    sys_version = ""
    timeout = _SILENCE_S
    disable_nagle_algorithm = True
    server: _Http

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)

    def finish(self) -> None:
        self.server.closed(self.connection)
        super().finish()

    def do_GET(self) -> None:
        if urlsplit(self.path).path != "/health":
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
        length = self._length()
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
        if length > self.server.max_bytes:
            self._drain(length, 4 * self.server.max_bytes)
            self._tell(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too large",
                f"the commit has {length} bytes, and {self.server.max_bytes} are taken: "
                "start the service with a larger --max-bytes",
            )
            return
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # torn: nothing is done, and nobody is there to be told
            return
        parts = urlsplit(self.path)
        paths = parse_qs(parts.query).get("path", [])
        if parts.path not in ("/commit", "/publish") or len(paths) != 1:
            self._tell(HTTPStatus.BAD_REQUEST, "malformed", "post to /commit?path=… or /publish?path=…")
            return
        self._decide(parts.path, paths[0], body)

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
        given = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not given.isdecimal() or len(given) > 18:
            return None
        return int(given)

    def _is_allowed(self) -> bool:
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
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
