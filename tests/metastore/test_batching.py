"""Changes wait until a query runs or the transaction ends, and are then made together and in order."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogError
from deltalakedb.metastore.database import Database, close_all
from deltalakedb.metastore.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = ("name", "value")


@pytest.fixture
def database(catalog_uri: str) -> Iterator[Database]:
    """A catalog with nothing in its settings."""
    database = Database.open(parse_address(catalog_uri))
    database.ensure()
    yield database
    close_all()


def settings(database: Database) -> dict[str, str]:
    with database.read() as session:
        return dict(session.rows("SELECT name, value FROM dl_settings"))


INSERT = Statement("insert", "INSERT INTO dl_settings (name, value) VALUES (?, ?)")
DELETE = Statement("delete", "DELETE FROM dl_settings WHERE name = ?")


def test_changes_of_one_table_are_made_in_order(database: Database) -> None:
    with database.write() as session:
        for number in range(3):
            session.insert("dl_settings", COLUMNS, [(f"a{number}", "old")])
            session.update_many(INSERT, [(f"b{number}", "b")])
        session.update_rows("dl_settings", ("value",), "name", [("new", "a0"), ("newer", "a1")])
        session.update_rows("dl_settings", ("value",), "name", [("newest", "a2")])
        session.update_many(DELETE, [("b0",), ("b1",)])
        session.insert("dl_settings", COLUMNS, [("b0", "again")])
        session.update_rows("dl_settings", ("value",), "name", [("last", "b0")])
        assert session.row("SELECT count(*) FROM dl_settings") == (5,)
    assert settings(database) == {"a0": "new", "a1": "newer", "a2": "newest", "b0": "last", "b2": "b"}


def test_of_several_updates_of_a_row_the_last_one_counts(database: Database) -> None:
    with database.write() as session:
        session.insert("dl_settings", COLUMNS, [("a", "0"), ("b", "0")])
        session.insert("dl_namespaces", ("name", "properties", "created_at"), [("n", "{}", 1)])
        for value in ("1", "2", "3"):
            session.update_rows("dl_settings", ("value",), "name", [(value, "a")])
        session.update_rows("dl_settings", ("value",), "name", [("4", "b")])
        session.insert("dl_settings", COLUMNS, [("c", "5")])
    assert settings(database) == {"a": "3", "b": "4", "c": "5"}


def test_small_changes_of_several_tables_are_all_made(database: Database) -> None:
    with database.write() as session:
        session.insert("dl_settings", COLUMNS, [("a", "0"), ("b", "0"), ("c", None)])
    with database.write() as session:
        session.update_rows("dl_settings", ("value",), "name", [(None, "a"), (None, "b")])
        session.insert(
            "dl_namespaces", ("name", "comment", "properties", "created_at"), [("n", None, "{}", 1)]
        )
        session.insert(
            "dl_namespaces", ("name", "comment", "properties", "created_at"), [("m", "x", "{}", 2)]
        )
        session.update_many(INSERT, [("d", "1")])
    assert settings(database) == {"a": None, "b": None, "c": None, "d": "1"}
    with database.read() as session:
        found = session.rows("SELECT name, comment FROM dl_namespaces ORDER BY name")
    assert found == [("m", "x"), ("n", None)]


def test_a_query_sees_the_changes_that_wait(database: Database) -> None:
    with database.write() as session:
        session.insert("dl_settings", COLUMNS, [("a", "1")])
        assert session.row("SELECT value FROM dl_settings WHERE name = 'a'") == ("1",)
        session.update_rows("dl_settings", ("value",), "name", [("2", "a")])
        assert session.rows("SELECT value FROM dl_settings") == [("2",)]


def test_a_users_query_sees_the_changes_that_wait(database: Database) -> None:
    with database.write() as session:
        session.insert("dl_settings", COLUMNS, [("a", "0")])
        assert session.query("SELECT name FROM dl_settings")["name"].to_pylist() == ["a"]
    assert settings(database) == {"a": "0"}


@pytest.mark.parametrize("value", ["\udcff", "\0"])
def test_a_value_that_cannot_be_stored_does_not_make_the_outcome_unknown(
    database: Database, value: str
) -> None:
    """It is found when the changes are made, which may be together with the COMMIT."""
    refused = value != "\0" or database.dialect.name == "postgres"
    with pytest.raises(CatalogError) if refused else nullcontext(), database.write() as session:
        session.insert("dl_namespaces", ("name", "properties", "created_at"), [("n", "{}", 1)])
        session.insert("dl_settings", COLUMNS, [("a", value)])
    assert settings(database) == ({} if refused else {"a": value})
    with database.read() as session:
        assert session.row("SELECT count(*) FROM dl_namespaces") == (int(not refused),)


@pytest.mark.parametrize("engine_name", ["postgres"])
def test_a_value_that_cannot_be_sent_costs_no_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: object) -> object:
        raise AssertionError("the connection works")

    monkeypatch.setattr(database.engine, "replace", refuse)
    for lend in (database.read, database.write):
        with pytest.raises(CatalogError, match="NUL"), lend() as session:
            session.row("SELECT value FROM dl_settings WHERE name = ?", ("a\0",))


def test_many_rows_do_not_wait(database: Database) -> None:
    with database.write() as session:
        session.insert("dl_settings", COLUMNS, [("first", "x")])
        session.insert("dl_settings", COLUMNS, [(f"many{n}", "y") for n in range(100)])
        for n in range(70):
            session.insert("dl_settings", COLUMNS, [(f"one{n}", None if n % 2 else "z")][: 1 - n % 2])
        session.update_rows("dl_settings", ("value",), "name", [("w", f"many{n}") for n in range(99)])
    found = settings(database)
    assert len(found) == 136
    assert sum(value == "w" for value in found.values()) == 99


def test_a_transaction_that_fails_leaves_nothing_behind(database: Database) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def work() -> None:
        with database.write() as session:
            session.insert("dl_settings", COLUMNS, [("a", "1")])
            raise Stop

    def wrong() -> None:
        with database.write() as session:
            session.insert("dl_settings", COLUMNS, [("a", "1")])
            session.insert("dl_no_such_table", COLUMNS, [("a", "1")])

    with pytest.raises(Stop):
        work()
    with pytest.raises(CatalogError):
        wrong()
    assert settings(database) == {}


@pytest.mark.parametrize("level", ["FULL", "EXTRA", "NORMAL"])
def test_a_note_on_sqlite_is_not_flushed_and_the_connection_flushes_again_after_it(
    level: str, tmp_path: Path
) -> None:
    database = Database.open(parse_address(f"deltasql://sqlite/{tmp_path}/meta.db?synchronous={level}"))
    usual = {"NORMAL": 1, "FULL": 2, "EXTRA": 3}[level]

    def note(*, fails: bool) -> None:
        with database.relaxed_write() as session:
            assert session.row("PRAGMA synchronous") == (1,)
            session.insert("dl_settings", COLUMNS, [("note", "x")])
            if fails:
                session.run("nonsense")

    note(fails=False)
    with pytest.raises(CatalogError):
        note(fails=True)
    with database.write() as session:
        assert session.row("PRAGMA synchronous") == (usual,)
        assert session.rows("SELECT name FROM dl_settings") == [("note",)]
    close_all()


def test_notes_may_be_inserted_and_updated(database: Database) -> None:
    with database.relaxed_write() as session:
        session.insert("dl_settings", COLUMNS, [("a", "1"), ("b", "2")])
        session.update_rows("dl_settings", ("value",), "name", [("3", "b")])
    assert settings(database) == {"a": "1", "b": "3"}
