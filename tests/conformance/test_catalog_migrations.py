"""The catalog's own schema: created, upgraded, refused, raced for and interrupted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog, DeltaTable
from deltalakedb.address import parse_address
from deltalakedb.exceptions import (
    CatalogError,
    CatalogNotFoundError,
    CatalogVersionError,
    TableExistsError,
)
from deltalakedb.metastore import migrations, registry
from deltalakedb.metastore.engines import make_engine
from deltalakedb.metastore.statements import parse_statements
from deltalakedb.settings import Config, use_config
from support.lake import child, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.metastore.engines.base import Engine

KNOWN = migrations.migrations()[-1].number

#: what each engine says of its own tables, indexes and views
INTROSPECTION = {
    "sqlite": ["SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"],
    "duckdb": [
        (
            "SELECT table_name, column_name, column_index, data_type, is_nullable, column_default "
            "FROM duckdb_columns() WHERE NOT internal ORDER BY 1, 3"
        ),
        "SELECT index_name, table_name, sql FROM duckdb_indexes() ORDER BY 1",
        "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1",
        "SELECT sequence_name, start_value, increment_by FROM duckdb_sequences() ORDER BY 1",
        "SELECT table_name, constraint_text FROM duckdb_constraints() ORDER BY 1, 2",
    ],
    "postgres": [
        (
            "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default, "
            "is_identity, collation_name FROM information_schema.columns "
            "WHERE table_schema = current_schema() ORDER BY 1, 3"
        ),
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() ORDER BY 1",
        "SELECT viewname, definition FROM pg_views WHERE schemaname = current_schema() ORDER BY 1",
        (
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = current_schema()::regnamespace ORDER BY 1, 2"
        ),
    ],
}


@pytest.fixture
def engine(catalog_uri: str) -> Iterator[Engine]:
    made = make_engine(parse_address(catalog_uri), Config())
    yield made
    made.close()


def shape_of(engine: Engine) -> list[Any]:
    """Everything the database says of the catalog's schema, without the name of the schema itself."""
    with engine.read() as session:
        answers = [session.rows(question) for question in INTROSPECTION[engine.dialect.name]]
    schema = engine.address.schema or "\0"
    return [
        [tuple(v.replace(schema, "SCHEMA") if isinstance(v, str) else v for v in row) for row in answer]
        for answer in answers
    ]


def versions_of(engine: Engine) -> list[int]:
    with engine.read() as session:
        return [r[0] for r in session.rows("SELECT version FROM dl_schema_version ORDER BY version")]


def test_the_schema_is_created_on_first_use(catalog_uri: str, engine: Engine) -> None:
    assert Catalog(catalog_uri, create=True).tables() == []
    assert versions_of(engine) == list(range(1, KNOWN + 1))
    assert migrations.pending(engine) == ()


def test_opening_twice_creates_once(catalog_uri: str, engine: Engine) -> None:
    Catalog(catalog_uri, create=True).close()
    Catalog(catalog_uri, create=True)
    assert versions_of(engine) == list(range(1, KNOWN + 1))


def test_creation_is_refused_where_the_settings_forbid_it(catalog_uri: str, tmp_path: Any) -> None:
    frugal = Config(catalog={"create": False})
    with pytest.raises(CatalogNotFoundError) as caught:
        Catalog(catalog_uri, config=frugal)
    assert f"deltasql init '{catalog_uri}'" in (caught.value.suggestion or "")
    with use_config(frugal), pytest.raises(CatalogNotFoundError):
        DeltaTable(f"{catalog_uri}?table=t")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("catalog")] == []
    Catalog(catalog_uri, create=True).close()
    assert Catalog(catalog_uri, config=frugal).tables() == []


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> int:
    """A later release, whose schema has one step more."""
    step = (
        "-- name: a column\nALTER TABLE dl_tables ADD COLUMN owner TEXT;\n"
        "-- name: a table of one engine\n-- only: duckdb\nCREATE TABLE dl_only_duckdb (x {bigint});\n"
        "-- name: a view\nCREATE VIEW dl_v_owners AS SELECT name, owner FROM dl_tables;"
    )
    known = migrations.migrations()
    later = migrations.Migration(KNOWN + 1, "owners", tuple(parse_statements(step)))
    monkeypatch.setattr(migrations, "migrations", lambda: (*known, later))
    return KNOWN + 1


def test_locations_of_an_older_catalog_are_still_taken(
    catalog_uri: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda: known[:1])
        migrations.migrate(engine)
    with engine.write() as session:
        session.run(
            "INSERT INTO dl_tables (name, location, state, tags, settings, created_at, updated_at) "
            "VALUES ('old', '/lake/old', 'active', '{}', '{}', 1, 1)"
        )
    assert [step.title for step in migrations.migrate(engine)] == ["real_locations"]
    with engine.read() as session:
        for location in ("/lake/old", "/lake/old/inside", "/lake"):
            with pytest.raises(TableExistsError, match="'old'"):
                registry.refuse_taken(session, "new", location)
        registry.refuse_taken(session, "new", "/lake/older")


