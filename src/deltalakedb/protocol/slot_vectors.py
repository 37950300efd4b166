"""Slot rows of many files at once: columns instead of objects, equal to `SlotEncoder` value for value.

What a column cannot say as well (text that is not ASCII, a bound without its other half) is left to the
encoder, row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.protocol.images import EMPTY, IMAX, IMIN, MISSING, encode
from deltalakedb.protocol.schema import INTEGERS, DataType, PrimitiveType
from deltalakedb.protocol.slots import INDEXED_SLOTS, PARTITION_SLOTS, Level, Slot, SlotRow, partition_value
from deltalakedb.protocol.stats import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltalakedb.protocol.predicate import Path

__all__ = ["SlotColumns", "SlotVectors"]

_TIMES: Final = ("timestamp", "timestamp_ntz")
_FLOATS: Final = ("float", "double")
_LARGEST: Final = 3e38  # beyond lies what 32 bits cannot hold
_SIGN: Final = np.uint64(1 << 63)

#: numpy's arrays of any element
Numbers = np.ndarray[Any, Any]


class SlotColumns:
    """The slot columns of some files, by name; a column that no slot fills is not there."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.num_records: pa.Array = pa.nulls(rows, pa.int64())
        self.texts: dict[int, pa.Array] = {}
        self.widths = np.full((INDEXED_SLOTS, rows), MISSING, np.int16)
        #: by slot: lower and upper images, and where each is known
        self.bounds: dict[int, tuple[Numbers, Numbers, Numbers, Numbers]] = {}
        self.no_nulls = np.zeros(rows, np.int64)
        self.all_nulls = np.zeros(rows, np.int64)
        #: rows that the encoder has to do
        self.odd = np.zeros(rows, bool)

    def fill(self, slot: int, low: Numbers, high: Numbers, widths: Numbers, known: Numbers) -> None:
        """Set a slot's images and width levels where they are known."""
        self.bounds[slot] = (low, high, known, known.copy())
        if slot < INDEXED_SLOTS:
            self.widths[slot] = np.where(known, widths, MISSING)

    def replace_rows(self, numbers: Sequence[int], rows: Sequence[SlotRow]) -> None:
        """Put rows that the encoder made into their places."""
        first_k = 1 + PARTITION_SLOTS
        first_s = first_k + INDEXED_SLOTS
        for slot in range(INDEXED_SLOTS):
            self.widths[slot, numbers] = [row[first_k + slot] for row in rows]
        for slot, (low, high, *known) in self.bounds.items():
            for side, images in enumerate((low, high)):
                values = [row[first_s + 2 * slot + side] for row in rows]
                images[numbers] = [0 if v is None else v for v in values]
                known[side][numbers] = [v is not None for v in values]
        self.no_nulls[numbers] = [row[-2] for row in rows]
        self.all_nulls[numbers] = [row[-1] for row in rows]

    def arrays(self) -> dict[str, pa.Array]:
        """The columns as Arrow arrays."""
        found = {"num_records": self.num_records}
        found |= {f"p{slot}": array for slot, array in self.texts.items()}
        found |= {f"k{slot}": pa.array(self.widths[slot]) for slot in range(INDEXED_SLOTS)}
        for slot, (low, high, has_low, has_high) in sorted(self.bounds.items()):
            found[f"s{slot}_min"] = pa.array(low, mask=~has_low)
            found[f"s{slot}_max"] = pa.array(high, mask=~has_high)
        found["no_nulls"] = pa.array(self.no_nulls)
        found["all_nulls"] = pa.array(self.all_nulls)
        return found

    def levels(self) -> list[Level]:
        """The width levels that these files add up to."""
        found = []
        for slot in range(INDEXED_SLOTS):
            low, high, *_ = self.bounds.get(slot, (None, None))
            for width in np.unique(self.widths[slot]):
                here = self.widths[slot] == width
                lo, hi = IMIN, IMAX
                if width < MISSING and low is not None and high is not None:
                    lo, hi = int(low[here].min()), int(high[here].max())
                found.append(Level(slot, int(width), int(here.sum()), lo, hi))
        return found


