"""File actions as rows of the catalog: by columns if possible, else file by file.

Encoding needs no database, so it runs here or on an executor.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.delta_log.checkpoint import Piece, Window, column_actions, corrupt_errors
from deltalakedb.delta_log.names import commit_path
from deltalakedb.metastore import files
from deltalakedb.metastore.files import (
    FILE_ID_BITS,
    Counts,
    FileRows,
    path_hash,
    plain_path_hashes,
    write_columns,
)
from deltalakedb.metastore.ratify import CommitFacts, apply_state
from deltalakedb.protocol.actions import Add, CommitInfo, DomainMetadata, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.codec import decode_commit, encode_json
from deltalakedb.protocol.commit_rules import check_locations, check_unique_files
from deltalakedb.protocol.digest import BUCKETS, SEPARATOR, FileDigest, Numbers
from deltalakedb.protocol.paths import TablePaths, canonical_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.actions import Action, FileKey
    from deltalakedb.protocol.slot_vectors import SlotVectors
    from deltalakedb.protocol.slots import Level, SlotEncoder
    from deltalakedb.storage import Store

T = TypeVar("T")

#: an add with one of these is left to the general way
_UNUSUAL = ("deletionVector", "stats_parsed")
_NEEDED = ("path", "size", "modificationTime", "partitionValues")
#: all that a row made of columns holds
_PLAIN = frozenset({*_NEEDED, "dataChange", "stats"})
#: actions that are about no file
OTHERS = (Metadata, Protocol, Txn, DomainMetadata, CommitInfo)


# ---- files of a checkpoint as columns ----


def add_usual_files(
    digest: FileDigest, batch: pa.RecordBatch, changed: Collection[FileKey], wanted: frozenset[int] | None
) -> bool:
    """Add the files of a batch to a digest, unless they were changed or are in other buckets than wanted.

    Returns False, and adds nothing, if one has a field that needs the general way.
    """
    adds = usual_adds(batch)
    if adds is None:
        return False
    if not len(adds):
        return True
    hashes = hashes_of(adds.field("path"))
    sizes = adds.field("size").cast(pa.int64()).to_numpy(zero_copy_only=False)
    texts = pc.binary_join_element_wise(
        adds.field("path").cast(pa.string()),
        "",
        adds.field("size").cast(pa.string()),
        adds.field("modificationTime").cast(pa.string()),
        partition_texts(adds.field("partitionValues")),
        pc.fill_null(adds.field("stats"), "").cast(pa.string()) if _has(adds, "stats") else "",
        SEPARATOR,
    ).cast(pa.binary())
    here = np.ones(len(adds), bool)
    if changed:
        paths = adds.field("path").to_pylist()
        joined = "\n".join(paths)
        if "%" in joined or "file:" in joined.lower():
            paths = [canonical_path(path) for path in paths]
        here &= np.array([(path, "") not in changed for path in paths], bool)
    if wanted is not None:
        here &= np.isin(hashes & (BUCKETS - 1), np.array(sorted(wanted)))
    if not here.all():
        hashes, sizes, texts = hashes[here], sizes[here], texts.filter(pa.array(here))
    digest.add_texts(hashes, sizes, texts.to_pylist())
    return True


def hashes_of(paths: pa.Array) -> Numbers:
    """The hashes of many paths; one check over all says whether any has to be decoded first."""
    if may_be_spelled_otherwise(paths):
        return np.array([path_hash(path) for path in paths.to_pylist()], np.int64)
    return plain_path_hashes(paths.cast(pa.binary()).to_pylist())


def check_paths(paths: pa.Array, allowed: TablePaths) -> None:
    """Check that paths may be those of data files; one check over all says whether each must be looked at."""
    odd = [pc.match_substring(paths, mark) for mark in ("..", "\0", "\\")]
    odd += [pc.equal(paths, ""), pc.starts_with(paths, "/")]
    if may_be_spelled_otherwise(paths) or any(pc.any(found).as_py() for found in odd):
        for path in paths.to_pylist():
            allowed.resolve(path)


def may_be_spelled_otherwise(paths: pa.Array) -> bool:
    """Whether a path may not be in its canonical form."""
    odd = pc.or_(pc.match_substring(paths, "%"), pc.match_substring(paths, ":"))
    return bool(pc.any(odd).as_py())


def _has(adds: pa.StructArray, name: str) -> bool:
    return int(adds.type.get_field_index(name)) >= 0


def usual_adds(batch: pa.RecordBatch) -> pa.StructArray | None:
    """The adds of a batch as one struct array; None if one has a field that needs the general way."""
    at = batch.schema.get_field_index("add")
    if at < 0:
        return pa.array([], pa.struct([]))
    column = batch.column(at)
    adds = column.drop_null() if column.null_count else column
    if not len(adds):
        return adds
    names = {field.name for field in adds.type}
    if not names.issuperset(_NEEDED):
        return None
    if any(adds.field(name).null_count for name in _NEEDED):
        return None
    # a struct of nulls is how some writers spell an absent one: the general way knows
    if any(adds.field(name).null_count < len(adds) for name in names & set(_UNUSUAL)):
        return None
    values = adds.field("partitionValues")
    return adds if pa.types.is_map(values.type) and pa.types.is_string(values.type.key_type) else None


def partition_texts(values: pa.MapArray) -> pa.Array:
    """The partition values of files as JSON; files share few combinations, so each is spelled once."""
    columns = _partitions(values)
    if columns is None:
        names, texts, offsets = values.keys.to_pylist(), values.items.to_pylist(), values.offsets.to_pylist()
        rows = (dict(zip(names[a:b], texts[a:b], strict=True)) for a, b in pairwise(offsets))
        return pa.array([encode_json(row) for row in rows], pa.string())
    codes = np.zeros(len(values), np.int64)
    for column in columns.values():
        coded = column.dictionary_encode()
        many = len(coded.dictionary) + 1
        here = coded.indices.fill_null(many - 1).to_numpy(zero_copy_only=False)
        # dense again after every column, so that the product of their sizes cannot overflow
        codes = np.unique(codes * many + here, return_inverse=True)[1].astype(np.int64)
    _, first, at = np.unique(codes, return_index=True, return_inverse=True)
    some = pa.array(first)
    picked = {name: column.take(some).to_pylist() for name, column in columns.items()}
    spelled = [encode_json({name: picked[name][n] for name in columns}) for n in range(len(first))]
    return pa.array(spelled, pa.string()).take(pa.array(at))


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Files of a checkpoint as columns; statistics and partition values as JSON, and the latter by column."""

    paths: pa.Array
    sizes: pa.Array
    times: pa.Array
    data_changes: pa.Array
    stats: pa.Array
    values: pa.Array
    partitions: Mapping[str, pa.Array]


