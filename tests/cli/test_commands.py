"""The main commands end to end, on the three engines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from deltalakedb import Catalog, DeltaTable
from deltalakedb.address import parse_address
from deltalakedb.cli.main import cli
from deltalakedb.metastore import migrations
from deltalakedb.metastore.statements import parse_statements

if TYPE_CHECKING:
    from cli.conftest import Deltasql, DeltasqlJson
    from conftest import TableUri

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def orders(catalog_uri: str, tmp_path: Path) -> str:
    """A table of two versions: one file for each of two cities, then one more row for Rome."""
    with Catalog(catalog_uri) as catalog:
        first = pa.table({"id": [1, 2, 3], "city": ["Rome", "Oslo", "Rome"]})
        catalog.write("sales.orders", first, location=tmp_path / "orders", partition_by="city")
        catalog.write("sales.orders", pa.table({"id": [9], "city": ["Rome"]}), mode="append")
    return "sales.orders"


def test_a_table_made_on_the_command_line_can_be_written_and_read(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, table_uri: TableUri, tmp_path: Path
) -> None:
    made = deltasql_json(
        "create",
        "sales.orders",
        "--schema",
        "id:long!, city:string, price:decimal(10,2), tags:array<string>",
        "--location",
        str(tmp_path / "lake" / "sales.orders"),
        "--partition-by",
        "city",
        "--property",
        "delta.appendOnly=true",
        "--tag",
        "team=web",
        "--comment",
        "all orders",
        "--description",
        "orders of the shop",
    )
    assert (made["created"], made["version"]) == (True, 0)
    shown = deltasql_json("show", "sales.orders")
    assert shown["location"] == str(tmp_path / "lake" / "sales.orders")
    assert shown["partition_columns"] == ["city"]
    assert shown["properties"] == {"delta.appendOnly": "true"}
    assert (shown["tags"], shown["comment"], shown["description"]) == (
        {"team": "web"},
        "all orders",
        "orders of the shop",
    )
    assert TIME.fullmatch(shown["committed_at"])
    table = DeltaTable(table_uri("sales.orders"))
    assert [(f.name, f.nullable) for f in table.schema().fields] == [
        ("id", False),
        ("city", True),
        ("price", True),
        ("tags", True),
    ]
    assert deltalake.DeltaTable(shown["location"]).schema() == table.schema()


def test_list_shows_every_table_and_its_counters(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str
) -> None:
    (row,) = deltasql_json("list")["tables"]
    assert (row["name"], row["version"], row["num_files"], row["num_records"]) == (orders, 1, 3, 4)
    assert "table_id" not in row
    lines = deltasql("list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "VERSION", "FILES", "ROWS", "SIZE", "COMMITTED", "STATE"]
    assert lines[1].split()[:4] == [orders, "1", "3", "4"]
    assert deltasql("list", "--quiet").stdout == f"{orders}\n"
    assert deltasql_json("list", "--namespace", "other")["tables"] == []
    assert [t["name"] for t in deltasql_json("list", "--namespace", "sales")["tables"]] == [orders]


def test_show_tells_what_is_published(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, catalog_uri: str
) -> None:
    shown = deltasql_json("show", orders)
    assert (shown["published_version"], shown["unpublished_versions"]) == (1, 0)
    assert shown["protocol"]["minReaderVersion"] == 1
    text = deltasql("show", orders).stdout
    assert re.search(r"^published +up to version 1$", text, re.MULTILINE)
    assert re.search(r"^partitioned by +city$", text, re.MULTILINE)


def test_schema_is_a_tree_for_people_and_deltas_json_for_programs(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, tmp_path: Path
) -> None:
    place = str(tmp_path / "nested")
    deltasql(
        "create",
        "nested",
        "--schema",
        "a:struct<b:int!,c:map<string,array<date>>>,d:double",
        "--location",
        place,
    )
    document = deltasql_json("schema", "nested")
    assert document == json.loads(deltalake.DeltaTable(place).schema().to_json())
    text = deltasql("schema", "nested").stdout
    assert "a: struct" in text
    assert "b: integer not null" in text
    assert "c: map<string, array<date>>" in text
    (tmp_path / "again.json").write_text(json.dumps(document))
    deltasql("create", "again", "--schema", "again.json", "--location", "again")
    assert deltasql_json("schema", "again") == document


def test_files_are_planned_by_a_condition_and_travel_in_time(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str
) -> None:
    assert deltasql_json("files", orders)["num_files"] == 3
    assert deltasql_json("files", orders, "--version", "0")["num_files"] == 2
    plan = deltasql_json("files", orders, "--where", "city = 'Rome' AND id > 5")
    (file,) = plan["files"]
    assert (file["partition_values"], file["added_in_version"], file["num_records"]) == (
        {"city": "Rome"},
        1,
        1,
    )
    limited = deltasql_json("files", orders, "--limit", "1")
    assert (limited["num_files"], len(limited["files"])) == (3, 1)
    paths = deltasql("files", orders, "--quiet").stdout.split()
    assert sorted(paths) == sorted(f["path"] for f in deltasql_json("files", orders)["files"])


def test_history_has_the_newest_first(deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str) -> None:
    commits = deltasql_json("history", orders)["commits"]
    assert [c["version"] for c in commits] == [1, 0]
    assert [(c["num_added"], c["published"]) for c in commits] == [(1, True), (2, True)]
    assert commits[0]["info"]["operation"] == "WRITE"
    assert [c["version"] for c in deltasql_json("history", orders, "--limit", "1")["commits"]] == [1]
    assert "WRITE" in deltasql("history", orders).stdout


def test_drop_forgets_the_table_and_leaves_a_plain_delta_table(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, tmp_path: Path
) -> None:
    would = deltasql_json("drop", orders, "--dry-run")
    assert (would["dropped"], would["files_kept"]) == (False, True)
    assert [t["name"] for t in deltasql_json("list")["tables"]] == [orders]
    text = deltasql("drop", orders, "--yes").stdout
    assert "stay" in text
    assert deltasql_json("list")["tables"] == []
    assert deltalake.DeltaTable(tmp_path / "orders").version() == 1


def test_import_takes_over_a_plain_table(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, tmp_path: Path
) -> None:
    for n in range(3):
        deltalake.write_deltalake(tmp_path / "plain", pa.table({"n": [n]}), mode="append")
    deltasql_json("init")
    plan = deltasql_json("import", str(tmp_path / "plain"), "taken", "--dry-run")
    assert (plan["num_versions"], plan["num_files"]) == (3, 3)
    assert deltasql_json("list")["tables"] == []
    result = deltasql("import", str(tmp_path / "plain"), "taken", "--history", "full")
    assert "importing taken: 3 of 3" in result.stderr
    assert "Imported" in result.stdout
    assert deltasql_json("show", "taken")["num_records"] == 3
    assert [c["origin"] for c in deltasql_json("history", "taken")["commits"]] == ["import"] * 3


def test_create_takes_columns_from_a_parquet_file_or_another_table(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str
) -> None:
    pq.write_table(pa.table({"x": [1], "y": ["a"]}), "sample.parquet")
    deltasql("create", "sampled", "--from-parquet", "sample.parquet", "--location", "sampled")
    assert [f["name"] for f in deltasql_json("schema", "sampled")["fields"]] == ["x", "y"]
    deltasql("create", "alike", "--like", orders, "--location", "alike")
    assert deltasql_json("schema", "alike") == deltasql_json("schema", orders)
    assert deltasql_json("show", "alike")["partition_columns"] == ["city"]


def test_init_and_migrate_are_the_owners_commands_where_others_may_not_create(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, monkeypatch: pytest.MonkeyPatch, catalog_uri: str
) -> None:
    monkeypatch.setenv("DELTASQL_CATALOG__CREATE", "false")
    monkeypatch.setenv("DELTASQL_CATALOG__AUTO_MIGRATE", "false")
    assert "deltasql init" in deltasql("create", "t", "--schema", "a:int", "--location", "t", code=1).stderr
    for dry in ((), ("--dry-run",)):
        refused = deltasql_json("migrate", *dry, code=1)
        assert refused["error"] == "CatalogNotFoundError"
        assert "deltasql init" in refused["suggestion"]
    assert deltasql_json("list", code=1)["error"] == "CatalogNotFoundError", "nothing was created"
    made = deltasql("init").stdout
    assert "Created a catalog" in made
    assert "deltasql write NAME FILE.csv --location DIR" in made
    assert "export" not in made, "it is the default"
    assert "nothing to create" in deltasql("init").stdout
    uri = parse_address(catalog_uri).to_uri()
    assert deltasql_json("init") == {"catalog": uri, "created": False, "root": None}
    assert deltasql_json("init", "--root", "lake")["root"] == str(Path("lake").absolute())
    assert deltasql_json("migrate")["migrations"] == []
    assert "up to date" in deltasql("migrate", "--dry-run").stdout
    deltasql("create", "t", "--schema", "a:int")
    again = deltasql("init").stdout
    assert "1 table" in again
    assert "deltasql list" in again


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_init_takes_an_address_and_says_what_to_do_next(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, tmp_path: Path, catalog_uri: str
) -> None:
    other = f"deltasql://sqlite/{tmp_path}/new%20folder/meta.db"
    made = deltasql("init", other, "--root", str(tmp_path / "lake")).stdout
    assert f"export DELTASQL_CATALOG={other}\n" in made
    assert f"New tables are created below {tmp_path / 'lake'}." in made
    assert deltasql("init", other, "--quiet").stdout == f"{other}\n"
    assert deltasql_json("list", "--catalog", other)["tables"] == []
    assert "one of them" in deltasql("init", other, "--catalog", catalog_uri, code=2).stderr
    assert "is a table's" in deltasql("init", f"{other}?table=t", code=2).stderr
    assert deltasql_json("init", "sqlite:///x.db", code=2)["error"] == "AddressError"
    (tmp_path / "file").write_text("x")
    assert deltasql_json("init", f"deltasql://sqlite/{tmp_path}/file/meta.db", code=1)["suggestion"]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_migrate_upgrades_an_older_catalog(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltasql("init")
    known = migrations.migrations()
    later = len(known) + 1
    statements = tuple(parse_statements("-- name: notes\nCREATE TABLE dl_notes (note TEXT);\n"))
    steps = (*known, migrations.Migration(later, "notes", statements))
    monkeypatch.setattr(migrations, "migrations", lambda: steps)
    monkeypatch.setenv("DELTASQL_CATALOG__AUTO_MIGRATE", "false")
    assert "deltasql migrate" in deltasql("list", code=1).stderr
    would = deltasql_json("migrate", "--dry-run")
    assert (would["schema_version"], would["target_version"]) == (later - 1, later)
    assert "1 migration would be applied" in deltasql("migrate", "--dry-run").stdout
    done = deltasql_json("migrate")
    assert done["migrations"] == would["migrations"] == [{"number": later, "title": "notes"}]
    assert done["schema_version"] == later
    assert deltasql_json("list")["tables"] == []


def test_a_full_address_needs_no_catalog(
    deltasql: Deltasql, orders: str, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELTASQL_CATALOG")
    assert orders in deltasql("show", f"{catalog_uri}?table={orders}").stdout
    assert orders in deltasql("--catalog", catalog_uri, "list").stdout
    assert orders in deltasql("list", "--catalog", catalog_uri).stdout
    Path("deltasql.toml").write_text(f'catalog = "{catalog_uri}"\n')
    assert orders in deltasql("list").stdout
    Path("other.toml").write_text(f'catalog = "{catalog_uri}"\n')
    Path("deltasql.toml").unlink()
    assert orders in deltasql("list", "--config", "other.toml").stdout


@pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--location", "lake/t/below"], "overlap"),
        (["--location", "plain"], "plain Delta table"),
        (["--location", "lake/new", "--property", "delta.appendOny=true"], "did you mean delta.appendOnly?"),
        (["--location", "lake/new", "--property", "delta.appendOnly=maybe"], "use true or false"),
        (["--location", "lake/new", "--partition-by", "nope"], "not in the schema"),
        ([], "--location DIR"),
    ],
)
def test_a_dry_run_of_create_refuses_what_create_refuses(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, tmp_path: Path, words: list[str], said: str
) -> None:
    deltalake.write_deltalake(str(tmp_path / "plain"), pa.table({"id": [1]}))
    deltasql("create", "t", "--schema", "id:long", "--location", "lake/t")
    before = sorted(tmp_path.rglob("*"))
    new = ("create", "new", "--schema", "id:long", *words)
    dry = CliRunner().invoke(cli, [*new, "--dry-run", "--json"])
    real = CliRunner().invoke(cli, [*new, "--json"])
    assert (dry.exit_code, dry.stdout) == (real.exit_code, real.stdout)
    assert real.exit_code in (1, 2)
    assert said in real.stdout
    assert {p for p in tmp_path.rglob("*") if "lake" in p.parts} == {p for p in before if "lake" in p.parts}


@pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)
def test_a_dry_run_of_create_creates_neither_a_table_nor_a_catalog(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, tmp_path: Path
) -> None:
    new = ("create", "t", "--schema", "id:long", "--location", "lake/t", "--property", "owner=ada")
    assert deltasql_json(*new, "--dry-run")["created"] is False
    assert not (tmp_path / "lake").exists()
    assert "no catalog" in deltasql("list", code=1).stderr
    assert deltasql_json(*new)["created"] is True
    assert deltasql_json("show", "t")["properties"] == {"owner": "ada"}


@pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)
def test_a_dry_run_of_an_import_ends_as_the_import_would(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, tmp_path: Path
) -> None:
    path = str(tmp_path / "plain" / "t")
    deltalake.write_deltalake(path, pa.table({"id": [1]}))
    deltasql("init")
    deltasql("import", path, "t")
    dry, real = (deltasql_json("import", path, "t", *more, code=1) for more in (["--dry-run"], []))
    assert dry == real
    assert "was imported before" in dry["message"]
    assert "--catch-up" in dry["suggestion"]
    many = ("import-all", str(tmp_path / "plain"), "--dry-run")
    assert [t["outcome"] for t in deltasql_json(*many)["tables"]] == ["unchanged"]
    deltalake.write_deltalake(path, pa.table({"id": [2]}), mode="append")
    assert [t["outcome"] for t in deltasql_json(*many)["tables"]] == ["planned"]
    assert [t["outcome"] for t in deltasql_json(*many, "--no-catch-up")["tables"]] == ["unchanged"]
