"""DuckDB: one file that only one process can hold, so it is held only while it is used."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb import extras
from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogBusyError,
    CatalogCorruptError,
    CatalogError,
    DeltaSqlError,
)
from deltalakedb.metastore.engines.base import Dialect, FileEngine, Note, Row, RowChange, Rows, Session
from deltalakedb.metastore.engines.pool import ForkGate, IdleTimer, inherited
from deltalakedb.metastore.user_sql import interferes, is_ours, not_a_query, protected_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from deltalakedb.address import Address
    from deltalakedb.metastore.statements import Statement
    from deltalakedb.settings import Config

logger = logging.getLogger(__name__)

# No keys and no indexes: zone maps serve the scans, and our own lock keeps rows unique.
DIALECT = Dialect(
    name="duckdb",
    tokens={
        "ctext": "VARCHAR",
        "bigint": "BIGINT",
        "blob": "BLOB",
        "file_id": "BIGINT NOT NULL",
        "auto_table_id": "BIGINT NOT NULL DEFAULT nextval('dl_table_ids')",
        "auto_audit_id": "BIGINT NOT NULL DEFAULT nextval('dl_audit_ids')",
    },
    indexed=False,
    exclusive=True,
    ids="SELECT unnest(?::BIGINT[])",
    # DuckDB would take what memory the machine has, and rewrite its file for every 16 MB; what is not in its
    # file yet stays in memory, so that the file must be written before that is full
    before_load=("SET memory_limit = '300MB'", "SET wal_autocheckpoint = '64MB'"),
    after_load=("CHECKPOINT", "RESET memory_limit", "RESET wal_autocheckpoint"),
)

_HOLDER = re.compile(r"held in (?P<program>\S+).*?\(PID (?P<pid>\d+)\)", re.DOTALL)
#: DuckDB raises several classes for a damaged file, and has no codes
_DAMAGE = (
    "not a valid DuckDB", "orrupt database", "hecksum", "attempted to read", "database has been invalidated",
)  # fmt: skip
_NO_RIGHTS = ("Permission denied", "Read-only file system", "Operation not permitted")
_POLL = 0.05
#: how long a reader waits for a writer of this process to record postponed notes; then it reads without them
_NOTES_WAIT = 0.1
#: of DuckDB's table functions and those with side effects, the ones that only look
_READING = frozenset(
    {
        "current_connection_id", "current_query", "current_query_id", "current_transaction_id",
        "database_list", "database_size", "error", "gen_random_uuid", "generate_series", "histogram",
        "histogram_values", "json_each", "json_tree", "pragma_database_size", "pragma_show",
        "pragma_table_info", "pragma_version", "random", "range", "repeat", "repeat_row", "show",
        "show_databases", "show_tables", "show_tables_expanded", "stats", "summary", "table_info",
        "unnest", "uuid", "uuidv4", "uuidv7", "vector_type", "version",
    }
)  # fmt: skip
#: parsed statements that are kept
_MAX_PARSED = 256
#: from here on an Arrow scan beats lists as parameters
_ARROW_FROM = 128
#: statements of every commit that are so small that optimizing them takes longer than running them
_SMALL = frozenset({"snapshots.lock", "snapshots.lock heads", "snapshots.lock publishing"})
#: types of such lists
_TYPES = {bool: "BOOLEAN", int: "BIGINT", bytes: "BLOB"}
_EXPLAIN = re.compile(r"explain\b(?:\s+analyze\b)?(?:\s*\([^()]*\))?", re.IGNORECASE)
#: kinds of statements that users may run on tables of their own
_OWN = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "ALTER", "DROP"})
#: tokens after which a text is the name of a table
_BEFORE_NAMES = frozenset(
    {
        ".", "column", "exists", "from", "index", "into", "join", "on", "only", "schema", "sequence", "table",
        "temp", "temporary", "to", "truncate", "type", "update", "using", "view",
    }
)  # fmt: skip
#: a text without escapes that is not the name of one of our tables, whatever precedes it
_NOT_OURS = re.compile(r"'(?![^']*dl_)[^']*'", re.IGNORECASE)
#: what users may create, and the words that may precede it
_CREATED = frozenset({"index", "schema", "sequence", "table", "type", "view"})
_MODIFIERS = frozenset({"create", "or", "recursive", "replace", "temp", "temporary", "unique"})
#: what names may be quoted by
_QUOTES = '"`'
#: functions that change a sequence
_COUNTING = frozenset({"nextval", "setval", "currval"})


def _calls(tokens: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, str]]:
    """The functions that are called, by name, each with the first token of its arguments."""
    for at, (text, _) in enumerate(tokens):
        if text.startswith("(") and at:
            argument = tokens[at + 1][0] if at + 1 < len(tokens) else ""
            yield tokens[at - 1][0].strip(_QUOTES).lower(), argument


class DuckdbSession(Session):
    """A cursor of the process's one connection."""

    engine: DuckdbEngine

    def __init__(
        self,
        engine: DuckdbEngine,
        cursor: duckdb.DuckDBPyConnection,
        *,
        defers: bool = False,
        optimizes: bool = True,
    ) -> None:
        super().__init__(engine, defers=defers)
        self.cursor = cursor
        #: whether DuckDB's optimizer is on for this cursor; it is turned on before any but a small statement
        self.optimizes = optimizes

    def _call(self, statement: Statement | str, params: Sequence[Any]) -> Any:
        if getattr(statement, "name", "") not in _SMALL:
            self._optimize()
        return super()._call(statement, params)

    def _optimize(self) -> None:
        """Turn the optimizer on, unless it is."""
        if self.optimizes:
            return
        self.flush()
        self._execute("PRAGMA enable_optimizer", ())
        self.optimizes = True

    def _execute(self, sql: str, params: Sequence[Any]) -> Any:
        try:
            return self.cursor.execute(self.engine.parsed(self.cursor, sql), params or None)
        except self.engine.errors as error:
            raise self.engine.translate(error) from error
        except RuntimeError as error:
            # DuckDB swallows the exception of a signal handler; after Ctrl-C that was this one
            if "interrupted" not in str(error):
                raise
            raise KeyboardInterrupt from error

    def _check_query(self, sql: str) -> None:
        """Only what DuckDB itself takes for one SELECT: EXPLAIN ANALYZE would run anything, COMMIT too."""
        super()._check_query(sql)
        kind = self._kind(sql)
        if kind == "EXPLAIN":
            kind = self._kind(_EXPLAIN.sub("", sql, count=1))
        if kind != "SELECT":
            raise not_a_query()
        refused = self.engine.acting_functions()
        if any(name in refused for name, _ in _calls(self._tokens(sql))):
            raise not_a_query()

    def run_user_sql(self, sql: str, params: Sequence[Any] = ()) -> None:
        """A user's statement, judged by the kind and the tokens that DuckDB itself sees in it."""
        if (kind := self._kind(sql)) not in _OWN:
            raise interferes(kind.replace("_", " "))
        tokens = self._tokens(sql)
        words = [text.lower() for text, is_text in tokens if not is_text]
        created = next((word for word in words if word not in _MODIFIERS), "")
        if kind == "CREATE" and created not in _CREATED:
            # functions and macros would replace DuckDB's own in our statements
            raise interferes(f"CREATE {created.upper()}")
        if any(is_ours(word.strip(_QUOTES)) for word in words):
            raise protected_table()
        before = ""
        for text, is_text in tokens:
            # DuckDB takes a text for a table's name
            is_name = before in _BEFORE_NAMES or kind == "DROP"
            if is_text and is_name and not _NOT_OURS.fullmatch(text):
                raise protected_table()
            before = text.lower()
        refused = self.engine.acting_functions() - _COUNTING
        for name, argument in _calls(tokens):
            if name in refused:
                raise interferes(f"{name}()")
            if name in _COUNTING and (not argument.startswith("'") or "dl_" in argument.lower()):
                raise protected_table()
        self.run(sql, params)

    def _kind(self, sql: str) -> str:
        try:
            found = self.engine.driver.extract_statements(sql)
        except self.engine.errors as error:
            raise self.engine.translate(error) from error
        except ValueError as error:  # a kind of statement that the driver has no name for
            raise interferes("this statement") from error
        if len(found) != 1:
            raise CatalogError("one statement at a time", suggestion="run them one after the other")
        name: str = found[0].type.name
        return name

    def _tokens(self, sql: str) -> list[tuple[str, bool]]:
        """The tokens of a text without its comments, and whether each is a text."""
        data, kinds = sql.encode(), self.engine.driver.token_type
        found = self.engine.driver.tokenize(sql)
        ends = [at for at, _ in found[1:]] + [len(data)]
        return [
            (data[at:end].decode("utf-8", "replace").strip(), kind == kinds.string_const)
            for (at, kind), end in zip(found, ends, strict=True)
            if kind != kinds.comment
        ]

    def run(self, statement: Statement | str, params: Sequence[Any] = ()) -> int:
        found = self.rows(statement, params)  # DuckDB answers changes with their count as a row
        return int(found[0][0]) if found and isinstance(found[0][0], int) else -1

    def row(self, statement: Statement | str, params: Sequence[Any] = ()) -> Row | None:
        """The first row of a query; all are fetched, since DuckDB refuses `sql` beside an open result."""
        found = self.rows(statement, params)
        return found[0] if found else None

    def arrow(self, statement: Statement | str, params: Sequence[Any], schema: pa.Schema) -> pa.Table:
        self.flush()
        self._optimize()
        self._count(statement)
        try:
            relation = self.cursor.sql(str(statement), params=list(params) or None)
            table = relation.to_arrow_table()
        except self.engine.errors as error:
            raise self.engine.translate(error) from error
        return table.rename_columns(schema.names).cast(schema)

    def flush(self) -> None:
        """Write the deferred changes; small ones of several tables by one statement, which costs less."""
        groups, self._groups = self._groups, []
        for group in groups:
            parts = []
            for change, rows in group.values():
                if (small := _small_change(change, rows)) is None:
                    self._write(change, rows)
                else:
                    parts.append(small)
            if parts:  # without the optimizer, if only such statements run
                *first, last = (sql for sql, _ in parts)
                named = ", ".join(f"part{at} AS ({sql} RETURNING 1)" for at, sql in enumerate(first))
                values = [value for _, some in parts for value in some]
                self._execute(f"WITH {named} {last}" if first else last, values).fetchall()

    def _write(self, change: RowChange, rows: Rows) -> None:
        table, columns, key = change.table, change.columns, change.key
        if (small := _small_change(change, rows)) is not None:
            self._execute(*small).fetchall()
        elif not columns:
            self._optimize()
            for one in rows:
                self._execute(change.sql, one).fetchall()
        elif key is None:
            names, values = _used_columns(columns, rows)
            listed = ", ".join(names)
            insert = f"INSERT INTO {table} ({listed}) SELECT {listed} FROM dl_incoming"  # noqa: S608
            self._scan(insert, _table(names, values))
        else:
            # a join with an Arrow table: row by row DuckDB would scan the whole table each time
            self._scan(_update_from("dl_incoming i", change), _table([*columns, key], rows))

    def insert_arrow(self, table: str, data: pa.Table) -> None:
        self.flush()
        names = ", ".join(data.column_names)
        insert = f"INSERT INTO {table} ({names}) SELECT {names} FROM dl_incoming"  # noqa: S608
        self._count(insert)
        self._scan(insert, data)

    def _scan(self, sql: str, data: pa.Table) -> None:
        """Run a change that reads an Arrow table as ``dl_incoming``."""
        self._optimize()
        self.cursor.register("dl_incoming", data)
        try:
            self._execute(sql, ()).fetchall()
        finally:
            self.cursor.unregister("dl_incoming")


