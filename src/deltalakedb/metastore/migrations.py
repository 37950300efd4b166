"""Numbered migrations of the catalog's own schema: created on first use, refused where that is not wanted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogError, CatalogNotFoundError, CatalogVersionError
from deltalakedb.metastore.statements import Statement, parse_statements, sql_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.metastore.engines.base import Engine, Session

_FILE = re.compile(r"(?P<number>\d{4})_(?P<title>\w+)\.sql$")
_TOKEN = re.compile(r"\{(\w+)\}")

_CREATE = """CREATE TABLE dl_schema_version (
  version {bigint} NOT NULL,
  title {text} NOT NULL,
  applied_at {bigint} NOT NULL
)"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    title: str
    statements: tuple[Statement, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """All steps this client knows, in order, without gaps."""
    found = []
    for file in sorted((sql_folder() / "migrations").iterdir(), key=lambda f: f.name):
        if match := _FILE.match(file.name):
            steps = tuple(parse_statements(file.read_text("utf-8")))
            found.append(Migration(int(match["number"]), match["title"], steps))
    if [m.number for m in found] != list(range(1, len(found) + 1)):
        raise LookupError("the numbers of the migrations have a gap")
    return tuple(found)


@cache
def newest_version() -> int:
    """The schema version this client brings a database to; by the files' names alone, unlike `migrations`."""
    numbers = (_FILE.match(file.name) for file in (sql_folder() / "migrations").iterdir())
    return max(int(match["number"]) for match in numbers if match)


def current_version(engine: Engine, session: Session) -> int:
    """The schema version of the database; 0 where there is no catalog yet."""
    return _recorded_version(session) if engine.has_schema_table(session) else 0


def _recorded_version(session: Session) -> int:
    found = session.row("SELECT max(version) FROM dl_schema_version")
    return 0 if found is None or found[0] is None else int(found[0])


def _version_at_first_use(engine: Engine) -> int:
    """The schema version, by one statement where there is a catalog: looking for the table costs more."""
    try:
        with engine.read() as session:
            return _recorded_version(session)
    except CatalogError as error:
        if type(error) is not CatalogError:  # not about a missing table
            raise
    with engine.read() as session:
        return current_version(engine, session)


def ensure(engine: Engine, *, create: bool = True) -> None:
    """Make sure that this client and the database's schema fit, upgrading it where allowed.

    Args:
        engine: The database.
        create: Create what is not there, where the settings allow it: not for those who only read.
    """
    known = newest_version()
    version = 0 if not create and engine.is_absent() else _version_at_first_use(engine)
    if version == known:
        return
    _refuse_newer(engine, version)
    where = engine.address.catalog.to_uri()
    if version == 0 and not create:
        raise CatalogNotFoundError(
            f"there is no catalog at {where}",
            suggestion="check the address; writing the first table creates the catalog, and so does "
            "`deltasql migrate`",
        )
    if version == 0 and not engine.config.catalog.create:
        raise CatalogNotFoundError(
            f"there is no catalog at {where}, and catalog.create is off",
            suggestion="let the database's owner run `deltasql migrate`",
        )
    if version and not engine.config.catalog.auto_migrate:
        raise CatalogVersionError(
            f"the catalog {where} has schema version {version}, this client needs {known}",
            suggestion="let the database's owner run `deltasql migrate`",
        )
    migrate(engine)


def pending(engine: Engine) -> Sequence[Migration]:
    """The steps that the database still lacks."""
    with engine.read() as session:
        version = current_version(engine, session)
    _refuse_newer(engine, version)
    return migrations()[version:]


def migrate(engine: Engine, *, upto: int | None = None) -> list[Migration]:
    """Bring the schema up to date, each step in one transaction; whoever comes second finds it done.

    Raises:
        CatalogEncodingError: There is none yet, and the database could not keep what will be written.
    """
    if (trouble := engine.encoding_trouble()) is not None:
        with engine.read() as session:
            if not engine.has_schema_table(session):  # who has one goes on, and the doctor says it
                raise trouble
    done = []
    for step in migrations()[:upto]:
        with engine.write() as session:
            engine.prepare(session)
            version = current_version(engine, session)
            if version >= step.number:
                continue
            if version == 0 and not engine.has_schema_table(session):
                session.run(_fill(_CREATE, engine))
            for statement in step.statements:
                if not statement.only or engine.dialect.name in statement.only:
                    session.run(_fill(statement.sql, engine))
            session.run(
                "INSERT INTO dl_schema_version (version, title, applied_at) VALUES (?, ?, ?)",
                (step.number, step.title, session.now_ms()),
            )
            done.append(step)
    return done


def _refuse_newer(engine: Engine, version: int) -> None:
    known = migrations()[-1].number
    if version > known:
        raise CatalogVersionError(
            f"the catalog {engine.address.catalog.to_uri()} has schema version {version}, "
            f"this client knows up to {known}",
            suggestion="upgrade deltalakedb on this machine",
        )


def _fill(sql: str, engine: Engine) -> str:
    return _TOKEN.sub(lambda m: engine.dialect.tokens[m[1]], sql)
