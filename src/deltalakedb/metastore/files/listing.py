"""Reading files: all of a version, those that may match a predicate, or some by path or id."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from deltalakedb import telemetry
from deltalakedb.metastore.engines.base import Row, Session, SessionSource, arrow_array
from deltalakedb.metastore.files import packs
from deltalakedb.metastore.files.rows import COLUMNS, MORE, add_from_row, id_range, more_columns
from deltalakedb.metastore.rows import File, OpenTable, Table
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.arrow_values import int_array, int_values
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.pack_filter import PackFilter
from deltalakedb.protocol.packs import find_hashes, path_hashes
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.predicate import Expr, to_physical
from deltalakedb.protocol.schema import StructType, column_types, parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import FileKey
    from deltalakedb.protocol.schema import Leaf
    from deltalakedb.protocol.stats_columns import LeafColumns

Ids = np.ndarray[Any, np.dtype[np.int64]]

#: columns that can be read, with their Arrow types
FILE_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("dv_id", pa.string()),
        ("size", pa.int64()),
        ("modification_time", pa.int64()),
        ("data_change", pa.bool_()),
        ("num_records", pa.int64()),
        ("add_version", pa.int64()),
        ("file_id", pa.int64()),
        ("stats", pa.string()),
        ("partition_values", pa.string()),
        ("tags", pa.string()),
        ("deletion_vector", pa.string()),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
        ("clustering_provider", pa.string()),
        ("add_extra", pa.string()),
    ]
)
ADD_COLUMNS: Final = tuple(
    n for n in FILE_SCHEMA.names if n not in ("dv_id", "num_records", "add_version", "file_id")
)
#: what a checkpoint keeps of a file
STREAM_COLUMNS: Final = tuple(n for n in ADD_COLUMNS if n not in ("data_change", "add_extra"))
_RARE: Final = frozenset({"deletion_vector", *MORE})
_IN_ROWS: Final = frozenset({*COLUMNS.names, "file_id"})
#: texts and numbers that every row has
_PLAIN: Final = _IN_ROWS - {"remove_version", "deletion_timestamp", "num_records", "data_change"}

#: ids in one statement
_AT_ONCE: Final = 20_000
#: rows fetched at once
PAGE: Final = 20_000
#: the same of a list that is kept as a whole
_LONG_PAGE: Final = 1 << 16
#: with statistics, which may be long: of the first page, the least of any, and bytes of the others
FIRST_PAGE: Final = 100
_LEAST_PAGE: Final = 10
_PAGE_BYTES: Final = 32 << 20
#: rows of a pack are read by a range of ids if so many are wanted, and this part of those in between
_RANGE_FROM: Final = 64
_DENSE: Final = 1 / 8
_ALIVE: Final = "f.add_version <= ? AND (f.remove_version IS NULL OR f.remove_version > ?)"


# ---- planning ----


def scan_files(
    db: SessionSource, opened: OpenTable, columns: Sequence[str], *, where: Expr | None = None
) -> pa.Table:
    """The files of a version that may hold rows a predicate asks for, by id.

    Recent files are read first: what a packer moves meanwhile is found twice, never missed.
    """
    wanted, version = list(columns), opened.snapshot.version
    with telemetry.timed("plan_duration_seconds", engine=db.dialect.name), db.read() as session:
        if where is None:
            every = pages(session, opened.table.table_id, version, wanted, most=_LONG_PAGE)
            return pa.concat_tables([page.select(wanted) for page in every])
        schema = parse_schema(opened.snapshot.metadata.schema_string)
        where = to_physical(where, schema)
        exact = FileFilter(where, column_types(schema))
        recent = _recent(session, opened, wanted, exact)
        found = [recent, *_packed(session, opened, wanted, where, schema, exact)]
    names = [*dict.fromkeys((*wanted, "file_id"))]
    files = pa.concat_tables([table.select(names) for table in found])
    ids = int_values(files.column("file_id"))
    unique = np.unique(ids, return_index=True)[1]
    if len(unique) < len(ids) or (np.diff(unique) < 0).any():
        files = files.take(int_array(unique))
    return files.select(wanted)


def _recent(session: Session, opened: OpenTable, wanted: Sequence[str], exact: FileFilter) -> pa.Table:
    """The recent files that may match."""
    version = opened.snapshot.version
    names = [*dict.fromkeys((*(n for n in wanted if n in _IN_ROWS), "file_id", "partition_values"))]
    sql = (
        f"SELECT {', '.join(f'f.{n}' for n in names)}, s.stats"  # noqa: S608 - names of ours
        " FROM dl_file_stats s CROSS JOIN dl_files f"
        f" WHERE s.file_id >= ? AND s.file_id < ? AND f.file_id = s.file_id AND {_ALIVE}"
    )
    schema = pa.schema([*(FILE_SCHEMA.field(n) for n in names), FILE_SCHEMA.field("stats")])
    rows = session.arrow(sql, (*id_range(opened.table.table_id), version, version), schema)
    values, stats = (rows.column(n).to_pylist() for n in ("partition_values", "stats"))
    keep = [exact.may_match(parse_stats(s), decode_json(v)) for s, v in zip(stats, values, strict=True)]
    return _complete(session, _filter(rows, keep), wanted)


def _packed(
    session: Session,
    opened: OpenTable,
    wanted: Sequence[str],
    where: Expr,
    schema: StructType,
    exact: FileFilter,
) -> Iterator[pa.Table]:
    """The packed files that may match: by zones, by columns, by the partition values of their rows."""
    metadata, table_id = opened.snapshot.metadata, opened.table.table_id
    physical = {f.name: f.physical_name for f in schema.fields}
    parts = [physical.get(name, name) for name in metadata.partition_columns]
    test = PackFilter(where, schema, parts)
    if not any(name.startswith('["part"') for name in test.names):
        parts = []  # the predicate is about no partition column
    rows = packs.packs_of(session, table_id)
    zones = packs.zones_of(session, table_id, rows, test.zone_names)
    alive = test.packs(zones, len(rows))
    left = [pack for pack, may in zip(rows, alive.tolist(), strict=True) if may]
    needless = {name: mask[alive] for name, mask in test.needless(zones).items()}

    @cache
    def may_match(values: str) -> bool:
        return exact.may_match(None, decode_json(values))

    sparse: list[Ids] = []
    need = wanted if "partition_values" in wanted or not parts else [*wanted, "partition_values"]
    for some in packs.columns_of(session, left, test.names, needless):
        masks = test.files([(columns, pack.last_id - pack.first_id + 1) for pack, columns in some])
        for (pack, _), mask in zip(some, masks, strict=True):
            hits = np.flatnonzero(mask) + pack.first_id
            if len(hits) < max(_RANGE_FROM, (hits[-1] - hits[0]) * _DENSE if len(hits) else 0):
                sparse.append(hits)
            else:
                yield _exact(_in_range(session, opened, need, hits), parts, may_match)
    if sparse:
        yield _exact(_by_ids(session, opened, need, np.concatenate(sparse)), parts, may_match)


def _exact(found: pa.Table, parts: Collection[str], may_match: Callable[[str], bool]) -> pa.Table:
    """The files whose partition values may match."""
    if not parts or not found.num_rows:
        return found
    values = found.column("partition_values").to_pylist()
    passed = {value: may_match(value) for value in set(values)}
    return found if all(passed.values()) else _filter(found, [passed[value] for value in values])


def _filter(found: pa.Table, keep: list[bool]) -> pa.Table:
    # the first filter of a process makes Arrow load all its functions, mostly for nothing
    return found if all(keep) else found.filter(arrow_array(keep, pa.bool_()))


def _in_range(session: Session, opened: OpenTable, wanted: Sequence[str], hits: Ids) -> pa.Table:
    """The files with these ascending ids, which are many of those between the first and the last."""
    version = opened.snapshot.version
    condition = f"f.file_id >= ? AND f.file_id <= ? AND {_ALIVE}"
    bounds = int(hits[0]), int(hits[-1])
    found = _rows(session, wanted, condition, (*bounds, version, version), complete=False)
    if len(hits) < bounds[1] - bounds[0] + 1:
        keep = np.isin(int_values(found.column("file_id")), hits, assume_unique=True)
        found = found.take(int_array(np.flatnonzero(keep)))
    return _complete(session, found, wanted)


def _by_ids(session: Session, opened: OpenTable, wanted: Sequence[str], ids: Ids) -> pa.Table:
    version = opened.snapshot.version
    return rows_by_id(session, wanted, ids, f" AND {_ALIVE}", (version, version))


def rows_by_id(
    session: Session, wanted: Sequence[str], ids: Ids, condition: str = "", params: Sequence[Any] = ()
) -> pa.Table:
    """Files by their ids; ids that no file has are left out."""
    found = []
    for start in range(0, max(1, len(ids)), _AT_ONCE):
        part = session.id_list(ids[start : start + _AT_ONCE].tolist())
        where = f"f.file_id IN ({session.dialect.ids}){condition}"
        found.append(_rows(session, wanted, where, (part, *params), complete=False))
    return _complete(session, pa.concat_tables(found), wanted)


def _rows(
    session: Session,
    wanted: Sequence[str],
    where: str,
    params: Sequence[Any],
    *,
    complete: bool = True,
    paged: bool = False,
) -> pa.Table:
    """Columns of files that a condition selects, with their ids; pages are many rows, ordered by a limit."""
    names = [*dict.fromkeys((*(n for n in wanted if n in _IN_ROWS), "file_id"))]
    sql = f"SELECT {', '.join(f'f.{n}' for n in names)} FROM dl_files f WHERE {where}"  # noqa: S608 - names of ours
    schema = pa.schema([FILE_SCHEMA.field(n) for n in names])
    read = session.arrow_page if paged and _PLAIN.issuperset(names) else session.arrow
    found = read(sql, params, schema)
    return _complete(session, found, wanted) if complete else found


def _complete(session: Session, found: pa.Table, wanted: Sequence[str]) -> pa.Table:
    """Rows with the columns that are stored elsewhere, in the order wanted, and their ids."""
    names = [*dict.fromkeys((*wanted, "file_id"))]
    missing = [n for n in names if n not in found.column_names]
    if missing:
        ids = int_values(found.column("file_id"))
        rare = _rare(session, ids) if _RARE.intersection(missing) else {}
        for name in missing:
            field = FILE_SCHEMA.field(name)
            if name == "stats":
                column = packs.stats_of(session, ids)
            elif not rare:
                column = pa.nulls(len(ids), field.type)
            else:
                values = [rare[i].get(name) if i in rare else None for i in ids.tolist()]
                column = arrow_array(values, field.type)
            found = found.append_column(field, column)
    return found.select(names)


def _rare(session: Session, ids: Ids) -> Mapping[int, Mapping[str, Any]]:
    """What few files have, by id and column.

    Whatever deletes some files of a table deletes the last ones: the last one is looked at by the same
    statement, since a file whose deletion vector vanished would show rows that are deleted.
    """
    if not len(ids):
        return {}
    first, last = int(ids.min()), int(ids.max())
    if len(ids) < (last - first) * _DENSE:
        chosen = f"file_id IN ({session.dialect.ids})"
        sql = (
            f"SELECT file_id, deletion_vector, more FROM dl_file_details WHERE {chosen}"  # noqa: S608
            " UNION ALL SELECT NULL, NULL, NULL FROM dl_files WHERE file_id = ?"
        )
        parts = [ids[at : at + _AT_ONCE].tolist() for at in range(0, len(ids), _AT_ONCE)]
        found = [session.rows(sql, (session.id_list(part), last)) for part in parts]
    else:
        found = [session.rows(session.sql("files", "details"), (first, last, last))]
    if not all(any(file_id is None for file_id, _, _ in rows) for rows in found):
        raise packs.FilesGoneError
    return {
        file_id: {"deletion_vector": vector, **more_columns(more)}
        for rows in found
        for file_id, vector, more in rows
        if file_id is not None
    }


# ---- all files of a version ----


def read_adds(db: SessionSource, opened: OpenTable, *, where: Expr | None = None) -> Iterator[Add]:
    return (file.add for file in read_files(db, opened, where=where))


def read_files(db: SessionSource, opened: OpenTable, *, where: Expr | None = None) -> Iterator[File]:
    columns = (*ADD_COLUMNS, "add_version", "num_records")
    if where is None:
        found = pages(db, opened.table.table_id, opened.snapshot.version, columns)
    else:
        found = iter([scan_files(db, opened, columns, where=where)])
    for page in found:
        for batch in page.to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                yield File(add_from_row(row), row["add_version"], row["num_records"])


def read_some(db: SessionSource, file_ids: Sequence[int]) -> Iterator[Add]:
    """Files by their ids, as the add actions they came as."""
    with db.read() as session:
        found = rows_by_id(session, ADD_COLUMNS, np.array(sorted(file_ids), np.int64))
    return (add_from_row(row) for row in found.to_pylist())


def stream_files(
    db: SessionSource,
    opened: OpenTable,
    *,
    columns: Sequence[str] = STREAM_COLUMNS,
    between: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every file of a version, or those with sequence numbers in a range, by id and with bounded memory."""
    for found in pages(db, opened.table.table_id, opened.snapshot.version, columns, between):
        yield from found.select(list(columns)).to_batches()


