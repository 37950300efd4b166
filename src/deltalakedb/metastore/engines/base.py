"""The interface of a database engine: sessions, transactions, bulk inserts, Arrow results, dialect."""

from __future__ import annotations

import abc
import os
import re
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa
from arro3.core import Array, DataType

from deltalakedb import telemetry
from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogBusyError,
    CatalogCorruptError,
    CatalogFullError,
    CatalogNotFoundError,
    commit_interrupted,
)
from deltalakedb.metastore.statements import Statement, statements
from deltalakedb.metastore.user_sql import QUERY_WORDS, first_word, not_a_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalakedb.address import Address
    from deltalakedb.exceptions import CatalogEncodingError, DeltaSqlError
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.pool import ForkGate
    from deltalakedb.settings import Config

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = "Sequence[Sequence[Any]]"
#: functions of this room take a `Database`, which opens a session for each call, or the `Session` of the
#: caller, so that the same function also serves a caller that is inside a transaction
SessionSource: TypeAlias = "Database | Session"


class Note(NamedTuple):
    """A range of versions of a table that is in the log."""

    oldest: int
    newest: int
    noted_at: int


#: this many rows of one kind are written at once instead of being deferred
_MAX_DEFERRED: Final = 64
_TABLE: Final = re.compile(r"\bdl_\w+")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between engines. Code checks these attributes, never the engine's name."""

    name: str
    #: tokens that migrations use: types and generated ids
    tokens: dict[str, str]
    #: has keys and B-tree indexes
    indexed: bool
    #: a query for the ids in one parameter, which `Session.id_list` makes
    ids: str
    #: an aggregate that joins a column by line feeds; None if the driver returns Arrow
    join: str | None = None
    #: appended to the query that locks heads
    lock_rows: str = ""
    #: only one process has the database open: no other one changes it between a commit and its publishing
    exclusive: bool = False
    #: a blind append is one statement, so that no head stays locked during round trips to the client
    fast_append: bool = False
    #: statements to run before and after a bulk load, outside of a transaction
    before_load: tuple[str, ...] = ()
    after_load: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Durability:
    """Whether an acknowledged commit survives a power cut."""

    safe: bool
    detail: str
    suggestion: str | None = None


class RowChange(NamedTuple):
    """A statement that changes one row per parameter set. Inserts have columns; updates by key also a key."""

    table: str
    sql: str
    columns: tuple[str, ...] = ()
    key: str | None = None

    def may_precede(self, other: RowChange) -> bool:
        """Whether an insert may move before an update by key of the same table without another result."""
        return bool(self.columns) and self.key is None and other.key is not None


