"""Our unpublished commits where others committed too: which of them can be made again on top of theirs."""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

from deltalakedb.exceptions import PredicateError
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.predicate import to_physical
from deltalakedb.protocol.properties import APPEND_ONLY, is_on
from deltalakedb.protocol.read_set import EVERYTHING, Isolation
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import column_types
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.read_set import ReadSet
    from deltalakedb.protocol.txn_log import Snapshot

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
    reads: ReadSet
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

    @property
    def reads(self) -> ReadSet:
        """What it was made from."""
        return functools.reduce(operator.or_, (o.reads for o in self.commits))

    @property
    def isolation(self) -> Isolation | None:
        """The level that it was checked under."""
        found = next((a.extra.get("isolationLevel") for a in self.every if isinstance(a, CommitInfo)), None)
        return cast("Isolation", found) if found in get_args(Isolation) else None


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
        if _constraints(was) != _constraints(now) and any(isinstance(a, Add) for a in actions):
            return "others changed the table's constraints, which its rows may break"
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


def _constraints(metadata: Metadata) -> dict[str, str | None]:
    return {k: v for k, v in metadata.configuration.items() if k.startswith("delta.constraints.")}


def checkable(reads: ReadSet, metadata: Metadata) -> ReadSet:
    """A read set whose predicates fit a schema; everything if one names a column that is not in it."""
    schema = parse_schema(metadata.schema_string)
    try:
        for where in reads.predicates:
            to_physical(where, schema)
    except PredicateError:
        return EVERYTHING
    return reads


def read_any(reads: ReadSet, files: Iterable[Add], metadata: Metadata) -> bool:
    """Whether a read set may cover a row of some files, by their partitions and statistics."""
    schema, reads = parse_schema(metadata.schema_string), checkable(reads, metadata)
    filters = [FileFilter(to_physical(where, schema), column_types(schema)) for where in reads.predicates]
    return any(
        reads.whole
        or add.key in reads.files
        or any(f.may_match(parse_stats(add.stats), add.partition_values) for f in filters)
        for add in files
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table is, besides its files."""

    metadata: Metadata
    protocol: Protocol

    @classmethod
    def of(cls, snapshot: Snapshot) -> Shape:
        """That of a snapshot."""
        return cls(snapshot.metadata, snapshot.protocol)
