"""``TableHandle``, an open SQL-backed table; ``WriteIntent``, what an operation wants to commit to it."""

from __future__ import annotations

import json
import sys
import typing
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from deltalake import CommitProperties, PostCommitHookProperties

from deltalakedb.address import Address, parse_address
from deltalakedb.commit.request import PLAIN_WRITE, CommitRequest, TableChange, UserStatement, Write
from deltalakedb.coordinator.coordinator import Coordinator, after_commit, require_writable
from deltalakedb.exceptions import (
    ArgumentTypeError,
    DeltaSqlError,
    InvalidArgumentError,
    NothingWrittenWarning,
    PredicateError,
    UnsupportedOperationError,
)
from deltalakedb.metastore import registry, snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.mirror.checkpointer import CheckpointOptions
from deltalakedb.protocol.actions import Action, CommitInfo, Metadata, Protocol, Txn
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.table.arguments import predicate_of
from deltalakedb.table.locations import normal_location
from deltalakedb.table.roots import PlacedFile, Root, delete_new_files, reading, root_at
from deltalakedb.table.sources import Source, SqlSource, check_open, open_source, version_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import deltalake

    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.read_set import ReadSet
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.storage.local import Flushes
    from deltalakedb.table.read.scan import RawTable

_IN_TRANSACTION: Final = (
    "a table inside a transaction stays at the transaction's snapshot",
    "tx.table(name, version=…) reads an older version",
)
#: packages whose stack frames a warning skips, to name the user's own line
_INTERNAL_PACKAGES = ("deltalakedb", "deltalake")
#: for delta-rs on a scratch table, which needs neither checkpoints nor clean-up
NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Hooks(CheckpointOptions):
    """What follows a commit: a checkpoint if one is due, and after it the clean-up of the log."""

    __slots__ = ()

    @classmethod
    def of(cls, properties: PostCommitHookProperties | None) -> Hooks:
        """Translate stock's properties. The mirror acts on them; scratch tables get `NO_HOOKS`."""
        if properties is None:
            return DEFAULT_HOOKS
        found: Any = properties.create_checkpoint, properties.cleanup_expired_logs
        if not all(isinstance(choice, bool | None) for choice in found):
            raise ArgumentTypeError(f"post-commit hooks are switched on or off by a bool: {found}")
        return cls(bool(found[0]), found[1])

    @classmethod
    def all_of(cls, several: Iterable[Hooks]) -> Hooks:
        """The hooks of a commit of several operations: any of them can switch one off."""
        found = list(several)
        choices = {h.cleanup for h in found} - {None}
        return cls(all(h.write for h in found), all(choices) if choices else None)


DEFAULT_HOOKS: Final = Hooks()


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """What one operation wants to commit to one table.

    Attributes:
        change: The actions of each version to make, usually of one, and what they depend on.
        files: New files, already below the table's root; deleted if the commit fails.
        root: The table's root, with the storage options that the caller gave.
        hooks: What to do after the commit.
        statements: Run in the same database transaction, after the rows of the commit are written.
    """

    change: TableChange
    files: Sequence[PlacedFile]
    root: Root
    hooks: Hooks
    statements: Sequence[UserStatement] = ()


class CommitTarget(typing.Protocol):
    """A transaction, which collects intents instead of committing each at once."""

    @property
    def flushes(self) -> Flushes | None: ...
    def ready(self) -> None:
        """Raise an error if the transaction accepts no operations."""

    def submit(self, intent: WriteIntent) -> None: ...


def commit(database: Database, intent: WriteIntent) -> Committed:
    """Commit and publish one operation outside of a transaction."""
    table, root = intent.change.table, intent.root
    (done,) = Coordinator(database, {root.location: root.options}).commit(
        CommitRequest([intent.change], statements=intent.statements),
        delete_files=lambda: delete_new_files(intent.files),
        checkpoints={table.location: intent.hooks},
    )
    if done.replayed:
        warn_nothing_written(table.name)
    return done


