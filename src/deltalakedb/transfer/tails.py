"""Commits made ready as columns: what can be told of them without the catalog, by whoever parses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from deltalakedb.delta_log.names import commit_path
from deltalakedb.metastore.files import FILE_ID_BITS, Counts, FileRows, write_columns
from deltalakedb.metastore.ratify import CommitFacts, apply_state
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Remove
from deltalakedb.protocol.codec import decode_commit, encode_json
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.replay import file_key
from deltalakedb.protocol.rules import check_one_vector, check_places
from deltalakedb.transfer.changes import STATE
from deltalakedb.transfer.vectors import PlainFiles
from deltalakedb.transfer.windows import block_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.replay import FileKey
    from deltalakedb.protocol.slots import SlotEncoder
    from deltalakedb.storage import Store
    from deltalakedb.transfer.windows import Block, Encoders


@dataclass(frozen=True, slots=True)
class ReadyCommit:
    """A commit without its files: its bytes, its other actions, and what is counted about the files."""

    version: int
    data: bytes
    actions: tuple[Action, ...]
    facts: CommitFacts


@dataclass(frozen=True, slots=True)
class Touch:
    """The first time that a batch names a file: it is removed there, or a new row takes its place."""

    version: int
    path: str
    dv_id: str
    remove: Remove | None


@dataclass(frozen=True, slots=True)
class ReadyTail:
    """A batch of commits whose file rows are made, but for what only the catalog knows.

    Attributes:
        commits: The commits, in their order.
        block: Rows of the files that they add, those closed that they remove again.
        counts: What these rows add up to after the last commit.
        touches: Files that may live in the catalog before the first commit, each with how it ends there.
        buried: Removes of files that an earlier commit of the batch had removed.
    """

    commits: tuple[ReadyCommit, ...]
    block: Block | None
    counts: Counts
    touches: tuple[Touch, ...]
    buried: tuple[tuple[int, Remove], ...]


def ready_tail(store: Store, versions: range, encoders: Encoders) -> ReadyTail | None:
    """Read a batch of commits and make its rows; None where that asks for the way file by file.

    So it is where the metadata changes, since slots may follow, and where a file has more than the plain
    fields.
    """
    commits: list[ReadyCommit] = []
    files = _Files()
    for version in versions:
        path = commit_path(version)
        data = store.get(path)
        actions = decode_commit(data, source=path)
        check_places(actions, encoders.paths)
        check_one_vector(actions, encoders.paths, version=version)
        if any(isinstance(a, Metadata) for a in actions):
            return None
        adds = [a for a in actions if isinstance(a, Add)]
        removes = [a for a in actions if isinstance(a, Remove)]
        for remove in removes:
            files.remove(version, remove)
        for add in adds:
            files.add(version, add)
        changed = any(a.data_change for a in adds) or any(a.data_change for a in removes)
        others = tuple(a for a in actions if isinstance(a, (*STATE, CommitInfo)))
        commits.append(ReadyCommit(version, data, others, CommitFacts(changed, len(adds), len(removes))))
    block = None
    if files.rows:
        made = files.columns()
        block = None if made is None else block_of(made, encoders)
        if block is None:
            return None
    counts = Counts() if block is None else files.counted(block)
    return ReadyTail(
        tuple(commits),
        None if block is None else files.with_intervals(block),
        counts,
        tuple(files.touches),
        tuple(files.buried),
    )


@dataclass(slots=True)
class _Files:
    """Rows of a batch's files, and what ends them within the batch."""

    rows: list[tuple[int, Add]] = field(default_factory=list)
    #: by row: the version that ends it, and by which action
    ends: dict[int, tuple[int, Remove | None]] = field(default_factory=dict)
    touches: list[Touch] = field(default_factory=list)
    buried: list[tuple[int, Remove]] = field(default_factory=list)
    #: the row that lives, or None where none does any more
    _seen: dict[FileKey, int | None] = field(default_factory=dict)

    def remove(self, version: int, remove: Remove) -> None:
        key = file_key(remove)
        if key not in self._seen:
            self.touches.append(Touch(version, remove.path, remove.dv_id, remove))
        elif (row := self._seen[key]) is None:
            self.buried.append((version, remove))
        else:
            self.ends[row] = (version, remove)
        self._seen[key] = None

    def add(self, version: int, add: Add) -> None:
        key = file_key(add)
        if key not in self._seen:
            self.touches.append(Touch(version, add.path, add.dv_id, None))
        elif (row := self._seen[key]) is not None:
            self.ends[row] = (version, None)
        self._seen[key] = len(self.rows)
        self.rows.append((version, add))

    def columns(self) -> PlainFiles | None:
        """The adds as columns; None where one holds more than these."""
        adds = [add for _, add in self.rows]
        names = tuple(adds[0].partition_values)
        if not all(_is_plain(add) and tuple(add.partition_values) == names for add in adds):
            return None
        spelled: dict[tuple[str | None, ...], str] = {}
        values = []
        for add in adds:
            key = tuple(add.partition_values.values())
            if key not in spelled:
                spelled[key] = encode_json(dict(add.partition_values))
            values.append(spelled[key])
        return PlainFiles(
            pa.array([add.path for add in adds], pa.string()),
            pa.array([add.size for add in adds], pa.int64()),
            pa.array([add.modification_time for add in adds], pa.int64()),
            pa.array([add.data_change for add in adds], pa.bool_()),
            pa.array([add.stats for add in adds], pa.string()),
            pa.array(values, pa.string()),
            {name: pa.array([add.partition_values[name] for add in adds], pa.string()) for name in names},
        )

    def counted(self, block: Block) -> Counts:
        """What the rows add up to, without those that end within the batch."""
        counts = Counts()
        counts.add(block.counts)
        records = block.columns["num_records"]
        for row in self.ends:
            counts.change(-1, self.rows[row][1].size, records[row].as_py())
        return counts

    def with_intervals(self, block: Block) -> Block:
        """The rows with the versions between which they live."""
        ended = [self.ends.get(row) for row in range(len(self.rows))]
        by = [None if end is None else end[1] for end in ended]
        columns = {
            **block.columns,
            "add_version": pa.array([version for version, _ in self.rows], pa.int64()),
            "remove_version": pa.array([None if end is None else end[0] for end in ended], pa.int64()),
            # a row that another one replaces leaves no tombstone
            "tombstone": pa.array([end is None or end[1] is not None for end in ended], pa.bool_()),
            "deletion_timestamp": pa.array(
                [None if remove is None else remove.deletion_timestamp for remove in by], pa.int64()
            ),
            "remove_action": pa.array(
                [None if remove is None else encode_json(remove.to_dict()) for remove in by], pa.string()
            ),
        }
        return type(block)(columns, block.levels, block.counts)


