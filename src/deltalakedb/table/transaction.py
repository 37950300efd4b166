"""Transactions over many tables: one snapshot to read from, one commit for everything."""

from __future__ import annotations

import random
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import deltalake

from deltalakedb.catalog import registry, snapshots
from deltalakedb.catalog.commits import by_transaction
from deltalakedb.catalog.own_sql import checked_statement
from deltalakedb.catalog.values import Head, Table
from deltalakedb.commit.changes import NewTable, TableChange
from deltalakedb.commit.fold import fold
from deltalakedb.exceptions import InvalidArgumentError, TableExistsError, TableMissingError
from deltalakedb.mirror.groups import Member, write_manifest
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.protocol.log import Snapshot
from deltalakedb.protocol.reads import NOTHING, ReadSet
from deltalakedb.table.overlay import Overlay
from deltalakedb.table.places import normal_location
from deltalakedb.table.source import SqlSource
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.staging import undo
from deltalakedb.table.work import after_commit, publish_committed, settle
from deltalakedb.table.writer import check_mode, create_with, write_to
from deltalakedb.uri import validate_table_name

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.log import Committed
    from deltalakedb.protocol.reads import Isolation
    from deltalakedb.table.work import Work
    from deltalakedb.uri import Address


@dataclass(slots=True)
class _Touched:
    """What a transaction does with one table."""

    handle: SqlDeltaTable
    overlay: Overlay
    table: Table | NewTable
    read: Snapshot | None
    operations: list[Sequence[Action]] = field(default_factory=list)
    reads: ReadSet = NOTHING
    fresh: bool = True


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
        self._touched: dict[str, _Touched] = {}
        self._files: list[Path] = []
        self._own: list[Callable[[Session], object]] = []
        self._state = "new"
        self._repeats = False
        #: names after this transaction -> names before it
        self._renamed: dict[str, str] = {}
        self._gone_here: set[str] = set()
        self.uuid = txn_uuid or str(uuid.uuid4())
        #: what the transaction became, by table name, once it is committed
        self.commits: dict[str, Committed] = {}

    # ---- reading ---------------------------------------------------------------------------------------

    def table(self, name: str) -> SqlDeltaTable:
        """A table as this transaction sees it: its snapshot, with the transaction's own work on top."""
        session = self._active()
        name = self._renamed.get(name, name)
        if name in self._gone_here:
            raise TableMissingError(
                f"the table {name!r} was dropped or renamed in this transaction",
                table=name,
                suggestion="use its new name, or another name for a new table",
            )
        if (touched := self._touched.get(name)) is not None:
            return touched.handle
        opened = snapshots.open_in(self._database, session, name)
        overlay = Overlay(SqlSource(self._database, opened))
        self._remember(name, opened.table, overlay, opened.snapshot)
        return self._touched[name].handle

    def tables(self, *, namespace: str | None = None) -> list[Table]:
        """All tables at the transaction's snapshot."""
        return registry.list_in(self._database, self._active(), namespace=namespace)

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
        **options: Any,
    ) -> None:
        """Write to a table, creating it where it does not exist; arguments as in ``write_deltalake``."""
        check_mode(mode)
        try:
            table = self.table(name)
        except TableMissingError:
            stock: Any = deltalake.write_deltalake
            self._create(name, location, lambda target: stock(target, data, mode=mode, **options))
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
        **options: Any,
    ) -> SqlDeltaTable:
        """Create an empty table; arguments as in ``Catalog.create_table``."""
        stock: Any = deltalake.DeltaTable.create
        self._create(
            name, location, lambda target: stock(target, schema, **options), comment=comment, tags=tags
        )
        return self._touched[name].handle

    def rename_table(self, name: str, new_name: str) -> None:
        """Give a table another name, when the transaction commits."""
        validate_table_name(new_name)
        self.table(name)
        self._renamed = {k: v for k, v in self._renamed.items() if k != name} | {
            new_name: self._renamed.get(name, name)
        }
        self._queue(lambda session: registry.rename_in(self._database, session, name, new_name))

    def drop_table(self, name: str) -> None:
        """Forget a table, when the transaction commits. Its files and `_delta_log` stay."""
        self.table(name)
        self._gone_here.add(self._renamed.pop(name, name))
        self._queue(lambda session: registry.drop_in(self._database, session, name))

    def execute(self, sql: str, params: tuple[Any, ...] = ()) -> None:
        """Queue a statement on the user's own tables; it runs inside the commit, after the checks.

        Args:
            sql: One statement with ``?`` placeholders. Transaction control and the catalog's own tables
                (``dl_…``) are refused.
            params: The values.
        """
        statement = checked_statement(sql)
        self._queue(lambda session: session.run(statement, params))

    def submit(self, work: Work) -> None:
        """Take an operation's work; it is committed with everything else."""
        try:
            self._writable()
        except InvalidArgumentError:
            undo(work.files)  # a handle that outlived its transaction, or one for reading only
            raise
        name = work.table.name
        self._files += work.files
        if isinstance(work.table, NewTable):
            overlay = Overlay(None, _created(work.actions))
            self._remember(name, work.table, overlay, None)
        touched = self._touched[name]
        for step in work.steps:
            touched.operations.append(step)
            touched.overlay.apply(step)
        touched.reads |= work.reads
        touched.fresh = touched.fresh and work.fresh

    # ---- ending ----------------------------------------------------------------------------------------

    def commit(self) -> dict[str, Committed]:
        """Commit everything at once; where somebody else was first, ConflictError, and nothing happened."""
        self._active()
        changes, names, vanished = self._changes()
        self._end("rolled back")  # until the opposite is known
        if not self._own and not any(c.steps for c in changes):
            self._state = "committed"
            return self.commits
        outcome = settle(
            self._database,
            changes,
            files=self._files,
            txn_uuid=self.uuid,
            repeated=self._given_uuid,
            own=self._own,
        )
        self._state = "committed"
        undo(vanished)
        self.commits = dict(zip(names, outcome, strict=True))
        with after_commit("its tables could not be found again"):
            publish_committed(self._database, self._as_they_are([c.table for c in changes if c.steps]))
        self._tell_group(changes, outcome)
        return self.commits

    def _tell_group(self, changes: Sequence[TableChange], outcome: Sequence[Committed]) -> None:
        """Tell readers outside which versions belong together."""
        config = self._database.engine.config
        members = [
            Member(change.table.name, change.table.location, done.version)
            for change, done in zip(changes, outcome, strict=True)
            if change.steps and not done.replayed
        ]
        if len(members) > 1 and config.publish.mode == "sync":
            options = {m.location: config.storage_options_for(m.location) for m in members}
            write_manifest(self.uuid, max(c.timestamp for c in outcome), members, options)

    def rollback(self) -> None:
        """Forget everything; files that were written are deleted."""
        if self._state == "active":
            self._end("rolled back")
            undo(self._files)

    def _changes(self) -> tuple[list[TableChange], list[str], list[Path]]:
        changes, names, vanished = [], [], []
        for name, touched in self._touched.items():
            folded = fold(touched.operations)
            gone = {p.rpartition("/")[2] for p in folded.vanished}
            vanished += [f for f in self._files if f.name in gone]
            reads = touched.reads | touched.overlay.reads
            if not folded.steps and not reads:
                continue
            names.append(name)
            changes.append(
                TableChange(
                    touched.table,
                    folded.steps[0] if folded.steps else (),
                    touched.read,
                    NOTHING if touched.read is None else reads,
                    folded.steps[1:],
                    self._isolation,
                    fresh=touched.fresh,
                )
            )
        return changes, names, vanished

    def _as_they_are(self, tables: Sequence[Table | NewTable]) -> Sequence[Table | NewTable]:
        """Tables after the transaction, which may have renamed or dropped them."""
        if not self._own:
            return tables
        now = {t.location: t for t in registry.list_tables(self._database)}
        return [now[t.location] for t in tables if t.location in now]

    # ---- inside ----------------------------------------------------------------------------------------

    def _create(
        self,
        name: str,
        location: str | os.PathLike[str] | None,
        operation: Callable[[str], object],
        *,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._writable()
        validate_table_name(name)
        if name in self._gone_here:
            raise TableExistsError(
                f"the table {name!r} was dropped in this transaction: its name is taken until it commits",
                table=name,
                suggestion="create it after the transaction, or under another name",
            )
        taken = name in self._touched
        if not taken:
            try:
                self.table(name)
                taken = True
            except TableMissingError:
                pass
        if taken and self._repeats:
            return  # the first call made it
        if taken:
            raise TableExistsError(f"the table {name!r} exists", table=name, suggestion="write to it instead")
        where = None if location is None else normal_location(location)
        create_with(self._database, name, where, operation, comment=comment, tags=tags, sink=self)

    def _remember(self, name: str, table: Table | NewTable, overlay: Overlay, read: Snapshot | None) -> None:
        address = self._address.with_table(name)
        row = unborn(table) if isinstance(table, NewTable) else table
        handle = SqlDeltaTable._inside(address, self._database, row, overlay, self)
        self._touched[name] = _Touched(handle, overlay, table, read)

    def _queue(self, own: Callable[[Session], object]) -> None:
        self._writable()
        self._own.append(own)

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


def _created(actions: Sequence[Action]) -> Snapshot:
    """A new table as its first operation makes it."""
    metadata = next(a for a in actions if isinstance(a, Metadata))
    protocol = next(a for a in actions if isinstance(a, Protocol))
    return Snapshot(0, 0, protocol, metadata)


def unborn(new: NewTable) -> Table:
    """A row of the registry for a table that is still to be created."""
    head = Head(-1, 0, 0, 0, 0, 0, 0)
    return Table(-1, new.name, new.location, "active", None, new.comment, new.tags, new.settings, 0, 0, head)


def backoff(attempt: int, *, first: float = 0.02, longest: float = 2.0) -> float:
    """Seconds to wait before an attempt is repeated: doubling, with full jitter."""
    return random.uniform(0, min(longest, first * 2**attempt))  # noqa: S311 - not a secret
