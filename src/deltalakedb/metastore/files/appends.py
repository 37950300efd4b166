"""Blind appends as rows that are ready before any lock: one statement gives them version, time and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltalakedb.metastore import audit
from deltalakedb.metastore.files.rows import COLUMNS, Counts, details_of, file_values
from deltalakedb.metastore.statements import Statement, statements
from deltalakedb.protocol.json_text import encode_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Add

#: files of one statement: more are written by COPY
MOST_FILES: Final = 32

_ASKED: Final = (
    *("bigint", "bigint", "text", "text", "bigint", "bigint", "text", "bytea", "text", "boolean"),
    *("bigint", "bigint", "bigint", "bigint", "text"),
)
#: number of the append and place in it; size, time, rows, data change, path, vector, partition, stats
_FILE: Final = (
    *("bigint", "bigint", "bigint", "bigint", "bigint", "boolean", "text", "text", "text", "text"),
)
#: the versions and the time of removal come from the statement
_GIVEN: Final = COLUMNS.get_field_index("size")
_RECORDS: Final = COLUMNS.get_field_index("num_records")
_DETAIL: Final = ("bigint", "bigint", "text", "text")


@dataclass(frozen=True, slots=True)
class BlindAppend:
    """New files for one table, and what has to be so still when its head is held.

    Attributes:
        table: The table, by the name and location that it must have.
        read_version: The version whose schema and protocol the files were written for.
        seen_version: A version that the log holds: the head must not be before it.
        info: The commitInfo's JSON behind its time, which comes first.
        rest: The other lines of the commit.
        operation: The operation's name.
        adds: The files.
    """

    table: Table
    read_version: int
    seen_version: int
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


def ratify_appends(database: Database, appends: Sequence[BlindAppend], txn: str) -> list[Ratified] | None:
    """Ratify appends to several tables, all or none, by one statement.

    Returns:
        What they became, in the order given; None if a table is not as its writer saw it, and nothing
        happened.
    """
    asked: list[Any] = []
    files: list[Any] = []
    details: list[Any] = []
    for number, append in enumerate(appends):
        rows = [file_values(append.read_version, add) for add in append.adds]
        counts = Counts()
        for place, (add, row) in enumerate(zip(append.adds, rows, strict=True)):
            files += (number, place, *row[_GIVEN:], add.stats)
            if any(rare := details_of(add)):
                details += (number, place, *rare)
            counts.change(1, add.size, row[_RECORDS])
        recorded = {"operation": append.operation, "added": len(rows), "removed": 0, "origin": "sql"}
        asked += (
            number,
            append.table.table_id,
            append.table.name,
            append.table.location,
            append.read_version,
            append.seen_version,
            append.info,
            append.rest,
            append.operation,
            any(add.data_change for add in append.adds),
            counts.num_files,
            counts.size_bytes,
            counts.num_records,
            counts.files_without_count,
            encode_json(recorded),
        )
    sql = _statement(
        database.dialect.name, len(appends), len(files) // len(_FILE), len(details) // len(_DETAIL)
    )
    actor = audit.actor()
    values = [*asked, *files, *details, txn, actor, actor, txn, txn, actor]
    ids = [append.table.table_id for append in appends]
    # queried last: an append that waited for a lock would not see a pause that began meanwhile
    pauses = (database.sql("outbox", "paused").expand(len(ids)), ids)
    with database.read() as session:  # the statement is a transaction by itself
        done, paused = session.run_alone(sql, values, pauses)
    held = {row[0] for row in paused}
    return [
        Ratified(version, timestamp, previous_sha256, published, table_id in held)
        for table_id, (version, timestamp, previous_sha256, published) in zip(ids, done, strict=False)
    ] or None


@lru_cache(maxsize=64)
def _statement(engine: str, tables: int, files: int, details: int) -> Statement:
    template = statements("appends", engine)["ratify"]
    nothing = f"SELECT {', '.join(f'NULL::{kind}' for kind in _DETAIL)} WHERE FALSE"
    sql = template.sql.format(
        asked=_values(_ASKED, tables),
        files=_values(_FILE, files),
        details=f"VALUES {_values(_DETAIL, details)}" if details else nothing,
    )
    return Statement(template.name, sql)


def _values(types: Sequence[str], rows: int) -> str:
    """Placeholders with their types: the server cannot guess those of values that are null."""
    row = f"({', '.join(f'?::{kind}' for kind in types)})"
    return ", ".join([row] * rows)
