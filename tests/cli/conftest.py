"""Runs of the command inside this process, and as the program it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from click.testing import CliRunner

from deltalakedb.cli.main import cli

if TYPE_CHECKING:
    from click.testing import Result

PROGRAM = Path(sys.executable).with_name("deltasql")


class Deltasql(Protocol):
    """Runs the command with the test's catalog as the default."""

    def __call__(self, *words: str, code: int = 0, stdin: str | None = None) -> Result: ...


class DeltasqlJson(Protocol):
    """The same with ``--json``: the parsed document."""

    def __call__(self, *words: str, code: int = 0) -> Any: ...


class Program(Protocol):
    """Runs the installed program in a process of its own."""

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(autouse=True)
def _fresh_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("DELTASQL_CONFIG", "DELTASQL_CATALOG", "XDG_CONFIG_HOME", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def deltasql(catalog_uri: str, monkeypatch: pytest.MonkeyPatch) -> Deltasql:
    monkeypatch.setenv("DELTASQL_CATALOG", catalog_uri)

    def run(*words: str, code: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(cli, words, input=stdin)
        assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}"
        return result

    return run


@pytest.fixture
def deltasql_json(deltasql: Deltasql) -> DeltasqlJson:
    def run(*words: str, code: int = 0) -> Any:
        result = deltasql(*words, "--json", code=code)
        assert result.stderr == ""
        return json.loads(result.stdout)

    return run


def environment(catalog_uri: str) -> dict[str, str]:
    """The program's variables; it may keep its compiled modules, since it is started often."""
    env = os.environ | {"DELTASQL_CATALOG": catalog_uri}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


@pytest.fixture
def program(catalog_uri: str) -> Program:
    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = environment(catalog_uri) | more
        return subprocess.run(
            [str(PROGRAM), *words],
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run
