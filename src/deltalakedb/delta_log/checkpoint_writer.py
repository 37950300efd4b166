"""Writing checkpoints: streamed to local files with bounded memory, then put into the log whole."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import pyarrow.parquet as pq

from deltalakedb.delta_log.checkpoint import is_whole
from deltalakedb.delta_log.checkpoint_rows import (
    CheckpointContent,
    add_rows,
    remove_rows,
    state_rows,
    table_of,
)
from deltalakedb.delta_log.checkpoint_schema import checkpoint_schema
from deltalakedb.delta_log.last_checkpoint import LastCheckpoint
from deltalakedb.delta_log.listing import Checkpoint
from deltalakedb.delta_log.names import (
    LOG_FOLDER,
    SIDECAR_FOLDER,
    checkpoint_part_path,
    checkpoint_path,
    v2_checkpoint_path,
)
from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError, ProtocolError, StorageUnavailableError
from deltalakedb.failpoints import failpoint
from deltalakedb.protocol.actions import CheckpointMetadata, Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from deltalakedb.delta_log.checkpoint_schema import CheckpointSchema
    from deltalakedb.storage import Store

__all__ = ["CheckpointContent", "CheckpointKind", "WrittenCheckpoint", "write_checkpoint"]

CheckpointKind: TypeAlias = Literal["classic", "multipart", "v2"]

V2_FEATURE = "v2Checkpoint"
_PREFIX = "deltalakedb-checkpoint-"
#: actions of files in one part or sidecar: what a reader's task takes on at once
ROWS_PER_PART = 250_000


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint that is in the log.

    Attributes:
        version: The table's version.
        kind: What was written; a multi-part checkpoint of one part is a classic one.
        paths: Its files under the table's root, the top-level one of a V2 checkpoint last.
        size: Its actions.
        size_in_bytes: Its files' bytes.
        num_add_files: Its adds.
        parts: How many parts, for a multi-part one.
        created: False where another writer's whole checkpoint was there already, and was left as it is.
    """

    version: int
    kind: CheckpointKind
    paths: tuple[str, ...]
    size: int
    size_in_bytes: int
    num_add_files: int
    parts: int | None = None
    created: bool = True

    def hint(self) -> LastCheckpoint:
        """What ``_last_checkpoint`` says about it."""
        return LastCheckpoint(
            version=self.version,
            size=self.size,
            parts=self.parts,
            size_in_bytes=self.size_in_bytes,
            num_of_add_files=self.num_add_files,
        )


def write_checkpoint(
    store: Store,
    content: CheckpointContent,
    *,
    kind: CheckpointKind = "classic",
    parts: int | None = None,
    rows_per_part: int = ROWS_PER_PART,
    stats_as_json: bool = True,
    stats_as_struct: bool = False,
    scratch: str | Path | None = None,
) -> WrittenCheckpoint:
    """Write a table's state at a published version into its log; ``_last_checkpoint`` is another step.

    A reader sees the whole checkpoint or none of it, whenever the writer dies: files are complete before they
    get their names, and the file that makes them a checkpoint comes last.

    Args:
        store: The table's root.
        content: The state; its streams are read once, with bounded memory.
        kind: One file, several parts, or a V2 checkpoint with sidecars.
        parts: Exactly so many parts or sidecars; by default as many as ``rows_per_part`` makes.
        rows_per_part: Files' actions in a part or sidecar.
        stats_as_json: Statistics as text (``delta.checkpoint.writeStatsAsJson``).
        stats_as_struct: Statistics and partition values as typed columns
            (``delta.checkpoint.writeStatsAsStruct``).
        scratch: A folder for the files while they grow; by default the system's.

    Raises:
        ProtocolError: The table's features forbid that kind, or a partition value is none of its type.
        StorageError: The store refused; at most files that no reader looks at are left.
    """
    _check(content, kind, parts, rows_per_part)
    schema = checkpoint_schema(
        content.metadata, content.protocol, stats_as_json=stats_as_json, stats_as_struct=stats_as_struct
    )
    with _local(scratch), tempfile.TemporaryDirectory(prefix=_PREFIX, dir=scratch) as folder:
        if kind == "classic":
            parts = 1
        files = _Files(
            Path(folder), schema.sidecar() if kind == "v2" else schema.classic(), parts, rows_per_part
        )
        with files:
            if kind != "v2":
                files.write_first(state_rows(content, files.schema))
            adds = sum(files.write("add", rows) for rows in add_rows(content.files, schema))
            removes = sum(files.write("remove", rows) for rows in remove_rows(content.tombstones))
        failpoint("checkpoint.before_put")
        if kind == "v2":
            written = _put_v2(store, content, schema, files.paths, Path(folder), adds + removes)
        elif len(files.paths) == 1:
            written = _put_classic(store, content.version, files)
        else:
            written = _put_parts(store, content.version, files)
    failpoint("checkpoint.after_put")
    return replace(written, num_add_files=adds)


@contextlib.contextmanager
def _local(scratch: str | Path | None) -> Iterator[None]:
    """What the local disk says, as a typed error; the store's own errors are typed already."""
    try:
        yield
    except DeltaSqlError:
        raise
    except OSError as e:
        raise StorageUnavailableError(
            f"cannot write a checkpoint's files in {scratch or tempfile.gettempdir()}: {e}",
            suggestion="free some space there, or choose another folder with scratch=",
        ) from e


