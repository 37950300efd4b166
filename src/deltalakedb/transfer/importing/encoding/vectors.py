"""Rows of a checkpoint as columns, for the files that have nothing unusual about them: no object per file."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.metastore.files import path_hash, plain_path_hashes
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.digest import BUCKETS, SEPARATOR
from deltalakedb.protocol.paths import canonical_path

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from deltalakedb.protocol.actions import FileKey
    from deltalakedb.protocol.digest import FileDigest, Numbers
    from deltalakedb.protocol.paths import TablePaths

#: an add with one of these is left to the general way
_UNUSUAL = ("deletionVector", "stats_parsed")
_NEEDED = ("path", "size", "modificationTime", "partitionValues")
#: all that a row made of columns holds
_PLAIN = frozenset({*_NEEDED, "dataChange", "stats"})


@dataclass(frozen=True, slots=True)
class HashedFiles:
    """Files as a digest wants them: the hashes of their paths, their sizes, and one text for each."""

    hashes: Numbers
    sizes: Numbers
    texts: pa.Array

    def add_to(self, digest: FileDigest, wanted: frozenset[int] | None) -> None:
        """Add them to a digest; those of some buckets only, if given."""
        hashes, sizes, texts = self.hashes, self.sizes, self.texts
        if wanted is not None:
            here = np.isin(hashes & (BUCKETS - 1), np.array(sorted(wanted)))
            hashes, sizes, texts = hashes[here], sizes[here], texts.filter(pa.array(here))
        digest.add_texts(hashes, sizes, texts.to_pylist())


def hashed_files(batch: pa.RecordBatch, touched: Collection[FileKey]) -> HashedFiles | None:
    """The files of a batch that are not touched, as a digest wants them; None if one is unusual."""
    adds = usual_adds(batch)
    if adds is None:
        return None
    if not len(adds):
        none = np.zeros(0, np.int64)
        return HashedFiles(none, none, pa.array([], pa.binary()))
    paths = adds.field("path").to_pylist()
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
    if not touched:
        return HashedFiles(hashes, sizes, texts)
    joined = "\n".join(paths)
    if "%" in joined or "file:" in joined.lower():
        paths = [canonical_path(path) for path in paths]
    kept = np.array([(path, "") not in touched for path in paths], bool)
    return HashedFiles(hashes[kept], sizes[kept], texts.filter(pa.array(kept)))


def hashes_of(paths: pa.Array) -> Numbers:
    """The hashes of many paths; one check over all says whether any has to be decoded first."""
    if may_be_spelled_otherwise(paths):
        return np.array([path_hash(path) for path in paths.to_pylist()], np.int64)
    return plain_path_hashes(paths.cast(pa.binary()).to_pylist())


def check_paths(paths: pa.Array, allowed: TablePaths) -> None:
    """Check that paths may be those of data files; one check over all says whether each must be looked at.

    Raises:
        OutsidePathError: One leads outside of the table's root, and the settings do not allow that.
        ProtocolError: One is not.
    """
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
    for name in _NEEDED:
        if adds.field(name).null_count:
            return None
    for name in names & set(_UNUSUAL):
        # a struct of nulls is how some writers spell an absent one: the general way knows
        if adds.field(name).null_count < len(adds):
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
    values: pa.Array
    partitions: Mapping[str, pa.Array]


def plain_files(batch: pa.RecordBatch) -> PlainFiles | None:
    """The adds of a batch as columns; None if one holds more than these, or there are none."""
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
