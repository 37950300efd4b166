"""What a batch of an import has read, kept with its receipt, to compare it with what the catalog holds."""

from __future__ import annotations

import zlib
from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.metastore.files import digests
from deltalakedb.protocol.arrow_values import int_values, text_scalar
from deltalakedb.protocol.digest import SEPARATOR, FileDigest
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.protocol.packs import decode_block

if TYPE_CHECKING:
    from deltalakedb.metastore.files import FileBatch

#: files whose fields are hashed at once
_TOGETHER = 8_192


class BatchProof:
    """The digest of a batch's files, and their sums by ranges of sequence numbers.

    It is made before the files are written, so it holds whatever happens to them later.
    """

    def __init__(self) -> None:
        self.digest = FileDigest()
        self.ranges: list[tuple[int, digests.RowSums]] = []
        self._is_whole = True

    def add(self, begin: int, batch: FileBatch) -> None:
        """Take in files, the first of which gets the sequence number ``begin``."""
        if not batch.num_files:
            return
        self.ranges.append((begin, digests.sums_of(batch)))
        at = 0
        for data in (data for pack in batch.packs for _, data in sorted(pack.blocks.items())):
            block = decode_block(data)
            self._is_whole &= block.equals(batch.stats[at : at + len(block)])
            at += len(block)
        self._is_whole &= at in (0, batch.num_files)
        columns, hashes = batch.columns, batch.path_hashes().astype(np.int64)
        names = ("path", "dv_id", "size", "modification_time", "partition_values")
        stats = pc.fill_null(batch.stats, text_scalar("")) if batch.stats.null_count else batch.stats
        fields = [*(columns[name].cast(pa.string()) for name in names), stats]
        sizes = int_values(columns["size"])
        for at in range(0, len(sizes), _TOGETHER):  # few at a time: all fields are copied twice
            part = slice(at, at + _TOGETHER)
            texts = pc.binary_join_element_wise(*(f[part] for f in fields), text_scalar(SEPARATOR))
            self.digest.add_texts(hashes[part], sizes[part], texts.cast(pa.binary()).to_pylist())

    def to_bytes(self) -> bytes | None:
        """The proof for a receipt; None if a block of statistics does not decode to what was read."""
        if not self._is_whole:
            return None
        ranges = [[begin, *astuple(sums)] for begin, sums in self.ranges]
        return zlib.compress(encode_json(ranges).encode() + b"\n" + self.digest.to_bytes(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> BatchProof:
        ranges, _, digest = zlib.decompress(data).partition(b"\n")
        made = cls()
        made.digest = FileDigest.from_bytes(digest)
        made.ranges = [(begin, digests.RowSums(*sums)) for begin, *sums in decode_json(ranges)]
        return made
