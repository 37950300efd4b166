"""What a checkpoint holds, as tables of its schema: live files column by column, the rest row by row."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.delta_log.checkpoint_schema import DELETION_VECTOR, REMOVE, STRING_MAP
from deltalakedb.delta_log.checkpoint_stats import parsed_partitions, parsed_stats
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.protocol.actions import Action, DomainMetadata, Metadata, Protocol, Txn, action_to_dict
from deltalakedb.protocol.codec import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from deltalakedb.delta_log.checkpoint_schema import CheckpointSchema
    from deltalakedb.protocol.actions import Remove

#: rows that are written together: what memory has to hold
GROUP_ROWS = 20_000
GROUP_BYTES = 32 << 20
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
            ``default_row_commit_version``, ``clustering_provider``. Other columns are ignored: fields that
            nobody knows have no place in a checkpoint's schema.
        tombstones: Removed files whose retention has not ended.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    files: Iterable[pa.RecordBatch]
    tombstones: Iterable[Remove] = ()
    txns: Sequence[Txn] = ()
    domains: Sequence[DomainMetadata] = ()


def state_rows(content: CheckpointContent, schema: pa.Schema, *, more: Iterable[Action] = ()) -> pa.Table:
    """Everything that is no file, as rows of a checkpoint."""
    live = [domain for domain in content.domains if not domain.removed]
    rows = []
    for action in (content.protocol, content.metadata, *content.txns, *live, *more):
        ((kind, value),) = action_to_dict(action).items()
        if isinstance(action, Protocol):
            value = _complete(action, value)
        rows.append({kind: _pairs(value)})
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def add_rows(files: Iterable[pa.RecordBatch], schema: CheckpointSchema) -> Iterator[pa.StructArray]:
    """The live files as add structs, in groups that are worth a row group."""
    for batch in _grouped(files):
        yield _adds(batch, schema)


def remove_rows(tombstones: Iterable[Remove]) -> Iterator[pa.StructArray]:
    """Tombstones as remove structs, in groups."""
    found = iter(tombstones)
    while group := list(islice(found, GROUP_ROWS)):
        columns: dict[str, Any] = {
            "path": [r.path for r in group],
            "deletionTimestamp": [r.deletion_timestamp for r in group],
            "dataChange": [False] * len(group),
            "extendedFileMetadata": [r.extended_file_metadata for r in group],
            "partitionValues": [
                None if r.partition_values is None else list(r.partition_values.items()) for r in group
            ],
            "size": [r.size for r in group],
            "deletionVector": [
                None if r.deletion_vector is None else r.deletion_vector.to_dict() for r in group
            ],
            "baseRowId": [r.base_row_id for r in group],
            "defaultRowCommitVersion": [r.default_row_commit_version for r in group],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in REMOVE]
        yield pa.StructArray.from_arrays(arrays, fields=list(REMOVE))


def table_of(kind: str, rows: pa.StructArray, schema: pa.Schema) -> pa.Table:
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
        columns["partitionValues_parsed"] = parsed_partitions(partitions, schema)
    if schema.as_struct:
        columns["stats_parsed"] = parsed_stats(stats, schema)
    return pa.StructArray.from_arrays([columns[f.name] for f in schema.add], fields=list(schema.add))


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


def _complete(protocol: Protocol, value: dict[str, Any]) -> dict[str, Any]:
    """Lists of features where the versions ask for them, even if a commit left them out."""
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