@dataclass(eq=False, repr=False)
class TableHandle:
    """An open table: the source it reads from, the root of its files, and the transaction it is in, if any.

    A handle that belongs to a transaction sees the transaction's own changes until the transaction ends. Then
    it becomes an ordinary handle at the committed version, or every use raises an error.
    """

    address: Address
    database: Database
    _row: Table
    _source: Source
    _transaction: CommitTarget | None = None
    _root: Root | None = None
    storage_options: Mapping[str, str] | None = field(default=None, kw_only=True)
    #: whether the handle serves a single operation, and is not refreshed after the commit
    one_shot: bool = field(default=False, kw_only=True)
    #: whether the user chose a version, so that operations do not move to the newest one first
    pinned: bool = field(default=False, init=False)
    #: the last commit made through this handle, if it changed neither metadata nor protocol
    appended: Committed | None = field(default=None, init=False)
    #: delta-rs's own table at the open version; made by `read.scan` when needed
    raw: RawTable | None = field(default=None, init=False)
    #: set when the transaction ends: the version to open on the next use, or the error to raise
    _ended: int | DeltaSqlError | None = field(default=None, init=False)

    @classmethod
    def open(
        cls,
        table_uri: str | os.PathLike[str] | Address,
        version: int | None = None,
        storage_options: Mapping[str, str] | None = None,
        *,
        one_shot: bool = False,
    ) -> Self:
        """Open a table by one query; files, statistics and history are read when they are needed."""
        address = parse_address(table_uri).absolute()
        name = address.require_table()
        database = Database.open(address)
        row, source = open_source(database, name, version, storage_options)
        check_open(source.snapshot, table=name)
        made = cls(address, database, row, source, storage_options=storage_options, one_shot=one_shot)
        made.pinned = version is not None
        if database.engine.config.publish.look_at_open and Coordinator(database).check_at_open(row):
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
        if storage_options is not None:
            self.storage_options, self._root = dict(storage_options), None

    @property
    def name(self) -> str:
        return self.address.table or ""

    @property
    def row(self) -> Table:
        if self._ended is not None:
            self._leave_transaction()
        return self._row

    @property
    def source(self) -> Source:
        """The reader of the open version: from SQL, from the log, or a transaction's overlay."""
        if self._ended is not None:
            self._leave_transaction()
        return self._source

    @property
    def flushes(self) -> Flushes | None:
        """Collects new files that a transaction flushes before its commit; None if each is flushed alone."""
        return None if self.is_live or self._transaction is None else self._transaction.flushes

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
        """Whether the handle can move to newer versions: it is not in a transaction."""
        if self._ended is not None:
            self._leave_transaction()
        return self._transaction is None

    def refresh(self) -> None:
        """Prepare for an operation: move to the newest version, unless the user chose one."""
        row = self.row
        if self._transaction is not None:
            self._transaction.ready()
        registry.refuse_followed(row)
        if self._transaction is None and not self.pinned:
            self._advance()
        self.require_writable()

    def require_writable(self) -> None:
        require_writable(self.database, self.row, self.root.store)

    def update(self) -> None:
        """Move to the newest version; does nothing inside a transaction."""
        if self.is_live:
            self.pinned = False
            self._advance()

    def load(self, version: int) -> None:
        self.require_live(*_IN_TRANSACTION)
        self._open(version)
        self.pinned = True

    def load_at(self, moment: int, *, strict: bool = False) -> None:
        """Move to the newest version at a time, in epoch milliseconds, and stay there.

        A time before the first commit is version 0, as in delta-rs; if strict, it is a
        VersionMissingError, as in delta-spark.
        """
        self.require_live(*_IN_TRANSACTION)
        self._open(self.version_at(moment, strict=strict))
        self.pinned = True

    def version_at(self, moment: int, *, strict: bool = False) -> int:
        return version_at(self.database, self.row, moment, self.storage_options, strict=strict)

    def source_at(self, version: int) -> Source:
        return open_source(self.database, self.name, version, self.storage_options)[1]

    def _open(self, version: int | None) -> None:
        row, source = open_source(self.database, self.name, version, self.storage_options)
        check_open(source.snapshot, table=self.name)  # a refused version leaves the handle as it was
        self._row, self._source, self.raw = row, source, None

    def _advance(self) -> None:
        """Move to the newest version; metadata and protocol are read again only if they changed."""
        if isinstance(self.source, SqlSource):
            opened = snapshots.advance(self.database, self.name, self.source.opened)
        else:
            opened = snapshots.open_table(self.database, self.name)
        self._row, self._source, self.raw = opened.table, SqlSource(self.database, opened), None
        check_open(self.snapshot, table=self.name)

    def require_live(self, why: str, suggestion: str) -> None:
        """Raise UnsupportedOperationError inside a transaction."""
        if not self.is_live:
            raise UnsupportedOperationError(why, table=self.name, suggestion=suggestion)

    def submit(
        self,
        read: Snapshot,
        steps: Sequence[Sequence[Action]],
        reads: ReadSet,
        files: Sequence[PlacedFile] = (),
        *,
        origin: Write = PLAIN_WRITE,
        hooks: Hooks = DEFAULT_HOOKS,
        statements: Sequence[UserStatement] = (),
    ) -> Committed | None:
        """Commit a change of this table and move to the new version, or add it to the transaction (None).

        ``read`` is the snapshot that the operation began with: another thread may have moved the handle to a
        newer version meanwhile. The other arguments are those of `TableChange` and `WriteIntent`.
        """
        change = TableChange(self._row, steps, read, reads, origin)
        intent = WriteIntent(change, files, self.root, hooks, statements)
        self.raw = None
        if self._transaction is not None:
            self._transaction.submit(intent)
            return None
        outcome = commit(self.database, intent)
        changed = any(isinstance(a, Metadata | Protocol) for step in steps for a in step)
        self.appended = None if changed else outcome
        if not self.one_shot:
            self.pinned = False
            with after_commit(f"{self.name} could not be opened at its new version"):
                self._advance()
        return outcome

    def end(self, ending: int | DeltaSqlError) -> None:
        """Detach the handle from its ended transaction: open a version on the next use, or raise an error."""
        # the transaction holds the handle: a cycle would keep both until a collection of all objects
        self._ended, self._transaction, self.raw = ending, None, None

    @property
    def is_ended(self) -> bool:
        return self._ended is not None

    def _leave_transaction(self) -> None:
        if isinstance(self._ended, DeltaSqlError):
            raise self._ended.with_traceback(None)
        self._open(self._ended)
        self._ended = None

    def where(self, predicate: Any, *, files_only: bool = False) -> Expr | None:
        return predicate_of(predicate, self.snapshot.metadata, files_only=files_only)

    def where_or_all(self, predicate: Any) -> Expr | None:
        """Parse a predicate; return None (every row) also if only delta-rs can parse it."""
        try:
            return self.where(predicate)
        except PredicateError:
            return None

    def reading(self) -> AbstractContextManager[None]:
        return reading(self.root, self.file_sizes, version=self.version)

    def file_sizes(self) -> Iterable[tuple[str, int]]:
        """The paths of the live files, as the log has them, with their sizes."""
        found = self.source.scan(("path", "size"))
        return zip(*(column.to_pylist() for column in found.columns), strict=True)


