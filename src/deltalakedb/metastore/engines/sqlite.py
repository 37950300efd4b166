"""SQLite: one file, WAL, full durability; readers never wait, writers queue."""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import threading
import time
import weakref
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogBusyError,
    CatalogCorruptError,
    CatalogError,
    DeltaSqlError,
)
from deltalakedb.metastore.engines.base import Dialect, Durability, FileEngine, Session
from deltalakedb.metastore.engines.pool import ForkGate, Pool
from deltalakedb.metastore.user_sql import interferes, is_ours, not_a_query, protected_table
from deltalakedb.protocol.json_text import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from deltalakedb.address import Address
    from deltalakedb.metastore.engines.base import RowChange, Rows
    from deltalakedb.settings import Config

DIALECT = Dialect(
    name="sqlite",
    tokens={
        "ctext": "TEXT",
        "bigint": "INTEGER",
        "blob": "BLOB",
        "file_id": "INTEGER PRIMARY KEY",
        "auto_table_id": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "auto_audit_id": "INTEGER PRIMARY KEY AUTOINCREMENT",
    },
    indexed=True,
    ids="SELECT value FROM json_each(?)",
    join="group_concat({}, '\n')",  # char(10) would be called for every row
)

#: page cache of a connection
_CACHE_KB = 16_384
#: maximum pause before the switch to WAL is tried again
_WAL_RETRY_S = 0.01
#: rows of one INSERT of a bulk load, which takes a quarter less time than row by row
_ROWS_TOGETHER = 100
#: and rows whose values are Python objects at once, a multiple of that
_ROWS_AS_VALUES = 8_000
#: values of ``synchronous`` at which every commit is flushed to disk
_FLUSHED = ("FULL", "EXTRA", "2", "3")
#: bytes of the smallest database
_SMALLEST = 512
#: primary result codes by the kind of error
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_ACCESS = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN}

#: actions of the authorizer that only read
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
#: pragmas that only report something; they are tables too, as pragma_table_info('t')
_REPORTING = {
    "foreign_key_list", "function_list", "index_info", "index_list", "index_xinfo", "table_info",
    "table_list", "table_xinfo",
}  # fmt: skip
_OUTSIDE = {
    sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ANALYZE, sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_PRAGMA,
}  # fmt: skip
_OUR_NAMES = "SELECT name FROM main.sqlite_master WHERE lower(substr(name, 1, 3)) = 'dl_' ORDER BY name"
_ROWS = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}


class _Authorizer:
    """SQLite's authorizer for a user's query, or for a user's statement inside a commit.

    Args:
        query: Allow only reads.
    """

    def __init__(self, *, query: bool) -> None:
        self._query = query
        self.denied = False
        #: whether access to one of the catalog's own tables was denied
        self.ours = False
        self._defines = False

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        allowed = self._may_read(action, first, second) or (
            not self._query and action not in _OUTSIDE | _READING and self._may_change(action, first, second)
        )
        self.denied = self.denied or not allowed
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _may_read(self, action: int, first: str | None, second: str | None) -> bool:
        if action == sqlite3.SQLITE_PRAGMA:
            return (first or "").lower() in _REPORTING
        if action == sqlite3.SQLITE_UPDATE and first == "sqlite_master" and self._query:
            # reported when a connection first uses a table function such as json_each();
            # SQLite itself refuses statements that change its schema table
            return True
        return action in _READING and (second or "").lower() != "load_extension"

    def _may_change(self, action: int, first: str | None, second: str | None) -> bool:
        # names come first, or second for indexes and triggers and what ALTER TABLE renames
        if is_ours(first) or is_ours(second):
            self.ours = True
            return False
        self._defines = self._defines or action in (sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_ALTER_TABLE)
        if action in _ROWS and (first or "").lower().startswith("sqlite_"):
            # SQLite protects its schema tables itself. Its other tables have rows of the catalog's tables
            # too; DROP TABLE and ALTER TABLE change only those of their table.
            schema = first in ("sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema")
            self.ours = not (schema or self._defines)
            return not self.ours
        return True