def plain_files(batch: pa.RecordBatch) -> PlainFiles | None:
    """The adds of a batch as columns; None if one holds more than these, or there are none."""
    adds = usual_adds(batch)
    if adds is None or not len(adds):
        return None
    more = {f.name for f in adds.type} - _PLAIN
    if any(adds.field(name).null_count < len(adds) for name in more):
        return None
    values = adds.field("partitionValues")
    parts = _partitions(values)
    if parts is None:
        return None
    changes = pa.repeat(pa.scalar(True), len(adds))
    if _has(adds, "dataChange"):
        changes = pc.fill_null(adds.field("dataChange"), True)
    no_stats = pa.nulls(len(adds), pa.string())
    stats = adds.field("stats").cast(pa.string()) if _has(adds, "stats") else no_stats
    return PlainFiles(
        adds.field("path").cast(pa.string()),
        adds.field("size").cast(pa.int64()),
        adds.field("modificationTime").cast(pa.int64()),
        changes,
        stats,
        partition_texts(values),
        parts,
    )


def _partitions(values: pa.MapArray) -> Mapping[str, pa.Array] | None:
    """Partition values by name, if all files name the same columns in the same order."""
    offsets = np.asarray(values.offsets)
    widths = np.diff(offsets)
    width = int(widths[0])
    if (widths != width).any():
        return None
    if not width:
        return {}
    first, last = int(offsets[0]), int(offsets[-1])
    keys = values.keys.slice(first, last - first).dictionary_encode()
    codes = keys.indices.to_numpy(zero_copy_only=False).reshape(-1, width)
    if (codes != codes[0]).any() or len(keys.dictionary) != width:
        return None
    names = [keys.dictionary[int(c)].as_py() for c in codes[0]]
    items = values.items.slice(first, last - first)
    return {name: items.take(pa.array(np.arange(at, len(items), width))) for at, name in enumerate(names)}


