"""The service over HTTP: who may ask, how much, what it logs, and how it ends."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest

from deltalakedb.address import parse_address
from deltalakedb.exceptions import ConfigError
from deltalakedb.redaction import Secret
from deltalakedb.service.server import commit_server, new_token, read_token, token_of, write_token
from deltalakedb.settings import Config
from support.callers import TOKEN, Caller, appended, commit_uri, first
from support.lake import ids
from support.mirrors import logged

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog

one_engine = pytest.mark.parametrize("engine_name", ["sqlite"])


def raw(caller: Caller, text: bytes) -> bytes:
    """What comes back for bytes as they are, until the service closes the connection."""
    parts = urlsplit(caller.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while piece := connection.recv(65536):
            found += piece
    return found


@one_engine
def test_whoever_lacks_the_token_learns_and_changes_nothing(
    catalog: Catalog, caller: Caller, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/commit?path={quote(commit_uri(root / 't', 0), safe='')}"
    wrong = ["Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer tökén"]
    caplog.set_level("DEBUG", logger="deltalakedb.service")
    for given in wrong:
        said = caller.request("POST", path, first(), {"Authorization": given.encode().decode("latin-1")})
        assert (said.status, said.word) == (401, "unauthorized")
        assert said.text == "the token is missing or wrong: caller and service must have the same one"
    # a long body too is read to its end, so that its sender gets the answer
    assert caller.request("POST", path, b"x" * 900_000).status == 401
    assert catalog.tables() == []
    assert caller.post(path, first()).status == 200
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("settings", [{"max_bytes": 100_000}])
@one_engine
def test_requests_that_are_too_long_or_odd_are_told_so(catalog: Catalog, caller: Caller, root: Path) -> None:
    said = caller.commit(root / "t", 0, first() + b" " * 100_000)
    assert (said.status, said.word) == (413, "too large")
    assert "--max-bytes" in said.text
    for path in ("/", "/commit", "/commit?path=a&path=b", f"/other?path={commit_uri(root, 0)}"):
        assert caller.post(path).status == 400, path
    for name in (
        "x/_delta_log/1.json",
        "file:/x/00000000000000000000.json",
        "file:///_delta_log/",
        "http://[",
    ):
        said = caller.post(f"/commit?path={quote(name, safe='')}", first())
        assert (said.status, said.word) == (422, "refused"), name
    checkpoint = commit_uri(root / "t", 0).replace(".json", ".checkpoint.parquet")
    assert caller.post(f"/commit?path={quote(checkpoint)}", first()).status == 422
    assert caller.request("PUT", "/commit").status == 501
    assert caller.request("GET", "/commit").status == 404
    assert caller.request("GET", "/commit").word == "unknown"  # a shim must not take it for "elsewhere"

    head = (
        f"POST /commit?path={quote(commit_uri(root / 't', 0))} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {TOKEN}\r\n"
    )
    for more in ("", "Transfer-Encoding: chunked\r\n"):
        assert raw(caller, f"{head}{more}\r\n".encode()).startswith(b"HTTP/1.1 411 "), more
    # a body that ends too early is no commit: every line of it might be whole
    assert raw(caller, f"{head}Content-Length: 100000\r\n\r\n".encode() + first()) == b""
    assert b"Bad request" in raw(caller, b"garbage\r\n\r\n")
    assert catalog.tables() == []


@one_engine
def test_health_tells_whether_the_catalog_can_be_reached(
    catalog: Catalog, caller: Caller, tmp_path: Path
) -> None:
    said = caller.request("GET", "/health")
    assert said.status == 200
    assert json.loads(said.text)["status"] == "ok"
    catalog.close()
    (tmp_path / "catalog.db").write_bytes(b"no database" * 1000)
    said = caller.request("GET", "/health")
    assert said.status == 503
    assert json.loads(said.text)["status"] == "unavailable"
    assert caller.publish("/nowhere").status == 503
    assert caller.commit("/nowhere", 1, appended()).status == 503


@one_engine
def test_a_stop_waits_for_the_commit_under_way(
    catalog: Catalog, catalog_uri: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalakedb.service.ratifier import Ratifier

    table = root / "t"
    catalog.write("t", ids(1), location=table)
    server = commit_server(parse_address(catalog_uri), Secret(TOKEN), port=0)
    begun, go_on, answers = threading.Event(), threading.Event(), []
    ratify = Ratifier.commit

    def slowly(self: Ratifier, path: str, data: bytes) -> object:
        begun.set()
        go_on.wait(60)
        return ratify(self, path, data)

    monkeypatch.setattr(Ratifier, "commit", slowly)
    with server:
        caller = Caller(server.url)
        idle = socket.create_connection((urlsplit(server.url).hostname, urlsplit(server.url).port))
        asking = threading.Thread(target=lambda: answers.append(caller.commit(table, 1, appended())))
        asking.start()
        assert begun.wait(60)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert idle.recv(1) == b""  # who only kept a connection open is sent away
        assert stopping.is_alive()
        go_on.set()
        for thread in (asking, stopping):
            thread.join(60)
    assert [said.word for said in answers] == ["committed"]
    assert logged(table) == [0, 1]
    with pytest.raises(OSError, match="refused"):
        caller.publish(table)
    idle.close()


@one_engine
def test_a_port_that_is_taken_is_a_clear_error(catalog: Catalog, catalog_uri: str, caller: Caller) -> None:
    taken = urlsplit(caller.url).port
    with pytest.raises(ConfigError, match="nothing can be served") as caught:
        commit_server(parse_address(catalog_uri), Secret(TOKEN), port=taken)
    assert "another port" in str(caught.value)


def test_tokens_come_from_files_and_settings_and_show_themselves_nowhere(tmp_path: Path) -> None:
    token, file = new_token(), tmp_path / "token"
    write_token(file, token)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_token(file) == token
    assert token.reveal() not in f"{token} {token!r}"
    with pytest.raises(FileExistsError):
        write_token(file, token)
    assert token_of(Config(service={"token_file": str(file)})) == token
    config = Config(service={"token": token.reveal()})
    assert token_of(config) == token
    assert token_of(Config()) is None
    assert all(token.reveal() not in f"{setting}" for setting in config.describe())
    (tmp_path / "bad").touch(0o600)
    for bad in ("", "short", "two words of a token", "x" * 5000, "ünïcode-ünïcode-ünïcode"):
        (tmp_path / "bad").write_text(bad)
        with pytest.raises(ConfigError, match="no token of 16") as caught:
            read_token(tmp_path / "bad")
        assert not bad or bad not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "missing")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644])
def test_a_token_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    token, file = new_token(), tmp_path / "token"
    write_token(file, token)
    file.chmod(mode)
    for read in (lambda: read_token(file), lambda: token_of(Config(service={"token_file": str(file)}))):
        with pytest.raises(ConfigError, match=f"open to other users: its mode is 0{mode:o}") as caught:
            read()
        assert "chmod 600" in str(caught.value)
        assert token.reveal() not in str(caught.value)
    file.chmod(0o400)
    assert read_token(file) == token


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_token_file_of_another_user_is_refused(tmp_path: Path) -> None:
    write_token(tmp_path / "token", new_token())
    os.chown(tmp_path / "token", 12345, -1)
    with pytest.raises(ConfigError, match="its owner has the id 12345"):
        read_token(tmp_path / "token")
