"""Slots: which column of a table lies in which columns of `dl_files`, and what a file's row holds there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol import partition
from deltalakedb.protocol.images import (
    EMPTY,
    IMAX,
    IMIN,
    MISSING,
    encode,
    encode_max,
    encode_min,
    encoding_of,
    level,
)
from deltalakedb.protocol.properties import STATS_COLUMNS
from deltalakedb.protocol.schema import INTEGERS, DataType, Leaf, PrimitiveType, StructType
from deltalakedb.protocol.stat_images import StatReader, stat_reader
from deltalakedb.protocol.stats import FileStats, column_names, parse_stats, stats_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.predicate import Path

__all__ = [
    "INDEXED_SLOTS",
    "PARTITION_SLOTS",
    "SLOT_COLUMNS",
    "STATS_SLOTS",
    "Level",
    "Slot",
    "SlotEncoder",
    "SlotRow",
    "assign_slots",
    "column_types",
    "count_levels",
    "encode_file",
    "partition_value",
    "slot_text",
]

STATS_SLOTS: Final = 16
INDEXED_SLOTS: Final = 4
PARTITION_SLOTS: Final = 4
#: the columns of `dl_files` that a slot row fills, in the table's own order
SLOT_COLUMNS: Final = (
    "num_records",
    *(f"p{i}" for i in range(PARTITION_SLOTS)),
    *(f"k{i}" for i in range(INDEXED_SLOTS)),
    *(f"s{i}_{end}" for i in range(STATS_SLOTS) for end in ("min", "max")),
    "no_nulls",
    "all_nulls",
)
_FIRST_P: Final = 1
_FIRST_K: Final = _FIRST_P + PARTITION_SLOTS
_FIRST_S: Final = _FIRST_K + INDEXED_SLOTS
_NO_NULLS: Final = _FIRST_S + 2 * STATS_SLOTS
_BLANK: Final = (None, *[None] * PARTITION_SLOTS, *[MISSING] * INDEXED_SLOTS, *[None] * 2 * STATS_SLOTS, 0, 0)
#: partition values repeat from file to file; so many are remembered
_MAX_SEEN: Final = 10_000

SlotKind: TypeAlias = Literal["s", "p"]
#: one file's values for `SLOT_COLUMNS`
SlotRow: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A column's place in `dl_files`.

    Attributes:
        kind: ``s`` for images of bounds, ``p`` for the canonical text of a partition value.
        slot: Its number; the first four ``s`` slots are indexed.
        field: The column's physical path.
        encoding: For ``s`` how a value becomes an image, for ``p`` the column's type.
        arg: What the encoding needs to know: a decimal's scale, a common prefix.
        since: Rows of older versions hold something else here and are never judged by it. 0 for a stats slot
            that nothing else used before: old rows then have nulls there, which speak for themselves.
        dropped: The version that gave the slot up; None while it is in use.
    """

    kind: SlotKind
    slot: int
    field: Path
    encoding: str
    arg: str | None = None
    since: int = 0
    dropped: int | None = None


class Level(NamedTuple):
    """How many files of an indexed slot have a width level, and between which images they lie."""

    slot: int
    level: int
    n: int
    lo: int
    hi: int


def column_types(schema: StructType) -> dict[Path, DataType]:
    """The type of every leaf column by its physical path."""
    return {leaf.physical_path: leaf.type for leaf in schema.leaves()}


