"""Write checkpoints: streamed to a local file in bounded memory, then put into the log whole."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.delta_log.checkpoint import is_complete
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
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.properties import is_on
from deltalakedb.protocol.schema import Leaf, PrimitiveType, StructField, parse_schema
from deltalakedb.protocol.stats import stats_leaves
from deltalakedb.protocol.stats_columns import nested, stats_columns, type_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from deltalakedb.protocol.actions import Remove
    from deltalakedb.storage import Store

CheckpointKind: TypeAlias = Literal["classic", "v2"]
#: a kind of action ("state" for all that are not files) and rows of it
KindRows: TypeAlias = "tuple[str, pa.Table]"

V2_FEATURE = "v2Checkpoint"
#: rows and bytes that are written together and must fit into memory
GROUP_ROWS = 20_000
GROUP_BYTES = 32 << 20
#: a sidecar is complete once it has this many actions
SIDECAR_ROWS = 250_000
_MAPS = ("partitionValues", "configuration", "options", "tags")
#: types whose bounds no writer records, or no reader uses
_UNORDERED = {"binary", "boolean", "variant"}


# ---- columns ----


_TEXT, _LONG, _STRING_MAP = pa.string(), pa.int64(), pa.map_(pa.string(), pa.string())
_TYPES = {"text": _TEXT, "long": _LONG, "int": pa.int32(), "flag": pa.bool_(), "map": _STRING_MAP}
_TYPES["texts"] = pa.list_(_TEXT)


def _struct(fields: str) -> pa.StructType:
    """A struct of fields such as ``path:text size:long``."""
    pairs = (field.partition(":") for field in fields.split())
    return pa.struct([(name, _TYPES[kind]) for name, _, kind in pairs])


_DELETION_VECTOR = _TYPES["vector"] = _struct(
    "storageType:text pathOrInlineDv:text offset:int sizeInBytes:int cardinality:long"
)
_TYPES["format"] = _struct("provider:text options:map")
_ADD = _struct(
    "path:text partitionValues:map size:long modificationTime:long dataChange:flag tags:map "
    "deletionVector:vector baseRowId:long defaultRowCommitVersion:long clusteringProvider:text"
)
_REMOVE = _struct(
    "path:text deletionTimestamp:long dataChange:flag extendedFileMetadata:flag partitionValues:map "
    "size:long deletionVector:vector baseRowId:long defaultRowCommitVersion:long"
)
_METADATA = _struct(
    "id:text name:text description:text format:format schemaString:text partitionColumns:texts "
    "configuration:map createdTime:long"
)
_PROTOCOL = _struct("minReaderVersion:int minWriterVersion:int readerFeatures:texts writerFeatures:texts")
_TXN = _struct("appId:text version:long lastUpdated:long")
_DOMAIN = _struct("domain:text configuration:text removed:flag")
_HEADER = _struct("version:long tags:map")
_SIDECAR = _struct("path:text sizeInBytes:long modificationTime:long tags:map")


class CheckpointSchema:
    """The columns of a checkpoint's files, as a table's properties request them."""

    def __init__(self, protocol: Protocol, metadata: Metadata) -> None:
        as_json = metadata.configuration.get("delta.checkpoint.writeStatsAsJson") or ""
        self.as_struct = is_on(metadata, "delta.checkpoint.writeStatsAsStruct")
        #: columns with a null count in ``stats_parsed``, and those of them with a minimum and a maximum
        self.counted: list[Leaf] = []
        self.bounded: list[Leaf] = []
        #: columns of ``partitionValues_parsed``
        self.partitions: list[StructField] = []
        self.add = _ADD if as_json.strip().lower() == "false" else pa.struct([*_ADD, ("stats", _TEXT)])
        if not self.as_struct:
            return
        schema = parse_schema(metadata.schema_string)
        self.partitions = [f for c in metadata.partition_columns if (f := schema.field(c)) is not None]
        self.counted = stats_leaves(schema, metadata.partition_columns, metadata.configuration)
        self.bounded = [
            x for x in self.counted if str(x.type) not in _UNORDERED and arrow_type(x.type) is not None
        ]
        bounds = type_tree({leaf.physical_path: arrow_type(leaf.type) for leaf in self.bounded})
        counts = type_tree({leaf.physical_path: _LONG for leaf in self.counted})
        groups = {"minValues": bounds, "maxValues": bounds, "nullCount": counts}
        fields = [("numRecords", _LONG), *((name, kind) for name, kind in groups.items() if kind.num_fields)]
        if "deletionVectors" in (protocol.writer_features or ()):
            fields.append(("tightBounds", pa.bool_()))
        self.stats_parsed = pa.struct(fields)
        types = [(f.physical_name, arrow_type(f.type) or _TEXT) for f in self.partitions]
        self.partitions_parsed = pa.struct(types)
        parsed = [("partitionValues_parsed", self.partitions_parsed), ("stats_parsed", self.stats_parsed)]
        self.add = pa.struct([*self.add, *(parsed if self.partitions else parsed[1:])])

    def classic(self) -> pa.Schema:
        state = {"metaData": _METADATA, "protocol": _PROTOCOL, "domainMetadata": _DOMAIN}
        return pa.schema({"txn": _TXN, "add": self.add, "remove": _REMOVE, **state})

    def top_level(self) -> pa.Schema:
        """The columns of a V2 checkpoint's own file; all file actions are in sidecars."""
        return pa.schema([*self.classic(), ("checkpointMetadata", _HEADER), ("sidecar", _SIDECAR)])

    def sidecar(self) -> pa.Schema:
        return pa.schema({"add": self.add, "remove": _REMOVE})


