"""Interface of an engine: sessions for reading and writing, bulk inserts, Arrow, and its facts."""

from __future__ import annotations

import abc
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self, TypeAlias

import pyarrow as pa
from arro3.core import Array, DataType

from deltalakedb import telemetry
from deltalakedb.exceptions import CatalogAccessError, CatalogCorruptError, CatalogNotFoundError
from deltalakedb.metastore.statements import statements
from deltalakedb.metastore.user_sql import QUESTIONS, first_word, no_question

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from deltalakedb.address import Address
    from deltalakedb.exceptions import CatalogEncodingError
    from deltalakedb.metastore.statements import Statement
    from deltalakedb.settings import Config

Row: TypeAlias = tuple[Any, ...]


#: tokens of the schema for keys, for engines that have them
KEYS: Final = {
    "pk": " PRIMARY KEY",
    "unique": " UNIQUE",
    "pk_commits": ",\n  PRIMARY KEY (table_id, version)",
    "pk_interval": ",\n  PRIMARY KEY (table_id, add_version)",
    "pk_txns": ",\n  PRIMARY KEY (table_id, app_id, add_version)",
    "pk_domains": ",\n  PRIMARY KEY (table_id, domain, add_version)",
    "pk_slots": ",\n  PRIMARY KEY (table_id, kind, slot, since_version)",
    "pk_levels": ",\n  PRIMARY KEY (table_id, slot, level)",
    "pk_batches": ",\n  PRIMARY KEY (import_id, batch)",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """An engine's facts, read as attributes and never asked by name."""

    name: str
    #: tokens that migrations use: types, keys, generated ids
    tokens: Mapping[str, str]
    #: B-tree indexes exist and planning should drive them
    indexed: bool
    #: raw JSON of files is in ``dl_file_json`` rather than in ``dl_files``
    side_table: bool
    #: appended to the query that locks heads
    lock_rows: str
    #: SQL has md5, so that digests are computed by the database
    sql_md5: bool
    #: a blind append is one statement, since a head must not be locked while a client is waited for
    at_once: bool = False
    #: every execution is planned again: one statement for many rows beats one run for each
    no_plan_cache: bool = False
    #: what is run before many rows are loaded, and after it, outside of a transaction
    before_load: tuple[str, ...] = ()
    after_load: tuple[str, ...] = ()
    #: what is run inside the transaction that builds indexes over many rows, before and after it
    before_index: tuple[str, ...] = ()
    after_index: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Durability:
    """Whether an acknowledged commit survives a power cut."""

    safe: bool
    detail: str
    suggestion: str | None = None


class SessionSource(Protocol):
    """A `Database`, which opens a session for each call, or a `Session` that is open already.

    Functions of this room take one, so that the same function serves a caller that only has the catalog and
    one that is inside a transaction.
    """

    @property
    def dialect(self) -> Dialect:
        """The engine's facts."""

    def sql(self, noun: str, name: str) -> Statement:
        """A named statement in this engine's form."""

    def rows(self, statement: Statement | str, params: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query."""

    def row(self, statement: Statement | str, params: Sequence[Any] = ()) -> Row | None:
        """The first row of a query, or None."""

    def read(self) -> AbstractContextManager[Session]:
        """A session for several queries."""

    def write(self) -> AbstractContextManager[Session]:
        """A session inside one transaction."""

    def relaxed_write(self) -> AbstractContextManager[Session]:
        """A session inside a transaction that a power cut may undo."""


class Session(abc.ABC):
    """One connection, lent for one piece of work. SQL has ``?`` placeholders on every engine."""

    engine: Engine

    @property
    def dialect(self) -> Dialect:
        """The engine's facts."""
        return self.engine.dialect

    def sql(self, noun: str, name: str) -> Statement:
        """A named statement in this engine's form."""
        return statements(noun, self.engine.dialect.name)[name]

    def read(self) -> AbstractContextManager[Self]:
        """This session, for functions that take a `SessionSource`."""
        return nullcontext(self)

    def write(self) -> AbstractContextManager[Self]:
        """This session: the caller's transaction goes on."""
        return nullcontext(self)

    def relaxed_write(self) -> AbstractContextManager[Self]:
        """This session: the caller's transaction goes on."""
        return nullcontext(self)

    @abc.abstractmethod
    def _execute(self, sql: str, params: Sequence[Any]) -> Any:
        """Run a statement and return the driver's cursor."""

    @abc.abstractmethod
    def arrow(self, statement: Statement | str, params: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """The result as an Arrow table of the given schema, which names the query's columns in order."""

    @abc.abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert many rows by the engine's fastest way."""

    @abc.abstractmethod
    def insert_arrow(self, table: str, data: pa.Table, constants: Mapping[str, int | bool | str]) -> None:
        """Insert many rows that come as columns, and columns that are the same for all of them."""

    def run(self, statement: Statement | str, params: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows it touched, or -1 if the driver does not report it."""
        return int(self._call(statement, params).rowcount)

    def rows(self, statement: Statement | str, params: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query."""
        return list(self._call(statement, params).fetchall())

    def row(self, statement: Statement | str, params: Sequence[Any] = ()) -> Row | None:
        """The first row of a query, or None."""
        found = self._call(statement, params).fetchone()
        return None if found is None else tuple(found)

    def query(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        """The result of a user's query, with the columns' names and inferred types."""
        self._check_query(sql)
        cursor = self._call(sql, params)
        names = [d[0] for d in cursor.description or ()]
        columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
        return pa.table([pa.array(c) for c in columns], names=names)

    def run_own(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run a user's own statement; none of ours may follow it in the same transaction.

        The database refuses what would end the transaction, change its settings or change our tables. What
        else it leaves behind on the connection ends with the transaction.
        """
        self.run(sql, params)

    def _check_query(self, sql: str) -> None:
        """Refuse what is no query: a COMMIT or a setting would lead out of the read-only session."""
        if first_word(sql) not in QUESTIONS:
            raise no_question()

    def update_many(self, statement: Statement | str, params: Iterable[Sequence[Any]]) -> None:
        """Run one statement for many parameter sets."""
        for one in params:
            self._call(statement, one)

    def update_rows(
        self, table: str, columns: Sequence[str], key: str, rows: Sequence[Sequence[Any]]
    ) -> None:
        """Set ``columns`` of many rows, each given as its new values followed by its key."""
        self.update_many(update_by_key(table, columns, key), rows)

    def batch(self, rows: int) -> AbstractContextManager[None]:  # noqa: ARG002 - engines with a wire care
        """Statements whose results are not needed: sent together if that saves round trips.

        Args:
            rows: How many rows will be written at the most.
        """
        return nullcontext()

    def barrier(self) -> None:  # noqa: B027 - only sessions that collect changes care
        """What follows in a batch may change rows that what came before in it has changed."""

    def now_ms(self) -> int:
        """The database's clock in epoch milliseconds: the only one that leases and commits go by."""
        return time.time_ns() // 1_000_000

    def take_time(self, now_ms: int) -> None:  # noqa: B027 - only servers have a clock of their own
        """Take the database's time from an answer that brought it along."""

    def _call(self, statement: Statement | str, params: Sequence[Any]) -> Any:
        self._count(statement)
        return self._execute(str(statement), params)

    def _count(self, statement: Statement | str) -> None:
        if telemetry.active():
            label = getattr(statement, "name", "built")
            telemetry.emit("sql_statement", 1, engine=self.engine.dialect.name, statement=label)


class Engine(abc.ABC):
    """A database that can hold a catalog. Thread-safe; survives a fork by opening new connections."""

    dialect: ClassVar[Dialect]

    def __init__(self, address: Address, config: Config) -> None:
        self.address = address
        self.config = config

    @abc.abstractmethod
    def read(self) -> AbstractContextManager[Session]:
        """A session outside any transaction. Rows of a ratified version never change, so reads need none."""

    @abc.abstractmethod
    def write(self) -> AbstractContextManager[Session]:
        """A session inside one transaction: committed on a clean exit, rolled back otherwise."""

    @abc.abstractmethod
    def read_only(self, *, asking: bool = False) -> AbstractContextManager[Session]:
        """A session that sees one moment, and in which the database itself refuses every change.

        Args:
            asking: The caller runs a query at once: the moment need not be fixed by another one.
        """

    @abc.abstractmethod
    def prepare(self, session: Session) -> None:
        """Called once inside a transaction before the catalog's schema is created or migrated."""

    @abc.abstractmethod
    def has_schema_table(self, session: Session) -> bool:
        """Whether ``dl_schema_version`` is there."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back every connection."""

    def change(
        self, statement: Statement, params: Sequence[Any], then: tuple[Statement, Sequence[Any]]
    ) -> tuple[list[Row], list[Row]]:
        """Run a statement that is a transaction by itself, and a query in the same round trip.

        Args:
            statement: The change.
            params: Its parameters.
            then: A query and its parameters: run once the change has the locks that it waits for.

        Returns:
            The rows of both.

        Raises:
            CommitUnknownError: The connection broke, and it may have happened.
        """
        raise NotImplementedError(f"{self.dialect.name} does nothing at once")

    def is_absent(self) -> bool:
        """Whether connecting would create the database, which only writers may do."""
        return False

    def kept_open(self) -> AbstractContextManager[object]:
        """Keep the connection open whose settings a long piece of work relies on."""
        return nullcontext()

    def identity(self) -> object:
        """What identifies the database, if it could be deleted or replaced while a process has it open."""
        return None

    def relaxed_write(self) -> AbstractContextManager[Session]:
        """A transaction that a power cut may lose, for notes that can be found out again."""
        return self.write()

    def durability(self) -> Durability:
        """Whether an acknowledged commit survives a power cut, by the database's own settings."""
        return Durability(True, "every commit is flushed to disk")

    def encoding_trouble(self) -> CatalogEncodingError | None:
        """Why the database cannot store all text; None if it can."""
        return None


def is_there(path: Path) -> bool:
    """Whether there is a database file; CatalogAccessError if that cannot be seen."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CatalogAccessError(
            f"cannot look at {path}: {os.strerror(error.errno or 0)}",
            suggestion="check the rights of the file and of the folders above it",
        ) from error
    return True


def prepare_file(path: Path, example: str, *, create: bool) -> bool:
    """Check the place of a database file before it is opened; whether there is a file.

    Args:
        path: The file. The folders above it are created if there is none.
        example: A file name, for the message.
        create: Whether the settings allow a new catalog.
    """
    if os.path.isdir(path):  # noqa: PTH112 - False without rights, which is reported below
        raise CatalogCorruptError(
            f"{path} is a folder, not a database file",
            suggestion=f"end the address in a file name, for example …/{example}",
        )
    if is_there(path):
        return True
    if not create:
        raise CatalogNotFoundError(
            f"there is no catalog at {path}, and catalog.create is off",
            suggestion="create it with `deltasql migrate`, or set DELTASQL_CATALOG__CREATE=true",
        )
    make_folder(path.parent)
    return False


def make_folder(folder: Path) -> None:
    """Create a catalog's folder; CatalogAccessError if that is not allowed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CatalogAccessError(
            f"cannot create the catalog's folder {folder}: {os.strerror(error.errno or 0)}",
            suggestion="check the path and its rights",
        ) from error


def update_by_key(table: str, columns: Sequence[str], key: str) -> str:
    """An UPDATE of some columns of the row with a key."""
    return f"UPDATE {table} SET {', '.join(f'{c} = ?' for c in columns)} WHERE {key} = ?"  # noqa: S608


def rows_to_arrow(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """Rows of a driver without Arrow support as a table."""
    arrays = []
    for position, field in enumerate(schema):
        # column by column: zip(*rows) makes an iterator of every row, which costs six times as much
        column = list(map(itemgetter(position), rows))
        if pa.types.is_boolean(field.type):  # SQLite has no booleans
            column = [None if v is None else bool(v) for v in column]
        arrays.append(arrow_array(column, field.type))
    return pa.table(arrays, schema=schema)


def arrow_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values as an Arrow array. ``pa.array`` would first import pandas, which takes a second."""
    return pa.array(Array(values, DataType.from_arrow(kind)))


def literal(value: int | bool | str) -> str:
    """A constant of ours as SQL spells it."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return str(int(value)) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
