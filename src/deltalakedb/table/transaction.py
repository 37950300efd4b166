"""Transactions over many tables: all reads see one snapshot, all changes become visible in one commit."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self

import deltalake

from deltalakedb.address import Address, validate_table_name
from deltalakedb.commit.fold import fold
from deltalakedb.commit.request import CommitRequest, NewTable, TableChange, Write
from deltalakedb.coordinator.coordinator import Coordinator, refuse_fenced
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
from deltalakedb.metastore.outbox import members
from deltalakedb.metastore.registry import NameChange
from deltalakedb.metastore.rows import Head, OpenTable, Table
from deltalakedb.metastore.user_sql import checked_statement
from deltalakedb.protocol.read_set import NOTHING, Isolation
from deltalakedb.protocol.txn_log import Committed, Snapshot
from deltalakedb.storage.local import Flushes
from deltalakedb.table.drop_in.delta_table import DeltaTable, table_of
from deltalakedb.table.handle import Hooks, TableHandle, WriteIntent, warn_nothing_written
from deltalakedb.table.locations import normal_location
from deltalakedb.table.roots import PlacedFile, Root, delete_new_files
from deltalakedb.table.sources import Overlay, SqlSource, cache_of, check_open, open_source
from deltalakedb.table.write.write import Mode, create_with, known_mode, split_options, write_to
from deltalakedb.table.write_locks import WriteLocks

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.spark.transaction import SparkTransaction

#: an id becomes a file name in `_delta_transactions`, which may have 255 bytes
_LONGEST_ID: Final = 200


@dataclass(slots=True)
class _Participant:
    """A table in a transaction, with its changes."""

    handle: TableHandle
    #: the table as the transaction sees it
    overlay: Overlay
    #: the table as it was read, or as it will be created
    table: Table | NewTable
    #: the snapshot it was read at; None for a new table
    read: Snapshot | None
    #: its current name in the transaction; None if it was dropped
    name: str | None
    intents: list[WriteIntent] = field(default_factory=list)
    #: drop it even if commits are unpublished
    forced: bool = False

    @property
    def files(self) -> list[PlacedFile]:
        return [file for intent in self.intents for file in intent.files]

    def apply(self, intent: WriteIntent) -> None:
        self.intents.append(intent)
        for step in intent.change.versions:
            self.overlay.apply(step)
        self.overlay.reads |= intent.change.reads

    def change(self, isolation: Isolation | None) -> tuple[TableChange | None, list[PlacedFile]]:
        """The change to commit, if any, and the new files that no version will reference."""
        changes = [] if self.name is None else [intent.change for intent in self.intents]
        folded = fold([step for change in changes for step in change.versions])
        cancelled = {p.rpartition("/")[2] for p in folded.cancelled}
        obsolete = self.files if self.name is None else [f for f in self.files if f.name in cancelled]
        reads = NOTHING if self.read is None else self.overlay.reads
        if not folded.versions and not reads:
            return None, obsolete
        # every operation has checked the table's features itself
        origins = [change.origin for change in changes if isinstance(change.origin, Write)]
        handled = frozenset[str]().union(*(origin.handled_features for origin in origins))
        origin = Write(all(origin.new_names for origin in origins), handled)
        return TableChange(self.table, folded.versions, self.read, reads, origin, isolation), obsolete

    def release(self, commits: Mapping[str, Committed] | None) -> None:
        """Detach the handle: the transaction is over, with these commits or, if None, rolled back."""
        if commits is None:
            error = InvalidArgumentError(
                "the table belongs to a transaction that was rolled back",
                table=self.handle.name,
                suggestion="open the table again; the transaction changed nothing",
            )
            self.handle.end(error)
        elif self.name is not None and (last := commits.get(self.name, self.read)) is not None:
            self.handle.end(last.version)
        else:
            self.handle.end(_dropped(self.handle.name, "its"))


def _dropped(name: str, whose: str) -> TableMissingError:
    return TableMissingError(
        f"the table {name!r} was dropped in {whose} transaction",
        table=name,
        suggestion="`Catalog.tables` lists the tables of the catalog",
        command="`deltasql list` shows the tables of the catalog",
    )


@dataclass(frozen=True, slots=True)
class OldVersion:
    """The commit target of a handle of an older version: it refuses every change."""

    name: str
    version: int
    flushes: None = None

    def ready(self) -> NoReturn:
        raise InvalidArgumentError(
            f"version {self.version} was opened for reading only",
            table=self.name,
            version=self.version,
            suggestion="open the table without a version to change it",
        )

    def submit(self, intent: WriteIntent) -> NoReturn:
        delete_new_files(intent.files)
        self.ready()


def open_old(
    database: Database,
    address: Address,
    version: int,
    *,
    known_as: str | None = None,
    session: Session | None = None,
) -> TableHandle:
    """A table at a version, for reading only; ``known_as`` is its name before a transaction renamed it."""
    name = address.require_table()
    row, source = open_source(database, known_as or name, version, session=session)
    check_open(source.snapshot, table=known_as or name)
    return TableHandle(address, database, row, source, OldVersion(name, version))


def _placeholder_row(new: NewTable) -> Table:
    head = Head(-1, 0, 0, 0, 0, 0, 0)
    return Table(-1, new.name, new.location, "active", None, new.comment, new.tags, new.settings, 0, 0, head)


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The outcome of a committed transaction.

    Attributes:
        txn_uuid: The transaction's id.
        commits: The tables it changed, by the names they have now, with their new versions and times.
        replayed: Whether an earlier transaction with the same id made the commits; nothing was written now.
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


class CatalogTransaction:
    """Changes any number of tables atomically: ``Catalog.transaction`` makes one.

    All reads see one snapshot of the catalog. The end of the ``with`` block commits; an exception rolls back.
    A transaction is not thread-safe.

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
        if isolation not in (None, "Serializable", "WriteSerializable"):
            raise InvalidArgumentError(
                f"unknown isolation level {isolation!r}", suggestion="use Serializable or WriteSerializable"
            )
        self._database = database
        self._address = address
        self._stack = ExitStack()
        self._session: Session | None = None
        self._tables: list[_Participant] = []
        self._state = "new"
        #: tables that were opened with the snapshot
        self._prefetched: dict[str, OpenTable] = {}
        #: new files to flush before the commit
        self.flushes = Flushes()
        self._isolation = isolation
        self._given_uuid = txn_uuid is not None
        self._read_only = read_only
        #: the storage options of the tables' roots
        self._options: dict[str, Mapping[str, str] | None] = {}
        self._write_locks = WriteLocks()
        #: whether an earlier transaction with the same id is committed
        self._repeats = False
        self._statements: list[Callable[[Session], object]] = []
        self.uuid = str(uuid.uuid4()) if txn_uuid is None else _checked_id(txn_uuid)
        #: the outcome, once the transaction is committed
        self.result: TransactionResult | None = None

    @property
    def commits(self) -> Mapping[str, Committed]:
        """The commits of the transaction by table name; empty until it is committed."""
        return {} if self.result is None else self.result.commits

    # ---- reading ---------------------------------------------------------------------------------------

    def table(
        self, name: str, *, version: int | None = None, storage_options: Mapping[str, str] | None = None
    ) -> DeltaTable:
        """A table as this transaction sees it: its snapshot, with the transaction's own changes on top.

        After a commit it is an ordinary table, at the version that the transaction made or read; after a
        rollback every use of it raises an InvalidArgumentError.

        Args:
            name: The table's current name in the transaction.
            version: An older version, for reading only. It never changes, so reading it never conflicts.
            storage_options: Options for the object store, if the settings and the environment have none.
        """
        handle = self._participant(name).handle if version is None else self._older(name, version)
        handle.use_options(storage_options)
        return table_of(handle)

    def tables(self, *, namespace: str | None = None) -> list[Table]:
        """All tables as the transaction sees them: those of its snapshot, and its own."""
        names = {p.table.location: p.name for p in self._tables}
        rows = registry.list_tables(self._reading())
        rows += [_placeholder_row(p.table) for p in self._tables if p.name and isinstance(p.table, NewTable)]
        found = [replace(t, name=name) for t in rows if (name := names.get(t.location, t.name)) is not None]
        shown = (t for t in found if namespace is None or t.name.startswith(f"{namespace}."))
        return sorted(shown, key=lambda t: t.name)

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Query the database in plain SQL, at the transaction's snapshot. Placeholders are ``?``."""
        return registry.query(self._database, self._reading(), sql, params)

    # ---- changing --------------------------------------------------------------------------------------

    def write(
        self,
        name: str,
        data: Any,
        *,
        mode: Mode = "append",
        location: str | os.PathLike[str] | None = None,
        partition_by: list[str] | str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        schema_mode: Literal["merge", "overwrite"] | None = None,
        predicate: str | None = None,
        target_file_size: int | None = None,
        writer_properties: deltalake.WriterProperties | None = None,
        commit_properties: deltalake.CommitProperties | None = None,
        post_commithook_properties: deltalake.PostCommitHookProperties | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write to a table, creating it if it does not exist; arguments as in ``Catalog.write``.

        What was committed is in ``commits`` once the transaction is committed.
        """
        options: dict[str, Any] = {
            "partition_by": partition_by,
            "description": description,
            "configuration": configuration,
            "schema_mode": schema_mode,
            "predicate": predicate,
            "target_file_size": target_file_size,
            "writer_properties": writer_properties,
            "commit_properties": commit_properties,
            "post_commithook_properties": post_commithook_properties,
        }
        mode = known_mode(mode)
        self.ready()
        try:
            table = self._participant(name).handle
        except TableMissingError as error:
            if error.context.get("dropped"):
                raise
            create_options = split_options(options, table=name)
            stock: Any = deltalake.write_deltalake
            run = partial(stock, data=data, mode=mode, **options)
            self._create(name, location, run, create_options=create_options, storage_options=storage_options)
        else:
            table.use_options(storage_options)
            if mode not in ("error", "ignore"):
                table.require_writable()
            write_to(table, data, mode=mode, **options)

    def create_table(
        self,
        name: str,
        schema: Any,
        *,
        location: str | os.PathLike[str] | None = None,
        partition_by: list[str] | str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Create an empty table; arguments as in ``Catalog.create_table``. It must not exist yet."""
        options: dict[str, Any] = {
            "partition_by": partition_by,
            "description": description,
            "configuration": configuration,
        }
        create_options = replace(split_options(options, table=name), comment=comment, tags=tags or {})
        run = partial(deltalake.DeltaTable.create, schema=schema, **options)
        self._create(name, location, run, create_options=create_options, storage_options=storage_options)
        return self.table(name)

    def rename_table(self, name: str, new_name: str) -> None:
        """Rename a table when the transaction commits; its old name is free at once."""
        validate_table_name(new_name)
        self.ready()
        if self._repeats:
            return  # the first call did it
        participant = self._participant(name)
        if new_name == name:
            return
        if self._exists(new_name):
            raise TableExistsError(
                f"the name {new_name!r} is taken",
                table=new_name,
                suggestion="rename or drop its table first in the same transaction, or choose another name",
            )
        participant.name = new_name
        participant.handle.address = self._address.with_table(new_name)
        if isinstance(participant.table, NewTable):
            participant.table = replace(participant.table, name=new_name)

    def drop_table(self, name: str, *, force: bool = False) -> None:
        """Drop a table when the transaction commits. Its files and `_delta_log` stay.

        The transaction's earlier changes to the table are discarded, and its name is free at once.

        Args:
            name: The table.
            force: Drop it even if commits were never published; these are then lost.
        """
        self.ready()
        if self._repeats:
            return  # the first call did it
        participant = self._participant(name)
        table = participant.table
        if not isinstance(table, NewTable) and not force:
            with self._database.read() as session:
                registry.refuse_unpublished(session, table)
            refuse_fenced(self._database, table)
        participant.name, participant.forced = None, force
        if isinstance(table, NewTable):
            participant.release({})

    def execute(self, sql: str, params: Sequence[object] = ()) -> None:
        """Queue a statement on the user's own tables; it runs inside the commit, after the checks.

        Args:
            sql: One statement with ``?`` placeholders. Transaction control and the catalog's own tables
                (``dl_…``) are refused.
            params: The values.
        """
        statement = checked_statement(sql)
        self.ready()
        self._statements.append(lambda session: session.run_user_sql(statement, params))

    def spark(self, spark: Any) -> SparkTransaction:
        """Spark operations on the transaction's tables, which become visible when it commits.

        Args:
            spark: A session with Delta, such as the one that ``deltalakedb.spark.session`` returns.
        """
        self._require_active()
        made: SparkTransaction = import_module("deltalakedb.spark.transaction").SparkTransaction(self, spark)
        return made

    def ready(self) -> None:
        self._require_active()
        if self._read_only:
            raise InvalidArgumentError(
                "a snapshot of a catalog is read-only", suggestion="use catalog.transaction() to write"
            )

    def submit(self, intent: WriteIntent) -> None:
        try:
            self.ready()
            participant = self._participant_of(intent)
        except DeltaSqlError:
            delete_new_files(intent.files)  # the handle outlived its table or transaction, or is read-only
            raise
        if intent.files:
            self._write_locks.at(intent.root.location)
        self._options[intent.root.location] = intent.root.options
        participant.apply(intent)

    def _participant_of(self, intent: WriteIntent) -> _Participant:
        table = intent.change.table
        if isinstance(table, NewTable):
            return self._add(table.name, table, Overlay(None), None, intent.root)
        for participant in self._tables:
            if participant.table.location == table.location and participant.name is not None:
                return participant
        raise _dropped(table.name, "this")

    # ---- ending ----------------------------------------------------------------------------------------

    def commit(self) -> Mapping[str, Committed]:
        """Commit all changes atomically; a ConflictError means that nothing was changed."""
        self._require_active()
        planned = [(p.name or p.table.name, *p.change(self._isolation)) for p in self._tables]
        changes = [(name, change) for name, change, _ in planned if change is not None]
        obsolete = [file for _, _, files in planned for file in files]
        renames = [
            NameChange(p.table, p.name, p.forced)
            for p in self._tables
            if not isinstance(p.table, NewTable) and p.name != p.table.name
        ]
        cache_of(self._database).transaction([change.table.name for _, change in changes])
        self._end()  # unless the commit succeeds
        if not self._statements and not renames and not any(c.versions for _, c in changes):
            self._state = "committed"
            self.flushes.forget()
            with self._write_locks:
                delete_new_files(obsolete)
            return self._committed(self._recorded() if self._repeats else {}, replayed=self._repeats)
        request = CommitRequest(
            [c for _, c in changes], renames, self._statements, self.uuid, self._given_uuid
        )
        coordinator = Coordinator(self._database, self._options)
        with self._write_locks:
            try:
                self.flushes.wait()
            except Exception:
                self._delete_files()
                raise
            outcome = coordinator.ratify(request, delete_files=self._delete_files)
        self._state = "committed"
        delete_new_files(obsolete)
        replayed = self._repeats or (bool(outcome) and all(c.replayed for c in outcome))
        by_application = replayed and not self._given_uuid  # so no table was renamed
        done = {
            change.table.name if by_application else name: (change, made)
            for (name, change), made in zip(changes, outcome, strict=True)
            if change.versions
        }
        commits = {name: made for name, (_, made) in done.items()}
        if replayed and not by_application:
            commits = self._recorded()
        self._committed(commits, replayed=replayed)
        coordinator.follow_up(
            [one for name, one in done.items() if name in commits],
            group=self.uuid,
            renamed=bool(renames),
            checkpoints={
                p.table.location: Hooks.all_of(intent.hooks for intent in p.intents) for p in self._tables
            },
        )
        if by_application:
            warn_nothing_written(", ".join(done))
        if unknown := [name for name in done if name not in commits]:
            why = f"the transaction {self.uuid} was committed before, without a change to it"
            warn_nothing_written(", ".join(unknown), why)
        return self.commits

    def _committed(self, commits: Mapping[str, Committed], *, replayed: bool) -> Mapping[str, Committed]:
        self.result = TransactionResult(self.uuid, commits, replayed)
        for participant in self._tables:
            participant.release(commits)
        return commits

    def _recorded(self) -> dict[str, Committed]:
        """The commits of the earlier transaction with this id."""
        found = members(self._database, self.uuid)
        return {m.table: Committed(m.version, m.timestamp, replayed=True) for m in found}

    def rollback(self) -> None:
        """Discard all changes, and delete the files that were written."""
        if self._state == "active":
            self._end()
            self.flushes.forget()
            with self._write_locks:
                self._delete_files()

    def _delete_files(self) -> None:
        delete_new_files(file for participant in self._tables for file in participant.files)

    # ---- internals -------------------------------------------------------------------------------------

    def _participant(self, name: str) -> _Participant:
        """The table with this name in the transaction; it is added if the transaction has not used it yet."""
        session = self._reading()
        if (found := self._find(name)) is not None:
            return found
        if (opened := self._prefetched.get(name)) is None:
            with self._database.watched():
                opened = snapshots.open_table(session, name)
        return self._add(name, opened.table, Overlay(SqlSource(self._database, opened)), opened.snapshot)

    def _find(self, name: str) -> _Participant | None:
        """The table with this name in the transaction; None if the transaction has not used it yet."""
        if self._is_free(name):
            raise TableMissingError(
                f"the table {name!r} was dropped or renamed in this transaction",
                table=name,
                suggestion="use its new name, or create a table with this name",
            )
        return next((p for p in self._tables if p.name == name), None)

    def _is_free(self, name: str) -> bool:
        """Whether the snapshot's table with this name was dropped or renamed, and no other table has it."""
        before = any(p.read is not None and p.table.name == name for p in self._tables)
        return before and all(p.name != name for p in self._tables)

    def _exists(self, name: str) -> bool:
        try:
            self._participant(name)
        except TableMissingError:
            return False
        return True

    def _older(self, name: str, version: int) -> TableHandle:
        session = self._reading()
        found = self._find(name)
        if found is not None and isinstance(found.table, NewTable):
            raise VersionMissingError(
                "the table is created by this transaction and has no versions yet",
                table=name,
                version=version,
                suggestion="open the table without a version to read what the transaction wrote",
            )
        known_as = name if found is None else found.table.name
        address = self._address.with_table(name)
        return open_old(self._database, address, version, known_as=known_as, session=session)

    def _add(
        self,
        name: str,
        table: Table | NewTable,
        overlay: Overlay,
        read: Snapshot | None,
        root: Root | None = None,
    ) -> _Participant:
        address = self._address.with_table(name)
        row = _placeholder_row(table) if isinstance(table, NewTable) else table
        handle = TableHandle(address, self._database, row, overlay, self, root)
        self._tables.append(_Participant(handle, overlay, table, read, name))
        return self._tables[-1]

    def _create(
        self,
        name: str,
        location: str | os.PathLike[str] | None,
        operation: Callable[[str], object],
        **options: Any,
    ) -> None:
        """Create a table with a delta-rs operation on an empty folder; options as in ``create_with``."""
        self.ready()
        validate_table_name(name)
        self._database.ensure()
        free = self._is_free(name)
        if not free and self._exists(name):
            if self._repeats:
                return  # the first call created it
            raise TableExistsError(f"the table {name!r} exists", table=name, suggestion="write to it instead")
        place = None if location is None else normal_location(location)
        address = replace(self._address, table=name, location=place)
        create_with(self._database, address, operation, transaction=self, name_is_free=free, **options)

    def _reading(self) -> Session:
        """The session to read with; CatalogNotFoundError if there is no catalog yet."""
        self._require_active()
        if self._session is None:
            self._session = self._stack.enter_context(self._database.read_only())
        return self._session

    def _require_active(self) -> None:
        if self._state == "active":
            return
        over = f"the transaction was {self._state}"
        raise InvalidArgumentError(
            "the transaction has not begun" if self._state == "new" else over,
            suggestion="begin a new one: with catalog.transaction() as tx: …",
        )

    def _end(self) -> None:
        self._state = "rolled back"
        for participant in self._tables:
            participant.release(None)
        self._session = None
        self._stack.close()

    def __enter__(self) -> Self:
        """Take the snapshot, and open the tables of the last transaction, which this one likely needs."""
        if self._state != "new":
            raise InvalidArgumentError(f"the transaction has already begun: it is {self._state}")
        names = [] if self._read_only else sorted(cache_of(self._database).together)
        try:
            session = self._stack.enter_context(self._database.read_only(will_query=bool(names)))
        except CatalogNotFoundError as error:
            if self._read_only or not self._database.may_be_created(error):
                raise
            self._state = "active"  # the first write creates the catalog
            return self
        try:
            with self._database.watched():
                self._prefetched = snapshots.open_many(session, names) if names else {}
            if self._given_uuid:
                self._repeats = by_transaction(session, self.uuid) is not None
        except BaseException:
            self._stack.close()  # __exit__ is not called
            raise
        self._session, self._state = session, "active"
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.rollback()
        elif self._state == "active":
            self.commit()


def _checked_id(given: str) -> str:
    fits = isinstance(given, str) and 0 < len(given.encode()) <= _LONGEST_ID and given.isprintable()
    if fits and not set("/\\") & set(given) and given.strip(". "):
        return given
    raise InvalidArgumentError(
        f"invalid txn_uuid {given!r}",
        suggestion=f"use 1 to {_LONGEST_ID} printable characters without slashes, or leave it out",
    )
