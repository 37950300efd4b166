"""Signals and exceptions that arrive while a commit is ending: no live file is lost."""

from __future__ import annotations

import ctypes
import operator
import os
import random
import signal
import sqlite3
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import deltalakedb.commit.committer as committer
from deltalakedb import Catalog
from deltalakedb.exceptions import CommitUnknownError, OperationError
from deltalakedb.metastore.engines.duckdb import DuckdbEngine
from support.invariants import check_table
from support.lake import files_below, ids
from support.processes import Child, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TimeIsUpError(Exception):
    """What an application's signal handler raises."""


#: a file that shows that the handler ran
_marker: list[str] = []


def _time_is_up(*_: object) -> None:
    Path(_marker[0]).touch()
    raise TimeIsUpError("the application's deadline has passed")


HANDLERS = {"interrupt": signal.default_int_handler, "handler": _time_is_up}


def _with_a_signal(call: Callable[[], Any], *, soon: bool = False) -> Any:
    """Make a call of C with a signal pending, or on its way: no Python runs in between."""
    now = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
    later = partial(signal.setitimer, signal.ITIMER_REAL, 0.0001)
    return list(map(operator.call, [later if soon else now, call]))[1]


class Interrupted(sqlite3.Connection):
    """A connection to SQLite whose COMMIT is interrupted."""

    armed = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        run = partial(super().execute, sql, *values)
        if sql != "COMMIT" or not self.armed:
            return run()
        Interrupted.armed = False
        cursor: sqlite3.Cursor = _with_a_signal(run)
        return cursor


