"""Packs in the database: reading their columns, and packing recent files.

A pack is derived from rows and statistics, so packing needs no lock: it deletes exactly what it read, and if
another process was faster, nothing happens.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from deltalakedb.exceptions import CatalogBusyError, CatalogCorruptError, CatalogError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore.engines.base import arrow_array
from deltalakedb.metastore.files.rows import (
    PACK_MIN,
    id_range,
    live_schema,
    make_pack,
    pack_ranges,
    write_packs,
)
from deltalakedb.protocol.arrow_values import arrow_type, int_array
from deltalakedb.protocol.pack_filter import Zones
from deltalakedb.protocol.packs import PACK_SIZE, ColumnData, column_name, decode_block
from deltalakedb.protocol.stats_columns import LeafColumns, has_bounds, stats_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session, SessionSource
    from deltalakedb.protocol.packs import Mask
    from deltalakedb.protocol.schema import Leaf

logger = logging.getLogger(__name__)

Ids = np.ndarray[Any, np.dtype[np.int64]]

#: packs whose columns are in memory at once
_PACKS_AT_ONCE: Final = 64
#: so many small packs in a row are merged, and larger ones are not small
_MERGED: Final = 8
_SMALL: Final = PACK_SIZE // 2
#: recent files that are packed together
_STEP: Final = 4 * PACK_SIZE
#: attempts to read what packers move meanwhile
_TRIES: Final = 5


class PackRow(NamedTuple):
    """A pack: the ids that it covers, and how many of them are files."""

    first_id: int
    last_id: int
    num_files: int


@dataclass(frozen=True, slots=True)
class PackStatus:
    """How the statistics of a table's files are stored; sizes in bytes."""

    packs: int
    packed_files: int
    recent_files: int
    column_bytes: int
    block_bytes: int


def pack_status(db: SessionSource, table_id: int) -> PackStatus:
    row = db.row(db.sql("files", "pack status"), id_range(table_id) * 5)
    return PackStatus(*(int(value) for value in row or (0,) * 5))


def packs_of(session: Session, table_id: int) -> list[PackRow]:
    return [PackRow(*r) for r in session.rows(session.sql("files", "packs"), id_range(table_id))]


def zones_of(
    session: Session, table_id: int, packs: Sequence[PackRow], names: Collection[str]
) -> dict[str, Zones]:
    """The zones of some columns, aligned with the packs; a pack that was replaced meanwhile has none."""
    if not names or not packs:
        return {}
    at = {(pack.first_id, pack.last_id): number for number, pack in enumerate(packs)}
    many = len(packs)
    zones = {
        n: Zones(np.zeros(many, np.int64), np.zeros(many, np.int64), np.zeros(many, bool)) for n in names
    }
    sql = session.sql("files", "zones").expand(len(names))
    for first, last, name, low, high in session.rows(sql, (*id_range(table_id), *names)):
        if low is not None and high is not None and (number := at.get((first, last))) is not None:
            found = zones[name]
            found.low[number], found.high[number], found.known[number] = low, high, True
    return zones


def columns_of(
    session: Session,
    packs: Sequence[PackRow],
    names: Collection[str],
    needless: Mapping[str, Mask] | None = None,
) -> Iterator[Sequence[tuple[PackRow, Mapping[str, bytes]]]]:
    """The columns of packs, of some at a time.

    Left out are columns that a pack does not have, and all of a pack that was replaced meanwhile.

    Args:
        session: A session.
        packs: The packs.
        names: The columns.
        needless: For some of them, masks over the packs: true if the column is not to be read.

    Raises:
        CatalogCorruptError: A column is not what was written.
    """
    if not names:
        yield [(pack, {}) for pack in packs]
        return
    for start in range(0, len(packs), _PACKS_AT_ONCE):
        part = packs[start : start + _PACKS_AT_ONCE]
        together: dict[tuple[str, ...], list[int]] = {}
        for number, pack in enumerate(part, start):
            needed = tuple(n for n in names if not (needless and n in needless and needless[n][number]))
            together.setdefault(needed, []).append(pack.first_id)
        sql = " UNION ALL ".join(
            "SELECT c.first_id, p.last_id, c.name, c.crc, c.data"  # noqa: S608 - placeholders
            " FROM dl_packs p CROSS JOIN dl_pack_columns c"
            f" WHERE p.first_id IN ({', '.join('?' * len(ids))}) AND c.first_id = p.first_id"
            f" AND c.name IN ({', '.join('?' * len(some))})"
            for some, ids in together.items()
        )
        params = [value for some, ids in together.items() for value in (*ids, *some)]
        found: dict[tuple[int, int], dict[str, bytes]] = {}
        for first, last, name, crc, data in session.blobs(sql, params):
            found.setdefault((first, last), {})[name] = checked(data, crc, f"column {name}")
        yield [(pack, found.get((pack.first_id, pack.last_id), {})) for pack in part]


