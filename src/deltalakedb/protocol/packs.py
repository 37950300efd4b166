"""Packs: statistics and partition values of up to 16,384 files as columns that predicates compare unpacked.

A pack column is one blob: a header, whole-byte numbers ``u`` with ``value = base + scale * u``, bitmaps of
the files without a value, and for texts what the numbers do not hold. A predicate's limits are moved into the
domain of ``u`` and compared there. Pruning is that of `skipping.FileFilter`, at most less sharp.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from bisect import bisect_left, bisect_right
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol import partition
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.bounds import (
    day_number,
    encoding_of,
    fits,
    literal_bounds,
    microseconds,
    open_end,
    successor,
    text_bytes,
)
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.partition import to_float32
from deltalakedb.protocol.paths import path_hash
from deltalakedb.protocol.predicate import (
    And,
    Compare,
    Constant,
    Expr,
    In,
    IsNull,
    Not,
    Or,
    Path,
    StartsWith,
    normalize,
)
from deltalakedb.protocol.schema import INTEGERS, DataType, PrimitiveType, StructType, column_types
from deltalakedb.protocol.skipping import without_nan
from deltalakedb.protocol.stats_columns import stats_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deltalakedb.protocol.actions import Metadata

__all__ = [
    "PACK_SIZE",
    "PackColumn",
    "PackFilter",
    "Zones",
    "column_values",
    "decode_block",
    "encode_block",
    "find_hashes",
    "pack_columns",
    "path_hashes",
    "stored_hashes",
]

PACK_SIZE: Final = 16_384

Numbers: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

# ---- the format ----

_VERSION: Final = 1
#: version, form, width of u, flags, exponent, lengths of the type's name and of the prefix, count, size of u,
#: base, scale
_HEADER: Final = struct.Struct("<BBBBBBHIIqQ")
_BLOCK: Final = struct.Struct("<BxxxIII")

#: forms: nothing but missing values; integers; floats as decimal fractions; floats as their bits; the first
#: bytes of texts; texts as a sorted list and places in it; 16-byte integers, which are not compared
_NOTHING, _INTS, _FRACTIONS, _BITS, _TEXTS, _LIST, _WIDE = range(7)
#: flags
_UNUSABLE: Final = 1  # not to be pruned by
_SHUFFLED: Final = 2  # u is compressed, byte planes apart
_MISSING_ALL: Final = 4
_MISSING_SOME: Final = 8  # a bitmap follows
_EMPTY_ALL: Final = 16  # every file without a value holds only nulls
_EMPTY_SOME: Final = 32  # a bitmap follows
_WHOLE: Final = 64  # the numbers hold all of each text
_FULL: Final = 128  # the texts are stored in full beside the numbers

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
_SAVING: Final = 0.6
_DIGITS: Final = 18
_ROUNDED_DIGITS: Final = 15
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = 1 - _EPOCH_DAY
_LAST_DAY: Final = date.max.toordinal() - _EPOCH_DAY
_DAY: Final = 86_400_000_000
#: before it, widening leaves the calendar
_FIRST_MOMENT: Final = (date(2, 1, 1).toordinal() - _EPOCH_DAY) * _DAY
_LAST_MOMENT: Final = (_LAST_DAY + 1) * _DAY - 1
_MILLISECOND: Final = 999
#: the last bits of a zone name its domain, so that another type's zone proves nothing
_TAG_BITS: Final = 6
_TAGS: Final = {
    "int": 0,
    "float": 1,
    "date": 2,
    "timestamp": 3,
    "timestamp_ntz": 4,
    "string": 5,
    "binary": 6,
    "boolean": 7,
}
_FIRST_DECIMAL: Final = 8
_MOST_SCALE: Final = 38
#: beyond all decimal fractions that are stored as such
_HUGE: Final = 1e30
_SHORT: Final = 512
_COUNT: Final = "count"
_HASH: Final = "hash"

_lz4: Final = pa.Codec("lz4_raw")
_zstd: Final = pa.Codec("zstd", compression_level=1)


class PackColumn(NamedTuple):
    """One column of a pack.

    Attributes:
        name: ``rows``, ``path``, or a JSON list such as ``["low","a","b"]`` of a kind and a physical path.
        low: The image of its least value; None if a value is missing, so that the zone proves nothing.
        high: The image of its greatest value.
        data: The values.
    """

    name: str
    low: int | None
    high: int | None
    data: bytes


class Zones(NamedTuple):
    """The zones of one column in many packs; not known if a pack lacks the column or its zone."""

    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    known: Mask


def _name(kind: str, path: Sequence[str]) -> str:
    return json.dumps([kind, *path], separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=1024)
def _domain(name: str) -> str | None:
    """Types of one domain have values that compare as they are stored; None for types without a domain."""
    if name in INTEGERS:
        return "int"
    if name in ("float", "double"):
        return "float"
    if (decimal := PrimitiveType(name).decimal) is not None:
        precision, scale = decimal
        return f"decimal {scale}" if precision <= _DIGITS and 0 <= scale <= _MOST_SCALE else None
    return name if name in _TAGS else None


def _tag(domain: str) -> int:
    return _TAGS[domain] if domain in _TAGS else _FIRST_DECIMAL + int(domain.rpartition(" ")[2])


# ---- images ----


def _float_images(values: Numbers) -> Numbers:
    """Doubles as integers of the same order; -0.0 comes before 0.0, and bits are kept."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    return np.where(bits < 0, bits ^ _MASK63, bits)


def _float_image(value: float) -> int:
    return int(_float_images(np.array([value]))[0])