class InterruptedCursor:
    """A cursor of DuckDB whose COMMIT is interrupted."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, sql: str, *values: Any) -> Any:
        run = partial(self._cursor.execute, sql, *values)
        if sql != "COMMIT" or not Interrupted.armed:
            return run()
        Interrupted.armed = False
        return _with_a_signal(run, soon=True)  # it looks for signals before it begins, too

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def operate(uri: str, operation: str, handler: str, marker: str) -> dict[str, Any]:
    """Run an operation that is interrupted while it commits; what it raised."""
    _marker.append(marker)
    signal.signal(signal.SIGINT, HANDLERS[handler])
    signal.signal(signal.SIGALRM, HANDLERS[handler])
    connect, acquire, small = sqlite3.connect, DuckdbEngine._acquire, DuckdbEngine._small_cursor
    sqlite3.connect = lambda *a, **o: connect(*a, **o, factory=Interrupted)  # type: ignore[assignment]
    DuckdbEngine._acquire = lambda self: InterruptedCursor(acquire(self))  # type: ignore[assignment, method-assign, return-value]
    DuckdbEngine._small_cursor = lambda self, root: InterruptedCursor(small(self, root))  # type: ignore[assignment, method-assign, return-value]
    catalog = Catalog(uri)
    try:
        if operation == "append":
            catalog.write("a", ids(9), mode="append")  # from here on the table is known
        inner = committer.failpoint

        def at(name: str) -> None:
            inner(name)
            Interrupted.armed = name == "commit.before_commit"

        committer.failpoint = at  # type: ignore[attr-defined]
        if operation == "append":
            catalog.write("a", ids(10), mode="append")
        elif operation == "delete":
            catalog.table("a").delete("id = 1")
        else:
            with catalog.transaction() as tx:
                tx.write("a", ids(10))
                tx.table("b").delete("id = 1")
    except BaseException as error:
        return {"type": type(error).__name__, "text": str(error)}
    return {"type": None}


@contextmanager
def stopped_at_commit(dsn: str, schema: str) -> Iterator[tuple[Callable[[], bool], Callable[[], object]]]:
    """On Postgres, have transactions that make version 2 of a table, or delete, wait when they commit.

    Yields:
        Whether one of them waits, and what lets it go on.
    """
    key = random.getrandbits(31)  # tests of other workers share the database
    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", (key,))
        holder.execute(
            f"""
            CREATE FUNCTION "{schema}".wait() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_advisory_xact_lock({key}); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON "{schema}".dl_commits
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.operation = 'DELETE' OR NEW.version = 2)
            EXECUTE FUNCTION "{schema}".wait()
            """
        )
        asked = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = {key}"

        def waits() -> bool:
            return holder.execute(asked).fetchone() is not None

        yield waits, lambda: holder.execute("SELECT pg_advisory_unlock_all()")
        holder.execute("SELECT pg_advisory_unlock_all()")
        until(lambda: not waits())
        holder.execute(f'DROP TRIGGER wait ON "{schema}".dl_commits')


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("operation", ["append", "delete", "both"])
def test_a_commit_that_is_interrupted_keeps_its_files(
    operation: str,
    handler: str,
    catalog_uri: str,
    engine_name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    with Catalog(catalog_uri) as catalog:
        for name in "ab":
            catalog.write(name, ids(1, 2, 3), location=str(tmp_path / "lake" / name))
    marker = tmp_path / "handled"
    if engine_name == "postgres":
        dsn, schema = request.getfixturevalue("pg_dsn"), request.getfixturevalue("pg_schema")
        with stopped_at_commit(dsn, schema) as (waits, go_on):
            child = Child(operate, catalog_uri, operation, handler, str(marker), folder=tmp_path)
            until(waits)
            os.kill(child.pid, signal.SIGINT)
            if handler == "handler":  # its driver waits for the server's answer in any case
                until(marker.exists)
                go_on()
            told = child.result()
    else:
        told = Child(operate, catalog_uri, operation, handler, str(marker), folder=tmp_path).result()
    known = {"KeyboardInterrupt" if handler == "interrupt" else "CommitUnknownError"}
    # if DuckDB sees the signal itself, it hides which exception the handler raised
    assert told["type"] in known | ({"CommitUnknownError"} if engine_name == "duckdb" else set()), told
    with Catalog(catalog_uri) as catalog:
        found = {name: check_table(catalog, name).ids for name in "ab"}  # every live file is there
        nine = [9] if operation == "append" else []
        before = {"a": [1, 2, 3, *nine], "b": [1, 2, 3]}
        after = {
            "append": {"a": [1, 2, 3, 9, 10], "b": [1, 2, 3]},
            "delete": {"a": [2, 3], "b": [1, 2, 3]},
            "both": {"a": [1, 2, 3, 10], "b": [2, 3]},
        }[operation]
        # the Postgres driver takes Ctrl-C to the server, which stops the transaction
        stopped = engine_name == "postgres" and handler == "interrupt"
        assert found == (before if stopped else after) or (engine_name == "duckdb" and found == before)
        catalog.write("a", ids(20), mode="append")
        assert 20 in check_table(catalog, "a", published=True).ids


class Flaky(sqlite3.Connection):
    """A connection whose COMMIT reaches the file and then fails, as a failed flush may."""

    fails = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        done = super().execute(sql, *values)
        if sql == "COMMIT" and Flaky.fails:
            Flaky.fails = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return done


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_commit_whose_flush_failed_is_found_by_its_id(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **o: connect(*a, **o, factory=Flaky))
    with Catalog(catalog_uri) as catalog:
        catalog.write("a", ids(1), location=str(tmp_path / "lake" / "a"))
        Flaky.fails = True
        catalog.write("a", ids(2), mode="append")
        assert not Flaky.fails
        assert check_table(catalog, "a", published=True).ids == [1, 2]
        assert len(catalog.commits("a")) == 2


@pytest.mark.parametrize("failure", [MemoryError("none left"), RuntimeError("odd"), TimeIsUpError("late")])
def test_an_exception_right_after_the_commit_keeps_the_files(
    failure: Exception, catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has ended, and its caller does not know yet."""
    lake = tmp_path / "lake" / "a"
    with Catalog(catalog_uri) as catalog:
        catalog.write("a", ids(1), location=str(lake))

        def answer() -> None:
            raise failure

        with monkeypatch.context() as patched:
            patched.setattr(committer, "_reached_commit", answer)
            with pytest.raises((CommitUnknownError, type(failure))):
                catalog.write("a", ids(2), mode="append")
        assert check_table(catalog, "a").ids == [1, 2]


def test_files_of_a_commit_that_certainly_failed_are_deleted(catalog_uri: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake" / "a"
    with Catalog(catalog_uri) as catalog:
        catalog.write("a", ids(1), location=str(lake))
        before = {f for f in files_below(lake) if f.endswith(".parquet")}
        with suppress(OperationError), catalog.transaction() as tx:
            tx.write("a", ids(2))
            raise OperationError("changed my mind")
        assert {f for f in files_below(lake) if f.endswith(".parquet")} == before


def ask_and_be_interrupted(path: str) -> str:
    """Ask DuckDB something that takes long, with a signal on its way."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with Catalog(f"deltasql://duckdb/{path}") as catalog:
        with catalog._database.read() as session:
            # DuckDB looks for signals between the tasks of the main thread; other threads may take them all
            session.cursor.execute("SET threads = 1")
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            catalog.query("SELECT sum(range) FROM range(100000000000)")
        except BaseException as error:
            return type(error).__name__
    return "nothing"


def test_ctrl_c_during_a_query_on_duckdb_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    with Catalog(f"deltasql://duckdb/{tmp_path}/catalog.db") as catalog:
        catalog.write("a", ids(1), location=tmp_path / "a")
    child = Child(ask_and_be_interrupted, f"{tmp_path}/catalog.db", folder=tmp_path)
    assert child.result() == "KeyboardInterrupt"
