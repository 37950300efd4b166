"""Deletion vectors: their files, and the row indexes in their 64-bit roaring bitmaps."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyroaring import BitMap, BitMap64

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.actions import DeletionVector
from deltalakedb.protocol.paths import TablePaths, canonical_path

if TYPE_CHECKING:
    from collections.abc import Iterable


_PORTABLE: Final = struct.pack("<i", 1681511377)
#: an older layout, seen in the protocol's own example: big-endian, one bitmap per high half
_NATIVE: Final = struct.pack(">i", 1681511376)
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGIT: Final = {char: value for value, char in enumerate(_Z85)}
_UUID_TEXT: Final = 20  # sixteen bytes in Z85
_RESTORE: Final = "restore the deletion vector's file from a copy: without it deleted rows would come back"


def dv_path(dv: DeletionVector) -> str | None:
    """The vector's file: relative to the table's root, or absolute; None for an inline vector."""
    if dv.storage_type == "i":
        return None
    if dv.storage_type == "p":
        return canonical_path(dv.path_or_inline_dv)
    if dv.storage_type != "u":
        raise ProtocolError(f"a deletion vector has the unknown storage type {dv.storage_type!r}")
    text = dv.path_or_inline_dv
    if len(text) < _UUID_TEXT:
        raise ProtocolError(f"the deletion vector {text!r} does not hold a UUID")
    prefix, name = text[:-_UUID_TEXT], UUID(bytes=z85_decode(text[-_UUID_TEXT:]))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def resolve_dv(paths: TablePaths, dv: DeletionVector) -> str | None:
    """The absolute path or URL of the vector's file, which raises as `TablePaths.resolve`; None if inline."""
    if dv.storage_type == "p":
        return paths.resolve(dv.path_or_inline_dv)
    if (path := dv_path(dv)) is None:
        return None
    # the prefix is plain text, but some readers decode it all the same
    paths.resolve(path)
    return paths.resolve(path.replace("%", "%25"))


def block_range(dv: DeletionVector) -> tuple[int, int]:
    """Start and length of the vector in its file, for a ranged read; hand the bytes to `decode_block`."""
    return dv.offset if dv.offset is not None else 1, dv.size_in_bytes + 8


def decode_inline(dv: DeletionVector) -> BitMap64:
    """The deleted row indexes of an inline vector; LogCorruptError if they contradict the descriptor."""
    try:
        data = z85_decode(dv.path_or_inline_dv)
    except ProtocolError as e:
        raise _corrupt(dv, e.message) from e
    if len(data) < dv.size_in_bytes:
        raise _corrupt(dv, f"it has {len(data)} bytes instead of {dv.size_in_bytes}")
    return _bitmap(dv, data[: dv.size_in_bytes])


def decode_block(dv: DeletionVector, block: bytes) -> BitMap64:
    """The deleted row indexes in a vector's part of a file: size, bitmap, checksum; LogCorruptError."""
    size = dv.size_in_bytes
    if len(block) != size + 8:
        raise _corrupt(dv, f"it has {len(block)} bytes instead of {size + 8}")
    if int.from_bytes(block[:4], "big") != size:
        raise _corrupt(dv, "its size differs from the log's")
    data = block[4:-4]
    if zlib.crc32(data) != int.from_bytes(block[-4:], "big"):
        raise _corrupt(dv, "its checksum is wrong")
    return _bitmap(dv, data)


def inline_dv(rows: Iterable[int]) -> DeletionVector:
    """A descriptor that carries its row indexes itself: right for few rows."""
    bitmap = BitMap64(rows)
    data = _PORTABLE + bytes(bitmap.serialize())
    text = z85_encode(data + bytes(-len(data) % 4))
    return DeletionVector(
        storage_type="i", path_or_inline_dv=text, size_in_bytes=len(data), cardinality=len(bitmap)
    )


def z85_decode(text: str) -> bytes:
    """The bytes of a Z85 text; ProtocolError if it is not valid."""
    if len(text) % 5:
        raise ProtocolError(f"a Z85 text of {len(text)} characters is cut off")
    try:
        digits = [_DIGIT[char] for char in text]
        groups = (digits[at : at + 5] for at in range(0, len(digits), 5))
        return b"".join(
            ((((a * 85 + b) * 85 + c) * 85 + d) * 85 + e).to_bytes(4, "big") for a, b, c, d, e in groups
        )
    except (KeyError, OverflowError) as e:
        raise ProtocolError(f"{text[:40]!r} is not Z85") from e


def z85_encode(data: bytes) -> str:
    """The Z85 text of bytes, whose number must be a multiple of four."""
    if len(data) % 4:
        raise ProtocolError(f"Z85 takes groups of four bytes, not {len(data)}")
    words = (word for (word,) in struct.iter_unpack(">I", data))
    return "".join(_Z85[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))


def _bitmap(dv: DeletionVector, data: bytes) -> BitMap64:
    magic, body = data[:4], data[4:]
    if magic not in (_PORTABLE, _NATIVE):
        raise _corrupt(dv, "its bitmap has an unknown format")
    try:
        bitmap = BitMap64.deserialize(body) if magic == _PORTABLE else _native(body)
    except (IndexError, ValueError, RuntimeError, MemoryError, struct.error) as e:
        raise _corrupt(dv, "its bitmap is damaged") from e
    if len(bitmap) != dv.cardinality:
        raise _corrupt(dv, f"it holds {len(bitmap)} rows instead of {dv.cardinality}")
    return bitmap


def _native(body: bytes) -> BitMap64:
    (count,) = struct.unpack_from(">i", body)
    bitmap, at = BitMap64(), 4
    for high in range(count):
        (size,) = struct.unpack_from(">i", body, at)
        if size <= 0:
            raise ValueError("a bitmap without bytes")
        part = BitMap.deserialize(body[at + 4 : at + 4 + size])
        bitmap.update([high << 32 | low for low in part])
        at += 4 + size
    return bitmap


def _corrupt(dv: DeletionVector, what: str) -> LogCorruptError:
    return LogCorruptError(f"the deletion vector {dv.unique_id[:80]} is damaged: {what}", suggestion=_RESTORE)
