"""Packs: statistics and partition values of up to 16,384 files as columns, which `pack_filter` compares.

A pack column is one blob: a header, whole-byte numbers ``u`` with ``image = base + scale * u``, bitmaps of
the files without a value, and a tail with the texts that the numbers do not hold. Images are integers in the
order of the values.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from copy import copy
from datetime import date
from enum import IntEnum
from functools import cached_property, lru_cache
from posixpath import commonprefix
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol import partition
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.bounds import encoding_of, open_end
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.paths import path_hash
from deltalakedb.protocol.schema import INTEGERS, DataType, PrimitiveType, StructType
from deltalakedb.protocol.stats_columns import stats_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Path

PACK_SIZE: Final = 16_384

Numbers: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

# ---- the format ----

_VERSION: Final = 1
#: version, form, width of u, flags, exponent, lengths of the type's name and of the prefix, count, size of u,
#: base, scale
_HEADER: Final = struct.Struct("<BBBBBBHIIqQ")
_BLOCK: Final = struct.Struct("<BxxxIII")


class Form(IntEnum):
    """What the images of a column are."""

    NOTHING = 0  #: no file has a value
    INTS = 1
    FRACTIONS = 2  #: floats as decimal fractions with the same number of digits
    BITS = 3  #: floats by their bits
    TEXTS = 4  #: the eight bytes of texts behind their common prefix
    LIST = 5  #: places in a sorted list of texts
    OPAQUE = 6  #: none: values are not compared


#: flags
_UNUSABLE: Final = 1  # not to be pruned by
_SHUFFLED: Final = 2  # u is compressed, byte planes apart
_MISSING_ALL: Final = 4
_MISSING_SOME: Final = 8  # a bitmap follows
_EMPTY_ALL: Final = 16  # every file without a value holds only nulls
_EMPTY_SOME: Final = 32  # a bitmap follows
_WHOLE: Final = 64  # the numbers hold all of each text; else the tail has the texts

_TYPES: Final = {0: np.uint8, 1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGN: Final = np.uint64(1 << 63)
_MASK63: Final = np.int64(2**63 - 1)
_EXPONENTS: Final = (0, 1, 2, 3, 4, 6)
_SAMPLE: Final = 64
#: a text of so many bytes or more may have been cut, and its last five bytes may be a writer's addition
_CUT: Final = 29
_KEPT: Final = 24
_MAX_PREFIX: Final = 1024
_MAX_LIST: Final = 256
_MOST: Final = sys.float_info.max
_SAVING: Final = 0.6
_SHORT: Final = 1024
#: characters of partition values that are parsed once
_CACHED_TEXT: Final = 512
_DIGITS: Final = 18
#: of these, writers round neither minima nor maxima
_EXACT: Final = frozenset({"int", "date", "decimal"})
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY: Final = 86_400_000_000
#: what Python's dates and times can be; before the second year, widening would leave the calendar
_CALENDAR: Final = {
    pa.date32().id: (1 - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY),
    pa.timestamp("us").id: (
        (date(2, 1, 1).toordinal() - _EPOCH_DAY) * _DAY,
        (date.max.toordinal() + 1 - _EPOCH_DAY) * _DAY - 1,
    ),
}
#: the last bits of a zone name its domain, so that another type's zone proves nothing
TAG_BITS: Final = 6
_DOMAINS: Final = (
    *("int", "float", "date", "timestamp", "timestamp_ntz", "string", "binary", "boolean"),
    *(f"decimal {scale}" for scale in range(39)),
)
_COUNT: Final = "count"
_HASH: Final = "hash"

_lz4: Final = pa.Codec("lz4_raw")
_zstd: Final = pa.Codec("zstd", compression_level=1)


class PackColumn(NamedTuple):
    """One column of a pack.

    Attributes:
        name: ``rows``, ``path``, ``leaves``, or a JSON list such as ``["low","a","b"]`` of a kind and a
            physical path.
        low: The image of its least value; None if a value is missing, so that the zone proves nothing.
        high: The image of its greatest value.
        data: The values.
    """

    name: str
    low: int | None
    high: int | None
    data: bytes


@lru_cache(maxsize=4096)
def column_name(kind: str, path: Path) -> str:
    return json.dumps([kind, *path], separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=1024)
def domain_of(name: str) -> str | None:
    """Types of one domain have values that compare as they are stored; None for types without a domain."""
    if name in INTEGERS:
        return "int"
    if name in ("float", "double"):
        return "float"
    if (decimal := PrimitiveType(name).decimal) is not None:
        name = f"decimal {decimal[1]}" if decimal[0] <= _DIGITS else ""
    return name if name in _DOMAINS else None


def tag_of(domain: str) -> int:
    return _DOMAINS.index(domain)


# ---- images ----


def _float_images(values: Numbers) -> Numbers:
    """Doubles as integers of the same order; -0.0 comes before 0.0, and bits are kept."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    return np.where(bits < 0, bits ^ _MASK63, bits)


