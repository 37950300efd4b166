"""Postgres: a schema in a shared database; heads are locked by row, everything else runs side by side.

Every round trip is a wait, so a session collects changes and sends them together, with the transaction's
BEGIN or COMMIT if that comes next.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltalakedb import extras
from deltalakedb.address import Address, is_local
from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogBusyError,
    CatalogCorruptError,
    CatalogEncodingError,
    CatalogError,
    CatalogFullError,
    CatalogNotFoundError,
    CatalogUnavailableError,
    CommitUnknownError,
    DeltaSqlError,
    TableExistsError,
    commit_interrupted,
)
from deltalakedb.metastore.engines.base import Dialect, Durability, Engine, Row, RowChange, Rows, Session
from deltalakedb.metastore.engines.pool import Pool
from deltalakedb.metastore.user_sql import first_word, interferes, protected_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import psycopg
    import pyarrow as pa

    from deltalakedb.metastore.statements import Statement
    from deltalakedb.settings import Config

DIALECT = Dialect(
    name="postgres",
    tokens={
        "ctext": 'TEXT COLLATE "C"',
        "bigint": "BIGINT",
        "blob": "BYTEA",
        "file_id": "BIGINT PRIMARY KEY",
        "auto_table_id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "auto_audit_id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    },
    indexed=True,
    ids="SELECT unnest(?::bigint[])",
    join="string_agg({}::text, chr(10))",
    lock_rows=" FOR UPDATE OF h",
    fast_append=True,
    after_load=("ANALYZE dl_files", "ANALYZE dl_commits"),
)


#: levels of synchronous_commit that keep an acknowledged commit through a crash, standbys included
_DURABLE = ("on", "remote_apply")
# One query for every new connection. What is published must not be lost, so weaker levels are raised; the
# user's own search path is kept for the user's own statements. All is read before anything is set.
_SET_UP = f"""
WITH server AS MATERIALIZED (
  SELECT current_setting('search_path') AS path, current_setting('synchronous_commit') AS sync,
         current_setting('fsync') AS fsync, current_setting('server_encoding') AS encoding
)
SELECT path, sync, fsync, encoding, set_config('search_path', $1, false),
       set_config('synchronous_commit', CASE WHEN sync IN {_DURABLE} THEN sync ELSE 'on' END, false)
FROM server
"""  # noqa: S608


#: how often a connection that dies at once is made again
_FRESH_ATTEMPTS = 3
#: from here on COPY beats a pipelined INSERT
_COPY_FROM = 64
#: rows of one piece of a bulk load
_CSV_ROWS = 16_384
#: the most changes that become one statement
_MOST_TOGETHER = 16

#: what a user's own statement may begin with: none of them ends a transaction or transfers data by COPY
_OWN = frozenset(
    {
        "alter", "analyze", "call", "comment", "create", "delete", "do", "drop", "explain", "grant", "insert",
        "merge", "notify", "refresh", "revoke", "select", "table", "truncate", "update", "values", "with",
    }
)  # fmt: skip
# What the server has counted in this transaction, the definitions of our tables and views, and the settings
# that our commit relies on.
_CATALOG_STATE = """
WITH ours AS MATERIALIZED (
  SELECT c.oid, c.relname, c.relfilenode, c.xmin FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = ? AND c.relname LIKE 'dl\\_%'
)
SELECT current_setting('track_counts'), current_setting('synchronous_commit'),
  current_setting('session_replication_role'), current_setting('role'), session_user::text,
  (SELECT string_agg(concat_ws(' ', oid, relname, relfilenode, xmin,
     pg_stat_get_xact_tuples_inserted(oid), pg_stat_get_xact_tuples_updated(oid),
     pg_stat_get_xact_tuples_deleted(oid)), ';' ORDER BY oid) FROM ours),
  (SELECT string_agg(concat_ws(' ', a.attrelid, a.attnum, a.xmin), ';' ORDER BY a.attrelid, a.attnum)
   FROM pg_attribute a JOIN ours ON ours.oid = a.attrelid),
  (SELECT string_agg(concat_ws(' ', t.oid, t.xmin), ';' ORDER BY t.oid)
   FROM pg_trigger t JOIN ours ON ours.oid = t.tgrelid),
  (SELECT string_agg(concat_ws(' ', r.oid, r.xmin), ';' ORDER BY r.oid)
   FROM pg_rewrite r JOIN ours ON ours.oid = r.ev_class),
  (SELECT string_agg(concat_ws(' ', i.indexrelid, i.xmin), ';' ORDER BY i.indexrelid)
   FROM pg_index i JOIN ours ON ours.oid = i.indrelid)
