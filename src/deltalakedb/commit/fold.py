"""Folding: several operations of one transaction on one table become one version, if that is correct."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.actions import Add, Cdc, CommitInfo, DomainMetadata, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.paths import canonical_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.protocol.actions import Action, FileKey


@dataclass(frozen=True, slots=True)
class Folded:
    """The versions that some operations come to.

    Attributes:
        versions: The actions of each version, in order.
        cancelled: Files that one operation added and a later one removed: no version ever has them.
    """

    versions: tuple[tuple[Action, ...], ...] = ()
    cancelled: tuple[str, ...] = ()


def fold(operations: Sequence[Sequence[Action]]) -> Folded:
    """Fold operations into as few versions as the protocol allows.

    An add that a later operation removes is left out. Operations stay apart if folding would be wrong: change
    data files belong to one version's changes, a commit holds one metaData and one protocol, no file is
    removed and added again in one commit, and a compaction never hides that the rows of its files are new.
    Changes of metadata and protocol alone become one version, with the newest of each.
    """
    steps: list[_Step] = []
    cancelled: list[str] = []
    for operation in operations:
        if not operation:
            continue
        if not steps or not steps[-1].can_merge(operation):
            steps.append(_Step())
        cancelled += steps[-1].merge(operation)
    return Folded(tuple(s.actions() for s in steps), tuple(cancelled))


@dataclass(slots=True)
class _Step:
    infos: list[CommitInfo] = field(default_factory=list)
    state: dict[tuple[str, str], Action] = field(default_factory=dict)
    adds: dict[FileKey, Add] = field(default_factory=dict)
    removes: dict[FileKey, Remove] = field(default_factory=dict)
    rest: list[Action] = field(default_factory=list)

    def can_merge(self, operation: Sequence[Action]) -> bool:
        """Whether an operation can be part of this version."""
        if any(isinstance(a, Cdc) for a in (*self.rest, *operation)):
            return False
        no_files = not (self.adds or self.removes or any(isinstance(a, Add | Remove) for a in operation))
        for action in operation:
            if isinstance(action, Metadata | Protocol) and _state_key(action) in self.state and not no_files:
                return False
            if isinstance(action, Add) and action.key in self.removes:
                return False
            # the actions that remain would report wrongly whether rows changed
            if isinstance(action, Remove):
                mine = self.adds.get(action.key)
                if mine is not None and mine.data_change != action.data_change:
                    return False
        return True

    def merge(self, operation: Sequence[Action]) -> list[str]:
        """Make an operation part of this version; returns the files that no version has then."""
        gone: list[str] = []
        for action in operation:
            if isinstance(action, CommitInfo):
                self.infos.append(action)
            elif isinstance(action, Remove):
                if self.adds.pop(action.key, None) is not None:
                    gone.append(action.path)
                else:
                    self.removes[action.key] = action
            elif isinstance(action, Add):
                continue
            elif (slot := _state_key(action)) is not None:
                self.state[slot] = action
            else:
                self.rest.append(action)
        for action in operation:
            if isinstance(action, Add):
                self.adds[action.key] = action
        if not gone:
            return gone
        # a file whose rows got a deletion vector is still there under another identity
        kept = {canonical_path(a.path) for a in self.adds.values()}
        return [p for p in gone if canonical_path(p) not in kept]

    def actions(self) -> tuple[Action, ...]:
        files: list[Action] = [*self.removes.values(), *self.adds.values()]
        return (*self._info(), *self.state.values(), *files, *self.rest)

    def _info(self) -> list[CommitInfo]:
        if len(self.infos) < 2:
            return self.infos
        names = [i.operation or "UNKNOWN" for i in self.infos]
        merged: dict[str, Any] = {}
        for info in self.infos:
            merged.update(info.extra)
        merged.pop("operationMetrics", None)
        if len(set(names)) > 1:
            merged["operation"] = "TRANSACTION"
            merged["operationParameters"] = {"operations": encode_json(names)}
        return [CommitInfo(extra=merged)]


def _state_key(action: Action) -> tuple[str, str] | None:
    """The key under which the newest of its kind replaces older ones."""
    match action:
        case Metadata() | Protocol():
            return type(action).__name__, ""
        case Txn():
            return "txn", action.app_id
        case DomainMetadata():
            return "domain", action.domain
    return None