# ---- windows of a checkpoint ----


@dataclass(frozen=True, slots=True)
class Encoders:
    """The two ways in which files become slot rows, both with the same result, and where files may be."""

    one: SlotEncoder
    many: SlotVectors
    paths: TablePaths

    @classmethod
    def of(cls, session: Session, table_id: int, paths: TablePaths) -> Encoders:
        return cls(files.slot_encoder(session, table_id), files.slot_vectors(session, table_id), paths)


@dataclass(frozen=True, slots=True)
class Block:
    """Files as columns, ready to be written."""

    columns: Mapping[str, pa.Array]
    levels: Sequence[Level]
    counts: Counts


@dataclass(frozen=True, slots=True)
class PreparedWindow:
    """A window whose files are encoded: what can be done without the database is done."""

    begin: int
    end: int
    parts: list[Block | list[Action]] = field(default_factory=list)


def prepare(window: Window, encoders: Encoders) -> PreparedWindow:
    made = PreparedWindow(window.begin, window.end)
    for part in window.parts:
        if not isinstance(part, Piece):
            check_locations(part, encoders.paths)
            made.parts.append(part)
            continue
        with corrupt_errors(part.path):
            files = plain_files(part.batch)
            block = None if files is None else block_of(files, encoders)
        if block is None:
            actions = part.actions()
            with corrupt_errors(part.path):
                check_locations(actions, encoders.paths)
            made.parts.append(actions)
            continue
        made.parts.append(block)
        if (at := part.batch.schema.get_field_index("remove")) >= 0:
            # tombstones stand in rows of their own
            with corrupt_errors(part.path):
                removes = list(column_actions("remove", part.batch.column(at), part.utc))
                check_locations(removes, encoders.paths)
            made.parts.append(removes)
    return made


def block_of(files: PlainFiles, encoders: Encoders) -> Block | None:
    """Files by columns; None if their statistics must be encoded one by one."""
    check_paths(files.paths, encoders.paths)
    made = encoders.many.columns(files.stats, files.partitions)
    if made is None:
        return None
    odd = np.flatnonzero(made.odd).tolist()
    if odd:
        made.replace_rows(odd, [encoders.one.encode(_add(files, n)) for n in odd])
    counts = Counts(
        len(files.paths),
        int(np.asarray(files.sizes).sum()),
        int(made.num_records.fill_null(0).to_numpy(zero_copy_only=False).sum()),
        made.num_records.null_count,
    )
    columns = {
        "path_hash": pa.array(hashes_of(files.paths)),
        "path": files.paths,
        "size": files.sizes,
        "modification_time": files.times,
        "data_change": files.data_changes,
        **made.arrays(),
        "stats": files.stats,
        "partition_values": files.values,
    }
    return Block(columns, made.levels(), counts)


def _add(files: PlainFiles, number: int) -> Add:
    return Add(
        path=files.paths[number].as_py(),
        partition_values={name: values[number].as_py() for name, values in files.partitions.items()},
        size=files.sizes[number].as_py(),
        modification_time=files.times[number].as_py(),
        data_change=files.data_changes[number].as_py(),
        stats=files.stats[number].as_py(),
    )


def write_window(
    session: Session, table_id: int, version: int, window: PreparedWindow, encoders: Encoders
) -> tuple[Counts, int]:
    """Write a window's files; returns what they count to, and how many file actions there were."""
    rows = FileRows(session, table_id, window.begin, encoders.one)
    counts, actions = Counts(), 0
    for part in window.parts:
        if isinstance(part, Block):
            write_block(session, table_id, rows, part, {"add_version": version, "tombstone": True})
            counts.add(part.counts)
            actions += part.counts.num_files
            continue
        for action in part:
            if isinstance(action, Add):
                _, records = rows.add(action, version)
                counts.change(1, action.size, records)
            elif isinstance(action, Remove):
                rows.bury(action, version)
            actions += isinstance(action, Add | Remove)
    rows.flush()
    return counts, actions


