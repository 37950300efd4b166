"""The live files of a version, replayed from the log alone."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, TypeVar

from deltalakedb.delta_log.checkpoint import CheckpointScan, Part, Piece
from deltalakedb.delta_log.commit_file import iter_actions
from deltalakedb.delta_log.listing import Plan, list_log
from deltalakedb.exceptions import LogCorruptError
from deltalakedb.protocol.actions import Add, FileKey, Remove
from deltalakedb.protocol.digest import BUCKETS, FileDigest, bucket_of
from deltalakedb.protocol.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from deltalakedb.delta_log.reader import FileTxnLogReader

T = TypeVar("T")

#: rows of a checkpoint in memory at once
WINDOW = 16_384
#: what an action after the checkpoint takes in memory, and in JSON
_MEMORY_PER_ACTION = 2_000
JSON_PER_ACTION = 500


class LogReplay:
    """The files that live at a version, by the log alone. Checkpoints that turn out to be torn are skipped.

    If the actions after the checkpoint would take more memory than given, the log is read in several passes,
    each over some of the buckets.
    """

    def __init__(self, reader: FileTxnLogReader, version: int, *, memory_bytes: int) -> None:
        self._store, self._version, self._memory = reader.store, version, memory_bytes
        self._listing = list_log(reader.store)
        self._torn: set[int] = set()

    def digest(self, *, tick: Callable[[], None] = lambda: None) -> FileDigest:
        return self._retried(lambda plan: self._digest(plan, tick))

    def base(self) -> tuple[Plan, Replay] | None:
        """The plan and the commits after its checkpoint, if it has one and they fit in the memory."""
        plan = self._plan()
        return None if plan.checkpoint is None or self._passes(plan) > 1 else (plan, self._tail(plan, None))

    def files(self, buckets: Collection[int]) -> list[Add]:
        """The live files of some buckets, which should be few enough to fit in memory."""
        wanted = frozenset(buckets)
        return self._retried(lambda plan: list(self._adds(plan, wanted)))

    def sizes(self, check: Callable[[Add], None]) -> list[int]:
        """The sizes of all live files, each of which was checked."""

        def checked(add: Add) -> int:
            check(add)
            return add.size

        return self._retried(lambda plan: [checked(add) for add in self._adds(plan, None)])

    def _passes(self, plan: Plan) -> int:
        """How often the log has to be read to stay within the memory."""
        actions = sum(meta.size for meta in plan.files) // JSON_PER_ACTION
        return max(1, ceil(actions * _MEMORY_PER_ACTION / max(1, self._memory)))

    def _retried(self, work: Callable[[Plan], T]) -> T:
        """Work on the newest checkpoint; on an older one if that turns out to be torn."""
        while True:
            plan = self._plan()
            try:
                return work(plan)
            except LogCorruptError:
                if plan.checkpoint is None:
                    raise
                self._torn.add(plan.base)

    def _plan(self) -> Plan:
        for plan in self._listing.plans(self._version):
            if plan.base not in self._torn:
                return plan
        raise LogCorruptError(
            f"no checkpoint can be read, among them that of version {min(self._torn)}",
            version=self._version,
            suggestion="restore the checkpoint or the commits before it from a copy",
        )

    def _digest(self, plan: Plan, tick: Callable[[], None]) -> FileDigest:
        made, passes = FileDigest(), self._passes(plan)
        for number in range(passes):
            wanted = frozenset(range(number, BUCKETS, passes)) if passes > 1 else None
            tail = self._tail(plan, wanted)
            changed = tail.files.keys() | tail.tombstones.keys()
            for part in self._checkpoint(plan):
                tick()
                add_part(made, part, changed, wanted)
            made.add_files(tail.files.values())
        return made

    def _adds(self, plan: Plan, wanted: frozenset[int] | None) -> Iterator[Add]:
        tail = self._tail(plan, wanted)
        changed = tail.files.keys() | tail.tombstones.keys()
        for part in self._checkpoint(plan):
            yield from _unchanged(part, changed, wanted)
        yield from tail.files.values()

    def _checkpoint(self, plan: Plan) -> Iterator[Part]:
        return iter(()) if plan.checkpoint is None else CheckpointScan(self._store, plan.checkpoint).parts()

    def _tail(self, plan: Plan, wanted: frozenset[int] | None) -> Replay:
        """What the commits after the checkpoint do to the files of some buckets."""
        state = Replay()
        for meta in plan.files:
            actions = iter_actions(self._store, meta.path, size=meta.size)
            state.commit(a for a in actions if isinstance(a, Add | Remove) and _is_wanted(a, wanted))
        return state


def _is_wanted(action: Add | Remove, wanted: frozenset[int] | None) -> bool:
    return wanted is None or bucket_of(action.path) in wanted


def _unchanged(part: Part, changed: Collection[FileKey], wanted: frozenset[int] | None) -> Iterator[Add]:
    """The files of a checkpoint's part that no later commit changed."""
    for action in part.actions() if isinstance(part, Piece) else part:
        if isinstance(action, Add) and _is_wanted(action, wanted) and action.key not in changed:
            yield action


def add_part(
    made: FileDigest, part: Part, changed: Collection[FileKey], wanted: frozenset[int] | None = None
) -> None:
    """Add the files of a checkpoint's part to a digest, unless later commits changed them."""
    from deltalakedb.transfer.importing.encoding import add_usual_files  # imports Arrow's functions

    if not isinstance(part, Piece) or not add_usual_files(made, part.batch, changed, wanted):
        made.add_files(_unchanged(part, changed, wanted))
