"""A catalog's database: one engine per address and process, its schema checked once."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from deltalakedb.config import get_config
from deltalakedb.exceptions import CatalogError, CatalogNotFoundError, DeltaSqlError
from deltalakedb.metastore import migrations
from deltalakedb.metastore.engines import make_engine
from deltalakedb.metastore.statements import Statement, statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.config import Config
    from deltalakedb.metastore.engines.base import Dialect, Engine, Row, Session
    from deltalakedb.uri import Address

logger = logging.getLogger(__name__)


class Database:
    """Sessions on a catalog whose schema is known to fit.

    Example:
        >>> with Database.open(parse_uri("deltasql://sqlite//tmp/meta.db")) as database:
        ...     with database.read() as session:
        ...         session.rows("SELECT name FROM dl_tables")
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._checked = False
        #: no import that was given up left the files without indexes
        self._indexed = False
        self._identity: object = None
        #: how often another file was found in the place of the one that was open; what was read before says
        #: nothing of it
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
        """The catalog's address."""
        return self.engine.address

    @property
    def dialect(self) -> Dialect:
        """The engine's facts."""
        return self.engine.dialect

    def sql(self, noun: str, name: str) -> Statement:
        """A named statement in this engine's form."""
        return statements(noun, self.engine.dialect.name)[name]

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading; CatalogNotFoundError where there is nothing yet."""
        self.ensure(create=False)
        with self.watched(), self.engine.read() as session:
            yield session

    def rows(self, statement: Statement | str, params: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query, in a session of its own."""
        with self.read() as session:
            return session.rows(statement, params)

    def row(self, statement: Statement | str, params: Sequence[Any] = ()) -> Row | None:
        """The first row of a query, in a session of its own."""
        with self.read() as session:
            return session.row(statement, params)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session inside one transaction."""
        self.ensure()
        if not self._indexed:
            from deltalakedb.metastore import imports  # which imports this module's neighbours

            self._indexed = imports.rebuild_indexes(self)
        with self.watched(), self.engine.write() as session:
            yield session

    def change(
        self, statement: Statement, params: Sequence[Any], then: tuple[Statement, Sequence[Any]]
    ) -> tuple[list[Row], list[Row]]:
        """Run a statement that is a transaction by itself, and a question in the same round trip."""
        self.ensure()
        with self.watched():
            return self.engine.change(statement, params, then)

    @contextmanager
    def relaxed_write(self) -> Iterator[Session]:
        """A transaction for notes that can be found out again after a power cut."""
        self.ensure()
        with self.watched(), self.engine.relaxed_write() as session:
            yield session

    @contextmanager
    def read_only(self, *, asking: bool = False) -> Iterator[Session]:
        """A session in which nothing can be changed, for questions that users write.

        Args:
            asking: The caller asks something at once, which fixes the moment that the session sees.
        """
        self.ensure(create=False)
        with self.watched(), self.engine.read_only(asking=asking) as session:
            yield session

    def ensure(self, *, create: bool = True) -> None:
        """Check the schema once, creating or upgrading it where the settings allow.

        A file that was deleted or exchanged since is opened anew: what is written to the old one is lost.

        Args:
            create: False for those who only read: CatalogNotFoundError instead of an empty catalog.
        """
        if self._checked and self.engine.identity() == self._identity:
            return
        with self._lock:
            if self._checked and self.engine.identity() != self._identity:
                self.engine.close()
                self._checked = self._indexed = False
                self.exchanges += 1
            if not self._checked:
                migrations.ensure(self.engine, create=create)
                self._identity = self.engine.identity()
                self._checked = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell it as such where the catalog is gone: its schema or its tables were dropped meanwhile.

        Asked only after the database refused something.
        """
        try:
            yield
        except CatalogError as error:
            if type(error) is CatalogError and self._is_gone():
                raise CatalogNotFoundError(
                    f"the catalog at {self.address.to_uri()} was dropped while this process had it open",
                    suggestion="restore the database from a backup, or take the tables over anew from their "
                    "_delta_log with `deltasql import`; what is written first begins an empty catalog",
                    dropped=True,
                ) from error
            raise

    def _is_gone(self) -> bool:
        with suppress(DeltaSqlError):
            with self.engine.read() as session:
                if self.engine.has_schema_table(session):
                    return False
            self._checked = self._indexed = False
            return True
        return False

    def may_be_created(self, error: CatalogNotFoundError) -> bool:
        """Whether the first write would make what was not found; not where the database itself is missing."""
        return self.engine.config.catalog.create and error.__cause__ is None

    def leave_indexes(self) -> None:
        """Build no indexes before a write: whoever calls this goes on with the load that does without."""
        self._indexed = True

    def close(self) -> None:
        """Give back every connection; the next use opens them again and checks the schema anew."""
        self.engine.close()
        self._checked = self._indexed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open: dict[tuple[Address, object], Database] = {}
_open_lock = threading.Lock()


@atexit.register
def close_all() -> None:
    """Close every database of this process."""
    with _open_lock:
        databases = list(_open.values())
        _open.clear()
    for database in databases:
        database.close()


def _after_fork() -> None:
    # another thread of the parent may have held the lock, and nobody here would ever release it
    global _open_lock
    _open_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
