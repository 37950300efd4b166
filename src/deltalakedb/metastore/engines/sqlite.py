"""SQLite: one file, WAL, full durability; readers never wait, writers take turns."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogBusyError,
    CatalogCorruptError,
    CatalogError,
    CatalogFullError,
    DeltaSqlError,
    commit_interrupted,
)
from deltalakedb.metastore.engines.base import (
    KEYS,
    Dialect,
    Durability,
    Engine,
    Session,
    is_there,
    literal,
    make_folder,
    prepare_file,
    rows_to_arrow,
)
from deltalakedb.metastore.engines.batching import BatchingSession
from deltalakedb.metastore.engines.fork_gate import ForkGate
from deltalakedb.metastore.engines.pool import Pool
from deltalakedb.metastore.engines.writer_queue import WriterQueue
from deltalakedb.metastore.user_sql import disturbing, is_ours, no_question, not_theirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from deltalakedb.address import Address
    from deltalakedb.metastore.statements import Statement
    from deltalakedb.settings import Config

DIALECT = Dialect(
    name="sqlite",
    tokens={
        "text": "TEXT",
        "ctext": "TEXT",
        "bigint": "INTEGER",
        "small": "INTEGER",
        "bool": "INTEGER",
        "blob": "BLOB",
        "file_id": "INTEGER PRIMARY KEY",
        "auto_table_id": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "auto_audit_id": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "files_side_columns": "",
        **KEYS,
    },
    indexed=True,
    side_table=True,
    lock_rows="",
    sql_md5=False,
    # a small cache makes small sorted runs, which fit the processor's and are merged by a second thread
    before_index=("PRAGMA threads = 2", "PRAGMA cache_size = -2048"),
    after_index=("PRAGMA threads = 0", "PRAGMA cache_size = -16384"),
)

#: pages of one connection; with SQLite's own 2 MB a bulk load spills its indexes to the WAL over and over
_CACHE_KB = 16_384
#: the longest pause before a refused switch to WAL is tried again
_WAL_RETRY_S = 0.01
#: from here on an image beats a prepared statement
_IMAGE_FROM = 64
_INCOMING = "dl_incoming"
#: levels at which every commit is flushed to disk
_FLUSHED = ("FULL", "EXTRA", "2", "3")
#: bytes of the smallest database
_SMALLEST = 512
#: primary result codes that say what kind of trouble it is
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_ACCESS = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN}


#: what a statement may do to read
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
#: pragmas that only report something; they are tables too, as pragma_table_info('t')
_TELLING = {
    "foreign_key_list", "function_list", "index_info", "index_list", "index_xinfo", "table_info",
    "table_list", "table_xinfo",
}  # fmt: skip
_OUTSIDE = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ANALYZE,
}
_OUR_NAMES = "SELECT name FROM main.sqlite_master WHERE lower(substr(name, 1, 3)) = 'dl_' ORDER BY name"
_ROWS = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}


class _Reading:
    """SQLite's authorizer while a user's question is prepared and run."""

    def __init__(self) -> None:
        self.denied = False

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        allowed = self._allows(action, first, second)
        self.denied = self.denied or not allowed
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _allows(self, action: int, first: str | None, second: str | None) -> bool:
        if action == sqlite3.SQLITE_PRAGMA:
            return (first or "").lower() in _TELLING
        if action == sqlite3.SQLITE_UPDATE and first == "sqlite_master":
            # reported if a connection uses a table function such as json_each() for the first time;
            # SQLite itself refuses statements that change its schema table
            return True
        return action in _READING and (second or "").lower() != "load_extension"


class _Changing(_Reading):
    """SQLite's authorizer while a user's own statement runs inside a commit."""

    def __init__(self) -> None:
        super().__init__()
        #: what was denied is one of our tables
        self.ours = False
        self._defines = False

    def _allows(self, action: int, first: str | None, second: str | None) -> bool:
        if action == sqlite3.SQLITE_PRAGMA or action in _READING:
            return super()._allows(action, first, second)
        if action in _OUTSIDE or action == sqlite3.SQLITE_CREATE_VTABLE:
            return False
        # names come first, or second for indexes and triggers and what ALTER TABLE renames
        if is_ours(first) or is_ours(second):
            self.ours = True
            return False
        self._defines = self._defines or action in (sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_ALTER_TABLE)
        if action in _ROWS and (first or "").lower().startswith("sqlite_"):
            # SQLite's own lists: the schema, which it guards itself, and counters of ours too, of which
            # DROP TABLE and ALTER TABLE change that of their table
            schema = first in ("sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema")
            self.ours = not (schema or self._defines)
            return not self.ours
        return True


class SqliteSession(BatchingSession):
    """A connection to the file."""

    engine: SqliteEngine

    def __init__(self, engine: SqliteEngine, connection: sqlite3.Connection) -> None:
        super().__init__()
        self.engine = engine
        self._connection = connection
        #: an image is attached, which can be taken away only after the transaction
        self.attached = False
        #: a user's own statements ran: temporary tables of theirs may be left
        self.used_by_others = False

    def _execute(self, sql: str, params: Sequence[Any]) -> sqlite3.Cursor:
        try:
            return self._connection.execute(sql, params)
        except (sqlite3.Error, sqlite3.Warning) as error:  # a second statement is a warning to Python 3.11
            raise translate(error, self.engine) from error

    def query(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        """A user's question, of which SQLite itself refuses whatever is not reading."""
        with self._watched(_Reading(), no_question):
            return super().query(sql, params)

    def run_own(self, sql: str, params: Sequence[Any] = ()) -> None:
        """A user's statement; SQLite itself refuses to touch our tables, settings or the transaction."""
        self.used_by_others = True
        rules, before = _Changing(), self.rows(_OUR_NAMES)
        with self._watched(rules, lambda: not_theirs() if rules.ours else disturbing("this statement")):
            self.run(sql, params)
        if self.rows(_OUR_NAMES) != before:
            raise not_theirs()  # the authorizer does not see what a table is renamed to

    @contextmanager
    def _watched(self, rules: _Reading, refusal: Callable[[], DeltaSqlError]) -> Iterator[None]:
        self._connection.set_authorizer(rules)
        try:
            yield
        except CatalogError as error:
            raise refusal() if rules.denied else error from error.__cause__
        finally:
            self._connection.set_authorizer(None)

    def arrow(self, statement: Statement | str, params: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Rows fetched by the driver, then turned into columns."""
        return rows_to_arrow(self.rows(statement, params), schema)

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """One prepared statement, run for every row."""
        marks = ", ".join("?" * len(columns))
        self._run_many(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608

    def insert_arrow(self, table: str, data: pa.Table, constants: Mapping[str, int | bool | str]) -> None:
        """Copied by SQLite from an image of its own format; else one prepared statement, constants in it."""
        self.barrier()
        if data.num_rows >= _IMAGE_FROM and self._insert_image(table, data, constants):
            return
        names = ", ".join([*data.column_names, *constants])
        values = ", ".join(["?"] * data.num_columns + [literal(v) for v in constants.values()])
        rows = zip(*(column.to_pylist() for column in data.columns), strict=True)
        self._run_many(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)  # noqa: S608

    def _insert_image(self, table: str, data: pa.Table, constants: Mapping[str, int | bool | str]) -> bool:
        """Insert rows from an image; False if none can be made of them."""
        from deltalakedb.metastore.engines.sqlite_pages import page_maker  # only bulk loads need it

        try:
            maker = page_maker(self._connection, table)
            image = None if maker is None else maker.image(data, constants)
            if image is None:
                return False
            if not self.attached:
                self._connection.execute(f"ATTACH ':memory:' AS {_INCOMING}")
                self.attached = True
            self._connection.deserialize(image, name=_INCOMING)
            self._connection.execute(f"INSERT INTO main.{table} SELECT * FROM {_INCOMING}.{table}")  # noqa: S608
        except sqlite3.Error as error:
            raise translate(error, self.engine) from error
        return True

    def detach(self) -> bool:
        """Let go of the last image, after the transaction; whether the connection is as it was before."""
        if self.attached:
            try:
                self._connection.execute(f"DETACH {_INCOMING}")
            except sqlite3.Error:
                return False
        return True

    def _run_many(self, sql: str, params: Iterable[Sequence[Any]]) -> None:
        """One prepared statement, run for every parameter set."""
        try:
            self._connection.executemany(sql, params)
        except sqlite3.Error as error:
            raise translate(error, self.engine) from error


class SqliteEngine(Engine):
    """A catalog in a SQLite file."""

    dialect = DIALECT

    def __init__(self, address: Address, config: Config) -> None:
        super().__init__(address, config)
        self.path = Path(address.resolved().path or "")
        options = address.driver_options()
        self._synchronous = str(options.get("synchronous", config.sqlite.synchronous)).upper()
        self._wait = float(options.get("busy_timeout", config.sqlite.busy_timeout_s))
        self._queue = WriterQueue(self.path.with_name(f"{self.path.name}-turn"))
        pool = config.pool
        self._pool: Pool[sqlite3.Connection] = Pool(
            self._connect,
            sqlite3.Connection.close,
            _answers,
            size=pool.max_size,
            timeout=pool.timeout_s,
            check_after=pool.health_check_s,
            idle=pool.idle_s,
            keep=pool.min_size,
        )
        self._gate = ForkGate(self.close, str(self.path))

    def is_absent(self) -> bool:
        """Whether there is no file yet."""
        return not is_there(self.path)

    def identity(self) -> object:
        """The file, whatever its name; None if there is none."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - asked before every use
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _connect(self) -> sqlite3.Connection:
        mode = "rwc" if self.config.catalog.create else "rw"
        exists = prepare_file(self.path, "meta.db", create=self.config.catalog.create)
        if exists and not _may_be_sqlite(self.path):
            # SQLite takes a file of a few bytes for an empty database, and would write over it
            raise CatalogCorruptError(
                f"{self.path} is not a SQLite database",
                suggestion="check the address, or choose another file",
            )
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=self._wait,
                cached_statements=256,
            )
        except sqlite3.Error as error:
            raise translate(error, self) from error
        try:
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            connection.execute("PRAGMA temp_store=MEMORY")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            self._use_wal(connection)
        except sqlite3.Error as error:
            connection.close()
            raise translate(error, self) from error
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch a new file to WAL.

        SQLite does not wait here: of two processes that do this at the same moment, each has a lock that the
        other needs, and one is refused at once.
        """
        until = time.monotonic() + self._wait
        while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > until:
                    raise
                time.sleep(random.uniform(0, _WAL_RETRY_S))  # noqa: S311 - so that they do not meet again
            else:
                return  # a file system without shared memory keeps its mode

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A connection in autocommit mode."""
        with self._gate.inside():
            connection = self._pool.take()
            try:
                yield SqliteSession(self, connection)
            finally:
                self._pool.give(connection)

    @contextmanager
    def read_only(self, *, asking: bool = False) -> Iterator[Session]:
        """A read transaction on a connection that refuses changes while it is lent."""
        with self.read() as session:
            session.run("PRAGMA query_only = ON")
            session.run("BEGIN")
            if not asking:
                session.row("SELECT 1 FROM dl_schema_version")  # the snapshot is taken by the first read
            try:
                yield session
            finally:
                session.run("ROLLBACK")
                session.run("PRAGMA query_only = OFF")

    def write(self) -> AbstractContextManager[Session]:
        """``BEGIN IMMEDIATE``: the writer's turn is taken before the first statement, never in the middle."""
        return self._write()

    def relaxed_write(self) -> AbstractContextManager[Session]:
        """Not flushed by itself: it reaches the disk with the next commit that is, and in its order."""
        return self._write(relaxed=self._synchronous in _FLUSHED)

    @contextmanager
    def _write(self, *, relaxed: bool = False) -> Iterator[Session]:
        with self._my_turn(), self._gate.inside():
            connection = self._pool.take()
            session = SqliteSession(self, connection)
            as_lent = not relaxed
            try:
                if relaxed:
                    connection.execute("PRAGMA synchronous=NORMAL")
                with _transaction(self, connection):
                    yield session
            finally:
                if relaxed and not connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute(f"PRAGMA synchronous={self._synchronous}")
                        as_lent = True
                if connection.in_transaction or not as_lent or session.used_by_others or not session.detach():
                    self._pool.discard(connection)
                else:
                    self._pool.give(connection)

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        if not self.path.parent.is_dir():
            make_folder(self.path.parent)
        with ExitStack() as turn:
            # only taking the turn: what happens inside it, OSErrors too, is not ours to explain
            try:
                mine = turn.enter_context(self._queue.take(self._wait))
            except OSError as error:
                raise CatalogAccessError(
                    f"cannot write beside {self.path}: {os.strerror(error.errno or 0)}",
                    suggestion="writers queue on a lock file beside the database: check the folder's rights",
                ) from error
            if not mine:
                raise self._busy()
            yield

    def _busy(self) -> CatalogBusyError:
        return CatalogBusyError(
            f"{self.path} is locked by another writer; waited up to {self._wait:g} s",
            suggestion="look for a long-running writer, or raise sqlite.busy_timeout_s",
        )

    def durability(self) -> Durability:
        """As ``synchronous`` says: below FULL the newest commits may be gone after a power cut."""
        if self._synchronous in _FLUSHED:
            return Durability(True, f"synchronous={self._synchronous}")
        return Durability(
            False,
            f"synchronous={self._synchronous}: a power cut may lose commits that are published already",
            "leave sqlite.synchronous at FULL",
        )

    def prepare(self, session: Session) -> None:
        """Nothing to do: the file is the schema."""

    def has_schema_table(self, session: Session) -> bool:
        """Asks SQLite's own list of tables."""
        return (
            session.row("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'dl_schema_version'")
            is not None
        )

    def close(self) -> None:
        """Close idle connections; lent ones close when they come back."""
        self._pool.close()


