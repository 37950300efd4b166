"""States of a table rebuilt from its log's files, the last ones kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.delta_log.checkpoint import iter_checkpoint
from deltalakedb.delta_log.large_commits import is_large, iter_state
from deltalakedb.exceptions import LogCorruptError
from deltalakedb.protocol.actions import Add, Cdc, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalakedb.delta_log.listing import Checkpoint, LogListing
    from deltalakedb.protocol.actions import Action
    from deltalakedb.storage import ObjectMeta, Store

#: all that a state without its files is made of
SMALL_KINDS = frozenset({"protocol", "metaData", "txn", "domainMetadata"})


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    checkpoint: Checkpoint | None
    state: Replay


class StateBuilder:
    """Rebuilds states, and goes on from the last one where that is on the way.

    The state that it returns is its own and moves on with the next call: take out of it what is needed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        #: the last state with files, and the last one without
        self._kept: dict[bool, _Kept] = {}
        self._torn: dict[Checkpoint, LogCorruptError] = {}

    def forget(self) -> None:
        """Begin anew: the log is not what it was."""
        self._kept.clear()
        self._torn.clear()

    def build(self, listing: LogListing, version: int, *, files: bool) -> Replay:
        """The state at a version; without files it reads a fraction of a checkpoint.

        A torn checkpoint is passed over for an older one, or for the commits alone.

        Raises:
            LogGapError: A version on the way is missing.
            LogCorruptError: A commit is torn, or no checkpoint on the way can be read.
            StorageMissingError: A file that was listed is gone.
        """
        for with_files in (True,) if files else (True, False):
            kept = self._kept.get(with_files)
            if kept is not None and kept.version == version:
                return kept.state
        torn: LogCorruptError | None = None
        for plan in listing.plans(version):
            if plan.checkpoint is not None and plan.checkpoint in self._torn:
                torn = torn or self._torn[plan.checkpoint]
                continue
            if (moved := self._moved(listing, version, plan.checkpoint, files)) is not None:
                return moved
            try:
                state = self._from_checkpoint(plan.checkpoint, files)
            except LogCorruptError as e:
                if plan.checkpoint is not None:
                    self._torn[plan.checkpoint] = e
                torn = torn or e
                continue
            return self._apply(_Kept(version, plan.checkpoint, state), plan.files, files)
        raise torn or LogCorruptError("no checkpoint can be read", version=version)

    def _moved(
        self, listing: LogListing, version: int, checkpoint: Checkpoint | None, files: bool
    ) -> Replay | None:
        """The kept state moved on, where it stands between the checkpoint and the version."""
        kept = self._kept.get(files)
        if kept is None or kept.version > version or kept.checkpoint != checkpoint:
            return None
        if (rest := listing.files_between(kept.version, version)) is None:
            return None
        return self._apply(_Kept(version, checkpoint, kept.state), rest, files)

    def _from_checkpoint(self, checkpoint: Checkpoint | None, files: bool) -> Replay:
        state = Replay()
        if checkpoint is not None:
            for batch in iter_checkpoint(self._store, checkpoint, kinds=None if files else SMALL_KINDS):
                state.commit(batch)
        return state

    def _apply(self, goal: _Kept, commits: tuple[ObjectMeta, ...], files: bool) -> Replay:
        # while it changes, the state is no version's
        self._kept.pop(files, None)
        for meta in commits:
            actions: Iterable[Action]
            if is_large(meta) and not files:
                actions = iter_state(self._store, meta.path)
            else:
                actions = decode_commit(self._store.get(meta.path), source=meta.path)
            goal.state.commit(
                list(actions) if files else [a for a in actions if not isinstance(a, Add | Remove | Cdc)]
            )
        self._kept[files] = goal
        return goal.state
