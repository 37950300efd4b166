"""``TableHandle``: an open SQL-backed table, as every operation takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from deltalakedb.address import parse_address
from deltalakedb.coordinator.coordinator import Coordinator, after_commit
from deltalakedb.coordinator.guard import require_writable
from deltalakedb.exceptions import (
    DeltaSqlError,
    InvalidArgumentError,
    PredicateError,
    UnsupportedOperationError,
)
from deltalakedb.metastore import outbox, registry, snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.table.arguments import predicate_of
from deltalakedb.table.intent import AutoCommit
from deltalakedb.table.locations import normal_location
from deltalakedb.table.read.scan import check_files, published_table, raw_table
from deltalakedb.table.roots import root_at
from deltalakedb.table.sources import SqlSource, check_open, open_source, version_at
from deltalakedb.table.unreadable import reading

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    import deltalake
    from deltalake._internal import RawDeltaTable

    from deltalakedb.address import Address
    from deltalakedb.metastore.rows import Table as TableRow
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.table.intent import CommitTarget, WriteIntent
    from deltalakedb.table.read.scan import RawTable
    from deltalakedb.table.roots import Root
    from deltalakedb.table.sources import Source


class TableHandle:
    """An open table: the source of its metadata, the root of its files, and the target of its commits.

    A handle that belongs to a transaction sees the transaction's own changes until the transaction ends. Then
    it becomes an ordinary handle at the committed version, or every use raises an error.

    Attributes:
        address: The table's address.
        database: Its catalog's database.
        storage_options: The storage options that the caller gave.
        pinned: Whether the user chose a version, so that operations do not move to the newest one first.
        one_shot: Whether the handle serves a single operation, and is not refreshed after the commit.
        appended: The last commit, if it changed neither metadata nor protocol.
    """

    def __init__(
        self,
        address: Address,
        database: Database,
        row: TableRow,
        source: Source,
        target: CommitTarget,
        *,
        storage_options: Mapping[str, str] | None = None,
        root: Root | None = None,
        pinned: bool = False,
    ) -> None:
        self.address = address
        self.database = database
        self.pinned = pinned
        self.one_shot = False
        self.appended: Committed | None = None
        self._row = row
        self._source = source
        self._target = target
        self.storage_options = storage_options
        self._root = root
        self._raw: RawTable | None = None
        #: set when the transaction ends: the version to open on the next use, or the error to raise
        self._ended: int | DeltaSqlError | None = None

    @classmethod
    def open(
        cls,
        table_uri: str | os.PathLike[str] | Address,
        version: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """Open a table by one query; files, statistics and history are read when they are needed.

        Args:
            table_uri: The table's address.
            version: The version to open; by default the newest.
            storage_options: Options for the object store.
        """
        address = parse_address(table_uri).absolute()
        name = address.require_table()
        database = Database.open(address)
        row, source = open_source(database, name, version, storage_options)
        check_open(source.snapshot, table=name)
        made = cls(
            address,
            database,
            row,
            source,
            AutoCommit(database),
            storage_options=storage_options,
            pinned=version is not None,
        )
        if database.engine.config.publish.look_at_open and Coordinator(database).look_at_open(row):
            made._open(version)
        made.check_location(address.location)
        return made

    def check_location(self, location: str | None) -> None:
        """Raise InvalidArgumentError if an address names a location other than the table's."""
        if location and normal_location(location) != self.row.location:
            raise InvalidArgumentError(
                f"the address has location={location}, but the table {self.name!r} is at {self.row.location}",
                table=self.name,
                suggestion="leave location= out: it is needed only to create a table",
            )

    def use_options(self, storage_options: Mapping[str, str] | None) -> None:
        """Use these storage options from now on; None keeps the current ones."""
        if storage_options is not None:
            self.storage_options, self._root = dict(storage_options), None

    @property
    def name(self) -> str:
        return self.address.table or ""

    @property
    def row(self) -> TableRow:
        self._follow()
        return self._row

    @property
    def source(self) -> Source:
        """The reader of the open version: from SQL, from the log, or a transaction's overlay."""
        self._follow()
        return self._source

    @property
    def target(self) -> CommitTarget:
        self._follow()
        return self._target

    @property
    def snapshot(self) -> Snapshot:
        return self.source.snapshot

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def root(self) -> Root:
        row = self.row
        if self._root is None or self._root.location != row.location:
            config = self.database.engine.config
            self._root = root_at(row.location, self.storage_options, config, table=row.name)
        return self._root

    @property
    def is_live(self) -> bool:
        """Whether newer versions can be seen: not inside a transaction."""
        return isinstance(self.target, AutoCommit)

    def refresh(self) -> None:
        """Prepare for an operation: move to the newest version, unless the user chose one."""
        self.target.ready()
        registry.refuse_followed(self.row)
        if self.is_live and not self.pinned:
            self._advance()
        self.require_folder()

    def require_folder(self) -> None:
        """Refuse to write if the folder of a published table is gone."""
        require_writable(self.database, self.row, self.root.store)

    def update(self) -> None:
        """Move to the newest version; does nothing inside a transaction."""
        if self.is_live:
            self.pinned = False
            self._advance()

    def load(self, version: int) -> None:
        self._require_live()
        self._open(version)
        self.pinned = True

    def load_at(self, moment: int, *, strict: bool = False) -> None:
        """Move to the newest version at a time, in epoch milliseconds, and stay there.

        A time before the first commit is version 0, as in delta-rs; if strict, it is a
        VersionMissingError, as in delta-spark.
        """
        self._require_live()
        self._open(self.version_at(moment, strict=strict))
        self.pinned = True

    def version_at(self, moment: int, *, strict: bool = False) -> int:
        return version_at(self.database, self.row, moment, self.storage_options, strict=strict)

    def newest_version(self) -> int:
        """The newest version that can be seen from here."""
        if not self.is_live:
            return self.version
        return registry.find(self.database, self.name).head.version

    def source_at(self, version: int) -> Source:
        return open_source(self.database, self.name, version, self.storage_options)[1]

    def _open(self, version: int | None) -> None:
        row, source = open_source(self.database, self.name, version, self.storage_options)
        check_open(source.snapshot, table=self.name)  # a refused version leaves the handle as it was
        self._row, self._source, self._raw = row, source, None

    def _advance(self) -> None:
        """Move to the newest version; what has not changed since the open one is not read again."""
        if isinstance(self.source, SqlSource):
            opened = snapshots.advance(self.database, self.name, self.source.opened)
        else:
            opened = snapshots.open_table(self.database, self.name)
        self._row, self._source, self._raw = opened.table, SqlSource(self.database, opened), None
        check_open(self.snapshot, table=self.name)

    def _require_live(self) -> None:
        if not self.is_live:
            raise UnsupportedOperationError(
                "a table inside a transaction stays at the transaction's snapshot",
                table=self.name,
                suggestion="tx.table(name, version=…) reads an older version",
            )

    def submit(self, work: WriteIntent) -> Committed | None:
        """Commit a change of this table, or add it to the transaction; then show the result."""
        outcome = self.target.submit(work)
        self.appended = None if any(isinstance(a, Metadata | Protocol) for a in work.actions) else outcome
        self._raw = None
        if outcome is not None and not self.one_shot:
            self.pinned = False
            with after_commit(f"{self.name} could not be opened at its new version"):
                self._advance()
        return outcome

    def end(self, ending: int | DeltaSqlError) -> None:
        """Detach the handle from its ended transaction; the database is queried only on the next use.

        Args:
            ending: The version to open on the next use, or the error to raise on every use.
        """
        self._ended, self._raw = ending, None

    @property
    def is_ended(self) -> bool:
        return self._ended is not None

    def _follow(self) -> None:
        if self._ended is None:
            return
        if isinstance(self._ended, DeltaSqlError):
            raise self._ended.with_traceback(None)
        self._open(self._ended)
        self._target, self._ended = AutoCommit(self.database), None

    def where(self, predicate: Any, *, files_only: bool = False) -> Expr | None:
        """Parse a predicate: SQL text, filters in disjunctive normal form, or a pyarrow expression.

        Args:
            predicate: The predicate as the user wrote it.
            files_only: Whether it only selects files; values are then converted to their columns' types.
        """
        return predicate_of(predicate, self.snapshot.metadata, files_only=files_only)

    def where_or_all(self, predicate: Any) -> Expr | None:
        """Parse a predicate; return None (every row) also if only delta-rs can parse it."""
        try:
            return self.where(predicate)
        except PredicateError:
            return None

    def reading(self) -> AbstractContextManager[None]:
        return reading(self.root, self.file_sizes, table=self.name, version=self.version)

    def file_sizes(self) -> Iterable[tuple[str, int]]:
        """The paths of the live files, as the log has them, with their sizes."""
        found = self.source.scan(("path", "size"))
        return zip(*(column.to_pylist() for column in found.columns), strict=True)

    def raw(self, *, files: bool = True) -> RawDeltaTable:
        """delta-rs's own table at the open version, for reading; without files it only knows the schema."""
        if not files:
            return raw_table(self.snapshot, (), self.root).raw
        if self._raw is None:
            found = None
            if self._is_published():
                check_files(self.source, self.root)
                found = published_table(self.snapshot, self.root)
            self._raw = found or raw_table(self.snapshot, self.source.adds(), self.root)
        return self._raw.raw

    def _is_published(self) -> bool:
        """Whether a remote table's log has the open version and all versions before it."""
        if self.root.is_local or not isinstance(self.source, SqlSource) or self.row.state != "active":
            return False
        waiting = outbox.waiting_versions(self.database, self.row.table_id)
        return self.version < min(waiting, default=self.version + 1)


def handle_of(table: deltalake.DeltaTable) -> TableHandle | None:
    """The handle of a SQL-backed table, also if its ``_table`` is wrapped; None for a plain one."""
    found: object = getattr(getattr(table, "_table", None), "handle", None)
    return found if isinstance(found, TableHandle) else None


def require_handle(table: deltalake.DeltaTable) -> TableHandle:
    if (handle := handle_of(table)) is None:
        raise InvalidArgumentError(
            f"{table.table_uri} is a plain Delta table", suggestion="open it by its deltasql:// address"
        )
    return handle