class Session(abc.ABC):
    """A connection that is checked out for one piece of work. SQL has ``?`` placeholders on every engine.

    Inside a transaction, inserts and updates are deferred until a query runs or the transaction ends, so that
    those of one kind are written together. Changes of one table keep their order.
    """

    engine: Engine

    def __init__(self, engine: Engine, *, defers: bool = False) -> None:
        self.engine = engine
        self._defers = defers
        #: deferred changes by table, in the order to write them; later changes of a table are in later groups
        self._groups: list[dict[str, tuple[RowChange, list[Sequence[Any]]]]] = []

    @property
    def dialect(self) -> Dialect:
        return self.engine.dialect

    def sql(self, noun: str, name: str) -> Statement:
        """A named statement in this engine's form."""
        return statements(noun, self.engine.dialect.name)[name]

    def all_sql(self, noun: str, prefix: str) -> list[Statement]:
        """The statements whose names begin with ``prefix`` that this engine has, in order."""
        found = statements(noun, self.engine.dialect.name)
        return [statement for name, statement in found.items() if name.startswith(prefix)]

    def read(self) -> AbstractContextManager[Self]:
        """This session, for functions that take a `SessionSource`."""
        return nullcontext(self)

    #: the caller's transaction continues
    write = relaxed_write = read

    @abc.abstractmethod
    def _execute(self, sql: str, params: Sequence[Any]) -> Any:
        """Run a statement and return the driver's cursor."""

    @abc.abstractmethod
    def _write(self, change: RowChange, rows: Rows) -> None:
        """Run a change for some rows now, in the engine's fastest way."""

    @abc.abstractmethod
    def insert_arrow(self, table: str, data: pa.Table) -> None:
        """Insert the rows of an Arrow table whose columns are integers, booleans and texts."""

    def arrow(self, statement: Statement | str, params: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """The result as an Arrow table of the given schema, which names the query's columns in order."""
        return rows_to_arrow(self.blobs(statement, params), schema)

    def arrow_page(self, sql: str, params: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Like `arrow`, for many rows of texts and numbers without nulls.

        The database joins the values of a column: drivers take longer to return each by itself.
        """
        if self.dialect.join is not None:
            columns = ", ".join(self.dialect.join.format(name) for name in schema.names)
            row = self.row(f"SELECT count(*), {columns} FROM ({sql}) q", params)  # noqa: S608 - names of ours
            if row is not None and (found := _split(row[0], row[1:], schema)) is not None:
                return found
        return self.arrow(sql, params, schema)

    def id_list(self, ids: list[int]) -> Any:
        """Ids as the one parameter of ``Dialect.ids``."""
        return ids

    def run(self, statement: Statement | str, params: Sequence[Any] = ()) -> int:
        """Run a statement now; return how many rows it changed, or -1 if that is not known."""
        return int(self._call(statement, params).rowcount)

    def rows(self, statement: Statement | str, params: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query."""
        return list(self._call(statement, params).fetchall())

    def blobs(self, statement: Statement | str, params: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query of ours that returns many rows or long binary values."""
        return self.rows(statement, params)

    def row(self, statement: Statement | str, params: Sequence[Any] = ()) -> Row | None:
        """The first row of a query, or None."""
        found = self._call(statement, params).fetchone()
        return None if found is None else tuple(found)

    def query(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        """The result of a user's query, with its column names and inferred types."""
        self._check_query(sql)
        cursor = self._call(sql, params)
        names = [d[0] for d in cursor.description or ()]
        columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
        return pa.table([pa.array(c) for c in columns], names=names)

    @abc.abstractmethod
    def run_user_sql(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run a user's own statement; none of ours may follow it in the same transaction.

        The database refuses statements that end the transaction, change its settings or change our tables.
        Other effects on the connection are undone when the transaction ends.
        """

    def _check_query(self, sql: str) -> None:
        """Refuse anything but a query: a COMMIT or a SET could end the read-only transaction."""
        if first_word(sql) not in QUERY_WORDS:
            raise not_a_query()

    def insert(self, table: str, columns: tuple[str, ...], rows: Rows) -> None:
        """Insert rows, in bulk if they are many."""
        self._collect(_insert_change(table, columns), rows)

    def update_rows(self, table: str, columns: tuple[str, ...], key: str, rows: Rows) -> None:
        """Set ``columns`` of many rows, each given as its new values followed by its key."""
        self._collect(_update_change(table, columns, key), rows)

    def update_many(self, statement: Statement, params: Rows) -> None:
        """Run a statement that changes one table for many parameter sets; no two may change the same row."""
        self._collect(_statement_change(statement.sql), params)

    def _collect(self, change: RowChange, rows: Rows) -> None:
        if not rows:
            return
        if not self._defers or len(rows) >= _MAX_DEFERRED:
            self.flush()
            self._write(change, rows)
            return
        after = 0
        for number, group in reversed(list(enumerate(self._groups, start=1))):
            if (found := group.get(change.table)) is None:
                continue
            known, waiting = found
            if known == change and change.columns:
                waiting += rows
                if change.key is not None:  # of several updates of a row, the last one counts
                    waiting[:] = {row[-1]: row for row in waiting}.values()
                if len(waiting) >= _MAX_DEFERRED:
                    self.flush()
                return
            after = max(after, number)
            if not change.may_precede(known):
                break
        if after == len(self._groups):
            self._groups.append({})
        self._groups[after][change.table] = (change, list(rows))

    def flush(self) -> None:
        """Write the deferred changes."""
        groups, self._groups = self._groups, []
        for group in groups:
            for change, rows in group.values():
                self._write(change, rows)

    def run_alone(
        self, statement: Statement, params: Sequence[Any], then: tuple[Statement, Sequence[Any]]
    ) -> tuple[list[Row], list[Row]]:
        """Run a statement as a transaction of its own, and the query ``then`` in the same round trip.

        The query runs after the statement has its locks, so it sees what was committed while that waited.

        Returns:
            The rows of both.

        Raises:
            CommitUnknownError: The connection broke, and the statement may have been committed.
        """
        raise NotImplementedError(f"{self.dialect.name} has no such statements")

    def now_ms(self) -> int:
        """The database's clock in epoch milliseconds; leases and commits use no other."""
        return time.time_ns() // 1_000_000

    def set_clock(self, now_ms: int) -> None:  # noqa: B027 - only servers have a clock of their own
        """Use a time that a query has returned for `now_ms`, which saves a round trip."""

    def _call(self, statement: Statement | str, params: Sequence[Any]) -> Any:
        if self._groups:
            self.flush()
        if telemetry.active():
            self._count(statement)
        return self._execute(str(statement), params)

    def _count(self, statement: Statement | str) -> None:
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
    def read_only(self, *, will_query: bool = False) -> AbstractContextManager[Session]:
        """A session on one database snapshot, in which the database itself refuses every change.

        ``will_query``: the caller opens tables at once, which takes the snapshot; else a query is run for
        that. The snapshot may then lack what is `postponed`.
        """

    def prepare(self, session: Session) -> None:  # noqa: B027 - a file is the schema
        """Called once inside a transaction before the catalog's schema is created or migrated."""

    @abc.abstractmethod
    def has_schema_table(self, session: Session) -> bool:
        """Whether the table ``dl_schema_version`` exists."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close every connection that is not in use."""

    def is_absent(self) -> bool:
        """Whether connecting would create the database, which only writers may do."""
        return False

    def keep_open(self) -> AbstractContextManager[object]:
        """Keep the database open between sessions, for work that relies on settings of the connection."""
        return nullcontext()

    def identity(self) -> object:
        """Identifies the database file, to notice that it was replaced; None if that is not needed."""
        return None

    def commit_write(self) -> AbstractContextManager[Session]:
        """A session like `write` for a commit, which respects `postponed` itself."""
        return self.write()

    def postpone(
        self,
        notes: Mapping[int, Note],  # noqa: ARG002 - most engines record at once
        record: Callable[[Session, Mapping[int, Note]], None],  # noqa: ARG002
    ) -> bool:
        """Keep notes of published versions in memory until another session begins or the database is closed.

        They may be lost. Returns False if the engine does not do that: record them now.
        """
        return False

    def postponed(self) -> Mapping[int, Note]:
        """The notes that `postpone` keeps, by table id."""
        return {}

    def relaxed_write(self) -> AbstractContextManager[Session]:
        """A session for records that can be rebuilt: a power cut may lose them, and statements may run twice.

        Each statement may be a transaction by itself.
        """
        return self.write()

    def durability(self) -> Durability:
        """Whether an acknowledged commit survives a power cut, by the database's own settings."""
        return Durability(True, "every commit is flushed to disk")

    def encoding_error(self) -> CatalogEncodingError | None:
        """Why the database cannot store all text; None if it can."""
        return None


class FileEngine(Engine):
    """A catalog in one file. Forks wait until no thread uses it."""

    #: the driver's errors
    errors: type[Exception]
    #: translated errors of a COMMIT after which it is certain that nothing was committed
    rollback_errors: tuple[type[DeltaSqlError], ...] = (CatalogBusyError, CatalogFullError)
    _gate: ForkGate

    def __init__(self, address: Address, config: Config) -> None:
        super().__init__(address, config)
        self.path = Path(address.resolved().path or "")
        self.options = address.driver_options()

    def is_absent(self) -> bool:
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            raise CatalogAccessError(
                f"cannot access {self.path}: {os.strerror(error.errno or 0)}",
                suggestion="check the rights of the file and of the folders above it",
            ) from error
        return False

    def _prepare_file(self, example: str) -> bool:
        """Check the path before the file is opened, and create its folder; return whether the file exists."""
        if os.path.isdir(self.path):  # noqa: PTH112 - False without rights, which is reported below
            raise CatalogCorruptError(
                f"{self.path} is a folder, not a database file",
                suggestion=f"end the address in a file name, for example …/{example}",
            )
        if not self.is_absent():
            return True
        if not self.config.catalog.create:
            raise CatalogNotFoundError(
                f"there is no catalog at {self.path}, and catalog.create is off",
                suggestion=f"create it with `deltasql init '{self.address.catalog.to_uri()}'`, or set "
                "DELTASQL_CATALOG__CREATE=true",
            )
        self._make_folder()
        return False

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CatalogAccessError(
                f"cannot create the catalog's folder {self.path.parent}: {os.strerror(error.errno or 0)}",
                suggestion="check the path and its rights",
            ) from error

    @abc.abstractmethod
    def translate(self, error: Exception) -> DeltaSqlError:
        """Translate a driver's error into ours."""

    def _damaged(self, engine: str, detail: str) -> CatalogCorruptError:
        return CatalogCorruptError(
            f"{self.path} is damaged or is not a {engine} database ({detail})",
            suggestion="check the address; restore the file from a backup if it was a catalog",
        )

    def _full(self) -> CatalogFullError:
        return CatalogFullError(
            f"no space left for {self.path}", suggestion="free some space; nothing was lost"
        )

    def _in_transaction(self, connection: Any) -> bool:  # noqa: ARG002 - not every driver reports it
        """Whether a transaction is still open after a failed COMMIT."""
        return False

    @contextmanager
    def _transaction(self, connection: Any, begin: str, *, reads: bool = False) -> Iterator[None]:
        try:
            connection.execute(begin)
            yield
        except BaseException as error:
            with suppress(self.errors):
                connection.execute("ROLLBACK")
            if isinstance(error, self.errors):
                raise self.translate(error) from error
            raise
        try:
            connection.execute("COMMIT")
        except Exception as error:
            not_committed = reads or self._in_transaction(connection)
            with suppress(self.errors, RuntimeError):
                connection.execute("ROLLBACK")
            if not isinstance(error, self.errors):
                if reads:
                    raise
                # after Ctrl-C DuckDB raises a RuntimeError, although the commit succeeded
                raise commit_interrupted(error) from error
            ours = self.translate(error)
            # after a failed flush the commit may be in the file, and come back when the file is opened again
            if not_committed or isinstance(ours, self.rollback_errors):
                raise ours from error
            raise commit_interrupted(error, by_database=True) from error


@lru_cache(maxsize=64)
def _insert_change(table: str, columns: tuple[str, ...]) -> RowChange:
    marks = ", ".join("?" * len(columns))
    return RowChange(table, f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", columns)  # noqa: S608


@lru_cache(maxsize=64)
def _update_change(table: str, columns: tuple[str, ...], key: str) -> RowChange:
    values = ", ".join(f"{column} = ?" for column in columns)
    return RowChange(table, f"UPDATE {table} SET {values} WHERE {key} = ?", columns, key)  # noqa: S608


@lru_cache(maxsize=64)
def _statement_change(sql: str) -> RowChange:
    found = _TABLE.search(sql)
    return RowChange(found[0] if found else "", sql)


def _split(count: int, joined: Sequence[str | None], schema: pa.Schema) -> pa.Table | None:
    """Columns whose values are joined by line feeds; None if a value has one itself."""
    arrays = []
    for text, field in zip(joined, schema, strict=True):
        if not pa.types.is_string(field.type):
            numbers = np.fromstring(text or "", np.int64, sep=" ")
            if len(numbers) != count:
                return None
            buffers: list[Any] = [None, pa.py_buffer(numbers)]
        else:
            data = (text or "").encode()
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED)
            if len(ends) != max(count - 1, 0):
                return None
            offsets = np.zeros(count + 1, np.int32)
            offsets[1:] = np.append(ends, len(data))[:count] - np.arange(count)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))]
        arrays.append(pa.Array.from_buffers(field.type, count, buffers))
    return pa.table(arrays, schema=schema)


_LINE_FEED: Final = ord("\n")


def rows_to_arrow(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """Convert rows of a driver without Arrow support into a table."""
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