def float_image(value: float) -> int:
    return int(_float_images(np.array([value]))[0])


def text_image(text: bytes) -> int:
    return int.from_bytes(text[:8].ljust(8, b"\0"), "big") - (1 << 63)


def zone_image(value: Any) -> int:
    """The image of a value without the bits that name its domain; images of one domain keep the order."""
    if isinstance(value, bytes):
        return text_image(value) >> TAG_BITS
    return float_image(float(min(max(value, -_MOST), _MOST)) or 0.0) >> TAG_BITS


# ---- encoding ----


class _Values(NamedTuple):
    """What an array of values became: signed integers, and how to read them."""

    form: int
    numbers: Numbers  # int64; any number if the value is missing
    exponent: int = 0
    prefix: bytes = b""
    flags: int = 0
    tail: bytes = b""
    least: Any = None  # for the zone
    most: Any = None


def pack_columns(
    paths: pa.Array, stats: pa.Array, partition_values: pa.Array, schema: StructType, metadata: Metadata
) -> list[PackColumn]:
    """The columns of a pack of files.

    Args:
        paths: The paths as in the log.
        stats: The JSON of the statistics; null for a file without them.
        partition_values: JSON objects of texts by physical name.
        schema: The table's schema.
        metadata: The table's metadata, for the partition columns.

    Returns:
        Path hashes, a block ``leaves`` with types and paths of the leaf columns, and the columns for which a
        file states something: row counts, bounds and null counts of leaf columns, and partition values. A
        column that holds only nulls in some file has bounds that say so.
    """
    paths, stats, partition_values = (_plain(a) for a in (paths, stats, partition_values))
    fields = [f for c in metadata.partition_columns if (f := schema.field(c)) is not None]
    parts = {f.physical_name: f.type for f in fields}
    leaves = [x for x in schema.leaves() if len(x.physical_path) > 1 or x.physical_path[0] not in parts]
    parsed = stats_columns(stats, leaves)
    values, others = _partition_arrays(partition_values, parts)
    known = encode_block([column_name(str(x.type), x.physical_path) for x in leaves])
    found = [_count_column("rows", parsed.num_records), _hash_column(paths)]
    found.append(PackColumn("leaves", None, None, known))
    rows, counted = _int64(parsed.num_records), _valid(parsed.num_records)
    for leaf in leaves:
        at, nulls = leaf.physical_path, parsed.nulls[leaf.path]
        usable = len(at) > 1 or at[0] not in others  # else some files have it as a partition value
        counts = nulls.null_count < len(nulls)
        if encoding_of(leaf.type) is not None:
            kind = cast(PrimitiveType, leaf.type)
            low, high = parsed.lows.get(leaf.path), parsed.highs.get(leaf.path)
            empty = _valid(nulls) & counted & (_int64(nulls) >= rows) if counts and usable else None
            found += _bound_columns(at, kind, low, high, empty, parsed.left_out.get(leaf.path), usable)
        if counts:
            found.append(_count_column(column_name("nulls", at), nulls, usable=usable))
    for name, (array, null) in values.items():
        part_type = parts[name]
        if isinstance(part_type, PrimitiveType) and (array.null_count < len(array) or null.any()):
            found.append(
                _value_column(column_name("part", (name,)), part_type, array, null, usable=True, side=0)
            )
    return [column for column in found if column is not None]


def _plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Texts as one array of strings."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
    return array if array.type == pa.string() else array.cast(pa.string())