def _small_change(change: RowChange, rows: Rows) -> tuple[str, Sequence[Any]] | None:
    """One statement with its values, if it inserts or updates by key a few rows; else None."""
    names, key = change.columns, change.key
    if not names or len(rows) >= _ARROW_FROM:
        return None
    if key is not None and len(rows) == 1:
        return change.sql, rows[0]
    names, rows = _used_columns(names, rows) if key is None else ((*names, key), rows)
    source, values = f"VALUES ({', '.join('?' * len(names))})", rows[0]
    if len(rows) > 1:
        values = [list(column) for column in zip(*rows, strict=True)]
        types = [_TYPES.get(type(next((v for v in c if v is not None), "")), "VARCHAR") for c in values]
        columns = zip(names, types, strict=True)
        source = "SELECT " + ", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in columns)
    if key is None:
        return f"INSERT INTO {change.table} ({', '.join(names)}) {source}", values
    return _update_from(f"({source}) i", change), values


def _used_columns(columns: Sequence[str], rows: Rows) -> tuple[tuple[str, ...], Rows]:
    """Columns that some row has a value for, and the rows without the others: each costs planning."""
    used = [at for at, values in enumerate(zip(*rows, strict=True)) if values.count(None) < len(values)]
    return tuple(columns[at] for at in used), [[row[at] for at in used] for row in rows]