def _text_image(text: bytes) -> int:
    return int.from_bytes(text[:8].ljust(8, b"\0"), "big") - (1 << 63)


def _number_image(value: float) -> int:
    try:
        return _float_image(float(value) or 0.0)
    except OverflowError:
        return _float_image(math.inf if value > 0 else -math.inf)


def _zone_image(value: Any) -> int:
    """The image of a value without the bits that name its domain; images of one domain keep the order."""
    image = _text_image(value) if isinstance(value, bytes) else _number_image(value)
    return image >> _TAG_BITS


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
        The columns for which a file states something: row counts, path hashes, bounds and null counts of leaf
        columns, and partition values. A column that holds only nulls in some file has bounds that say so.
    """
    paths, stats, partition_values = (_plain(a) for a in (paths, stats, partition_values))
    fields = [f for c in metadata.partition_columns if (f := schema.field(c)) is not None]
    parts = {f.physical_name: f.type for f in fields}
    leaves = [x for x in schema.leaves() if len(x.physical_path) > 1 or x.physical_path[0] not in parts]
    parsed = stats_columns(stats, leaves)
    values, others = _partition_arrays(partition_values, parts)
    found = [_count_column("rows", parsed.num_records), _hash_column(paths)]
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
            found.append(_count_column(_name("nulls", at), nulls, usable=usable))
    for name, (array, null) in values.items():
        part_type = parts[name]
        if isinstance(part_type, PrimitiveType) and (array.null_count < len(array) or null.any()):
            found.append(_value_column(_name("part", [name]), part_type, array, null, usable=True, side=0))
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
    values = _Values(_INTS, numbers, flags=0 if usable else _UNUSABLE)
    data = _blob(_COUNT, values, ~valid, None, len(counts))
    if not usable or not valid.all():
        return PackColumn(name, None, None, data)
    return PackColumn(name, least, most, data)


def _hash_column(paths: pa.Array) -> PackColumn:
    hashes = path_hashes(paths)
    head = _HEADER.pack(_VERSION, _INTS, 4, 0, 0, len(_HASH), 0, len(hashes), 4 * len(hashes), 0, 1)
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
    usable = usable and not _contradict(low, high, kind)
    return [
        _value_column(_name(name, path), kind, array, empty, usable=usable, side=side)
        for name, array, side in (("low", low, -1), ("high", high, 1))
        if array.null_count < len(array) or empty is not None or left_out is not None
    ]


def _contradict(low: pa.Array, high: pa.Array, kind: PrimitiveType) -> bool:
    """Whether a file states a minimum above its maximum, by more than writers round."""
    if kind.name == "boolean":
        low, high = low.cast(pa.int8()), high.cast(pa.int8())
    above = pc.greater(low, high)
    if not above.true_count:
        return False
    low, high = low.filter(above), high.filter(above)
    if kind.name in ("timestamp", "timestamp_ntz"):
        return bool(np.any(_int64(low.cast(pa.int64())) > _int64(high.cast(pa.int64())) + _MILLISECOND))
    if kind.name == "string":
        pairs = zip(low.to_pylist(), high.to_pylist(), strict=True)
        return any(text_bytes(least) > open_end(most, "string") for least, most in pairs)
    if kind.name == "double":
        with np.errstate(over="ignore"):
            least, most = (a.to_numpy(zero_copy_only=False).astype(np.float32) for a in (low, high))
        return bool(np.any(least > most))
    return True


def _value_column(
    name: str, kind: PrimitiveType, array: pa.Array, empty: Mask | None, *, usable: bool, side: int
) -> PackColumn:
    """A column of values; ``side`` is -1 for minima, 1 for maxima, 0 for the values themselves."""
    missing = ~_valid(array)
    values = _Values(_NOTHING, missing) if missing.all() else _values(array, missing, side)
    domain = _domain(kind.name)
    if not usable or domain is None:
        values = values._replace(flags=values.flags | _UNUSABLE)
    low = high = None
    neutral = missing if empty is None else missing & ~empty
    if not values.flags & _UNUSABLE and domain is not None and not neutral.any():
        tag = _tag(domain)
        if values.form == _NOTHING:  # no comparison is true: limits that nothing reaches
            low, high = (2**63 - 1) >> _TAG_BITS, -(2**63) >> _TAG_BITS
        else:
            low, high = _zone_image(values.least), _zone_image(values.most)
        low, high = ((image << _TAG_BITS) | tag for image in (low, high))
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
        pairs = _decimal_words(array)
        if storage.precision > _DIGITS:
            filled = np.where(missing[:, None], 0, pairs)
            tail = _squeeze(filled.tobytes())
            return _Values(_WIDE, np.zeros(len(array), np.int64), flags=_UNUSABLE, tail=tail)
        numbers = pairs[:, 0]
    elif pa.types.is_date(storage):
        numbers = _int64(array.cast(pa.int32())).astype(np.int64)
    elif pa.types.is_timestamp(storage):
        numbers = _int64(array.cast(pa.int64()))
    else:
        numbers = _int64(array.cast(pa.int8() if pa.types.is_boolean(storage) else pa.int64())).astype(
            np.int64
        )
    known = numbers[~missing]
    least, most = int(known.min()), int(known.max())
    flags = 0
    if pa.types.is_date(storage) and not _FIRST_DAY <= least <= most <= _LAST_DAY:
        flags = _UNUSABLE
    if pa.types.is_timestamp(storage) and not _FIRST_MOMENT <= least <= most <= _LAST_MOMENT:
        flags = _UNUSABLE
    return _Values(_INTS, numbers, flags=flags, least=least, most=most)


def _decimal_words(array: pa.Array) -> Numbers:
    """The unscaled integers of decimals in two words, the lower one first."""
    words = np.frombuffer(array.buffers()[1], "<i8", 2 * (array.offset + len(array))).reshape(-1, 2)
    return words[array.offset :]


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
        return _Values(_BITS, _float_images(numbers), flags=flags, least=least, most=most)
    scaled = np.rint(numbers.astype(np.float64) * 10.0**exponent).astype(np.int64)
    return _Values(_FRACTIONS, scaled, exponent=exponent, flags=flags, least=least, most=most)


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
    bounds = array
    lengths = pc.binary_length(array)
    longest = pc.max(lengths).as_py()
    least, most = _ends(array)
    prefix = _common(least, most)
    full = False
    if side > 0 and longest >= _CUT:
        if len(prefix) + 8 > _KEPT:
            texts = [None if t is None else open_end(t, "string") for t in array.to_pylist()]
            bounds, full = pa.array(texts, pa.binary()), True
            least, most = _ends(bounds)
            prefix = _common(least, most)
        else:
            most = open_end(most, "string")
    if missing.any():
        bounds = bounds.fill_null(least)
    images, rests = _text_images(bounds, len(prefix))
    tail, flags = b"", 0
    if not full:
        # without trailing NULs, the length of a short text can be seen from its image
        full = bool(np.any((rests <= 8) & (rests > 0) & (_last_bytes(bounds) == 0)))
    if full:
        flags, tail = _FULL, _texts_blob(array)
    elif int(rests.max()) > 8:
        tail = _texts_blob(pc.binary_slice(bounds, len(prefix) + 8, longest))
    else:
        flags = _WHOLE
    return _Values(_TEXTS, images, prefix=prefix, flags=flags, tail=tail, least=least, most=most)


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
    lengths = np.array([len(text) for text in listed], "<u4")
    tail = b"".join((struct.pack("<I", len(listed)), lengths.tobytes(), *listed))
    return _Values(_LIST, numbers, tail=tail, least=listed[0], most=listed[-1])


def _ends(array: pa.Array) -> tuple[bytes, bytes]:
    found = pc.min_max(array).as_py()
    return found["min"], found["max"]


def _common(least: bytes, most: bytes) -> bytes:
    length = 0
    for a, b in zip(least[:_MAX_PREFIX], most[:_MAX_PREFIX], strict=False):
        if a != b:
            break
        length += 1
    return least[:length]


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


def _last_bytes(array: pa.Array) -> Numbers:
    """The last byte of each text; of an empty one, any that is not 0."""
    offsets, data = _text_buffers(array)
    if not len(data):
        return np.ones(len(array), np.uint8)
    return np.where(np.diff(offsets) > 0, data[np.maximum(offsets[1:] - 1, 0)], 1)


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
    if values.form in (_NOTHING, _WIDE):
        return 0, 1, 0, np.zeros(0, np.uint8)
    some = missing.any()
    known = values.numbers[~missing] if some else values.numbers
    base, top = int(known.min()), int(known.max())
    numbers = np.where(missing, base, values.numbers) if some else values.numbers
    if values.form == _LIST:
        base = 0
    span = top - base
    if not span:
        return base, 1, 0, np.zeros(0, np.uint8)
    u = numbers.view(np.uint64) - np.uint64(base & (2**64 - 1))
    scale, width = 1, _width(span)
    if width > 1 and values.form != _LIST:
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


def _squeeze(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + cast(bytes, _zstd.compress(data, asbytes=True))


def _unsqueeze(data: bytes) -> bytes:
    return cast(bytes, _zstd.decompress(data[4:], struct.unpack_from("<I", data)[0], asbytes=True))


def _texts_blob(array: pa.Array) -> bytes:
    """An array of bytes or texts, compressed."""
    valid = _valid(array)
    offsets, data = _text_buffers(array)
    lengths = np.where(valid, np.diff(offsets), -1).astype("<i4")
    if array.null_count:  # bytes below a null may be anything
        keep = np.repeat(valid, np.diff(offsets))
        data = data[keep]
    packed: bytes = _zstd.compress(lengths, asbytes=True)
    content: bytes = _zstd.compress(np.ascontiguousarray(data), asbytes=True)
    return _BLOCK.pack(_VERSION, len(array), len(packed), len(data)) + packed + content


def _blob_texts(blob: bytes | memoryview, kind: pa.DataType) -> pa.Array:
    """The array that `_texts_blob` was made of."""
    version, count, packed, size = _BLOCK.unpack_from(blob)
    _check_version(version)
    view = memoryview(blob)[_BLOCK.size :]
    lengths = np.frombuffer(_zstd.decompress(view[:packed], 4 * count), "<i4")
    content = _zstd.decompress(view[packed:], size)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    return _text_array(offsets, content, lengths < 0, kind)


def _text_array(offsets: Numbers, content: Any, missing: Mask, kind: pa.DataType) -> pa.Array:
    validity = None
    if missing.any():
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(offsets, np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(kind, len(missing), buffers)


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
    return _known_object(text) if len(text) < _SHORT else _known_object.__wrapped__(text)


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
    return _Column(data).u


def find_hashes(data: bytes, hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The places of files in a pack whose path has one of some hashes, from the data of ``path``."""
    own = _Column(data).u
    if len(hashes) == 1:
        return np.flatnonzero(own == hashes[0])
    upper = np.zeros(1 << 16, bool)
    upper[hashes >> np.uint32(16)] = True
    likely = np.flatnonzero(upper[own >> np.uint32(16)])
    return likely[np.isin(own[likely], hashes)]


