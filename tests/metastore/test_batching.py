"""Changes that a session puts by: made together when a batch ends, seen by every question, lost with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogError
from deltalakedb.metastore.database import Database, close_all

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


def test_changes_of_a_batch_are_made_together_and_in_order(database: Database) -> None:
    with database.write() as session:
        with session.batch(1):
            for number in range(3):
                with session.batch(1):
                    session.insert("dl_settings", COLUMNS, [(f"a{number}", "old")])
                    session.run("INSERT INTO dl_settings (name, value) VALUES (?, ?)", (f"b{number}", "b"))
            session.barrier()
            session.update_rows("dl_settings", ("value",), "name", [("new", "a0"), ("newer", "a1")])
            session.update_rows("dl_settings", ("value",), "name", [("newest", "a2")])
            session.update_many("DELETE FROM dl_settings WHERE name = ?", [("b0",), ("b1",)])
        assert session.row("SELECT count(*) FROM dl_settings") == (4,)
    assert settings(database) == {"a0": "new", "a1": "newer", "a2": "newest", "b2": "b"}


def test_a_question_inside_a_batch_sees_what_was_put_by(database: Database) -> None:
    with database.write() as session, session.batch(1):
        session.insert("dl_settings", COLUMNS, [("a", "1")])
        assert session.row("SELECT value FROM dl_settings WHERE name = 'a'") == ("1",)
        session.update_rows("dl_settings", ("value",), "name", [("2", "a")])
        assert session.rows("SELECT value FROM dl_settings") == [("2",)]


def test_many_rows_in_a_batch_are_all_there(database: Database) -> None:
    with database.write() as session, session.batch(1):
        session.insert("dl_settings", COLUMNS, [("first", "x")])
        session.insert("dl_settings", COLUMNS, [(f"many{n}", "y") for n in range(100)])
        for n in range(70):
            session.insert("dl_settings", COLUMNS, [(f"one{n}", None if n % 2 else "z")][: 1 - n % 2])
    assert len(settings(database)) == 136


def test_a_batch_that_fails_leaves_nothing_behind(database: Database) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def work() -> None:
        with database.write() as session, session.batch(1):
            session.insert("dl_settings", COLUMNS, [("a", "1")])
            raise Stop

    def wrong() -> None:
        with database.write() as session, session.batch(1):
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
