"""Every end has its exit code, and an error says what happened, where, and what to do."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from deltalakedb import Catalog, exceptions
from deltalakedb.address import parse_address
from deltalakedb.cli.main import cli
from deltalakedb.cli.output import ExitCode, describe, exit_code

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)


@pytest.fixture
def orders(catalog_uri: str, tmp_path: Path) -> str:
    with Catalog(catalog_uri) as catalog:
        catalog.write("orders", pa.table({"id": [1]}), location=tmp_path / "orders")
    return "orders"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exceptions.AddressError("x"), 2),
        (exceptions.ConfigError("x"), 2),
        (exceptions.InvalidArgumentError("x"), 2),
        (exceptions.PredicateError("x"), 2),
        (exceptions.QueryError("x"), 2),
        (click.UsageError("x"), 2),
        (exceptions.ConflictError("x"), 4),
        (exceptions.CommitFailedError("x"), 4),
        (exceptions.TableFrozenError("x"), 5),
        (exceptions.CatalogBusyError("x"), 75),
        (exceptions.CatalogUnavailableError("x"), 75),
        (exceptions.CommitUnknownError("x"), 75),
        (exceptions.StorageUnavailableError("x"), 75),
        (exceptions.TableMissingError("x"), 1),
        (exceptions.CatalogCorruptError("x"), 1),
        (exceptions.DeltaError("x"), 1),
        (ValueError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_has_the_exit_code_of_its_kind(error: Exception, code: int, engine_name: str) -> None:
    assert exit_code(error) == code
    typed = isinstance(error, exceptions.DeltaSqlError | click.ClickException)
    assert (describe(error)["message"] == "x") is typed


def test_an_error_says_what_where_and_what_to_do_on_stderr(deltasql: Deltasql, orders: str) -> None:
    result = deltasql("show", "order", code=1)
    assert result.stdout == ""
    what, where, advice = result.stderr.splitlines()
    assert what.startswith("Error: there is no table 'order'")
    assert where.strip() == "at table order"
    assert advice.strip() == "→ did you mean orders?"


def test_an_error_is_the_one_document_with_json(deltasql_json: DeltasqlJson, orders: str) -> None:
    error = deltasql_json("schema", orders, "--version", "7", code=1)
    assert error["error"] == "VersionMissingError"
    assert (error["table"], error["version"], error["exit_code"]) == ("orders", 7, 1)
    assert "0 to 0" in error["suggestion"]


@pytest.mark.parametrize(
    ("words", "as_json", "debug"),
    [
        (("files", "orders", "--where", "--json", "--nope"), False, False),
        (("files", "orders", "--where=--json", "--nope"), False, False),
        (("files", "orders", "--where", "--debug"), False, False),
        (("--catalog", "--json", "list", "--nope"), False, False),
        (("--config", "--debug", "list"), False, False),
        (("show", "--", "--json"), False, False),
        (("show", "--nope", "--", "--debug"), False, False),
        (("files", "orders", "--where", "--json", "--json", "--nope"), True, False),
        (("files", "orders", "--json", "--where"), True, False),
        (("mirror", "pause", "--json", "--nope"), True, False),
        (("mirror", "--json", "nope"), True, False),
        (("mirror", "nope", "--debug", "--json"), True, True),
        (("--debug", "nope", "--json"), True, True),
        (("-q", "list", "--nope"), False, False),
    ],
)
def test_the_value_of_an_option_is_no_option(
    orders: str, catalog_uri: str, words: tuple[str, ...], as_json: bool, debug: bool
) -> None:
    result = CliRunner().invoke(cli, words, env={"DELTASQL_CATALOG": catalog_uri})
    assert result.exit_code in (1, 2), result.output
    assert result.stdout.startswith("{") is as_json, result.output
    assert ("Traceback" in result.stderr) is debug, result.output


@pytest.mark.parametrize("words", [("--json", "nope"), ("nope", "--json"), ("list", "--nope", "--json")])
def test_wrong_usage_is_answered_in_json_too(
    deltasql: Deltasql, words: tuple[str, ...], engine_name: str
) -> None:
    document = json.loads(deltasql(*words, code=2).stdout)
    assert (document["error"], document["exit_code"]) == ("UsageError", 2)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("create", "t"), "one of --schema, --from-parquet and --like"),
        (("create", "t", "--schema", "a:int"), "--location"),
        (("create", "t", "--schema", "a:nope", "--location", "t"), "no type 'nope'"),
        (("create", "a/b", "--schema", "a:int", "--location", "t"), "path separator"),
        (("create", "t", "--schema", "a:int", "--location", "t", "--tag", "novalue"), "key=value"),
        (("files", "orders", "--where", "city = "), "city"),
        (("files", "orders", "--version", "-1"), "-1"),
        (("import", "x", "y", "--history", "some"), "some"),
        (("list", "--catalog", "postgresql://x/db"), "deltasql+postgresql://x/db?schema=public"),
        (("list", "--catalog", "deltasql://sqlite/x.db?table=t"), "is a table's"),
        (("show", "deltasql://sqlite/x.db"), "?table=NAME"),
        (("list", "--config", "missing.toml"), "missing.toml"),
    ],
)
def test_wrong_arguments_are_wrong_usage(
    deltasql: Deltasql, orders: str, words: tuple[str, ...], fault: str
) -> None:
    assert fault in deltasql(*words, code=2).stderr


def test_a_table_is_named_in_one_way_only(deltasql: Deltasql, orders: str, catalog_uri: str) -> None:
    address = f"{catalog_uri}?table={orders}"
    assert "not both" in deltasql("show", address, "--catalog", catalog_uri, code=2).stderr


def test_without_a_catalog_the_three_ways_to_name_one_are_told(engine_name: str) -> None:
    result = CliRunner().invoke(cli, ["list"])
    assert result.exit_code == ExitCode.USAGE
    for way in ("--catalog", "DELTASQL_CATALOG", "deltasql.toml"):
        assert way in result.stderr


def test_a_setting_that_is_wrong_is_named(
    deltasql: Deltasql, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTASQL_POOL__MAX_SIZE", "many")
    assert "DELTASQL_POOL__MAX_SIZE" in deltasql("list", code=2).stderr


def test_a_taken_name_is_an_error_unless_it_may_be_there(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str
) -> None:
    line = ("create", orders, "--schema", "a:int", "--location", "elsewhere")
    assert "--if-not-exists" in deltasql(*line, code=1).stderr
    assert deltasql_json(*line, "--if-not-exists")["created"] is False


def test_a_taken_location_is_told_with_its_owner(deltasql: Deltasql, orders: str, tmp_path: Path) -> None:
    line = ("create", "other", "--schema", "a:int", "--location", str(tmp_path / "orders"))
    assert "belongs to the table 'orders'" in deltasql(*line, code=1).stderr


def test_a_property_that_cannot_be_is_refused_also_by_a_dry_run(deltasql: Deltasql, tmp_path: Path) -> None:
    words = ["create", "t", "--schema", "id:long", "--location", str(tmp_path / "t")]
    for more in ([], ["--dry-run"]):
        told = deltasql(*words, "--property", "delta.checkpointInterval=abc", *more, code=2).stderr
        assert "delta.checkpointInterval" in told
        assert "a whole number above zero" in told
    assert not (tmp_path / "t").exists()


def test_a_dry_run_creates_nothing(deltasql_json: DeltasqlJson, orders: str, tmp_path: Path) -> None:
    made = deltasql_json("create", "new", "--schema", "a:int", "--location", "new", "--dry-run")
    assert (made["created"], made["dry_run"]) == (False, True)
    assert [t["name"] for t in deltasql_json("list")["tables"]] == [orders]
    assert not (tmp_path / "new").exists()


def test_drop_in_a_pipe_needs_a_yes(deltasql: Deltasql, orders: str) -> None:
    assert "--yes" in deltasql("drop", orders, code=2, stdin="y\n").stderr
    assert deltasql("list", "--quiet").stdout == f"{orders}\n"


def test_a_locked_database_is_to_be_tried_again_later(
    deltasql_json: DeltasqlJson, orders: str, catalog_uri: str
) -> None:
    holder = sqlite3.connect(parse_address(catalog_uri).path or "", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        busy = f"{catalog_uri}?busy_timeout=0"
        error = deltasql_json("drop", orders, "--yes", "--catalog", busy, code=75)
    finally:
        holder.close()
    assert (error["error"], error["transient"]) == ("CatalogBusyError", True)


def test_a_server_that_does_not_answer_is_to_be_tried_again_and_keeps_its_password_secret(
    deltasql: Deltasql, engine_name: str
) -> None:
    address = "deltasql://postgres/ada:hush-hush@127.0.0.1:1/lake/meta"
    for line in (("list",), ("list", "--json"), ("doctor",), ("list", "--debug"), ("migrate", "--dry-run")):
        output = deltasql(*line, "--catalog", address, code=75).output
        assert "127.0.0.1" in output
        assert "hush-hush" not in output


def test_a_file_that_is_no_database_is_told(deltasql: Deltasql, tmp_path: Path, engine_name: str) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to have a header of some kind" * 20)
    result = deltasql("list", "--catalog", "deltasql://sqlite/text.db", code=1)
    assert "is not a SQLite database" in result.stderr


def test_debug_shows_where_an_error_comes_from(deltasql: Deltasql, orders: str) -> None:
    assert "Traceback" not in deltasql("show", "nope", code=1).stderr
    assert "Traceback" in deltasql("show", "nope", "--debug", code=1).stderr


def test_a_schema_newer_than_the_client_is_refused_by_migrate(
    deltasql_json: DeltasqlJson, orders: str, catalog_uri: str
) -> None:
    with sqlite3.connect(parse_address(catalog_uri).path or "") as connection:
        connection.execute("INSERT INTO dl_schema_version VALUES (9999, 'from the future', 0)")
    connection.close()
    for command in ("migrate", "list"):
        assert deltasql_json(command, code=1)["error"] == "CatalogVersionError"
    assert deltasql_json("doctor", code=1)["checks"][-1]["error"]["error"] == "CatalogVersionError"


def test_control_characters_are_shown_and_not_obeyed(
    deltasql: Deltasql, orders: str, catalog_uri: str
) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.set_comment(orders, "red \x1b[31m and [bold]marked[/bold]")
    text = deltasql("show", orders).stdout
    assert "\x1b" not in text
    assert r"red \x1b[31m and [bold]marked[/bold]" in text


def test_a_text_of_delta_rs_or_a_driver_is_for_debug_only(
    deltasql: Deltasql, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise exceptions.DeltaError("Kernel error: raw text of delta-rs")

    monkeypatch.setattr(Catalog, "tables", fail)
    shown = deltasql("list", code=1).stderr
    assert "an unexpected error stopped the command (DeltaError)" in shown
    assert "raw text" not in shown
    assert "raw text of delta-rs" in deltasql("list", "--debug", code=1).stderr


@pytest.mark.parametrize("words", [(), ("mirror",), ("config",)])
def test_a_bare_group_shows_its_help(deltasql: Deltasql, engine_name: str, words: tuple[str, ...]) -> None:
    result = deltasql(*words)
    assert result.stdout.startswith(" ".join(("Usage: deltasql", *words)))
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("fils",), "`deltasql files`"), (("mirror", "verfy"), "`deltasql mirror verify`")],
)
def test_an_unknown_command_is_corrected(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, engine_name: str, words: tuple[str, ...], meant: str
) -> None:
    assert f"did you mean {meant}?" in deltasql(*words, code=2).stderr
    assert deltasql_json(*words, code=2)["suggestion"] == f"did you mean {meant}?"


def test_suggestions_are_commands(deltasql: Deltasql, catalog_uri: str) -> None:
    with Catalog(catalog_uri, create=True):
        pass
    shown = deltasql("show", "nope", code=1).stderr
    assert "`deltasql create`" in shown
    assert "write_deltalake" not in shown


@pytest.fixture
def broken(catalog_uri: str, tmp_path: Path) -> Path:
    """A table by city, and the path of one of its files."""
    with Catalog(catalog_uri) as catalog:
        rows = pa.table({"id": [1, 2], "city": ["Rome", "Oslo"]})
        catalog.write("t", rows, location=tmp_path / "t", partition_by="city")
    return next((tmp_path / "t" / "city=Rome").glob("*.parquet"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("head", "t", "--where", "id = 'x'"),
            2,
            "cannot be evaluated: Cannot cast string 'x'",
        ),
        (("head", "t", "--where", "city = 5"), 2, "the condition cannot be evaluated"),
        (("head", "t", "--where", "nothing(id) = 1"), 2, "Invalid function 'nothing'"),
        (("optimize", "t", "--zorder", "nope"), 2, "the table has no column nope"),
        (("optimize", "t", "--zorder", "city"), 2, "partitioned by it"),
        (
            ("sql", "SELECT CAST(city AS INT) FROM t", "--engine", "datafusion"),
            2,
            "failed: cannot cast string",
        ),
        (("sql", "SELECT id / 0 FROM t", "--engine", "datafusion"), 2, "failed: divide by zero"),
        (("write", "t", "a.csv", "--mode", "overwrite", "--partition-by", "id"), 2, "partitioned by city"),
        (("write", "new", "a.csv", "--location", "n", "--partition-by", "nope"), 2, "no column 'nope'"),
        (("write", "t", "text.parquet"), 2, "correct the value"),
        (("write", "t", "ragged.csv"), 2, "as many values as the first"),
    ],
)
def test_texts_of_engines_do_not_reach_users(
    deltasql_json: DeltasqlJson, broken: Path, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "a.csv").write_text("id,city\n1,Rome\n")
    (tmp_path / "ragged.csv").write_text("id,city\n1\n")
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "text.parquet")
    error = deltasql_json(*words, code=code)
    text = f"{error['message']} {error['suggestion']}"
    assert said in text
    assert not re.search(r"Arrow error|Error during|Optimizer rule|Kernel|C Data|Traceback|Detail:", text)
    assert error["suggestion"]


@pytest.mark.parametrize("engine", ["duckdb", "datafusion"])
def test_a_query_over_a_damaged_or_missing_file_names_it(
    deltasql_json: DeltasqlJson, broken: Path, engine: str
) -> None:
    query = ("sql", "SELECT count(id) FROM t WHERE id > 0", "--engine", engine)
    broken.write_bytes(b"PAR1 damaged")
    damaged = deltasql_json(*query, code=1)
    assert "is damaged: it has 12 bytes" in damaged["message"]
    assert "repair()" not in damaged["suggestion"]
    broken.unlink()
    missing = deltasql_json(*query, code=1)
    assert (missing["error"], broken.name in missing["message"]) == ("StorageMissingError", True)
    assert "restore the file" in missing["suggestion"]