def _valid(array: pa.Array) -> Mask:
    if not array.null_count:
        return np.ones(len(array), bool)
    return cast(Mask, array.is_valid().to_numpy(zero_copy_only=False))


def _int64(array: pa.Array) -> Numbers:
    filled = array.fill_null(0) if array.null_count else array
    return cast(Numbers, filled.to_numpy(zero_copy_only=False))


def _count_column(name: str, counts: pa.Array, *, usable: bool = True) -> PackColumn | None:
    if counts.null_count == len(counts):
        return None
    valid, numbers = _valid(counts), _int64(counts)
    known = numbers[valid]
    least, most = int(known.min()), int(known.max())
    values = _Values(Form.INTS, numbers, flags=0 if usable else _UNUSABLE)
    data = _blob(_COUNT, values, ~valid, None, len(counts))
    if not usable or not valid.all():
        return PackColumn(name, None, None, data)
    return PackColumn(name, least, most, data)


def _hash_column(paths: pa.Array) -> PackColumn:
    hashes = path_hashes(paths)
    head = _HEADER.pack(_VERSION, Form.INTS, 4, 0, 0, len(_HASH), 0, len(hashes), 4 * len(hashes), 0, 1)
    data = _padded(head + _HASH.encode()) + hashes.astype("<u4").tobytes()
    return PackColumn("path", int(hashes.min()), int(hashes.max()), data)


def _bound_columns(
    path: Path,
    kind: PrimitiveType,
    low: pa.Array | None,
    high: pa.Array | None,
    empty: Mask | None,
    left_out: pa.Array | None,
    usable: bool,
) -> list[PackColumn]:
    """The minima and maxima of one leaf; ``empty`` marks files with as many nulls as rows."""
    for array in (low, high):
        if empty is not None and array is not None:
            empty = empty & ~_valid(array)
    if empty is not None and left_out is not None:
        empty = empty & ~left_out.to_numpy(zero_copy_only=False)
    if empty is not None and not empty.any():
        empty = None
    if low is None or high is None:
        if empty is None:
            return []
        low = high = pa.nulls(len(empty), arrow_type(kind) or pa.string())
    if encoding_of(kind) in _EXACT and pc.any(pc.greater(low, high)).as_py():
        usable = False  # a minimum above its maximum: the writer has another order
    return [
        _value_column(column_name(name, path), kind, array, empty, usable=usable, side=side)
        for name, array, side in (("low", low, -1), ("high", high, 1))
        if array.null_count < len(array) or empty is not None or left_out is not None
    ]


def _value_column(
    name: str, kind: PrimitiveType, array: pa.Array, empty: Mask | None, *, usable: bool, side: int
) -> PackColumn:
    """A column of values; ``side`` is -1 for minima, 1 for maxima, 0 for the values themselves."""
    missing = ~_valid(array)
    values = _Values(Form.NOTHING, missing) if missing.all() else _values(array, missing, side)
    domain = domain_of(kind.name)
    if not usable or domain is None:
        values = values._replace(flags=values.flags | _UNUSABLE)
    low = high = None
    neutral = missing if empty is None else missing & ~empty
    if not values.flags & _UNUSABLE and domain is not None and not neutral.any():
        tag = tag_of(domain)
        if values.form == Form.NOTHING:  # no comparison is true: limits that nothing reaches
            low, high = (2**63 - 1) >> TAG_BITS, -(2**63) >> TAG_BITS
        else:
            low, high = zone_image(values.least), zone_image(values.most)
        low, high = ((image << TAG_BITS) | tag for image in (low, high))
    return PackColumn(name, low, high, _blob(kind.name, values, missing, empty, len(array)))


