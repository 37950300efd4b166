"""The installed program in processes of its own: pipes, terminals, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from cli.conftest import PROGRAM, environment
from deltalakedb import Catalog, failpoints
from deltalakedb.cli.main import cli
from deltalakedb.spark.jars import folder as jars_folder
from support.sources import plain_table
from support.spark import missing_reason

if TYPE_CHECKING:
    from cli.conftest import Program

ROOT = Path(__file__).resolve().parents[2]
ESCAPE = "\x1b["
#: asked before the tests have a home of their own
SPARK_MISSING, JARS = missing_reason(), str(jars_folder())


@pytest.fixture
def orders(catalog_uri: str, tmp_path: Path) -> str:
    with Catalog(catalog_uri) as catalog:
        catalog.write("orders", pa.table({"id": [1]}), location=tmp_path / "orders")
    return "orders"


def on_a_terminal(
    line: list[str], env: dict[str, str], answer: bytes | None = None, question: bytes = b"[y/N]"
) -> tuple[int, str]:
    """Runs a program on a pseudo-terminal, types an answer once it asks, and returns code and screen."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen(line, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        screen = _converse(ours, answer, question)
        return run.wait(timeout=30), screen
    finally:
        run.kill()
        run.wait()
        os.close(ours)


def _converse(terminal: int, answer: bytes | None, question: bytes) -> str:
    screen, silences, answered = b"", 0, False
    while silences < 120:
        ready, _, _ = select.select([terminal], [], [], 1)
        if ready:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # the other end is closed: the program has ended
                break
            screen += piece
        silences = 0 if ready else silences + 1
        # Python may miss a ^C that comes while it prepares to read a line; people press it again later
        asked, waited = question in screen, silences and silences % 10 == 0
        if answer is not None and asked and (waited or not answered):
            os.write(terminal, answer)
            answered = True
    return screen.decode()


def terminal(catalog_uri: str) -> dict[str, str]:
    return environment(catalog_uri) | {"TERM": "xterm-256color", "COLUMNS": "120"}


def names(catalog_uri: str) -> list[str]:
    with Catalog(catalog_uri) as catalog:
        return [table.name for table in catalog.tables()]


def test_a_session_of_the_program_on_every_engine(program: Program, tmp_path: Path) -> None:
    made = program("create", "t", "--schema", "id:long", "--location", str(tmp_path / "t"))
    assert made.returncode == 0, made.stderr
    assert json.loads(program("list", "--json").stdout)["tables"][0]["name"] == "t"
    assert program("drop", "t").returncode == 2
    assert program("drop", "t", "--yes").returncode == 0


@pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)
class TestOnSqlite:
    def test_a_pipe_has_no_colour_and_keeps_lines_whole(self, program: Program, orders: str) -> None:
        listed, failed = program("list", COLUMNS="20"), program("show", "nope", COLUMNS="20")
        assert ESCAPE not in listed.stdout + failed.stderr
        (header, row) = listed.stdout.splitlines()
        assert header.startswith("NAME")
        assert row.startswith("orders")
        assert len(failed.stderr.splitlines()) == 3

    def test_a_terminal_has_colour_unless_told_otherwise(self, catalog_uri: str, orders: str) -> None:
        env = terminal(catalog_uri)
        assert ESCAPE in on_a_terminal([str(PROGRAM), "list"], env)[1]
        plain = on_a_terminal([str(PROGRAM), "list"], env | {"NO_COLOR": "1"})[1]
        assert not re.search(r"\x1b\[[0-9;]*3\d", plain)

    def test_a_person_is_asked_before_a_drop(self, catalog_uri: str, orders: str) -> None:
        env = terminal(catalog_uri)
        code, screen = on_a_terminal([str(PROGRAM), "drop", orders], env, b"n\n")
        assert (code, "Nothing was changed" in screen) == (1, True)
        assert names(catalog_uri) == ["orders"]
        code, screen = on_a_terminal([str(PROGRAM), "drop", orders], env, b"y\n")
        assert (code, "Dropped orders" in screen) == (0, True)
        assert names(catalog_uri) == []

    def test_ctrl_c_leaves_everything_as_it_was(self, catalog_uri: str, orders: str) -> None:
        # the terminal must belong to the program for its ^C to arrive
        line = [sys.executable, "-c", _TAKE_TERMINAL, str(PROGRAM), "drop", orders]
        code, screen = on_a_terminal(line, terminal(catalog_uri), b"\x03")
        assert code == 130
        assert "interrupted" in screen
        assert "Traceback" not in screen
        assert names(catalog_uri) == ["orders"]

    def test_a_reader_that_goes_away_is_no_error(self, catalog_uri: str, orders: str) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        with subprocess.Popen(
            [str(PROGRAM), "show", orders],
            env=terminal(catalog_uri),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            os.close(writing)
            _, errors = run.communicate()
        assert (run.returncode, errors) == (0, "")

    def test_ctrl_c_in_an_import_names_the_command_that_resumes_it(
        self, catalog_uri: str, tmp_path: Path
    ) -> None:
        source, env = plain_table(tmp_path / "plain"), environment(catalog_uri)
        line = ["import", str(source), "t", "--history", "full", "--batch-size", "1"]
        stopping = env | {failpoints.VARIABLE: "import.batch_done=stop@1"}
        run = subprocess.Popen([str(PROGRAM), *line], env=stopping, stderr=subprocess.PIPE, text=True)
        os.waitid(os.P_PID, run.pid, os.WSTOPPED)
        for number in (signal.SIGINT, signal.SIGCONT):
            os.kill(run.pid, number)
        _, said = run.communicate(timeout=60)
        assert run.returncode == 130
        assert names(catalog_uri) == []
        found = re.search(r"run `(.*)` to continue", said)
        assert found, said
        program, *again = shlex.split(found[1])
        assert (program, again) == ("deltasql", line)
        done = subprocess.run([str(PROGRAM), *again], env=env, capture_output=True, text=True, check=True)
        assert "Resumed and imported" in done.stdout
        assert names(catalog_uri) == ["t"]

    def test_an_import_shows_a_bar_on_a_terminal(self, catalog_uri: str, orders: str, tmp_path: Path) -> None:
        with Catalog(catalog_uri) as catalog:
            catalog.drop_table(orders)
        line = [str(PROGRAM), "import", str(tmp_path / "orders"), "again"]
        code, screen = on_a_terminal(line, terminal(catalog_uri))
        assert code == 0, screen
        assert "importing again" in screen
        assert "1/1" in screen
        assert "Imported" in screen

    def test_version_and_completion(self, program: Program) -> None:
        assert re.fullmatch(r"deltasql \d+\.\d+\.\S+\n", program("--version").stdout)
        completion = program(_DELTASQL_COMPLETE="bash_source")
        assert "_DELTASQL_COMPLETE=bash_complete" in completion.stdout


def test_the_tour_ends_well_and_can_be_taken_twice(tmp_path: Path) -> None:
    for _ in range(2):
        tour = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "tour.py"), str(tmp_path / "lake")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (tour.returncode, tour.stderr) == (0, "")
        assert "checks passed" in tour.stdout
        assert ESCAPE not in tour.stdout
    # it ends with how to open what it made
    catalog = re.search(r"export DELTASQL_CATALOG='(.+)'", tour.stdout)
    assert catalog
    assert CliRunner().invoke(cli, ["list", "-q", "--catalog", catalog[1]]).output.split() == [
        "customers",
        "orders",
        "visits",
    ]


@pytest.mark.skipif(SPARK_MISSING is not None, reason=str(SPARK_MISSING))
@pytest.mark.slow
def test_the_spark_example_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark_import.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DELTASQL_SPARK__JARS": JARS},
    )
    assert done.returncode == 0, done.stderr
    assert "imported by spark: version 4" in done.stdout
    assert "delta-spark reads the same 250 rows from the folder: True" in done.stdout


def test_the_tour_does_not_remove_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    tour = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "tour.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tour.returncode == 1
    assert (tmp_path / "precious").exists()


_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("words", [["--help"], ["list", "--help"], ["import", "--help"]])
def test_help_is_shown_without_loading_databases_and_arrow(words: list[str]) -> None:
    asked = f"from deltalakedb.cli.main import cli; cli.main({words}, standalone_mode=False)"
    names = ("pyarrow", "pydantic", "duckdb", "msgspec", "rich")
    heavy = f"import sys; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{asked}; {heavy}"], capture_output=True, text=True, check=True
    )
    assert "Usage: deltasql" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_is_found_by_its_name() -> None:
    context = click.Context(cli)
    names = cli.list_commands(context)
    found = {name: cli.get_command(context, name) for name in names}
    assert {name: command.name for name, command in found.items() if command} == {n: n for n in names}
    assert {"import", "import-all", "list", "mirror"} <= set(names)