# ---- files ----


@dataclass(frozen=True)
class CheckpointContent:
    """A table's state at a version, with its files as streams that are read once, in bounded memory.

    Attributes:
        files: The live files, in batches with the columns ``path``, ``size``, ``modification_time`` and any
            of ``stats``, ``partition_values``, ``tags``, ``deletion_vector`` (JSON texts), ``base_row_id``,
            ``default_row_commit_version``, ``clustering_provider``. Other columns are ignored, since a
            checkpoint's schema has no column for unknown fields.
        tombstones: Removed files whose retention has not ended.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    files: Iterable[pa.RecordBatch]
    tombstones: Iterable[Remove] = ()
    txns: Sequence[Txn] = ()
    domains: Sequence[DomainMetadata] = ()

    @cached_property
    def schema(self) -> CheckpointSchema:
        """The columns; ProtocolError if the table's schema cannot be parsed."""
        return CheckpointSchema(self.protocol, self.metadata)


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint that is in the log."""

    version: int
    kind: CheckpointKind
    #: its files under the table's root, the top-level one of a V2 checkpoint last
    paths: tuple[str, ...]
    #: the number of its actions
    size: int
    size_in_bytes: int
    num_add_files: int
    #: False if a complete checkpoint was there already, which stays as it is
    created: bool = True


def write_checkpoint(
    store: Store, content: CheckpointContent, *, kind: CheckpointKind = "classic"
) -> WrittenCheckpoint:
    """Write a table's state at a published version into its log, but not ``_last_checkpoint``.

    A reader sees the whole checkpoint or none of it, even if the writer is killed: files are complete before
    they get their names, and the file that makes them a checkpoint comes last.

    Raises:
        ProtocolError: The table's features forbid that kind, or a partition value does not fit its type.
        StorageError: The store refused; at most files that no reader looks at are left.
    """
    if kind not in ("classic", "v2"):
        raise InvalidArgumentError(f"Unknown checkpoint kind {kind!r}", suggestion="choose classic or v2")
    features = set(content.protocol.writer_features or ()) & set(content.protocol.reader_features or ())
    if kind == "v2" and V2_FEATURE not in features:
        raise ProtocolError(
            f"a V2 checkpoint needs the table feature {V2_FEATURE}",
            version=content.version,
            suggestion="write a classic checkpoint, or add the feature to the table's protocol",
        )
    written = (_write_classic if kind == "classic" else _write_v2)(store, content)
    failpoint("checkpoint.after_put")
    return written


def put_parquet(
    store: Store, path: str, tables: Iterable[KindRows], schema: pa.Schema
) -> tuple[Counter[str], bool]:
    """Write one file of a checkpoint, complete before it has its name; rows by kind, and whether it is new.

    A complete file of that name stays as it is; a torn one, which would block the name, is replaced.
    """
    counts: Counter[str] = Counter()
    with _local_errors(), tempfile.TemporaryDirectory(prefix="deltalakedb-checkpoint-") as folder:
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
    store: Store, content: CheckpointContent, sidecars: Sequence[str], counts: Counter[str]
) -> WrittenCheckpoint:
    """Write the file that makes existing sidecars, whose rows are counted by kind, a V2 checkpoint."""
    found = [store.head(path) for path in sidecars]
    header = CheckpointMetadata(version=content.version)
    named = [Sidecar(path=m.name, size_in_bytes=m.size, modification_time=m.modified_ms) for m in found]
    table = _state_rows(content, content.schema.top_level(), more=[header, *named])
    path = v2_checkpoint_path(content.version, str(uuid.uuid4()))
    put_parquet(store, path, [("state", table)], table.schema)
    size = store.head(path).size + sum(meta.size for meta in found)
    actions = table.num_rows + counts.total()
    return WrittenCheckpoint(content.version, "v2", (*sidecars, path), actions, size, counts["add"])


def _write_classic(store: Store, content: CheckpointContent) -> WrittenCheckpoint:
    path, columns = checkpoint_path(content.version), content.schema.classic()
    tables = chain([("state", _state_rows(content, columns))], file_rows(content, columns))
    counts, created = put_parquet(store, path, tables, columns)
    total, size = counts.total(), store.head(path).size
    return WrittenCheckpoint(content.version, "classic", (path,), total, size, counts["add"], created)


def _write_v2(store: Store, content: CheckpointContent) -> WrittenCheckpoint:
    columns = content.schema.sidecar()
    tables = file_rows(content, columns)
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
    # the checkpoint may exist even if this fails, so its sidecars stay
    return put_v2(store, content, paths, counts)


def _up_to(rows: int, tables: Iterator[KindRows]) -> Iterator[KindRows]:
    """Tables until they have so many rows; the rest stays in the iterator."""
    for kind, table in tables:
        yield kind, table
        rows -= table.num_rows
        if rows <= 0:
            return


@contextlib.contextmanager
def _local_errors() -> Iterator[None]:
    """Translate errors of the local disk; the store's errors are typed already."""
    try:
        yield
    except DeltaSqlError:
        raise
    except OSError as e:
        raise StorageUnavailableError(
            f"cannot write a checkpoint's files in {tempfile.gettempdir()}: {e}",
            suggestion="free some space there, or choose another folder with TMPDIR",
        ) from e


