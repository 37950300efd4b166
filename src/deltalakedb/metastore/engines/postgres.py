"""Postgres: a schema in a shared database; heads are locked by row, everything else runs side by side."""

from __future__ import annotations

import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalakedb import extras
from deltalakedb.address import is_local
from deltalakedb.exceptions import (
    CatalogAccessError,
    CatalogBusyError,
    CatalogCorruptError,
    CatalogEncodingError,
    CatalogError,
    CatalogFullError,
    CatalogNotFoundError,
    CatalogUnavailableError,
    DeltaSqlError,
    TableExistsError,
)
from deltalakedb.metastore.engines.base import KEYS, Dialect, Durability, Engine, Row, Session
from deltalakedb.metastore.engines.pool import Pool
from deltalakedb.metastore.engines.postgres_session import PostgresSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import psycopg

    from deltalakedb.address import Address
    from deltalakedb.metastore.statements import Statement
    from deltalakedb.settings import Config

DIALECT = Dialect(
    name="postgres",
    tokens={
        "text": "TEXT",
        "ctext": 'TEXT COLLATE "C"',
        "bigint": "BIGINT",
        "small": "SMALLINT",
        "bool": "BOOLEAN",
        "blob": "BYTEA",
        "file_id": "BIGINT PRIMARY KEY",
        "auto_table_id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "auto_audit_id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "files_side_columns": "",
        **KEYS,
    },
    indexed=True,
    side_table=True,
    lock_rows=" FOR UPDATE OF h",
    sql_md5=True,
    at_once=True,
    before_index=("SET LOCAL maintenance_work_mem = '256MB'",),
    after_load=("ANALYZE dl_files", "ANALYZE dl_file_json", "ANALYZE dl_commits"),
)


#: levels of synchronous_commit that keep an acknowledged commit through a crash, standbys included
_DURABLE = ("on", "remote_apply")
# One question for every new connection. What is published must not be lost, so weaker levels are raised; the
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


class ServerSettings(NamedTuple):
    """What the server had set for a session before we did."""

    search_path: str
    synchronous_commit: str
    fsync: str
    encoding: str


#: how often a connection that dies at once is made again
_FRESH_ATTEMPTS = 3