def checked(data: bytes, crc: int, what: str) -> bytes:
    """Return the data if it has this checksum."""
    if zlib.crc32(data) != crc:
        raise CatalogCorruptError(
            f"a pack of file statistics is damaged: {what} does not have its checksum",
            suggestion="run `deltasql packs … --rebuild`; if that fails, restore the catalog from a backup",
        )
    return bytes(data)


def stats_of(session: Session, ids: Ids) -> pa.Array:
    """The statistics of files as JSON, in the order of their ids.

    Recent ones are read before packed ones: a packer that runs meanwhile can only repeat some. If it merges
    blocks between the reads of their list and of their data, what is missing is read again.

    Raises:
        CatalogCorruptError: The catalog has none for a file.
        FilesGoneError: A file was deleted meanwhile.
    """
    if not len(ids):
        return arrow_array([], pa.string())
    lost = ids
    for _ in range(_TRIES):
        known, texts = _known_stats(session, ids)
        lost = ids[~np.isin(ids, known)]
        if not len(lost):
            order = np.argsort(known, kind="stable")
            return texts.take(int_array(order[np.searchsorted(known, ids, sorter=order)]))
    if session.row("SELECT 1 FROM dl_files WHERE file_id = ?", (int(lost[0]),)) is None:
        raise FilesGoneError
    raise CatalogCorruptError(
        f"the catalog has no statistics for file {int(lost[0])}",
        suggestion="run `deltasql doctor`; restore the catalog from a backup",
    )


