"""Parts of logs that tasks of a Spark job read: rows of checkpoints and commits, hashed for a digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from deltalakedb.delta_log.checkpoint import CheckpointScan, Piece
from deltalakedb.delta_log.commit_file import iter_pieces
from deltalakedb.metastore.files import path_hash
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.digest import FileDigest
from deltalakedb.protocol.replay import file_key
from deltalakedb.spark.shares import windows_of
from deltalakedb.transfer.live import hashed
from deltalakedb.transfer.vectors import hashed_files, hashed_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.exceptions import DeltaSqlError
    from deltalakedb.protocol.replay import FileKey
    from deltalakedb.spark.shares import Share
    from deltalakedb.storage import Store

#: rows of a checkpoint in memory at once
WINDOW: Final = 16_384

#: an action on a file: ``at`` orders the actions of a version, removes first
_SCHEMA: Final = pa.schema(
    [
        ("t", pa.int32()),
        ("hash", pa.int64()),
        ("dv", pa.string()),
        ("at", pa.int64()),
        ("live", pa.bool_()),
        ("size", pa.int64()),
        ("first", pa.int64()),
        ("second", pa.int64()),
        ("error", pa.string()),
    ]
)
#: what a task has summed up for a bucket
_SUMS: Final = pa.schema(
    [
        ("t", pa.int32()),
        ("bucket", pa.int64()),
        ("n", pa.int64()),
        ("size", pa.int64()),
        ("first", pa.int64()),
        ("second", pa.int64()),
        ("error", pa.string()),
    ]
)
SUMS: Final = "t int, bucket bigint, n bigint, size bigint, first bigint, second bigint, error string"
ACTIONS: Final = (
    "t int, hash bigint, dv string, at bigint, live boolean, size bigint, first bigint, "
    "second bigint, error string"
)


@dataclass(frozen=True, slots=True)
class CheckpointRows:
    """Some rows of a table's checkpoint."""

    table: int
    checkpoint: CheckpointScan
    share: Share
    version: int
    weight: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its files, hashed."""
        for window in windows_of(self.checkpoint, self.share, WINDOW):
            for part in window.parts:
                if isinstance(part, Piece) and (fast := hashed_rows(part.batch, ())) is not None:
                    yield self._batch(fast)
                    continue
                actions = part.actions() if isinstance(part, Piece) else part
                yield self._batch([hashed(a) for a in actions if isinstance(a, Add)])

    def _batch(self, rows: Sequence[Sequence[object]]) -> pa.RecordBatch:
        at, live = [2 * self.version + 1] * len(rows), [True] * len(rows)
        return _batch(self.table, rows, at, live)

    def failed(self, error: DeltaSqlError) -> pa.RecordBatch:
        """Word of an error."""
        return _failed(self.table, error)

    def without(self, touched: frozenset[FileKey]) -> SummedRows:
        """The same rows, to be summed up by the task itself."""
        return SummedRows(self.table, self.checkpoint, self.share, touched, self.weight)


@dataclass(frozen=True, slots=True)
class SummedRows:
    """Some rows of a checkpoint after which so little follows that its task can leave that out itself."""

    table: int
    checkpoint: CheckpointScan
    share: Share
    touched: frozenset[FileKey]
    weight: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The sums of its files that no later commit names."""
        made = FileDigest()
        for window in windows_of(self.checkpoint, self.share, WINDOW):
            for part in window.parts:
                if isinstance(part, Piece) and (fast := hashed_files(part.batch, self.touched)) is not None:
                    fast.add_to(made, None)
                    continue
                actions = part.actions() if isinstance(part, Piece) else part
                adds = (a for a in actions if isinstance(a, Add) and file_key(a) not in self.touched)
                made.add_rows(hashed(a) for a in adds)
        some = np.flatnonzero(made.counts)
        sums = (some, *(getattr(made, name)[some] for name in ("counts", "sizes", "first", "second")))
        yield pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(self.table, pa.int32()), len(some)),
                *(pa.array(numbers, pa.int64()) for numbers in sums),
                pa.nulls(len(some), pa.string()),
            ],
            schema=_SUMS,
        )

    def failed(self, error: DeltaSqlError) -> pa.RecordBatch:
        """Word of an error."""
        row = {name: [0] for name in _SUMS.names} | {"t": [self.table], "error": [error.message]}
        return pa.RecordBatch.from_pydict(row, schema=_SUMS)


@dataclass(frozen=True, slots=True)
class Commits:
    """Some commits of a table, and where they stand in its order."""

    table: int
    store: Store
    files: tuple[tuple[int, str], ...]
    weight: int
    #: its one commit is not held in memory as a whole
    large: bool = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Their file actions; a file that is removed and added in one commit lives."""
        for order, path in self.files:
            for found in self._actions(path):
                rows = [hashed(a) if isinstance(a, Add) else _gone(a) for a in found]
                live = [isinstance(a, Add) for a in found]
                yield _batch(self.table, rows, [2 * order + alive for alive in live], live)

    def _actions(self, path: str) -> Iterator[Sequence[Add | Remove]]:
        if self.large:
            yield from iter_pieces(self.store, path)
            return
        actions = decode_commit(self.store.get(path), source=path)
        yield [a for a in actions if isinstance(a, Add | Remove)]

    def failed(self, error: DeltaSqlError) -> pa.RecordBatch:
        """Word of an error."""
        return _failed(self.table, error)

    def last(self) -> dict[FileKey, Add | Remove]:
        """The last action on each file that they name, where they are all that follows a checkpoint."""
        found: dict[FileKey, Add | Remove] = {}
        for _, path in self.files:
            actions = [a for some in self._actions(path) for a in some]
            for kind in (Remove, Add):
                found.update((file_key(a), a) for a in actions if isinstance(a, kind))
        return found


Part: TypeAlias = CheckpointRows | Commits | SummedRows


def _batch(table: int, rows: Sequence[Sequence[object]], at: list[int], live: list[bool]) -> pa.RecordBatch:
    digests = b"".join(_digest(row) for row in rows)
    lanes = np.frombuffer(digests, dtype=">u4").reshape(-1, 4).astype(np.int64)
    many = len(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(table, pa.int32()), many),
            pa.array([row[0] for row in rows], pa.int64()),
            pa.array([row[2] for row in rows], pa.string()),
            pa.array(at, pa.int64()),
            pa.array(live, pa.bool_()),
            pa.array([row[3] for row in rows], pa.int64()),
            pa.array(lanes[:, 0]),
            pa.array(lanes[:, 1]),
            pa.nulls(many, pa.string()),
        ],
        schema=_SCHEMA,
    )


def _digest(row: Sequence[object]) -> bytes:
    _, path, dv_id, size, modified, values, stats = row
    text = f"{path}\x1f{dv_id}\x1f{size}\x1f{modified}\x1f{values}\x1f{stats}"
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def _gone(remove: Remove) -> tuple[int, str, str, int, int, str, str]:
    return path_hash(remove.path), remove.path, remove.dv_id, 0, 0, "", ""


def _failed(table: int, error: DeltaSqlError) -> pa.RecordBatch:
    row = {
        "t": [table],
        "hash": [0],
        "dv": ["\x1f"],
        "at": [0],
        "live": [True],
        "size": [0],
        "first": [0],
        "second": [0],
        "error": [error.message],
    }
    return pa.RecordBatch.from_pydict(row, schema=_SCHEMA)
