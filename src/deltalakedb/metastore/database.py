"""A catalog's database: one engine per address and process, its schema checked once."""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from deltalakedb.exceptions import CatalogError, CatalogNotFoundError, DeltaSqlError
from deltalakedb.metastore import migrations
from deltalakedb.metastore.engines import make_engine
from deltalakedb.metastore.statements import Statement, statements
from deltalakedb.settings import Config, get_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.address import Address
    from deltalakedb.metastore.engines.base import Dialect, Engine, Row, Session


class Database:
    """Sessions on a catalog whose schema is known to fit.

    Example:
        >>> with Database.open(parse_address("deltasql://sqlite//tmp/meta.db")) as database:
        ...     with database.read() as session:
        ...         session.rows("SELECT name FROM dl_tables")
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._checked = False
        self._identity: object = None
        #: how often the file was replaced by another one: what was read before is about the old file
        self.exchanges = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, address: Address, config: Config | None = None) -> Database:
        """The process's database at an address; the connection is made when it is first used."""
        config = config or get_config()
        key = (address.resolved().catalog, config.fingerprint())
        with _open_lock:
            if (found := _open.get(key)) is None:
                found = _open[key] = cls(make_engine(key[0], config))
            return found

    @property
    def address(self) -> Address:
        return self.engine.address

    @property
    def dialect(self) -> Dialect:
        return self.engine.dialect

    def sql(self, noun: str, name: str) -> Statement:
        return statements(noun, self.engine.dialect.name)[name]

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading; CatalogNotFoundError if there is no catalog yet."""
        self.ensure(create=False)
        with self.watched(), self.engine.read() as session:
            yield session

    def rows(self, statement: Statement | str, params: Sequence[Any] = ()) -> list[Row]:
        with self.read() as session:
            return session.rows(statement, params)

    def row(self, statement: Statement | str, params: Sequence[Any] = ()) -> Row | None:
        with self.read() as session:
            return session.row(statement, params)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session inside one transaction."""
        self.ensure()
        with self.watched(), self.engine.write() as session:
            yield session

    @contextmanager
    def commit_write(self) -> Iterator[Session]:
        """A session like `write` for a commit, which knows what is published but not recorded yet."""
        self.ensure()
        with self.watched(), self.engine.commit_write() as session:
            yield session

    @contextmanager
    def relaxed_write(self) -> Iterator[Session]:
        """A session for notes that a power cut may lose: they can be found out again."""
        self.ensure()
        with self.watched(), self.engine.relaxed_write() as session:
            yield session

    @contextmanager
    def read_only(self, *, will_query: bool = False) -> Iterator[Session]:
        """A session in which nothing can be changed; ``will_query`` if the caller runs a query at once."""
        self.ensure(create=False)
        with self.watched(), self.engine.read_only(will_query=will_query) as session:
            yield session

    def ensure(self, *, create: bool = True) -> None:
        """Check the schema once; ``create``: creating or upgrading it if the settings allow.

        A file that was deleted or replaced since is opened again: writes to the old one would be lost.
        """
        if self._checked and self.engine.identity() == self._identity:
            return
        with self._lock:
            if self._checked and self.engine.identity() != self._identity:
                self.engine.close()
                self._checked = False
                self.exchanges += 1
            if not self._checked:
                migrations.ensure(self.engine, create=create)
                self._identity = self.engine.identity()
                self._checked = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Report a catalog whose schema or tables were dropped meanwhile as CatalogNotFoundError.

        Checked only after the database refused something.
        """
        try:
            yield
        except CatalogError as error:
            if type(error) is CatalogError and self._is_gone():
                raise CatalogNotFoundError(
                    f"the catalog at {self.address.to_uri()} was dropped while this process had it open",
                    suggestion="restore the database from a backup, or import the tables again from their "
                    "_delta_log with `deltasql import`; the next write creates an empty catalog",
                    dropped=True,
                ) from error
            raise

    def _is_gone(self) -> bool:
        with suppress(DeltaSqlError), self.engine.read() as session:
            if not self.engine.has_schema_table(session):
                self._checked = False
                return True
        return False

    def may_be_created(self, error: CatalogNotFoundError) -> bool:
        """Whether the first write would create the missing catalog; not if the database itself is missing."""
        return self.engine.config.catalog.create and error.__cause__ is None

    def close(self) -> None:
        """Close every connection; the next use opens them again and checks the schema again."""
        self.engine.close()
        self._checked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open: dict[tuple[Address, object], Database] = {}
_open_lock = threading.Lock()


@atexit.register
def close_all() -> None:
    with _open_lock:
        databases = list(_open.values())
        _open.clear()
    for database in databases:
        database.close()


def _after_fork() -> None:
    # another thread of the parent may have held the lock, and no thread here would ever release it
    global _open_lock
    _open_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