class _Files:
    """The Parquet files that the actions of a checkpoint are spread over."""

    def __init__(self, folder: Path, schema: pa.Schema, parts: int | None, rows_per_part: int) -> None:
        self.schema = schema
        self.paths: list[Path] = []
        self.rows = 0
        self._folder, self._parts, self._rows_per_part = folder, parts, rows_per_part
        self._stack = contextlib.ExitStack()
        self._writers: list[pq.ParquetWriter] = []
        self._in_last = 0

    def __enter__(self) -> Self:
        for _ in range(self._parts or 1):
            self._open()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def write_first(self, table: pa.Table) -> None:
        """Rows that belong into the first file and do not count for its size."""
        self._writers[0].write_table(table)
        self.rows += table.num_rows

    def write(self, kind: str, actions: pa.StructArray) -> int:
        """Spread actions over the files: evenly over a fixed number, else one file after the other."""
        if self._parts is not None:
            share = -(-len(actions) // self._parts)
            for number, writer in enumerate(self._writers):
                self._append(writer, kind, actions.slice(number * share, share))
        else:
            at = 0
            while at < len(actions):
                if self._in_last == self._rows_per_part:
                    self._stack.close()
                    self._open()
                taken = min(len(actions) - at, self._rows_per_part - self._in_last)
                self._append(self._writers[-1], kind, actions.slice(at, taken))
                self._in_last += taken
                at += taken
        self.rows += len(actions)
        return len(actions)

    def _append(self, writer: pq.ParquetWriter, kind: str, actions: pa.StructArray) -> None:
        if len(actions):
            writer.write_table(table_of(kind, actions, self.schema))

    def _open(self) -> None:
        path = self._folder / f"{len(self.paths) + 1}.parquet"
        self.paths.append(path)
        self._in_last = 0
        self._writers.append(self._stack.enter_context(_parquet(path, self.schema)))


def _parquet(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    # other engines have no use for Arrow's own copy of the schema
    return pq.ParquetWriter(path, schema, compression="snappy", store_schema=False)


def _put_classic(store: Store, version: int, files: _Files) -> WrittenCheckpoint:
    path = checkpoint_path(version)
    created = store.put_file(path, files.paths[0])
    if not created and not is_whole(store, Checkpoint(version, (store.head(path),))):
        # a torn file of another writer blocks the name, and readers that trust it
        created = store.put_file(path, files.paths[0], new=False)
    return WrittenCheckpoint(version, "classic", (path,), files.rows, store.head(path).size, 0, None, created)


def _put_parts(store: Store, version: int, files: _Files) -> WrittenCheckpoint:
    total = len(files.paths)
    paths = tuple(checkpoint_part_path(version, part, total) for part in range(1, total + 1))
    found = {meta.path: meta for meta in store.list(LOG_FOLDER) if meta.path in paths}
    created = len(found) < total or not is_whole(store, Checkpoint(version, tuple(found[p] for p in paths)))
    if created:
        # parts that a dead writer left must never meet ours: its files may be spread otherwise
        for path in sorted(found):
            store.delete(path)
        for path, source in zip(paths, files.paths, strict=True):
            store.put_file(path, source, new=False)
            failpoint("checkpoint.between_files")
    size = sum(store.head(path).size for path in paths)
    return WrittenCheckpoint(version, "multipart", paths, files.rows, size, 0, total, created)


def _put_v2(
    store: Store,
    content: CheckpointContent,
    schema: CheckpointSchema,
    sources: Sequence[Path],
    folder: Path,
    file_actions: int,
) -> WrittenCheckpoint:
    version, unique = content.version, str(uuid.uuid4())
    sidecars, paths, size = [], [], 0
    if file_actions:
        for number, source in enumerate(sources, start=1):
            name = f"{version:020d}.checkpoint.{number:010d}.{len(sources):010d}.{uuid.uuid4()}.parquet"
            paths.append(f"{SIDECAR_FOLDER}/{name}")
            store.put_file(paths[-1], source)
            failpoint("checkpoint.between_files")
            meta = store.head(paths[-1])
            size += meta.size
            sidecars.append(Sidecar(path=name, size_in_bytes=meta.size, modification_time=meta.modified_ms))
    top = folder / "top.parquet"
    table = state_rows(content, schema.top_level(), more=[CheckpointMetadata(version=version), *sidecars])
    with _parquet(top, table.schema) as writer:
        writer.write_table(table)
    paths.append(v2_checkpoint_path(version, unique))
    size += top.stat().st_size
    store.put_file(paths[-1], top)
    return WrittenCheckpoint(version, "v2", tuple(paths), table.num_rows + file_actions, size, 0)


def _check(content: CheckpointContent, kind: CheckpointKind, parts: int | None, rows_per_part: int) -> None:
    if content.version < 0 or rows_per_part < 1 or (parts is not None and parts < 1):
        raise InvalidArgumentError(
            f"no checkpoint of version {content.version} has {parts} parts of {rows_per_part} rows",
            suggestion="count versions from 0, parts and rows from 1",
        )
    if kind not in ("classic", "multipart", "v2"):
        raise InvalidArgumentError(
            f"{kind!r} is no kind of checkpoint", suggestion="choose classic, multipart or v2"
        )
    features = set(content.protocol.writer_features or ()) & set(content.protocol.reader_features or ())
    if kind == "multipart" and V2_FEATURE in features:
        raise ProtocolError(
            "a table with V2 checkpoints must not have multi-part ones",
            version=content.version,
            suggestion="write a V2 checkpoint, which has sidecars instead of parts",
        )
    if kind == "v2" and V2_FEATURE not in features:
        raise ProtocolError(
            f"a V2 checkpoint needs the table feature {V2_FEATURE}",
            version=content.version,
            suggestion="write a classic checkpoint, or add the feature to the table's protocol",
        )
