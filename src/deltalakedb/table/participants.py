"""The tables of a transaction: what it calls them, what it saw of them, and what it does to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deltalakedb.commit.fold import fold
from deltalakedb.commit.request import NewTable, TableChange, Write
from deltalakedb.exceptions import InvalidArgumentError, TableExistsError, TableMissingError
from deltalakedb.metastore.registry import NameChange
from deltalakedb.metastore.rows import Head, Table
from deltalakedb.protocol.read_set import NOTHING, ReadSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.read_set import Isolation
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.intent import WriteIntent
    from deltalakedb.table.roots import PlacedFile
    from deltalakedb.table.sources import Overlay


@dataclass(slots=True)
class Participant:
    """What a transaction does with one table.

    Attributes:
        handle: What the user holds of it.
        overlay: The table as the transaction sees it.
        table: The table as it was read, or as it will be created.
        read: The snapshot it was read at; None for a new table.
        name: Its name by now; None once it was dropped.
        forced: It was dropped whatever of it is not published.
    """

    handle: TableHandle
    overlay: Overlay
    table: Table | NewTable
    read: Snapshot | None
    name: str | None
    operations: list[Sequence[Action]] = field(default_factory=list)
    files: list[PlacedFile] = field(default_factory=list)
    reads: ReadSet = NOTHING
    new_names: bool = True
    hooks: list[Hooks] = field(default_factory=list)
    handled_features: frozenset[str] = frozenset()
    forced: bool = False

    def take(self, work: WriteIntent) -> None:
        """Put an operation on top."""
        self.files += work.files
        for step in work.steps:
            self.operations.append(step)
            self.overlay.apply(step)
        self.reads |= work.reads
        self.new_names = self.new_names and work.new_names
        self.hooks.append(work.hooks)
        # every operation has looked at the table's features itself before it began
        self.handled_features |= work.handled_features

    def change(self, isolation: Isolation | None) -> tuple[TableChange | None, list[PlacedFile]]:
        """What is to be committed, None for nothing, and files that no version will have."""
        folded = fold(self.operations)
        gone = {p.rpartition("/")[2] for p in folded.cancelled}
        vanished = self.files if self.name is None else [f for f in self.files if f.name in gone]
        reads = NOTHING if self.read is None else self.reads | self.overlay.reads
        if not folded.versions and not reads:
            return None, vanished
        origin = Write(new_names=self.new_names, handled_features=self.handled_features)
        return TableChange(self.table, folded.versions, self.read, reads, origin, isolation), vanished


class Participants:
    """The tables that a transaction has touched, by location: a name may pass from one to another."""

    def __init__(self) -> None:
        self._places: dict[str, Participant] = {}
        self._names: dict[str, Participant] = {}
        #: names of the snapshot that no table has any more
        self._free: set[str] = set()
        #: files of tables that were created and dropped again
        self._orphans: list[PlacedFile] = []

    def __iter__(self) -> Iterator[Participant]:
        return iter(self._places.values())

    def at(self, location: str) -> Participant | None:
        """The table at a location."""
        return self._places.get(location)

    def find(self, name: str) -> Participant | None:
        """The table that has a name now, or None where the transaction has not touched it yet."""
        found = self._names.get(name)
        if found is None and name in self._free:
            raise TableMissingError(
                f"the table {name!r} was dropped or renamed in this transaction",
                table=name,
                suggestion="use its new name, or create a table of that name",
            )
        return found

    def is_free(self, name: str) -> bool:
        """Whether the snapshot's table of that name has given it up."""
        return name in self._free and name not in self._names

    def add(self, participant: Participant) -> None:
        """A table that was opened or created."""
        self._places[participant.table.location] = participant
        if participant.name is not None:
            self._names[participant.name] = participant

    def rename(self, participant: Participant, new_name: str) -> None:
        """Give a table another name, which no other table may have."""
        if new_name in self._names:
            raise TableExistsError(
                f"the name {new_name!r} is taken", table=new_name, suggestion="choose another name"
            )
        self._leave(participant)
        participant.name = new_name
        self._names[new_name] = participant
        handle = participant.handle
        handle.address = handle.address.with_table(new_name)
        if isinstance(participant.table, NewTable):
            participant.table = replace(participant.table, name=new_name)

    def drop(self, participant: Participant, *, force: bool) -> None:
        """Forget a table, and what the transaction did to it so far."""
        self._leave(participant)
        participant.name, participant.forced = None, force
        participant.operations.clear()
        if isinstance(participant.table, NewTable):
            del self._places[participant.table.location]
            self._orphans += participant.files
            participant.handle.end(_dropped(participant.handle.name))

    def release(self, commits: Mapping[str, Committed] | None) -> None:
        """Let go of what users hold of the tables: the transaction is over.

        Args:
            commits: What it became, by table; None where it was rolled back.
        """
        for each in self:
            if commits is None:
                each.handle.end(_rolled_back(each.handle.name))
            elif each.name is not None and (made := commits.get(each.name)) is not None:
                each.handle.end(made.version)
            elif each.name is not None and each.read is not None:
                each.handle.end(each.read.version)
            else:
                each.handle.end(_dropped(each.handle.name))

    def _leave(self, participant: Participant) -> None:
        del self._names[participant.name or ""]
        if not isinstance(participant.table, NewTable):
            self._free.add(participant.table.name)

    def changes(self, isolation: Isolation | None) -> tuple[list[tuple[str, TableChange]], list[PlacedFile]]:
        """What is to be committed, by name, and files that no version will have."""
        changes, vanished = [], list(self._orphans)
        for participant in self:
            change, gone = participant.change(isolation)
            vanished += gone
            if change is not None:
                changes.append((participant.name or participant.table.name, change))
        return changes, vanished

    def name_changes(self) -> list[NameChange]:
        """Tables that end under another name than they began, or not at all."""
        return [
            NameChange(p.table, p.name, p.forced)
            for p in self
            if not isinstance(p.table, NewTable) and p.name != p.table.name
        ]

    def show(self, tables: Iterable[Table]) -> list[Table]:
        """The snapshot's tables as the transaction has made them, with its own, by name."""
        shown = []
        for table in tables:
            mine = self.at(table.location)
            if mine is None:
                shown.append(table)
            elif mine.name is not None:
                shown.append(replace(table, name=mine.name))
        shown += [placeholder_row(p.table) for p in self if isinstance(p.table, NewTable)]
        return sorted(shown, key=lambda t: t.name)


def _rolled_back(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the table belongs to a transaction that was rolled back",
        table=name,
        suggestion="open it anew: nothing of the transaction has happened",
    )


def _dropped(name: str) -> TableMissingError:
    return TableMissingError(
        f"the table {name!r} was dropped in its transaction",
        table=name,
        suggestion="open the table that has its name now, if there is one",
    )


def placeholder_row(new: NewTable) -> Table:
    """A row of the registry for a table that is still to be created."""
    head = Head(-1, 0, 0, 0, 0, 0, 0)
    return Table(-1, new.name, new.location, "active", None, new.comment, new.tags, new.settings, 0, 0, head)
