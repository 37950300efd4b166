"""Callers of the service for commits, without Spark: plain HTTP, and commits made of actions."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from deltalakedb.failpoints import VARIABLE
from deltalakedb.protocol.actions import encode_commit
from deltalakedb.redaction import Secret
from deltalakedb.service.server import write_token
from support.actions import add, info, metadata, protocol

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.protocol.actions import Action

TOKEN = "a-token-for-the-tests-0123456789"


def commit_uri(root: Path | str, version: int) -> str:
    """A commit file's URI, as Hadoop spells it."""
    folder = f"file:{quote(str(root))}" if "://" not in str(root) else str(root)
    return f"{folder}/_delta_log/{version:020}.json"


def first(*actions: Action, **properties: Any) -> bytes:
    """The bytes of a version 0."""
    about = info("CREATE TABLE", txnId=str(uuid.uuid4()))
    return encode_commit([about, protocol(), metadata(**properties), *actions])


def appended(*paths: str, blind: bool = True) -> bytes:
    """The bytes of an append as delta-spark makes it."""
    about = info("WRITE", isBlindAppend=blind, txnId=str(uuid.uuid4()))
    return encode_commit([about, *(add(path) for path in paths or (f"{uuid.uuid4()}.parquet",))])


@dataclass(frozen=True)
class Said:
    """An answer of the service."""

    status: int
    word: str | None
    text: str


@dataclass(frozen=True)
class Caller:
    """Somebody who knows a service's URL and token."""

    url: str
    token: str = TOKEN

    def post(self, path: str, body: bytes = b"", **headers: str) -> Said:
        """Post to a path of the service."""
        return self.request("POST", path, body, {"Authorization": f"Bearer {self.token}", **headers})

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Said:
        """Any request at all."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Said(answer.status, answer.getheader("Deltasql-Answer"), answer.read().decode().strip())
        finally:
            connection.close()

    def commit(self, root: Path | str, version: int, data: bytes) -> Said:
        """Hand a commit in."""
        return self.post(f"/commit?path={quote(commit_uri(root, version), safe='')}", data)

    def publish(self, root: Path | str) -> Said:
        """Ask that everything be published."""
        return self.post(f"/publish?path={quote(commit_uri(root, 0), safe='')}")


class ServiceProcess:
    """`deltasql serve --commits` in a process of its own.

    Args:
        catalog: The catalog's address.
        folder: Where the token lies.
        port: The port; a new service at an old port stands for a restart.
        points: Failpoints.
        words: More words for the command.
    """

    def __init__(self, catalog: str, folder: Path, *words: str, port: int = 0, points: str = "") -> None:
        self.token_file = folder / "token"
        if not self.token_file.exists():
            write_token(self.token_file, Secret(TOKEN))
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from deltalakedb.cli.main import main; main()"),
                *("serve", "--commits", "--json", "--port", str(port)),
                *("--token-file", str(self.token_file), "--catalog", catalog, *words),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, VARIABLE: points},
        )
        told = ""
        assert self._process.stdout is not None
        while not told.endswith("}\n"):
            line = self._process.stdout.readline()
            assert line, self._process.communicate()[1]
            told += line
        self.url: str = json.loads(told)["url"]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def died(self) -> None:
        """Wait until its failpoint has killed it."""
        self._process.communicate(timeout=120)
        assert self._process.returncode == -signal.SIGKILL

    def stop(self, *, by: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it; its exit code and what it logged."""
        self._process.send_signal(by)
        _, logged = self._process.communicate(timeout=120)
        return self._process.returncode, logged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
