"""Transactions over many tables: one snapshot to read from, one commit for everything."""

from __future__ import annotations

import uuid
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import deltalake

from deltalakedb.commit.changes import NewTable
from deltalakedb.exceptions import (
    DeltaSqlError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
)
from deltalakedb.metastore import registry
from deltalakedb.metastore.commits import by_transaction
from deltalakedb.metastore.outbox import group
from deltalakedb.metastore.registry import refuse_unpublished
from deltalakedb.metastore.user_sql import checked_statement
from deltalakedb.mirror.fencing import refuse_fenced
from deltalakedb.protocol.log import Committed
from deltalakedb.table import memory
from deltalakedb.table.hooks import Hooks
from deltalakedb.table.in_flight import InFlight
from deltalakedb.table.new_tables import PLAIN, quiet, taken_out
from deltalakedb.table.overlay import Overlay, created
from deltalakedb.table.places import normal_location
from deltalakedb.table.results import TransactionResult
from deltalakedb.table.roots import undo
from deltalakedb.table.transaction_ids import checked_id
from deltalakedb.table.transaction_view import TransactionView
from deltalakedb.table.work import (
    Settled,
    after_commit,
    interval,
    publish_committed,
    settle,
    tell_nothing_written,
)
from deltalakedb.table.writer import create_with, known_mode, write_to
from deltalakedb.uri import validate_table_name

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from deltalakedb.commit.changes import TableChange
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.reads import Isolation
    from deltalakedb.spark.transactions import SparkTransaction
    from deltalakedb.table.new_tables import Wishes
    from deltalakedb.table.participants import Participant
    from deltalakedb.table.roots import PlacedFile, Root
    from deltalakedb.table.sql_table import SqlDeltaTable
    from deltalakedb.table.work import Work
    from deltalakedb.uri import Address


class Transaction(TransactionView):
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
        super().__init__(database, address)
        if isolation not in (None, "Serializable", "WriteSerializable"):
            raise InvalidArgumentError(
                f"unknown isolation {isolation!r}", suggestion="use Serializable or WriteSerializable"
            )
        self._isolation = isolation
        self._given_uuid = txn_uuid is not None
        self._read_only = read_only
        self._files: list[PlacedFile] = []
        self._roots: dict[str, Root] = {}
        self._in_flight = InFlight()
        #: the first call with the same id did everything
        self._repeats = False
        self._own: list[Callable[[Session], object]] = []
        self.uuid = str(uuid.uuid4()) if txn_uuid is None else checked_id(txn_uuid)
        #: what the transaction became, once it is committed
        self.result: TransactionResult | None = None

    @property
    def commits(self) -> Mapping[str, Committed]:
        """What the transaction became, by table name; empty until it is committed."""
        return {} if self.result is None else self.result.commits

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
        mode = known_mode(mode)
        self._writable()
        try:
            table = self.table(name, storage_options=storage_options)
        except TableMissingError as error:
            if error.context.get("dropped"):
                raise
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
            if mode not in ("error", "ignore"):
                table._require_folder()
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
            with self._database.read() as session:
                refuse_unpublished(session, table)
            refuse_fenced(self._database, table)
        self._tables.drop(participant, force=force)

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

    def spark(self, spark: Any) -> SparkTransaction:
        """Spark's operations on the transaction's tables: what needs a cluster becomes visible with the rest.

        Args:
            spark: A session with Delta, such as ``deltalakedb.spark.session`` gives.
        """
        self._going_on()
        made: SparkTransaction = import_module("deltalakedb.spark.transactions").SparkTransaction(self, spark)
        return made

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
        self._going_on()
        changes, vanished = self._tables.changes(self._isolation)
        names = self._tables.name_changes()
        memory.remember_together(self._database, [change.table.name for _, change in changes])
        self._end("rolled back")  # until the opposite is known
        if not self._own and not names and not any(c.steps for _, c in changes):
            self._state = "committed"
            self.flushes.forget()
            with self._in_flight:
                undo(vanished)
            self.result = TransactionResult(
                self.uuid, self._recorded() if self._repeats else {}, self._repeats
            )
            self._tables.release(self.commits)
            return self.commits
        with self._in_flight:
            self._flush()
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
        became = {n: made for n, (_, made) in done.items()}
        unknown: list[str] = []
        if replayed and not by_application:
            became = self._recorded()
            unknown = [name for name in done if name not in became]
            done = {name: one for name, one in done.items() if name in became}
        self.result = TransactionResult(self.uuid, became, replayed)
        self._tables.release(self.commits)
        with after_commit("its tables could not be found again"):
            settled = self._settled(done.values(), bool(names))
            together = self.uuid if len(settled) > 1 else None
            publish_committed(self._database, settled, self._roots, group=together)
        if by_application:
            tell_nothing_written(", ".join(done))
        if unknown:
            why = f"the transaction {self.uuid} was committed before, without a change of it"
            tell_nothing_written(", ".join(unknown), why)
        return self.commits

    def _recorded(self) -> dict[str, Committed]:
        """What the first transaction with this id became, whatever a repetition would change now."""
        found = group(self._database, self.uuid)
        return {m.table: Committed(m.version, m.timestamp, replayed=True) for m in found}

    def _flush(self) -> None:
        """Have every new file on disk before anything says that it is there."""
        try:
            self.flushes.wait()
        except Exception:
            undo(self._files)
            raise

    def rollback(self) -> None:
        """Forget everything; files that were written are deleted."""
        if self._state == "active":
            self._end("rolled back")
            self.flushes.forget()
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
        self._database.ensure()
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

    def _writable(self) -> None:
        self._going_on()
        if self._read_only:
            raise InvalidArgumentError(
                "a catalog's snapshot is for reading only", suggestion="use catalog.transaction() to write"
            )

    def __enter__(self) -> Self:
        session = self._begin(likely=not self._read_only)
        if self._given_uuid and session is not None:
            try:
                self._repeats = by_transaction(session, self.uuid) is not None
            except Exception:
                self.rollback()  # nobody calls __exit__
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._state != "active":
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()
