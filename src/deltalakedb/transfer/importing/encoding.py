"""File actions as rows of the catalog: by columns if possible, else file by file.

Encoding needs no database, so it runs here or on an executor.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.delta_log.checkpoint import Piece, Window, column_actions, corrupt_errors
from deltalakedb.delta_log.names import commit_path
from deltalakedb.metastore.files import (
    PACK_MIN,
    Counts,
    Details,
    FileBatch,
    FileChanges,
    FileRows,
    batch_of_adds,
    live_files,
    live_schema,
    packed,
    readable_schema,
    write_batch,
)
from deltalakedb.metastore.ratify import CommitFacts, apply_state
from deltalakedb.protocol.actions import (
    Add,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    decode_commit,
)
from deltalakedb.protocol.arrow_values import int_array, int_values, joined_lines
from deltalakedb.protocol.commit_rules import check_locations, check_unique_files
from deltalakedb.protocol.digest import BUCKETS, FIELDS, FileDigest
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.packs import path_hashes
from deltalakedb.protocol.paths import TablePaths, canonical_path
from deltalakedb.transfer.importing.proof import BatchProof

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.actions import Action, FileKey

T = TypeVar("T")

#: an add with one of these is left to the general way
_UNUSUAL = ("deletionVector", "stats_parsed")
_NEEDED = ("path", "size", "modificationTime", "partitionValues")
#: columns of `dl_files` that every new file has
_COLUMNS: Final = (
    "add_version", "size", "modification_time", "data_change", "path", "dv_id", "partition_values",
)  # fmt: skip
#: all that a row made of columns holds
_PLAIN = frozenset({*_NEEDED, "dataChange", "stats"})
#: statistics of files that are packed together, in bytes
_MOST_BYTES = 32 << 20
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
    files = pa.table(_usual_columns(adds))
    hashes = path_hashes(files.column("path")).astype(np.int64)
    here = np.ones(len(adds), bool)
    if changed:
        paths = files.column("path").to_pylist()
        joined = "\n".join(paths)
        if "%" in joined or "file:" in joined.lower():
            paths = [canonical_path(path) for path in paths]
        here &= np.array([(path, "") not in changed for path in paths], bool)
    if wanted is not None:
        here &= np.isin(hashes & (BUCKETS - 1), np.array(sorted(wanted)))
    if not here.all():
        hashes, files = hashes[here], files.filter(pa.array(here))
    digest.add_columns({name: files.column(name) for name in FIELDS}, hashes)
    return True


def _usual_columns(adds: pa.StructArray) -> dict[str, pa.Array]:
    """The fields of usual adds as columns of `dl_files`, and their statistics."""
    many = len(adds)
    stats = adds.field("stats") if _has(adds, "stats") else pa.nulls(many)
    return {
        "size": adds.field("size").cast(pa.int64()),
        "modification_time": adds.field("modificationTime").cast(pa.int64()),
        "path": adds.field("path").cast(pa.string()),
        "dv_id": pa.repeat(pa.scalar(""), many),
        "partition_values": partition_texts(adds.field("partitionValues")),
        "stats": stats.cast(pa.string()),
    }


def check_paths(paths: pa.Array, allowed: TablePaths) -> None:
    """Check that paths may be those of data files; one check over all says whether each must be looked at."""
    content = memoryview(joined_lines(paths)).tobytes()
    odd = any(mark in content for mark in (b"%", b":", b"..", b"\0", b"\\"))
    if odd or pc.any(pc.or_(pc.starts_with(paths, "/"), pc.equal(paths, ""))).as_py():
        for path in paths.to_pylist():
            allowed.resolve(path)


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
    """The partition values of files as JSON; each value of a column is spelled once."""
    columns = _partitions(values)
    if columns is None:
        names, texts, offsets = values.keys.to_pylist(), values.items.to_pylist(), values.offsets.to_pylist()
        rows = (dict(zip(names[a:b], texts[a:b], strict=True)) for a, b in pairwise(offsets))
        return pa.array([encode_json(row) for row in rows], pa.string())
    if not columns:
        return pa.repeat(pa.scalar("{}"), len(values))
    parts = []
    for name, column in columns.items():
        coded = column.dictionary_encode(null_encoding="encode")
        spelled = [encode_json({name: value})[1:-1] for value in coded.dictionary.to_pylist()]
        parts.append(pa.array(spelled, pa.string()).take(coded.indices))
    return pc.binary_join_element_wise("{", pc.binary_join_element_wise(*parts, ","), "}", "")


def plain_batch(batch: pa.RecordBatch, version: int, paths: TablePaths) -> FileBatch | None:
    """The adds of a checkpoint's rows by columns; None if one has other fields than usual, or there are none.

    The numbers of rows are left to `packed`, which parses the statistics anyway.
    """
    adds = usual_adds(batch)
    if adds is None or not len(adds):
        return None
    more = {f.name for f in adds.type} - _PLAIN
    if any(adds.field(name).null_count < len(adds) for name in more):
        return None
    many = len(adds)
    changes = pa.repeat(pa.scalar(True), many)
    if _has(adds, "dataChange"):
        changes = pc.fill_null(adds.field("dataChange"), True)
    columns = {"add_version": int_array(np.full(many, version)), "data_change": changes}
    columns |= _usual_columns(adds)
    stats = columns.pop("stats")
    check_paths(columns["path"], paths)
    return FileBatch(columns, stats, (), Counts(many, int(int_values(columns["size"]).sum())))


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
class Layout:
    """What decides how files are packed, and where they may be.

    ``metadata`` is None before the first commit of a table.
    """

    metadata: Metadata | None
    paths: TablePaths

    @classmethod
    def of(cls, session: Session, table_id: int, paths: TablePaths) -> Layout:
        """The layout of the newest version that was loaded."""
        found = live_schema(session, table_id)
        return cls(None if found is None else found[1], paths)

    def after(self, metadata: Metadata | None) -> Layout:
        """The layout after commits that may have changed the metadata."""
        return self if metadata is None else replace(self, metadata=metadata)

    def pack(self, batch: FileBatch) -> FileBatch:
        if self.metadata is None:
            return batch
        return packed(batch, readable_schema(self.metadata), self.metadata)


@dataclass(frozen=True, slots=True)
class PreparedWindow:
    """A window whose files are packed, and the proof for the receipt of its batch if it was asked for."""

    begin: int
    end: int
    files: tuple[FileBatch, ...]
    removes: tuple[Remove, ...]
    proof: bytes | None = None

    def numbered(self) -> Iterator[tuple[int, FileBatch]]:
        """The files with the first sequence number of each batch."""
        begin = self.begin
        for batch in self.files:
            yield begin, batch
            begin += batch.num_files

    def finished(self, *, proves: bool) -> PreparedWindow:
        """Make the proof if asked to; packed files lose the JSON of their statistics."""
        proof = BatchProof()
        for begin, batch in self.numbered() if proves else ():
            proof.add(begin, batch)
        files = tuple(batch.without_stats() if batch.packs else batch for batch in self.files)
        return replace(self, files=files, proof=proof.to_bytes() if proves else None)


def prepare(window: Window, version: int, layout: Layout, *, proves: bool = False) -> PreparedWindow:
    """Make the rows and packs of a window, and its proof if asked to."""
    return pack_window(window, version, layout).finished(proves=proves)


def pack_window(window: Window, version: int, layout: Layout) -> PreparedWindow:
    """Make the rows and packs of a window; the files keep their statistics, which `finished` needs."""
    files: list[FileBatch] = []
    waiting: list[FileBatch] = []

    def pack_waiting(most_bytes: int) -> None:
        """Pack what waits if its statistics take more memory than they may."""
        if sum(batch.stats.nbytes for batch in waiting) <= most_bytes:
            return
        files.append(layout.pack(_joined(waiting)))
        waiting.clear()

    adds: list[tuple[int, Add]] = []
    removes: list[Remove] = []
    for part in window.parts:
        with corrupt_errors(part.path) if isinstance(part, Piece) else nullcontext():
            if not isinstance(part, Piece):
                actions = part
            elif (plain := plain_batch(part.batch, version, layout.paths)) is None:
                actions = part.actions()
            else:
                waiting.append(plain)
                pack_waiting(_MOST_BYTES)
                actions = _removes(part)
            check_locations(actions, layout.paths)
        adds += [(version, action) for action in actions if isinstance(action, Add)]
        removes += [action for action in actions if isinstance(action, Remove)]
    waiting.append(batch_of_adds(adds))
    pack_waiting(-1)
    return PreparedWindow(window.begin, window.end, tuple(files), tuple(removes))


def _removes(piece: Piece) -> list[Action]:
    at = piece.batch.schema.get_field_index("remove")
    return [] if at < 0 else list(column_actions("remove", piece.batch.column(at), piece.utc))


def _joined(batches: Sequence[FileBatch]) -> FileBatch:
    """The files of several batches without their numbers of rows."""
    counts, details = Counts(), list[Details]()
    for batch in batches:
        details += [(counts.num_files + at, *rest) for (at, *rest) in batch.details]  # type: ignore[misc]
        counts.num_files += batch.num_files
        counts.size_bytes += batch.counts.size_bytes
    columns = {name: pa.concat_arrays([b.columns[name] for b in batches]) for name in _COLUMNS}
    return FileBatch(columns, pa.concat_arrays([b.stats for b in batches]), details, counts)


def write_window(session: Session, table_id: int, version: int, window: PreparedWindow) -> tuple[Counts, int]:
    """Write a window's files; returns what they count to, and how many file actions there were."""
    counts = Counts()
    for begin, batch in window.numbered():
        write_batch(session, table_id, begin, batch)
        counts.add(batch.counts)
    rows = FileRows(session, table_id, window.begin + counts.num_files)
    for remove in window.removes:
        rows.bury(remove, version)
    rows.flush()
    return counts, counts.num_files + len(window.removes)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in a thread while the one before it is used."""
    context = copy_context()

    def following() -> list[T]:
        return context.run(lambda: list(islice(items, 1)))

    with ThreadPoolExecutor(1, thread_name_prefix="deltasql-ahead") as pool:
        coming = pool.submit(following)
        while item := coming.result():
            coming = pool.submit(following)
            yield item[0]


# ---- batches of commits ----


@dataclass(frozen=True, slots=True)
class ReadyCommit:
    """A commit without its files: its bytes, its other actions, and what is counted about the files."""

    version: int
    data: bytes
    actions: tuple[Action, ...]
    facts: CommitFacts


class Touch(NamedTuple):
    """The first time that a batch names a file: it is removed there, or a new row takes its place."""

    version: int
    path: str
    key: FileKey
    remove: Remove | None


@dataclass(frozen=True, slots=True)
class ReadyTail:
    """A batch of commits whose file rows are made, except for what only the catalog knows.

    Attributes:
        commits: The commits, in their order.
        files: The files that they add, with the ends of those that they remove again; None if the commits
            must be applied one by one, since one removes a file that an earlier one had removed.
        touches: Files that may live in the catalog before the first commit, each with how it ends there.
        metadata: The last new metadata.
    """

    commits: tuple[ReadyCommit, ...]
    files: FileBatch | None
    touches: tuple[Touch, ...]
    metadata: Metadata | None

    def packed(self, layout: Layout) -> ReadyTail:
        """The same batch with its files packed, if they are many; ``layout`` is that before the batch."""
        if self.files is None or self.files.num_files < PACK_MIN:
            return self
        return replace(self, files=layout.after(self.metadata).pack(self.files))


def prepare_tail(commits: Iterable[tuple[int, bytes]], layout: Layout) -> ReadyTail:
    """Make the rows of a batch of commits, given as versions and bytes."""
    ready: list[ReadyCommit] = []
    files = _Files()
    metadata = None
    for version, data in commits:
        actions = decode_commit(data, source=commit_path(version))
        check_locations(actions, layout.paths)
        check_unique_files(actions, layout.paths, version=version)
        adds = [a for a in actions if isinstance(a, Add)]
        removes = [a for a in actions if isinstance(a, Remove)]
        for remove in removes:
            files.remove(version, remove)
        for add in adds:
            files.add(version, add)
        changed = any(a.data_change for a in adds) or any(a.data_change for a in removes)
        others = tuple(a for a in actions if isinstance(a, OTHERS))
        metadata = new_metadata(others) or metadata
        ready.append(ReadyCommit(version, data, others, CommitFacts(changed, len(adds), len(removes))))
    batch = None if files.removed_twice else files.batch()
    return ReadyTail(tuple(ready), batch, tuple(files.touches), metadata).packed(layout)


def new_metadata(actions: Iterable[Action]) -> Metadata | None:
    return next((a for a in actions if isinstance(a, Metadata)), None)


@dataclass(slots=True)
class _Files:
    """Files that a batch adds, and what ends them within the batch."""

    rows: list[tuple[int, Add]] = field(default_factory=list)
    #: by row: the version that ends it, and by which action
    ends: dict[int, tuple[int, Remove | None]] = field(default_factory=dict)
    touches: list[Touch] = field(default_factory=list)
    removed_twice: bool = False
    #: the row that lives, or None if it was removed
    _seen: dict[FileKey, int | None] = field(default_factory=dict)

    def remove(self, version: int, remove: Remove) -> None:
        key = remove.key
        if key not in self._seen:
            self.touches.append(Touch(version, remove.path, key, remove))
        elif (row := self._seen[key]) is None:
            self.removed_twice = True
        else:
            self.ends[row] = (version, remove)
        self._seen[key] = None

    def add(self, version: int, add: Add) -> None:
        key = add.key
        if key not in self._seen:
            self.touches.append(Touch(version, add.path, key, None))
        elif (row := self._seen[key]) is not None:
            self.ends[row] = (version, None)
        self._seen[key] = len(self.rows)
        self.rows.append((version, add))

    def batch(self) -> FileBatch:
        made = batch_of_adds(self.rows)
        if not self.ends:
            return made
        counts, records = replace(made.counts), made.columns["num_records"]
        details = {at: (vector, more) for at, vector, more, _ in made.details}
        versions: list[int | None] = [None] * len(self.rows)
        times = list(versions)
        actions: dict[int, str] = {}
        for row, (version, remove) in self.ends.items():
            counts.change(-1, self.rows[row][1].size, records[row].as_py())
            versions[row] = version
            if remove is not None:
                times[row], actions[row] = remove.deletion_timestamp, encode_json(remove.to_dict())
        ends = {"remove_version": versions, "deletion_timestamp": times}
        return replace(
            made,
            columns={**made.columns, **{n: pa.array(values, pa.int64()) for n, values in ends.items()}},
            details=[
                (at, *details.get(at, (None, None)), actions.get(at))
                for at in sorted(details.keys() | actions.keys())
            ],
            counts=counts,
        )


def write_tail(session: Session, table_id: int, next_seq: int, tail: ReadyTail) -> tuple[Counts, int]:
    """Write a batch's files and state against what the catalog holds; counts, and the next free number."""
    for commit in tail.commits:
        apply_state(session, table_id, commit.version, commit.actions)
    live = live_files(session, table_id, [touch.path for touch in tail.touches]) if tail.touches else {}
    if tail.files is None or any(t.remove is not None and t.key not in live for t in tail.touches):
        # the removes of files that are not live need rows among the others, in the order of versions
        changes = FileChanges(session, table_id, next_seq, Counts(), live)
        for commit in tail.commits:
            changes.apply(commit.version, decode_commit(commit.data, source=commit_path(commit.version)))
        changes.rows.flush()
        return changes.counts, changes.rows.next_seq
    counts = replace(tail.files.counts)
    rows = FileRows(session, table_id, next_seq)
    for touch in tail.touches:
        if (found := live.get(touch.key)) is not None:
            file_id, size, records = found
            rows.close(file_id, touch.version, touch.remove)
            counts.change(-1, size, records)
    rows.flush()
    write_batch(session, table_id, next_seq, tail.files)
    return counts, next_seq + tail.files.num_files