def _update_from(source: str, change: RowChange) -> str:
    """The change for all rows of a source that is named ``i``."""
    table, key = change.table, change.key
    new = ", ".join(f"{column} = i.{column}" for column in change.columns)
    return f"UPDATE {table} SET {new} FROM {source} WHERE {table}.{key} = i.{key}"  # noqa: S608


def _table(columns: Sequence[str], rows: Rows) -> pa.Table:
    return pa.table([pa.array(c) for c in zip(*rows, strict=True)], names=list(columns))


class PriorityLock:
    """A lock that serves urgent waiters first: their work must be short and rare."""

    def __init__(self) -> None:
        guard = threading.Lock()
        self._ready = threading.Condition(guard)
        self._urgent_ready = threading.Condition(guard)
        self._urgent = 0
        self._held = False

    def acquire(self, *, timeout: float, urgent: bool = False) -> bool:
        mine = False
        here = self._urgent_ready if urgent else self._ready
        with here:
            self._urgent += urgent
            try:
                mine = here.wait_for(lambda: not self._held and (urgent or not self._urgent), timeout)
                self._held = self._held or mine
            finally:
                self._urgent -= urgent
                if not self._held:
                    self._wake()  # one that was woken and timed out hands it on
        return mine

    def release(self) -> None:
        with self._ready:
            self._held = False
            self._wake()

    def _wake(self) -> None:
        (self._urgent_ready if self._urgent else self._ready).notify()


