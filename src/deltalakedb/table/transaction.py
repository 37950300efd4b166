"""Transactions over many tables: one snapshot to read from, one commit for everything."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import deltalake

from deltalakedb.catalog import registry, snapshots
from deltalakedb.catalog.commits import by_transaction
from deltalakedb.catalog.outbox import refuse_unpublished
from deltalakedb.catalog.own_sql import checked_statement
from deltalakedb.commit.changes import NewTable
from deltalakedb.exceptions import (
    DeltaSqlError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
    VersionMissingError,
)
from deltalakedb.mirror.fencing import refuse_fenced
from deltalakedb.table import memory
from deltalakedb.table.hooks import Hooks
from deltalakedb.table.in_flight import InFlight
from deltalakedb.table.new_tables import PLAIN, quiet, taken_out
from deltalakedb.table.overlay import Overlay, created
from deltalakedb.table.participants import Participant, Participants, unborn
from deltalakedb.table.places import normal_location
from deltalakedb.table.results import TransactionResult
from deltalakedb.table.roots import undo
from deltalakedb.table.source import SqlSource, open_older
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.work import (
    ReadOnly,
    Settled,
    after_commit,
    interval,
    publish_committed,
    settle,
    tell_nothing_written,
)
from deltalakedb.table.writer import check_mode, create_with, write_to
from deltalakedb.uri import validate_table_name

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.catalog.values import OpenTable, Table
    from deltalakedb.commit.changes import TableChange
    from deltalakedb.protocol.log import Committed, Snapshot
    from deltalakedb.protocol.reads import Isolation
    from deltalakedb.table.new_tables import Wishes
    from deltalakedb.table.roots import PlacedFile, Root
    from deltalakedb.table.work import Work
    from deltalakedb.uri import Address


#: a transaction over more tables is a rare one, and the next one is not like it
_MOST_ALONG = 32


class Transaction:
    """Any number of tables, changed together or not at all.

    Reads come from one moment over all tables; a clean exit commits, an exception rolls back and leaves
    nothing visible. Not for use by several threads at once.

    Example:
        >>> with catalog.transaction() as tx:
        ...     tx.write("sales.orders", orders, mode="append")
        ...     tx.table("sales.stock").update(predicate="sku = 1", updates={"qty": "qty - 1"})
    """

    def __init__(
        self,
        database: Database,
        address: Address,
        *,
        isolation: Isolation | None = None,
        txn_uuid: str | None = None,
        read_only: bool = False,
    ) -> None:
        self._database = database
        self._address = address
        if isolation not in (None, "Serializable", "WriteSerializable"):
            raise InvalidArgumentError(
                f"unknown isolation {isolation!r}", suggestion="use Serializable or WriteSerializable"
            )
        self._isolation = isolation
        self._given_uuid = txn_uuid is not None
        self._read_only = read_only
        self._stack = ExitStack()
        self._session: Session | None = None
        self._tables = Participants()
        self._files: list[PlacedFile] = []
        self._roots: dict[str, Root] = {}
        self._in_flight = InFlight()
        self._own: list[Callable[[Session], object]] = []
        self._state = "new"
        self._repeats = False
        #: tables that were looked up along with another
        self._along: dict[str, OpenTable] = {}
        self.uuid = txn_uuid or str(uuid.uuid4())
        #: what the transaction became, once it is committed
        self.result: TransactionResult | None = None

    @property
    def commits(self) -> Mapping[str, Committed]:
        """What the transaction became, by table name; empty until it is committed."""
        return {} if self.result is None else self.result.commits

    # ---- reading ---------------------------------------------------------------------------------------

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
        """A table at the transaction's snapshot; those that were last changed with it come along."""
        if name in (likely := memory.together(self._database)) and not self._along:
            self._along = snapshots.open_many(self._database, session, sorted(likely))
        return self._along.get(name) or snapshots.open_in(self._database, session, name)

    def tables(self, *, namespace: str | None = None) -> list[Table]:
        """All tables as the transaction sees them: those of its snapshot, and its own."""
        found = self._tables.show(registry.list_in(self._database, self._active()))
        return found if namespace is None else [t for t in found if t.name.startswith(f"{namespace}.")]

    def query(self, sql: str, params: tuple[Any, ...] = ()) -> pa.Table:
        """Ask the database in plain SQL, at the transaction's snapshot. Placeholders are ``?``."""
        return self._active().query(sql, params)

    # ---- changing --------------------------------------------------------------------------------------

    def write(
        self,
        name: str,
        data: Any,
        *,
        mode: str = "append",
        location: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Write to a table, creating it where it does not exist; arguments as in ``write_deltalake``."""
        check_mode(mode)
        self._writable()
        try:
            table = self.table(name, storage_options=storage_options)
        except TableMissingError:
            stock: Any = deltalake.write_deltalake
            wishes = taken_out(options, table=name)
            self._create(
                name,
                location,
                lambda target: stock(target, data, mode=mode, **quiet(options)),
                storage_options=storage_options,
                wishes=wishes,
            )
        else:
            write_to(table, data, mode=mode, **options)

    def create_table(
        self,
        name: str,
        schema: Any,
        *,
        location: str | os.PathLike[str] | None = None,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        **options: Any,
    ) -> SqlDeltaTable:
        """Create an empty table; arguments as in ``Catalog.create_table``."""
        stock: Any = deltalake.DeltaTable.create
        wishes = taken_out(options, table=name)
        self._create(
            name,
            location,
            lambda target: stock(target, schema, **quiet(options)),
            comment=comment,
            tags=tags,
            storage_options=storage_options,
            wishes=wishes,
        )
        return self.table(name)

    def rename_table(self, name: str, new_name: str) -> None:
        """Give a table another name, when the transaction commits. The old one is free at once."""
        validate_table_name(new_name)
        self._writable()
        if self._repeats:
            return  # the first call did it
        participant = self._participant(name)
        if new_name == name:
            return
        if not self._tables.is_free(new_name) and self._exists(new_name):
            raise TableExistsError(
                f"the name {new_name!r} is taken",
                table=new_name,
                suggestion="rename or drop its table first in the same transaction, or choose another name",
            )
        self._tables.rename(participant, new_name)

    def drop_table(self, name: str, *, force: bool = False) -> None:
        """Forget a table, when the transaction commits. Its files and `_delta_log` stay, its name is free.

        What the transaction did to it before is not done; other tables are not affected.

        Args:
            name: The table.
            force: Drop it although some commits were never published, and are then lost.
        """
        self._writable()
        if self._repeats:
            return  # the first call did it
        participant = self._participant(name)
        table = participant.table
        if not isinstance(table, NewTable) and not force:
            refuse_unpublished(self._database, table)
            refuse_fenced(self._database, table)
        self._tables.drop(participant)

    def execute(self, sql: str, params: tuple[Any, ...] = ()) -> None:
        """Queue a statement on the user's own tables; it runs inside the commit, after the checks.

        Args:
            sql: One statement with ``?`` placeholders. Transaction control and the catalog's own tables
                (``dl_…``) are refused.
            params: The values.
        """
        statement = checked_statement(sql)
        self._writable()
        self._own.append(lambda session: session.run_own(statement, params))

    def ready(self) -> None:
        """Refuse an operation that could not be taken."""
        self._writable()

    def submit(self, work: Work) -> None:
        """Take an operation's work; it is committed with everything else."""
        try:
            participant = self._taking(work)
        except DeltaSqlError:
            undo(work.files)  # a handle that outlived its table or its transaction, or one for reading only
            raise
        if work.files:
            self._in_flight.at(work.table.location)
        self._files += work.files
        if work.root is not None:
            self._roots[work.root.location] = work.root
        participant.take(work)

    def _taking(self, work: Work) -> Participant:
        self._writable()
        table = work.table
        if isinstance(table, NewTable):
            overlay = Overlay(None, created(work.actions))
            return self._remember(table.name, table, overlay, None, work.root)
        found = self._tables.at(table.location)
        if found is None or found.name is None:
            raise TableMissingError(
                f"the table {table.name!r} was dropped in this transaction",
                table=table.name,
                suggestion="open the table that has its name now, where there is one",
            )
        return found

    # ---- ending ----------------------------------------------------------------------------------------

    def commit(self) -> Mapping[str, Committed]:
        """Commit everything at once; where somebody else was first, ConflictError, and nothing happened."""
        self._active()
        changes, vanished = self._tables.changes(self._isolation)
        names = self._tables.name_changes()
        if 1 < len(changes) <= _MOST_ALONG:
            memory.remember_together(self._database, [change.table.name for _, change in changes])
        self._end("rolled back")  # until the opposite is known
        if not self._own and not names and not any(c.steps for _, c in changes):
            self._state = "committed"
            with self._in_flight:
                undo(vanished)
            self.result = TransactionResult(self.uuid, {}, self._repeats)
            self._tables.release(self.commits)
            return self.commits
        with self._in_flight:
            outcome = settle(
                self._database,
                [c for _, c in changes],
                files=self._files,
                roots=self._roots,
                txn_uuid=self.uuid,
                repeated=self._given_uuid,
                names=names,
                own=self._own,
            )
        self._state = "committed"
        undo(vanished)
        replayed = self._repeats or (bool(outcome) and all(c.replayed for c in outcome))
        by_application = replayed and not self._given_uuid  # then no name was changed either
        done = {
            change.table.name if by_application else name: (change, made)
            for (name, change), made in zip(changes, outcome, strict=True)
            if change.steps
        }
        self.result = TransactionResult(self.uuid, {n: made for n, (_, made) in done.items()}, replayed)
        self._tables.release(self.commits)
        with after_commit("its tables could not be found again"):
            settled = self._settled(done.values(), bool(names))
            group = self.uuid if len(settled) > 1 else None
            publish_committed(self._database, settled, self._roots, group=group)
        if by_application:
            tell_nothing_written(", ".join(done))
        return self.commits

    def rollback(self) -> None:
        """Forget everything; files that were written are deleted."""
        if self._state == "active":
            self._end("rolled back")
            with self._in_flight:
                undo(self._files)

    def _settled(self, done: Iterable[tuple[TableChange, Committed]], moved: bool) -> list[Settled]:
        """Tables after the transaction, which may have renamed them, and what is to follow."""
        hooks = {p.table.location: Hooks.all_of(p.hooks) for p in self._tables}
        settled = [
            Settled(c.table, interval(c.read, c.all_actions), hooks[c.table.location], made.fresh)
            for c, made in done
        ]
        if not moved:
            return settled
        now = {t.location: t for t in registry.list_tables(self._database)}
        return [replace(s, table=now[s.table.location]) for s in settled if s.table.location in now]

    # ---- inside ----------------------------------------------------------------------------------------

    def _create(
        self,
        name: str,
        location: str | os.PathLike[str] | None,
        operation: Callable[[str], object],
        *,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        wishes: Wishes = PLAIN,
    ) -> None:
        self._writable()
        validate_table_name(name)
        free = self._tables.is_free(name)
        taken = not free and self._exists(name)
        if taken and self._repeats:
            return  # the first call made it
        if taken:
            raise TableExistsError(f"the table {name!r} exists", table=name, suggestion="write to it instead")
        where = None if location is None else normal_location(location)
        create_with(
            self._database,
            name,
            where,
            operation,
            comment=comment,
            tags=tags,
            sink=self,
            free=free,
            storage_options=storage_options,
            wishes=wishes,
        )

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

    def _writable(self) -> None:
        self._active()
        if self._read_only:
            raise InvalidArgumentError(
                "a catalog's snapshot is for reading only", suggestion="use catalog.transaction() to write"
            )

    def _active(self) -> Session:
        if self._state == "new" or self._session is None:
            if self._state != "new":
                raise InvalidArgumentError(
                    f"the transaction is over: it was {self._state}",
                    suggestion="begin a new one with catalog.transaction()",
                )
            raise InvalidArgumentError(
                "the transaction has not begun", suggestion="write: with catalog.transaction() as tx: …"
            )
        return self._session

    def _end(self, state: str) -> None:
        self._state = state
        self._tables.release(None)
        self._session = None
        self._stack.close()

    def __enter__(self) -> Self:
        if self._state != "new":
            raise InvalidArgumentError(f"the transaction is over: it was {self._state}")
        self._session = self._stack.enter_context(self._database.read_only())
        self._state = "active"
        if self._given_uuid:
            self._repeats = by_transaction(self._database, self._session, self.uuid) is not None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._state != "active":
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()
