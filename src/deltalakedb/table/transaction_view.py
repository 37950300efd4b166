"""The tables of a transaction as it sees them: one moment of the database, with its own work on top."""

from __future__ import annotations

import abc
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from deltalakedb.commit.changes import NewTable
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    InvalidArgumentError,
    TableMissingError,
    VersionMissingError,
)
from deltalakedb.metastore import registry, snapshots
from deltalakedb.storage.flushes import Flushes
from deltalakedb.table import memory
from deltalakedb.table.overlay import Overlay
from deltalakedb.table.participants import Participant, Participants, unborn
from deltalakedb.table.source import SqlSource, open_older
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.work import ReadOnly

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.values import OpenTable, Table
    from deltalakedb.protocol.log import Committed, Snapshot
    from deltalakedb.table.roots import Root
    from deltalakedb.table.work import Work
    from deltalakedb.uri import Address


class TransactionView(abc.ABC):
    """What a transaction can read, from its beginning to its end.

    Args:
        database: The catalog.
        address: Its address.
    """

    def __init__(self, database: Database, address: Address) -> None:
        self._database = database
        self._address = address
        self._stack = ExitStack()
        self._session: Session | None = None
        self._tables = Participants()
        self._state = "new"
        #: tables that were looked up along with others
        self._along: dict[str, OpenTable] = {}
        #: new files on their way to the disk
        self.flushes = Flushes()

    @abc.abstractmethod
    def ready(self) -> None:
        """Refuse an operation that could not be taken."""

    @abc.abstractmethod
    def submit(self, work: Work) -> Committed | None:
        """Take an operation's work."""

    def table(
        self,
        name: str,
        *,
        version: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> SqlDeltaTable:
        """A table as this transaction sees it: its snapshot, with the transaction's own work on top.

        After a commit it is an ordinary table, at the version that the transaction made or read; after a
        rollback every use of it is an InvalidArgumentError.

        Args:
            name: The table's name, as the transaction calls it by now.
            version: An older version, for reading only. What it holds never changes, so nobody conflicts
                with having read it.
            storage_options: Options for the object store, where the settings and the environment have none.
        """
        session = self._active()
        found = self._tables.find(name)
        if version is not None:
            older = self._older(session, name, found, version)
            older._use_options(storage_options)
            return older
        if found is None:
            opened = self._looked_up(session, name)
            overlay = Overlay(SqlSource(self._database, opened))
            found = self._remember(name, opened.table, overlay, opened.snapshot)
        found.handle._use_options(storage_options)
        return found.handle

    def _older(self, session: Session, name: str, found: Participant | None, version: int) -> SqlDeltaTable:
        if found is not None and isinstance(found.table, NewTable):
            raise VersionMissingError(
                "the table is created by this transaction and has no versions yet",
                table=name,
                version=version,
                suggestion="leave the version out to see what the transaction wrote",
            )
        known_as = name if found is None else found.table.name
        row, source = open_older(self._database, session, known_as, version)
        address = self._address.with_table(name)
        return SqlDeltaTable._inside(address, self._database, row, source, ReadOnly(name, version))

    def _looked_up(self, session: Session, name: str) -> OpenTable:
        """A table at the transaction's snapshot."""
        if (along := self._along.get(name)) is not None:
            return along
        with self._database.watched():
            return snapshots.open_table(session, name)

    def tables(self, *, namespace: str | None = None) -> list[Table]:
        """All tables as the transaction sees them: those of its snapshot, and its own."""
        found = self._tables.show(registry.list_tables(self._active()))
        return found if namespace is None else [t for t in found if t.name.startswith(f"{namespace}.")]

    def query(self, sql: str, params: tuple[Any, ...] = ()) -> pa.Table:
        """Ask the database in plain SQL, at the transaction's snapshot. Placeholders are ``?``."""
        return self._active().query(sql, params)

    # ---- inside ----------------------------------------------------------------------------------------

    def _exists(self, name: str) -> bool:
        try:
            self.table(name)
        except TableMissingError:
            return False
        return True

    def _participant(self, name: str) -> Participant:
        self.table(name)
        found = self._tables.find(name)
        assert found is not None  # noqa: S101 - it was opened just now
        return found

    def _remember(
        self,
        name: str,
        table: Table | NewTable,
        overlay: Overlay,
        read: Snapshot | None,
        root: Root | None = None,
    ) -> Participant:
        address = self._address.with_table(name)
        row = unborn(table) if isinstance(table, NewTable) else table
        handle = SqlDeltaTable._inside(address, self._database, row, overlay, self, root)
        made = Participant(handle, overlay, table, read, name)
        self._tables.add(made)
        return made

    def _begin(self, *, likely: bool) -> Session | None:
        """Take the snapshot; with it the tables that the last transaction changed, where these are likely.

        Returns:
            None where there is no catalog yet: only who is likely to write may begin then, and what is
            written first makes it.
        """
        if self._state != "new":
            raise InvalidArgumentError(f"the transaction is over: it was {self._state}")
        names = sorted(memory.together(self._database)) if likely else []
        try:
            session = self._stack.enter_context(self._database.read_only(asking=bool(names)))
        except CatalogNotFoundError as error:
            if not (likely and self._database.may_be_created(error)):
                raise
            self._state = "active"
            return None
        try:
            with self._database.watched():
                self._along = snapshots.open_many(session, names) if names else {}
        except BaseException:
            self._stack.close()
            raise
        self._session, self._state = session, "active"
        return session

    def _active(self) -> Session:
        """The session to read with; CatalogNotFoundError where there is no catalog yet."""
        self._going_on()
        if self._session is None:
            self._session = self._stack.enter_context(self._database.read_only())
        return self._session

    def _going_on(self) -> None:
        if self._state == "active":
            return
        if self._state == "new":
            raise InvalidArgumentError(
                "the transaction has not begun", suggestion="write: with catalog.transaction() as tx: …"
            )
        raise InvalidArgumentError(
            f"the transaction is over: it was {self._state}",
            suggestion="begin a new one with catalog.transaction()",
        )

    def _end(self, state: str) -> None:
        self._state = state
        self._tables.release(None)
        self._session = None
        self._stack.close()
