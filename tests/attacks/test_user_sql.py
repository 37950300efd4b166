"""Hostile SQL given to ``tx.execute`` and ``Catalog.query``: the database itself refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import CatalogError, DeltaSqlError, InvalidArgumentError
from support.invariants import check_table
from support.lake import files_below, ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ALL = ("sqlite", "duckdb", "postgres")
SQLITE, DUCKDB, POSTGRES = (name for name in ALL)

#: statements that would end the transaction, change our tables or settings, or reach beyond the database
STATEMENTS: list[tuple[str, tuple[str, ...]]] = [
    *(
        (sql, ALL)
        for sql in (
            "COMMIT",
            "commit work",
            "ROLLBACK",
            "SAVEPOINT s",
            "BEGIN",
            "END",
            "/* x */ COMMIT",
            "/* /* */ select */ commit",
            "/* /* */ */ COMMIT",
            "; COMMIT",
            "(COMMIT)",
            "INSERT INTO mine VALUES (1); COMMIT",
            "INSERT INTO mine SELECT 'a'; DELETE FROM dl_audit",
            "EXPLAIN ANALYZE COMMIT",
            "PREPARE TRANSACTION 'x'",
            "DELETE FROM dl_audit",
            'DELETE FROM "dl_audit"',
            "DELETE FROM 'dl_audit'",
            "DELETE FROM main.'dl_audit'",
            "DELETE FROM [dl_audit]",
            "DELETE FROM `dl_audit`",
            "DELETE /* ' */ FROM dl_audit /* ' */",
            'DELETE FROM U&"d\\006c_audit"',
            "DELETE FROM U&\"d!006c_audit\" UESCAPE '!'",
            "UPDATE 'dl_heads' SET head_version = 9",
            "UPDATE dl_heads SET head_version = 9",
            "INSERT INTO 'dl_settings' (name, value) VALUES ('x', 'y')",
            "INSERT INTO mine SELECT $$'$$; DELETE FROM dl_audit; --'",
            "WITH gone AS (DELETE FROM dl_audit RETURNING *) SELECT 1 FROM gone",
            "WITH gone AS (DELETE FROM 'dl_audit' RETURNING *) SELECT 1 FROM gone",
            "DROP TABLE 'dl_audit'",
            "DROP TABLE dl_audit",
            "DROP VIEW 'dl_v_tables'",
            "ALTER TABLE 'dl_audit' RENAME TO gone",
            "ALTER TABLE mine RENAME TO 'dl_own'",
            "CREATE TABLE 'dl_own' (id INTEGER)",
            "CREATE TEMP TABLE 'dl_heads' (id INTEGER)",
            "CREATE INDEX i ON 'dl_audit' (actor)",
            "TRUNCATE 'dl_audit'",
            "SET synchronous_commit = off",
            "RESET ALL",
            "COPY mine TO '{outside}'",
            "COPY mine TO PROGRAM 'touch {outside}'",
            "ATTACH '{outside}' AS x",
        )
    ),
    *(
        (sql, (SQLITE,))
        for sql in (
            "PRAGMA synchronous = OFF",
            "UPDATE sqlite_sequence SET seq = 0",
            "DELETE FROM sqlite_master",
            "CREATE TRIGGER x AFTER INSERT ON 'dl_commits' BEGIN DELETE FROM mine; END",
            "CREATE TEMP TRIGGER x AFTER INSERT ON main.'dl_commits' BEGIN DELETE FROM mine; END",
            "CREATE TEMP VIEW 'dl_heads' AS SELECT 1",
            "REPLACE INTO 'dl_settings' (name, value) VALUES ('x', 'y')",
            "VACUUM INTO '{outside}'",
            "DETACH main",
            "CREATE VIRTUAL TABLE notes USING fts5(note)",
            "ANALYZE",
            "SELECT load_extension('x')",
        )
    ),
    *(
        (sql, (DUCKDB,))
        for sql in (
            "-- x\rCOMMIT",
            "EXPLAIN ANALYZE DELETE FROM 'dl_audit'",
            "INSERT INTO mine SELECT content FROM read_text('{secret}')",
            "INSERT INTO mine SELECT * FROM '{secret}'",
            "INSERT INTO mine SELECT file FROM glob('{folder}/*')",
            "INSTALL httpfs",
            "LOAD 'x'",
            "CALL enable_logging()",
            "INSERT INTO mine SELECT 'x' FROM enable_profiling()",
            "CREATE MACRO md5(x) AS 'known'",
            "CREATE OR REPLACE FUNCTION lower(x) AS 'known'",
            "CREATE OR REPLACE TEMP MACRO lower(x) AS 'known'",
            "CREATE SECRET s (TYPE http, BEARER_TOKEN 'x')",
            "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
            "DELETE FROM 'main.dl_audit'",
            "DELETE FROM mine WHERE note IS DISTINCT FROM (SELECT max(actor) FROM 'DL_audit')",
            "INSERT INTO mine SELECT setval('dl_table_ids', 1)",
            "INSERT INTO mine SELECT nextval('dl_' || 'audit_ids')",
            "CREATE OR REPLACE SEQUENCE 'dl_audit_ids' START 1",
            "DROP SEQUENCE 'dl_audit_ids'",
            "MERGE INTO 'dl_audit' USING mine ON true WHEN MATCHED THEN DELETE",
            "PRAGMA memory_limit = '1GB'",
            "EXPORT DATABASE '{outside}'",
            "USE memory",
        )
    ),
    *(
        (sql, (POSTGRES,))
        for sql in (
            "-- x\rCOMMIT",
            "INSERT INTO mine VALUES (E'\\''); DELETE FROM dl_audit; --')",
            "INSERT INTO mine VALUES ($a$'$a$); DELETE FROM dl_audit; --')",
            "DO $$ BEGIN EXECUTE 'DELETE FROM d' || 'l_audit'; END $$",
            "DO $$ BEGIN COMMIT; END $$",
            "DO $$ BEGIN EXECUTE 'TRUNCATE d' || 'l_audit'; END $$",
            "DO $$ BEGIN EXECUTE 'CREATE RULE r AS ON DELETE TO d' || 'l_audit DO INSTEAD NOTHING'; END $$",
            "DO $$ BEGIN EXECUTE 'ALTER TABLE d' || 'l_commits ALTER COLUMN info SET DEFAULT 1'; END $$",
            "DO $$ BEGIN EXECUTE 'CREATE INDEX i ON d' || 'l_commits (info)'; END $$",
            "SELECT set_config('synchronous_commit', 'off', true)",
            "SELECT set_config('track_counts', 'off', true)",
            "SELECT set_config('session_replication_role', 'replica', true)",
            "SELECT query_to_xml('DELETE FROM d' || 'l_audit', true, false, '')",
            "SELECT setval('dl_audit_audit_id_seq', 1, false)",
            "DO $$ BEGIN PERFORM SetVal('dl_audit_audit_id_seq', 1, false); END $$",
            "LOCK TABLE mine",
            "DISCARD ALL",
            "LISTEN x",
            "DECLARE c CURSOR FOR SELECT 1",
        )
    ),
]

#: questions that would change something, or read something else than the catalog
QUESTIONS: list[tuple[str, tuple[str, ...]]] = [
    *(
        (sql, ALL)
        for sql in (
            "COMMIT",
            "/* /* */ select */ commit",
            "SELECT 1; COMMIT",
            "EXPLAIN ANALYZE COMMIT",
            "EXPLAIN ANALYZE DELETE FROM dl_audit",
            "DELETE FROM dl_audit",
            "DELETE FROM 'dl_audit'",
            "WITH x AS (SELECT 1) DELETE FROM dl_audit",
            "WITH gone AS (DELETE FROM dl_audit RETURNING *) SELECT * FROM gone",
            "CREATE TEMP TABLE x AS SELECT 1",
            "CREATE TABLE x AS SELECT 1",
            "SET x = 1",
            "PRAGMA query_only = OFF",
            "ATTACH '{outside}' AS x",
            "COPY (SELECT 1) TO '{outside}'",
            "SELECT * FROM pragma_query_only(0)",
        )
    ),
    *((sql, (SQLITE,)) for sql in ("SELECT load_extension('x')", "VACUUM INTO '{outside}'", "DETACH main")),
    *(
        (sql, (DUCKDB,))
        for sql in (
            "SELECT * FROM read_text('{secret}')",
            "SELECT * FROM read_csv('{secret}')",
            "SELECT * FROM '{secret}'",
            "FROM '{secret}'",
            "SELECT * FROM glob('{folder}/*')",
            "SELECT * FROM query('SELECT * FROM enable_logging()')",
            "SELECT * FROM enable_logging()",
            'SELECT * FROM "enable_profiling" /* x */ ()',
            "SELECT * FROM system.main.enable_profiling()",
            "SELECT * FROM force_checkpoint()",
            "SELECT nextval('dl_audit_ids')",
            "SELECT * FROM python_variable",
            "CALL enable_logging()",
            "INSTALL httpfs",
            "EXPLAIN ANALYZE SELECT * FROM enable_logging()",
            "EXPLAIN EXPLAIN ANALYZE COMMIT",
            "SELECT write_log('x')",
        )
    ),
    *(
        (sql, (POSTGRES,))
        for sql in (
            "SELECT nextval('dl_audit_audit_id_seq')",
            "SELECT set_config('transaction_read_only', 'off', true)",
            "SELECT * FROM dl_heads FOR UPDATE",
            "SELECT 1 INTO extra",
            "SELECT query_to_xml('DELETE FROM dl_audit', true, false, '')",
        )
    ),
]


def _of(attacks: list[tuple[str, tuple[str, ...]]]) -> Any:
    each = [(name, sql) for sql, names in attacks for name in names]
    return pytest.mark.parametrize(("engine_name", "sql"), each, ids=[f"{n}-{s[:60]}" for n, s in each])


@pytest.fixture
def lake(catalog_uri: str, tmp_path: Path) -> Iterator[Catalog]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "secret.csv").write_text("hidden\n1\n")
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=str(tmp_path / "lake" / "t"))
        with catalog.transaction() as tx:
            tx.execute("CREATE TABLE mine (note VARCHAR(200))")
            tx.execute("INSERT INTO mine VALUES ('first')")
        yield catalog


def _filled(sql: str, tmp_path: Path) -> str:
    found = sql.replace("{outside}", str(tmp_path / "outside" / "x"))
    return found.replace("{secret}", str(tmp_path / "secret.csv")).replace("{folder}", str(tmp_path))


def _everything(catalog: Catalog, tmp_path: Path) -> dict[str, Any]:
    """All that an attack could change: the catalog's rows and definitions, the user's rows, the disk."""
    tables = ["dl_tables", "dl_heads", "dl_commits", "dl_audit", "dl_settings", "dl_files", "dl_transactions"]
    found: dict[str, Any] = {
        name: sorted(map(repr, catalog.query(f"SELECT * FROM {name}").to_pylist())) for name in tables
    }
    found["mine"] = catalog.query("SELECT * FROM mine").to_pylist()
    found["ids"] = check_table(catalog, "t", published=True).ids
    found["views"] = catalog.query("SELECT name FROM dl_v_tables").to_pylist()
    found["outside"] = files_below(tmp_path / "outside")
    return found


def _on(engine: str, attacks: list[tuple[str, tuple[str, ...]]], tmp_path: Path) -> list[str]:
    return [_filled(sql, tmp_path) for sql, names in attacks if engine in names]


def _refused(sql: str, attack: Callable[[str], object], *kinds: type[Exception]) -> None:
    try:
        attack(sql)
    except kinds:
        return
    pytest.fail(f"it was not refused: {sql}")


def test_hostile_statements_are_refused_and_change_nothing(
    lake: Catalog, engine_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # looking at the text first is a courtesy: the database must refuse it by itself
    monkeypatch.setattr("deltalakedb.table.transaction.checked_statement", lambda text: text)
    before = _everything(lake, tmp_path)

    def attack(sql: str) -> None:
        with lake.transaction() as tx:
            tx.write("t", ids(2))
            tx.execute(sql)

    for sql in _on(engine_name, STATEMENTS, tmp_path):
        _refused(sql, attack, InvalidArgumentError, CatalogError)
        assert _everything(lake, tmp_path) == before, sql
    lake.write("t", ids(3), mode="append")  # and the catalog works as before
    assert check_table(lake, "t", published=True).ids == [1, 3]


def test_hostile_questions_are_refused_and_change_nothing(
    lake: Catalog, engine_name: str, tmp_path: Path
) -> None:
    python_variable = ids(1)  # DuckDB would find it  # noqa: F841
    before = _everything(lake, tmp_path)
    for sql in _on(engine_name, QUESTIONS, tmp_path):
        _refused(sql, lake.query, CatalogError)
        with lake.transaction() as tx:
            _refused(sql, tx.query, CatalogError)
            if engine_name == POSTGRES:  # a failed question does not end a transaction there
                assert tx.query("SELECT count(*) AS n FROM dl_v_tables").to_pylist() == [{"n": 1}]
        assert _everything(lake, tmp_path) == before, sql
    lake.write("t", ids(3), mode="append")
    assert check_table(lake, "t", published=True).ids == [1, 3]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO mine VALUES ('dl_audit')",
        "INSERT INTO mine VALUES ('it''s; DELETE FROM dl_audit -- no')",
        "INSERT INTO mine SELECT note || 'dl_audit' FROM mine WHERE note LIKE 'dl_%' OR note = 'first'",
        "UPDATE mine SET note = 'dl_heads' WHERE note <> 'dl_tables'",
        "WITH new AS (SELECT 'dl_x' AS note) INSERT INTO mine SELECT note FROM new",
        "/* dl_audit; COMMIT */ DELETE FROM mine -- COMMIT",
        'CREATE TABLE "odd; dl" (id INTEGER)',
        "CREATE TEMP TABLE scratch AS SELECT note FROM mine",
        "CREATE INDEX mine_notes ON mine (note)",
        "CREATE VIEW mine_view AS SELECT note FROM mine",
        "ALTER TABLE mine ADD COLUMN extra INTEGER",
        "ALTER TABLE mine RENAME TO yours",
        "ALTER TABLE mine RENAME COLUMN note TO remark",
        "DROP TABLE mine",
    ],
)
def test_statements_on_tables_of_ones_own_run(lake: Catalog, sql: str) -> None:
    with lake.transaction() as tx:
        tx.write("t", ids(2))
        tx.execute(sql)
    assert check_table(lake, "t", published=True).ids == [1, 2]


@_of(
    [
        ("UPDATE mine SET note = 'x' WHERE note IS DISTINCT FROM 'y'", (DUCKDB, POSTGRES)),
        ("DELETE FROM mine WHERE note IS NOT DISTINCT FROM 'first'", (DUCKDB, POSTGRES)),
        ("INSERT INTO mine SELECT trim(both 'x' from 'xax')", (DUCKDB, POSTGRES)),
        ("INSERT INTO mine SELECT extract(year FROM '2024-01-01'::DATE)", (DUCKDB, POSTGRES)),
        ("INSERT INTO mine SELECT a.note FROM mine a JOIN mine b ON 'x' = 'x'", ALL),
        ("CREATE TABLE parts (function INTEGER, macro INTEGER)", ALL),
        ("CREATE OR REPLACE TEMP VIEW parts AS SELECT 1 AS trigger", (DUCKDB, POSTGRES)),
        ("CREATE UNIQUE INDEX mine_once ON mine (note)", ALL),
        ("DROP TABLE 'mine'", (SQLITE, DUCKDB)),
        ("INSERT INTO mine SELECT value FROM json_each('[1, 2]')", (SQLITE,)),
        ("INSERT INTO mine SELECT nextval(pg_get_serial_sequence('own', 'id')) WHERE false", (POSTGRES,)),
    ]
)
def test_ordinary_statements_run(lake: Catalog, engine_name: str, sql: str) -> None:
    if engine_name == POSTGRES:
        with lake.transaction() as tx:
            tx.execute("CREATE TABLE own (id SERIAL)")
    with lake.transaction() as tx:
        tx.write("t", ids(2))
        tx.execute(sql)
    assert check_table(lake, "t", published=True).ids == [1, 2]


@_of(
    [
        ("SELECT value FROM json_each('[1]')", (SQLITE,)),
        ("SELECT value FROM json_tree('1')", (SQLITE,)),
        ("SELECT name FROM pragma_table_info('mine')", (SQLITE,)),
        ("SELECT note FROM mine, json_each('[1]')", (SQLITE,)),
        ("SELECT unnest([1])", (DUCKDB,)),
        ("SELECT count(*) FROM range(5)", (DUCKDB,)),
        ("SELECT count(*) FROM generate_series(1, 5)", (DUCKDB, POSTGRES)),
        ("SELECT * FROM json_each('[1]')", (DUCKDB,)),
        ("SELECT '{\"a\": 1}'::jsonb ? 'a' AS found", (POSTGRES,)),
        ("SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'dl_%'", (DUCKDB, POSTGRES)),
        ("SELECT row_number() OVER (ORDER BY name) AS n FROM dl_v_tables", ALL),
    ]
)
def test_ordinary_questions_are_answered_on_a_fresh_connection(lake: Catalog, sql: str) -> None:
    assert lake.query(sql).num_rows == 1
    with lake.transaction() as tx:
        assert tx.query(sql).num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM dl_v_tables WHERE name <> 'dl_audit; COMMIT'",
        "WITH x AS (SELECT name FROM dl_v_tables) SELECT * FROM x",
        "-- why\n/* and how */ SELECT count(*) AS n, max(name) AS m FROM dl_v_tables",
        "VALUES ('t')",
        "SELECT note FROM mine",
    ],
)
def test_questions_are_answered(lake: Catalog, sql: str) -> None:
    assert lake.query(sql).num_rows == 1


@pytest.mark.parametrize("sql", ["EXPLAIN SELECT name FROM dl_v_tables", "SELECT abs(-1), lower('A')"])
def test_plans_and_functions_can_be_asked_for(lake: Catalog, sql: str) -> None:
    assert lake.query(sql).num_rows > 0


def test_a_temporary_table_ends_with_its_transaction(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.execute("CREATE TEMP TABLE shadow AS SELECT 'x' AS note")
        tx.execute("INSERT INTO mine SELECT note FROM shadow")
    assert sorted(lake.query("SELECT note FROM mine")["note"].to_pylist()) == ["first", "x"]
    with pytest.raises(CatalogError):
        lake.query("SELECT * FROM shadow")


@pytest.mark.parametrize("engine_name", ["postgres"])
@pytest.mark.parametrize("where", ["statement", "question"])
def test_settings_and_locks_do_not_survive_in_the_pool(lake: Catalog, where: str) -> None:
    hostile = (
        "SELECT set_config('work_mem', '77MB', false)",
        "SELECT set_config('search_path', 'pg_temp', false)",
        "SELECT pg_advisory_lock(4711)",
    )
    for sql in hostile:
        if where == "question":
            lake.query(sql)
        else:
            with lake.transaction() as tx:
                tx.execute(sql)
    asked = "SELECT current_setting('work_mem') AS memory, current_setting('search_path') AS path"
    (found,) = lake.query(asked).to_pylist()
    assert found["memory"] != "77MB"
    assert "pg_temp" not in found["path"]
    held = "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"
    assert lake.query(held).to_pylist() == [{"n": 0}]


@pytest.mark.parametrize("engine_name", ["postgres"])
def test_a_trigger_that_waits_for_the_commit_is_seen(lake: Catalog, tmp_path: Path) -> None:
    with lake.transaction() as tx:
        tx.execute(
            "CREATE FUNCTION strike() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN EXECUTE 'DELETE FROM d' || 'l_audit'; RETURN NULL; END $$"
        )
        tx.execute(
            "CREATE CONSTRAINT TRIGGER later AFTER INSERT ON mine DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION strike()"
        )
    before = _everything(lake, tmp_path)

    def attack() -> None:
        with lake.transaction() as tx:
            tx.write("t", ids(2))
            tx.execute("INSERT INTO mine VALUES ('x')")

    with pytest.raises(DeltaSqlError):
        attack()
    assert _everything(lake, tmp_path) == before