def _is_plain(add: Add) -> bool:
    return not (
        add.extra
        or add.deletion_vector is not None
        or add.tags is not None
        or add.base_row_id is not None
        or add.default_row_commit_version is not None
        or add.clustering_provider is not None
    )


def write_tail(
    session: Session, table_id: int, next_seq: int, tail: ReadyTail, encoder: SlotEncoder
) -> tuple[Counts, int]:
    """Write a batch's files and state against what the catalog holds; counts, and the next free number."""
    for commit in tail.commits:
        state: Sequence[Action] = [a for a in commit.actions if isinstance(a, STATE)]
        if state:
            apply_state(session, table_id, commit.version, state)
    counts = Counts()
    counts.add(tail.counts)
    rows = FileRows(session, table_id, next_seq, encoder)
    live = rows.live(touch.path for touch in tail.touches)
    for touch in tail.touches:
        found = live.get((canonical_path(touch.path), touch.dv_id))
        if found is not None:
            rows.close(found[0], touch.version, touch.remove)
            counts.change(-1, found[1], found[2])
        elif touch.remove is not None:
            rows.bury(touch.remove, touch.version)
    for version, remove in tail.buried:
        rows.bury(remove, version)
    if tail.block is not None:
        first, many = (table_id << FILE_ID_BITS) | rows.next_seq, tail.block.counts.num_files
        rows.next_seq += many
        ids = pa.array(np.arange(first, first + many))
        constants: dict[str, int | bool | str] = {"table_id": table_id, "dv_id": ""}
        write_columns(session, table_id, {"file_id": ids, **tail.block.columns}, constants, ())
        rows.count(tail.block.levels)
    rows.flush()
    return counts, rows.next_seq
