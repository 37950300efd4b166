"""What a commit asks for, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.actions import Add, Metadata, Protocol, Remove
from deltalakedb.protocol.read_set import EVERYTHING, ReadSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.ratify import Streamed
    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.read_set import Isolation
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
class Copy:
    """A commit that another writer put into `_delta_log`, taken over byte for byte.

    Attributes:
        data: Its bytes; None for one that is too large to be held.
        timestamp: When it was committed.
        origin: What took it over.
        streamed: The files of one that is too large; the change holds its other actions.
        txn_uuid: The transaction of this catalog that made it, if its commitInfo names one: a repeated call
            finds it again after the database was restored from an older backup.
    """

    data: bytes | None
    timestamp: int
    origin: str = "adopt"
    streamed: Streamed | None = None
    txn_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A commit that another engine has made and hands in to be ratified; its bytes are kept as they are."""

    data: bytes
    origin: str = "service"


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one table is to become, and what the writer had seen of it.

    Attributes:
        table: The table, or the new table to create.
        actions: The actions, with or without a commitInfo. None at all: the table was only read.
        read: The snapshot the writer worked from; None for a new table.
        reads: What the result depends on; with nothing in it the change is a blind append.
        then: Actions of further versions, committed right after in the same transaction.
        isolation: The level to check under; by default the table's own.
        exact: The actions are committed as they are, commitInfo included: a copy, not a new commit.
        copy: Where the commit was made elsewhere: its bytes and time, taken over as they are.
        received: Where another engine made the commit and nobody has published it: its bytes.
        fresh: Every added file has a name that was made up for it, so that no live file can have it.
        kept: Writer features that the engine which wrote the files has seen to.
    """

    table: Table | NewTable
    actions: Sequence[Action]
    read: Snapshot | None = None
    reads: ReadSet = EVERYTHING
    then: Sequence[Sequence[Action]] = ()
    isolation: Isolation | None = None
    exact: bool = False
    fresh: bool = False
    copy: Copy | None = None
    received: Received | None = None
    kept: frozenset[str] = frozenset()

    @property
    def read_version(self) -> int:
        """The version the writer worked from; -1 for a new table."""
        return -1 if self.read is None else self.read.version

    @property
    def made(self) -> Copy | Received | None:
        """The commit as another engine made it, where one did."""
        return self.copy or self.received

    @property
    def steps(self) -> list[Sequence[Action]]:
        """The actions of each version, in order; empty for a table that was only read."""
        if self.copy is not None and self.copy.streamed is not None:
            return [self.actions]  # its files come later
        return [s for s in (self.actions, *self.then) if s]

    @property
    def all_actions(self) -> list[Action]:
        """The actions of every version."""
        return [a for step in self.steps for a in step]

    @property
    def is_blind_append(self) -> bool:
        """Whether the change only adds files and looked at nothing."""
        actions = self.all_actions
        if (
            self.reads
            or self.read is None
            or any(isinstance(a, Remove | Metadata | Protocol) for a in actions)
        ):
            return False
        return any(isinstance(a, Add) for a in actions)
