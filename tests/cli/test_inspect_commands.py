"""`stats`, `diff`, `watch` and `completion`, on SQLite and another engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.shell_completion import BashComplete

from cli.conftest import PROGRAM, environment
from deltalakedb import Catalog
from deltalakedb.cli.context import Invocation
from deltalakedb.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson, Program

SQLITE = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)


@pytest.fixture
def events(catalog_uri: str, tmp_path: Path) -> str:
    """Twenty files: `id` is different in each, `noise` spans everything in each; `kind` is the partition."""
    with Catalog(catalog_uri) as catalog:
        for number in range(20):
            rows = {
                "id": [number * 2, number * 2 + 1],
                "noise": [0, 1000],
                "kind": ["a" if number % 2 else "b"] * 2,
            }
            catalog.write(
                "web.events", pa.table(rows), mode="append", location=tmp_path / "events", partition_by="kind"
            )
    return "web.events"


@pytest.fixture
def orders(catalog_uri: str, tmp_path: Path) -> str:
    with Catalog(catalog_uri) as catalog:
        catalog.write("orders", pa.table({"id": [1, 2]}), location=tmp_path / "orders")
        catalog.write("orders", pa.table({"id": [3], "city": ["Rome"]}), mode="append", schema_mode="merge")
        catalog.table("orders").delete("id = 1")
    return "orders"


def test_stats_measure_pruning_and_advise(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, events: str
) -> None:
    found = deltasql_json("stats", events)
    assert (found["num_files"], found["num_records"], found["small_files"]) == (20, 40, 20)
    assert (found["mergeable_files"], found["merged_files"], found["num_partitions"]) == (20, 2, 2)
    assert {(p["values"]["kind"], p["num_files"]) for p in found["partitions"]} == {("a", 10), ("b", 10)}
    shares = {p["column"]: p["share"] for p in found["pruning"]}
    assert shares == {"id": pytest.approx(0.05), "kind": pytest.approx(0.5), "noise": pytest.approx(1.0)}
    assert [p["column"] for p in found["pruning"]] == ["id", "kind", "noise"]
    assert [a["command"] for a in found["advice"]] == [f"deltasql optimize {events}"]
    text = deltasql("stats", events).stdout
    assert "20; 20 of them can become 2" in text
    assert "→ deltasql optimize web.events" in text
    assert deltasql("stats", events, "--quiet").stdout == "deltasql optimize web.events\n"
    assert deltasql_json("stats", events, "--version", "0")["num_files"] == 1
    assert deltasql("stats", "nope", code=1).stdout == ""


@SQLITE
def test_stats_of_a_table_that_nothing_prunes_name_a_column(
    deltasql_json: DeltasqlJson, catalog_uri: str, tmp_path: Path
) -> None:
    with Catalog(catalog_uri) as catalog:
        for _ in range(16):
            catalog.write("flat", pa.table({"id": [1, 100]}), mode="append", location=tmp_path / "flat")
        catalog.create_table("empty", pa.schema([("id", pa.int64())]), location=tmp_path / "empty")
    assert "deltasql optimize flat --zorder id" in [
        a["command"] for a in deltasql_json("stats", "flat")["advice"]
    ]
    assert deltasql_json("stats", "empty")["median"] is None


def test_diff_compares_two_versions(deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str) -> None:
    found = deltasql_json("diff", orders, "--from", "0", "--to", "1", "--rows")
    assert found["before"] == {"table": orders, "version": 0}
    assert [(c["name"], c["change"], c["after"]) for c in found["columns"]] == [("city", "added", "string")]
    assert ([f["change"] for f in found["files"]], found["unchanged_files"]) == (["added"], 1)
    found = deltasql_json("diff", orders, "--rows")
    assert (found["before"]["version"], found["after"]["version"], found["equal"]) == (1, 2, False)
    assert found["rows"] == [{"change": "removed", "count": 1, "row": {"id": 1, "city": None}}]
    assert (found["rows_added"], found["rows_removed"]) == (0, 1)
    text = deltasql("diff", orders, "--from", "0", "--rows").stdout
    assert "orders (version 0) → orders (version 2)" in text
    assert "  + city: string" in text
    assert deltasql_json("diff", orders, "--from", "1", "--to", "1", "--rows")["equal"] is True
    assert "Nothing differs." in deltasql("diff", orders, "--from", "1", "--to", "1").stdout
    assert deltasql_json("diff", orders, "--from", "9", code=1)["error"] == "VersionMissingError"


@SQLITE
def test_diff_takes_times_on_both_sides(deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str) -> None:
    times = [c["committed_at"] for c in deltasql_json("history", orders)["commits"]][::-1]
    found = deltasql_json("diff", orders, "--from", times[0], "--to", times[1])
    assert (found["before"]["version"], found["after"]["version"]) == (0, 1)
    assert found == deltasql_json("diff", orders, "--from", "0", "--to", "1")
    assert deltasql_json("diff", orders, "--from", times[1])["before"]["version"] == 1
    assert "is not a time" in deltasql("diff", orders, "--from", "noon", code=2).stderr
    assert deltasql_json("diff", orders, "--to", "1990-01-01", code=1)["error"] == "VersionMissingError"


@SQLITE
def test_diff_compares_two_tables(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, catalog_uri: str, tmp_path: Path
) -> None:
    with Catalog(catalog_uri) as catalog:
        rows = pa.table({"id": [2, 2, 3], "city": [None, None, "Rome"]})
        properties = {"delta.appendOnly": "true"}
        catalog.write("copy", rows, location=tmp_path / "copy", configuration=properties)
    found = deltasql_json("diff", orders, "copy", "--rows")
    assert found["columns"] == []
    assert {p["name"] for p in found["properties"]} >= {"delta.appendOnly"}
    assert found["rows"] == [{"change": "added", "count": 1, "row": {"id": 2, "city": None}}]
    assert found["unchanged_files"] == 0
    assert len(deltasql_json("diff", orders, "copy", "--rows", "--limit", "0")["rows"]) == 0
    assert "there is no table 'nope'" in deltasql("diff", orders, "nope", code=1).stderr


def test_watch_shows_commits_from_a_version(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str
) -> None:
    lines = deltasql("watch", "--once", "--from", "1", "--json").stdout.splitlines()
    commits = [json.loads(line) for line in lines]
    assert [(c["table"], c["version"], c["operation"]) for c in commits] == [
        ("orders", 1, "WRITE"),
        ("orders", 2, "DELETE"),
    ]
    assert "orders  version 2  DELETE" in deltasql("watch", orders, "--once", "--from", "2").stdout
    assert deltasql("watch", "--once").stdout == ""
    assert deltasql("watch", "--once", "--from", "0", "--quiet").stdout == "orders 0\norders 1\norders 2\n"
    assert "there is no table 'nope'" in deltasql("watch", "nope", "--once", code=1).stderr


def test_watch_yields_commits_as_they_arrive_new_tables_included(
    catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    catalog.write("a", pa.table({"id": [1]}), location=tmp_path / "a")
    stop = threading.Event()
    found = catalog.watch(interval=0.01, stop=stop)
    seen: list[tuple[str, int]] = []

    def write(name: str) -> None:
        with Catalog(catalog_uri) as other:
            other.write(name, pa.table({"id": [2]}), mode="append", location=tmp_path / name)

    started = threading.Event()

    def watch() -> None:
        started.set()
        for name, commit in found:
            seen.append((name, commit.version))
            if name == "b":
                stop.set()

    watching = threading.Thread(target=watch)
    watching.start()
    started.wait()
    while not seen:  # the first look decides what is new
        write("a")
    write("b")
    watching.join(timeout=60)
    assert not watching.is_alive()
    assert seen[-1] == ("b", 0)
    assert {name for name, _ in seen} == {"a", "b"}


@SQLITE
def test_ctrl_c_ends_watching_well(catalog_uri: str, orders: str) -> None:
    line = [str(PROGRAM), "watch", "--from", "2", "--interval", "0.05", "--json"]
    with subprocess.Popen(
        line, env=environment(catalog_uri), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert json.loads(run.stdout.readline())["version"] == 2
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    assert (run.returncode, errors) == (0, "")


@SQLITE
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(program: Program, engine_name: str, shell: str) -> None:
    done = program("completion", shell)
    assert done.returncode == 0
    assert f"_DELTASQL_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash" and os.access("/bin/bash", os.X_OK):
        subprocess.run(["/bin/bash", "-n"], input=done.stdout, text=True, check=True)
    assert program("completion", "powershell").returncode == 2


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["show", ""], ["orders"]),
        (["diff", "orders", "o"], ["orders"]),
        (["watch", "ord"], ["orders"]),
        (["show", "x"], []),
        (["wat"], ["watch"]),
    ],
    ids=" ".join,
)
@SQLITE
def test_table_names_are_completed(catalog_uri: str, orders: str, words: list[str], found: list[str]) -> None:
    shell = BashComplete(cli, {"obj": Invocation(catalog=catalog_uri)}, "deltasql", "_DELTASQL_COMPLETE")
    assert [item.value for item in shell.get_completions(words[:-1], words[-1])] == found


def test_names_for_completion_come_from_every_engine(catalog_uri: str, orders: str) -> None:
    assert Invocation(catalog=catalog_uri).table_names() == [orders]


@SQLITE
def test_completion_is_silent_if_the_catalog_is_not_there(program: Program, engine_name: str) -> None:
    where = {"DELTASQL_CATALOG": "deltasql://sqlite/missing.db"}
    done = program(_DELTASQL_COMPLETE="bash_complete", COMP_WORDS="deltasql show ", COMP_CWORD="2", **where)
    assert (done.stdout.strip(), done.stderr) == ("", "")
