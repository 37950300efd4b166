"""A session on Postgres: changes are gathered and sent together, since every round trip is a wait."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import CatalogError, CommitUnknownError, DeltaSqlError, commit_interrupted
from deltalakedb.metastore.engines.base import Row, Session, rows_to_arrow, update_by_key
from deltalakedb.metastore.user_sql import disturbing, first_word, not_theirs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import psycopg
    import pyarrow as pa

    from deltalakedb.metastore.engines.postgres import PostgresEngine
    from deltalakedb.metastore.statements import Statement

#: from here on COPY beats a pipelined INSERT
_COPY_FROM = 64
#: changes that become one statement at the most
_MOST_TOGETHER = 16


#: what a user's own statement may begin with: nothing of it ends a transaction or moves data past the server
_OWN = frozenset(
    {
        "alter", "analyze", "call", "comment", "create", "delete", "do", "drop", "explain", "grant", "insert",
        "merge", "notify", "refresh", "revoke", "select", "table", "truncate", "update", "values", "with",
    }
)  # fmt: skip
# What the server has counted in this transaction, the definitions of our tables and views, and the settings
# that our commit relies on.
_STATE_OF_OURS = """
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


class PostgresSession(Session):
    """A connection to the server, in autocommit mode or inside one transaction."""

    engine: PostgresEngine

    def __init__(
        self,
        engine: PostgresEngine,
        connection: psycopg.Connection[Row],
        *,
        retry: bool = False,
        single: bool = False,
        begin: tuple[str, ...] = (),
        repeatable: bool = False,
    ) -> None:
        self.engine = engine
        self.connection = connection
        self._retry = retry
        self._now: int | None = None
        #: statements whose answers nobody waits for, in groups that touch no row twice
        self._waiting: list[list[tuple[str, Sequence[Any]]]] = []
        self._depth = 0
        #: how the transaction begins: sent along with its first statement
        self._begin = begin
        #: doing everything twice does no harm
        self._repeatable = repeatable
        #: how our tables were before the first of a user's own statements
        self._ours: Row | None = None
        #: a user's own question was asked
        self.questioned = False
        # a prepared statement is one statement: the server refuses a second one after a semicolon
        self._prepare = True if single else None

    def run(self, statement: Statement | str, params: Sequence[Any] = ()) -> int:
        """Run a statement, or put it by while a batch is gathered."""
        if not self._depth:
            return super().run(statement, params)
        self._count(statement)
        self._later(str(statement), params)
        return -1

    def _execute(self, sql: str, params: Sequence[Any]) -> Any:
        if self._waiting:
            self.send()
        text, values = (_placeholders(sql), params) if params else (sql, None)
        if self._begin:
            return self.begin(text, values)
        try:
            return self.connection.execute(text, values, prepare=self._prepare)
        except self.engine.driver.Error as error:
            if not (self._retry and self.connection.closed):
                raise self.engine.translate(error) from error
        # a read on a connection that died while it rested: the server may have been restarted
        self.connection = self.engine.replace(self.connection)
        try:
            return self.connection.execute(text, values, prepare=self._prepare)
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error

    def begin(self, text: str | None = None, values: Sequence[Any] | None = None) -> Any:
        """Begin the transaction, with a first statement in the same round trip where one is given.

        A connection that died while it rested is replaced: nothing has happened yet.
        """
        for again in (False, True):
            try:
                with _pipeline(self.connection):
                    for statement in self._begin:
                        self.connection.execute(statement)
                    found = (
                        None if text is None else self.connection.execute(text, values, prepare=self._prepare)
                    )
            except self.engine.driver.Error as error:
                if again or not self.connection.closed:
                    raise self.engine.translate(error) from error
                self.connection = self.engine.replace(self.connection)
            else:
                break
        self._begin = ()
        return found

    @property
    def begun(self) -> bool:
        """Whether the server knows of the transaction."""
        return self.connection.info.transaction_status != 0

    def run_own(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run a user's statement: plain names are found as in the user's other sessions.

        The server takes it as a prepared statement, which is one statement, so its first word tells what it
        is. What it does to our tables, by functions and rules too, shows in what the server counts.
        """
        if (word := first_word(sql)) not in _OWN:
            raise disturbing(word.upper() or "this statement")
        lower = sql.lower()
        if "setval" in lower and "dl_" in lower:
            raise not_theirs()  # a sequence does not go back with its transaction, and nothing counts it
        if self._ours is None:
            self._ours = self._state_of_ours()
            self._prepare = True
        self.row("SELECT pg_catalog.set_config('search_path', ?, true)", (self._users_path(),))
        self.run(sql, params)

    def end_own(self) -> None:
        """Refuse the commit if the user's statements changed our tables, or how it is made safe."""
        if self._ours is None:
            return
        self.run("SET CONSTRAINTS ALL IMMEDIATE")  # triggers that were put off run now
        if self._state_of_ours() != self._ours:
            raise not_theirs()

    @property
    def used_by_others(self) -> bool:
        """Whether a user's own statements ran: settings, locks and temporary tables of theirs may be left."""
        return self._ours is not None

    def _state_of_ours(self) -> Row | None:
        self.row("SELECT pg_catalog.set_config('search_path', 'pg_catalog', true)")
        state = self.row(_STATE_OF_OURS, (self.engine.schema,))
        if state is not None and state[0] != "on":
            raise CatalogError(
                "statements of your own cannot be watched over while track_counts is off",
                suggestion="set track_counts=on in the server's configuration",
            )
        return state

    def _users_path(self) -> str:
        return self.engine.users_path(self.connection)

    def query(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        """A user's question: names are found as in ``run_own``, and whatever it does is undone at once.

        A wrong question would otherwise end the whole transaction.
        """
        self._check_query(sql)
        self.questioned = True
        self._control("SAVEPOINT dl_question")
        try:
            self.row("SELECT set_config('search_path', ?, true)", (self._users_path(),))
            return super().query(sql, params)
        finally:
            if not self.connection.closed:
                self._control("ROLLBACK TO SAVEPOINT dl_question; RELEASE SAVEPOINT dl_question")

    def _control(self, sql: str) -> None:
        if self._begin:
            self.begin()
        try:
            self.connection.execute(sql, prepare=False)
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error

    def arrow(self, statement: Statement | str, params: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Rows fetched by the driver, then turned into columns."""
        return rows_to_arrow(self.rows(statement, params), schema)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Pipelined INSERT for a few rows, COPY for many."""
        names = ", ".join(columns)
        if len(rows) < _COPY_FROM:
            marks = ", ".join("?" * len(columns))
            self.update_many(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)  # noqa: S608
            return
        self._copy(f"COPY {table} ({names}) FROM STDIN", rows)

    def insert_arrow(self, table: str, data: pa.Table, constants: Mapping[str, int | bool | str]) -> None:
        """COPY of bytes that are made by column: no Python object for any value."""
        from deltalakedb.metastore.engines import postgres_binary  # only bulk loads need it

        types = self._types(table)
        names = [*data.column_names, *constants]
        if self._waiting or self._begin:
            self.send()
        command = f"COPY {table} ({', '.join(names)}) FROM STDIN (FORMAT binary)"
        try:
            with self.connection.cursor() as cursor, cursor.copy(command) as copy:
                for piece in postgres_binary.copy_pieces(data, constants, types):
                    copy.write(piece)
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error

    def _types(self, table: str) -> dict[str, str]:
        """The types of a table's columns, as the server names them."""
        sql = (
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
        )
        return dict(self.rows(sql, (table,)))

    def update_rows(
        self, table: str, columns: Sequence[str], key: str, rows: Sequence[Sequence[Any]]
    ) -> None:
        """Pipelined UPDATEs for a few rows, a join with a copied temporary table for many."""
        if len(rows) < _COPY_FROM:
            self.update_many(update_by_key(table, columns, key), rows)
            return
        names = ", ".join([*columns, key])
        # each on its own, in a batch too: a table that is made, filled and dropped cannot be one statement
        run = super().run
        run(f"CREATE TEMP TABLE dl_incoming ON COMMIT DROP AS SELECT {names} FROM {table} WHERE false")  # noqa: S608
        self._copy(f"COPY dl_incoming ({names}) FROM STDIN", rows)
        changes = ", ".join(f"{c} = i.{c}" for c in columns)
        run(f"UPDATE {table} t SET {changes} FROM dl_incoming i WHERE t.{key} = i.{key}")  # noqa: S608
        run("DROP TABLE dl_incoming")

    def _copy(self, command: str, rows: Sequence[Sequence[Any]]) -> None:
        if self._waiting or self._begin:
            self.send()
        try:
            with self.connection.cursor() as cursor, cursor.copy(command) as copy:
                for row in rows:
                    copy.write_row(row)
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error

    def update_many(self, statement: Statement | str, params: Iterable[Sequence[Any]]) -> None:
        """The driver pipelines the statements: one round trip for all."""
        if self._depth:
            for one in params:
                self._later(str(statement), one)
            return
        if self._waiting or self._begin:
            self.send()
        try:
            with self.connection.cursor() as cursor, _pipeline(self.connection):
                cursor.executemany(_placeholders(str(statement)), params)
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error

    @contextmanager
    def batch(self, rows: int) -> Iterator[None]:
        """Changes are put by until a question is asked or the transaction ends, then sent together.

        Those of one batch become one statement, so they must not change the same row twice; what follows an
        inner batch joins it. COPY, which many rows take, cannot be part of it.
        """
        if rows >= _COPY_FROM:
            yield
            return
        self._waiting.append([])
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._waiting.append([])

    def barrier(self) -> None:
        """What follows is a statement of its own: one statement does not see its own changes."""
        if self._depth:
            self._waiting.append([])

    def _later(self, sql: str, params: Sequence[Any]) -> None:
        if not self._waiting or len(self._waiting[-1]) >= _MOST_TOGETHER:
            self._waiting.append([])
        self._waiting[-1].append((sql, params))

    def send(self, end: str | None = None) -> None:
        """Send what was put by, and the transaction's end where it is given, in one round trip.

        Raises:
            CommitUnknownError: The connection broke, and the end may have been reached.
        """
        groups, self._waiting = [g for g in self._waiting if g], []
        if self._begin and not groups and end is not None:
            return  # nothing was asked, and nothing is to be changed
        if self._begin and not self._repeatable:
            self.begin()
        elif self._begin and len(groups) == 1 and end is not None:
            self._begin, end = (), None  # one statement is a transaction by itself
        handled = sys.exc_info()[1]
        try:
            try:
                self._send(groups, end)
            except self.engine.driver.Error as error:
                if end is not None:
                    self._refuse_interrupted(error, handled)
                if not (self._begin and self.connection.closed):
                    raise
                # it died while it rested, or the note was made: then it is made again
                self.connection = self.engine.replace(self.connection)
                self._send(groups, end)
        except self.engine.driver.Error as error:
            if end is not None and (self.connection.closed or _lost(error)):
                raise _unknown() from error
            raise self.engine.translate(error) from error
        except DeltaSqlError:
            raise
        except Exception as error:
            if end is None:
                raise
            raise commit_interrupted(error) from error
        self._begin = ()

    def _send(self, groups: Sequence[Sequence[tuple[str, Sequence[Any]]]], end: str | None) -> None:
        together = len(self._begin) + len(groups) + bool(end) > 1
        with _pipeline(self.connection) if together else nullcontext():
            for statement in self._begin:
                self.connection.execute(statement)
            for group in groups:
                values = [value for _, params in group for value in params]
                self.engine.changes(self.connection).execute(
                    _one_statement(tuple(s for s, _ in group)), values
                )
            if end is not None:
                self.connection.execute(end)

    def change(
        self, statement: Statement, params: Sequence[Any], then: tuple[Statement, Sequence[Any]]
    ) -> tuple[list[Row], list[Row]]:
        """Run a statement that is a transaction by itself, and a question in the same round trip.

        The server answers the question before it commits, and with what others had committed by then: the
        statement itself, where it waits for a lock, sees only what was there when it began.

        Raises:
            CommitUnknownError: The connection broke, and it may have happened or happen yet.
        """
        self._count(statement)
        handled = sys.exc_info()[1]
        try:
            cursor = self.engine.changes(self.connection)
            with self.connection.pipeline():
                cursor.execute(_placeholders(str(statement)), params, prepare=True)
                asked = self.connection.execute(_placeholders(str(then[0])), then[1], prepare=True)
            # only now it is committed, and its rows tell what happened
            return cursor.fetchall(), asked.fetchall()
        except self.engine.driver.Error as failure:
            self._refuse_interrupted(failure, handled)
            # of an aborted pipeline the reason counts
            cause, aborted = failure.__context__, self.engine.driver.errors.PipelineAborted
            known = isinstance(failure, aborted) and isinstance(cause, self.engine.driver.Error)
            error = cause if known else failure
            if self.connection.closed or _lost(error):
                raise _unknown() from error
            raise self.engine.translate(error) from error
        except Exception as error:
            # raised by a signal handler, for one: the statement may be on its way
            raise commit_interrupted(error) from error

    def _refuse_interrupted(self, error: BaseException, handled: BaseException | None) -> None:
        """Raise the exception of a signal's handler that cut the driver off: it only shows as the context.

        Args:
            error: The driver's own error, which came of it.
            handled: What was being handled before; it has nothing to do with this.
        """
        cause = error.__context__
        while cause is not None and cause is not handled:
            if not isinstance(cause, self.engine.driver.Error):
                if isinstance(cause, Exception):
                    raise commit_interrupted(cause) from cause
                raise cause
            cause = cause.__context__

    def take_time(self, now_ms: int) -> None:
        """The server's clock, told by another answer."""
        if self._now is None:
            self._now = now_ms

    def now_ms(self) -> int:
        """The server's clock; one moment stands for a whole transaction."""
        if self._now is None or self._retry:
            row = self.row("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            self._now = int(row[0]) if row else super().now_ms()
        return self._now


@contextmanager
def _pipeline(connection: psycopg.Connection[Row]) -> Iterator[None]:
    """Statements sent together, after which the server may end an idle transaction.

    The driver sends a Flush after the last Sync, and that message stops the server's clock for idle
    transactions: a client that stopped there would keep its locks for good. After a Sync the server sends
    everything anyway.
    """

    def end() -> Iterator[Any]:
        try:
            pipeline._enqueue_sync()  # noqa: SLF001
            yield from pipeline._communicate_gen()  # noqa: SLF001
        finally:
            yield from pipeline._fetch_gen(flush=False)  # noqa: SLF001

    with connection.pipeline() as pipeline:
        if hasattr(pipeline, "_exit_gen"):  # what is private to the driver may change
            pipeline._exit_gen = end  # type: ignore[method-assign, assignment]  # noqa: SLF001
        yield


def _unknown() -> CommitUnknownError:
    return CommitUnknownError(
        "the connection broke while the transaction was being committed",
        suggestion="ask again with the same commit id: it tells whether it happened",
    )


def _lost(error: psycopg.Error) -> bool:
    """Whether the answer was lost: an ended backend may have committed, and says so no more."""
    state = error.sqlstate
    return state is None or state.startswith(("08", "57P"))


_LITERAL_OR_MARK = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?(?:\*/|\Z)|\?", re.DOTALL)


@lru_cache(maxsize=512)
def _placeholders(sql: str) -> str:
    """``?`` as Postgres's ``$1``; question marks inside literals, names and comments stay."""
    numbers = count(1)
    return _LITERAL_OR_MARK.sub(lambda m: f"${next(numbers)}" if m[0] == "?" else m[0], sql)


@lru_cache(maxsize=512)
def _one_statement(parts: tuple[str, ...]) -> str:
    """Changes as one statement: the server parses, plans and answers once."""
    *first, last = parts
    if not first:
        return _placeholders(last)
    named = ", ".join(f"dl_{number} AS ({part})" for number, part in enumerate(first))
    return _placeholders(f"WITH {named} {last}")