class SlotVectors:
    """Makes slot columns for the files of one table.

    Args:
        slots: The table's slots.
        types: The type of every leaf column by its physical path.
    """

    def __init__(self, slots: Iterable[Slot], types: Mapping[Path, DataType]) -> None:
        self._slots: list[tuple[Slot, str]] = []
        for slot in slots:
            kind = types.get(slot.field)
            if slot.dropped is None and isinstance(kind, PrimitiveType):
                self._slots.append((slot, kind.name))

    def columns(self, stats: pa.Array, partitions: Mapping[str, pa.Array]) -> SlotColumns | None:
        """The columns of some files; None where the encoder has to do all of them.

        Args:
            stats: The statistics' JSON; null where a file has none.
            partitions: The partition values by physical name, each of all files.
        """
        wanted = {}
        for slot, kind in self._slots:
            if slot.kind == "s" and (len(slot.field) > 1 or slot.field[0] not in partitions):
                if len(slot.field) > 1 or _arrow_type(kind) is None or slot.arg:
                    return None  # nested columns, decimals, booleans
                wanted[slot.field[0]] = kind
        parsed = _parse(stats, wanted)
        if parsed is None:
            return None
        made = SlotColumns(len(stats))
        records = parsed.column("numRecords")
        made.num_records = pc.if_else(
            pc.or_(pc.less(records, 0), pc.greater(records, MAX_ROWS)), None, records
        )
        try:
            for slot, kind in self._slots:
                name = slot.field[0]
                if name in partitions:
                    _partition(made, slot, kind, partitions[name])
                elif slot.kind == "p":
                    made.texts[slot.slot] = pa.nulls(made.rows, pa.string())
                else:
                    _stats(made, slot.slot, name, kind, parsed)
        except pa.ArrowException:
            return None  # a text that is no date or time
        return made


def _arrow_type(kind: str) -> pa.DataType | None:
    if kind in INTEGERS:
        return pa.int64()
    if kind in _FLOATS:
        return pa.float64()
    return pa.string() if kind in ("string", "date", *_TIMES) else None


def _parse(stats: pa.Array, wanted: Mapping[str, str]) -> pa.Table | None:
    """The statistics as columns: numRecords, and for every column its bounds and count of nulls."""
    import pyarrow.json as pj  # only an import of tables needs it

    names = list(wanted)
    bounds = pa.struct([(n, _arrow_type(wanted[n])) for n in names])
    shape = pa.schema(
        [
            ("numRecords", pa.int64()),
            ("minValues", bounds),
            ("maxValues", bounds),
            ("nullCount", pa.struct([(n, pa.int64()) for n in names])),
        ]
    )
    filled = pc.fill_null(stats, "{}") if stats.null_count else stats
    whole = pa.ListArray.from_arrays(pa.array([0, len(filled)], pa.int32()), filled.cast(pa.string()))
    text = pc.binary_join(whole, "\n")[0].as_buffer()
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(block_size=1 << 22),
            parse_options=pj.ParseOptions(explicit_schema=shape, unexpected_field_behavior="ignore"),
        ).combine_chunks()
    except pa.ArrowException:
        return None
    if table.num_rows != len(stats):
        return None
    flat: dict[str, pa.Array] = {"numRecords": _one(table.column("numRecords"))}
    for top in ("minValues", "maxValues", "nullCount"):
        for name, array in zip(names, _one(table.column(top)).flatten(), strict=True):
            flat[f"{top}.{name}"] = array
    return pa.table(flat)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _stats(made: SlotColumns, slot: int, name: str, kind: str, parsed: pa.Table) -> None:
    low, high = _one(parsed.column(f"minValues.{name}")), _one(parsed.column(f"maxValues.{name}"))
    nulls = _one(parsed.column(f"nullCount.{name}"))
    has_low, has_high = _valid(low), _valid(high)
    least, fine_low = _images(low, kind, top=False)
    most, fine_high = _images(high, kind, top=True)
    both = has_low & has_high
    made.odd |= (has_low != has_high) | (both & ~(fine_low & fine_high))
    counted, zero = _valid(nulls), _numbers(nulls) == 0
    made.no_nulls |= np.where(counted & zero, np.int64(1 << slot), 0)
    records, told = _numbers(made.num_records), _valid(made.num_records)
    empty = ~has_low & ~has_high & counted & told & (_numbers(nulls) >= records)
    made.odd |= counted & ((_numbers(nulls) < 0) | (_numbers(nulls) > MAX_ROWS))
    made.all_nulls |= np.where(empty, np.int64(1 << slot), 0)
    known = (both & (least <= most)) | empty
    made.fill(
        slot,
        np.where(empty, IMAX, least),
        np.where(empty, IMIN, most),
        np.where(empty, EMPTY, _widths(least, most)),
        known,
    )


