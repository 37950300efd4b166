"""`sql` and `head`: rows of data tables and of metadata views, in every format; nothing can be changed."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.conftest import PROGRAM, environment
from cli.test_program import on_a_terminal
from deltalakedb import Catalog, exceptions
from deltalakedb.sql import require_query

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson, Program

ENGINES = ("duckdb", "datafusion")
SQLITE = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)


@pytest.fixture
def orders(catalog_uri: str, tmp_path: Path) -> str:
    with Catalog(catalog_uri) as catalog:
        first = pa.table({"id": [1, 2, 3], "City": ["Rome", "Oslo", "Rome"]})
        catalog.write("sales.orders", first, location=tmp_path / "orders", partition_by="City")
        catalog.write("sales.orders", pa.table({"id": [9], "City": ["Rome"]}), mode="append")
        catalog.write("people", pa.table({"id": [1], "name": ["Ada"]}), location=tmp_path / "people")
    return "sales.orders"


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_are_queried_by_name_beside_the_views(
    deltasql_json: DeltasqlJson, orders: str, engine: str
) -> None:
    joined = (
        "SELECT o.id, p.name, t.version FROM sales.orders o JOIN people p ON p.id = o.id "
        "JOIN dl_v_tables t ON t.name = 'sales.orders'"
    )
    assert deltasql_json("sql", joined, "--engine", engine) == [{"id": 1, "name": "Ada", "version": 1}]
    counted = 'SELECT City, count(*) AS n FROM "sales.orders" WHERE id > 1 GROUP BY City ORDER BY City;'
    assert deltasql_json("sql", counted, "--engine", engine) == [
        {"City": "Oslo", "n": 1},
        {"City": "Rome", "n": 2},
    ]
    assert deltasql_json("sql", "SHOW TABLES", "--engine", engine) == [{"name": "people"}, {"name": orders}]


@pytest.mark.parametrize("engine", ENGINES)
@SQLITE
def test_a_query_reads_versions_and_named_catalogs(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, tmp_path: Path, engine: str
) -> None:
    prod = f"deltasql://sqlite/{tmp_path}/prod.db"
    (tmp_path / "deltasql.toml").write_text(f'[catalogs]\nprod = "{prod}"\n')
    with Catalog(prod, create=True) as catalog:
        catalog.write("sales.orders", pa.table({"id": [7], "City": ["Bern"]}), location=tmp_path / "prod")
        catalog.write("sales.orders", pa.table({"id": [8], "City": ["Bern"]}), mode="append")
    both = 'SELECT id FROM sales.orders UNION ALL SELECT id FROM "prod:sales.orders" ORDER BY id'

    def ids(*words: str) -> list[int]:
        return [row["id"] for row in deltasql_json("sql", *words, "--engine", engine)]

    assert ids(both) == [1, 2, 3, 7, 8, 9]
    assert ids(both, "--version", "sales.orders=0") == [1, 2, 3, 7, 8]
    assert ids(both, "--version", "prod:sales.orders=0", "--version", "sales.orders=0") == [1, 2, 3, 7]
    assert ids("SELECT id FROM sales.orders ORDER BY id", "--catalog", "prod") == [7, 8]
    assert "does not name people" in deltasql("sql", both, "--version", "people=0", code=2).stderr
    assert "is not a version" in deltasql("sql", both, "--version", "sales.orders=x", code=2).stderr
    assert deltasql_json("sql", both, "--version", "sales.orders=9", code=1)["error"] == "VersionMissingError"
    missing = deltasql_json("sql", 'SELECT * FROM "prod:sales.order"', "--engine", engine, code=1)
    assert "did you mean sales.orders?" in missing["suggestion"]
    assert deltasql_json("sql", 'SELECT 1 AS "prod:x"', "--engine", engine) == [{"prod:x": 1}]


@SQLITE
def test_rows_have_four_formats(deltasql: Deltasql, orders: str, tmp_path: Path) -> None:
    query = "SELECT id, City FROM sales.orders ORDER BY id LIMIT 2"
    assert deltasql("sql", query).stdout == "id  City\n 1  Rome\n 2  Oslo\n"
    assert deltasql("sql", query, "--format", "csv").stdout == "id,City\n1,Rome\n2,Oslo\n"
    assert json.loads(deltasql("sql", query, "--format", "json").stdout)[1] == {"id": 2, "City": "Oslo"}
    assert deltasql("sql", query, "--quiet").stdout == "1\tRome\n2\tOslo\n"
    for name in ("a.parquet", "a.csv", "a.json"):
        assert "2 rows" in deltasql("sql", query, "--output", str(tmp_path / name)).stderr
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"id": [1, 2], "City": ["Rome", "Oslo"]}
    assert (tmp_path / "a.csv").read_text() == "id,City\n1,Rome\n2,Oslo\n"
    assert len(json.loads((tmp_path / "a.json").read_text())) == 2
    assert {p.name for p in tmp_path.iterdir()} >= {"a.parquet", "a.csv", "a.json"}
    assert not list(tmp_path.glob("*.part"))
    assert deltasql("sql", query, "--limit", "1", "--quiet").stdout == "1\tRome\n"
    assert json.loads(deltasql("sql", "SELECT id FROM people WHERE id > 5", "--json").stdout) == []


@SQLITE
def test_every_kind_of_value_can_be_shown(deltasql: Deltasql, orders: str) -> None:
    query = (
        "SELECT [1, 2] AS l, {'a': 1} AS s, DATE '2024-01-02' AS d, TIMESTAMPTZ '2024-01-02 03:04:05Z' AS t, "
        "NULL AS n, 1.50 AS x, 'a\"b,c' AS \"c|d>\", 'x'::BLOB AS b, 'nan'::DOUBLE AS f, true AS y"
    )
    (row,) = json.loads(deltasql("sql", query, "--json").stdout)
    assert row == {
        "l": [1, 2],
        "s": {"a": 1},
        "d": "2024-01-02",
        "t": "2024-01-02T03:04:05Z",
        "n": None,
        "x": "1.50",
        "c|d>": 'a"b,c',
        "b": "eA==",
        "f": None,
        "y": True,
    }
    names, values = csv.reader(io.StringIO(deltasql("sql", query, "--format", "csv").stdout))
    assert dict(zip(names, values, strict=True))["c|d>"] == 'a"b,c'
    header, line = deltasql("sql", query).stdout.splitlines()
    assert "c|d>" in header
    assert "NULL" in line
    assert "0x78" in line


@SQLITE
def test_a_query_comes_from_a_pipe(deltasql: Deltasql, orders: str) -> None:
    assert deltasql("sql", stdin="SELECT count(*) AS n\nFROM sales.orders;\n").stdout == "n\n4\n"
    assert "the query is empty" in deltasql("sql", stdin="", code=2).stderr


@pytest.mark.parametrize(
    "query",
    [
        'SELECT load, "update" FROM machines',
        "WITH load AS (SELECT 1) SELECT * FROM load",
        'WITH a AS (SELECT 1), "set" AS (SELECT 2) SELECT call FROM a',
        "EXPLAIN SELECT commit FROM builds",
        "-- drop it\nSELECT 'a;b';",
    ],
)
def test_columns_may_be_named_like_statements(query: str) -> None:
    require_query(query)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE people",
        "INSERT INTO people VALUES (2, 'Bob')",
        "WITH x AS (SELECT 1) INSERT INTO people SELECT 2, 'Bob'",
        "EXPLAIN ANALYZE INSERT INTO people VALUES (2, 'Bob')",
        "COPY people TO 'people.csv'",
        "CREATE TABLE t AS SELECT 1",
        "SET threads = 1",
        "/* SELECT */ DELETE FROM people",
        "SELECT 1; DROP TABLE people",
        "DELETE FROM dl_tables",
    ],
)
@SQLITE
def test_sql_only_reads(deltasql: Deltasql, orders: str, engine: str, query: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*.parquet"))
    error = deltasql("sql", query, "--engine", engine, code=2).stderr
    assert "read-only" in error or "one query" in error
    assert deltasql("sql", "SELECT count(*) FROM people", "-q").stdout == "1\n"
    assert sorted(tmp_path.rglob("*.parquet")) == before


@pytest.mark.parametrize("engine", ENGINES)
@SQLITE
def test_words_of_changes_may_be_in_texts_and_names(
    deltasql_json: DeltasqlJson, orders: str, engine: str
) -> None:
    query = "SELECT 'drop; --' AS a, 1 AS \"update\" -- ; delete\n"
    assert deltasql_json("sql", query, "--engine", engine) == [{"a": "drop; --", "update": 1}]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("query", "kind", "code", "hint"),
    [
        ("SELECT * FROM sales.order", "TableMissingError", 1, "did you mean sales.orders?"),
        ("SELECT * FROM dl_v_nope", "QueryError", 2, "docs/reference/views.md"),
        ("SELECT nope FROM people", "QueryError", 2, "name"),
        ("SELEC 1", "QueryError", 2, "SELECT"),
        ("SELECT (1", "QueryError", 2, "syntax"),
    ],
)
@SQLITE
def test_a_wrong_query_says_what_to_do(
    deltasql_json: DeltasqlJson, orders: str, engine: str, query: str, kind: str, code: int, hint: str
) -> None:
    error = deltasql_json("sql", query, "--engine", engine, code=code)
    assert error["error"] == kind
    assert hint in f"{error['message']} {error['suggestion']}"


@pytest.mark.parametrize("engine", ENGINES)
@SQLITE
def test_names_may_have_any_number_of_dots(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, tmp_path: Path, engine: str
) -> None:
    with Catalog(catalog_uri) as catalog:
        for name in ("a.b.c", "a.b.c.d", "temp.y", "select.from"):
            catalog.write(name, pa.table({"id": [1]}), location=tmp_path / name)
    for written in ("a.b.c", '"a.b.c"', '"a.b.c.d"', '"temp.y"', '"select"."from"'):
        assert deltasql_json("sql", f"SELECT id FROM {written}", "--engine", engine) == [{"id": 1}]
    error = deltasql("sql", "SELECT id FROM a.b.c.d", "--engine", engine, code=2).stderr
    assert "in double quotes" in error


@SQLITE
def test_options_that_do_not_fit_are_wrong_usage(deltasql: Deltasql, orders: str) -> None:
    for words, fault in (
        (("--format", "parquet"), "--output"),
        (("--format", "csv", "--json"), "exclude each other"),
        (("--format", "table", "--output", "x"), "--output needs --format"),
        (("--engine", "sqlite"), "sqlite"),
    ):
        assert fault in deltasql("sql", "SELECT 1", *words, code=2).output


def test_sql_reads_as_of_a_time(deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str) -> None:
    first = deltasql_json("history", orders)["commits"][-1]["committed_at"]
    for engine in ENGINES:
        words = ("sql", "SELECT count(*) AS n FROM sales.orders", "--at", first, "--engine", engine)
        assert deltasql_json(*words) == [{"n": 3}]
    missing = deltasql("sql", "SELECT * FROM people", "--at", "2001-01-01", code=1).stderr
    assert "there was no table 'people' at 2001-01-01" in missing


def test_head_shows_some_rows(deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str) -> None:
    assert len(deltasql_json("head", orders)) == 4
    assert len(deltasql_json("head", orders, "-n", "2")) == 2
    rome = deltasql_json("head", orders, "--where", "City = 'Rome' AND id > 1", "--columns", "id")
    assert sorted(row["id"] for row in rome) == [3, 9]
    assert sorted(row["id"] for row in deltasql_json("head", orders, "--version", "0")) == [1, 2, 3]
    assert deltasql("head", "people").stdout == "id  name\n 1  Ada\n"
    assert "no column 'nope'" in deltasql("head", orders, "--columns", "nope", code=2).stderr
    assert "nope" in deltasql("head", orders, "--where", "nope = 1", code=2).stderr
    assert deltasql_json("head", orders, "--version", "7", code=1)["error"] == "VersionMissingError"


@SQLITE
def test_head_opens_no_more_files_than_it_needs(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        for number in range(12):
            catalog.write("many", pa.table({"id": [number]}), mode="append", location=tmp_path / "many")
        (shown,) = catalog.head("many", 1).column("id").to_pylist()
        for path in (tmp_path / "many").glob("*.parquet"):
            if pq.read_table(path).column("id").to_pylist() != [shown]:
                path.unlink()
        assert catalog.head("many", 1).column("id").to_pylist() == [shown]
        with pytest.raises(exceptions.StorageMissingError):
            catalog.head("many", 2)


@SQLITE
def test_the_installed_program_queries(program: Program, orders: str) -> None:
    done = program("sql", "SELECT count(*) AS n FROM sales.orders", "--format", "csv")
    assert (done.returncode, done.stdout, done.stderr) == (0, "n\n4\n", "")
    done = program("head", orders, "-n", "1", "--columns", "City", "--where", "id = 2")
    assert (done.returncode, done.stdout) == (0, "City\nOslo\n")
    assert program("sql", "DROP TABLE people").returncode == 2


@SQLITE
def test_a_terminal_gets_a_prompt(catalog_uri: str, orders: str, tmp_path: Path) -> None:
    typed = b"SELECT count(*) AS n\nFROM sales.orders;\nSELECT nope;\n.tables\n.schema people\n.quit\n"
    env = environment(catalog_uri) | {"TERM": "dumb", "COLUMNS": "120", "XDG_STATE_HOME": str(tmp_path)}
    code, screen = on_a_terminal([str(PROGRAM), "sql"], env, typed, question=b"deltasql>")
    assert code == 0, screen
    assert "(1 row)" in screen
    assert "Error: the query failed" in screen
    assert "people" in screen
    assert "BIGINT" in screen
    assert "FROM sales.orders;" in (tmp_path / "deltasql" / "history").read_text()