def assign_slots(
    schema: StructType,
    partition_columns: Sequence[str],
    configuration: Mapping[str, str | None],
    existing: Iterable[Slot] = (),
    *,
    version: int = 0,
) -> list[Slot]:
    """The slots of a table's columns.

    Columns with statistics come first, in the order in which ``delta.dataSkippingStatsColumns`` names them or
    else of the schema, then partition columns, which have a text slot besides.

    Args:
        schema: The table's schema.
        partition_columns: Logical names.
        configuration: The table's properties.
        existing: All slots the table ever had, dropped ones too. A column keeps its slot while its images
            stay the same; a slot that was used before is taken last.
        version: The version that brings the assignment about.

    Returns:
        The slots in use from that version on. What is in ``existing`` and not here is dropped.
    """
    existing = tuple(existing)
    leaves = {leaf.path: leaf for leaf in schema.leaves() if encoding_of(leaf.type) is not None}
    parts = [
        leaves[(found.name,)]
        for c in partition_columns
        if (found := schema.field(c)) and (found.name,) in leaves
    ]
    stats = [
        leaf
        for leaf in stats_leaves(schema, partition_columns, configuration)
        if leaf.path in leaves and leaf.type != PrimitiveType("binary")
    ]
    named = [".".join(name).lower() for name in column_names(configuration.get(STATS_COLUMNS) or "")]
    stats.sort(key=lambda leaf: next((n for n, name in enumerate(named) if _is_below(leaf, name)), 0))
    ranged = parts[:PARTITION_SLOTS]
    wanted = [
        *stats[: STATS_SLOTS - len(ranged)],
        *ranged,
        *stats[STATS_SLOTS - len(ranged) :],
        *parts[PARTITION_SLOTS:],
    ]
    images = [_stats_slot(leaf) for leaf in wanted]
    texts = [Slot("p", 0, leaf.physical_path, _text_type(leaf.type)) for leaf in parts]
    return [
        *_place(images, [s for s in existing if s.kind == "s"], STATS_SLOTS, version),
        *_place(texts, [s for s in existing if s.kind == "p"], PARTITION_SLOTS, version),
    ]


def _is_below(leaf: Leaf, name: str) -> bool:
    return f"{'.'.join(leaf.path).lower()}.".startswith(f"{name}.")


def _stats_slot(leaf: Leaf) -> Slot:
    encoding, arg = encoding_of(leaf.type) or ("int", None)
    return Slot("s", 0, leaf.physical_path, encoding, arg)


def _text_type(kind: DataType) -> str:
    name = kind.name if isinstance(kind, PrimitiveType) else "string"
    return "long" if name in INTEGERS else name  # widening changes no text


def _place(wanted: Sequence[Slot], existing: Sequence[Slot], room: int, version: int) -> list[Slot]:
    current = {s.field: s for s in existing if s.dropped is None}
    kept: dict[Path, Slot] = {}
    for want in wanted:
        have = current.get(want.field)
        same = have is not None and have.encoding == want.encoding
        if have is not None and same and (want.encoding != "decimal" or have.arg == want.arg):
            kept[want.field] = have
    taken = {s.slot for s in kept.values()}
    used = {s.slot for s in existing}
    free = sorted((n for n in range(room) if n not in taken), key=lambda n: (n in used, n))
    placed = list(kept.values())
    for want in wanted:
        if want.field in kept or not free:
            continue
        number = free.pop(0)
        # a text slot has no way to say that it was never filled
        fresh = want.kind == "s" and number not in used
        placed.append(replace(want, slot=number, since=0 if fresh else version))
    return sorted(placed, key=lambda s: s.slot)


def encode_file(
    slots: Sequence[Slot], add: Add, types: Mapping[Path, DataType], stats: FileStats | None = None
) -> SlotRow:
    """One file's values for `SLOT_COLUMNS`; for many files make a `SlotEncoder` once."""
    return SlotEncoder(slots, types).encode(add, stats)