@contextmanager
def _transaction(engine: SqliteEngine, connection: sqlite3.Connection) -> Iterator[None]:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        raise translate(error, engine) from error
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    try:
        connection.execute("COMMIT")
    except Exception as error:
        still_open = connection.in_transaction
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        if not isinstance(error, sqlite3.Error):
            raise commit_interrupted(error) from error
        if still_open or _code(error) in {*_BUSY, sqlite3.SQLITE_FULL}:
            raise translate(error, engine) from error
        # after a failed flush the commit may be in the file, and come back when it is opened again
        raise commit_interrupted(error, by_database=True) from error


def _answers(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.Error:
        return False
    return True


def _may_be_sqlite(path: Path) -> bool:
    """Whether a file is empty or as long as the smallest database; longer ones SQLite looks at itself.

    Never open the file here: on POSIX, closing it again takes away every lock that this process has on it by
    its connections, and another process would then delete the log that they write to.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return True  # SQLite itself says why it cannot be opened
    return size == 0 or size >= _SMALLEST


def _code(error: sqlite3.Error | sqlite3.Warning) -> int:
    """The primary result code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translate(error: sqlite3.Error | sqlite3.Warning, engine: SqliteEngine) -> DeltaSqlError:
    """The driver's error as ours."""
    code = _code(error)
    if code in _BUSY:
        return engine._busy()  # noqa: SLF001 - same module
    if code in _CORRUPT:
        return CatalogCorruptError(
            f"{engine.path} is damaged or is not a SQLite database ({error})",
            suggestion="check the address; restore the file from a backup if it was a catalog",
        )
    if code == sqlite3.SQLITE_FULL:
        return CatalogFullError(
            f"no space left for {engine.path}", suggestion="free some space; nothing was lost"
        )
    if code in _ACCESS:
        return CatalogAccessError(
            f"SQLite may not open or write {engine.path} ({error})",
            suggestion="check the rights of the file and of its folder (WAL needs to write beside it)",
        )
    return CatalogError(f"SQLite refused: {error}")
