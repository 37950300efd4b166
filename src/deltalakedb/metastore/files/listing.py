"""Reading files: which ones a version has, pruned inside the database, as Arrow or as add actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb import telemetry
from deltalakedb.metastore.engines.base import Row, Session, SessionSource, arrow_array
from deltalakedb.metastore.files import slots
from deltalakedb.metastore.files.pruning import Plan, plan_files, plan_new, plan_page
from deltalakedb.metastore.files.rows import FILE_ID_BITS
from deltalakedb.metastore.rows import File, OpenTable, Table
from deltalakedb.protocol.actions import Add, DeletionVector, Remove
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.predicate import Expr, to_physical
from deltalakedb.protocol.schema import StructType, parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import column_types
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: columns that can be read, with their Arrow types
FILE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("path_hash", pa.int64()),
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
ADD_COLUMNS = tuple(
    n for n in FILE_SCHEMA.names if n not in ("path_hash", "dv_id", "num_records", "add_version", "file_id")
)
#: what a checkpoint keeps of a file
STREAM_COLUMNS = tuple(n for n in ADD_COLUMNS if n not in ("data_change", "add_extra"))

#: ids in one statement
_AT_ONCE = 500
#: rows fetched at once
PAGE = 20_000
_RECHECK = ("stats", "partition_values")


def scan_files(
    db: SessionSource, opened: OpenTable, columns: Sequence[str], *, where: Expr | None = None
) -> pa.Table:
    """The files of a version that may hold rows a predicate asks for.

    The database prunes by partition values and by images of the statistics; what survives is checked once
    more against the exact statistics.
    """
    if where is not None:
        schema = parse_schema(opened.snapshot.metadata.schema_string)
        where = to_physical(where, schema)
    wanted = list(columns)
    with telemetry.timed("plan_duration_seconds", engine=db.dialect.name), db.read() as session:
        plan, fetched = _plan(session, opened, wanted, where)
        found = session.arrow(plan.sql, plan.params, _schema(fetched))
    if plan.residual is not None:
        found = _recheck(found, plan.residual, schema)
    return found.select(wanted)


def _plan(
    session: Session, opened: OpenTable, wanted: list[str], where: Expr | None
) -> tuple[Plan, list[str]]:
    """The statement to run, and the columns it yields: more than wanted if survivors are rechecked."""
    table_id = opened.table.table_id
    known, levels = slots.read_plan_facts(session, table_id) if where else ([], [])

    def made(columns: list[str]) -> Plan:
        return plan_files(
            where,
            table_id=table_id,
            version=opened.snapshot.version,
            slots=known,
            levels=levels,
            columns=columns,
            facts=session.dialect,
        )

    plan = made(wanted)
    more = [c for c in _RECHECK if plan.residual is not None and c not in wanted]
    return (made(wanted + more), wanted + more) if more else (plan, wanted)


def _recheck(found: pa.Table, where: Expr, schema: StructType) -> pa.Table:
    files = FileFilter(where, column_types(schema))
    stats, values = found.column("stats").to_pylist(), found.column("partition_values").to_pylist()
    keep = [files.may_match(parse_stats(s), decode_json(v)) for s, v in zip(stats, values, strict=True)]
    # the first filter of a process makes Arrow load all its functions, mostly for nothing
    return found if all(keep) else found.filter(arrow_array(keep, pa.bool_()))


def read_adds(db: SessionSource, opened: OpenTable, *, where: Expr | None = None) -> Iterator[Add]:
    return (file.add for file in read_files(db, opened, where=where))


def read_some(db: SessionSource, file_ids: Sequence[int]) -> Iterator[Add]:
    """Files by their ids, as the add actions they came as."""
    for start in range(0, len(file_ids), _AT_ONCE):
        part = file_ids[start : start + _AT_ONCE]
        for row in db.rows(db.sql("files", "by id").expand(len(part)), tuple(part)):
            yield _add(row)


def read_files(db: SessionSource, opened: OpenTable, *, where: Expr | None = None) -> Iterator[File]:
    found = scan_files(db, opened, (*ADD_COLUMNS, "add_version", "num_records"), where=where)
    for batch in found.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield File(add_from_row(row), row["add_version"], row["num_records"])


def _add(row: Row) -> Add:
    return add_from_row(dict(zip(ADD_COLUMNS, row, strict=True)))


def add_from_row(row: dict[str, Any]) -> Add:
    vector, tags, extra = row["deletion_vector"], row["tags"], row["add_extra"]
    return Add(
        path=row["path"],
        partition_values=decode_json(row["partition_values"]),
        size=row["size"],
        modification_time=row["modification_time"],
        data_change=bool(row["data_change"]),
        stats=row["stats"],
        tags=None if tags is None else decode_json(tags),
        deletion_vector=None if vector is None else DeletionVector.from_dict(decode_json(vector)),
        base_row_id=row["base_row_id"],
        default_row_commit_version=row["default_row_commit_version"],
        clustering_provider=row["clustering_provider"],
        extra={} if extra is None else decode_json(extra),
    )


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
) -> Iterator[pa.Table]:
    """Every file of a version, a page at a time, with its id as the last column."""
    fetched = [*columns, "file_id"]
    shape = _schema(fetched)
    first = table_id << FILE_ID_BITS
    after, end = (first - 1, None) if between is None else (first + between[0] - 1, first + between[1])
    page = partial(
        plan_page, table_id=table_id, version=version, limit=PAGE, columns=fetched, facts=db.dialect, end=end
    )
    while True:
        plan = page(after=after)
        with db.read() as session:
            found = session.arrow(plan.sql, plan.params, shape)
        yield found
        if found.num_rows < PAGE:
            return
        after = found.column("file_id")[-1].as_py()


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([FILE_SCHEMA.field(c) for c in columns])


def files_since(
    db: SessionSource, opened: OpenTable, version: int, columns: Sequence[str]
) -> tuple[pa.Table, set[int]]:
    """The files that a version has and an earlier one has not, and the ids of those that it lost."""
    table_id, now = opened.table.table_id, opened.snapshot.version
    plan = plan_new(table_id=table_id, after=version, version=now, columns=columns, facts=db.dialect)
    with db.read() as session:
        new = session.arrow(plan.sql, plan.params, _schema(columns))
        lost = session.rows(db.sql("files", "removed between"), (table_id, version, now, version))
    return new, {row[0] for row in lost}


def tombstones(db: SessionSource, table: Table, version: int) -> Iterator[Remove]:
    """Removed files that the catalog remembers at a version."""
    values = (table.table_id, version, version, table.table_id, version)
    for (action,) in db.rows(db.sql("files", "tombstones at"), values):
        yield Remove.from_dict(decode_json(action))


def some_live(db: SessionSource, table: Table) -> list[str]:
    return [path for (path,) in db.rows(db.sql("files", "some live"), (table.table_id,))]


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


def difference(db: SessionSource, table: Table, older: int, newer: int) -> tuple[list[Add], list[Add]]:
    """The files that only the older of two versions has, and those that only the newer one has.

    What was changed in between is read, however many files the table has.
    """
    with db.read() as session:
        gone = session.rows(db.sql("files", "gone between"), (table.table_id, older, older, newer))
        come = session.rows(db.sql("files", "come between"), (table.table_id, older, newer, newer))
    old, new = ({a.key: a for a in map(_add, rows)} for rows in (gone, come))
    # removed and brought back: both versions have it
    return [a for k, a in old.items() if k not in new], [a for k, a in new.items() if k not in old]


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
    row = db.row(db.sql("files", "totals at"), (table_id, version, version))
    return (0, 0, 0, 0) if row is None else (int(row[0]), int(row[1]), int(row[2]), int(row[3]))
