"""Writing checkpoints: streamed to a local file with bounded memory, then put into the log whole."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.delta_log.checkpoint import is_complete
from deltalakedb.delta_log.checkpoint_schema import DELETION_VECTOR, REMOVE, STRING_MAP, checkpoint_schema
from deltalakedb.delta_log.last_checkpoint import LastCheckpoint
from deltalakedb.delta_log.listing import Checkpoint
from deltalakedb.delta_log.names import SIDECAR_FOLDER, checkpoint_path, v2_checkpoint_path
from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError, ProtocolError, StorageUnavailableError
from deltalakedb.failpoints import failpoint
from deltalakedb.protocol import partition
from deltalakedb.protocol.actions import (
    Action,
    CheckpointMetadata,
    DomainMetadata,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
    action_to_dict,
)
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.schema import PrimitiveType
from deltalakedb.protocol.stats_columns import nested, stats_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from deltalakedb.delta_log.checkpoint_schema import CheckpointSchema
    from deltalakedb.protocol.actions import Remove
    from deltalakedb.storage import Store

CheckpointKind: TypeAlias = Literal["classic", "v2"]
#: a kind of action ("state" for all that are no files) and rows of it
KindRows: TypeAlias = "tuple[str, pa.Table]"

V2_FEATURE = "v2Checkpoint"
#: rows that are written together: what memory has to hold
GROUP_ROWS = 20_000
GROUP_BYTES = 32 << 20
#: a sidecar is complete once it has this many actions
SIDECAR_ROWS = 250_000
_PREFIX = "deltalakedb-checkpoint-"
_NEEDED = ("path", "size", "modification_time")
_MAPS = ("partitionValues", "configuration", "options", "tags")


@dataclass(frozen=True)
class CheckpointContent:
    """A table's state at a version, with its files as streams that are read once.

    Attributes:
        version: The version.
        protocol: Its protocol.
        metadata: Its metadata.
        txns: Application transactions.
        domains: Metadata domains; removed ones are left out.
        files: The live files, in batches with the columns ``path``, ``size``, ``modification_time`` and any
            of ``stats``, ``partition_values``, ``tags``, ``deletion_vector`` (JSON texts), ``base_row_id``,
            ``default_row_commit_version``, ``clustering_provider``. Other columns are ignored:
            unknown fields have no place in a checkpoint's schema.
        tombstones: Removed files whose retention has not ended.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    files: Iterable[pa.RecordBatch]
    tombstones: Iterable[Remove] = ()
    txns: Sequence[Txn] = ()
    domains: Sequence[DomainMetadata] = ()


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint that is in the log.

    Attributes:
        version: The table's version.
        kind: What was written.
        paths: Its files under the table's root, the top-level one of a V2 checkpoint last.
        size: Its actions.
        size_in_bytes: Its files' bytes.
        num_add_files: Its adds.
        created: False if a complete checkpoint was there already; it is left as it is.
    """

    version: int
    kind: CheckpointKind
    paths: tuple[str, ...]
    size: int
    size_in_bytes: int
    num_add_files: int
    created: bool = True

    def hint(self) -> LastCheckpoint:
        """The content of ``_last_checkpoint`` for it."""
        return LastCheckpoint(
            version=self.version,
            size=self.size,
            size_in_bytes=self.size_in_bytes,
            num_of_add_files=self.num_add_files,
        )


def write_checkpoint(
    store: Store,
    content: CheckpointContent,
    *,
    kind: CheckpointKind = "classic",
    stats_as_json: bool = True,
    stats_as_struct: bool = False,
) -> WrittenCheckpoint:
    """Write a table's state at a published version into its log; ``_last_checkpoint`` is another step.

    A reader sees the whole checkpoint or none of it, whenever the writer dies: files are complete before they
    get their names, and the file that makes them a checkpoint comes last.

    Args:
        store: The table's root.
        content: The state; its streams are read once, with bounded memory.
        kind: One file, or a V2 checkpoint with sidecars.
        stats_as_json: Statistics as text (``delta.checkpoint.writeStatsAsJson``).
        stats_as_struct: Statistics and partition values as typed columns
            (``delta.checkpoint.writeStatsAsStruct``).

    Raises:
        ProtocolError: The table's features forbid that kind, or a partition value does not fit its type.
        StorageError: The store refused; at most files that no reader looks at are left.
    """
    _check(content, kind)
    schema = checkpoint_schema(
        content.metadata, content.protocol, stats_as_json=stats_as_json, stats_as_struct=stats_as_struct
    )
    written = (_write_classic if kind == "classic" else _write_v2)(store, content, schema)
    failpoint("checkpoint.after_put")
    return written


def put_parquet(
    store: Store, path: str, tables: Iterable[KindRows], schema: pa.Schema
) -> tuple[Counter[str], bool]:
    """Write one file of a checkpoint, complete before it has its name.

    A complete file of that name stays as it is; a torn one, which would block the name, is replaced.

    Returns:
        Rows by kind, and whether the file was written.

    Raises:
        StorageError: The store or the local disk refused.
    """
    counts: Counter[str] = Counter()
    with _local_errors(), tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        local = Path(folder) / "checkpoint.parquet"
        # other engines have no use for Arrow's own copy of the schema
        with pq.ParquetWriter(local, schema, compression="snappy", store_schema=False) as writer:
            for kind, table in tables:
                writer.write_table(table)
                counts[kind] += table.num_rows
        failpoint("checkpoint.before_put")
        created = store.put_file(path, local)
        if not created and not is_complete(store, Checkpoint(-1, (store.head(path),))):
            created = store.put_file(path, local, new=False)
    return counts, created


def new_sidecar_path(version: int, number: int) -> str:
    """A path of a sidecar that no other writer uses."""
    return f"{SIDECAR_FOLDER}/{version:020d}.checkpoint.{number:010d}.{uuid.uuid4()}.parquet"


def put_v2(
    store: Store,
    content: CheckpointContent,
    schema: CheckpointSchema,
    sidecars: Sequence[str],
    counts: Counter[str],
) -> WrittenCheckpoint:
    """Write the file that makes sidecars a V2 checkpoint.

    Args:
        store: The table's root.
        content: The state; its files are not read.
        schema: The columns.
        sidecars: Paths of the sidecars, which must be there.
        counts: Their rows by kind of action.
    """
    found = [store.head(path) for path in sidecars]
    header = CheckpointMetadata(version=content.version)
    named = [Sidecar(path=m.name, size_in_bytes=m.size, modification_time=m.modified_ms) for m in found]
    table = state_rows(content, schema.top_level(), more=[header, *named])
    path = v2_checkpoint_path(content.version, str(uuid.uuid4()))
    put_parquet(store, path, [("state", table)], table.schema)
    size = store.head(path).size + sum(meta.size for meta in found)
    actions = table.num_rows + counts.total()
    return WrittenCheckpoint(content.version, "v2", (*sidecars, path), actions, size, counts["add"])


def _write_classic(store: Store, content: CheckpointContent, schema: CheckpointSchema) -> WrittenCheckpoint:
    path, columns = checkpoint_path(content.version), schema.classic()
    tables = chain([("state", state_rows(content, columns))], file_rows(content, schema, columns))
    counts, created = put_parquet(store, path, tables, columns)
    size = store.head(path).size
    return WrittenCheckpoint(
        content.version, "classic", (path,), counts.total(), size, counts["add"], created
    )


def _write_v2(store: Store, content: CheckpointContent, schema: CheckpointSchema) -> WrittenCheckpoint:
    columns = schema.sidecar()
    tables = file_rows(content, schema, columns)
    paths: list[str] = []
    counts: Counter[str] = Counter()
    try:
        for first in tables:
            path = new_sidecar_path(content.version, len(paths) + 1)
            counts += put_parquet(store, path, _up_to(SIDECAR_ROWS, chain([first], tables)), columns)[0]
            paths.append(path)
            failpoint("checkpoint.between_files")
    except Exception:
        with contextlib.suppress(DeltaSqlError):
            store.delete_all(paths)
        raise
    # the checkpoint may stand even if this fails, so its sidecars stay
    return put_v2(store, content, schema, paths, counts)


def _up_to(rows: int, tables: Iterator[KindRows]) -> Iterator[KindRows]:
    """Tables until they have so many rows; the rest is left in the iterator."""
    for kind, table in tables:
        yield kind, table
        rows -= table.num_rows
        if rows <= 0:
            return


@contextlib.contextmanager
def _local_errors() -> Iterator[None]:
    """Translate errors of the local disk; the store's own are typed already."""
    try:
        yield
    except DeltaSqlError:
        raise
    except OSError as e:
        raise StorageUnavailableError(
            f"cannot write a checkpoint's files in {tempfile.gettempdir()}: {e}",
            suggestion="free some space there, or choose another folder with TMPDIR",
        ) from e


