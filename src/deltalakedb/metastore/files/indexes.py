"""The indexes of files: dropped before a large first load, and built again after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore.migrations import migrations

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.metastore.engines.base import Engine, Session
    from deltalakedb.metastore.statements import Statement

_PREFIX = "CREATE INDEX "
_TABLE = " ON dl_files "
#: those that only planning uses; the others find files by path and version
_PLANNING = ("dl_files_part", "dl_files_slot")


def drop_indexes(session: Session) -> None:
    """Drop every index of files."""
    for statement in _file_indexes():
        session.run(f"DROP INDEX IF EXISTS {_name(statement)}")


def build_indexes(engine: Engine, check: Callable[[Session], None], *, planning: bool) -> None:
    """Build the indexes that are missing, each in a transaction of its own so that other writers get a turn.

    Args:
        engine: The database.
        check: Called inside each transaction, before the index is built.
        planning: Build those for planning too.
    """
    for statement in _file_indexes():
        if not planning and _name(statement).startswith(_PLANNING):
            continue
        with engine.write() as session:
            check(session)
            for tuning in engine.dialect.before_index:
                session.run(tuning)
            session.run(str(statement).replace(_PREFIX, f"{_PREFIX}IF NOT EXISTS ", 1))
            for tuning in engine.dialect.after_index:
                session.run(tuning)


def _file_indexes() -> list[Statement]:
    """The statements of the schema that index files."""
    return [
        statement
        for step in migrations()
        for statement in step.statements
        if str(statement).startswith(_PREFIX) and _TABLE in str(statement)
    ]


def _name(statement: Statement) -> str:
    return str(statement).removeprefix(_PREFIX).split(" ", 1)[0]