def pages(
    db: SessionSource,
    table_id: int,
    version: int,
    columns: Sequence[str],
    between: tuple[int, int] | None = None,
    most: int = PAGE,
) -> Iterator[pa.Table]:
    """Every file of a version, at most so many at a time, by id and with the ids as the last column."""
    first, end = id_range(table_id)
    if between is not None:
        first, end = first + between[0], first + between[1]
    condition = f"f.file_id >= ? AND f.file_id < ? AND {_ALIVE} ORDER BY f.file_id LIMIT ?"
    size = FIRST_PAGE if "stats" in columns else most
    while True:
        with db.read() as session:
            found = _rows(session, columns, condition, (first, end, version, version, size), paged=True)
        yield found
        if found.num_rows < size:
            return
        first = found.column("file_id")[-1].as_py() + 1
        size = next_page(found.nbytes, found.num_rows, most)


def next_page(size: int, rows: int, most: int = PAGE) -> int:
    """How many rows to read next, after some rows of a size in bytes."""
    return min(most, max(_LEAST_PAGE, _PAGE_BYTES * rows // max(1, size)))


def files_since(
    db: SessionSource, opened: OpenTable, version: int, columns: Sequence[str]
) -> tuple[pa.Table, set[int]]:
    """The files that a version has and an earlier one has not, and the ids of those that it lost."""
    table_id, now = opened.table.table_id, opened.snapshot.version
    with db.read() as session:
        new = added_between(session, table_id, version, now, columns, live=True)
        lost = session.rows(db.sql("files", "removed between"), (table_id, version, now, version))
    return new.select(list(columns)), {row[0] for row in lost}


def added_between(
    session: Session, table_id: int, older: int, newer: int, columns: Sequence[str], *, live: bool
) -> pa.Table:
    """Files that versions after one have added, up to another; with ``live``, those that live there."""
    after, end = last_at(session, table_id, older), id_range(table_id)[1]
    condition = _ALIVE if live else "f.add_version <= ?"
    params = (newer, newer) if live else (newer,)
    return _rows(session, columns, f"f.file_id > ? AND f.file_id < ? AND {condition} ORDER BY f.file_id",
                 (after, end, *params))  # fmt: skip


def last_at(session: Session, table_id: int, version: int) -> int:
    """The id of the last file that a version or an earlier one added, or the one before the first."""
    first, end = id_range(table_id)
    row = session.row(session.sql("files", "last at"), (first, end, version))
    return first - 1 if row is None else int(row[0])


def difference(db: SessionSource, table: Table, older: int, newer: int) -> tuple[list[Add], list[Add]]:
    """The files that only the older of two versions has, and those that only the newer one has.

    What was changed in between is read, however many files the table has.
    """
    with db.read() as session:
        come = added_between(session, table.table_id, older, newer, ADD_COLUMNS, live=True)
        rows = session.rows(db.sql("files", "removed between"), (table.table_id, older, newer, older))
        gone = rows_by_id(session, ADD_COLUMNS, np.array(sorted(r[0] for r in rows), np.int64))
    old, new = ({a.key: a for a in map(add_from_row, found.to_pylist())} for found in (gone, come))
    # removed and brought back: both versions have it
    return [a for k, a in old.items() if k not in new], [a for k, a in new.items() if k not in old]


def statistics(
    db: SessionSource, opened: OpenTable, file_ids: pa.ChunkedArray, leaves: Sequence[Leaf]
) -> LeafColumns:
    """The statistics of some files as columns, in the order of their ids."""
    with db.read() as session:
        return packs.leaf_columns(session, opened.table.table_id, int_values(file_ids), leaves)


# ---- by path ----


def find_paths(
    session: Session, table_id: int, paths: Collection[str], columns: Sequence[str], *, live: bool = True
) -> Iterator[dict[str, Any]]:
    """Files among some paths, in any spelling, as rows; ``live`` leaves out what the newest version lacks."""
    wanted = {canonical_path(path) for path in paths}
    if not wanted:
        return
    need = [*dict.fromkeys((*columns, "path", "file_id"))]
    condition, seen = " AND f.remove_version IS NULL" if live else "", set()
    first, end = id_range(table_id)
    names = ", ".join(f"f.{n}" for n in need)
    recent = session.rows(
        f"SELECT {names} FROM dl_file_stats s CROSS JOIN dl_files f"  # noqa: S608 - names of ours
        f" WHERE s.file_id >= ? AND s.file_id < ? AND f.file_id = s.file_id{condition}",
        (first, end),
    )
    found: list[Row] = list(recent)
    hashes = np.unique(path_hashes(sorted(wanted)))
    ids: list[Ids] = [np.array([], np.int64)]
    every_pack = packs.columns_of(session, packs.packs_of(session, table_id), ("path",))
    for pack, held in chain.from_iterable(every_pack):
        if "path" in held:
            ids.append(find_hashes(held["path"], hashes) + pack.first_id)
        else:  # dropped, or another process has replaced the pack: any of its files may be wanted
            sql = f"SELECT {names} FROM dl_files f WHERE f.file_id >= ? AND f.file_id <= ?{condition}"  # noqa: S608
            found += session.rows(sql, (pack.first_id, pack.last_id))
    for start in range(0, len(every := np.concatenate(ids)), _AT_ONCE):
        part = session.id_list(every[start : start + _AT_ONCE].tolist())
        sql = f"SELECT {names} FROM dl_files f WHERE f.file_id IN ({session.dialect.ids}){condition}"  # noqa: S608
        found += session.rows(sql, (part,))
    at = need.index("path"), need.index("file_id")
    for row in found:
        if row[at[1]] not in seen and canonical_path(row[at[0]]) in wanted:
            seen.add(row[at[1]])
            yield dict(zip(need, row, strict=True))


def live_files(
    session: Session, table_id: int, paths: Collection[str]
) -> Mapping[FileKey, tuple[int, int, int | None]]:
    """Live files among some paths: (canonical path, dv id) -> (file id, size, number of rows)."""
    columns = ("file_id", "path", "dv_id", "size", "num_records")
    return {
        (canonical_path(r["path"]), r["dv_id"]): (r["file_id"], r["size"], r["num_records"])
        for r in find_paths(session, table_id, paths, columns)
    }


def some_live(db: SessionSource, table: Table) -> list[str]:
    return [path for (path,) in db.rows(db.sql("files", "some live"), id_range(table.table_id))]


# ---- removed files ----


def tombstones(db: SessionSource, table: Table, version: int) -> Iterator[Remove]:
    """Removed files that the catalog remembers at a version, unless a newer row has brought them back."""
    with db.read() as session:
        rows = session.rows(session.sql("files", "tombstones"), (table.table_id, version))
        paths = {path for _, path, *_ in rows}
        newest: dict[FileKey, int] = {}
        need = ("path", "dv_id", "file_id", "add_version", "remove_version")
        for row in find_paths(session, table.table_id, paths, need, live=False):
            # an empty interval is a tombstone itself
            if row["add_version"] <= version and row["add_version"] != row["remove_version"]:
                key = canonical_path(row["path"]), row["dv_id"]
                newest[key] = max(row["file_id"], newest.get(key, -1))
    last: dict[FileKey, tuple[int, str]] = {}
    for file_id, path, dv_id, _, action in rows:
        key = canonical_path(path), dv_id
        if file_id >= newest.get(key, -1) and file_id >= last.get(key, (-1, ""))[0]:
            last[key] = file_id, action
    return (Remove.from_dict(decode_json(action)) for _, action in last.values())


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that a version removed; ``removed_at`` is the later of its writer's and its commit's time."""

    path: str
    dv_id: str
    size: int
    removed_at: int
    version: int


def removed(db: SessionSource, table: Table) -> list[RemovedFile]:
    """Every file that some version removed, also those that another version brought back."""
    rows = db.rows(db.sql("files", "removed"), (table.table_id,))
    return [RemovedFile(r[0], r[1], r[2], max(r[3] or 0, r[4] or 0), r[5]) for r in rows]


# ---- counts ----


def next_seq(db: SessionSource, table: Table) -> int:
    """The first sequence number that no file of a table has."""
    row = db.row(db.sql("files", "next seq"), (table.table_id,))
    return 0 if row is None else int(row[0])


def totals(db: SessionSource, opened: OpenTable) -> tuple[int, int, int, int]:
    """Files, bytes, rows counted, and files without a row count; read from the head if possible."""
    head = opened.table.head
    if opened.is_head:
        return head.num_files, head.size_bytes, head.num_records, head.files_without_count
    return totals_at(db, opened.table.table_id, opened.snapshot.version)


def totals_at(db: SessionSource, table_id: int, version: int) -> tuple[int, int, int, int]:
    row = db.row(db.sql("files", "totals at"), (*id_range(table_id), version, version))
    return (0, 0, 0, 0) if row is None else (int(row[0]), int(row[1]), int(row[2]), int(row[3]))