def write_block(
    session: Session, table_id: int, rows: FileRows, block: Block, constants: Mapping[str, int | bool | str]
) -> None:
    first, many = (table_id << FILE_ID_BITS) | rows.next_seq, block.counts.num_files
    rows.next_seq += many
    columns = {"file_id": pa.array(np.arange(first, first + many)), **block.columns}
    write_columns(session, table_id, columns, {"table_id": table_id, "dv_id": "", **constants}, ())
    rows.count(block.levels)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in a thread while the one before it is used."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="deltasql-ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # not the end


# ---- batches of commits ----


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
    """Read a batch of commits and make its rows; None if it must be applied file by file.

    That is so if the metadata changes, since slots may follow, and if a file has more than the plain fields.
    """
    commits: list[ReadyCommit] = []
    files = _Files()
    for version in versions:
        path = commit_path(version)
        data = store.get(path)
        actions = decode_commit(data, source=path)
        check_locations(actions, encoders.paths)
        check_unique_files(actions, encoders.paths, version=version)
        if any(isinstance(a, Metadata) for a in actions):
            return None
        adds = [a for a in actions if isinstance(a, Add)]
        removes = [a for a in actions if isinstance(a, Remove)]
        for remove in removes:
            files.remove(version, remove)
        for add in adds:
            files.add(version, add)
        changed = any(a.data_change for a in adds) or any(a.data_change for a in removes)
        others = tuple(a for a in actions if isinstance(a, OTHERS))
        commits.append(ReadyCommit(version, data, others, CommitFacts(changed, len(adds), len(removes))))
    block, counts = None, Counts()
    if files.rows:
        made = files.columns()
        if made is None or (plain := block_of(made, encoders)) is None:
            return None
        block, counts = files.with_intervals(plain), files.counted(plain)
    return ReadyTail(tuple(commits), block, counts, tuple(files.touches), tuple(files.buried))


@dataclass(slots=True)
class _Files:
    """Rows of a batch's files, and what ends them within the batch."""

    rows: list[tuple[int, Add]] = field(default_factory=list)
    #: by row: the version that ends it, and by which action
    ends: dict[int, tuple[int, Remove | None]] = field(default_factory=dict)
    touches: list[Touch] = field(default_factory=list)
    buried: list[tuple[int, Remove]] = field(default_factory=list)
    #: the row that lives, or None if it was removed
    _seen: dict[FileKey, int | None] = field(default_factory=dict)

    def remove(self, version: int, remove: Remove) -> None:
        key = remove.key
        if key not in self._seen:
            self.touches.append(Touch(version, remove.path, remove.dv_id, remove))
        elif (row := self._seen[key]) is None:
            self.buried.append((version, remove))
        else:
            self.ends[row] = (version, remove)
        self._seen[key] = None

    def add(self, version: int, add: Add) -> None:
        key = add.key
        if key not in self._seen:
            self.touches.append(Touch(version, add.path, add.dv_id, None))
        elif (row := self._seen[key]) is not None:
            self.ends[row] = (version, None)
        self._seen[key] = len(self.rows)
        self.rows.append((version, add))

    def columns(self) -> PlainFiles | None:
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
        return replace(block, columns=columns)


def _is_plain(add: Add) -> bool:
    more = (add.deletion_vector, add.tags, add.base_row_id, add.default_row_commit_version)
    return not add.extra and add.clustering_provider is None and all(value is None for value in more)


def write_tail(
    session: Session, table_id: int, next_seq: int, tail: ReadyTail, encoder: SlotEncoder
) -> tuple[Counts, int]:
    """Write a batch's files and state against what the catalog holds; counts, and the next free number."""
    for commit in tail.commits:
        apply_state(session, table_id, commit.version, commit.actions)
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
        write_block(session, table_id, rows, tail.block, {})
    rows.flush()
    return counts, rows.next_seq