class _Notes:
    """What was published of one file's tables and is not recorded yet, for all engines of this process."""

    #: writes notes into the database
    record: Callable[[Session, Mapping[int, Note]], None]

    def __init__(self) -> None:
        self.kept: dict[int, Note] = {}
        self._lock = threading.Lock()
        self._since = 0.0

    def add(self, notes: Mapping[int, Note]) -> None:
        with self._lock:
            if not self.kept:
                self._since = time.monotonic()
            for table_id, note in notes.items():
                known = self.kept.get(table_id, note)
                oldest, newest = min(known.oldest, note.oldest), max(known.newest, note.newest)
                self.kept[table_id] = Note(oldest, newest, max(known.noted_at, note.noted_at))

    def take(self) -> Mapping[int, Note]:
        with self._lock:
            notes, self.kept = self.kept, {}
        return notes

    def age(self) -> float:
        """Seconds since the oldest note."""
        return time.monotonic() - self._since


_notes: dict[Path, _Notes] = {}
os.register_at_fork(after_in_child=_notes.clear)


class DuckdbEngine(FileEngine):
    """A catalog in a DuckDB file.

    The file is opened for the first session and closed once it was idle for a second, so that
    several processes can take turns. Opening waits for another process up to a deadline.
    """

    dialect = DIALECT
    # its log may not be created: DuckDB creates it beside the file at the first COMMIT
    rollback_errors = (*FileEngine.rollback_errors, CatalogAccessError)

    def __init__(self, address: Address, config: Config) -> None:
        super().__init__(address, config)
        self.driver = extras.require("duckdb", "duckdb", "catalogs on DuckDB")
        self.errors = self.driver.Error
        options, settings = self.options, config.duckdb
        limits = {name: options.get(name, getattr(settings, name)) for name in ("memory_limit", "threads")}
        self._settings = {
            **{name: value for name, value in limits.items() if value is not None},
            # nothing but the catalog is to be read or written: users' own SQL runs here, too
            "enable_external_access": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        self._wait = float(options.get("wait", settings.wait_s))
        self._idle = float(options.get("idle_release", settings.idle_release_s))
        self._acting: frozenset[str] | None = None
        self._parsed: dict[str, Any] = {}
        self._reset()
        self._gate = ForkGate(self.close, str(self.path))

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._turn = PriorityLock()
        self._root: duckdb.DuckDBPyConnection | None = None
        self._users = 0
        self._used_at = 0.0
        self._timer = IdleTimer(self._look)
        self._kept: duckdb.DuckDBPyConnection | None = None
        self._writer: int | None = None
        self._notes = _notes.setdefault(self.path, _Notes())

    def _acquire(self) -> duckdb.DuckDBPyConnection:
        if self._pid != os.getpid():
            inherited.append((self._root, self._kept))
            self._reset()
        with self._lock:
            if self._root is None:
                self._root = self._open()
            try:
                cursor = self._root.cursor()
            except self.errors as error:
                raise self.translate(error) from error
            self._users += 1
            return cursor

    def _release(self, cursor: duckdb.DuckDBPyConnection) -> None:
        with suppress(self.errors):
            cursor.close()
        if self._pid != os.getpid():
            return
        with self._lock:
            self._users -= 1
            self._used_at = time.monotonic()
            if self._idle <= 0:
                self._close_idle()
            elif self._users == 0:
                self._timer.start(self._idle)

    def _look(self) -> None:
        with self._lock:
            left = self._used_at + self._idle - time.monotonic()
            if left <= 0:
                self._close_idle()
            elif self._users == 0 and self._root is not None:
                self._timer.start(left)

    def _close_idle(self) -> None:
        if self._users == 0 and self._root is not None:
            self._record_notes(self._root)
            with suppress(self.errors):
                self._drop_kept()
                self._root.close()
            self._root = None

    def _open(self) -> duckdb.DuckDBPyConnection:
        self._prepare_file("catalog.duckdb")
        deadline = time.monotonic() + self._wait
        while True:
            try:
                connection: duckdb.DuckDBPyConnection = self.driver.connect(
                    str(self.path), config=dict(self._settings)
                )
            except self.driver.PermissionException as error:
                # it knows the file's format, and would load what reads it: SQLite's, for one
                raise CatalogCorruptError(
                    f"{self.path} is not a DuckDB database ({' '.join(str(error).split())})",
                    suggestion="check the address, or choose another file",
                ) from error
            except self.errors as error:
                ours = self.translate(error)
                if not isinstance(ours, CatalogBusyError) or time.monotonic() >= deadline:
                    raise ours from error
                time.sleep(_POLL)
            else:
                return connection

    def parsed(self, cursor: duckdb.DuckDBPyConnection, sql: str) -> Any:
        """A statement that is parsed once: that takes up to a third of the time of a small one."""
        if (found := self._parsed.get(sql)) is None:
            if len(self._parsed) >= _MAX_PARSED:
                self._parsed.clear()
            several = cursor.extract_statements(sql)
            found = self._parsed[sql] = several[0] if len(several) == 1 else sql
        return found

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._gate.inside():
            cursor = self._acquire()
            try:
                yield cursor
            finally:
                self._release(cursor)

    def keep_open(self) -> AbstractContextManager[object]:
        # a new connection would have DuckDB's default memory limit
        return self._cursor()

    @contextmanager
    def read(self) -> Iterator[Session]:
        self._write_notes()
        with self._cursor() as cursor:
            yield DuckdbSession(self, cursor)

    @contextmanager
    def read_only(self, *, will_query: bool = False) -> Iterator[Session]:
        if not will_query:
            self._write_notes()
        begin = "BEGIN TRANSACTION READ ONLY"
        with self._cursor() as cursor, self._transaction(cursor, begin, reads=True):
            session = DuckdbSession(self, cursor)
            if not will_query:
                session.row("SELECT 1 FROM dl_schema_version")  # the snapshot is taken by the first read
            yield session

    def relaxed_write(self) -> AbstractContextManager[Session]:
        """A short one that goes before others: a publisher must not fall behind the writers it follows."""
        return self._write(self._wait, urgent=True)

    def commit_write(self) -> AbstractContextManager[Session]:
        return self._write(self._wait, small=True)

    @contextmanager
    def write(self) -> Iterator[Session]:
        self._write_notes()
        with self._write(self._wait) as session:
            yield session

    @contextmanager
    def _write(self, wait: float, *, urgent: bool = False, small: bool = False) -> Iterator[Session]:
        """One transaction; writers of this process take turns, since DuckDB would make the later one fail.

        A ``small`` one begins with a cursor whose optimizer is off, which is kept while nothing else used it.
        """
        with self._cursor() as cursor:
            if not self._turn.acquire(timeout=wait, urgent=urgent):
                raise CatalogBusyError(
                    f"another writer of this process held {self.path} for {wait:g} s",
                    suggestion="look for a long-running writer, or raise duckdb.wait_s",
                )
            self._writer = threading.get_ident()
            unchanged = False
            try:
                if small and self._root is not None:
                    self._kept = cursor = self._kept or self._small_cursor(self._root)
                with self._transaction(cursor, "BEGIN TRANSACTION"):
                    session = DuckdbSession(self, cursor, defers=True, optimizes=not small)
                    yield session
                    session.flush()
                unchanged = not session.optimizes
            finally:
                if small and not unchanged:
                    self._drop_kept()
                self._writer = None
                self._turn.release()

    def _small_cursor(self, root: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        """A cursor for small statements."""
        cursor = root.cursor()
        cursor.execute("PRAGMA disable_optimizer")
        return cursor

    def _drop_kept(self) -> None:
        if self._kept is not None:
            with suppress(self.errors):
                self._kept.close()
            self._kept = None

    # Recording what was published would take a third of an append. So notes of it wait for the next session
    # that is not a commit's, at most for the time after which an idle file is closed.

    def postpone(
        self, notes: Mapping[int, Note], record: Callable[[Session, Mapping[int, Note]], None]
    ) -> bool:
        with self._lock:
            # a file that was closed meanwhile may be another one when it is opened again
            if self._pid != os.getpid() or self._root is None or self._idle <= 0:
                return False
            self._notes.record = record
            self._notes.add(notes)
        if self._notes.age() >= self._idle:
            self._write_notes()
        return True

    def postponed(self) -> Mapping[int, Note]:
        return self._notes.kept

    def _write_notes(self) -> None:
        """Record the postponed notes, unless a writer is at work."""
        if not self._notes.kept or self._writer == threading.get_ident():
            return
        notes: Mapping[int, Note] = {}
        try:
            with self._write(_NOTES_WAIT, urgent=True) as session:
                notes = self._notes.take()
                if notes:
                    self._notes.record(session, notes)
        except CatalogBusyError:
            self._notes.add(notes)

    def _record_notes(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Record the postponed notes before the file is closed; if that fails, the next publisher does it."""
        if not (notes := self._notes.take()):
            return
        try:
            with self._transaction(connection, "BEGIN TRANSACTION"):
                self._notes.record(DuckdbSession(self, connection), notes)
        except DeltaSqlError as error:
            logger.warning("what was published could not be recorded in %s: %s", self.path, error.message)

    def acting_functions(self) -> frozenset[str]:
        """Functions that do something, or read something else than the catalog; queries only look."""
        if self._acting is None:
            sql = (
                "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
                "WHERE function_type IN ('table', 'pragma', 'table_macro') OR has_side_effects"
            )
            with self._cursor() as cursor:
                names = {row[0] for row in DuckdbSession(self, cursor)._execute(sql, ()).fetchall()}  # noqa: SLF001
            self._acting = frozenset(n for n in names if n not in _READING and not n.startswith("duckdb_"))
        return self._acting

    def has_schema_table(self, session: Session) -> bool:
        return session.row("SELECT 1 FROM duckdb_tables() WHERE table_name = 'dl_schema_version'") is not None

    def close(self) -> None:
        if self._pid == os.getpid():
            with self._lock:
                self._timer.cancel()
                self._close_idle()

    def translate(self, error: Exception) -> DeltaSqlError:
        """The driver's error as ours. DuckDB has no error codes: file errors are recognised by their text."""
        text = " ".join(str(error).split())
        if "Could not set lock" in text or "Conflicting lock" in text:
            holder = _HOLDER.search(text[:2000])
            who = f"process {holder['pid']} ({holder['program']})" if holder else "another process"
            return CatalogBusyError(
                f"{self.path} is locked by {who}; DuckDB allows one process at a time",
                suggestion="wait for it or stop it; for several processes at once use SQLite or Postgres",
            )
        if "different configuration" in text:
            return CatalogAccessError(
                f"{self.path} is open in this process by a connection with other settings",
                suggestion="close that connection, or open it with duckdb.connect(path, config="
                f"{self._settings!r})",
            )
        if "No space left" in text:  # an IOException or a failed COMMIT
            return self._full()
        if any(sign in text for sign in _DAMAGE):
            return self._damaged("DuckDB", text)
        # a COMMIT too can lack rights: DuckDB creates the log beside the file only then
        if isinstance(error, self.driver.IOException) or any(sign in text for sign in _NO_RIGHTS):
            return CatalogAccessError(
                f"DuckDB cannot open or write {self.path} ({text})",
                suggestion="check the path and the rights of the file and its folder: DuckDB writes there",
            )
        if isinstance(error, (self.driver.SerializationException, self.driver.FatalException)):
            return CatalogCorruptError(
                f"{self.path} cannot be read ({text})", suggestion="restore the file from a backup"
            )
        if isinstance(error, self.driver.TransactionException):
            return CatalogBusyError(
                f"DuckDB gave up a transaction: {text}", suggestion="try again", again=True
            )
        return CatalogError(f"DuckDB refused: {text}")