# ---- rows ----


def _state_rows(content: CheckpointContent, schema: pa.Schema, *, more: Iterable[Action] = ()) -> pa.Table:
    """All actions that are not about files, as rows of a checkpoint."""
    live = [domain for domain in content.domains if not domain.removed]
    rows = []
    for action in (content.protocol, content.metadata, *content.txns, *live, *more):
        ((kind, value),) = action_to_dict(action).items()
        if isinstance(action, Protocol):  # these versions require lists of features, even empty ones
            if action.min_reader_version >= 3:
                value.setdefault("readerFeatures", [])
            if action.min_writer_version >= 7:
                value.setdefault("writerFeatures", [])
        rows.append({kind: _pairs(value)})
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def file_rows(content: CheckpointContent, columns: pa.Schema) -> Iterator[KindRows]:
    """The live files, then the removed ones, as rows of a checkpoint in tables of a row group each."""
    for batch in _grouped(content.files):
        yield "add", _action_table("add", _adds(batch, content.schema), columns)
    removed = iter(content.tombstones)
    while group := list(islice(removed, GROUP_ROWS)):
        rows = [_pairs(remove.to_dict()) | {"dataChange": False} for remove in group]
        yield "remove", _action_table("remove", pa.array(rows, _REMOVE), columns)


def _action_table(kind: str, rows: pa.StructArray, schema: pa.Schema) -> pa.Table:
    """Actions of one kind as rows of a checkpoint, every other column null."""
    columns = [rows if field.name == kind else pa.nulls(len(rows), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _grouped(files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of about the same size."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for given in files:
        length = min(GROUP_ROWS, max(1, given.num_rows * GROUP_BYTES // max(given.nbytes, 1)))
        for at in range(0, given.num_rows, length):
            batch = given.slice(at, length)
            if waiting and (rows + batch.num_rows > GROUP_ROWS or size + batch.nbytes > GROUP_BYTES):
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


def _adds(batch: pa.RecordBatch, schema: CheckpointSchema) -> pa.StructArray:
    stats = _column(batch, "stats", _TEXT)
    partitions = _column(batch, "partition_values", _TEXT).fill_null("{}")
    columns = {
        "path": batch["path"],
        "partitionValues": _decoded(partitions, _STRING_MAP),
        "size": batch["size"],
        "modificationTime": batch["modification_time"],
        "dataChange": pa.repeat(pa.scalar(False), batch.num_rows),
        "tags": _decoded(_column(batch, "tags", _TEXT), _STRING_MAP),
        "deletionVector": _decoded(_column(batch, "deletion_vector", _TEXT), _DELETION_VECTOR),
        "baseRowId": _column(batch, "base_row_id", _LONG),
        "defaultRowCommitVersion": _column(batch, "default_row_commit_version", _LONG),
        "clusteringProvider": _column(batch, "clustering_provider", _TEXT),
        "stats": stats,
    }
    if schema.partitions:
        columns["partitionValues_parsed"] = _parsed_partitions(partitions, schema)
    if schema.as_struct:
        columns["stats_parsed"] = _parsed_stats(stats, schema)
    fields = list(schema.add)
    return pa.StructArray.from_arrays([_cast(columns[f.name], f.type) for f in fields], fields=fields)


def _parsed_stats(texts: pa.StringArray, schema: CheckpointSchema) -> pa.StructArray:
    """``stats_parsed`` of files; bounds are wide enough for values that writers rounded."""
    counted, bounded = (
        [leaf._replace(path=leaf.physical_path) for leaf in leaves]
        for leaves in (schema.counted, schema.bounded)
    )
    stats = stats_columns(texts, counted, bounded=bounded, widen=True)
    columns = {"numRecords": stats.num_records, "tightBounds": stats.tight_bounds}
    if bounded:
        columns["minValues"] = nested(stats.lows, stats.no_lows)
        columns["maxValues"] = nested(stats.highs, stats.no_highs)
    if counted:
        columns["nullCount"] = nested(stats.nulls, stats.no_nulls)
    kind = schema.stats_parsed
    return pa.StructArray.from_arrays([columns[f.name] for f in kind], fields=list(kind), mask=stats.absent)


def _parsed_partitions(texts: pa.StringArray, schema: CheckpointSchema) -> pa.StructArray:
    """``partitionValues_parsed`` of files; ProtocolError if a value does not fit its column's type."""
    encoded = texts.dictionary_encode()
    values = [decode_json(text) for text in encoded.dictionary.to_pylist()]
    columns, kind = [], schema.partitions_parsed
    for field, target in zip(schema.partitions, kind, strict=True):
        name = field.type if isinstance(field.type, PrimitiveType) else PrimitiveType("string")
        column = [partition.parse(row.get(field.physical_name), name) for row in values]
        columns.append(pa.array(column, target.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind)).take(encoded.indices)


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    return _cast(batch[name], kind) if name in batch.schema.names else pa.nulls(batch.num_rows, kind)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
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


def _pairs(value: dict[str, Any]) -> dict[str, Any]:
    """Maps as the pairs that Arrow wants; structs stay dicts."""
    out = dict(value)
    for key, item in value.items():
        if isinstance(item, dict):
            out[key] = list(item.items()) if key in _MAPS else _pairs(item)
    return out