class PostgresEngine(Engine):
    """A catalog in a schema of a Postgres database."""

    dialect = DIALECT

    def __init__(self, address: Address, config: Config) -> None:
        super().__init__(address, config)
        self.driver = extras.require("psycopg", "postgres", "catalogs on Postgres")
        self.schema = address.schema or "public"
        #: where our own statements look: other schemas cannot shadow our functions and tables
        self.search_path = quote_name(self.schema)
        self._server: weakref.WeakKeyDictionary[psycopg.Connection[Row], ServerSettings] = (
            weakref.WeakKeyDictionary()
        )
        self._cursors: weakref.WeakKeyDictionary[psycopg.Connection[Row], psycopg.Cursor[Row]] = (
            weakref.WeakKeyDictionary()
        )
        # The server ends a writer's transaction if its client stops or is cut off in the middle: others wait
        # for its locks. Transactions that only read may rest as long as their user likes.
        limit = int(config.postgres.hold_timeout_s * 1000)
        self._bounded = (f"SET LOCAL idle_in_transaction_session_timeout = {limit}",) if limit else ()
        pool = config.pool
        self._pool: Pool[psycopg.Connection[Row]] = Pool(
            self._connect,
            lambda c: c.close(),
            self._answers,
            size=pool.max_size,
            timeout=pool.timeout_s,
            check_after=pool.health_check_s,
            idle=pool.idle_s,
            keep=pool.min_size,
        )

    def connection_settings(self) -> dict[str, Any]:
        """What a connection is made with; TLS is decided by where libpq really connects."""
        address, config = self.address, self.config.postgres
        settings = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password.reveal() if address.password else None,
            "dbname": address.database,
            "connect_timeout": int(config.connect_timeout_s),
            "application_name": "deltalakedb",
            **_network_limits(config.network_timeout_s),
            "client_encoding": "UTF8",  # by default the database's own, which may know no characters at all
            **address.driver_options(self._libpq_environment()),
        }
        server_options = [f"-c lock_timeout={int(config.lock_timeout_s * 1000)}"]
        if config.statement_timeout_s:
            server_options.append(f"-c statement_timeout={int(config.statement_timeout_s * 1000)}")
        if limit := config.network_timeout_s:
            # the server's end of the same: it would keep the locks of a client that is cut off for hours
            server_options += [
                f"-c tcp_keepalives_idle={max(1, limit // 2)}",
                f"-c tcp_keepalives_interval={max(1, limit // 4)}",
                "-c tcp_keepalives_count=2",
                f"-c tcp_user_timeout={limit * 1000}",
            ]
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
            # what a service says is in the other options already
            if option.keyword not in (b"service", b"servicefile")
        }

    def _refuse_unverified(self, connection: psycopg.Connection[Row], given: Mapping[str, Any]) -> None:
        """End a connection that was taken for local but left the machine, as a false localhost does."""
        peer = connection.info.hostaddr
        if is_local(peer) or "sslmode" in given or "PGSSLMODE" in self._libpq_environment():
            return
        connection.close()
        raise CatalogAccessError(
            f"{self.address.catalog.to_uri()} leads to {peer}, another machine, without verified TLS",
            suggestion="check what the host's name means here, or choose sslmode in the address",
        )

    def _connect(self) -> psycopg.Connection[Row]:
        given = self.connection_settings()
        try:
            for _ in range(_FRESH_ATTEMPTS - 1):
                if (connection := self._set_up(given)) is not None:
                    return connection
            connection = self._set_up(given, last=True)
        except self.driver.Error as error:
            raise self.translate(error, connecting=True) from error
        assert connection is not None  # noqa: S101 - the last attempt gives one or raises
        return connection

    def _set_up(self, given: Mapping[str, Any], *, last: bool = False) -> psycopg.Connection[Row] | None:
        """A connection that is ready; None if the server ended it at once, so that another may succeed."""
        connection: psycopg.Connection[Row] = self.driver.connect(
            autocommit=True, cursor_factory=self.driver.RawCursor, **given
        )
        self._refuse_unverified(connection, given)
        try:
            found = connection.execute(_SET_UP, (self.search_path,)).fetchone()
        except BaseException as error:
            ended = connection.closed and isinstance(error, self.driver.OperationalError)
            connection.close()
            if ended and not last:
                return None
            raise
        connection.prepare_threshold = 3
        self._server[connection] = ServerSettings(*(found or ("",) * 4)[:4])
        return connection

    def users_path(self, connection: psycopg.Connection[Row]) -> str:
        """Where a user's own statements look: the catalog's schema, then as in the user's other sessions."""
        theirs = self._server[connection].search_path
        return f"{quote_name(self.schema)}, {theirs}" if theirs else quote_name(self.schema)

    def durability(self) -> Durability:
        """What the server does about power cuts, by its own settings."""
        server = self._settings()
        if server.fsync != "on":
            return Durability(
                False,
                f"the server runs with fsync={server.fsync}: a crash may lose or damage commits",
                "set fsync=on in the server's configuration",
            )
        if server.synchronous_commit in _DURABLE:
            return Durability(True, f"synchronous_commit={server.synchronous_commit}")
        said = f"the server says synchronous_commit={server.synchronous_commit}"
        return Durability(True, f"{said}; commits of the catalog use on")

    def encoding_trouble(self) -> CatalogEncodingError | None:
        """Other encodings lack characters that paths and rows may have; SQL_ASCII knows none at all."""
        if (found := self._settings().encoding) == "UTF8":
            return None
        return CatalogEncodingError(
            f"the database {self.address.database} keeps text as {found}, not as UTF8",
            suggestion="make one for the catalog: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )

    def _settings(self) -> ServerSettings:
        with self.read() as session:
            assert isinstance(session, PostgresSession)  # noqa: S101
            return self._server[session.connection]

    def changes(self, connection: psycopg.Connection[Row]) -> psycopg.Cursor[Row]:
        """A connection's cursor for our own changes: whole numbers always have one type.

        The driver's choice by their size would make many prepared statements of one.
        """
        if (cursor := self._cursors.get(connection)) is None:
            cursor = self._cursors[connection] = connection.cursor()
            cursor.adapters.register_dumper(int, self.driver.types.numeric.Int8Dumper)
        return cursor

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A connection in autocommit mode; a dead one is replaced once."""
        session = PostgresSession(self, self._pool.take(), retry=True)
        try:
            yield session
        finally:
            self._give(session.connection)

    @contextmanager
    def read_only(self, *, asking: bool = False) -> Iterator[Session]:
        """A transaction that the server keeps read-only and at one moment."""
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", asking=True) as session:
            if not asking:
                session.row("SELECT 1")  # the snapshot is taken by the first query
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One READ COMMITTED transaction; what must not move is locked by row."""
        with self._transaction("BEGIN", *self._bounded) as session:
            yield session

    @contextmanager
    def relaxed_write(self) -> Iterator[Session]:
        """A transaction that does not wait for its own flush to disk."""
        begin = ("BEGIN", "SET LOCAL synchronous_commit = off", *self._bounded)
        with self._transaction(*begin, repeatable=True) as session:
            yield session

    def change(
        self, statement: Statement, params: Sequence[Any], then: tuple[Statement, Sequence[Any]]
    ) -> tuple[list[Row], list[Row]]:
        """Run a statement that is a transaction by itself, and a question in the same round trip."""
        session = PostgresSession(self, self._pool.take())
        try:
            return session.change(statement, params, then)
        finally:
            self._give(session.connection)

    @contextmanager
    def _transaction(self, *begin: str, asking: bool = False, repeatable: bool = False) -> Iterator[Session]:
        session = PostgresSession(self, self._pool.take(), single=asking, begin=begin, repeatable=repeatable)
        try:
            try:
                yield session
                session.end_own()
            except BaseException:
                if session.begun:
                    with suppress(self.driver.Error):
                        session.connection.execute("ROLLBACK")
                raise
            if asking:
                # Whatever a user's question set for its session, set_config() for one, is undone. After our
                # own there is nothing to undo, and the driver would forget all prepared statements with it.
                end = "ROLLBACK; SELECT pg_catalog.pg_advisory_unlock_all()" if session.questioned else "END"
                with suppress(self.driver.Error):
                    session.connection.execute(end, prepare=False)
            else:
                session.send("COMMIT")
        finally:
            self._give(session.connection, used_by_others=session.used_by_others)

    def _give(self, connection: psycopg.Connection[Row], *, used_by_others: bool = False) -> None:
        if used_by_others or connection.closed or connection.info.transaction_status != 0:
            self._pool.discard(connection)
        else:
            self._pool.give(connection)

    def replace(self, connection: psycopg.Connection[Row]) -> psycopg.Connection[Row]:
        """A fresh connection for a dead one; its idle neighbours go too."""
        self._pool.drop_idle()
        return self._pool.swap(connection)

    def _answers(self, connection: psycopg.Connection[Row]) -> bool:
        try:
            connection.execute("SELECT 1")
        except self.driver.Error:
            return False
        return True

    def prepare(self, session: Session) -> None:
        """Take the catalog's creation lock and make the schema."""
        session.row("SELECT pg_advisory_xact_lock(hashtextextended(?, 7))", (f"deltalakedb:{self.schema}",))
        if session.row("SELECT 1 FROM pg_namespace WHERE nspname = ?", (self.schema,)) is None:
            session.run(f"CREATE SCHEMA {quote_name(self.schema)}")

    def has_schema_table(self, session: Session) -> bool:
        """Asks the server's catalog."""
        found = session.row("SELECT to_regclass(?)::text", (f"{quote_name(self.schema)}.dl_schema_version",))
        return found is not None and found[0] is not None

    def close(self) -> None:
        """Close idle connections; lent ones close when they come back."""
        self._pool.close()

    def translate(self, error: psycopg.Error, *, connecting: bool = False) -> DeltaSqlError:
        """The driver's error as ours, by its SQLSTATE."""
        state = error.sqlstate or (_refusal(str(error)) if connecting else "")
        text = " ".join(str(error).split())
        where = self.address.catalog.to_uri()
        if state.startswith("28") or state == "42501":
            return CatalogAccessError(
                f"Postgres refused access to {where}: {text}",
                suggestion="check user and password, and GRANT USAGE, CREATE on the schema",
            )
        if state == "25006":
            return CatalogAccessError(
                f"Postgres takes no changes at {where}: {text}",
                suggestion="a standby, or default_transaction_read_only, only answers questions: "
                "write to the primary server",
            )
        if state in {"3D000", "3F000"}:
            return CatalogNotFoundError(
                f"{where}: {text}", suggestion="create the database, or check its name in the address"
            )
        if state == "25P03":
            return CatalogUnavailableError(
                f"Postgres ended a transaction whose client did not go on: {text}",
                suggestion="try again; if the client was not stopped, raise postgres.hold_timeout_s",
            )
        if state in {"55P03", "40P01", "40001", "57014"}:
            return CatalogBusyError(
                f"Postgres gave up waiting: {text}",
                suggestion="try again; look for long transactions",
                again=state in {"40P01", "40001", "55P03"},
                waited=state == "55P03",
            )
        if state == "23505" and error.diag.table_name == "dl_transactions":
            return CatalogBusyError(
                "a transaction with the same id was committed a moment ago",
                suggestion="try again: it returns the outcome of that one",
                again=True,
            )
        if state == "23505" and error.diag.table_name == "dl_tables":
            return TableExistsError(
                "a table's name or location already exists", suggestion="choose another one"
            )
        if state in {"53100", "53200"}:
            return CatalogFullError(f"Postgres has no room: {text}", suggestion="free disk space or memory")
        if state in {"XX001", "XX002"}:
            return CatalogCorruptError(f"Postgres found damage: {text}", suggestion="restore from a backup")
        if (
            connecting
            or state.startswith(("08", "53", "57"))
            or isinstance(error, self.driver.OperationalError)
        ):
            return CatalogUnavailableError(
                f"cannot reach {where}: {text}",
                suggestion="check that the server runs, host and port, and that it takes more connections",
            )
        return CatalogError(f"Postgres refused: {text}")


def _network_limits(seconds: int) -> dict[str, int]:
    """libpq's parameters by which a connection over a dead network ends after some seconds."""
    if not seconds:
        return {}
    return {
        "keepalives": 1,
        "keepalives_idle": max(1, seconds // 2),
        "keepalives_interval": max(1, seconds // 4),
        "keepalives_count": 2,
        "tcp_user_timeout": seconds * 1000,
    }


#: libpq keeps no SQLSTATE of a refused connection, so the server's words must do
_REFUSALS = {
    "28P01": ("password authentication failed", "no password supplied"),
    "28000": ("no pg_hba.conf entry", "is not permitted to log in", "certificate"),
    "42501": ("permission denied",),
    "3D000": ("database ", " does not exist"),
}


def _refusal(text: str) -> str:
    """The SQLSTATE that a refused connection would carry, or an empty string."""
    for state, words in _REFUSALS.items():
        fits = all if state == "3D000" else any
        if fits(word in text for word in words):
            return state
    return "28000" if "role " in text and " does not exist" in text else ""


def quote_name(name: str) -> str:
    """A SQL identifier, whatever characters it holds."""
    return '"' + name.replace('"', '""') + '"'
