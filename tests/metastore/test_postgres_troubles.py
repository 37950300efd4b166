"""Postgres: not there, no rights, a wrong password, a restart, a broken connection; no secret is shown."""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.address import parse_address
from deltalakedb.doctor import examine
from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogEncodingError,
    CatalogError,
    CatalogNotFoundError,
    CatalogUnavailableError,
    DeltaSqlError,
)
from deltalakedb.metastore.database import close_all
from deltalakedb.metastore.engines.postgres import PostgresEngine
from deltalakedb.settings import get_config
from support.lake import files_below, ids, ids_of
from support.postgres import PostgresDatabase, PostgresRun, _server

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD = "correct-horse-battery-staple"


@pytest.fixture
def admin(pg_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(admin: psycopg.Connection) -> Iterator[str]:
    """A role that may connect and nothing else."""
    name = "r_" + uuid.uuid4().hex[:8]
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    yield name
    admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def password_role(role: str, admin: psycopg.Connection) -> Iterator[str]:
    """The same role, of which the server wants the password."""
    rules = Path(os.environ["DELTASQL_TEST_POSTGRES_FOLDER"]) / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all {role} scram-sha-256\n" + before)
    admin.execute("SELECT pg_reload_conf()")
    yield role
    rules.write_text(rules.read_text().replace(f"local all {role} scram-sha-256\n", ""))
    admin.execute("SELECT pg_reload_conf()")


def uri_for(database: PostgresDatabase, schema: str, user: str, password: str | None = None) -> str:
    who = user if password is None else f"{user}:{password}"
    return f"deltasql://postgres/{who}@{quote(database.socket_dir, safe='')}/{database.name}/{schema}"


def everything_said(error: BaseException | None) -> str:
    """An error and all its causes, as any traceback would show them."""
    said = []
    while error is not None:
        said += [str(error), repr(error), str(getattr(error, "context", ""))]
        error = error.__cause__ or error.__context__
    return "\n".join(said)


def test_a_server_that_does_not_run_is_unavailable(tmp_path: Path) -> None:
    for host in ("127.0.0.1:1", f"@{quote(str(tmp_path), safe='')}"):
        with pytest.raises(CatalogUnavailableError) as caught:
            Catalog(f"deltasql://postgres/{host}/db/schema?connect_timeout=2&sslmode=disable")
        assert caught.value.transient
        assert caught.value.suggestion


def test_a_database_that_does_not_exist_is_not_found(pg_database: PostgresDatabase) -> None:
    uri = uri_for(pg_database, "s", "postgres").replace(pg_database.name, "no_such_database")
    with pytest.raises(CatalogNotFoundError) as caught:
        Catalog(uri)
    assert "no_such_database" in str(caught.value)
    assert caught.value.suggestion


def test_a_role_without_rights_cannot_create_a_catalog(
    pg_database: PostgresDatabase, pg_schema: str, role: str
) -> None:
    with pytest.raises(CatalogAccessError) as caught:
        Catalog(uri_for(pg_database, pg_schema, role), create=True)
    assert "GRANT" in (caught.value.suggestion or "")


def test_a_role_that_may_only_read_reads_and_is_refused_to_write(
    pg_database: PostgresDatabase, pg_schema: str, role: str, admin: psycopg.Connection, tmp_path: Path
) -> None:
    owner = Catalog(pg_database.catalog_uri(pg_schema), create=True)
    owner.write("t", ids(1), location=tmp_path / "t")
    reader = uri_for(pg_database, pg_schema, role)
    with pytest.raises(CatalogAccessError):
        DeltaTable(f"{reader}?table=t")
    admin.execute(f'GRANT USAGE ON SCHEMA "{pg_schema}" TO {role}')
    admin.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{pg_schema}" TO {role}')
    assert ids_of(DeltaTable(f"{reader}?table=t")) == [1]
    before = {p.name for p in (tmp_path / "t").iterdir()}
    with pytest.raises(CatalogAccessError):
        write_deltalake(f"{reader}?table=t", ids(2), mode="append")
    with pytest.raises(CatalogAccessError):
        Catalog(reader).set_comment("t", "mine")
    assert {p.name for p in (tmp_path / "t").iterdir()} == before
    assert ids_of(owner.table("t")) == [1]


def test_a_server_that_only_answers_questions_is_read_and_refuses_to_write(
    pg_database: PostgresDatabase, pg_schema: str, tmp_path: Path
) -> None:
    owner = Catalog(pg_database.catalog_uri(pg_schema), create=True)
    owner.write("t", ids(1), location=tmp_path / "t")
    standby = Catalog(f"{owner.uri}?options={quote('-c default_transaction_read_only=on')}")
    before = files_below(tmp_path / "t")
    for write in (
        lambda: standby.write("t", ids(2), mode="append"),
        lambda: standby.table("t").delete(),
        lambda: standby.drop_table("t"),
    ):
        with pytest.raises(CatalogAccessError) as caught:
            write()
        assert "primary" in (caught.value.suggestion or "")
    assert ids_of(standby.table("t")) == [1]
    assert files_below(tmp_path / "t") == before


def test_a_wrong_password_is_refused_and_never_shown(
    pg_database: PostgresDatabase, pg_schema: str, password_role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "hunter2-hunter2"
    uri = uri_for(pg_database, pg_schema, password_role, wrong)
    with pytest.raises(CatalogAccessError) as caught:
        Catalog(uri)
    assert wrong not in everything_said(caught.value)
    assert wrong not in str(caught.value.to_dict())
    assert wrong not in caplog.text


def test_a_right_password_is_never_shown_either(
    pg_database: PostgresDatabase,
    pg_schema: str,
    password_role: str,
    admin: psycopg.Connection,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    admin.execute(f'GRANT CREATE ON DATABASE "{pg_database.name}" TO {password_role}')
    uri = uri_for(pg_database, pg_schema, password_role, PASSWORD)
    catalog = Catalog(uri)
    catalog.write("t", ids(1), location=tmp_path / "t")
    table = catalog.table("t")
    assert ids_of(table) == [1]
    shown = [repr(catalog), catalog.uri, repr(table), str(vars(table)), str(catalog.describe("t"))]
    with pytest.raises(DeltaSqlError) as caught:
        catalog.table("nope")
    shown += [everything_said(caught.value), caplog.text]
    shown += [str(r) for r in catalog.query("SELECT * FROM dl_v_audit").to_pylist()]
    for file in (tmp_path / "t" / "_delta_log").iterdir():
        shown.append(file.read_text())
    assert PASSWORD not in "\n".join(shown)
    admin.execute(f'DROP SCHEMA "{pg_schema}" CASCADE')


def end_all_others(admin: psycopg.Connection) -> int:
    row = admin.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_reads_and_writes_recover_when_their_connections_were_ended(
    pg_database: PostgresDatabase, pg_schema: str, admin: psycopg.Connection, tmp_path: Path
) -> None:
    catalog = Catalog(pg_database.catalog_uri(pg_schema))
    catalog.write("t", ids(1), location=tmp_path / "t")
    table = catalog.table("t")
    assert end_all_others(admin) >= 1
    assert ids_of(table) == [1]
    assert end_all_others(admin) >= 1
    catalog.write("t", ids(2), mode="append")
    assert end_all_others(admin) >= 1
    assert catalog.query("SELECT version FROM dl_v_tables").to_pylist() == [{"version": 1}]
    assert ids_of(catalog.table("t")) == [1, 2]


def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    run = PostgresRun.create()
    try:
        database = run.database("restarted")
        catalog = Catalog(database.catalog_uri("s"))
        catalog.write("t", ids(1), location=tmp_path / "t")
        table = catalog.table("t")
        _server(run.folder / "data").stop()
        with pytest.raises(CatalogUnavailableError) as caught:
            table.history()
        assert caught.value.suggestion
        with pytest.raises(CatalogUnavailableError):
            catalog.write("t", ids(2), mode="append")
        with pytest.raises(CatalogUnavailableError):
            catalog.query("SELECT 1")
        run._start()
        assert ids_of(table) == [1]
        catalog.write("t", ids(2), mode="append")
        assert ids_of(catalog.table("t")) == [1, 2]
        used, opened = catalog._database.engine._pool.usage()  # type: ignore[attr-defined]
        assert used == 0
        assert opened >= 1
        catalog.close()
    finally:
        run.stop()


@pytest.fixture
def latin(pg_database: PostgresDatabase, admin: psycopg.Connection) -> Iterator[PostgresDatabase]:
    """A database that keeps text as LATIN1."""
    name = "latin_" + uuid.uuid4().hex[:8]
    admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    yield PostgresDatabase(pg_database.socket_dir, name)
    close_all()
    admin.execute(f"DROP DATABASE {name}")


def test_a_database_that_lacks_characters_is_given_no_catalog(latin: PostgresDatabase) -> None:
    uri = latin.catalog_uri("lake")
    with pytest.raises(CatalogEncodingError, match="LATIN1, not as UTF8") as caught:
        Catalog(uri, create=True)
    assert caught.value.suggestion is not None
    assert "ENCODING 'UTF8'" in caught.value.suggestion
    with pytest.raises(CatalogEncodingError):
        write_deltalake(f"{uri}/t", ids(1))
    with psycopg.connect(latin.dsn) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'lake'").fetchone() is None
    last = list(examine(parse_address(uri), get_config()))[-1]
    assert (last.title, last.status) == ("encoding", "failed")


def test_the_doctor_tells_a_catalog_that_lies_in_such_a_database(
    latin: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = parse_address(latin.catalog_uri("lake"))
    with monkeypatch.context() as old:  # as a client made it that did not look
        old.setattr(PostgresEngine, "encoding_error", lambda _: None)
        Catalog(address, create=True).close()
    found = {c.title: c for c in examine(address, get_config())}
    assert (found["encoding"].status, found["tables"].status) == ("warning", "ok")
    assert "LATIN1" in found["encoding"].detail


def test_a_schema_dropped_under_a_process_is_a_missing_catalog(
    pg_database: PostgresDatabase, pg_schema: str, tmp_path: Path
) -> None:
    catalog = Catalog(pg_database.catalog_uri(pg_schema), create=True)

    def fill() -> None:
        catalog.set_root(tmp_path / uuid.uuid4().hex)
        for name in ("a", "b"):
            catalog.write(name, ids(1))
            catalog.write(name, ids(2), mode="append")

    def together() -> None:
        with catalog.transaction() as tx:
            tx.write("a", ids(3))
            tx.write("b", ids(3))

    for use in (
        catalog.tables,
        lambda: catalog.table("a"),
        lambda: catalog.write("a", ids(3), mode="append"),
        lambda: catalog.query("select count(*) from dl_commits"),
        together,
    ):
        fill()
        together()
        pg_database.drop_schema(pg_schema)
        with pytest.raises(CatalogNotFoundError, match="dropped while this process") as caught:
            use()
        assert "backup" in (caught.value.suggestion or "")
        with pytest.raises(CatalogNotFoundError, match="no catalog"):
            catalog.tables()
    fill()
    with pytest.raises(CatalogError, match="nowhere") as caught_other:  # a question's own mistake stays one
        catalog.query("select * from nowhere")
    assert not isinstance(caught_other.value, CatalogNotFoundError)
