"""The plan of an import: which versions, from which checkpoint, in which batches, and an estimate."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, Unpack

from deltalakedb.delta_log.checkpoint import CheckpointScan, is_complete
from deltalakedb.delta_log.commit_file import is_large
from deltalakedb.delta_log.listing import Checkpoint, LogListing, list_log
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    LogCorruptError,
    LogMissingError,
    ProtocolError,
    TableMissingError,
)
from deltalakedb.metastore import imports, registry
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.commit_rules import check_locations
from deltalakedb.protocol.features import check_readable, reader_features
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.protocol.properties import mapping_mode
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.settings import get_config
from deltalakedb.transfer.importing.options import ImportArguments, ImportOptions, import_target, memory_bound
from deltalakedb.transfer.reports import Base, ImportPlan
from deltalakedb.transfer.verifying.log_replay import JSON_PER_ACTION, LogReplay

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from deltalakedb.address import Address
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.storage.store import Store

#: a tail batch ends with the commit that passes one of these
COMMITS_PER_BATCH = 500
BYTES_PER_BATCH = 8 * 1024 * 1024
#: logs up to this many rows are counted exactly by a dry run
_COUNTED_EXACTLY = 200_000
#: a checkpoint with more rows is encoded by a second process, which takes half a second to start
SECOND_PROCESS_FROM: Final = 100_000
#: what was measured: the process itself, a second one, a file in a batch, a byte of its row
_MEMORY_AT_REST = 150 * 1024 * 1024
_MEMORY_OF_SECOND = 240 * 1024 * 1024
_MEMORY_PER_ROW = 3_000
_MEMORY_PER_BYTE = 6
#: bytes of a decoded row from which on it is not a row as they were measured
_WIDE = 4096


class _Cost(NamedTuple):
    """What a file costs on an engine, measured with a million of them; the engine itself needs ``memory``."""

    microseconds: int
    row_bytes: int
    #: what a byte of its path and statistics becomes
    per_raw_byte: float
    memory: int = 0


_COST = {
    "sqlite": _Cost(8, 110, 0.4),
    "postgres": _Cost(8, 190, 0.4),
    "duckdb": _Cost(8, 25, 0.3, 150 * 1024 * 1024),
}
_MICROSECONDS_PER_COMMIT = 700


def plan_import(path: str, uri: str, **options: Unpack[ImportArguments]) -> ImportPlan:
    """Read a table's log and report what an import would do. Nothing is changed, no catalog is created.

    Args:
        path: The table's root.
        uri: The ``deltasql://`` address it would have.
        **options: As in ``import_table``; no engine is started.

    Raises:
        TableExistsError: The name or the location belongs to another table. If the table itself was imported
            before, the plan has a note.

    Example:
        >>> plan_import("/lake/orders", "deltasql://sqlite//lake/meta.db?table=orders").num_versions
        12
    """
    return plan_with(path, uri, ImportOptions(**options))


def plan_with(path: str, uri: str, options: ImportOptions) -> ImportPlan:
    address, location = import_target(path, uri)
    options.check_engine()
    reader = FileTxnLogReader(location, options.storage_for(location))
    made = make_plan(reader, address, location, options)
    made = replace(made, note=_before(Database.open(address), made.table, location))
    if made.num_files > _COUNTED_EXACTLY or made.tail_bytes > _COUNTED_EXACTLY * JSON_PER_ACTION:
        return made
    allowed = TablePaths(location, get_config().catalog.allow_outside_paths, address.table)
    log = LogReplay(reader, made.version, memory_bytes=memory_bound())
    sizes = log.sizes(lambda add: check_locations([add], allowed))
    return replace(made, num_files=len(sizes), size_bytes=sum(sizes), exact=True)


def _before(database: Database, name: str, location: str) -> str | None:
    """What the catalog has of the table already; an error if another table has the name or location."""
    try:
        table = registry.find(database, name)
    except CatalogNotFoundError:
        return None
    except TableMissingError:
        registry.refuse_taken(database, name, location)
        begun = imports.find_open(database, name, location) is not None
        return "an import was begun and is not finished: it would be resumed" if begun else None
    registry.require_location(table, location)
    return f"it was imported before, and is at version {table.head.version}; --catch-up imports the rest"


def make_plan(
    reader: FileTxnLogReader,
    address: Address,
    location: str,
    options: ImportOptions,
    skipped: Collection[int] = (),
) -> ImportPlan:
    """The plan for a log as it is now; checkpoints of skipped versions turned out to be unreadable."""
    newest = reader.snapshot()  # raises for a gap, a missing log and an unknown feature
    check_readable(newest.protocol, table=address.table)
    _check_schema(newest, address.table)
    listing, history = list_log(reader.store), options.history
    if history == "auto":
        history = "full" if len(listing.commits) <= get_config().import_.history_limit else "checkpoint"
    first, checkpoint, torn = _choose_base(reader.store, listing, newest.version, history, skipped)
    base: Base = "none" if first == 0 and 0 in listing.commits else "state"
    rows = raw_bytes = widest = largest = 0
    if checkpoint is not None:
        scan, base = CheckpointScan(reader.store, checkpoint), "checkpoint"
        rows, raw_bytes, widest = scan.rows, scan.raw_bytes, scan.widest
        # a file of one row group is held in memory as it was compressed
        largest = max(meta.size for meta in checkpoint.files)
    per_row = widest * _MEMORY_PER_BYTE if widest > _WIDE else _MEMORY_PER_ROW
    size = _batch_size(options.batch_size, per_row)
    tail = range(first if base == "none" else first + 1, newest.version + 1)
    tail_bytes = sum(listing.commits[v].size for v in tail if v in listing.commits)
    files = rows + tail_bytes // JSON_PER_ACTION
    second = _MEMORY_OF_SECOND if rows > SECOND_PROCESS_FROM else 0
    cost, (engine, why) = _COST[address.engine], options.choose()
    batches = sum(1 for _ in tail_batches(listing, tail)) + (0 if base == "none" else 1 + ceil(rows / size))
    return ImportPlan(
        table=address.table or "",
        location=location,
        version=newest.version,
        first_version=first,
        num_versions=newest.version - first + 1,
        history=history,
        base=base,
        checkpoint=() if checkpoint is None else tuple(m.path for m in checkpoint.files),
        base_rows=rows,
        batch_size=size,
        num_batches=batches,
        tail_bytes=tail_bytes,
        num_files=files,
        size_bytes=None,
        exact=False,
        seconds=round((files * cost.microseconds + len(tail) * _MICROSECONDS_PER_COMMIT) / 1e6, 1),
        memory_bytes=_MEMORY_AT_REST + second + cost.memory + min(size, files) * per_row + largest,
        # a commit's bytes are kept as they are, and become rows
        database_bytes=int(files * cost.row_bytes + (raw_bytes + tail_bytes) * cost.per_raw_byte)
        + tail_bytes,
        passed_over=tuple(sorted(torn)),
        engine=engine,
        engine_reason=why,
        stamps=() if checkpoint is None else stamps_of(checkpoint),
    )


def _choose_base(
    store: Store, listing: LogListing, newest: int, history: str, skipped: Collection[int]
) -> tuple[int, Checkpoint | None, set[int]]:
    """The first version, its checkpoint if it begins with one, and torn checkpoints that were skipped."""
    torn = set(skipped)
    while True:
        usable = replace(listing, checkpoints={v: c for v, c in listing.checkpoints.items() if v not in torn})
        first = _first(usable, newest, history)
        if first == 0 and 0 in usable.commits:
            return first, None, torn
        checkpoint = next(iter(usable.checkpoints.get(first, ())), None)
        if checkpoint is None or is_complete(store, checkpoint):
            return first, checkpoint, torn
        torn.add(first)


def _batch_size(asked: int | None, per_row: int) -> int:
    """Rows in a batch: as asked for, and no more than a third of the memory holds."""
    config = get_config().import_
    third = (config.memory_mb << 20) // 3
    size = min(asked or config.batch_size, max(1_000, third // _MEMORY_PER_ROW))
    return size if per_row == _MEMORY_PER_ROW else max(1, min(size, third // per_row))


def _check_schema(snapshot: Snapshot, table: str | None) -> None:
    """Refuse a table whose schema lacks partition columns, or whose column mapping readers disagree on."""
    fields = parse_schema(snapshot.metadata.schema_string).fields
    if lost := set(snapshot.metadata.partition_columns) - {field.name for field in fields}:
        raise LogCorruptError(
            f"the schema lacks the partition columns {', '.join(sorted(lost))}",
            table=table,
            version=snapshot.version,
            suggestion="have the writer of the table correct its metadata",
        )
    mode = mapping_mode(snapshot.metadata)
    if mode != "none" and "columnMapping" in reader_features(snapshot.protocol):
        return
    if mapped := [f.name for f in fields if f.physical_name != f.name]:
        raise ProtocolError(
            f"the schema gives the column {mapped[0]!r} another name in data files, but the protocol and the "
            f"mode of column mapping ({mode!r}) do not: readers do not agree on the name",
            table=table,
            version=snapshot.version,
            suggestion="have the writer of the table correct its protocol, or write it again without mapping",
        )


def tail_batches(listing: LogListing, versions: range) -> Iterator[range]:
    """Runs of commits that make one batch each; they follow from the files' sizes alone."""
    begin, size = versions.start, 0
    for version in versions:
        meta = listing.commits.get(version)
        if meta is None:
            raise LogCorruptError(
                "its commit file was cleaned up while the table was imported",
                version=version,
                suggestion="import again: the log has changed",
            )
        large = is_large(meta)  # one that is read line by line is a batch by itself
        if large and begin < version:
            yield range(begin, version)
            begin = version
        size += meta.size
        if large or size >= BYTES_PER_BATCH or version - begin + 1 >= COMMITS_PER_BATCH:
            yield range(begin, version + 1)
            begin, size = version + 1, 0
    if begin < versions.stop:
        yield range(begin, versions.stop)


def base_checkpoint(listing: LogListing, plan: ImportPlan) -> Checkpoint:
    """The checkpoint that a plan begins with."""
    for checkpoint in listing.checkpoints.get(plan.first_version, ()):
        if tuple(m.path for m in checkpoint.files) == plan.checkpoint:
            return checkpoint
    raise LogMissingError(
        f"the checkpoint of version {plan.first_version} no longer exists",
        table=plan.table,
        suggestion="roll the import back and start again: the log was cleaned up meanwhile",
    )


def stamps_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Size and time of a checkpoint's files: they differ if it was written again."""
    return tuple(f"{meta.size}@{meta.modified_ms}" for meta in checkpoint.files)


def _first(listing: LogListing, newest: int, history: str) -> int:
    """The version to begin with: every later one has its own commit file."""
    plan = listing.plan(newest)  # raises for a gap
    after_base = set(range(plan.base + 1, newest + 1))
    if history == "checkpoint" and plan.checkpoint is not None and listing.commits.keys() >= after_base:
        return plan.base
    first = newest
    while listing.can_rebuild(first - 1) and first in listing.commits:
        first -= 1
    return first