def _values(array: pa.Array, missing: Mask, side: int) -> _Values:
    """An array of values, not all of them missing, as integers."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    storage = array.type
    if pa.types.is_floating(storage):
        return _floats(array, missing, side)
    if pa.types.is_string(storage) or pa.types.is_binary(storage):
        return _texts(array.cast(pa.binary()), missing, side)
    if pa.types.is_decimal(storage):
        if storage.precision > _DIGITS:
            tail = _texts_blob(array.view(pa.binary(16)).cast(pa.binary()))
            return _Values(Form.OPAQUE, np.zeros(0, np.int64), flags=_UNUSABLE, tail=tail)
        numbers = _low_words(array)
    else:
        array = array.cast(pa.int32()) if pa.types.is_date(storage) else array
        numbers = _int64(array.cast(pa.int64()))
    known = numbers[~missing]
    least, most = int(known.min()), int(known.max())
    first, last = _CALENDAR.get(storage.id, (least, most))
    flags = 0 if first <= least <= most <= last else _UNUSABLE
    return _Values(Form.INTS, numbers, flags=flags, least=least, most=most)


def _low_words(array: pa.Array) -> Numbers:
    """The unscaled integers of decimals that fit 64 bits."""
    words = np.frombuffer(array.buffers()[1], "<i8", 2 * (array.offset + len(array)))
    return words[2 * array.offset :: 2]


def _floats(array: pa.Array, missing: Mask, side: int) -> _Values:
    single = pa.types.is_float32(array.type)
    numbers = array.fill_null(0.0).to_numpy(zero_copy_only=False)
    exact = numbers[~missing]
    least, most = float(exact.min()), float(exact.max())
    flags = 0
    if least != least or (side < 0 and most == math.inf) or (side > 0 and least == -math.inf):
        flags = _UNUSABLE  # NaN, or a number beyond all doubles, which is no bound
    exponent = _exponent(exact, single)
    if exponent is None:
        return _Values(Form.BITS, _float_images(numbers), flags=flags, least=least, most=most)
    scaled = np.rint(numbers.astype(np.float64) * 10.0**exponent).astype(np.int64)
    return _Values(Form.FRACTIONS, scaled, exponent=exponent, flags=flags, least=least, most=most)


def _exponent(values: Numbers, single: bool) -> int | None:
    """The least number of decimal places that all the values have, exactly; None for more than a few."""
    limit = float(2**23 if single else 2**53)
    for exponent in _EXPONENTS:
        power = 10.0**exponent
        for some in (values[:_SAMPLE], values):
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = np.rint(some.astype(np.float64) * power)
                again = (scaled.astype(np.int64) / power).astype(some.dtype)
                # bits are compared: -0.0 is not 0.0 here
                fine = bool(np.all(np.abs(scaled) < limit)) and again.tobytes() == some.tobytes()
            if not fine:
                break
        else:
            return exponent
    return None


def _texts(array: pa.Array, missing: Mask, side: int) -> _Values:
    """Texts as bytes: by places in a short sorted list, or by the eight bytes after their common prefix."""
    some = array.slice(0, 4 * _SAMPLE)
    if len(pc.unique(some)) <= max(2 * _SAMPLE, 1) and (listed := _listed(array, side)) is not None:
        return listed
    bounds, full = array, False
    least, most, prefix = _ends(array)
    if side > 0 and pc.max(pc.binary_length(array)).as_py() >= _CUT:
        if len(prefix) + 8 > _KEPT:
            texts = [None if t is None else open_end(t, "string") for t in array.to_pylist()]
            bounds, full = pa.array(texts, pa.binary()), True
            least, most, prefix = _ends(bounds)
        else:
            most = open_end(most, "string")
    if missing.any():
        bounds = bounds.fill_null(least)
    images, rests = _text_images(bounds, len(prefix))
    if not full:
        # without trailing NULs, the length of a short text can be seen from its image
        full = bool(rests.max() > 8 or pc.any(pc.ends_with(bounds, "\0")).as_py())
    tail, flags = (_texts_blob(array), 0) if full else (b"", _WHOLE)
    return _Values(Form.TEXTS, images, prefix=prefix, flags=flags, tail=tail, least=least, most=most)


def _listed(array: pa.Array, side: int) -> _Values | None:
    coded = array.dictionary_encode()
    texts = coded.dictionary.to_pylist()
    if len(texts) > _MAX_LIST or (side > 0 and max(map(len, texts)) >= _CUT):
        return None
    order = sorted(range(len(texts)), key=texts.__getitem__)
    ranks = np.empty(len(texts), np.int64)
    ranks[order] = np.arange(len(texts))
    listed = [texts[n] for n in order]
    numbers = ranks[_int64(coded.indices)]
    tail = _texts_blob(pa.array(listed, pa.binary()))
    return _Values(Form.LIST, numbers, tail=tail, least=listed[0], most=listed[-1])


def _ends(array: pa.Array) -> tuple[bytes, bytes, bytes]:
    """The least and the greatest text, and the prefix that all have."""
    found = pc.min_max(array).as_py()
    least, most = found["min"], found["max"]
    return least, most, cast(bytes, commonprefix([least, most]))[:_MAX_PREFIX]


def _text_images(array: pa.Array, skipped: int) -> tuple[Numbers, Numbers]:
    """The images of texts without nulls behind a prefix, and how many bytes each has there."""
    offsets, data = _text_buffers(array)
    rests = np.diff(offsets) - skipped
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = data
    heads = np.lib.stride_tricks.sliding_window_view(padded, 8)[offsets[:-1] + skipped]
    images = heads.view(">u8").reshape(-1).astype(np.uint64)
    surplus = (8 * (8 - np.minimum(rests, 8))).astype(np.uint64)
    # in two steps, since a shift by 64 bits has no meaning
    half = surplus >> np.uint64(1)
    images = (images >> half >> (surplus - half)) << half << (surplus - half)
    return (images ^ _SIGN).view(np.int64), rests


def _text_buffers(array: pa.Array) -> tuple[Numbers, Numbers]:
    """Offsets, from 0 on, and bytes of an array of texts."""
    count = len(array)
    _, ends, content = array.buffers()
    if ends is None or not count:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(ends, np.int32, array.offset + count + 1)[array.offset :].astype(np.int64)
    data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


# ---- blobs ----


def _blob(kind: str, values: _Values, missing: Mask, empty: Mask | None, count: int) -> bytes:
    flags = values.flags
    bitmaps = b""
    if missing.all():
        flags |= _MISSING_ALL
    elif missing.any():
        flags |= _MISSING_SOME
        bitmaps += np.packbits(missing, bitorder="little").tobytes()
    if empty is not None and empty.any():
        if np.array_equal(empty, missing):
            flags |= _EMPTY_ALL
        else:
            flags |= _EMPTY_SOME
            bitmaps += np.packbits(empty, bitorder="little").tobytes()
    base, scale, width, numbers = _framed(values, missing)
    stored = numbers.tobytes()
    if width and len(stored) > _SAMPLE:
        planes = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, width).T)
        squeezed = _lz4.compress(planes, asbytes=True)
        if len(squeezed) <= _SAVING * len(stored):
            stored, flags = squeezed, flags | _SHUFFLED
    name = kind.encode()
    sizes = (len(name), len(values.prefix), count, len(stored), base, scale)
    head = _HEADER.pack(_VERSION, values.form, width, flags, values.exponent, *sizes)
    return _padded(head + name + values.prefix) + stored + bitmaps + values.tail


def _padded(data: bytes) -> bytes:
    """Data up to a multiple of 8 bytes, so that the numbers behind it are aligned."""
    return data + bytes(-len(data) % 8)


def _framed(values: _Values, missing: Mask) -> tuple[int, int, int, Numbers]:
    """Integers as ``base + scale * u``: base, scale, the width of u in bytes, u."""
    if values.form in (Form.NOTHING, Form.OPAQUE):
        return 0, 1, 0, np.zeros(0, np.uint8)
    some = missing.any()
    known = values.numbers[~missing] if some else values.numbers
    base, top = int(known.min()), int(known.max())
    numbers = np.where(missing, base, values.numbers) if some else values.numbers
    if values.form == Form.LIST:
        base = 0
    span = top - base
    if not span:
        return base, 1, 0, np.zeros(0, np.uint8)
    u = numbers.view(np.uint64) - np.uint64(base & (2**64 - 1))
    scale, width = 1, _width(span)
    if width > 1 and values.form != Form.LIST:
        scale = _divisor(u)
        if _width(span // scale) < width:
            width = _width(span // scale)
            u = u // np.uint64(scale)
        else:
            scale = 1
    return base, scale, width, u.astype(_TYPES[width])


def _width(span: int) -> int:
    return next(w for w in (0, 1, 2, 4, 8) if span < 1 << (8 * w))


def _divisor(u: Numbers) -> int:
    """The greatest common divisor of numbers, not all of them 0."""
    found = int(np.gcd.reduce(u[:_SAMPLE]))
    if found == 1:
        return 1
    if found == 0 or np.any(u % np.uint64(found)):
        found = int(np.gcd.reduce(u))
    return found


def _texts_blob(array: pa.Array) -> bytes:
    """An array of bytes or texts, compressed."""
    valid = _valid(array)
    offsets, data = _text_buffers(array)
    lengths = np.where(valid, np.diff(offsets), -1).astype("<i4")
    if array.null_count:  # bytes below a null may be anything
        keep = np.repeat(valid, np.diff(offsets))
        data = data[keep]
    packed, content = (_squeezed(np.ascontiguousarray(part)) for part in (lengths, data))
    return _BLOCK.pack(_VERSION, len(array), len(packed), len(data)) + packed + content


def _squeezed(data: Numbers) -> bytes:
    """Data, compressed if it is long."""
    return cast(bytes, _zstd.compress(data, asbytes=True)) if data.nbytes > _SHORT else data.tobytes()


def _unsqueezed(data: memoryview, size: int) -> memoryview:
    return memoryview(_zstd.decompress(data, size)) if size > _SHORT else data


def _blob_texts(blob: bytes | memoryview, kind: pa.DataType) -> pa.Array:
    """The array that `_texts_blob` was made of."""
    version, count, packed, size = _BLOCK.unpack_from(blob)
    _check_version(version)
    view = memoryview(blob)[_BLOCK.size :]
    lengths = np.frombuffer(_unsqueezed(view[:packed], 4 * count), "<i4")
    content = _unsqueezed(view[packed:], size)
    missing = lengths < 0
    return _text_array(np.maximum(lengths, 0), content, missing if missing.any() else None, kind)


def _text_array(lengths: Numbers, content: Any, missing: Mask | None, kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_validity(missing), pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(kind, len(lengths), buffers)


def _validity(missing: Mask | None) -> pa.Buffer | None:
    return None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise ProtocolError(
            f"statistics are stored in the unknown format {version}",
            suggestion="use the version of deltalakedb that wrote them, or a newer one",
        )


def encode_block(stats: Sequence[str | None] | pa.Array) -> bytes:
    """The raw JSON of statistics, compressed; any texts are kept as they are."""
    if isinstance(stats, pa.Array | pa.ChunkedArray):
        return _texts_blob(_plain(stats))
    return _texts_blob(pa.array(stats, pa.string()))


def decode_block(data: bytes) -> pa.Array:
    """The texts of a block, null for a file without statistics."""
    return _blob_texts(data, pa.string())


# ---- partition values ----


def _partition_arrays(
    texts: pa.Array, parts: Mapping[str, DataType]
) -> tuple[dict[str, tuple[pa.Array, Mask]], set[str]]:
    """Typed values and masks of nulls by partition column, and the other names for which files have values.

    A value is missing, but not null, if a file lacks it or its text cannot be read as the type.
    """
    coded = texts.dictionary_encode()
    objects = [_object(text) for text in coded.dictionary.to_pylist()]
    at = _int64(coded.indices.fill_null(len(objects)))
    objects.append({})
    found = {}
    for name, kind in parts.items():
        if not isinstance(kind, PrimitiveType):
            continue
        seen: dict[Any, Any] = {}
        values, nulls = [], []
        for mapping in objects:
            text = mapping.get(name, ...)
            if text not in seen:
                seen[text] = _partition_value(text, kind)
            value = seen[text]
            values.append(None if value is ... else value)
            nulls.append(value is None)
        array = pa.array(values, arrow_type(kind) or pa.string())
        found[name] = (array.take(pa.array(at)), np.array(nulls, bool)[at])
    return found, {name for mapping in objects for name in mapping if name not in parts}


def _object(text: str) -> dict[str, Any]:
    """A JSON object; short ones are the same in pack after pack."""
    return _known_object(text) if len(text) <= _CACHED_TEXT else _known_object.__wrapped__(text)


@lru_cache(maxsize=4096)
def _known_object(text: str) -> dict[str, Any]:
    try:
        value = decode_json(text)
    except LogCorruptError:
        return {}
    return value if isinstance(value, dict) else {}


def _partition_value(text: Any, kind: PrimitiveType) -> Any:
    """A partition value; None for null, an ellipsis for anything that is not known."""
    if text is ... or not isinstance(text, str | None):
        return ...
    try:
        value: Any = partition.parse(text, kind)
        if isinstance(value, str):
            value.encode()
    except (ProtocolError, UnicodeEncodeError):
        return ...
    return ... if value != value else value


# ---- path hashes ----


def path_hashes(paths: Sequence[str] | pa.Array) -> npt.NDArray[np.uint32]:
    """The crc32 of each path's canonical form."""
    if not isinstance(paths, pa.Array | pa.ChunkedArray):
        texts: Iterable[str] = paths
    else:
        paths = _plain(paths)
        content = _text_buffers(paths)[1].tobytes()
        if b"%" not in content and b":" not in content:  # every path is in its canonical form
            return np.array(list(map(zlib.crc32, paths.cast(pa.binary()).to_pylist())), np.uint32)
        texts = paths.to_pylist()
    return np.array([path_hash(path) for path in texts], np.uint32)


