"""`deltasql serve --commits` as a process: killed anywhere and begun again, it loses nothing."""

from __future__ import annotations

import http.client
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from deltalakedb.address import parse_address
from deltalakedb.cli.main import cli
from deltalakedb.redaction import Secret
from deltalakedb.service.server import commit_server
from support.callers import TOKEN, Caller, ServiceProcess, appended, first
from support.lake import ids
from support.mirrors import commit_file, logged
from support.processes import Child, until

if TYPE_CHECKING:
    from deltalakedb import Catalog

#: points where a service may die, and whether the commit stands then
POINTS = (
    ("commit.after", True),  # of the very first version
    ("commit.before_begin", False),
    ("commit.before_commit", False),
    ("commit.after", True),
    ("publish.before_put", True),
    ("publish.before_link", True),
    ("publish.after_put", True),
    ("publish.after_mark", True),
)


def serve(uri: str, told: str) -> None:
    """A service that serves until it is killed; its URL comes into a file."""
    with commit_server(parse_address(uri), Secret(TOKEN), port=0) as server:
        Path(f"{told}.new").write_text(server.url)
        Path(f"{told}.new").rename(told)
        threading.Event().wait()


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_service_that_dies_anywhere_is_begun_again_and_asked_again(
    catalog: Catalog, catalog_uri: str, root: Path, caller: Caller, tmp_path: Path
) -> None:
    table, version = root / "t", 0
    for point, stands in POINTS:
        data = first() if version == 0 else appended()
        told = tmp_path / f"{version}.url"
        child = Child(serve, catalog_uri, str(told), folder=tmp_path, points=f"{point}=kill")
        until(told.exists)
        with pytest.raises((OSError, http.client.HTTPException)):
            Caller(told.read_text()).commit(table, version, data)
        child.died()
        head = next((t.head.version for t in catalog.tables()), -1)
        assert head == (version if stands else version - 1), point
        # its answer was lost: at the next service the same bytes are the same commit, others come too late
        if stands:
            assert caller.commit(table, version, appended()).word == "taken"
        assert caller.commit(table, version, data).word == "committed"
        assert commit_file(table, version).read_bytes() == data
        version += 1
    assert logged(table) == list(range(version))
    assert catalog.mirror.verify("t").ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_the_command_serves_until_it_is_told_to_stop_and_shows_no_secret(
    catalog: Catalog, catalog_uri: str, root: Path, tmp_path: Path
) -> None:
    named = tmp_path / "apart"
    with ServiceProcess(catalog_uri, tmp_path, "--table", f"named={named}", "--max-bytes", "5000") as service:
        caller = Caller(service.url)
        assert caller.commit(named, 0, first()).word == "committed"
        assert caller.commit(named, 1, b" " * 5001).status == 413
        assert caller.commit(root / "x.y", 0, first()).status == 422
        seen = Path(f"/proc/{service.pid}/cmdline").read_bytes()
        assert TOKEN.encode() not in seen
        code, logged_lines = service.stop(by=signal.SIGINT)
    assert code == 0
    assert "named: version 0 is ratified" in logged_lines
    assert "refused: no table can be named after the folder x.y" in logged_lines
    assert TOKEN not in logged_lines
    assert catalog.describe("named").location == str(named)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_two_services_of_one_catalog_decide_alike(
    catalog: Catalog, catalog_uri: str, root: Path, caller: Caller, tmp_path: Path
) -> None:
    table = root / "t"
    catalog.write("t", ids(1), location=table)
    with ServiceProcess(catalog_uri, tmp_path) as other:
        data = appended()
        assert caller.commit(table, 1, data).word == "committed"
        assert Caller(other.url).commit(table, 1, data).word == "committed"
        assert Caller(other.url).commit(table, 1, appended()).word == "taken"
        assert Caller(other.url).commit(table, 2, appended()).word == "committed"
        assert caller.commit(table, 2, appended()).word == "taken"
    assert logged(table) == [0, 1, 2]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_wrong_usage_is_told_before_anything_is_served(
    catalog: Catalog, catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def told(*words: str) -> str:
        result = CliRunner().invoke(cli, ["serve", "--catalog", catalog_uri, *words])
        assert result.exit_code == 2, result.output
        return result.output

    assert "pass --commits" in told()
    assert "no token is named" in told("--commits")
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("short")
    assert "no token of 16" in told("--commits", "--token-file", str(tmp_path / "token"))
    assert "key=value" in told("--commits", "--table", "nameless")
    made = tmp_path / "made"
    assert "nothing can be served" in told("--commits", "--token-file", str(made), "--host", "192.0.2.1")
    assert made.stat().st_mode & 0o777 == 0o600
