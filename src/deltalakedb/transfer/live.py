"""The live files of a version as the log tells them: from its newest checkpoint on."""

from __future__ import annotations

from itertools import chain
from math import ceil
from typing import TYPE_CHECKING

from deltalakedb.delta_log.checkpoint import CheckpointScan, Piece
from deltalakedb.delta_log.commit_file import is_large, iter_actions
from deltalakedb.delta_log.listing import list_log
from deltalakedb.exceptions import LogCorruptError
from deltalakedb.metastore.files import path_hash
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.codec import decode_commit, encode_json
from deltalakedb.protocol.digest import BUCKETS, FileDigest, bucket_of
from deltalakedb.protocol.replay import file_key
from deltalakedb.protocol.rules import check_places
from deltalakedb.transfer.changes import pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from deltalakedb.delta_log.listing import LogListing, Plan
    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.protocol.paths import TablePaths
    from deltalakedb.protocol.replay import FileKey

#: rows of a checkpoint in memory at once
WINDOW = 16_384
#: what an action of the tail takes in memory, and in JSON
_MEMORY_PER_ACTION = 2_000
_JSON_PER_ACTION = 500


class LiveFiles:
    """The files that live at a version, by the log alone.

    Args:
        reader: The log.
        version: The version.
        memory_bytes: How much the actions after the checkpoint may take; where they would take more, the log
            is read in several passes, each over some of the buckets.
    """

    def __init__(self, reader: FileTxnLogReader, version: int, *, memory_bytes: int) -> None:
        self._store = reader.store
        self._listing: LogListing = list_log(reader.store)
        self._version = version
        self._memory = memory_bytes
        #: checkpoints that turned out to be torn
        self._torn: set[int] = set()

    def digest(self, *, tick: Callable[[], None] = lambda: None) -> FileDigest:
        """The digest of all of them."""
        while True:
            plan = self._plan()
            try:
                return self._digest(plan, tick)
            except LogCorruptError as error:
                self._pass_over(plan, error)

    def base(self, most: int) -> tuple[Plan, Tail] | None:
        """Where the digest begins and what follows, where that takes no more memory than so many bytes."""
        plan = self._plan()
        if plan.checkpoint is None or _actions(plan) * _MEMORY_PER_ACTION > most:
            return None
        return plan, Tail(self, plan, None)

    def counts(self, *, tick: Callable[[], None] = lambda: None) -> tuple[int, int]:
        """How many there are, and their bytes."""
        made = self.digest(tick=tick)
        return made.num_files, made.size_bytes

    def placed_counts(self, paths: TablePaths) -> tuple[int, int]:
        """How many there are, and their bytes; each is looked at.

        Raises:
            OutsidePathError: One is outside of the table's root, and the settings do not allow that.
        """
        while True:
            plan = self._plan()
            count = size = 0
            try:
                tail = Tail(self, plan, None)
                for add in chain(self._scalar(plan, tail, None), tail.live.values()):
                    check_places([add], paths)
                    count, size = count + 1, size + add.size
            except LogCorruptError as error:
                self._pass_over(plan, error)
            else:
                return count, size

    def in_buckets(self, buckets: Collection[int]) -> Iterator[Add]:
        """Those of some buckets; the buckets should be few enough for their files to fit in memory."""
        wanted = frozenset(buckets)
        while True:
            plan = self._plan()
            try:
                tail = Tail(self, plan, wanted)
                found = list(self._scalar(plan, tail, wanted))
            except LogCorruptError as error:
                self._pass_over(plan, error)
            else:
                yield from found
                yield from tail.live.values()
                return

    def passes(self, plan: Plan | None = None) -> int:
        """How often the log has to be read to keep to the memory."""
        actions = _actions(plan or self._plan())
        return max(1, ceil(actions * _MEMORY_PER_ACTION / max(1, self._memory)))

    def _plan(self) -> Plan:
        torn: Plan | None = None
        for plan in self._listing.plans(self._version):
            if plan.base not in self._torn:
                return plan
            torn = plan
        raise LogCorruptError(
            f"no checkpoint can be read, among them that of version {torn.base if torn else -1}",
            version=self._version,
            suggestion="restore the checkpoint or the commits before it from a copy",
        )

    def _pass_over(self, plan: Plan, error: LogCorruptError) -> None:
        if plan.checkpoint is None:
            raise error
        self._torn.add(plan.base)

    def _digest(self, plan: Plan, tick: Callable[[], None]) -> FileDigest:
        made, passes = FileDigest(), self.passes(plan)
        for number in range(passes):
            wanted = frozenset(range(number, BUCKETS, passes)) if passes > 1 else None
            tail = Tail(self, plan, wanted)
            self._add_base(made, plan, tail.touched, wanted, tick)
            made.add_rows(hashed(add) for add in tail.live.values())
        return made

    def _add_base(
        self,
        made: FileDigest,
        plan: Plan,
        touched: set[FileKey],
        wanted: frozenset[int] | None,
        tick: Callable[[], None],
    ) -> None:
        """Count in the checkpoint's files that no later commit touched."""
        if plan.checkpoint is None:
            return
        from deltalakedb.transfer.vectors import hashed_files  # Arrow's functions cost time to import

        for part in CheckpointScan(self._store, plan.checkpoint).parts():
            tick()
            if isinstance(part, Piece) and (fast := hashed_files(part.batch, touched)) is not None:
                fast.add_to(made, wanted)
                continue
            actions = part.actions() if isinstance(part, Piece) else part
            adds = (a for a in actions if isinstance(a, Add) and file_key(a) not in touched)
            rows = (hashed(a) for a in adds)
            made.add_rows(r for r in rows if wanted is None or bucket_of(r[0]) in wanted)

    def _scalar(self, plan: Plan, tail: Tail, wanted: frozenset[int] | None) -> Iterator[Add]:
        if plan.checkpoint is None:
            return
        for part in CheckpointScan(self._store, plan.checkpoint).parts():
            for action in part.actions() if isinstance(part, Piece) else part:
                if (
                    isinstance(action, Add)
                    and (wanted is None or bucket_of(path_hash(action.path)) in wanted)
                    and file_key(action) not in tail.touched
                ):
                    yield action

    def commits(self, plan: Plan) -> Iterator[list[Add | Remove]]:
        """The file actions of the commits after the checkpoint, removes first."""
        for meta in plan.files:
            if is_large(meta):
                yield from pieces(iter_actions(self._store, meta.path), Remove, None)
                yield from pieces(iter_actions(self._store, meta.path), Add, None)
                continue
            actions = decode_commit(self._store.get(meta.path), source=meta.path)
            removes: list[Add | Remove] = [a for a in actions if isinstance(a, Remove)]
            yield removes + [a for a in actions if isinstance(a, Add)]


class Tail:
    """What the commits after a checkpoint do to the files of some buckets."""

    def __init__(self, files: LiveFiles, plan: Plan, wanted: frozenset[int] | None) -> None:
        self.touched: set[FileKey] = set()
        self.live: dict[FileKey, Add] = {}
        for actions in files.commits(plan):
            for action in actions:
                if wanted is not None and bucket_of(path_hash(action.path)) not in wanted:
                    continue
                key = file_key(action)
                self.touched.add(key)
                if isinstance(action, Add):
                    self.live[key] = action
                else:
                    self.live.pop(key, None)


def _actions(plan: Plan) -> int:
    """About how many actions follow the checkpoint."""
    return sum(m.size for m in plan.files) // _JSON_PER_ACTION


def hashed(add: Add) -> tuple[int, str, str, int, int, str, str]:
    """A file as a digest wants it."""
    values = encode_json(dict(add.partition_values))
    return (
        path_hash(add.path),
        add.path,
        add.dv_id,
        add.size,
        add.modification_time,
        values,
        add.stats or "",
    )