def test_an_older_catalog_is_migrated_with_its_rows(
    catalog_uri: str, engine: Engine, engine_name: str, request: pytest.FixtureRequest
) -> None:
    migrations.migrate(engine)
    before = shape_of(engine)
    with engine.write() as session:
        session.run(
            "INSERT INTO dl_tables (name, location, state, tags, settings, created_at, updated_at) "
            "VALUES ('old', '/lake/old', 'active', '{}', '{}', 1, 1)"
        )
        table_id = (session.row("SELECT table_id FROM dl_tables") or [0])[0]
        heads = (
            "INSERT INTO dl_heads (table_id, head_version, head_timestamp, first_version, num_files, "
            "size_bytes, num_records, files_without_count, next_file_seq, metadata_version, "
            "protocol_version, frozen, table_name) VALUES (?, 4, 40, 0, 1, 2, 3, 0, 9, 0, 0, ?, 'old')"
        )
        session.run(heads, (table_id, False))
        session.run("INSERT INTO dl_mirror VALUES (?, 4, NULL, -1, ?)", (table_id, False))
        session.run("INSERT INTO dl_settings VALUES ('root', '/lake')")
    later: int = request.getfixturevalue("next_version")
    assert [step.title for step in migrations.pending(engine)] == ["owners"]
    assert [step.number for step in migrations.migrate(engine)] == [later]
    assert migrations.migrate(engine) == []
    assert versions_of(engine) == list(range(1, later + 1))
    assert shape_of(engine) != before
    catalog = Catalog(engine.address)
    assert [(t.name, t.location, t.head.version) for t in catalog.tables()] == [("old", "/lake/old", 4)]
    assert catalog.root == "/lake"
    assert catalog.query("SELECT name, version FROM dl_v_tables").to_pylist() == [
        {"name": "old", "version": 4}
    ]
    assert catalog.query("SELECT owner FROM dl_v_owners").to_pylist() == [{"owner": None}]
    with engine.read() as session:
        mine = "SELECT count(*) FROM dl_only_duckdb"
        if engine_name == "duckdb":
            assert session.row(mine) == (0,)
        else:
            with pytest.raises(CatalogError):
                session.row(mine)


def test_a_migrated_catalog_equals_a_fresh_one(
    engine: Engine, engine_name: str, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    migrations.migrate(engine)
    assert versions_of(engine) == list(range(1, KNOWN + 1))
    next_version: int = request.getfixturevalue("next_version")  # from here on this is the later release
    assert [step.number for step in migrations.migrate(engine)] == [next_version]
    if engine_name == "postgres":
        fresh_uri = str(engine.address.to_uri(redact=False)) + "_fresh"
    else:
        fresh_uri = f"deltasql://{engine_name}/{tmp_path}/fresh.{engine_name}"
    fresh = make_engine(parse_address(fresh_uri), Config())
    try:
        Catalog(fresh.address, create=True).close()
        assert versions_of(fresh) == list(range(1, next_version + 1))
        assert shape_of(engine) == shape_of(fresh)
    finally:
        if engine_name == "postgres":
            with fresh.write() as session:
                session.run(f'DROP SCHEMA "{fresh.address.schema}" CASCADE')
        fresh.close()


def test_an_old_client_is_refused_on_a_newer_schema(catalog_uri: str, engine: Engine) -> None:
    migrations.migrate(engine)
    with engine.write() as session:
        session.run("INSERT INTO dl_schema_version VALUES (?, 'the future', 1)", (KNOWN + 1,))
    with pytest.raises(CatalogVersionError) as caught:
        Catalog(catalog_uri)
    assert str(KNOWN + 1) in caught.value.message
    assert "upgrade" in (caught.value.suggestion or "")
    with pytest.raises(CatalogVersionError):
        DeltaTable(f"{catalog_uri}?table=t")


def test_an_older_schema_is_left_alone_where_the_settings_say_so(
    catalog_uri: str, engine: Engine, request: pytest.FixtureRequest
) -> None:
    migrations.migrate(engine)
    later: int = request.getfixturevalue("next_version")
    with pytest.raises(CatalogVersionError) as caught:
        Catalog(catalog_uri, config=Config(catalog={"auto_migrate": False}))
    assert "migrate" in (caught.value.suggestion or "")
    assert versions_of(engine) == list(range(1, KNOWN + 1))
    Catalog(catalog_uri, create=True)
    assert versions_of(engine) == list(range(1, later + 1))


def test_threads_that_create_the_same_catalog_make_one(catalog_uri: str, engine: Engine) -> None:
    barrier = Barrier(4)

    def create(_: int) -> int:
        barrier.wait()
        return len(Catalog(catalog_uri, create=True).tables())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(create, range(4))) == [0] * 4
    assert versions_of(engine) == list(range(1, KNOWN + 1))


CREATE = """
    import sys
    from deltalakedb import Catalog
    print("ready", flush=True)
    sys.stdin.readline()
    with Catalog(sys.argv[1], create=True) as catalog:
        print(len(catalog.tables()))
"""


def test_processes_that_create_the_same_catalog_make_one(catalog_uri: str, engine: Engine) -> None:
    children = [child(CREATE, catalog_uri) for _ in range(3)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [finish(process) for process in children] == ["0\n"] * 3
    assert versions_of(engine) == list(range(1, KNOWN + 1))


DIE = """
    import sys
    from deltalakedb.metastore import migrations
    from deltalakedb.metastore.engines import make_engine
    from deltalakedb.settings import Config
    from deltalakedb.address import parse_address

    engine = make_engine(parse_address(sys.argv[1]), Config())
    step = migrations.migrations()[0]
    with engine.write() as session:
        engine.prepare(session)
        session.run(migrations._fill(migrations._CREATE, engine))
        for statement in step.statements[:8]:
            if statement.runs_on(engine.dialect.name):
                session.run(migrations._fill(statement.sql, engine))
        print("halfway", flush=True)
        sys.stdin.readline()
"""


def test_a_migration_killed_midway_is_completed_by_the_next_client(catalog_uri: str, engine: Engine) -> None:
    process = child(DIE, catalog_uri)
    assert process.stdout is not None
    assert process.stdout.readline() == "halfway\n", process.communicate()
    process.kill()
    process.communicate()
    assert Catalog(catalog_uri, create=True).tables() == []
    assert versions_of(engine) == list(range(1, KNOWN + 1))
