"""Deletion vectors in files, as delta-spark writes them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from deltalakedb.protocol.dv import block_range, decode_block, decode_inline, inline_dv, z85_decode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyroaring import BitMap64

    from deltalakedb.protocol.actions import DeletionVector


def encode_file(vectors: Iterable[Iterable[int]]) -> tuple[bytes, list[tuple[int, int, int]]]:
    """A vector file, and for each vector its offset, size in bytes and cardinality."""
    out, places = bytearray([1]), []
    for rows in vectors:
        dv = inline_dv(rows)
        data = z85_decode(dv.path_or_inline_dv)[: dv.size_in_bytes]
        places.append((len(out), len(data), dv.cardinality))
        out += len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    return bytes(out), places


def decode_dv(dv: DeletionVector, file: bytes | None = None) -> BitMap64:
    """The deleted row indexes of a vector, inline or in the bytes of its file."""
    if file is None:
        return decode_inline(dv)
    start, length = block_range(dv)
    return decode_block(dv, file[start : start + length])
