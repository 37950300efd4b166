"""The plan of an import: which versions, from which checkpoint, in which batches, and what it will take."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from deltalakedb.config import get_config
from deltalakedb.delta_log.checkpoint import CheckpointScan, is_complete
from deltalakedb.delta_log.commit_file import is_large
from deltalakedb.delta_log.listing import Checkpoint, LogListing, list_log
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    InvalidArgumentError,
    LogCorruptError,
    LogMissingError,
    ProtocolError,
    TableMissingError,
)
from deltalakedb.metastore import imports, registry
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.features import check_readable, reader_features
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.protocol.properties import mapping_mode
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.table.places import normal_location
from deltalakedb.transfer.live import LiveFiles
from deltalakedb.transfer.memory import memory_bound
from deltalakedb.uri import parse_uri

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from deltalakedb.protocol.log import Snapshot
    from deltalakedb.transfer.choosing import EngineName
    from deltalakedb.uri import Address

History: TypeAlias = Literal["auto", "checkpoint", "full"]
Base: TypeAlias = Literal["none", "checkpoint", "state"]

#: a tail batch ends with the commit that passes one of these
COMMITS_PER_BATCH = 500
BYTES_PER_BATCH = 8 * 1024 * 1024
#: logs up to this many rows are counted exactly by a dry run
_COUNTED_EXACTLY = 200_000
#: what was measured: the process itself, a file in a batch, a byte of its row, a file's action in JSON
_MEMORY_AT_REST = 150 * 1024 * 1024
_MEMORY_PER_ROW = 3_000
_MEMORY_PER_BYTE = 6
#: bytes of a decoded row from which on it is not a row as they were measured
_WIDE = 4096
_JSON_PER_ACTION = 500


class _Cost(NamedTuple):
    """What a file costs on an engine, measured with a million of them."""

    #: to load it, index it and check it
    microseconds: int
    #: of its columns and indexes, and what a byte of its path and statistics becomes
    bytes: int
    per_raw_byte: float
    #: that the engine keeps inside the process
    memory: int = 0


_COST = {
    "sqlite": _Cost(20, 470, 1.0),
    "postgres": _Cost(20, 590, 1.0),
    "duckdb": _Cost(18, 55, 0.4, 150 * 1024 * 1024),
}
_MICROSECONDS_PER_COMMIT = 700
#: fields of a plan that are lists where it is plain data
_LISTS = ("checkpoint", "passed_over", "stamps")


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What an import will do. Made from the log alone, and the same again for the same log.

    Attributes:
        table: The name that the table will have.
        location: The table's root.
        version: The source's newest version.
        first_version: The oldest version that SQL will hold.
        num_versions: How many versions it will hold.
        history: ``full`` or ``checkpoint``, as it was decided.
        base: Where the first version comes from: a ``checkpoint``, the replayed ``state``, or ``none``,
            where it is version 0 and its commit is all there is.
        checkpoint: The checkpoint's files.
        base_rows: Rows of the checkpoint, those of other actions too.
        batch_size: Rows of the checkpoint in one batch.
        num_batches: Batches, the tail's among them.
        tail_bytes: Bytes of the commits that will be replayed.
        num_files: Live files; an estimate unless ``exact``.
        size_bytes: Their bytes; None where they were not counted.
        exact: Whether the two before were counted.
        seconds: An estimate of the time it takes.
        memory_bytes: An estimate of the memory it takes.
        database_bytes: An estimate of how much larger the database will be.
        passed_over: Checkpoints that cannot be read and were passed over for an older one.
        engine: Who loads it: ``local``, or ``spark``.
        note: What is to be said about the choice.
        stamps: Size and time of each of the checkpoint's files, by which one that was written again shows.
    """

    table: str
    location: str
    version: int
    first_version: int
    num_versions: int
    history: str
    base: Base
    checkpoint: tuple[str, ...]
    base_rows: int
    batch_size: int
    num_batches: int
    tail_bytes: int
    num_files: int
    size_bytes: int | None
    exact: bool
    seconds: float
    memory_bytes: int
    database_bytes: int
    passed_over: tuple[int, ...] = ()
    engine: str = "local"
    note: str | None = None
    stamps: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {**asdict(self), **{name: list(getattr(self, name)) for name in _LISTS}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The plan from what ``to_dict`` gave."""
        return cls(**{**data, **{name: tuple(data.get(name, ())) for name in _LISTS}})


def plan_import(
    path: str,
    uri: str,
    *,
    history: History = "auto",
    batch_size: int | None = None,
    engine: EngineName = "auto",
    spark: Any = None,
    master: str | None = None,
    remote: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ImportPlan:
    """Look at a table's log and say what an import would do. Nothing is changed, no catalog is created.

    Args:
        path: The table's root.
        uri: The ``deltasql://`` address it would have.
        history: As in ``import_table``.
        batch_size: As in ``import_table``.
        engine: As in ``import_table``; nothing is started.
        spark: As in ``import_table``.
        master: As in ``import_table``.
        remote: As in ``import_table``.
        storage_options: Options for the object store.

    Raises:
        TableExistsError: The name or the location belongs to another table. Of the table itself, imported
            before, the plan's note tells.

    Example:
        >>> plan_import("/lake/orders", "deltasql://sqlite//lake/meta.db?table=orders").num_versions
        12
    """
    from deltalakedb.transfer.choosing import EngineWish  # its engines know plans

    wish = EngineWish(engine, spark, master, remote)
    address, location = target_of(path, uri)
    wish.check()
    reader = FileTxnLogReader(location, get_config().storage_options_for(location, storage_options))
    made = make_plan(reader, address, location, history=history, batch_size=batch_size)
    before = _before(Database.open(address), made.table, location)
    choice = wish.decide(num_files=made.num_files, memory_bytes=made.memory_bytes)
    notes = "; ".join(note for note in (before, choice.note) if note)
    made = replace(made, engine=choice.name, note=notes or None)
    if made.num_files > _COUNTED_EXACTLY or made.tail_bytes > _COUNTED_EXACTLY * _JSON_PER_ACTION:
        return made
    files = LiveFiles(reader, made.version, memory_bytes=memory_bound())
    allowed = TablePaths(location, get_config().catalog.allow_outside_paths, address.table)
    count, size = files.placed_counts(allowed)
    return replace(made, num_files=count, size_bytes=size, exact=True)


def _before(database: Database, name: str, location: str) -> str | None:
    """What the catalog has of the table already; an error where name or location are another's."""
    try:
        table = registry.find(database, name)
    except CatalogNotFoundError:
        return None
    except TableMissingError:
        registry.refuse_taken(database, name, location)
        begun = imports.find_open(database, name, location) is not None
        return "an import was begun and is not finished: it would go on with that" if begun else None
    registry.refuse_elsewhere(table, location)
    return f"it was imported before, and is at version {table.head.version}; --catch-up brings the rest"


def target_of(path: str, uri: str) -> tuple[Address, str]:
    """The address that an import goes to, and the location it comes from, both checked."""
    address = parse_uri(uri)
    address.require_table()
    location = normal_location(path)
    if address.location and normal_location(address.location) != location:
        raise InvalidArgumentError(
            f"the address says location={address.location}, but the table lies at {location}",
            table=address.table,
            suggestion="leave location= out of the address",
        )
    return address, location


def checked_rate(rate_limit: int | None) -> int:
    """A rate limit that was given, or that of the settings; 0 is none."""
    limit = get_config().import_.rate_limit if rate_limit is None else rate_limit
    if limit < 0:
        raise InvalidArgumentError(f"rate_limit must be 0 or more, not {limit}")
    return limit


def make_plan(
    reader: FileTxnLogReader,
    address: Address,
    location: str,
    *,
    history: History = "auto",
    batch_size: int | None = None,
    torn: Collection[int] = (),
) -> ImportPlan:
    """The plan for a log as it is now.

    Args:
        reader: The log.
        address: Where the table goes; its engine decides the estimates.
        location: The table's root.
        history: Which versions.
        batch_size: Rows in one batch; by default as the settings say.
        torn: Versions whose checkpoints turned out to be unreadable.
    """
    if history not in ("auto", "checkpoint", "full"):
        raise InvalidArgumentError(f"unknown history {history!r}", suggestion="use auto, checkpoint or full")
    if batch_size is not None and batch_size < 1:
        raise InvalidArgumentError(f"batch_size must be 1 or more, not {batch_size}")
    newest = reader.snapshot()  # a gap, a missing log and an unknown feature show here
    check_readable(newest.protocol, table=address.table)
    _check_partitions(newest, address.table)
    _check_mapping(newest, address.table)
    listing = list_log(reader.store)
    passed = set(torn)
    base: Base
    config = get_config().import_
    asked = history
    if history == "auto":
        history = "full" if len(listing.commits) <= config.history_limit else "checkpoint"
    while True:
        usable = _without(listing, passed)
        first = _first(usable, newest.version, history)
        checkpoint = next(iter(usable.checkpoints.get(first, ())), None)
        if checkpoint is None or is_complete(reader.store, checkpoint):
            break
        passed.add(first)
    if first == 0 and 0 in usable.commits:
        base, checkpoint = "none", None
    else:
        base = "state" if checkpoint is None else "checkpoint"
    rows = raw_bytes = largest = widest = 0
    if checkpoint is not None:
        scan = CheckpointScan(reader.store, checkpoint)
        rows, raw_bytes, widest = scan.rows, scan.raw_bytes, scan.widest
        # a file of one row group is held in memory as it was compressed
        largest = max(meta.size for meta in checkpoint.files)
    size = min(
        batch_size or config.batch_size, max(1_000, config.memory_mb * 1024 * 1024 // 3 // _MEMORY_PER_ROW)
    )
    per_row = _MEMORY_PER_ROW
    if widest > _WIDE:
        per_row = widest * _MEMORY_PER_BYTE
        size = max(1, min(size, config.memory_mb * 1024 * 1024 // 3 // per_row))
    tail = range(first if base == "none" else first + 1, newest.version + 1)
    tail_bytes = sum(listing.commits[v].size for v in tail if v in listing.commits)
    tails = sum(1 for _ in tail_batches(listing, tail))
    files = rows + tail_bytes // _JSON_PER_ACTION
    cost = _COST[address.engine]
    return ImportPlan(
        table=address.table or "",
        location=location,
        version=newest.version,
        first_version=first,
        num_versions=newest.version - first + 1,
        history=history if asked == "auto" else asked,
        base=base,
        checkpoint=() if checkpoint is None else tuple(m.path for m in checkpoint.files),
        base_rows=rows,
        batch_size=size,
        num_batches=(0 if base == "none" else 1 + ceil(rows / size)) + tails,
        tail_bytes=tail_bytes,
        num_files=files,
        size_bytes=None,
        exact=False,
        seconds=round((files * cost.microseconds + len(tail) * _MICROSECONDS_PER_COMMIT) / 1e6, 1),
        memory_bytes=_MEMORY_AT_REST + cost.memory + min(size, files) * per_row + largest,
        # a commit's bytes are kept as they are, and become rows
        database_bytes=int(files * cost.bytes + (raw_bytes + tail_bytes) * cost.per_raw_byte) + tail_bytes,
        passed_over=tuple(sorted(passed)),
        stamps=() if checkpoint is None else stamps_of(checkpoint),
    )


def _check_partitions(snapshot: Snapshot, table: str | None) -> None:
    """Refuse a table whose files nobody could tell the partitions of."""
    names = {field.name for field in parse_schema(snapshot.metadata.schema_string).fields}
    if lost := [name for name in snapshot.metadata.partition_columns if name not in names]:
        raise LogCorruptError(
            f"the schema lacks the partition columns {', '.join(lost)}",
            table=table,
            version=snapshot.version,
            suggestion="have the writer of the table mend its metadata",
        )


def _check_mapping(snapshot: Snapshot, table: str | None) -> None:
    """Refuse a table whose columns some readers find by their names and others by their physical names."""
    mode = mapping_mode(snapshot.metadata)
    if mode != "none" and "columnMapping" in reader_features(snapshot.protocol):
        return
    fields = parse_schema(snapshot.metadata.schema_string).fields
    if mapped := [f.name for f in fields if f.physical_name != f.name]:
        raise ProtocolError(
            f"the column {mapped[0]!r} has another name in data files by the schema, and not by the protocol "
            f"and the mode of column mapping ({mode!r}): readers do not agree which one holds",
            table=table,
            version=snapshot.version,
            suggestion="have the writer of the table mend its protocol, or write it anew without mapping",
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
        if is_large(meta):  # one that is read line by line stands alone
            if begin < version:
                yield range(begin, version)
            yield range(version, version + 1)
            begin, size = version + 1, 0
            continue
        size += meta.size
        if size >= BYTES_PER_BATCH or version - begin + 1 >= COMMITS_PER_BATCH:
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
        f"the checkpoint of version {plan.first_version} is not there any more",
        table=plan.table,
        suggestion="roll the import back and begin again: the log was cleaned up meanwhile",
    )


def stamps_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """By what a checkpoint that was written again can be told from the one before."""
    return tuple(f"{meta.size}@{meta.modified_ms}" for meta in checkpoint.files)


def _without(listing: LogListing, passed: Collection[int]) -> LogListing:
    kept = {v: c for v, c in listing.checkpoints.items() if v not in passed}
    return LogListing(listing.commits, kept, listing.compacted, listing.checksums)


def _first(listing: LogListing, newest: int, history: str) -> int:
    """The version to begin with: every later one has its own commit file."""
    if history == "checkpoint":
        for plan in listing.plans(newest):
            if plan.checkpoint is not None and all(
                v in listing.commits for v in range(plan.base + 1, newest + 1)
            ):
                return plan.base
            break
    listing.plan(newest)  # a gap is told as what it is
    first = newest
    while listing.has(first - 1) and first in listing.commits:
        first -= 1
    return first
