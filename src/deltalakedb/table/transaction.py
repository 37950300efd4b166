"""Transactions over many tables: one snapshot to read from, one commit for everything."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self

import deltalake

from deltalakedb.address import validate_table_name
from deltalakedb.commit.request import CommitRequest, NewTable
from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.coordinator.fence import refuse_fenced
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    DeltaSqlError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
    VersionMissingError,
)
from deltalakedb.metastore import registry, snapshots
from deltalakedb.metastore.commits import by_transaction
from deltalakedb.metastore.outbox import group
from deltalakedb.metastore.registry import refuse_unpublished
from deltalakedb.metastore.user_sql import checked_statement
from deltalakedb.protocol.txn_log import Committed
from deltalakedb.storage.durable import Flushes
from deltalakedb.table import memory
from deltalakedb.table.drop_in.delta_table import table_of
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.hooks import Hooks
from deltalakedb.table.intent import ReadOnly, checkpoints_of, options_of, warn_nothing_written
from deltalakedb.table.locations import normal_location
from deltalakedb.table.participants import Participant, Participants, placeholder_row
from deltalakedb.table.roots import undo
from deltalakedb.table.sources import Overlay, SqlSource, created, open_older
from deltalakedb.table.write.create import NO_OPTIONS, create_with, known_mode, split_options, without_hooks
from deltalakedb.table.write.write import write_to
from deltalakedb.table.write_locks import WriteLocks

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from deltalakedb.address import Address
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.rows import OpenTable, Table
    from deltalakedb.protocol.read_set import Isolation
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.spark.transaction import SparkTransaction
    from deltalakedb.table.drop_in.delta_table import DeltaTable
    from deltalakedb.table.intent import WriteIntent
    from deltalakedb.table.roots import PlacedFile, Root
    from deltalakedb.table.write.create import CreateOptions

#: an id is a file's name in `_delta_transactions`, where file systems end at 255 bytes
_LONGEST_ID: Final = 200


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """What a transaction became.

    Attributes:
        txn_uuid: The transaction's id.
        commits: The tables it changed, by the names they have now, with their new versions and times.
        replayed: An earlier call had done it already, and nothing was written now.
    """

    txn_uuid: str
    commits: Mapping[str, Committed]
    replayed: bool = False

    @property
    def versions(self) -> dict[str, int]:
        """The new version of each table."""
        return {name: done.version for name, done in self.commits.items()}

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        return {"txn_uuid": self.txn_uuid, "versions": self.versions, "replayed": self.replayed}


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
        self._stack = ExitStack()
        self._session: Session | None = None
        self._tables = Participants()
        self._state = "new"
        #: tables that were looked up along with others
        self._along: dict[str, OpenTable] = {}
        #: new files on their way to the disk
        self.flushes = Flushes()
        self._isolation = isolation
        self._given_uuid = txn_uuid is not None
        self._read_only = read_only
        self._files: list[PlacedFile] = []
        self._roots: dict[str, Root] = {}
        self._write_locks = WriteLocks()
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

    # ---- reading ---------------------------------------------------------------------------------------

    def table(
        self,
        name: str,
        *,
        version: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """A table as this transaction sees it: its snapshot, with the transaction's own work on top.

        After a commit it is an ordinary table, at the version that the transaction made or read; after a
        rollback every use of it is an InvalidArgumentError.

        Args:
            name: The table's name, as the transaction calls it by now.
            version: An older version, for reading only. What it holds never changes, so reading
                it never conflicts.
            storage_options: Options for the object store, where the settings and the environment have none.
        """
        return table_of(self._handle(name, version, storage_options))

    def tables(self, *, namespace: str | None = None) -> list[Table]:
        """All tables as the transaction sees them: those of its snapshot, and its own."""
        found = self._tables.show(registry.list_tables(self._active()))
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
        mode = known_mode(mode)
        self._writable()
        try:
            table = self._handle(name, storage_options=storage_options)
        except TableMissingError as error:
            if error.context.get("dropped"):
                raise
            stock: Any = deltalake.write_deltalake
            create_options = split_options(options, table=name)
            self._create(
                name,
                location,
                lambda target: stock(target, data, mode=mode, **without_hooks(options)),
                storage_options=storage_options,
                create_options=create_options,
            )
        else:
            if mode not in ("error", "ignore"):
                table.require_folder()
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
    ) -> DeltaTable:
        """Create an empty table; arguments as in ``Catalog.create_table``."""
        stock: Any = deltalake.DeltaTable.create
        create_options = split_options(options, table=name)
        self._create(
            name,
            location,
            lambda target: stock(target, schema, **without_hooks(options)),
            comment=comment,
            tags=tags,
            storage_options=storage_options,
            create_options=create_options,
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
        made: SparkTransaction = import_module("deltalakedb.spark.transaction").SparkTransaction(self, spark)
        return made

    def ready(self) -> None:
        """Refuse an operation that could not be taken."""
        self._writable()

    def submit(self, work: WriteIntent) -> None:
        """Take an operation's work; it is committed with everything else."""
        try:
            participant = self._taking(work)
        except DeltaSqlError:
            undo(work.files)  # a handle that outlived its table or its transaction, or one for reading only
            raise
        if work.files:
            self._write_locks.at(work.table.location)
        self._files += work.files
        if work.root is not None:
            self._roots[work.root.location] = work.root
        participant.take(work)

    def _taking(self, work: WriteIntent) -> Participant:
        self._writable()
        table = work.table
        if isinstance(table, NewTable):
            overlay = Overlay(None, created(work.actions))
            return self._add(table.name, table, overlay, None, work.root)
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
        """Commit everything at once; on a conflict, ConflictError is raised and nothing happened."""
        self._going_on()
        changes, vanished = self._tables.changes(self._isolation)
        names = self._tables.name_changes()
        memory.remember_together(self._database, [change.table.name for _, change in changes])
        self._end("rolled back")  # until the opposite is known
        if not self._own and not names and not any(c.versions for _, c in changes):
            self._state = "committed"
            self.flushes.forget()
            with self._write_locks:
                undo(vanished)
            self.result = TransactionResult(
                self.uuid, self._recorded() if self._repeats else {}, self._repeats
            )
            self._tables.release(self.commits)
            return self.commits
        request = CommitRequest([c for _, c in changes], names, self._own, self.uuid, self._given_uuid)
        coordinator = Coordinator(self._database, options_of(self._roots.values()))
        with self._write_locks:
            self._flush()
            outcome = coordinator.ratify(request, delete_files=lambda: undo(self._files))
        self._state = "committed"
        undo(vanished)
        replayed = self._repeats or (bool(outcome) and all(c.replayed for c in outcome))
        by_application = replayed and not self._given_uuid  # then no name was changed either
        done = {
            change.table.name if by_application else name: (change, made)
            for (name, change), made in zip(changes, outcome, strict=True)
            if change.versions
        }
        became = {n: made for n, (_, made) in done.items()}
        unknown: list[str] = []
        if replayed and not by_application:
            became = self._recorded()
            unknown = [name for name in done if name not in became]
            done = {name: one for name, one in done.items() if name in became}
        self.result = TransactionResult(self.uuid, became, replayed)
        self._tables.release(self.commits)
        coordinator.follow_up(
            list(done.values()),
            group=self.uuid,
            renamed=bool(names),
            checkpoints={p.table.location: checkpoints_of(Hooks.all_of(p.hooks)) for p in self._tables},
        )
        if by_application:
            warn_nothing_written(", ".join(done))
        if unknown:
            why = f"the transaction {self.uuid} was committed before, without a change of it"
            warn_nothing_written(", ".join(unknown), why)
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
            with self._write_locks:
                undo(self._files)

    # ---- inside ----------------------------------------------------------------------------------------

    def _handle(
        self, name: str, version: int | None = None, storage_options: Mapping[str, str] | None = None
    ) -> TableHandle:
        handle = self._participant(name).handle if version is None else self._older(name, version)
        handle.use_options(storage_options)
        return handle

    def _participant(self, name: str) -> Participant:
        """A table that the transaction has touched, or touches now."""
        session = self._active()
        found = self._tables.find(name)
        if found is None:
            opened = self._looked_up(session, name)
            overlay = Overlay(SqlSource(self._database, opened))
            found = self._add(name, opened.table, overlay, opened.snapshot)
        return found

    def _older(self, name: str, version: int) -> TableHandle:
        session = self._active()
        found = self._tables.find(name)
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
        return TableHandle(address, self._database, row, source, ReadOnly(name, version))

    def _looked_up(self, session: Session, name: str) -> OpenTable:
        """A table at the transaction's snapshot."""
        if (along := self._along.get(name)) is not None:
            return along
        with self._database.watched():
            return snapshots.open_table(session, name)

    def _exists(self, name: str) -> bool:
        try:
            self._participant(name)
        except TableMissingError:
            return False
        return True

    def _add(
        self,
        name: str,
        table: Table | NewTable,
        overlay: Overlay,
        read: Snapshot | None,
        root: Root | None = None,
    ) -> Participant:
        address = self._address.with_table(name)
        row = placeholder_row(table) if isinstance(table, NewTable) else table
        handle = TableHandle(address, self._database, row, overlay, self, root=root)
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

    def _create(
        self,
        name: str,
        location: str | os.PathLike[str] | None,
        operation: Callable[[str], object],
        *,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        create_options: CreateOptions = NO_OPTIONS,
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
            create_options=create_options,
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
                self.rollback()  # __exit__ is not called
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._state != "active":
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()


def checked_id(given: str) -> str:
    """The id itself, if a transaction may have it."""
    fits = isinstance(given, str) and 0 < len(given.encode()) <= _LONGEST_ID and given.isprintable()
    if fits and not set("/\\") & set(given) and given.strip(". "):
        return given
    raise InvalidArgumentError(
        f"txn_uuid cannot be {given!r}",
        suggestion=f"take 1 to {_LONGEST_ID} printable characters without slashes, or leave it away",
    )
