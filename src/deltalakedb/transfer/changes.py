"""What commits do to the files that the catalog holds: removes first, then adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore.files import Counts, FileRows, live_files
from deltalakedb.metastore.ratify import CommitFacts, apply_state
from deltalakedb.protocol.actions import Add, CommitInfo, DomainMetadata, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.paths import canonical_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.slots import SlotEncoder

#: what is about no file and lives on
STATE = (Metadata, Protocol, Txn, DomainMetadata)
#: files of a large commit in memory at once
_PIECE = 10_000


class Changes:
    """The file changes of some commits, against what the catalog holds before them."""

    def __init__(
        self, session: Session, table_id: int, next_seq: int, encoder: SlotEncoder, named: set[str]
    ) -> None:
        self._session, self._table_id = session, table_id
        self._live = dict(live_files(session, table_id, named)) if named else {}
        self.rows = FileRows(session, table_id, next_seq, encoder)
        self.counts = Counts()
        self.added = self.removed = 0
        self.data_changed = False

    def look_up(self, actions: Sequence[Action]) -> None:
        """Forget what was looked up before, and see which of these files the catalog holds now."""
        named = {a.path for a in actions if isinstance(a, Add | Remove)}
        self._live = dict(live_files(self._session, self._table_id, named))

    def apply(self, version: int, actions: Sequence[Action]) -> None:
        """One commit: its state, its removes, then its adds."""
        state = [a for a in actions if isinstance(a, STATE)]
        if encoder := apply_state(self._session, self._table_id, version, state):
            self.rows.use(encoder)
        for action in actions:
            if isinstance(action, Remove):
                self._remove(version, action)
        for action in actions:
            if isinstance(action, Add):
                self._add(version, action)

    def _remove(self, version: int, remove: Remove) -> None:
        self.removed += 1
        self.data_changed |= remove.data_change
        found = self._live.pop((canonical_path(remove.path), remove.dv_id), None)
        if found is None:
            self.rows.bury(remove, version)
            return
        file_id, size, records = found
        self.rows.close(file_id, version, remove)
        self.counts.change(-1, size, records)

    def _add(self, version: int, add: Add) -> None:
        self.added += 1
        self.data_changed |= add.data_change
        key = (canonical_path(add.path), add.dv_id)
        if (found := self._live.get(key)) is not None:
            self.rows.close(found[0], version, None)
            self.counts.change(-1, found[1], found[2])
        file_id, records = self.rows.add(add, version)
        self._live[key] = (file_id, add.size, records)
        self.counts.change(1, add.size, records)


def pieces(
    actions: Iterable[Action], kind: type[Add | Remove], others: list[Action] | None
) -> Iterator[list[Add | Remove]]:
    """The files of a kind in lists of a bounded length; what is about no file goes to ``others``."""
    found: list[Add | Remove] = []
    for action in actions:
        if isinstance(action, kind):
            found.append(action)
            if len(found) == _PIECE:
                yield found
                found = []
        elif others is not None and isinstance(action, (*STATE, CommitInfo)):
            others.append(action)
    if found:
        yield found


def summary(actions: Iterable[Action]) -> tuple[list[Action], CommitFacts]:
    """A commit's info, and what is counted about its files."""
    info: list[Action] = []
    added = removed = 0
    changed = False
    for action in actions:
        if isinstance(action, Add | Remove):
            added += isinstance(action, Add)
            removed += isinstance(action, Remove)
            changed |= action.data_change
        elif isinstance(action, CommitInfo):
            info.append(action)
    return info, CommitFacts(changed, added, removed)
