"""Blind appends as rows that are ready before any lock: one statement gives them version, time and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltalakedb.metastore import audit
from deltalakedb.metastore.files import slots
from deltalakedb.metastore.files.rows import MAIN_COLUMNS, SIDE_COLUMNS, main_row, side_row
from deltalakedb.metastore.statements import Statement, statements
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.slots import count_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Add

#: files of one statement: more are written by COPY
MOST_FILES: Final = 32
#: what the statement itself puts into each file's row
_GIVEN: Final = 3

_ASKED: Final = (
    *("bigint", "bigint", "text", "text", "bigint", "bigint", "text", "text", "bytea", "text", "boolean"),
    *("bigint", "bigint", "bigint", "bigint", "text"),
)
_LEVEL: Final = ("bigint",) * 6
_TYPES: Final = {
    **dict.fromkeys((*MAIN_COLUMNS, *SIDE_COLUMNS), "bigint"),
    **dict.fromkeys(("path", "dv_id", "p0", "p1", "p2", "p3", *SIDE_COLUMNS), "text"),
    **dict.fromkeys(("base_row_id", "default_row_commit_version"), "bigint"),
    **dict.fromkeys(("k0", "k1", "k2", "k3"), "smallint"),
    **dict.fromkeys(("tombstone", "data_change"), "boolean"),
}


@dataclass(frozen=True, slots=True)
class BlindAppend:
    """New files for one table, and what has to be so still when its head is held.

    Attributes:
        table: The table, by the name and location that it must have.
        read_version: The version whose schema and protocol the files were written for.
        seen_version: A version that the log holds: the head must not be before it.
        shape: The assignment of slots that the rows are made for.
        info: The commitInfo's JSON behind its time, which comes first.
        rest: The other lines of the commit.
        operation: The operation's name.
        adds: The files.
    """

    table: Table
    read_version: int
    seen_version: int
    shape: str
    info: str
    rest: bytes
    operation: str | None
    adds: Sequence[Add]

    def data(self, timestamp: int) -> bytes:
        """The commit's bytes at a time: just what the statement makes of it."""
        return f'{{"commitInfo":{{"timestamp":{timestamp}{self.info}}}\n'.encode() + self.rest


class Ratified(NamedTuple):
    """What an append became, and how its table's publishing stands.

    Attributes:
        version: Its version.
        timestamp: Its time.
        previous_sha256: The digest of the previous version's bytes, if it is known.
        predecessors_published: Whether all earlier versions were recorded as published.
        paused: Publishing is paused by now.
    """

    version: int
    timestamp: int
    previous_sha256: str | None
    predecessors_published: bool
    paused: bool


def known_shape(database: Database, table_id: int) -> str | None:
    """The assignment of slots that this process last saw of a table, if its encoder is cached."""
    return slots.known_shape(database.engine, table_id)


def ratify_appends(database: Database, appends: Sequence[BlindAppend], txn: str) -> list[Ratified] | None:
    """Ratify appends to several tables, all or none, by one statement.

    Returns:
        What they became, in the order given; None if a table is not as its writer saw it, and nothing
        happened.
    """
    asked: list[Any] = []
    mains: list[list[Any]] = []
    sides: list[list[Any]] = []
    levels: list[Any] = []
    for number, append in enumerate(appends):
        encoder = slots.known_encoder(append.shape)
        if encoder is None:
            return None
        encoded = [encoder.encode(add) for add in append.adds]
        counted = [row[0] for row in encoded if row[0] is not None]
        details = {"operation": append.operation, "added": len(encoded), "removed": 0, "origin": "sql"}
        asked += (
            number,
            append.table.table_id,
            append.table.name,
            append.table.location,
            append.read_version,
            append.seen_version,
            append.shape,
            append.info,
            append.rest,
            append.operation,
            any(add.data_change for add in append.adds),
            len(encoded),
            sum(add.size for add in append.adds),
            sum(counted),
            len(encoded) - len(counted),
            encode_json(details),
        )
        for place, (add, row) in enumerate(zip(append.adds, encoded, strict=True)):
            mains.append([number, place, *main_row(add, row)])
            sides.append([number, place, *side_row(add)])
        for level in count_levels(encoded):
            levels += (number, *level)
    main, mains_used = _used(MAIN_COLUMNS[_GIVEN:], mains)
    side, sides_used = _used(SIDE_COLUMNS, sides)
    sql = _statement(database.dialect.name, len(appends), len(mains), main, side, len(levels) // len(_LEVEL))
    actor = audit.actor()
    values = [*asked, *mains_used, *sides_used, *levels, txn, actor, actor, txn, txn, actor]
    ids = [append.table.table_id for append in appends]
    # queried last: an append that waited for a lock would not see a pause that began meanwhile
    pauses = (database.sql("outbox", "paused").expand(len(ids)), ids)
    with database.read() as session:  # the statement is a transaction by itself
        rows, paused = session.run_alone(sql, values, pauses)
    held = {row[0] for row in paused}
    return [
        Ratified(version, timestamp, previous_sha256, published, table_id in held)
        for table_id, (version, timestamp, previous_sha256, published) in zip(ids, rows, strict=False)
    ] or None


def _used(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[tuple[str, ...], list[Any]]:
    """The columns that any row has a value for, and those values row by row: most slots are empty."""
    # two numbers lead each row
    kept = [at for at, some in enumerate(zip(*rows, strict=True)) if some.count(None) < len(some)]
    return tuple(columns[at - 2] for at in kept[2:]), [row[at] for row in rows for at in kept]


@lru_cache(maxsize=64)
def _statement(
    engine: str, tables: int, files: int, main: tuple[str, ...], side: tuple[str, ...], levels: int
) -> Statement:
    template = statements("appends", engine)["ratify"]
    numbers = ("bigint", "bigint")
    sql = template.sql.format(
        asked=_values(_ASKED, tables),
        files=_values((*numbers, *(_TYPES[c] for c in main)), files),
        side=_values((*numbers, *(_TYPES[c] for c in side)), files),
        levels=_values(_LEVEL, levels),
        main_columns=", ".join(main),
        main_values=", ".join(f"f.{c}" for c in main),
        side_columns=", ".join(side),
        side_values=", ".join(f"f.{c}" for c in side),
    )
    return Statement(template.name, sql)


def _values(types: Sequence[str], rows: int) -> str:
    """Placeholders with their types: the server cannot guess those of values that are null."""
    row = f"({', '.join(f'?::{kind}' for kind in types)})"
    return ", ".join([row] * rows)
