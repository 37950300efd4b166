"""Tables made of actions alone, and two writers who race on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest, NewTable, TableChange
from deltalakedb.metastore import commits, snapshots
from deltalakedb.protocol.actions import Add, Metadata, Protocol, Remove
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING, ReadSet
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.txn_log import Committed, Conflict
from support.actions import SCHEMA, add, info, metadata, protocol, remove

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import OpenTable
    from deltalakedb.protocol.actions import Action


def file(path: str, day: str | None = "2024-01-01", low: int = 0, high: int = 9, **fields: Any) -> Add:
    """A data file of one day whose ids lie between two numbers."""
    stats = {
        "numRecords": high - low + 1,
        "minValues": {"id": low},
        "maxValues": {"id": high},
        "nullCount": {"id": 0},
    }
    return add(path, **{"partition_values": {"day": day}, "stats": json.dumps(stats), **fields})


def gone(path: str, day: str | None = "2024-01-01", **fields: Any) -> Remove:
    """The removal of such a file."""
    return remove(path, **{"partition_values": {"day": day}, **fields})


def where(predicate: str) -> ReadSet:
    """Rows read by a predicate; the files are told apart, so only rows count."""
    return ReadSet(predicates=(parse_predicate(predicate, parse_schema(SCHEMA)),))


def files(*paths: str) -> ReadSet:
    """Files that were read, and nothing else; paths as the log spells them."""
    return ReadSet(files=frozenset(add(p).key for p in paths))


#: the files of a bench: (path, day, lowest id, highest id)
FILES = (
    ("a1", "2024-01-01", 0, 9),
    ("a2", "2024-01-01", 10, 19),
    ("b1", "2024-01-02", 0, 9),
    ("b2", "2024-01-02", 10, 19),
    ("n1", None, 20, 29),
)


@dataclass(frozen=True)
class Bench:
    """A table of actions; whatever is committed through it is checked by the rules of conflicts."""

    database: Database
    name: str

    @classmethod
    def make(
        cls,
        database: Database,
        name: str,
        location: str,
        *,
        protocol_: Protocol | None = None,
        metadata_: Metadata | None = None,
        adds: Sequence[Add] | None = None,
    ) -> Bench:
        """Create the table at version 0."""
        first = [file(*f) for f in FILES] if adds is None else adds
        actions: list[Action] = [
            info("CREATE TABLE"),
            protocol_ or protocol(),
            metadata_ or metadata(),
            *first,
        ]
        change = TableChange(NewTable(name, location), [actions], reads=NOTHING)
        made = commit(database, CommitRequest([change]))
        assert isinstance(made, list), made
        assert made[0].version == 0
        return cls(database, name)

    def open(self, version: int | None = None) -> OpenTable:
        """The table as a writer sees it."""
        return snapshots.open_table(self.database, self.name, version)

    def change(
        self,
        *actions: Action,
        at: int | None = None,
        reads: ReadSet = EVERYTHING,
        then: Sequence[Sequence[Action]] = (),
        **options: Any,
    ) -> TableChange:
        """A change by a writer who has read a version; ``then`` are the actions of further versions."""
        opened = self.open(at)
        versions = [version for version in (actions, *then) if version]
        return TableChange(opened.table, versions, opened.snapshot, reads, **options)

    def commit(
        self, *actions: Action, at: int | None = None, reads: ReadSet = EVERYTHING, **options: Any
    ) -> Committed | Conflict:
        """Commit as a writer who has read a version (default: the newest)."""
        outcome = commit(self.database, CommitRequest([self.change(*actions, at=at, reads=reads, **options)]))
        return outcome if isinstance(outcome, Conflict) else outcome[0]

    def race(
        self, winner: Sequence[Action], mine: Sequence[Action], reads: ReadSet, **options: Any
    ) -> Committed | Conflict:
        """What becomes of my commit when a winner, who read the same version, was first."""
        read = self.open().snapshot.version
        first = self.commit(info("WINNER"), *winner, reads=self.winner_reads(winner))
        assert isinstance(first, Committed), first
        outcome = self.commit(info("MINE"), *mine, at=read, reads=reads, **options)
        head = self.open().snapshot.version
        # nothing is seen of a loser, and a winner's successor is exactly the next version
        assert head == (first.version if isinstance(outcome, Conflict) else first.version + 1)
        return outcome

    @staticmethod
    def winner_reads(actions: Sequence[Action]) -> ReadSet:
        """Only an append of files alone is blind."""
        return NOTHING if all(isinstance(a, Add) for a in actions) else EVERYTHING


def first_action(bench: Bench, version: int) -> Any:
    """The first line of a commit, as it was ratified."""
    data = commits.commit_bytes(bench.database, bench.open().table, version)
    return json.loads(data.splitlines()[0])
