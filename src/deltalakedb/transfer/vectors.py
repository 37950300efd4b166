"""Rows of a checkpoint as columns, for the files that have nothing unusual about them: no object per file."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.catalog.file_rows import path_hashes
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.paths import canonical_path

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from deltalakedb.protocol.replay import FileKey

#: path hash, path, dv id, size, modification time, partition values, stats
HashedRows: TypeAlias = "list[tuple[int, str, str, int, int, str, str]]"

#: an add with one of these is left to the general way
_UNUSUAL = ("deletionVector", "stats_parsed")
_NEEDED = ("path", "size", "modificationTime", "partitionValues")
#: all that a row made of columns holds
_PLAIN = frozenset({*_NEEDED, "dataChange", "stats"})


def hashed_rows(batch: pa.RecordBatch, touched: Collection[FileKey]) -> HashedRows | None:
    """The files of a batch that are not touched, as a digest wants them; None where one is unusual."""
    adds = usual_adds(batch)
    if adds is None:
        return None
    if not len(adds):
        return []
    paths = adds.field("path").to_pylist()
    texts = zip(
        path_hashes(paths),
        paths,
        repeat(""),
        adds.field("size").to_pylist(),
        adds.field("modificationTime").to_pylist(),
        partition_json(adds.field("partitionValues")),
        pc.fill_null(adds.field("stats"), "").to_pylist() if _has(adds, "stats") else repeat(""),
        strict=False,
    )
    if not touched:
        return list(texts)
    joined = "\n".join(paths)
    if "%" in joined or "file:" in joined.lower():
        return [row for row in texts if (canonical_path(row[1]), "") not in touched]
    return [row for row in texts if (row[1], "") not in touched]


def _has(adds: pa.StructArray, name: str) -> bool:
    return int(adds.type.get_field_index(name)) >= 0


def usual_adds(batch: pa.RecordBatch) -> pa.StructArray | None:
    """The adds of a batch as one struct array; None where one has a field that needs the general way."""
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
    for name in _NEEDED:
        if adds.field(name).null_count:
            return None
    for name in names & set(_UNUSUAL):
        # a struct of nulls is how some writers spell an absent one: the general way knows
        if adds.field(name).null_count < len(adds):
            return None
    values = adds.field("partitionValues")
    return adds if pa.types.is_map(values.type) and pa.types.is_string(values.type.key_type) else None


def partition_json(values: pa.MapArray) -> list[str]:
    """The partition values of files as JSON; files share few combinations, so each is spelled once."""
    keys, items, offsets = values.keys, values.items, values.offsets.to_pylist()
    width = offsets[1] - offsets[0] if len(offsets) > 1 else 0
    regular = all(b - a == width for a, b in pairwise(offsets))
    names, texts = keys.to_pylist(), items.to_pylist()
    known: dict[tuple[str | None, ...], str] = {}
    out = []
    start = offsets[0]
    if regular and width and names[start : start + width] * len(values) == names[start : offsets[-1]]:
        head = names[start : start + width]
        for at in range(start, offsets[-1], width):
            some = tuple(texts[at : at + width])
            if (found := known.get(some)) is None:
                found = known[some] = encode_json(dict(zip(head, some, strict=True)))
            out.append(found)
        return out
    for a, b in pairwise(offsets):
        out.append(encode_json(dict(zip(names[a:b], texts[a:b], strict=True))))
    return out


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Files of a checkpoint as columns.

    Attributes:
        paths: Their paths, as the log spells them.
        sizes: Their bytes.
        times: When they were modified.
        data_changes: What the checkpoint says of that.
        stats: Their statistics' JSON.
        values: Their partition values as JSON.
        partitions: The same by physical name of the column.
    """

    paths: pa.Array
    sizes: pa.Array
    times: pa.Array
    data_changes: pa.Array
    stats: pa.Array
    values: list[str]
    partitions: Mapping[str, pa.Array]


def plain_files(batch: pa.RecordBatch) -> PlainFiles | None:
    """The adds of a batch as columns; None where one holds more than these, or there are none."""
    adds = usual_adds(batch)
    if adds is None or not len(adds):
        return None
    for field in adds.type:
        if field.name not in _PLAIN and adds.field(field.name).null_count < len(adds):
            return None
    values = adds.field("partitionValues")
    parts = _partitions(values)
    if parts is None:
        return None
    changes = pa.repeat(pa.scalar(True), len(adds))
    if adds.type.get_field_index("dataChange") >= 0:
        changes = pc.fill_null(adds.field("dataChange"), True)
    has_stats = adds.type.get_field_index("stats") >= 0
    stats = adds.field("stats").cast(pa.string()) if has_stats else pa.nulls(len(adds), pa.string())
    return PlainFiles(
        adds.field("path").cast(pa.string()),
        adds.field("size").cast(pa.int64()),
        adds.field("modificationTime").cast(pa.int64()),
        changes,
        stats,
        partition_json(values),
        parts,
    )


def _partitions(values: pa.MapArray) -> Mapping[str, pa.Array] | None:
    """Partition values by name, where all files name the same columns in the same order."""
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
