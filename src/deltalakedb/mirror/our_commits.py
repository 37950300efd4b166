"""Our unpublished commits where others committed too: which of them can be made again on top of theirs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.catalog import snapshots
from deltalakedb.catalog.files import read_adds
from deltalakedb.exceptions import LogGapError
from deltalakedb.log.large_commits import is_large, iter_actions
from deltalakedb.log.listing import list_log
from deltalakedb.log.names import commit_path
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.features import check_readable
from deltalakedb.protocol.rules import APPEND_ONLY, is_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.log.reader import FileTxnLogReader
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.log import Snapshot

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class OurCommit:
    """A commit of ours that nobody outside ever saw.

    Attributes:
        version: Its version before.
        operation: What it did.
        timestamp: When, in epoch milliseconds.
        txn_uuid: The id of its transaction, which it keeps.
    """

    version: int
    operation: str | None
    timestamp: int | None
    txn_uuid: str


@dataclass(frozen=True, slots=True)
class Ours:
    """The same with its content."""

    version: int
    txn_uuid: str
    is_blind_append: bool
    data: bytes

    @property
    def actions(self) -> list[Action]:
        """What it consists of."""
        return decode_commit(self.data, source=f"version {self.version}")

    def told(self) -> OurCommit:
        """What a person wants to know of it."""
        info = next((a.extra for a in self.actions if isinstance(a, CommitInfo)), {})
        operation, at = info.get("operation"), info.get("timestamp")
        return OurCommit(
            self.version,
            None if operation is None else str(operation),
            at if isinstance(at, int) else None,
            self.txn_uuid,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The commits of ours that one transaction made: they stand or fall together."""

    txn_uuid: str
    commits: tuple[Ours, ...]
    steps: tuple[list[Action], ...]

    @property
    def every(self) -> list[Action]:
        """All its actions."""
        return [action for step in self.steps for action in step]

    @property
    def removed(self) -> frozenset[Key]:
        """Files that it removes and did not add itself."""
        every = self.every
        return frozenset(a.key for a in every if isinstance(a, Remove)) - self.added

    @property
    def added(self) -> frozenset[Key]:
        """Files that it adds."""
        return frozenset(a.key for a in self.every if isinstance(a, Add))


def parts_of(ours: Sequence[Ours]) -> list[Part]:
    """Our commits by transaction, in order."""
    grouped = ((txn, tuple(group)) for txn, group in itertools.groupby(ours, key=lambda o: o.txn_uuid))
    return [Part(txn, group, tuple(o.actions for o in group)) for txn, group in grouped]


class Fitness:
    """Tells, part by part, why one cannot stand on what others made of the table.

    Args:
        before: The table that our commits were made for.
        after: What others made of it.
    """

    def __init__(self, before: Snapshot, after: Shape) -> None:
        self._before = before
        self._after = after
        self._reshaped = False

    def why_not(self, part: Part, live: frozenset[Key]) -> str | None:
        """The reason, or None where it can.

        Args:
            part: The commits of one transaction.
            live: Those of the files that it removes that are there now.
        """
        why = "it follows a change of ours that is lost" if self._reshaped else self._unfit(part.every)
        if why is None and part.removed - live:
            why = "a file that it removes is gone"
        if why is not None:
            self.lost(part)
        return why

    def lost(self, part: Part) -> None:
        """Note that a part is lost: what was written after a change of the schema needs it."""
        self._reshaped = self._reshaped or any(map(self._reshapes, part.every))

    def _unfit(self, actions: Sequence[Action]) -> str | None:
        was, now = self._before.metadata, self._after.metadata
        if (was.schema_string, was.partition_columns) != (now.schema_string, now.partition_columns):
            return "others changed the table's schema"
        if self._before.protocol != self._after.protocol:
            return "others changed the table's protocol"
        if was != now and any(isinstance(a, Metadata | Protocol) for a in actions):
            return "others changed the table's properties too"
        if is_on(now, APPEND_ONLY) and any(isinstance(a, Remove) and a.data_change for a in actions):
            return "it removes rows, and others made the table append-only"
        return None

    def _reshapes(self, action: Action) -> bool:
        """Whether files that were written after an action may not fit without it."""
        if isinstance(action, Metadata):
            was = self._before.metadata
            return (action.schema_string, action.partition_columns) != (
                was.schema_string,
                was.partition_columns,
            )
        return isinstance(action, Protocol)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table is, besides its files."""

    metadata: Metadata
    protocol: Protocol

    @classmethod
    def of(cls, snapshot: Snapshot) -> Shape:
        """That of a snapshot."""
        return cls(snapshot.metadata, snapshot.protocol)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What would become of our commits.

    Attributes:
        theirs: Versions of the log that would be taken over.
        ours: Commits of ours that would be made again: old version -> new version.
        lost: Those that cannot stand beside theirs: version -> why.
    """

    theirs: tuple[int, ...]
    ours: Mapping[int, int]
    lost: Mapping[int, str]


def foresee(database: Database, name: str, ours: Sequence[Ours], log: FileTxnLogReader) -> Foreseen:
    """What a resolution would do, told from the log and the catalog without changing either."""
    parts, first = parts_of(ours), ours[0].version
    opened = snapshots.open_table(database, name, first - 1)
    asked = frozenset().union(*(part.removed for part in parts))
    live = {a.key for a in read_adds(database, opened) if a.key in asked} if asked else set()
    metadata, protocol = opened.snapshot.metadata, opened.snapshot.protocol
    theirs = []
    for version, actions in _from_log(log, first):
        theirs.append(version)
        added, removed = set(), set()
        for action in actions:
            if isinstance(action, Metadata):
                metadata = action
            elif isinstance(action, Protocol):
                check_readable(action, table=name)
                protocol = action
            elif isinstance(action, Add) and action.key in asked:
                added.add(action.key)
            elif isinstance(action, Remove) and action.key in asked:
                removed.add(action.key)
        live = (live - removed) | added
    fitness = Fitness(opened.snapshot, Shape(metadata, protocol))
    newest = theirs[-1] if theirs else first - 1
    found = list_log(log.store)
    if (beyond := max((*found.commits, *found.checkpoints), default=newest)) > newest:
        raise LogGapError(
            f"version {newest + 1} is not in the log, which goes on to version {beyond}", table=name
        )
    made: dict[int, int] = {}
    lost: dict[int, str] = {}
    for part in parts:
        if (why := fitness.why_not(part, frozenset(live))) is not None:
            lost.update((o.version, why) for o in part.commits)
            continue
        live = (live - part.removed) | (part.added & asked)
        made.update((o.version, newest + 1 + n) for n, o in enumerate(part.commits))
        newest += len(part.commits)
    return Foreseen(tuple(theirs), made, lost)


def _from_log(log: FileTxnLogReader, first: int) -> Iterator[tuple[int, Iterable[Action]]]:
    version = first
    while log.store.exists(path := commit_path(version)):
        large = is_large(log.store.head(path))
        yield (
            version,
            iter_actions(log.store, path) if large else decode_commit(log.commit_bytes(version), source=path),
        )
        version += 1