"""


class ServerSettings(NamedTuple):
    """What the server had set for a connection before we did."""

    search_path: str
    synchronous_commit: str
    fsync: str
    encoding: str


class PostgresSession(Session):
    """A connection to the server, in autocommit mode or inside one transaction.

    Args:
        engine: The database.
        connection: A connection of its pool.
        begin: How the transaction begins: sent along with its first statement. Empty in autocommit mode.
        retry: Autocommit mode for statements that may run twice: a dead connection is replaced at any time.
        single: Every statement is a prepared one: the server refuses a second one after a semicolon.
    """

    engine: PostgresEngine

    def __init__(
        self,
        engine: PostgresEngine,
        connection: psycopg.Connection[Row],
        *,
        begin: tuple[str, ...] = (),
        retry: bool = False,
        single: bool = False,
    ) -> None:
        super().__init__(engine, defers=bool(begin))
        self.connection = connection
        self._begin, self._retry = begin, retry
        self._prepare = True if single else None
        self._binary = False
        self._now: int | None = None
        #: the state of our tables before the first of a user's own statements
        self._ours: Row | None = None
        #: a user's own query ran
        self.user_query_ran = False

    def _execute(self, sql: str, params: Sequence[Any]) -> Any:
        text, values = (_placeholders(sql), params) if params else (sql, None)
        return self._exchange(
            lambda: self.connection.execute(text, values, prepare=self._prepare, binary=self._binary)
        )

    def blobs(self, statement: Statement | str, params: Sequence[Any] = ()) -> list[Row]:
        # as text, a binary value has twice its size
        self._binary = True
        try:
            return self.rows(statement, params)
        finally:
            self._binary = False

    def id_list(self, ids: list[int]) -> str:
        # the driver takes several times as long for a list
        return f"{{{','.join(map(str, ids))}}}"

    def _exchange(self, ask: Callable[[], Any]) -> Any:
        """Run a statement, after the transaction's begin and in the same round trip if that is due.

        A connection that died is replaced, at most twice, if nothing has happened yet.
        """
        for again in (True, True, False):
            try:
                with _pipeline(self.connection) if self._begin else nullcontext():
                    for statement in self._begin:
                        self.connection.execute(statement)
                    found = ask()
            except self.engine.driver.DataError as error:  # the driver's own have no SQLSTATE either
                raise self.engine.translate(error) from error
            except self.engine.driver.Error as error:
                dead = self.connection.closed or _lost(error)
                if not (again and dead and (self._begin or self._retry)):
                    raise self.engine.translate(error) from error
                self.connection = self.engine.replace(self.connection)
            else:
                break
        self._begin = ()
        return found

    def _ensure_begun(self) -> None:
        if self._begin:
            self._exchange(lambda: None)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error

    @property
    def begun(self) -> bool:
        """Whether the server knows of the transaction."""
        return self.connection.info.transaction_status != 0

    def run_user_sql(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run a user's statement: plain names are found as in the user's other sessions.

        The server takes it as a prepared statement, which is one statement, so its first word decides what
        it is. What it does to our tables, by functions and rules too, shows in what the server counts.
        """
        if (word := first_word(sql)) not in _OWN:
            raise interferes(word.upper() or "this statement")
        lower = sql.lower()
        if "setval" in lower and "dl_" in lower:
            raise protected_table()  # a rollback does not reset a sequence, and nothing counts its changes
        if self._ours is None:
            self._ours = self._catalog_state()
            self._prepare = True
        self._use_users_path()
        self.run(sql, params)

    def end_own(self) -> None:
        """Refuse the commit if the user's statements changed our tables, or how it is made safe."""
        if self._ours is None:
            return
        self.run("SET CONSTRAINTS ALL IMMEDIATE")  # runs deferred triggers now
        if self._catalog_state() != self._ours:
            raise protected_table()

    @property
    def ran_user_sql(self) -> bool:
        """Whether a user's own statements ran: their settings, locks and temporary tables may be left."""
        return self._ours is not None

    def _catalog_state(self) -> Row | None:
        self.row("SELECT pg_catalog.set_config('search_path', 'pg_catalog', true)")
        state = self.row(_CATALOG_STATE, (self.engine.schema,))
        if state is not None and state[0] != "on":
            raise CatalogError(
                "your own statements cannot be checked while track_counts is off",
                suggestion="set track_counts=on in the server's configuration",
            )
        return state

    def _use_users_path(self) -> None:
        """Find plain names in the catalog's schema, then as in the user's other sessions."""
        path = [self.engine.search_path, self.engine.server(self.connection).search_path]
        self.row("SELECT pg_catalog.set_config('search_path', ?, true)", (", ".join(filter(None, path)),))

    def query(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        """A user's query: names are found as in ``run_user_sql``, and whatever it does is undone at once.

        A wrong query would otherwise end the whole transaction.
        """
        self._check_query(sql)
        self.user_query_ran = True
        self.flush()
        self._control("SAVEPOINT dl_query")
        try:
            self._use_users_path()
            return super().query(sql, params)
        finally:
            if not self.connection.closed:
                self._control("ROLLBACK TO SAVEPOINT dl_query; RELEASE SAVEPOINT dl_query")

    def _control(self, sql: str) -> None:
        self._exchange(lambda: self.connection.execute(sql, prepare=False))

    def insert_arrow(self, table: str, data: pa.Table) -> None:
        names = ", ".join(data.column_names)
        self.flush()
        self._copy(f"COPY {table} ({names}) FROM STDIN (FORMAT csv)", pieces=_csv_pieces(data))

    def _write(self, change: RowChange, rows: Rows) -> None:
        """Make one kind of change, by COPY if the rows are many."""
        if self._retry:
            for row in rows:
                self._execute(change.sql, row)
            return
        if len(rows) < _COPY_FROM or not change.columns:
            self._ensure_begun()
            # the driver pipelines the statements: one round trip for all
            with self._translated(), _pipeline(self.connection):
                self.engine.changes(self.connection).executemany(_placeholders(change.sql), rows)
            return
        table, key = change.table, change.key
        if key is None:
            self._copy(f"COPY {table} ({', '.join(change.columns)}) FROM STDIN", rows)
            return
        names = ", ".join([*change.columns, key])
        values = ", ".join(f"{c} = i.{c}" for c in change.columns)
        made = f"CREATE TEMP TABLE dl_incoming ON COMMIT DROP AS SELECT {names} FROM {table} WHERE false"  # noqa: S608
        self.run(made)
        self._copy(f"COPY dl_incoming ({names}) FROM STDIN", rows)
        self.run(f"UPDATE {table} t SET {values} FROM dl_incoming i WHERE t.{key} = i.{key}")  # noqa: S608
        self.run("DROP TABLE dl_incoming")

    def _copy(self, command: str, rows: Rows = (), *, pieces: Iterable[Any] = ()) -> None:
        self._ensure_begun()
        with self._translated(), self.connection.cursor() as cursor, cursor.copy(command) as copy:
            for row in rows:
                copy.write_row(row)
            for piece in pieces:
                copy.write(piece)

    def flush(self) -> None:
        if self._groups:
            self._ensure_begun()
            with self._translated():
                self._send()

    def commit(self) -> None:
        """End the transaction: the waiting changes and the COMMIT take one round trip."""
        if self._begin and not self._groups:
            return  # the server was sent nothing
        self._ensure_begun()
        with self._ending(sys.exc_info()[1]):
            self._send("COMMIT")

    def _send(self, end: str | None = None) -> None:
        """Send the waiting changes in one round trip: those of a group, which concern different rows, as one
        statement, since the server then parses, plans and answers once."""
        groups, self._groups = self._groups, []
        changes = [[(c.sql, row) for c, rows in group.values() for row in rows] for group in groups]
        pieces = [
            some[at : at + _MOST_TOGETHER] for some in changes for at in range(0, len(some), _MOST_TOGETHER)
        ]
        with _pipeline(self.connection) if end or len(pieces) > 1 else nullcontext():
            for piece in pieces:
                parts, values = zip(*piece, strict=True)
                try:
                    self.engine.changes(self.connection).execute(_one_statement(parts), list(chain(*values)))
                except (UnicodeError, self.engine.driver.DataError) as error:
                    if getattr(error, "sqlstate", None) is not None:
                        raise
                    # refused by the driver, so the end is not sent and the outcome is known
                    raise CatalogError(f"Postgres cannot store a value: {error}") from error
            if end is not None:
                self.connection.execute(end)

    def run_alone(
        self, statement: Statement, params: Sequence[Any], then: tuple[Statement, Sequence[Any]]
    ) -> tuple[list[Row], list[Row]]:
        """The server answers the query before it commits, and with what others had committed by then: the
        statement itself, if it waits for a lock, sees only what was there when it began.
        """
        self._count(statement)
        with self._ending(sys.exc_info()[1]):
            cursor = self.engine.changes(self.connection)
            with self.connection.pipeline():
                cursor.execute(_placeholders(str(statement)), params, prepare=True)
                query = self.connection.execute(_placeholders(str(then[0])), then[1], prepare=True)
            # only now it is committed, and its rows report what happened
            return cursor.fetchall(), query.fetchall()

    @contextmanager
    def _ending(self, handled: BaseException | None) -> Iterator[None]:
        """Report errors of a round trip that may have committed a transaction: its outcome may be unknown.

        ``handled`` is what was being handled before; it has nothing to do with this.
        """
        try:
            yield
        except self.engine.driver.Error as failure:
            self._refuse_interrupted(failure, handled)
            # of an aborted pipeline the reason counts
            cause, aborted = failure.__context__, self.engine.driver.errors.PipelineAborted
            known = isinstance(failure, aborted) and isinstance(cause, self.engine.driver.Error)
            error = cause if known else failure
            if self.connection.closed or _lost(error):
                raise CommitUnknownError(
                    "the connection broke while the transaction was being committed",
                    suggestion="try again with the same commit id: it returns whether it happened",
                ) from error
            raise self.engine.translate(error) from error
        except DeltaSqlError:
            raise
        except Exception as error:
            # raised by a signal handler, for one: the statement may be on its way
            raise commit_interrupted(error) from error

    def _refuse_interrupted(self, error: BaseException, handled: BaseException | None) -> None:
        """Raise the exception of a signal's handler that cut the driver off: it only shows as the context."""
        cause = error.__context__
        while cause is not None and cause is not handled:
            if not isinstance(cause, self.engine.driver.Error):
                if isinstance(cause, Exception):
                    raise commit_interrupted(cause) from cause
                raise cause
            cause = cause.__context__

    def set_clock(self, now_ms: int) -> None:
        if self._now is None:
            self._now = now_ms

    def now_ms(self) -> int:
        """The server's clock, read once in a transaction."""
        if self._now is None or self._retry:
            row = self.row("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            self._now = int(row[0]) if row else super().now_ms()
        return self._now


class PostgresEngine(Engine):
    """A catalog in a schema of a Postgres database."""

    dialect = DIALECT

    def __init__(self, address: Address, config: Config) -> None:
        super().__init__(address, config)
        self.driver = extras.require("psycopg", "postgres", "catalogs on Postgres")
        self.schema = address.schema or "public"
        #: the path of our own statements: other schemas cannot shadow our functions and tables
        self.search_path = quote_name(self.schema)
        #: of each open connection: what the server had set, and the cursor for our own changes
        self._known: dict[psycopg.Connection[Row], tuple[ServerSettings, psycopg.Cursor[Row]]] = {}
        # The server ends a writer's transaction if its client stops or is cut off in the middle: others wait
        # for its locks. Transactions that only read may rest as long as their user likes.
        limit = int(config.postgres.hold_timeout_s * 1000)
        self._bounded = (f"SET LOCAL idle_in_transaction_session_timeout = {limit}",) if limit else ()
        self._pool = Pool(self._connect, self._close, self._answers, config.pool)

    def connection_settings(self) -> dict[str, Any]:
        """What a connection is made with; whether TLS is required depends on where libpq really connects."""
        address, config = self.address, self.config.postgres
        settings = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password.reveal() if address.password else None,
            "dbname": address.database,
            "connect_timeout": int(config.connect_timeout_s),
            "application_name": "deltalakedb",
            "client_encoding": "UTF8",  # by default the database's own, which may know no characters at all
        }
        # a connection over a dead network ends after some seconds; the server's end of the same: it would
        # keep the locks of a client that is cut off for hours
        if limit := config.network_timeout_s:
            idle, interval = max(1, limit // 2), max(1, limit // 4)
            keepalives = {"keepalives_idle": idle, "keepalives_interval": interval, "keepalives_count": 2}
            settings |= {"keepalives": 1, **keepalives, "tcp_user_timeout": limit * 1000}
        settings |= address.driver_options(self._libpq_environment())
        server_options = [f"-c lock_timeout={int(config.lock_timeout_s * 1000)}"]
        if config.statement_timeout_s:
            server_options.append(f"-c statement_timeout={int(config.statement_timeout_s * 1000)}")
        if limit:
            server_options += [f"-c tcp_{name}={value}" for name, value in keepalives.items()]
            server_options.append(f"-c tcp_user_timeout={limit * 1000}")
        if own := settings.get("options"):
            server_options.append(str(own))
        # blind appends wait for a head and then take it as it is, whatever a server's default may be
        server_options.append(r"-c default_transaction_isolation=read\ committed")
        settings["options"] = " ".join(server_options)
        return {k: v for k, v in settings.items() if v is not None}

    def _libpq_environment(self) -> dict[str, str]:
        """What libpq takes from the environment and from service files, by the names of its variables."""
        return {
            option.envvar.decode(): option.val.decode()
            for option in self.driver.pq.Conninfo.get_defaults()
            if option.envvar and option.val is not None and option.val != option.compiled
            # the settings of a service are among the other options already
            if option.keyword not in (b"service", b"servicefile")
        }

    def _refuse_unverified(self, connection: psycopg.Connection[Row], given: Mapping[str, Any]) -> None:
        """Refuse a connection to another machine under a local name, as with a false localhost."""
        peer = connection.info.hostaddr
        if is_local(peer) or "sslmode" in given or "PGSSLMODE" in self._libpq_environment():
            return
        raise CatalogAccessError(
            f"{self.address.catalog.to_uri()} is on another machine, {peer}, and TLS is not verified",
            suggestion="check what the host name resolves to, or set sslmode in the address",
        )

    def _connect(self) -> psycopg.Connection[Row]:
        given = self.connection_settings()
        attempts = _FRESH_ATTEMPTS
        while True:
            attempts -= 1
            connection: psycopg.Connection[Row] | None = None
            try:
                connection = self.driver.connect(
                    autocommit=True, cursor_factory=self.driver.RawCursor, **given
                )
                self._refuse_unverified(connection, given)
                found = connection.execute(_SET_UP, (self.search_path,)).fetchone()
                connection.prepare_threshold = 3
                # whole numbers of our changes always have one type: the driver's choice by their size would
                # make many prepared statements of one
                changes = connection.cursor()
                changes.adapters.register_dumper(int, self.driver.types.numeric.Int8Dumper)
                self._known[connection] = ServerSettings(*(found or ("",) * 4)[:4]), changes
                return connection  # noqa: TRY300 - the loop ends
            except BaseException as error:
                # if the server ended it at once, another may succeed
                ended = connection is not None and connection.closed
                if connection is not None:
                    connection.close()
                if not isinstance(error, self.driver.Error):
                    raise
                if not (ended and attempts):
                    raise self.translate(error, connecting=True) from error

    def _close(self, connection: psycopg.Connection[Row]) -> None:
        self._known.pop(connection, None)
        connection.close()

    def durability(self) -> Durability:
        server = self._settings()
        if server.fsync != "on":
            return Durability(
                False,
                f"the server runs with fsync={server.fsync}: a crash may lose or damage commits",
                "set fsync=on in the server's configuration",
            )
        if server.synchronous_commit in _DURABLE:
            return Durability(True, f"synchronous_commit={server.synchronous_commit}")
        detail = (
            f"the server has synchronous_commit={server.synchronous_commit}; commits of the catalog use on"
        )
        return Durability(True, detail)

    def encoding_error(self) -> CatalogEncodingError | None:
        """Other encodings lack characters that paths and rows may have; SQL_ASCII knows none at all."""
        if (found := self._settings().encoding) == "UTF8":
            return None
        return CatalogEncodingError(
            f"the database {self.address.database} stores text as {found}, not as UTF8",
            suggestion="create one for the catalog: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )

    def _settings(self) -> ServerSettings:
        with self.read() as session:
            return self.server(session.connection)

    def server(self, connection: psycopg.Connection[Row]) -> ServerSettings:
        return self._known[connection][0]

    def changes(self, connection: psycopg.Connection[Row]) -> psycopg.Cursor[Row]:
        return self._known[connection][1]

    @contextmanager
    def _lend(self, **options: Any) -> Iterator[PostgresSession]:
        session = PostgresSession(self, self._pool.take(), **options)
        try:
            yield session
        finally:
            connection = session.connection
            if session.ran_user_sql or connection.closed or session.begun:
                self._pool.discard(connection)
            else:
                self._pool.give(connection)

    def read(self) -> AbstractContextManager[PostgresSession]:
        return self._lend(retry=True)

    #: notes are single statements, which may run twice
    relaxed_write = read

    @contextmanager
    def read_only(self, *, will_query: bool = False) -> Iterator[Session]:
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        with self._transaction(begin, single=True) as session:
            if not will_query:
                session.row("SELECT 1")  # the snapshot is taken by the first query
            yield session

    def write(self) -> AbstractContextManager[Session]:
        return self._transaction("BEGIN", *self._bounded)

    @contextmanager
    def _transaction(self, *begin: str, single: bool = False) -> Iterator[Session]:
        with self._lend(begin=begin, single=single) as session:
            try:
                yield session
                session.end_own()
            except BaseException:
                if session.begun:
                    with suppress(self.driver.Error):
                        session.connection.execute("ROLLBACK")
                raise
            if not single:
                session.commit()
                return
            # Whatever a user's query set for its session, set_config() for one, is undone. After our own
            # there is nothing to undo, and the driver would forget all prepared statements with it.
            end = "ROLLBACK; SELECT pg_catalog.pg_advisory_unlock_all()" if session.user_query_ran else "END"
            with suppress(self.driver.Error):
                session.connection.execute(end, prepare=False)

    def replace(self, connection: psycopg.Connection[Row]) -> psycopg.Connection[Row]:
        return self._pool.swap(connection)

    def _answers(self, connection: psycopg.Connection[Row]) -> bool:
        try:
            connection.execute("SELECT 1")
        except self.driver.Error:
            return False
        return True

    def prepare(self, session: Session) -> None:
        session.row("SELECT pg_advisory_xact_lock(hashtextextended(?, 7))", (f"deltalakedb:{self.schema}",))
        if session.row("SELECT 1 FROM pg_namespace WHERE nspname = ?", (self.schema,)) is None:
            session.run(f"CREATE SCHEMA {self.search_path}")

    def has_schema_table(self, session: Session) -> bool:
        found = session.row("SELECT to_regclass(?)::text", (f"{self.search_path}.dl_schema_version",))
        return found is not None and found[0] is not None

    def close(self) -> None:
        self._pool.close()

    def translate(self, error: psycopg.Error, *, connecting: bool = False) -> DeltaSqlError:
        """The driver's error as ours, by its SQLSTATE."""
        state = error.sqlstate or (_refusal(str(error)) if connecting else "")
        text = " ".join(str(error).split())
        where = self.address.catalog.to_uri()
        for states, kind, message, suggestion in _TROUBLES:
            if state.startswith(states):
                return kind(message.format(where=where, text=text), suggestion=suggestion)
        if state in {"55P03", "40P01", "40001", "57014"}:
            return CatalogBusyError(
                f"Postgres gave up waiting: {text}",
                suggestion="try again; look for long transactions",
                again=state != "57014",
                waited=state == "55P03",
            )
        duplicate = error.diag.table_name if state == "23505" else None
        if duplicate == "dl_transactions":
            return CatalogBusyError(
                "a transaction with the same id was committed a moment ago",
                suggestion="try again: it returns the outcome of that one",
                again=True,
            )
        if duplicate == "dl_tables":
            return TableExistsError(
                "a table's name or location already exists", suggestion="choose another one"
            )
        broken = isinstance(error, self.driver.OperationalError)
        if connecting or broken or state.startswith(("08", "53", "57")):
            return CatalogUnavailableError(
                f"cannot reach {where}: {text}",
                suggestion="check host and port, and that the server is running and accepts more connections",
            )
        return CatalogError(f"Postgres refused: {text}")


#: errors by the beginnings of their SQLSTATEs: class, message, suggestion
_TROUBLES: Final[Sequence[tuple[tuple[str, ...], type[CatalogError], str, str]]] = (
    (
        ("28", "42501"),
        CatalogAccessError,
        "Postgres refused access to {where}: {text}",
        "check user and password, and GRANT USAGE, CREATE on the schema",
    ),
    (
        ("25006",),
        CatalogAccessError,
        "Postgres allows no changes at {where}: {text}",
        "the server is a standby or has default_transaction_read_only set: write to the primary server",
    ),
    (
        ("3D000", "3F000"),
        CatalogNotFoundError,
        "{where}: {text}",
        "check its name in the address, or create it: `createdb NAME`, then `deltasql init ADDRESS`",
    ),
    (
        ("25P03",),
        CatalogUnavailableError,
        "Postgres ended a transaction whose client stopped: {text}",
        "try again; if the client was not stopped, raise postgres.hold_timeout_s",
    ),
    (("53100", "53200"), CatalogFullError, "Postgres has no room: {text}", "free disk space or memory"),
    (("XX001", "XX002"), CatalogCorruptError, "Postgres found damage: {text}", "restore from a backup"),
)


#: libpq keeps no SQLSTATE of a refused connection, so the server's message has to do
_REFUSALS: Final = (
    ("28P01", re.compile(r"password authentication failed|no password supplied")),
    (
        "28000",
        re.compile(r"no pg_hba.conf entry|is not permitted to log in|certificate|role .* does not exist"),
    ),
    ("42501", re.compile(r"permission denied")),
    ("3D000", re.compile(r"database .* does not exist")),
)


def _refusal(text: str) -> str:
    """The SQLSTATE of a refused connection, or an empty string."""
    return next((state for state, message in _REFUSALS if message.search(text)), "")


def quote_name(name: str) -> str:
    """A SQL identifier, whatever characters it holds."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _pipeline(connection: psycopg.Connection[Row]) -> Iterator[None]:
    """Statements sent together, after which the server may end an idle transaction.

    The driver sends a Flush after the last Sync, and that message stops the server's clock for idle
    transactions: a client that stopped there would keep its locks for good. After a Sync the server sends
    everything anyway.
    """

    from psycopg.generators import send

    def end() -> Iterator[Any]:
        try:
            pipeline._enqueue_sync()  # noqa: SLF001
            yield from pipeline._communicate_gen()  # noqa: SLF001
        finally:
            yield from send(pipeline.pgconn)  # what the socket had no room for
            yield from pipeline._fetch_gen(flush=False)  # noqa: SLF001

    with connection.pipeline() as pipeline:
        if hasattr(pipeline, "_exit_gen"):  # what is private to the driver may change
            pipeline._exit_gen = end  # type: ignore[method-assign, assignment]  # noqa: SLF001
        yield


def _lost(error: psycopg.Error) -> bool:
    """Whether the answer was lost: a backend that ended may have committed without reporting it."""
    state = error.sqlstate
    return state is None or state.startswith(("08", "57P"))


_LITERAL_OR_MARK = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?(?:\*/|\Z)|\?", re.DOTALL)


@lru_cache(maxsize=512)
def _placeholders(sql: str) -> str:
    """``?`` as Postgres's ``$1``; question marks inside literals, names and comments stay."""
    numbers = count(1)
    return _LITERAL_OR_MARK.sub(lambda m: f"${next(numbers)}" if m[0] == "?" else m[0], sql)


def _csv_pieces(data: pa.Table) -> Iterator[memoryview]:
    """Rows as CSV. Every value is quoted and a null is not, which is how COPY knows it from an empty text."""
    from pyarrow import BufferOutputStream, csv  # only bulk loads need it

    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    for start in range(0, data.num_rows, _CSV_ROWS):
        sink = BufferOutputStream()
        csv.write_csv(data.slice(start, _CSV_ROWS), sink, options)
        yield memoryview(sink.getvalue())


@lru_cache(maxsize=512)
def _one_statement(parts: tuple[str, ...]) -> str:
    *first, last = parts
    if not first:
        return _placeholders(last)
    named = ", ".join(f"dl_{number} AS ({part})" for number, part in enumerate(first))
    return _placeholders(f"WITH {named} {last}")