def stored_hashes(data: bytes) -> npt.NDArray[np.uint32]:
    """The hashes of a pack's paths, from the data of ``path``."""
    return ColumnData(data).u


def find_hashes(data: bytes, hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The places of files in a pack whose path has one of some hashes, from the data of ``path``."""
    own = ColumnData(data).u
    if len(hashes) == 1:
        return np.flatnonzero(own == hashes[0])
    upper = np.zeros(1 << 16, bool)
    upper[hashes >> np.uint32(16)] = True
    likely = np.flatnonzero(upper[own >> np.uint32(16)])
    return likely[np.isin(own[likely], hashes)]


# ---- columns of a pack ----


def _concatenated(masks: Sequence[Mask | None]) -> Mask | None:
    """Masks as one; either all of them are None, or none is."""
    some = [mask for mask in masks if mask is not None]
    return np.concatenate(some) if some else None


@lru_cache(maxsize=256)
def _list_of(tail: bytes) -> list[bytes]:
    """A sorted list of texts, which is often the same in pack after pack."""
    return cast("list[bytes]", _blob_texts(tail, pa.binary()).to_pylist())


class ColumnData:
    """The data of a pack column, read as far as it is needed."""

    def __init__(self, data: bytes) -> None:
        version, self.form, self.width, self._flags, self.exponent, named, prefixed, *rest = (
            _HEADER.unpack_from(data)
        )
        _check_version(version)
        self.base: int
        self.scale: int
        self.count, stored, self.base, self.scale = rest
        end = _HEADER.size + named
        self.kind = str(data[_HEADER.size : end], "ascii")
        self.prefix = bytes(data[end : end + prefixed])
        end += prefixed
        self._data, self._at = data, end + -end % 8
        self._end = self._at + stored
        bitmaps = bool(self._flags & _MISSING_SOME) + bool(self._flags & _EMPTY_SOME)
        self._tail_at = self._end + bitmaps * ((self.count + 7) // 8)

    @property
    def meaning(self) -> tuple[Any, ...]:
        """What the numbers mean: they can be compared with the same limits as those of an equal meaning."""
        listed = bytes(self._tail()) if self.form == Form.LIST else b""
        flags = self._flags & ~_SHUFFLED
        return (
            flags,
            self.width,
            self.base,
            self.scale,
            self.form,
            self.exponent,
            self.kind,
            self.prefix,
            listed,
        )

    @classmethod
    def joined(cls, columns: Sequence[ColumnData]) -> ColumnData:
        """Columns whose numbers have one meaning as one, to be compared only."""
        if len(columns) == 1:
            return columns[0]
        found = copy(columns[0])
        found.count = sum(c.count for c in columns)
        found.u = np.concatenate([c.u for c in columns])
        found.missing = _concatenated([c.missing for c in columns])
        found.empty = _concatenated([c.empty for c in columns])
        return found

    @property
    def unusable(self) -> bool:
        """Whether its values must not be compared."""
        return bool(self._flags & _UNUSABLE)

    @property
    def is_whole(self) -> bool:
        """Whether images of texts hold all of each text."""
        return bool(self._flags & _WHOLE)

    @cached_property
    def u(self) -> Numbers:
        kind, count = _TYPES[self.width], self.count
        if not self.width:
            return np.zeros(count, kind)
        if not self._flags & _SHUFFLED:
            return np.frombuffer(self._data, kind, count, self._at)
        stored = memoryview(self._data)[self._at : self._end]
        planes = np.frombuffer(_lz4.decompress(stored, count * self.width), np.uint8)
        return np.ascontiguousarray(planes.reshape(self.width, count).T).view(kind).reshape(-1)

    @cached_property
    def missing(self) -> Mask | None:
        """The files without a value; None if all have one."""
        if self._flags & _MISSING_ALL:
            return np.ones(self.count, bool)
        return self._bitmap(0) if self._flags & _MISSING_SOME else None

    @cached_property
    def empty(self) -> Mask | None:
        """The files that hold nothing but nulls; None if there are none."""
        if self._flags & _EMPTY_ALL:
            return self.missing
        return self._bitmap(int(bool(self._flags & _MISSING_SOME))) if self._flags & _EMPTY_SOME else None

    def _bitmap(self, number: int) -> Mask:
        size = (self.count + 7) // 8
        bits = np.frombuffer(self._data, np.uint8, size, self._end + number * size)
        return np.unpackbits(bits, count=self.count, bitorder="little").view(bool)

    def _tail(self) -> memoryview:
        return memoryview(self._data)[self._tail_at :]

    @cached_property
    def texts(self) -> list[bytes]:
        """The sorted list of a column that has one."""
        return _list_of(bytes(self._tail()))

    def values(self) -> pa.Array:
        """The exact values."""
        if self.kind == _HASH:
            return self._array(self.u)
        kind = pa.int64() if self.kind == _COUNT else arrow_type(PrimitiveType(self.kind)) or pa.string()
        match self.form:
            case Form.NOTHING:
                return pa.nulls(self.count, kind)
            case Form.LIST:
                return _blob_texts(self._tail(), kind).take(self._array(self.u))
            case Form.OPAQUE:
                return _blob_texts(self._tail(), pa.binary()).cast(pa.binary(16)).view(kind)
            case Form.TEXTS:
                return self._images_as_texts(kind) if self.is_whole else _blob_texts(self._tail(), kind)
        numbers = self.u.astype(np.uint64) * np.uint64(self.scale) + np.uint64(self.base & (2**64 - 1))
        numbers = numbers.view(np.int64)
        if self.form == Form.FRACTIONS:
            numbers = numbers / 10.0**self.exponent
        elif self.form == Form.BITS:
            numbers = np.where(numbers < 0, numbers ^ _MASK63, numbers).view(np.float64)
        elif pa.types.is_decimal(kind):
            words = np.stack([numbers, numbers >> 63], axis=1)
            return pa.Array.from_buffers(kind, self.count, [_validity(self.missing), pa.py_buffer(words)])
        plain = self._array(numbers)
        plain = plain.cast(pa.int32()) if pa.types.is_date(kind) else plain
        return plain.cast(kind, safe=not pa.types.is_floating(kind))

    def _array(self, numbers: Numbers) -> pa.Array:
        """Numbers of the files as an array; ``pa.array`` would first import pandas."""
        buffers = [_validity(self.missing), pa.py_buffer(np.ascontiguousarray(numbers))]
        return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), self.count, buffers)

    def _images_as_texts(self, kind: pa.DataType) -> pa.Array:
        wide = self.u.astype(np.uint64) * np.uint64(self.scale) + np.uint64(self.base & (2**64 - 1))
        images = (wide ^ _SIGN).astype(">u8").view(np.uint8).reshape(-1, 8)
        filled = images != 0
        lengths = np.where(filled.any(axis=1), 8 - np.argmax(filled[:, ::-1], axis=1), 0)
        # the prefix, then as many bytes as a text has
        prefix = np.broadcast_to(np.frombuffer(self.prefix, np.uint8), (self.count, len(self.prefix)))
        table = np.concatenate([prefix, images], axis=1)
        lengths = lengths + len(self.prefix)
        if self.missing is not None:
            lengths = np.where(self.missing, 0, lengths)
        content = table[np.arange(table.shape[1]) < lengths[:, None]]
        return _text_array(lengths, content, self.missing, kind)
