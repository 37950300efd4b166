"""Fixtures of every room: a fresh catalog on each engine, table addresses, the golden folder."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

import pytest
from hypothesis import settings

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.metastore.database import close_all
from support.catalogs import ENGINES, fresh_catalog_uri
from support.golden import golden_root, missing_reason
from support.lake import ids
from support.postgres import PostgresDatabase, PostgresRun
from support.spark import missing_reason as spark_missing
from support.spark import start as start_spark
from support.stores import StoreServers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.twins import Twins

#: rooms whose tests look into the engines' own code: they run on every engine
ENGINE_ROOMS = ("attacks", "behaviour", "conformance", "faults", "metastore", "project")
SERVER_FOLDER = "DELTASQL_TEST_POSTGRES_FOLDER"

# Modules are compiled once, not by each of the hundreds of processes that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

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
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
    if os.environ.get("DELTASQL_TEST_ENGINES") == "all" or config.option.keyword:
        return
    left_out = set(_left_out(items, tests))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _left_out(items: list[pytest.Item], tests: Path) -> Iterator[pytest.Item]:
    """Above the engines, a test of all three runs on SQLite, and once on another one, chosen by its name."""
    twins: dict[str, dict[str, dict[str, pytest.Item]]] = {}
    for item in items:
        engine = item.callspec.params.get("engine_name") if hasattr(item, "callspec") else None
        if engine and item.path.relative_to(tests).parts[0] not in ENGINE_ROOMS:
            by_parameters = twins.setdefault(item.nodeid.partition("[")[0], {})
            by_parameters.setdefault(item.nodeid.replace(engine, "*"), {})[engine] = item
    for name, by_parameters in twins.items():
        complete = [engines for engines in by_parameters.values() if len(engines) == len(ENGINES)]
        other = ENGINES[1 + zlib.crc32(name.encode()) % 2]
        for number, engines in enumerate(complete):
            yield from (
                item for engine, item in engines.items() if engine != "sqlite" and (number or engine != other)
            )


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
    return fresh_catalog_uri(engine_name, tmp_path, request)


@pytest.fixture(scope="session")
def duckdb_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an empty catalog: copying it costs DuckDB a tenth of creating one."""
    file = tmp_path_factory.mktemp("template") / "catalog.duckdb"
    with Catalog(f"deltasql://duckdb/{quote(str(file))}", create=True):
        return file


@pytest.fixture
def catalog(engine_name: str, catalog_uri: str, request: pytest.FixtureRequest) -> Catalog:
    """An empty catalog."""
    if engine_name == "duckdb":
        shutil.copyfile(request.getfixturevalue("duckdb_template"), parse_address(catalog_uri).path or "")
    return Catalog(catalog_uri, create=True)


@pytest.fixture
def root(catalog: Catalog, tmp_path: Path) -> Path:
    """The folder of a table `t` that holds the row 0."""
    folder = tmp_path / "lake" / "t"
    catalog.write("t", ids(0), location=folder)
    return folder


@pytest.fixture(scope="module")
def shared_catalog(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Catalog]]:
    """A function from an engine to the one catalog on it that the tests of a module share."""
    made: dict[str, Catalog] = {}
    schema = "shared_" + uuid.uuid4().hex[:12]

    def shared(engine: str) -> Catalog:
        if engine not in made:
            uri = f"deltasql://{engine}/{quote(str(tmp_path_factory.mktemp('shared')))}/catalog.{engine}"
            if engine == "postgres":
                uri = request.getfixturevalue("pg_database").catalog_uri(schema)
            made[engine] = Catalog(uri)
        return made[engine]

    yield shared
    close_all()
    if "postgres" in made:
        request.getfixturevalue("pg_database").drop_schema(schema)


@pytest.fixture(autouse=True)
def _leave_nothing_open() -> Iterator[None]:
    yield
    close_all()


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