class SlotEncoder:
    """Turns files of one table into slot rows.

    Example:
        >>> encoder = SlotEncoder(slots, column_types(schema))  # doctest: +SKIP
        >>> rows = [encoder.encode(add) for add in adds]  # doctest: +SKIP
        >>> levels = count_levels(rows)  # doctest: +SKIP
    """

    __slots__ = ("_by_name", "_seen", "_stats")

    def __init__(self, slots: Iterable[Slot], types: Mapping[Path, DataType]) -> None:
        self._by_name: dict[str, tuple[str, list[Slot]]] = {}
        self._seen: dict[tuple[str, str | None], tuple[Any, str | None]] = {}
        self._stats: list[tuple[Slot, Path, str, StatReader | None]] = []
        for slot in slots:
            kind = types.get(slot.field)
            if slot.dropped is not None or not isinstance(kind, PrimitiveType):
                continue
            if len(slot.field) == 1:
                self._by_name.setdefault(slot.field[0], (kind.name, []))[1].append(slot)
            if slot.kind == "s":
                self._stats.append((slot, slot.field, kind.name, stat_reader(kind.name, slot.arg)))

    def encode(self, add: Add, stats: FileStats | None = None) -> SlotRow:
        """One file's values for `SLOT_COLUMNS`.

        Args:
            add: The file.
            stats: Its statistics, where they were parsed already.
        """
        row: list[Any] = list(_BLANK)
        if stats is None:
            stats = parse_stats(add.stats)
        no_nulls = all_nulls = 0
        parts = add.partition_values
        for name, text in parts.items():
            if name not in self._by_name:
                continue
            kind, slots = self._by_name[name]
            if (known := self._seen.get((name, text))) is None:
                if len(self._seen) >= _MAX_SEEN:
                    self._seen.clear()
                known = self._seen[name, text] = partition_value(text, kind)
            value, canonical = known
            for slot in slots:
                if slot.kind == "p":
                    row[_FIRST_P + slot.slot] = canonical
                elif canonical is None:
                    all_nulls |= 1 << slot.slot
                    _fill(row, slot.slot, IMAX, IMIN, EMPTY)
                else:
                    no_nulls |= 1 << slot.slot
                    if value is not None:
                        image = encode(value, slot.encoding, slot.arg)
                        _fill(row, slot.slot, image, image, 0)
        if stats is not None:
            records = row[0] = stats.num_records
            for slot, path, kind, read in self._stats:
                if parts and len(path) == 1 and path[0] in parts:
                    continue
                number = slot.slot
                if read is not None and len(path) == 1:
                    name = path[0]
                    least = read(stats.min_values.get(name), False)
                    most = read(stats.max_values.get(name), True)
                    if least is not None and most is not None:
                        if stats.null_count.get(name) == 0:
                            no_nulls |= 1 << number
                        if least <= most:
                            _fill(row, number, least, most, level(least, most))
                        continue
                low, high, nulls = stats.bounds(path, kind)
                if nulls is not None:
                    if nulls == 0:
                        no_nulls |= 1 << number
                    if low is None and high is None and records is not None and nulls >= records:
                        all_nulls |= 1 << number
                        _fill(row, number, IMAX, IMIN, EMPTY)
                        continue
                least = encode_min(low, slot.encoding, slot.arg)
                most = encode_max(high, slot.encoding, slot.arg)
                if least is not None and most is not None and least > most:
                    continue  # bounds that contradict each other bound nothing
                _fill(row, number, least, most, level(least, most))
        row[_NO_NULLS] = no_nulls
        row[_NO_NULLS + 1] = all_nulls
        return tuple(row)


def _fill(row: list[Any], number: int, low: int | None, high: int | None, width: int) -> None:
    row[_FIRST_S + 2 * number] = low
    row[_FIRST_S + 2 * number + 1] = high
    if number < INDEXED_SLOTS:
        row[_FIRST_K + number] = width


def slot_text(text: str) -> str:
    """A partition value's text as databases can hold it: Postgres has no NUL in its texts."""
    return text.replace("\0", "\x01")


def partition_value(text: str | None, kind: str) -> tuple[Any, str | None]:
    """A partition value and its one text; a text that is no value of the type stands for itself."""
    try:
        canonical = partition.canonical(text, kind)
        value: Any = partition.parse(text, kind)
    except ProtocolError:
        value, canonical = None, text
        if kind == "date" and text and text[0] not in "+-":
            # signs sort before digits, so that planning finds every odd year in one place
            canonical = f"+{text}"
    return (None if value != value else value), (None if canonical is None else slot_text(canonical))


def count_levels(rows: Iterable[SlotRow]) -> list[Level]:
    """The rows of `dl_levels` that new files add up to; for missing and empty bounds the range is open."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for row in rows:
        for slot in range(INDEXED_SLOTS):
            width = row[_FIRST_K + slot]
            low, high = IMIN, IMAX
            if width < MISSING:
                low, high = row[_FIRST_S + 2 * slot], row[_FIRST_S + 2 * slot + 1]
            n, lo, hi = found.get((slot, width), (0, low, high))
            found[slot, width] = (n + 1, min(lo, low), max(hi, high))
    return [Level(slot, width, *rest) for (slot, width), rest in sorted(found.items())]
