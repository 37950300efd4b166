"""Fixtures of every room: a fresh catalog on each engine, table addresses, the golden folder."""

from __future__ import annotations

import os
import signal
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

import pytest
from hypothesis import settings

from support.golden import golden_root, missing_reason
from support.postgres import PostgresDatabase, PostgresRun
from support.spark import missing_reason as spark_missing
from support.spark import start as start_spark
from support.stores import StoreServers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.twins import Twins

ENGINES = ("sqlite", "duckdb", "postgres")
#: rooms whose tests look into the engines' own code: they run on every engine
ENGINE_ROOMS = ("attacks", "behaviour", "commit", "conformance", "errors", "faults", "frame", "metastore")
SERVER_FOLDER = "DELTASQL_TEST_POSTGRES_FOLDER"

# The same examples in every run: a failure seen once is seen again. `explore` looks for new ones.
settings.register_profile(
    "steady", max_examples=50, deadline=None, derandomize=True, database=None, print_blob=True
)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

_server_key = pytest.StashKey[PostgresRun]()


class TableUri(Protocol):
    """Makes the address of a table in the test's catalog."""

    def __call__(self, name: str, **parameters: str) -> str: ...


def pytest_configure(config: pytest.Config) -> None:
    """In the main process, reserve the server's folder; workers inherit it through the environment."""
    if not hasattr(config, "workerinput"):
        server = PostgresRun.create()
        config.stash[_server_key] = server
        os.environ[SERVER_FOLDER] = str(server.folder)
        # A run that is told to end (a CI job's time limit) still has to stop its server.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """In the main process, stop the server after the last worker has ended."""
    server = config.stash.get(_server_key, None)
    if server is not None:
        server.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that need Spark in one worker, so that a run starts one session; choose the engines."""
    tests = Path(__file__).parent
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) or item.path.is_relative_to(tests / "spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
    if os.environ.get("DELTASQL_TEST_ENGINES") == "all" or config.option.keyword:
        return
    left_out = set(_left_out(items, tests))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _left_out(items: list[pytest.Item], tests: Path) -> Iterator[pytest.Item]:
    """Above the engines, a test of all three runs on SQLite and on one of the others, chosen by its name."""
    by_test: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        engine = item.callspec.params.get("engine_name") if hasattr(item, "callspec") else None
        if engine and item.path.relative_to(tests).parts[0] not in ENGINE_ROOMS:
            by_test.setdefault(item.nodeid.replace(engine, "*"), {})[engine] = item
    for name, engines in by_test.items():
        if len(engines) == len(ENGINES):
            yield engines[ENGINES[1 + zlib.crc32(name.encode()) % 2]]


@pytest.fixture(scope="session")
def pg_database() -> PostgresDatabase:
    """A database of this worker process on the run's Postgres server."""
    server = PostgresRun(Path(os.environ[SERVER_FOLDER]))
    return server.database("deltasql_" + os.environ.get("PYTEST_XDIST_WORKER", "main"))


@pytest.fixture
def pg_dsn(pg_database: PostgresDatabase) -> str:
    """A libpq connection string, for tests that look into Postgres past the library."""
    return pg_database.dsn


@pytest.fixture
def pg_schema(pg_database: PostgresDatabase) -> Iterator[str]:
    """The name of a schema that no other test uses; not created yet, dropped after the test."""
    schema = "t_" + uuid.uuid4().hex[:12]
    yield schema
    pg_database.drop_schema(schema)


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    """Each engine in turn; `-k sqlite` picks one."""
    name: str = request.param
    return name


@pytest.fixture
def catalog_uri(engine_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The address of an empty catalog that does not exist yet, on the engine of the test."""
    if engine_name == "postgres":
        database: PostgresDatabase = request.getfixturevalue("pg_database")
        return database.catalog_uri(request.getfixturevalue("pg_schema"))
    ending = {"sqlite": "db", "duckdb": "duckdb"}[engine_name]
    return f"deltasql://{engine_name}/{quote(str(tmp_path))}/catalog.{ending}"


@pytest.fixture
def table_uri(catalog_uri: str, tmp_path: Path) -> TableUri:
    """A function from a table's name to its address, with its location in the test's own folder."""

    def address(name: str, **parameters: str) -> str:
        location = str(tmp_path / "lake" / name)
        query = {"table": name, "location": location} | parameters
        return f"{catalog_uri}?{urlencode(query, safe='/', quote_via=quote)}"

    return address


@pytest.fixture
def twins(table_uri: TableUri, tmp_path: Path) -> Twins:
    """Two empty places for the same table: one in the catalog, one for stock."""
    from support.twins import Twins

    return Twins(table_uri("t"), str(tmp_path / "plain"))


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the golden tables; skips the test where there is none."""
    root = golden_root()
    if root is None:
        pytest.skip(missing_reason())
    return root


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The run's Spark session, with Delta; skips the test where Java, PySpark or Delta's jars are missing."""
    if (reason := spark_missing()) is not None:
        pytest.skip(reason)
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def store_servers() -> Iterator[StoreServers]:
    """Object stores on this machine, started when a test wants a bucket in one."""
    servers = StoreServers()
    yield servers
    servers.close()


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is left alone for minutes, so that a slow machine does not come to the next try."""
    monkeypatch.setattr("deltalakedb.retry._FIRST_MS", 300_000)