# ---- columns of a pack ----


class _Column:
    """The data of a pack column, read as far as it is needed."""

    __slots__ = (
        "_at",
        "_bounds",
        "_data",
        "_stored",
        "_u",
        "base",
        "count",
        "exponent",
        "flags",
        "form",
        "kind",
        "prefix",
        "scale",
        "width",
    )

    def __init__(self, data: bytes) -> None:
        version, self.form, self.width, self.flags, self.exponent, named, prefixed, *rest = (
            _HEADER.unpack_from(data)
        )
        _check_version(version)
        self.count: int
        self._stored: int
        self.base: int
        self.scale: int
        self.count, self._stored, self.base, self.scale = rest
        end = _HEADER.size + named
        self.kind = str(data[_HEADER.size : end], "ascii")
        self.prefix = bytes(data[end : end + prefixed]) if prefixed else b""
        end += prefixed
        self._at = end + -end % 8
        self._data = data
        self._u: Numbers | None = None
        self._bounds: list[bytes] | None = None

    def usable(self, domain: str) -> bool:
        """Whether limits of a domain can be compared with the values."""
        return not self.flags & _UNUSABLE and _domain(self.kind) == domain

    @property
    def u(self) -> Numbers:
        if self._u is None:
            kind, count = _TYPES[self.width], self.count
            if not self.width:
                self._u = np.zeros(count, kind)
            elif self.flags & _SHUFFLED:
                stored = memoryview(self._data)[self._at : self._at + self._stored]
                planes = np.frombuffer(_lz4.decompress(stored, count * self.width), np.uint8)
                self._u = np.ascontiguousarray(planes.reshape(self.width, count).T).view(kind).reshape(-1)
            else:
                self._u = np.frombuffer(self._data, kind, count, self._at)
        return self._u

    @property
    def missing(self) -> Mask | None:
        """The files without a value; None if all have one."""
        if self.flags & _MISSING_ALL:
            return np.ones(self.count, bool)
        return self._bitmap(0) if self.flags & _MISSING_SOME else None

    @property
    def empty(self) -> Mask | None:
        """The files that hold nothing but nulls; None if there are none."""
        if self.flags & _EMPTY_ALL:
            return self.missing
        return self._bitmap(int(bool(self.flags & _MISSING_SOME))) if self.flags & _EMPTY_SOME else None

    def _bitmap(self, number: int) -> Mask:
        size = (self.count + 7) // 8
        start = self._at + self._stored + number * size
        bits = np.frombuffer(self._data, np.uint8, size, start)
        return np.unpackbits(bits, count=self.count, bitorder="little").view(bool)

    @property
    def tail(self) -> memoryview:
        bitmaps = bool(self.flags & _MISSING_SOME) + bool(self.flags & _EMPTY_SOME)
        return memoryview(self._data)[self._at + self._stored + bitmaps * ((self.count + 7) // 8) :]

    # --- limits in the domain of u

    def last(self, limit: Any, strict: bool) -> int:
        """The greatest u whose value may be at or below a limit; below a text, if strict."""
        match self.form:
            case 1:  # _INTS
                image = int(limit)
            case 2:  # _FRACTIONS
                if abs(limit) > _HUGE:
                    return 1 << 64 if limit > 0 else -1
                image = math.floor(Fraction(limit) * 10**self.exponent) + 1
                while self._fraction(image) > limit:
                    image -= 1
            case 3:  # _BITS
                image = _float_image(limit or 0.0)
            case 4:  # _TEXTS
                if not limit.startswith(self.prefix):
                    return 1 << 64 if limit > self.prefix else -1
                rest = limit[len(self.prefix) :]
                image = _text_image(rest) - (strict and len(rest) <= 8 and not rest.endswith(b"\0"))
            case _:  # _LIST
                return (bisect_left if strict else bisect_right)(self.texts, limit) - 1
        return (image - self.base) // self.scale

    def first(self, limit: Any, strict: bool) -> int:
        """The least u whose value may be at or above a limit; above a text, if strict."""
        match self.form:
            case 1:
                image = int(limit)
            case 2:
                if abs(limit) > _HUGE:
                    return 1 << 64 if limit > 0 else 0
                image = math.ceil(Fraction(limit) * 10**self.exponent) - 1
                while self._fraction(image) < limit:
                    image += 1
            case 3:
                image = _float_image(limit or -0.0)
            case 4:
                if not limit.startswith(self.prefix):
                    return 1 << 64 if limit > self.prefix else 0
                rest = limit[len(self.prefix) :]
                image = _text_image(rest)
                if self.flags & _WHOLE and (len(rest) > 8 or (strict and not rest.endswith(b"\0"))):
                    image += 1
            case _:
                return (bisect_right if strict else bisect_left)(self.texts, limit)
        return -((self.base - image) // self.scale)

    def _fraction(self, number: int) -> float:
        value = number / 10.0**self.exponent
        return to_float32(value) if self.kind == "float" else value

    @property
    def texts(self) -> list[bytes]:
        """The sorted list of a column that has one."""
        if self._bounds is None:
            tail = bytes(self.tail)
            (count,) = struct.unpack_from("<I", tail)
            ends = [4 * (count + 1)]
            for length in struct.unpack_from(f"<{count}I", tail, 4):
                ends.append(ends[-1] + length)
            self._bounds = [tail[start:end] for start, end in pairwise(ends)]
        return self._bounds

    def equal(self, value: Any) -> Mask | None:
        """The files with just this value; None if the numbers do not say."""
        if self.form == _NOTHING:
            return np.zeros(self.count, bool)
        if self.form == _INTS:
            place, rest = divmod(value - self.base, self.scale)
        elif self.form == _LIST:
            place = bisect_left(self.texts, value)
            rest = not (place < len(self.texts) and self.texts[place] == value)
        elif self.form == _TEXTS and self.flags & _WHOLE:
            tail = value[len(self.prefix) :]
            rest = not value.startswith(self.prefix) or len(tail) > 8
            if not rest and tail.endswith(b"\0"):
                return None
            place, more = divmod(_text_image(tail) - self.base, self.scale)
            rest = rest or more
        else:
            return None
        if rest or not 0 <= place < 1 << (8 * self.width or 1):
            found: Mask = np.zeros(self.count, bool)
        else:
            found = self.u == place
        if (missing := self.missing) is not None:
            found = found & ~missing
        return found

    def starting(self, start: bytes) -> Mask | None:
        """The files whose text certainly begins with some bytes; None if none does so for sure."""
        if self.form == _TEXTS:
            if self.prefix.startswith(start):
                first, last = 0, 1 << 64
            else:
                rest = start[len(self.prefix) :]
                if not start.startswith(self.prefix) or len(rest) > 8 or rest.endswith(b"\0"):
                    return None
                low, high = _text_image(rest), _text_image(rest.ljust(8, b"\xff"))
                first, last = -((self.base - low) // self.scale), (high - self.base) // self.scale
        elif self.form == _LIST:
            places = [n for n, text in enumerate(self.texts) if text.startswith(start)]
            if not places:
                return None
            first, last = places[0], places[-1]
        else:
            return None
        found = _within(self.u, first, last)
        if (missing := self.missing) is not None:
            found = found & ~missing
        return found

    # --- values

    def values(self) -> pa.Array:
        """The exact values."""
        if self.kind == _HASH:
            return pa.array(self.u)
        if self.kind == _COUNT:
            return self._numbers(pa.int64())
        kind = arrow_type(PrimitiveType(self.kind)) or pa.string()
        match self.form:
            case 0:
                return pa.nulls(self.count, kind)
            case 1:
                return self._numbers(kind)
            case 2:
                return self._masked(self._images().astype(np.float64) / 10.0**self.exponent, kind)
            case 3:
                images = self._images()
                bits = np.where(images < 0, images ^ _MASK63, images)
                return self._masked(bits.view(np.float64), kind)
            case 4:
                return self._texts(kind)
            case 5:
                listed = pa.array(self.texts, pa.binary()).cast(kind)
                return listed.take(pa.array(self.u, mask=self.missing))
            case _:
                return self._decimals(kind, np.frombuffer(_unsqueeze(bytes(self.tail)), "<i8"))

    def _images(self) -> Numbers:
        wide = self.u.astype(np.uint64) * np.uint64(self.scale) + np.uint64(self.base & (2**64 - 1))
        return wide.view(np.int64)

    def _masked(self, numbers: Numbers, kind: pa.DataType) -> pa.Array:
        if kind == pa.float32():
            with np.errstate(over="ignore"):
                numbers = numbers.astype(np.float32)
        return pa.array(numbers, kind, mask=self.missing, from_pandas=False)

    def _numbers(self, kind: pa.DataType) -> pa.Array:
        numbers = self._images()
        if pa.types.is_decimal(kind):
            return self._decimals(kind, np.stack([numbers, numbers >> 63], axis=1))
        plain = pa.array(numbers, mask=self.missing)
        if pa.types.is_date(kind):
            return plain.cast(pa.int32()).cast(kind)
        return plain.cast(kind)

    def _decimals(self, kind: pa.DataType, words: Numbers) -> pa.Array:
        missing = self.missing
        validity = None
        if missing is not None:
            validity = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
        words = np.ascontiguousarray(words, "<i8")
        return pa.Array.from_buffers(kind, self.count, [validity, pa.py_buffer(words)])

    def _texts(self, kind: pa.DataType) -> pa.Array:
        if self.flags & _FULL:
            return _blob_texts(self.tail, kind)
        images = (self._images().view(np.uint64) ^ _SIGN).astype(">u8").view(np.uint8).reshape(-1, 8)
        filled = images != 0
        lengths = np.where(filled.any(axis=1), 8 - np.argmax(filled[:, ::-1], axis=1), 0)
        if not self.flags & _WHOLE:
            tails = _blob_texts(self.tail, pa.binary())
            lengths = np.where(np.diff(_text_buffers(tails)[0]) > 0, 8, lengths)
        content = images[np.arange(8) < lengths[:, None]]
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        parts = [_text_array(offsets, content, np.zeros(self.count, bool), pa.binary())]
        if not self.flags & _WHOLE:
            parts.append(tails)
        texts = pc.binary_join_element_wise(pa.scalar(self.prefix, pa.binary()), *parts, b"")
        if (missing := self.missing) is not None:
            texts = pc.if_else(pa.array(missing), pa.scalar(None, pa.binary()), texts)
        return texts.cast(kind)


def column_values(name: str, data: bytes, kind: DataType | None) -> pa.Array:
    """The exact values of a pack column, null if a file states none.

    Args:
        name: The column's name.
        data: Its data.
        kind: The type to return; by default the stored one. Counts and hashes have their own.
    """
    values = _Column(data).values()
    wanted = (
        None if kind is None or name in ("rows", "path") or name.startswith('["nulls"') else arrow_type(kind)
    )
    if wanted is None or values.type == wanted:
        return values
    try:
        return values.cast(wanted, safe=not pa.types.is_floating(wanted))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(values), wanted)


# ---- predicates ----


class _Span(NamedTuple):
    """The values that a condition allows; None for an open end. Ends of texts may be excluded themselves."""

    low: Any
    high: Any
    above: bool = False
    below: bool = False


_Load: TypeAlias = "Callable[[str], _Column | None]"


class _Node:
    """A condition: masks that are false only if it cannot be true."""

    names: frozenset[str] = frozenset()
    zone_names: frozenset[str] = frozenset()

    def packs(self, zones: Mapping[str, Zones], count: int) -> Mask:  # noqa: ARG002
        return np.ones(count, bool)

    def files(self, load: _Load, count: int) -> Mask:  # noqa: ARG002
        return np.ones(count, bool)


class _Never(_Node):
    def packs(self, zones: Mapping[str, Zones], count: int) -> Mask:  # noqa: ARG002
        return np.zeros(count, bool)

    def files(self, load: _Load, count: int) -> Mask:  # noqa: ARG002
        return np.zeros(count, bool)


class _Joined(_Node):
    """All or any of some conditions."""

    def __init__(self, nodes: Sequence[_Node], *, every: bool) -> None:
        self._nodes = nodes
        self._join: Callable[[Mask, Mask], Mask] = np.logical_and if every else np.logical_or
        self._decided = not every
        self.names = frozenset().union(*(n.names for n in nodes))
        self.zone_names = frozenset().union(*(n.zone_names for n in nodes))

    def packs(self, zones: Mapping[str, Zones], count: int) -> Mask:
        return self._over(lambda node: node.packs(zones, count))

    def files(self, load: _Load, count: int) -> Mask:
        return self._over(lambda node: node.files(load, count))

    def _over(self, mask_of: Callable[[_Node], Mask]) -> Mask:
        mask = mask_of(self._nodes[0])
        for node in self._nodes[1:]:
            if mask.all() if self._decided else not mask.any():
                break
            mask = self._join(mask, mask_of(node))
        return mask


class _Null(_Node):
    """A column is null."""

    def __init__(self, path: Path, *, is_part: bool) -> None:
        self._is_part = is_part
        self._name = _name("part" if is_part else "nulls", path)
        self.names = frozenset({self._name})
        self.zone_names = frozenset() if is_part else self.names

    def packs(self, zones: Mapping[str, Zones], count: int) -> Mask:
        zone = None if self._is_part else zones.get(self._name)
        return np.ones(count, bool) if zone is None else ~zone.known | (zone.high != 0)

    def files(self, load: _Load, count: int) -> Mask:
        column = load(self._name)
        if column is None:
            return np.ones(count, bool)
        if self._is_part:
            missing = column.missing
            return np.zeros(count, bool) if missing is None else missing
        none = None if column.flags & _UNUSABLE else column.equal(0)
        return np.ones(count, bool) if none is None else ~none


class _Value(_Node):
    """A column is not null; and of its bounds whatever a subclass says."""

    def __init__(self, path: Path, *, is_part: bool) -> None:
        self.low = _name("part" if is_part else "low", path)
        self.high = self.low if is_part else _name("high", path)
        self.names = frozenset({self.low})

    def files(self, load: _Load, count: int) -> Mask:
        return self._not_empty(np.ones(count, bool), load(self.low))

    @staticmethod
    def _not_empty(mask: Mask, column: _Column | None) -> Mask:
        empty = None if column is None else column.empty
        return mask if empty is None else mask & ~empty


class _Outside(_Value):
    """A column has a value that is not as ``same`` says, which gets the data of a bound."""

    def __init__(
        self, path: Path, domain: str, same: Callable[[_Column], Mask | None], *, is_part: bool
    ) -> None:
        super().__init__(path, is_part=is_part)
        self._domain, self._same = domain, same
        self.names = frozenset({self.low, self.high})

    def files(self, load: _Load, count: int) -> Mask:
        mask = super().files(load, count)
        both = np.ones(count, bool)
        for name in dict.fromkeys((self.low, self.high)):
            column = load(name)
            if column is None or not column.usable(self._domain) or (same := self._same(column)) is None:
                return mask
            both = both & same
        return mask & ~both


class _Within(_Value):
    """A column has a value in one of some spans, which are sorted."""

    def __init__(self, path: Path, spans: Sequence[_Span], domain: str, *, is_part: bool) -> None:
        super().__init__(path, is_part=is_part)
        self._spans, self._domain, self._tag = spans, domain, _tag(domain)
        # spans come from one operator, so all of them have the same ends
        self._has_low, self._has_high = spans[0].low is not None, spans[0].high is not None
        self.names = frozenset(
            name for name, used in ((self.low, self._has_high), (self.high, self._has_low)) if used
        )
        self.zone_names = self.names
        self._firsts = [_zone_image(s.low) for s in spans] if self._has_low else None
        self._lasts = [_zone_image(s.high) for s in spans] if self._has_high else None

    def packs(self, zones: Mapping[str, Zones], count: int) -> Mask:
        lows = self._zone(zones.get(self.low), 0) if self._has_high else None
        highs = self._zone(zones.get(self.high), 1) if self._has_low else None
        low = None if lows is None or self._lasts is None else _Side(*lows, self._lasts)
        high = None if highs is None or self._firsts is None else _Side(*highs, self._firsts)
        return _meet(low, high, count)

    def _zone(self, zone: Zones | None, end: int) -> tuple[Numbers, Mask] | None:
        if zone is None:
            return None
        images = zone[end]
        fits_domain = zone.known & ((images & ((1 << _TAG_BITS) - 1)) == self._tag)
        return images >> _TAG_BITS, ~fits_domain

    def files(self, load: _Load, count: int) -> Mask:
        low = load(self.low) if self._has_high else None
        high = load(self.high) if self._has_low else None
        lows = highs = None
        if low is not None and low.form != _NOTHING and low.usable(self._domain):
            lows = _Side(low.u, low.missing, [low.last(s.high, s.below) for s in self._spans])
        if high is not None and high.form != _NOTHING and high.usable(self._domain):
            highs = _Side(high.u, high.missing, [high.first(s.low, s.above) for s in self._spans])
        return self._not_empty(_meet(lows, highs, count), low or high)


class _Side(NamedTuple):
    """Lower or upper bounds as numbers, which of them are not known, and the limit of each span for them."""

    numbers: Numbers
    unknown: Mask | None
    limits: Sequence[int]


def _meet(low: _Side | None, high: _Side | None, count: int) -> Mask:
    """Whether bounds meet a span: low at or below its last number, high at or above its first."""
    below = None if low is None else _within(low.numbers, None, max(low.limits), low.unknown)
    above = None if high is None else _within(high.numbers, min(high.limits), None, high.unknown)
    if below is None or above is None:
        return np.ones(count, bool) if below is above else cast(Mask, above if below is None else below)
    if low is None or high is None or len(low.limits) == 1:
        return below & above
    mask = _meet_sorted(low, high)
    if low.unknown is not None:
        mask |= low.unknown & above
    if high.unknown is not None:
        mask |= high.unknown & below
    return mask


def _within(numbers: Numbers, first: int | None, last: int | None, unknown: Mask | None = None) -> Mask:
    """Numbers from ``first`` to ``last``, which may be any integers, and those that are not known."""
    ends = np.iinfo(numbers.dtype)
    if (last is not None and last < ends.min) or (first is not None and first > ends.max):
        return np.zeros(len(numbers), bool) if unknown is None else unknown
    mask: Mask | None = None
    if last is not None and last < ends.max:
        mask = numbers <= last
    if first is not None and first > ends.min:
        above = numbers >= first
        mask = above if mask is None else mask & above
    if mask is None:
        return np.ones(len(numbers), bool)
    return mask if unknown is None else mask | unknown


def _meet_sorted(low: _Side, high: _Side) -> Mask:
    """Whether bounds meet one of many spans: the first that low allows has the least limit for high."""
    least, top = np.iinfo(low.numbers.dtype).min, np.iinfo(low.numbers.dtype).max
    bottom, most = np.iinfo(high.numbers.dtype).min, np.iinfo(high.numbers.dtype).max
    spans = zip(low.limits, high.limits, strict=True)
    kept = [(last, first) for last, first in spans if last >= least and first <= most]
    if not kept:
        return np.zeros(len(low.numbers), bool)
    lasts = np.array([min(last, top) for last, _ in kept], low.numbers.dtype)
    firsts = np.array([max(first, bottom) for _, first in kept], high.numbers.dtype)
    at = np.searchsorted(lasts, low.numbers, "left")
    return (at < len(kept)) & (firsts[np.minimum(at, len(kept) - 1)] <= high.numbers)


class PackFilter:
    """A predicate over physical column paths, ready for zones and packs.

    Args:
        expr: The predicate.
        schema: The table's schema.
        partition_columns: The physical names of the partition columns.

    Attributes:
        names: Every pack column that the predicate may need.
        zone_names: Those whose zones it needs.
    """

    def __init__(self, expr: Expr, schema: StructType, partition_columns: Iterable[str]) -> None:
        self._types = column_types(schema)
        self._parts = frozenset(partition_columns)
        self._node = self._compile(normalize(expr), frozenset())
        self.names: frozenset[str] = self._node.names
        self.zone_names: frozenset[str] = self._node.zone_names

    def packs(self, zones: Mapping[str, Zones], count: int) -> Mask:
        """A mask over packs: false only if no file of the pack can match.

        Args:
            zones: The zones of `zone_names`, as far as there are any.
            count: The number of packs.
        """
        return self._node.packs(zones, count)

    def files(self, columns: Mapping[str, bytes], count: int) -> Mask:
        """A mask over the files of one pack: false only if no row of the file can match.

        Args:
            columns: The data of those of `names` that the pack has.
            count: The number of files.
        """
        loaded: dict[str, _Column | None] = {}

        def load(name: str) -> _Column | None:
            if name not in loaded:
                data = columns.get(name)
                loaded[name] = None if data is None else _Column(data)
            return loaded[name]

        return self._node.files(load, count)

    def _compile(self, expr: Expr, no_nan: frozenset[Path]) -> _Node:
        match expr:
            case And(operands):
                no_nan |= without_nan(operands)
                return _Joined([self._compile(o, no_nan) for o in operands], every=True)
            case Or(operands):
                return _Joined([self._compile(o, no_nan) for o in operands], every=False)
            case Constant(value):
                return _Node() if value is True else _Never()
            case (
                IsNull(column)
                | Not(IsNull(column))
                | Compare(column)
                | In(column)
                | StartsWith(column)
                | Not(StartsWith(column))
            ):
                return self._leaf(expr, column, no_nan)
        return _Node()

    def _leaf(self, expr: Expr, column: Path, no_nan: frozenset[Path]) -> _Node:
        kind = self._types.get(column)
        is_part = len(column) == 1 and column[0] in self._parts
        if not isinstance(kind, PrimitiveType) or (not is_part and encoding_of(kind) is None):
            return _Node()
        if isinstance(expr, IsNull):
            return _Null(column, is_part=is_part)
        domain = _domain(kind.name)
        if domain is not None:
            match expr:
                case Compare(_, "!=", value):
                    if (point := _point(value, kind, domain, is_part=is_part)) is not None:
                        return _Outside(column, domain, lambda c: c.equal(point), is_part=is_part)
                case Not(StartsWith(_, prefix)) if domain == "string":
                    start = text_bytes(prefix)
                    return _Outside(column, domain, lambda c: c.starting(start), is_part=is_part)
                case _:
                    spans = _spans(expr, kind, domain, column in no_nan, is_part=is_part)
                    if spans:
                        return _Within(column, spans, domain, is_part=is_part)
        return _Value(column, is_part=is_part)


def _spans(expr: Expr, kind: PrimitiveType, domain: str, no_nan: bool, *, is_part: bool) -> list[_Span]:
    """The spans of values that a condition allows; none if it may allow any."""
    match expr:
        case Compare(_, op, value):
            found = [_span(op, value, kind, domain, no_nan, is_part=is_part)]
        case In(_, values):
            found = [_span("=", value, kind, domain, no_nan, is_part=is_part) for value in values]
        case StartsWith(_, prefix) if domain == "string":
            found = [_Span(text_bytes(prefix), successor(prefix))]
        case _:
            return []
    spans = [span for span in found if span is not None]
    if len(spans) < len(found):
        return []
    return sorted(spans, key=lambda span: (span.high, span.low)) if len(spans) > 1 else spans


def _span(
    op: str, value: Any, kind: PrimitiveType, domain: str, no_nan: bool, *, is_part: bool
) -> _Span | None:
    limits = _limits(value, kind, is_part=is_part)
    if limits is None:
        return None
    least, most, past, before = limits
    texts = isinstance(least, bytes)
    match op:
        case "=":
            return _Span(least, most)
        case "<":
            return _Span(None, before, below=texts)
        case "<=":
            return _Span(None, most)
        case ">" | ">=":
            if domain == "float" and not no_nan:  # NaN may be the greatest value, and is in no statistics
                return None
            return _Span(past, None, above=texts) if op == ">" else _Span(least, None)
    return None


def _limits(value: Any, kind: PrimitiveType, *, is_part: bool) -> tuple[Any, Any, Any, Any] | None:
    """What a stated maximum must reach and a stated minimum must not exceed for a file to hold a literal.

    The last two are the same for values above and below the literal. What writers may have rounded is counted
    in; partition values are exact.
    """
    encoding = encoding_of(kind)
    if encoding is None or not fits(value, encoding):
        return None
    match encoding:
        case "int" | "boolean" | "date":
            point = day_number(value) if encoding == "date" else int(value)
            return point, point, point + 1, point - 1
        case "timestamp":
            if (value.tzinfo is None) is (kind.name == "timestamp"):
                return None
            point = microseconds(value)
            if is_part:
                return point, point, point + 1, point - 1
            return (
                point - _MILLISECOND,
                _late(point),
                point + 1 - _MILLISECOND,
                _late(point - 1),
            )
        case "double":
            bounds = literal_bounds(value, "double")
            if bounds is None:
                return None
            least, most = _next_single(bounds[0], -math.inf), _next_single(bounds[1], math.inf)
            return least, most, least, most  # two zeros are equal to one engine and ordered to another
        case "decimal":
            return _decimal_limits(value, kind, is_part=is_part)
        case _:
            text = text_bytes(value)
            return text, text, text, text


def _late(point: int) -> int:
    """The last minimum that may stand for a time: before 1970, cutting milliseconds off moved it up."""
    return point if point >= 0 else min(point + _MILLISECOND, -1)


def _next_single(value: float, towards: float) -> float:
    """A bound beyond every double that is written as the same 32-bit float."""
    with np.errstate(over="ignore"):
        found = float(np.nextafter(np.float32(value), np.float32(towards)))
    return min(value, found) if towards < 0 else max(value, found)


def _decimal_limits(
    value: Decimal | int, kind: PrimitiveType, *, is_part: bool
) -> tuple[int, int, int, int] | None:
    if isinstance(value, Decimal) and (not value.is_finite() or abs(value.adjusted()) > 1000):
        return None
    precision, scale = kind.decimal or (0, 0)
    exact = Fraction(value) * 10**scale
    limits = (math.ceil(exact), math.floor(exact), math.floor(exact) + 1, math.ceil(exact) - 1)
    if is_part:
        return limits
    slack = 1  # more digits than the scale has are rounded
    if precision > _ROUNDED_DIGITS:
        slack += 1 + math.ceil(abs(exact) / 2**49)
    least, most, past, before = limits
    return least - slack, most + slack, past - slack, before + slack


def _point(value: Any, kind: PrimitiveType, domain: str, *, is_part: bool) -> Any:
    """The value that all rows of a file must have to be ruled out by !=; None if that cannot be known."""
    encoding = encoding_of(kind)
    if encoding is None or not fits(value, encoding) or domain == "float":
        return None
    exact = _limits(value, kind, is_part=True)
    if exact is None or exact[0] != exact[1]:
        return None
    point = exact[0]
    if not is_part and (domain.startswith("decimal") or (isinstance(value, datetime) and point % 1000 == 0)):
        return None
    return point