def handle_of(table: deltalake.DeltaTable) -> TableHandle | None:
    """The handle of a SQL-backed table; None for a plain Delta table."""
    found: object = getattr(getattr(table, "_table", None), "handle", None)
    return found if isinstance(found, TableHandle) else None


def require_handle(table: deltalake.DeltaTable) -> TableHandle:
    if (handle := handle_of(table)) is None:
        raise InvalidArgumentError(
            f"{table.table_uri} is a plain Delta table", suggestion="open it by its deltasql:// address"
        )
    return handle


def warn_nothing_written(tables: str, why: str = "the application's version is already recorded") -> None:
    """Warn, at the user's own line of code, that a write had already been committed."""
    frame, level = sys._getframe(1).f_back, 3  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INTERNAL_PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"nothing was written to {tables}: {why}", NothingWrittenWarning, stacklevel=level)


# ---- commitInfo and application transactions, if delta-rs does not write the commit ---------------------


def commit_info(
    operation: str,
    parameters: Mapping[str, str],
    metrics: Mapping[str, Any],
    properties: CommitProperties | None,
) -> list[Action]:
    """The commitInfo of an operation, with delta-rs's keys and the user's, and application transactions."""
    custom = {} if properties is None else _custom_metadata(properties)
    more = {
        k: v if isinstance(v, str) else encode_json(v)
        for k, v in custom.pop("operationParameters", {}).items()
    }
    info: dict[str, Any] = {
        "operation": operation,
        "operationParameters": {**more, **parameters},
        **custom,
        "operationMetrics": dict(metrics),
    }
    return [CommitInfo(extra=info), *app_transactions(properties)]


def app_transactions(properties: CommitProperties | None) -> list[Txn]:
    given = () if properties is None else properties.app_transactions or ()
    return [Txn(app_id=t.app_id, version=t.version, last_updated=t.last_updated) for t in given]


#: entries that the commit sets itself, and those that have a type
_RESERVED: Final = frozenset({"timestamp", "operation", "engineInfo"})


class _Typed(typing.TypedDict, total=False):
    userId: str
    userName: str
    userMetadata: str
    operationParameters: dict[str, Any]
    readVersion: typing.Annotated[int, msgspec.Meta(ge=0)]
    isolationLevel: typing.Literal["Serializable", "WriteSerializable", "SnapshotIsolation"]
    isBlindAppend: bool


def _custom_metadata(properties: CommitProperties) -> dict[str, Any]:
    """The user's own entries of a commitInfo; InvalidArgumentError as in stock."""
    given: Any = properties.custom_metadata
    if given is None:
        return {}
    if not hasattr(given, "items") or not all(isinstance(key, str) for key in given):
        raise InvalidArgumentError(f"custom_metadata must be a mapping from texts to values, not {given!r}")
    if reserved := _RESERVED.intersection(given):
        raise InvalidArgumentError(f"custom_metadata[{min(reserved)!r}] is set by the commit itself")
    try:
        out: dict[str, Any] = json.loads(json.dumps(dict(given), allow_nan=False))
        msgspec.convert(out, _Typed)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise InvalidArgumentError(
            f"custom_metadata cannot be written to the log: {error}",
            suggestion="pass JSON values; commitInfo defines the types of some entries, such as userName",
        ) from error
    return out
