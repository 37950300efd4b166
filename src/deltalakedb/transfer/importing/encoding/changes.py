"""What commits do to the files that the catalog holds: removes first, then adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore.files import Counts, FileChanges, live_files
from deltalakedb.metastore.ratify import CommitFacts, apply_state
from deltalakedb.protocol.actions import Add, CommitInfo, DomainMetadata, Metadata, Protocol, Remove, Txn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.slots import SlotEncoder

#: what is about no file and lives on
STATE = (Metadata, Protocol, Txn, DomainMetadata)


class Changes(FileChanges):
    """The changes of some commits, state and files, against what the catalog holds before them."""

    def __init__(
        self, session: Session, table_id: int, next_seq: int, encoder: SlotEncoder, named: set[str]
    ) -> None:
        live = live_files(session, table_id, named) if named else {}
        super().__init__(session, table_id, next_seq, encoder, Counts(), live)
        self._session, self._table_id = session, table_id

    def look_up(self, actions: Sequence[Action]) -> None:
        """Forget what was looked up before, and see which of these files the catalog holds now."""
        named = {a.path for a in actions if isinstance(a, Add | Remove)}
        self._live = dict(live_files(self._session, self._table_id, named))

    def apply(self, version: int, actions: Sequence[Action]) -> None:
        """One commit: its state, its removes, then its adds."""
        state = [a for a in actions if isinstance(a, STATE)]
        if encoder := apply_state(self._session, self._table_id, version, state):
            self.rows.use(encoder)
        super().apply(version, actions)


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
