"""Snapshot replay: the state of a table from a checkpoint's actions and the commits after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.actions import (
    Action,
    Add,
    CommitInfo,
    DomainMetadata,
    FileKey,
    Metadata,
    Remove,
    Txn,
    UnknownAction,
)
from deltalakedb.protocol.actions import Protocol as ProtocolAction

if TYPE_CHECKING:
    from collections.abc import Iterable


class Replay:
    """Applies actions in order and holds the resulting state."""

    __slots__ = ("commit_info", "domains", "files", "metadata", "protocol", "tombstones", "txns", "unknown")

    def __init__(self) -> None:
        self.protocol: ProtocolAction | None = None
        self.metadata: Metadata | None = None
        #: live files
        self.files: dict[FileKey, Add] = {}
        #: unexpired tombstones
        self.tombstones: dict[FileKey, Remove] = {}
        #: by application id
        self.txns: dict[str, Txn] = {}
        #: by name, without removed ones
        self.domains: dict[str, DomainMetadata] = {}
        #: of the newest commit that has one
        self.commit_info: CommitInfo | None = None
        #: unknown kinds of actions, which were left out
        self.unknown: set[str] = set()

    def commit(self, actions: Iterable[Action]) -> Self:
        """Apply one commit, or a whole checkpoint; removes go before adds, whatever their order."""
        adds: list[Add] = []
        for action in actions:
            if isinstance(action, Add):
                adds.append(action)
            elif isinstance(action, Remove):
                key = action.key
                self.files.pop(key, None)
                self.tombstones[key] = action
            else:
                self._other(action)
        for add in adds:
            key = add.key
            self.tombstones.pop(key, None)
            self.files[key] = add
        return self

    def require(self) -> tuple[ProtocolAction, Metadata]:
        """Protocol and metadata, which every table has; ProtocolError if the log lacks one."""
        if self.protocol is None or self.metadata is None:
            raise ProtocolError(
                f"the log holds no {'protocol' if self.protocol is None else 'metaData'} action",
                suggestion="the log is incomplete: restore its first commit or its checkpoint from a copy",
            )
        return self.protocol, self.metadata

    def _other(self, action: Action) -> None:
        match action:  # change data, sidecars and checkpoint headers are not part of the state
            case Metadata():
                self.metadata = action
            case ProtocolAction():
                self.protocol = action
            case Txn():
                self.txns[action.app_id] = action
            case DomainMetadata(removed=True):
                self.domains.pop(action.domain, None)
            case DomainMetadata():
                self.domains[action.domain] = action
            case CommitInfo():
                self.commit_info = action
            case UnknownAction():
                self.unknown.add(action.kind)
