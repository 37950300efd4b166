"""The catalog's own schema as numbered migrations, applied on first use unless the settings forbid it."""

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
_TOKEN = re.compile(r"\{(\w+)(?:: ([\w, ]+))?\}")

_CREATE = """CREATE TABLE dl_schema_version (
  version {bigint} NOT NULL,
  title TEXT NOT NULL,
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


def current_version(engine: Engine, session: Session) -> int:
    """The schema version of the database; 0 if there is no catalog yet."""
    return _recorded_version(session) if engine.has_schema_table(session) else 0


def _recorded_version(session: Session) -> int:
    found = session.row("SELECT max(version) FROM dl_schema_version")
    return 0 if found is None or found[0] is None else int(found[0])


def _version_at_first_use(engine: Engine) -> int:
    """The schema version, by one statement if there is a catalog: looking for the table costs more."""
    try:
        with engine.read() as session:
            return _recorded_version(session)
    except CatalogError as error:
        if type(error) is not CatalogError:  # not about a missing table
            raise
    with engine.read() as session:
        return current_version(engine, session)


def ensure(engine: Engine, *, create: bool = True) -> None:
    """Check that the database has this client's schema; create or upgrade it if the settings allow."""
    known = migrations()[-1].number
    version = 0 if not create and engine.is_absent() else _version_at_first_use(engine)
    if version == known:
        return
    _refuse_newer(engine, version)
    where = engine.address.catalog.to_uri()
    if version == 0 and not engine.config.catalog.create:
        raise CatalogNotFoundError(
            f"there is no catalog at {where}, and catalog.create is off",
            suggestion=f"let the database's owner run `deltasql init '{where}'`",
        )
    if version == 0 and not create:
        raise CatalogNotFoundError(
            f"there is no catalog at {where}",
            suggestion=f"check the address; `deltasql init '{where}'` creates the catalog, and so does "
            "writing the first table",
        )
    if version and not engine.config.catalog.auto_migrate:
        raise CatalogVersionError(
            f"the catalog {where} has schema version {version}, this client needs {known}",
            suggestion="let the database's owner run `deltasql migrate`",
        )
    migrate(engine)


def pending(engine: Engine) -> Sequence[Migration]:
    with engine.read() as session:
        version = current_version(engine, session)
    _refuse_newer(engine, version)
    return migrations()[version:]


def migrate(engine: Engine) -> list[Migration]:
    """Bring the schema up to date, each step in one transaction; concurrent callers apply each step once."""
    if (trouble := engine.encoding_error()) is not None:
        with engine.read() as session:
            if not engine.has_schema_table(session):  # an existing catalog stays usable; doctor reports it
                raise trouble
    done = []
    for step in migrations():
        with engine.write() as session:
            engine.prepare(session)
            version = current_version(engine, session)
            if version >= step.number:
                continue
            if version == 0 and not engine.has_schema_table(session):
                session.run(_fill(_CREATE, engine))
            for statement in step.statements:
                if statement.runs_on(engine.dialect.name):
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
    keys = {"pk": " PRIMARY KEY", "unique": " UNIQUE", "key": ",\n  PRIMARY KEY ({})"}
    tokens = engine.dialect.tokens | (keys if engine.dialect.indexed else dict.fromkeys(keys, ""))
    return _TOKEN.sub(lambda m: tokens[m[1]].format(m[2]), sql)