def _images(values: pa.Array, kind: str, *, top: bool) -> tuple[Numbers, Numbers]:
    """The images of bounds, and which of them are right; the rest is for the encoder."""
    fine = np.ones(len(values), bool)
    if kind in INTEGERS:
        return _numbers(values), fine
    if kind in _FLOATS:
        raw = values.fill_null(0.0).to_numpy(zero_copy_only=False)
        fine = (raw > -_LARGEST) & (raw < _LARGEST)
        raw = np.where(fine, raw, 0.0)
        single = raw.astype(np.float32).astype(np.float64)
        chosen = np.maximum(raw, single) if top else np.minimum(raw, single)
        bits = np.where(chosen == 0, 0.0, chosen).view(np.int64)
        return np.where(bits >= 0, bits, bits ^ np.int64(IMAX)), fine
    if kind == "string":
        fine = pc.string_is_ascii(values).fill_null(True).to_numpy(zero_copy_only=False)
        heads = pc.utf8_slice_codeunits(pc.if_else(pa.array(fine), values, ""), 0, 8)
        raw = np.array(heads.fill_null("").to_pylist(), dtype="S8")
        return (raw.view(">u8").astype(np.uint64) ^ _SIGN).view(np.int64), fine
    length = pc.fill_null(pc.utf8_length(values), 10 if kind == "date" else 20)
    if kind == "date":
        fine = pc.equal(length, 10).to_numpy(zero_copy_only=False)
        days = pc.if_else(pa.array(fine), values, None).cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        return _numbers(days), fine
    shaped = pc.and_(
        pc.is_in(length, value_set=pa.array([20, 24, 27], length.type)),
        pc.and_(
            pc.fill_null(pc.ends_with(values, "Z"), True),
            pc.fill_null(pc.equal(pc.utf8_slice_codeunits(values, 10, 11), "T"), True),
        ),
    )
    bare = pc.utf8_slice_codeunits(pc.if_else(shaped, values, None), 0, -1)
    micros = _numbers(bare.cast(pa.timestamp("us")).cast(pa.int64()))
    fine = shaped.to_numpy(zero_copy_only=False)
    whole = micros % 1000 == 0
    if top:
        return np.where(whole, micros + 999, micros), fine
    return micros, fine & ~(whole & (micros < 0))


def _widths(low: Numbers, high: Numbers) -> Numbers:
    """Width levels: half the number of bits of the difference, rounded up."""
    span = high.view(np.uint64) - low.view(np.uint64)
    upper, lower = (
        (span >> np.uint64(32)).astype(np.float64),
        (span & np.uint64(0xFFFFFFFF)).astype(np.float64),
    )
    # 32 bits are exact in a double, whose exponent then counts them
    bits = np.where(upper > 0, np.frexp(upper)[1] + 32, np.frexp(lower)[1])
    return ((bits + 1) >> 1).astype(np.int16)


def _partition(made: SlotColumns, slot: Slot, kind: str, values: pa.Array) -> None:
    """A partition column: each distinct value is worked out once."""
    coded = values.dictionary_encode() if not pa.types.is_dictionary(values.type) else values
    distinct = [*coded.dictionary.to_pylist(), None]
    at = coded.indices.fill_null(len(distinct) - 1).to_numpy(zero_copy_only=False)
    known = [partition_value(text, kind) for text in distinct]
    if slot.kind == "p":
        made.texts[slot.slot] = pa.array([c for _, c in known], pa.string()).take(pa.array(at))
        return
    bit = np.int64(1 << slot.slot)
    nothing = np.array([c is None for _, c in known])
    images = np.array(
        [0 if c is None or v is None else encode(v, slot.encoding, slot.arg) for v, c in known], np.int64
    )
    told = np.array([c is None or v is not None for v, c in known])
    made.all_nulls |= np.where(nothing, bit, 0)[at]
    made.no_nulls |= np.where(nothing, 0, bit)[at]
    made.fill(
        slot.slot,
        np.where(nothing, IMAX, images)[at],
        np.where(nothing, IMIN, images)[at],
        np.where(nothing, EMPTY, 0)[at],
        told[at],
    )


def _valid(array: pa.Array) -> Numbers:
    found: Numbers = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _numbers(array: pa.Array) -> Numbers:
    found: Numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
