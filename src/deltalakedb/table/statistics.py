"""What a table's files are like: sizes, small files, partitions, and how well each column prunes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.table.optimize import bins
from deltalakedb.table.read.scan import add_actions
from deltalakedb.table.write.parquet import target_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.table.handle import TableHandle

#: a file is small below this part of the target size
_SMALL: Final = 1 / 4
#: values by which pruning is measured
_POINTS: Final = 10_000
#: a column does not prune if a query for one value reads more than this part of the files
_POOR: Final = 0.5
#: fewer files less are not worth a commit; with fewer files nothing can be pruned
_FEW: Final = 4
_MANY: Final = 16
#: partitions that are listed
_LARGEST: Final = 10


@dataclass(frozen=True, slots=True)
class Pruning:
    """How well a column prunes.

    Attributes:
        column: Its name, dotted if it is in a struct.
        share: The part of the files that a query for one value has to read: 0.01 is good, 1 prunes nothing.
            None if no file has bounds.
        without_bounds: Files without bounds, which are always read.
        is_partition: It is a partition column.
    """

    column: str
    share: float | None
    without_bounds: int
    is_partition: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its values as texts, and its files."""

    values: dict[str, str | None]
    num_files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to do about a table: why, and the command that does it."""

    reason: str
    command: str


@dataclass(frozen=True, slots=True)
class TableStats:
    """What the files of a table are like at a version.

    Attributes:
        table: The table's name.
        version: The version.
        num_files: Its files.
        size_bytes: Their size.
        num_records: Their rows; None if a file has no row count.
        smallest: The size of the smallest file; ``median`` and ``largest`` likewise. None without files.
        target_size: The size that OPTIMIZE aims at.
        small_files: Files below a quarter of it.
        mergeable_files: Files that OPTIMIZE would merge, into ``merged_files``.
        num_partitions: Partitions with files; 0 if the table is not partitioned.
        partitions: The largest of them.
        pruning: The columns that have statistics, best first.
        advice: What would help.
    """

    table: str
    version: int
    num_files: int
    size_bytes: int
    num_records: int | None
    smallest: int | None
    median: int | None
    largest: int | None
    target_size: int
    small_files: int
    mergeable_files: int
    merged_files: int
    num_partitions: int
    partitions: tuple[Partition, ...]
    pruning: tuple[Pruning, ...]
    advice: tuple[Advice, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The statistics as plain data."""
        return asdict(self)


def table_stats(table: TableHandle) -> TableStats:
    """What the files of the open version are like; only the database is read, no file."""
    metadata = table.snapshot.metadata
    files = add_actions(table.source, flatten=True)
    sizes = files.column("size_bytes").to_numpy()
    counts = files.column("num_records")
    target = target_size(metadata)
    named = [f"partition.{name}" for name in metadata.partition_columns]
    columns = [files.column(name).to_pylist() for name in named]
    keys: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if named else [()] * len(sizes)
    partitions: dict[tuple[Any, ...], list[int]] = {}
    for key, size in zip(keys, sizes.tolist(), strict=True):
        partitions.setdefault(key, []).append(size)
    largest = sorted(partitions.items(), key=lambda p: -sum(p[1]))[:_LARGEST] if named else []
    # newest first, as OPTIMIZE takes them
    merged = bins(zip(keys[::-1], sizes.tolist()[::-1], strict=True), target)
    made = TableStats(
        table=table.name,
        version=table.version,
        num_files=len(sizes),
        size_bytes=int(sizes.sum()),
        num_records=None if counts.null_count else int(pc.sum(counts).as_py() or 0),
        smallest=int(sizes.min()) if len(sizes) else None,
        median=int(np.median(sizes)) if len(sizes) else None,
        largest=int(sizes.max()) if len(sizes) else None,
        target_size=target,
        small_files=int((sizes < _SMALL * target).sum()),
        mergeable_files=sum(map(len, merged)),
        merged_files=len(merged),
        num_partitions=len(partitions) if named else 0,
        partitions=tuple(
            Partition(
                {
                    n: None if v is None else str(v)
                    for n, v in zip(metadata.partition_columns, key, strict=True)
                },
                len(found),
                sum(found),
            )
            for key, found in largest
        ),
        pruning=tuple(sorted(_pruning(files), key=lambda p: (p.share is None, p.share, p.column))),
    )
    return replace(made, advice=tuple(_advice(made)))


def _pruning(files: pa.Table) -> Iterator[Pruning]:
    for name in files.column_names:
        kind, _, column = name.partition(".")
        if kind == "partition":
            values = files.column(name)
            if (share := _share(values, values, files.num_rows, 0)) is not None:
                yield Pruning(column, share, 0, is_partition=True)
        elif kind == "min" and f"max.{column}" in files.column_names:
            lows, highs = files.column(name), files.column(f"max.{column}")
            bounded = pc.and_(lows.is_valid(), highs.is_valid())
            nulls = files.column(f"null_count.{column}")
            # a file whose values are all null has no bounds, and no query for a value reads it
            empty = pc.fill_null(pc.equal(nulls, files.column("num_records")), False)
            without = pc.sum(pc.invert(pc.or_(bounded, empty))).as_py() or 0
            share = _share(lows.filter(bounded), highs.filter(bounded), files.num_rows, without)
            yield Pruning(column, share, without)


def _share(lows: pa.ChunkedArray, highs: pa.ChunkedArray, total: int, always: int) -> float | None:
    """The mean part of the files whose bounds hold a value, over values that are the bounds of files."""
    if len(lows) == 0:
        return None
    both = pa.chunked_array([*lows.chunks, *highs.chunks], lows.type)
    try:
        ranks = pc.rank(both, tiebreaker="dense").to_numpy()
    except pa.ArrowNotImplementedError:
        return None  # a type without an order
    starts, ends = np.sort(ranks[: len(lows)]), np.sort(ranks[len(lows) :])
    points = ranks[:: max(1, len(ranks) // _POINTS)]
    overlapping = np.searchsorted(starts, points, "right") - np.searchsorted(ends, points, "left")
    return float((overlapping.mean() + always) / total)


def _advice(found: TableStats) -> Iterator[Advice]:
    name = found.table
    if found.mergeable_files - found.merged_files >= _FEW:
        yield Advice(
            f"{found.mergeable_files:,} of {found.num_files:,} files can become {found.merged_files:,}",
            f"deltasql optimize {name}",
        )
    known = [p for p in found.pruning if p.share is not None and not p.is_partition]
    files = found.num_files / max(1, found.num_partitions)
    if files >= _MANY and known and all(p.share is not None and p.share > _POOR for p in known):
        yield Advice(
            "no column prunes: a query for one value reads most of the files; name the column you filter by",
            f"deltasql optimize {name} --zorder {known[0].column}",
        )
