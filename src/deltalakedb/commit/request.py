"""What a commit asks for, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from deltalakedb.protocol.actions import Action, Add, Metadata, Protocol, Remove
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING, Isolation, ReadSet

if TYPE_CHECKING:
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.ratify import Streamed
    from deltalakedb.metastore.registry import NameChange
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.txn_log import Snapshot


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that the commit creates."""

    name: str
    location: str
    comment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Write:
    """A commit made here: commitInfo, time and row ids are completed under the lock.

    Attributes:
        new_names: Every added file has a name that was made up for it, so that no live file can have it.
        handled_features: Writer features whose duties the engine that wrote the files has fulfilled.
    """

    new_names: bool = False
    handled_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Adopted:
    """A commit found in `_delta_log`, copied byte for byte. It is published already.

    Attributes:
        data: Its bytes; None if it is too large to be held in memory.
        timestamp: When it was committed.
        label: What copied it, for the history.
        streamed: The files of one that is too large; the change holds its other actions.
        txn_uuid: The transaction of this catalog that made it, if its commitInfo names one: a repeated call
            finds it again after the database was restored from an older backup.
    """

    data: bytes | None
    timestamp: int
    label: str = "adopt"
    streamed: Streamed | None = None
    txn_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A commit that another engine made and submits; its bytes are kept as they are.

    ``handled_features`` is as for `Write`; None if the engine handles every feature of the table.
    """

    data: bytes
    label: str = "service"
    handled_features: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Recommitted:
    """A commit of ours made again on top of foreign ones, in the transaction that made it before."""

    handled_features: frozenset[str] = frozenset()


#: Where a commit comes from. It decides who fixes the commit's bytes and time, and which rules apply.
Origin: TypeAlias = Write | Adopted | Received | Recommitted

#: a commit made here, with nothing special about it
PLAIN_WRITE = Write()

#: work of the caller on the same database, run inside the commit's transaction
UserStatement = Callable[["Session"], object]


@dataclass(frozen=True)
class TableChange:
    """What one table is to become, and what the writer had seen of it.

    Attributes:
        table: The table, or the new table to create.
        versions: The actions of each new version, in order, with or without a commitInfo. Empty if the table
            was only read.
        read: The snapshot the writer worked from; None for a new table.
        reads: What the result depends on; with nothing in it the change is a blind append.
        origin: Where the commit comes from.
        isolation: The level to check under; by default the table's own.
    """

    table: Table | NewTable
    versions: Sequence[Sequence[Action]]
    read: Snapshot | None = None
    reads: ReadSet = EVERYTHING
    origin: Origin = PLAIN_WRITE
    isolation: Isolation | None = None

    @property
    def read_version(self) -> int:
        return -1 if self.read is None else self.read.version

    @cached_property
    def is_foreign(self) -> bool:
        """Whether another engine made the commit: its bytes are kept as they are."""
        return isinstance(self.origin, Adopted | Received)

    @cached_property
    def actions(self) -> list[Action]:
        return [action for version in self.versions for action in version]

    @cached_property
    def is_blind_append(self) -> bool:
        """Whether the change only adds files and looked at nothing."""
        if self.reads != NOTHING or self.read is None:
            return False
        others = any(isinstance(a, Remove | Metadata | Protocol) for a in self.actions)
        return not others and any(isinstance(a, Add) for a in self.actions)


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Everything that one database transaction commits.

    Attributes:
        changes: One change per table; a change without versions only takes part in the check.
        renames: Tables that are dropped or renamed, done after the checks and before tables are created.
        statements: The caller's work on the same database, done after the rows of the commit are written.
        txn_id: The id by which a repeated call finds its own earlier success; None makes one up.
        may_repeat: An earlier call may have used the id; False if it was just made up.
    """

    changes: Sequence[TableChange] = ()
    renames: Sequence[NameChange] = ()
    statements: Sequence[UserStatement] = ()
    txn_id: str | None = None
    may_repeat: bool = True
