"""A small Google Cloud Storage: the part of its XML interface that the client uses, generations included."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "not-a-key-of-anybody"


def gcs_options(endpoint: str, **options: str) -> dict[str, str]:
    """Storage options that lead to the server, without a token; nothing is retried by the client."""
    account = {
        "gcs_base_url": endpoint,
        "disable_oauth": True,
        "client_email": "nobody@example.com",
        "private_key": SECRET,
        "private_key_id": "0",
    }
    return {
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account),
        "GOOGLE_ALLOW_HTTP": "true",
        "max_retries": "0",
        "timeout": "20s",
        **options,
    }


@dataclass(frozen=True)
class _Object:
    data: bytes
    generation: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": f'"{hashlib.md5(self.data).hexdigest()}"',
            "Last-Modified": formatdate(usegmt=True),
            "x-goog-generation": str(self.generation),
        }


@dataclass
class _Bucket:
    objects: dict[str, _Object] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)


class FakeGcs:
    """The server: buckets in memory, one request at a time."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self._generation = 0
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits for a delayed ACK

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with fake._lock:
                    status, headers, content = fake._answer(self, body)
                self.send_response_only(status)
                for key, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else content)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any  # noqa: N815 - their names

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        with self._lock:
            self._buckets[name] = _Bucket()

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        url = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        name, _, key = unquote(url.path).lstrip("/").partition("/")
        bucket = self._buckets.get(name)
        if bucket is None:
            return _error(404, "NoSuchBucket")
        if request.command == "GET" and not key:
            return 200, {}, _listing(bucket, query)
        if request.command in ("GET", "HEAD"):
            found = bucket.objects.get(key)
            return _error(404, "NoSuchKey") if found is None else _content(request, found)
        if request.command == "DELETE":
            return (204, {}, b"") if bucket.objects.pop(key, None) else _error(404, "NoSuchKey")
        if "uploads" in query:
            upload = uuid.uuid4().hex
            bucket.uploads[upload] = {}
            return 200, {}, _document("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if "partNumber" in query:
            bucket.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
        if "uploadId" in query:
            parts = bucket.uploads.pop(query["uploadId"])
            stored = self._store(bucket, key, b"".join(data for _, data in sorted(parts.items())))
            etag = f"<ETag>{escape(stored['ETag'])}</ETag>"
            return 200, stored, _document("CompleteMultipartUploadResult", etag)
        wanted = request.headers.get("x-goog-if-generation-match")
        there = bucket.objects[key].generation if key in bucket.objects else 0
        if wanted is not None and int(wanted) != there:
            return _error(412, "PreconditionFailed")
        return 200, self._store(bucket, key, body), b""

    def _store(self, bucket: _Bucket, key: str, data: bytes) -> dict[str, str]:
        self._generation += 1
        bucket.objects[key] = _Object(data, self._generation)
        return bucket.objects[key].headers


def _content(request: BaseHTTPRequestHandler, found: _Object) -> tuple[int, dict[str, str], bytes]:
    asked = request.headers.get("Range", "")
    size = len(found.data)
    if request.command == "HEAD" or not asked.startswith("bytes="):
        return 200, {**found.headers, "Content-Length": str(size)}, found.data
    first, _, last = asked.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last) if first and last else size - 1, size - 1)
    part = found.data[start : end + 1]
    headers = {"Content-Range": f"bytes {start}-{end}/{size}", "Content-Length": str(len(part))}
    return 206, {**found.headers, **headers}, part


def _listing(bucket: _Bucket, query: dict[str, str]) -> bytes:
    prefix, delimiter, after = (query.get(key, "") for key in ("prefix", "delimiter", "start-after"))
    after = max(after, query.get("continuation-token", ""))
    limit = int(query.get("max-keys", "1000"))
    contents, folders, last = [], set(), ""
    for key in sorted(k for k in bucket.objects if k.startswith(prefix) and k > after):
        if len(contents) == limit:
            break
        last = key
        below = key[len(prefix) :]
        if delimiter and delimiter in below:
            folders.add(prefix + below.split(delimiter)[0] + delimiter)
            continue
        found = bucket.objects[key]
        contents.append(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(found.data)}</Size>"
            f"<ETag>{escape(found.headers['ETag'])}</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        )
    more = any(k > last for k in bucket.objects if k.startswith(prefix)) and len(contents) == limit
    text = "".join(contents) + "".join(
        f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)
    )
    if more:
        text += f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
    return _document("ListBucketResult", text)


def _document(name: str, content: str) -> bytes:
    return f"<{name}>{content}</{name}>".encode()


def _error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/xml"}, _document("Error", f"<Code>{code}</Code>")


@contextmanager
def fake_gcs() -> Iterator[FakeGcs]:
    """A server for as long as the block lasts."""
    server = FakeGcs()
    try:
        yield server
    finally:
        server.close()