def _check(content: CheckpointContent, kind: CheckpointKind) -> None:
    if content.version < 0:
        raise InvalidArgumentError(f"Expected a version from 0 on, got {content.version}")
    if kind not in ("classic", "v2"):
        raise InvalidArgumentError(f"Unknown checkpoint kind {kind!r}", suggestion="choose classic or v2")
    features = set(content.protocol.writer_features or ()) & set(content.protocol.reader_features or ())
    if kind == "v2" and V2_FEATURE not in features:
        raise ProtocolError(
            f"a V2 checkpoint needs the table feature {V2_FEATURE}",
            version=content.version,
            suggestion="write a classic checkpoint, or add the feature to the table's protocol",
        )


# ---- rows ----


def state_rows(content: CheckpointContent, schema: pa.Schema, *, more: Iterable[Action] = ()) -> pa.Table:
    """Everything that is no file, as rows of a checkpoint."""
    live = [domain for domain in content.domains if not domain.removed]
    rows = []
    for action in (content.protocol, content.metadata, *content.txns, *live, *more):
        ((kind, value),) = action_to_dict(action).items()
        if isinstance(action, Protocol):
            value = _with_feature_lists(action, value)
        rows.append({kind: _pairs(value)})
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def file_rows(content: CheckpointContent, schema: CheckpointSchema, columns: pa.Schema) -> Iterator[KindRows]:
    """The live files, then the removed ones, as rows of a checkpoint in groups that are worth a row group."""
    for batch in _grouped(content.files):
        yield "add", _action_table("add", _adds(batch, schema), columns)
    removed = iter(content.tombstones)
    while group := list(islice(removed, GROUP_ROWS)):
        yield "remove", _action_table("remove", _removes(group), columns)