class SqliteSession(Session):
    """A connection to the file."""

    engine: SqliteEngine

    def __init__(self, engine: SqliteEngine, connection: sqlite3.Connection, *, defers: bool = False) -> None:
        super().__init__(engine, defers=defers)
        self._connection = connection
        #: whether a user's statements ran, which may leave temporary tables
        self.ran_user_sql = False

    def _execute(self, sql: str, params: Sequence[Any]) -> sqlite3.Cursor:
        try:
            return self._connection.execute(sql, params)
        except (sqlite3.Error, sqlite3.Warning) as error:  # Python 3.11 raises Warning for a second statement
            raise self.engine.translate(error) from error

    def query(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        self.flush()  # the rules are for the user's query alone
        # not for a whole session: SQLite would compile all statements of the connection again
        self.run("PRAGMA query_only = ON")
        try:
            with self._guarded(_Authorizer(query=True), not_a_query):
                return super().query(sql, params)
        finally:
            self.run("PRAGMA query_only = OFF")

    def run_user_sql(self, sql: str, params: Sequence[Any] = ()) -> None:
        self.ran_user_sql = True
        rules, before = _Authorizer(query=False), self.rows(_OUR_NAMES)
        with self._guarded(rules, lambda: protected_table() if rules.ours else interferes("this statement")):
            self.run(sql, params)
        if self.rows(_OUR_NAMES) != before:
            raise protected_table()  # the authorizer does not see what a table is renamed to

    @contextmanager
    def _guarded(self, rules: _Authorizer, refusal: Callable[[], DeltaSqlError]) -> Iterator[None]:
        self._connection.set_authorizer(rules)
        try:
            yield
        except CatalogError as error:
            raise refusal() if rules.denied else error from error.__cause__
        finally:
            self._connection.set_authorizer(None)

    def id_list(self, ids: list[int]) -> str:
        return encode_json(ids)

    def _write(self, change: RowChange, rows: Rows) -> None:
        self._run_many(change.sql, rows)

    def insert_arrow(self, table: str, data: pa.Table) -> None:
        self.flush()
        width = data.num_columns
        insert = f"INSERT INTO {table} ({', '.join(data.column_names)}) VALUES "  # noqa: S608
        marks = f"({', '.join('?' * width)})"
        step = width * _ROWS_TOGETHER
        for begin in range(0, data.num_rows, _ROWS_AS_VALUES):
            part = data.slice(begin, _ROWS_AS_VALUES)
            values: list[Any] = [None] * (width * part.num_rows)
            for at, column in enumerate(part.columns):
                values[at::width] = column.to_pylist()
            rest = len(values) - len(values) % step
            together = (values[at : at + step] for at in range(0, rest, step))
            self._run_many(insert + ", ".join([marks] * _ROWS_TOGETHER), together)
            single = (values[at : at + width] for at in range(rest, len(values), width))
            self._run_many(insert + marks, single)

    def _run_many(self, sql: str, params: Iterable[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(sql, params)
        except (sqlite3.Error, UnicodeError, OverflowError) as error:  # the last two: it cannot store a value
            raise self.engine.translate(error) from error


class SqliteEngine(FileEngine):
    """A catalog in a SQLite file."""

    dialect = DIALECT
    errors = sqlite3.Error

    def __init__(self, address: Address, config: Config) -> None:
        super().__init__(address, config)
        self._synchronous = str(self.options.get("synchronous", config.sqlite.synchronous)).upper()
        self._wait = float(self.options.get("busy_timeout", config.sqlite.busy_timeout_s))
        self._pool = Pool(self._connect, sqlite3.Connection.close, _is_alive, config.pool)
        self._gate = ForkGate(self.close, str(self.path))

    def identity(self) -> object:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - called before every use
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _connect(self) -> sqlite3.Connection:
        mode = "rwc" if self.config.catalog.create else "rw"
        exists = self._prepare_file("meta.db")
        if exists and not _may_be_sqlite(self.path):
            # SQLite treats a file of a few bytes as an empty database, and would overwrite it
            raise CatalogCorruptError(
                f"{self.path} is not a SQLite database",
                suggestion="check the address, or choose another file",
            )
        connection = None
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=self._wait,
                cached_statements=256,
            )
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            connection.execute("PRAGMA temp_store=MEMORY")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            self._use_wal(connection)
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self.translate(error) from error
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch a new file to WAL.

        The busy timeout does not apply here: if two processes switch at the same time, each has a lock that
        the other needs, and one of them fails at once.
        """
        until = time.monotonic() + self._wait
        while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > until:
                    raise
                time.sleep(random.uniform(0, _WAL_RETRY_S))  # noqa: S311 - so that they do not collide again
            else:
                return  # a file system without shared memory keeps its mode

    @contextmanager
    def read(self) -> Iterator[Session]:
        with self._gate.inside():
            connection = self._pool.take()
            try:
                yield SqliteSession(self, connection)
            finally:
                self._pool.give(connection)

    @contextmanager
    def read_only(self, *, will_query: bool = False) -> Iterator[Session]:
        with self.read() as session:
            session.run("BEGIN")
            if not will_query:
                session.row("SELECT 1 FROM dl_schema_version")  # the first read takes the snapshot
            try:
                yield session
            finally:
                session.run("ROLLBACK")

    def relaxed_write(self) -> AbstractContextManager[Session]:
        """A transaction that is not flushed; the next flushed commit writes it to disk, in order."""
        return self.write(relaxed=self._synchronous in _FLUSHED)

    @contextmanager
    def write(self, *, relaxed: bool = False) -> Iterator[Session]:
        """A transaction with ``BEGIN IMMEDIATE``, which takes the write lock before the first statement."""
        with self._writer_lock(), self._gate.inside():
            connection = self._pool.take()
            session = SqliteSession(self, connection, defers=True)
            restored = not relaxed
            try:
                if relaxed:
                    connection.execute("PRAGMA synchronous=NORMAL")
                with self._transaction(connection, "BEGIN IMMEDIATE"):
                    yield session
                    session.flush()
            finally:
                if relaxed and not connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute(f"PRAGMA synchronous={self._synchronous}")
                        restored = True
                if connection.in_transaction or not restored or session.ran_user_sql:
                    self._pool.discard(connection)
                else:
                    self._pool.give(connection)

    @contextmanager
    def _writer_lock(self) -> Iterator[None]:
        if not self.path.parent.is_dir():
            self._make_folder()
        try:
            lock = WriterLock(self.path.with_name(f"{self.path.name}-turn"))
            acquired = lock.acquire(self._wait)
        except OSError as error:
            raise CatalogAccessError(
                f"cannot open a lock file beside {self.path}: {os.strerror(error.errno or 0)}",
                suggestion="check the permissions of the folder: writers queue on that file",
            ) from error
        if not acquired:
            raise self._busy()
        try:
            yield
        finally:
            lock.release()

    def _in_transaction(self, connection: sqlite3.Connection) -> bool:
        return connection.in_transaction

    def durability(self) -> Durability:
        if self._synchronous in _FLUSHED:
            return Durability(True, f"synchronous={self._synchronous}")
        return Durability(
            False,
            f"synchronous={self._synchronous}: a power cut may lose commits that are published already",
            "set sqlite.synchronous to FULL",
        )

    def has_schema_table(self, session: Session) -> bool:
        found = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'dl_schema_version'"
        return session.row(found) is not None

    def close(self) -> None:
        self._pool.close()

    def _busy(self) -> CatalogBusyError:
        return CatalogBusyError(
            f"{self.path} is locked by another writer; waited up to {self._wait:g} s",
            suggestion="look for a long-running writer, or raise sqlite.busy_timeout_s",
        )

    def translate(self, error: Exception) -> DeltaSqlError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            return self._busy()
        if code in _CORRUPT:
            return self._damaged("SQLite", str(error))
        if code == sqlite3.SQLITE_FULL:
            return self._full()
        if code in _ACCESS:
            return CatalogAccessError(
                f"SQLite cannot open or write {self.path} ({error})",
                suggestion="check the permissions of the file and its folder (WAL creates files beside it)",
            )
        return CatalogError(f"SQLite refused: {error}")


def _is_alive(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.Error:
        return False
    return True


def _may_be_sqlite(path: Path) -> bool:
    """Whether a file is empty or as long as the smallest database; SQLite itself checks longer ones.

    Never open the file here: on POSIX, closing it releases every lock that connections of this process have
    on it, and another process would then delete the WAL that they write to.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return True  # SQLite itself reports why it cannot be opened
    return size == 0 or size >= _SMALLEST


class WriterLock:
    """A fair lock for writers in all threads and processes, on a lock file that is never deleted.

    SQLite's own busy handler sleeps and tries again, so that some writers starve for seconds. The kernel's
    queue on a file lock is fair, and the lock of a process that dies is released. A forked child closes the
    descriptors that it inherits: they would keep the lock.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._done = threading.Event()
        self._guard = threading.Lock()
        self._given_up = False
        self._error: OSError | None = None
        _locks.add(self)

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock, and return whether it was acquired.

        A thread waits, since the kernel's queue has no timeout. If it gets the lock too late, it releases it.
        """
        try:
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            threading.Thread(target=self._block, name="deltasql-turn", daemon=True).start()
            self._done.wait(timeout)
            with self._guard:
                self._given_up = not self._done.is_set()
            if self._error is not None:
                raise self._error
        except BaseException:
            self.release()
            raise
        return not self._given_up

    def _block(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            self._error = error
        with self._guard:
            if self._given_up:
                self.release()
            self._done.set()

    def release(self) -> None:
        """Unlock and close the file; unlocking works even if a forked process has the file open."""
        if self._file >= 0:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close the file; the lock remains with any process that has it open."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_locks: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_after_fork)