def leaf_columns(session: Session, table_id: int, ids: Ids, leaves: Sequence[Leaf]) -> LeafColumns:
    """The statistics of files as columns, in the order of their ids: of packs, else of their JSON."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    known = {column_name(str(leaf.type), leaf.physical_path) for leaf in leaves}
    kinds: dict[str, pa.DataType] = {"rows": pa.int64()}
    for leaf in leaves:
        kinds[column_name("nulls", leaf.physical_path)] = pa.int64()
        if has_bounds(leaf):
            bounds = (column_name(side, leaf.physical_path) for side in ("low", "high"))
            kinds |= dict.fromkeys(bounds, arrow_type(leaf.type))
    found: dict[str, list[pa.Array]] = {name: [] for name in kinds}
    left = np.ones(len(ids), bool)
    every = columns_of(session, packs_of(session, table_id), ("leaves", *kinds))
    for pack, columns in chain.from_iterable(every):
        begin, end = np.searchsorted(ordered, (pack.first_id, pack.last_id + 1)).tolist()
        # a pack of another schema may lack what its files state
        if "leaves" not in columns or not known.issubset(decode_block(columns["leaves"]).to_pylist()):
            continue
        places = ordered[begin:end] - pack.first_id
        whole = len(places) == pack.last_id - pack.first_id + 1
        for name, arrays in found.items():
            if name not in columns:
                arrays.append(pa.nulls(len(places), kinds[name]))
                continue
            values = ColumnData(columns[name]).values()
            arrays.append(values if whole else values.take(int_array(places)))
        left[begin:end] = False
    parsed = stats_columns(stats_of(session, ordered[left]), leaves)
    # what is read of packs comes first, then the rest
    moved = np.empty(len(ids), np.int64)
    moved[order[np.concatenate([np.flatnonzero(~left), np.flatnonzero(left)])]] = np.arange(len(ids))
    as_is = bool((np.diff(moved) == 1).all())

    def column(name: str, rest: pa.Array) -> pa.Array:
        joined = pa.concat_arrays([*found[name], rest])
        return joined if as_is else joined.take(int_array(moved))

    paths = {leaf.path: leaf.physical_path for leaf in leaves}
    groups = (("nulls", parsed.nulls), ("low", parsed.lows), ("high", parsed.highs))
    return LeafColumns(
        column("rows", parsed.num_records),
        *({p: column(column_name(kind, paths[p]), a) for p, a in group.items()} for kind, group in groups),
    )


def _known_stats(session: Session, ids: Ids) -> tuple[Ids, pa.Array]:
    """The statistics that are found: the ids, in no order and some twice, and the JSON."""
    recent = session.rows(session.sql("files", "recent stats"), (int(ids.min()), int(ids.max())))
    known = [np.array([row[0] for row in recent], np.int64)]
    texts = [arrow_array([row[1] for row in recent], pa.string())]
    left = np.sort(ids[~np.isin(ids, known[0])])
    for start, data in _blocks(session, left):
        decoded = decode_block(data)
        begin, end = np.searchsorted(left, (start, start + len(decoded)))
        known.append(left[begin:end])
        texts.append(decoded.take(int_array(left[begin:end] - start)))
    return np.concatenate(known), pa.concat_arrays(texts)


def _blocks(session: Session, ids: Ids) -> Iterator[tuple[int, bytes]]:
    """The blocks that some ascending ids are in: their first ids and their data."""
    if not len(ids):
        return
    # no block has more ids than a pack
    ranges = session.rows(
        session.sql("files", "blocks"), (int(ids[-1]), int(ids[0]), int(ids[0]) - PACK_SIZE)
    )
    wanted = [
        start for start, end in ranges if np.searchsorted(ids, start) < np.searchsorted(ids, end, "right")
    ]
    for at in range(0, len(wanted), _PACKS_AT_ONCE):
        part = wanted[at : at + _PACKS_AT_ONCE]
        for start, crc, data in session.blobs(session.sql("files", "block data").expand(len(part)), part):
            yield start, checked(data, crc, "a block of statistics")


# ---- packing ----


def pack_if_due(db: Database, table_id: int, *, at_least: int = PACK_MIN) -> int:
    """Pack recent files of a table if there are many, and merge small packs; the number of files packed."""
    with db.read() as session:
        bounds = id_range(table_id)
        count = (session.row(session.sql("files", "count recent"), bounds) or (0,))[0]
        if count < max(1, at_least):
            return 0
        packs = packs_of(session, table_id)
        recent = [row[0] for row in session.rows(session.sql("files", "recent ids"), bounds)]
    done = sum(repack(db, table_id, begin, end) for begin, end in _runs(recent, packs))
    if done:
        merge_packs(db, table_id)
    return done


def _runs(recent: Sequence[int], packs: Sequence[PackRow]) -> Iterator[tuple[int, int]]:
    """Ranges of recent ids without a pack in between, and not too many at once."""
    if not recent:
        return
    ids = np.array(recent, np.int64)
    before = np.searchsorted(np.array([p.first_id for p in packs], np.int64), ids, "right")
    breaks = [0, *(np.flatnonzero(np.diff(before)) + 1).tolist(), len(ids)]
    for start, stop in pairwise(breaks):
        for at in range(start, stop, _STEP):
            yield int(ids[at]), int(ids[min(at + _STEP, stop) - 1])


def pack_all(db: Database) -> int:
    """Pack every table with many recent files; the number of files packed. A damaged one is left out."""
    with db.read() as session:
        tables = session.rows(session.sql("files", "tables to pack"), (PACK_MIN,))
    done = 0
    for (table_id,) in tables:
        try:
            done += pack_if_due(db, table_id)
        except CatalogCorruptError as error:
            logger.error("the files of table %d cannot be packed: %s", table_id, error.message)
    return done


def merge_packs(db: Database, table_id: int) -> None:
    """Merge runs of small packs."""
    with db.read() as session:
        packs = packs_of(session, table_id)
    run: list[PackRow] = []
    for pack in [*packs, None]:
        small = pack is not None and pack.num_files < _SMALL
        fits = pack is not None and (not run or pack.last_id - run[0].first_id < PACK_SIZE)
        if small and fits and pack is not None:
            run.append(pack)
            continue
        if len(run) >= _MERGED:
            repack(db, table_id, run[0].first_id, run[-1].last_id)
        run = [pack] if small and pack is not None else []


def rebuild(db: Database, table_id: int) -> int:
    """Build all packs of a table again; the number of files packed."""
    with db.read() as session:
        packs = packs_of(session, table_id)
    done = sum(repack(db, table_id, pack.first_id, pack.last_id) for pack in packs)
    return done + pack_if_due(db, table_id, at_least=1)


def repack(db: Database, table_id: int, first: int, last: int) -> int:
    """Pack the files with ids in a range, whether they are recent or in packs; a pack is never cut.

    Returns:
        The number of files; 0 if another process packed some of them meanwhile.
    """
    with db.read() as session:
        if (found := live_schema(session, table_id)) is None:
            return 0
        packs = _overlapping(session, table_id, first, last)
        first, last = min([first, *(p.first_id for p in packs)]), max([last, *(p.last_id for p in packs)])
        recent = len(session.rows(session.sql("files", "recent stats"), (first, last)))
        blocks = len(session.rows(session.sql("files", "blocks inside"), (first, last)))
        rows = session.rows(session.sql("files", "rows to pack"), (first, last))
        if not rows:
            return 0
        ids = np.array([r[0] for r in rows], np.int64)
        try:
            stats = stats_of(session, ids)
        except FilesGoneError:
            return 0
        except CatalogCorruptError:
            if _overlapping(session, table_id, first, last) != packs:
                return 0  # another process is packing
            raise
    paths, values = (arrow_array([r[at] for r in rows], pa.string()) for at in (1, 2))
    numbers = ids - first
    made = [
        make_pack(numbers[b:e], paths[b:e], stats[b:e], values[b:e], *found) for b, e in pack_ranges(numbers)
    ]
    try:
        with db.write() as session:
            deleted = [
                session.run(session.sql("files", name), (first, last))
                # in the order in which tables are dropped: else the two could wait for each other
                for name in ("range stats", "delete blocks", "range columns", "delete packs")
            ]
            if (deleted[0], deleted[1], deleted[3]) != (recent, blocks, len(packs)):
                raise _PackedMeanwhileError
            failpoint("pack.deleted")
            write_packs(session, first, made)
            failpoint("pack.written")
    except _PackedMeanwhileError:
        return 0
    return len(rows)


def unpack(session: Session, table_id: int, first: int, last: int) -> None:
    """Before the files of a range are deleted, make the others recent that share packs with them."""
    for pack in _overlapping(session, table_id, first, last):
        if first <= pack.first_id and pack.last_id <= last:
            continue
        bounds = pack.first_id, pack.last_id
        rows = session.rows(session.sql("files", "rows to pack"), bounds)
        ids = np.array([r[0] for r in rows if not first <= r[0] <= last], np.int64)
        stats = stats_of(session, ids).to_pylist()
        for name in ("delete blocks", "range columns", "delete packs"):
            session.run(session.sql("files", name), bounds)
        session.insert("dl_file_stats", ("file_id", "stats"), list(zip(ids.tolist(), stats, strict=True)))


def _overlapping(session: Session, table_id: int, first: int, last: int) -> list[PackRow]:
    return [p for p in packs_of(session, table_id) if p.first_id <= last and p.last_id >= first]


class FilesGoneError(CatalogBusyError):
    """Files were deleted between two statements of a reader."""

    def __init__(self) -> None:
        super().__init__(
            "the table was dropped, or versions of it were taken back, meanwhile", suggestion="read it again"
        )


class _PackedMeanwhileError(CatalogError):
    """Another process packed the same files."""

    def __init__(self) -> None:
        super().__init__("another process packed the same files")