def _removes(group: list[Remove]) -> pa.StructArray:
    columns: dict[str, Any] = {
        "path": [r.path for r in group],
        "deletionTimestamp": [r.deletion_timestamp for r in group],
        "dataChange": [False] * len(group),
        "extendedFileMetadata": [r.extended_file_metadata for r in group],
        "partitionValues": [
            None if r.partition_values is None else list(r.partition_values.items()) for r in group
        ],
        "size": [r.size for r in group],
        "deletionVector": [None if r.deletion_vector is None else r.deletion_vector.to_dict() for r in group],
        "baseRowId": [r.base_row_id for r in group],
        "defaultRowCommitVersion": [r.default_row_commit_version for r in group],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in REMOVE]
    return pa.StructArray.from_arrays(arrays, fields=list(REMOVE))


def _action_table(kind: str, rows: pa.StructArray, schema: pa.Schema) -> pa.Table:
    """Actions of one kind as rows of a checkpoint, every other column null."""
    columns = [rows if field.name == kind else pa.nulls(len(rows), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _grouped(files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of about the same size, whatever size they come in."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for given in files:
        for batch in _slices(given):
            if waiting and (rows + batch.num_rows > GROUP_ROWS or size + batch.nbytes > GROUP_BYTES):
                yield _joined(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if rows:
        yield _joined(waiting)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows:
        length = min(GROUP_ROWS, max(1, batch.num_rows * GROUP_BYTES // max(batch.nbytes, 1)))
        for at in range(0, batch.num_rows, length):
            yield batch.slice(at, length)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _adds(batch: pa.RecordBatch, schema: CheckpointSchema) -> pa.StructArray:
    if missing := [name for name in _NEEDED if name not in batch.schema.names]:
        raise InvalidArgumentError(
            f"the files of a checkpoint lack {', '.join(missing)}",
            suggestion="give batches with the columns that CheckpointContent names",
        )
    partitions = _column(batch, "partition_values", pa.string()).fill_null("{}")
    stats = _column(batch, "stats", pa.string())
    columns = {
        "path": _column(batch, "path", pa.string()),
        "partitionValues": _decoded(partitions, STRING_MAP),
        "size": _column(batch, "size", pa.int64()),
        "modificationTime": _column(batch, "modification_time", pa.int64()),
        "dataChange": pa.repeat(pa.scalar(False), batch.num_rows),
        "tags": _decoded(_column(batch, "tags", pa.string()), STRING_MAP),
        "deletionVector": _decoded(_column(batch, "deletion_vector", pa.string()), DELETION_VECTOR),
        "baseRowId": _column(batch, "base_row_id", pa.int64()),
        "defaultRowCommitVersion": _column(batch, "default_row_commit_version", pa.int64()),
        "clusteringProvider": _column(batch, "clustering_provider", pa.string()),
        "stats": stats,
    }
    if schema.partitions:
        columns["partitionValues_parsed"] = _parsed_partitions(partitions, schema)
    if schema.as_struct:
        columns["stats_parsed"] = _parsed_stats(stats, schema)
    return pa.StructArray.from_arrays([columns[f.name] for f in schema.add], fields=list(schema.add))


def _parsed_stats(texts: pa.StringArray, schema: CheckpointSchema) -> pa.StructArray:
    """``stats_parsed`` of files; bounds are wide enough to hold values that writers have rounded."""
    counted, bounded = (
        [leaf._replace(path=leaf.physical_path) for leaf in leaves]
        for leaves in (schema.counted, schema.bounded)
    )
    stats = stats_columns(texts, counted, bounded=bounded, widen=True)
    columns = {"numRecords": stats.num_records, "tightBounds": stats.tight_bounds}
    if bounded:
        columns |= {
            "minValues": nested(stats.lows, stats.no_lows),
            "maxValues": nested(stats.highs, stats.no_highs),
        }
    if counted:
        columns["nullCount"] = nested(stats.nulls, stats.no_nulls)
    kind = schema.stats_parsed
    return pa.StructArray.from_arrays([columns[f.name] for f in kind], fields=list(kind), mask=stats.absent)


def _parsed_partitions(texts: pa.StringArray, schema: CheckpointSchema) -> pa.StructArray:
    """``partitionValues_parsed`` of files.

    Raises:
        ProtocolError: A value does not fit its column's type.
    """
    encoded = texts.dictionary_encode()
    values = [decode_json(text) for text in encoded.dictionary.to_pylist()]
    columns, kind = [], schema.partitions_parsed
    for field, target in zip(schema.partitions, kind, strict=True):
        name = field.type if isinstance(field.type, PrimitiveType) else PrimitiveType("string")
        column = [partition.parse(row.get(field.physical_name), name) for row in values]
        columns.append(pa.array(column, target.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind)).take(encoded.indices)


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, kind)
    column = batch.column(name)
    return column if column.type == kind else column.cast(kind)


def _decoded(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """JSON objects as maps or structs; each different text is decoded once."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    encoded = texts.dictionary_encode()
    values = [decode_json(text) for text in encoded.dictionary.to_pylist()]
    if pa.types.is_map(kind):
        values = [list(value.items()) for value in values]
    return pa.array(values, kind).take(encoded.indices)


def _with_feature_lists(protocol: Protocol, value: dict[str, Any]) -> dict[str, Any]:
    """Lists of features if the versions ask for them, even if a commit left them out."""
    if protocol.min_reader_version >= 3:
        value.setdefault("readerFeatures", [])
    if protocol.min_writer_version >= 7:
        value.setdefault("writerFeatures", [])
    return value


def _pairs(value: dict[str, Any]) -> dict[str, Any]:
    """Maps as the pairs that Arrow wants; structs stay dicts."""
    out = dict(value)
    for key, item in value.items():
        if isinstance(item, dict):
            out[key] = list(item.items()) if key in _MAPS else _pairs(item)
    return out
