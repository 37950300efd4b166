"""The verifier: compares a log with the catalog, at five levels."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.address import parse_address
from deltalakedb.delta_log.checkpoint import CheckpointScan, Piece
from deltalakedb.delta_log.commit_file import iter_actions
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import LogError, VerificationError, VersionMissingError
from deltalakedb.metastore import commits, files, registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import add_from_row, digests
from deltalakedb.mirror.drift import Difference, Kind, broken_checkpoints, commit_differences, versions_ahead
from deltalakedb.protocol.actions import (
    Add,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    kind_of,
    meaning,
    meaning_of,
)
from deltalakedb.protocol.arrow_values import int_array, int_values, text_scalar
from deltalakedb.protocol.digest import BUCKETS, SEPARATOR, FileDigest, bucket_of, file_text
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.packs import decode_block
from deltalakedb.protocol.paths import canonical_path, encode_path, path_hash
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.transfer import LEVELS, Level
from deltalakedb.transfer.importing.options import EngineOptions, memory_bound, require_one_of
from deltalakedb.transfer.reports import VerifyReport
from deltalakedb.transfer.verifying.log_replay import JSON_PER_ACTION, LogReplay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.files import FileBatch
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Action, FileKey
    from deltalakedb.protocol.replay import Replay
    from deltalakedb.protocol.txn_log import TxnLogReader
    from deltalakedb.transfer.importing.options import EngineArguments, LoadEngine

#: bytes of memory per file that is compared field by field, for both sides
_MEMORY_PER_FILE = 6_000
#: bytes of memory per interval
_MEMORY_PER_INTERVAL = 4_000
_ONLY_IN_LOG = "the log has a file that the catalog does not"
_ONLY_IN_CATALOG = "the catalog has a file that the log does not"
#: metadata, protocol, txns and domains, by kind of action and application id or domain
SmallState: TypeAlias = dict[tuple[str, str], Any]
#: files whose fields are hashed at once
_TOGETHER = 8_192
#: maximum number of differences in a report
_LISTED = 100


@dataclass(frozen=True, slots=True)
class Subject:
    """What to compare: a table in the catalog, visible or still being imported, and its log.

    Attributes:
        first_version: The oldest version in the catalog.
        version: The newest version to compare; -1 if nothing is published.
        storage_options: Options for the stores of the table and of the log.
        first_commit: The oldest version whose commit file the log must have.
        checkpoints_of: The visible table whose checkpoints are also compared, one by one.
        engine: Replays the log; None for this process.
    """

    database: Database
    table: Table | ImportRow
    reader: FileTxnLogReader
    first_version: int
    version: int
    storage_options: Mapping[str, str] | None = None
    first_commit: int = 0
    checkpoints_of: Table | None = None
    engine: LoadEngine | None = None
    tick: Callable[[], None] = lambda: None
    memory_bytes: int = field(default_factory=lambda: memory_bound())


def verify_table(uri: str, level: Level = "digest", **options: Unpack[EngineArguments]) -> VerifyReport:
    """Compare a table's log with the catalog at the newest published version. This changes nothing.

    Args:
        uri: The table's ``deltasql://`` address.
        level: ``commits`` (the bytes of every commit file), ``counts`` (files, bytes, metadata), ``digest``
            (every live file), ``full`` (every field at every version that both sides have, and the bytes of
            every commit) or ``data`` (``full``, and the rows, read through the catalog and by stock
            ``deltalake`` or Spark).
        **options: ``engine``, ``spark``, ``master``, ``remote`` and ``storage_options``, as in
            ``import_table``. Spark computes the digest of the log and reads the plain table's rows; this
            process does the rest.

    Returns:
        A report; ``ok`` is True if log and catalog agree.

    Example:
        >>> verify_table("deltasql://sqlite//lake/meta.db?table=sales.orders", "full").ok
        True
    """
    require_one_of("level", level, LEVELS)
    engine = EngineOptions(**options)
    address = parse_address(uri)
    name = address.require_table()
    database = Database.open(address)
    table = registry.find(database, name)
    return verify_head(database, table, level, engine.storage_for(table.location), engine=engine)


def verify_head(
    database: Database,
    table: Table,
    level: Level,
    storage_options: Mapping[str, str] | None,
    *,
    engine: EngineOptions | None = None,
    look_ahead: bool = True,
    checkpoints: bool = False,
) -> VerifyReport:
    """Compare a table's log with the catalog at the newest published version.

    ``look_ahead`` reports versions of the log beyond the head; in a copy that follows another table they are
    a delay, not a difference. ``checkpoints`` also replays every checkpoint by itself at level ``full``:
    readers and imports skip a broken one, so by default it is not a difference.
    """
    reader = FileTxnLogReader(table.location, storage_options)
    beyond: list[Difference] = []
    if look_ahead and table.state != registry.FOLLOWING:
        beyond += versions_ahead(database, table, reader.store)
    subject = Subject(
        database,
        table,
        reader,
        table.head.first_version,
        table.published_version,
        storage_options,
        checkpoints_of=table if checkpoints else None,
        engine=None if engine is None else engine.start(),
    )
    report = verify_loaded(subject, level, *beyond)
    return compare_rows(subject, report) if level == "data" and subject.version >= 0 else report


def compare_rows(subject: Subject, report: VerifyReport) -> VerifyReport:
    """Compare the rows of data at the report's version, and add the result to the report."""
    from deltalakedb.transfer.verifying.data_rows import row_difference  # imports deltalake's reader

    count, detail = row_difference(subject, report)
    if detail is None:
        return replace(report, rows_checked=count)
    found = (*report.differences, Difference("rows", report.version, detail))
    return replace(report, rows_checked=count, differences=found, num_differences=report.num_differences + 1)


def require_equal(report: VerifyReport, what: str, suggestion: str) -> None:
    """Raise VerificationError, with the first difference, if log and catalog do not agree."""
    if not report.ok:
        raise VerificationError(
            f"{what}: {report.differences[0].detail}",
            table=report.table,
            version=report.version,
            suggestion=suggestion,
            report=report,
        )


def verify_loaded(subject: Subject, level: Level, *beyond: Difference) -> VerifyReport:
    """Compare a subject's files and state with its log; rows of data are left to `compare_rows`.

    If commit files are missing, damaged or foreign, only those are reported: a replay would report every
    later version.
    """
    began = time.perf_counter()
    facts: dict[str, Any] = {"first_version": subject.version}
    found = chain(beyond, _differences(subject, level, facts))
    listed = tuple(islice(found, _LISTED))
    count = len(listed) + sum(1 for _ in found)
    facts |= {"num_differences": count, "differences": listed}
    seconds = round(time.perf_counter() - began, 3)
    return VerifyReport(subject.table.name, level, subject.version, **facts, seconds=seconds)


class LoadProof:
    """What an import reads, to compare it with what the catalog holds afterwards.

    So the log need not be read a second time. ``tail`` has what the commits after the base do to files.
    """

    def __init__(self, tail: Replay) -> None:
        self._tail = tail
        self._changed = tail.files.keys() | tail.tombstones.keys()
        self._hashes = np.array(sorted({path_hash(path) for path, _ in self._changed}), np.int64)
        self._digest, self._unchanged, self._whole = FileDigest(), 0, True
        self._ranges: list[tuple[int, digests.RowSums]] = []

    @classmethod
    def begin(cls, reader: FileTxnLogReader, first_version: int, version: int) -> LoadProof | None:
        """Read the commits after the base; None if they do not fit in memory, or have another base."""
        try:
            found = LogReplay(reader, version, memory_bytes=memory_bound()).base()
        except LogError:
            return None  # the load meets the same error, or reads an older checkpoint
        return None if found is None or found[0].base != first_version else cls(found[1])

    def add(self, files: Iterable[tuple[int, FileBatch]]) -> None:
        """Take in files of the base, with the first sequence number of each batch."""
        for begin, batch in files:
            if batch.num_files:
                self._add(begin, batch)

    def _add(self, begin: int, batch: FileBatch) -> None:
        self._ranges.append((begin, digests.sums_of(batch)))
        at = 0
        for data in (data for pack in batch.packs for _, data in sorted(pack.blocks.items())):
            block = decode_block(data)
            self._whole &= block.equals(batch.stats[at : at + len(block)])
            at += len(block)
        self._whole &= at in (0, batch.num_files)
        columns, hashes = batch.columns, batch.path_hashes().astype(np.int64)
        names = ("path", "dv_id", "size", "modification_time", "partition_values")
        stats = pc.fill_null(batch.stats, text_scalar("")) if batch.stats.null_count else batch.stats
        fields = [*(columns[name].cast(pa.string()) for name in names), stats]
        sizes = int_values(columns["size"])
        for at in range(0, len(sizes), _TOGETHER):  # few at a time: all fields are copied twice
            part = slice(at, at + _TOGETHER)
            _add_fields(self._digest, hashes[part], sizes[part], [field[part] for field in fields])
        changed = [at for at in self._likely(hashes) if self._is_changed(columns, at)]
        if changed:
            gone, left_out = np.array(changed), FileDigest()
            taken = [field.take(int_array(gone)) for field in fields]
            _add_fields(left_out, hashes[gone], sizes[gone], taken)
            self._digest.subtract(left_out)
        self._unchanged += len(sizes) - len(changed)

    def _likely(self, hashes: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
        """The positions of hashes that a changed file has too."""
        if not len(self._hashes):
            return []
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        found: list[int] = np.flatnonzero(self._hashes[at] == hashes).tolist()
        return found

    def _is_changed(self, columns: Mapping[str, pa.Array], at: int) -> bool:
        path, vector = (columns[name][at].as_py() for name in ("path", "dv_id"))
        return (canonical_path(path), vector) in self._changed

    def report(self, subject: Subject) -> VerifyReport | None:
        """The report of level ``digest`` if the catalog holds what was read; None if something differs."""
        began, version = time.perf_counter(), subject.version
        theirs = _small_state(subject.reader, version)
        for at, ours in _catalog_states(subject, version, version):
            if any(_state_differences(at, ours, theirs)):
                return None
        if not self._holds(subject):
            return None
        whole = FileDigest()
        whole.merge(self._digest)
        whole.add_files(self._tail.files.values())
        facts: dict[str, Any] = {
            "num_files": whole.num_files,
            "size_bytes": whole.size_bytes,
            "digest": whole.hex(),
        }
        facts |= {f"log_{name}": value for name, value in facts.items()}
        seconds = round(time.perf_counter() - began, 3)
        return VerifyReport(subject.table.name, "digest", version, version, **facts, seconds=seconds)

    def _holds(self, subject: Subject) -> bool:
        database, table_id = subject.database, subject.table.table_id
        live = 0
        with ThreadPoolExecutor(2, thread_name_prefix="deltasql-verify") as pool:
            whole = pool.submit(digests.has_whole_packs, database, table_id)
            sums = pool.map(lambda r: digests.range_sums(database, table_id, r[0], r[1].count), self._ranges)
            for (_, wanted), (found, removed) in zip(self._ranges, sums, strict=True):
                if found != wanted:
                    return False
                live += found.count - removed
                subject.tick()
            if not self._whole or live != self._unchanged or not whole.result():
                return False
        with database.read() as session:
            paths = {path for path, _ in self._changed}
            known = files.live_files(session, table_id, [encode_path(path) for path in paths])
            ids = {key: known[key][0] for key in self._changed & known.keys()}
            stored = {add.key: file_text(add) for add in files.read_some(session, list(ids.values()))}
        return stored == {key: file_text(add) for key, add in self._tail.files.items()}


def _add_fields(
    digest: FileDigest,
    hashes: np.ndarray[Any, np.dtype[np.int64]],
    sizes: np.ndarray[Any, np.dtype[np.int64]],
    fields: Sequence[pa.Array],
) -> None:
    texts = pc.binary_join_element_wise(*fields, text_scalar(SEPARATOR)).cast(pa.binary())
    digest.add_texts(hashes, sizes, texts.to_pylist())


def _differences(subject: Subject, level: Level, facts: dict[str, Any]) -> Iterator[Difference]:
    """Yield the differences, and collect the other fields of the report in ``facts``."""
    database, table_id, store = subject.database, subject.table.table_id, subject.reader.store
    different: list[Difference] = []
    if level in ("commits", "full", "data"):
        facts["commits_checked"], different = commit_differences(
            database, table_id, store, published=subject.version, oldest=subject.first_commit
        )
        yield from different
    if level == "commits" or different or subject.version < 0:
        facts |= {"versions_checked": facts.get("commits_checked", 0), **_totals(subject)}
        return
    try:
        yield from _replayed(subject, level, facts)
    except (LogError, VersionMissingError) as error:
        facts |= _totals(subject)
        yield Difference("log", subject.version, error.message)


def _totals(subject: Subject) -> dict[str, int]:
    count, size, *_ = files.totals_at(subject.database, subject.table.table_id, subject.version)
    return {"num_files": count, "size_bytes": size}


def _replayed(subject: Subject, level: Level, facts: dict[str, Any]) -> Iterator[Difference]:
    full = level in ("full", "data")
    if full and (table := subject.checkpoints_of) is not None:
        found = broken_checkpoints(subject.database, table, subject.reader.store)
        yield from (difference for difference, _ in found)
    theirs = _small_state(subject.reader, subject.version)
    for version, ours in _catalog_states(subject, subject.version, subject.version):
        yield from _state_differences(version, ours, theirs)
    log = LogReplay(subject.reader, subject.version, memory_bytes=subject.memory_bytes)
    yield from (_count_differences if level == "counts" else _digest_differences)(subject, log, facts)
    if full:
        yield from _damaged_copies(subject)
        every = _EveryVersion(subject)
        yield from every.differences()
        facts |= {"first_version": every.since, "versions_checked": subject.version - every.since + 1}


def _count_differences(subject: Subject, log: LogReplay, facts: dict[str, Any]) -> Iterator[Difference]:
    theirs = log.digest(tick=subject.tick)
    facts |= {**_totals(subject), "log_num_files": theirs.num_files, "log_size_bytes": theirs.size_bytes}
    if (ours := facts["num_files"]) != theirs.num_files:
        detail = f"the catalog has {ours} live files, the log {theirs.num_files}"
        yield Difference("counts", subject.version, detail)
    if (ours := facts["size_bytes"]) != theirs.size_bytes:
        detail = f"the catalog's files have {ours} bytes, the log's {theirs.size_bytes}"
        yield Difference("counts", subject.version, detail)


def _digest_differences(subject: Subject, log: LogReplay, facts: dict[str, Any]) -> Iterator[Difference]:
    ours, theirs = _digests(subject, log)
    facts |= {"num_files": ours.num_files, "size_bytes": ours.size_bytes, "digest": ours.hex()}
    facts |= {"log_num_files": theirs.num_files, "log_size_bytes": theirs.size_bytes}
    facts |= {"log_digest": theirs.hex(), "respelled": 0}
    buckets = tuple(ours.differing(theirs))
    per_bucket = max(1, ours.num_files // BUCKETS) * _MEMORY_PER_FILE
    size = max(1, subject.memory_bytes // per_bucket)
    for start in range(0, len(buckets), size):
        for difference in _file_differences(subject, log, buckets[start : start + size], facts):
            facts["buckets"] = buckets
            yield difference


def _digests(subject: Subject, log: LogReplay) -> tuple[FileDigest, FileDigest]:
    """The digests of the catalog's files and of the log's."""
    version, theirs = subject.version, None
    with ThreadPoolExecutor(1, thread_name_prefix="deltasql-digest") as pool:
        # the database computes its digest while this process reads the log
        ours = pool.submit(digests.table_digest, subject.database, subject.table.table_id, version)
        if subject.engine is not None:
            theirs = subject.engine.log_digest(subject.reader, version, tick=subject.tick)
        if theirs is None:
            theirs = log.digest(tick=subject.tick)
        return ours.result(), theirs


def _file_differences(
    subject: Subject, log: LogReplay, buckets: Sequence[int], facts: dict[str, Any]
) -> Iterator[Difference]:
    """Compare the files of some buckets one by one."""
    version = subject.version
    theirs = {add.key: add for add in log.files(buckets)}
    for add in digests.files_in(subject.database, subject.table.table_id, version, buckets):
        other = theirs.pop(add.key, None)
        if other is None:
            yield Difference("extra_file", version, _ONLY_IN_CATALOG, add.path)
        elif changed := list(_changed_fields(add, other)):
            yield Difference("changed_file", version, _differs_in(changed), add.path)
        elif any(getattr(add, n) != getattr(other, n) for n in ("stats", "path", "partition_values")):
            facts["respelled"] += 1
    for add in theirs.values():
        yield Difference("missing_file", version, _ONLY_IN_LOG, add.path)
    subject.tick()


def _damaged_copies(subject: Subject) -> Iterator[Difference]:
    """Commits whose bytes in the catalog do not match their digest."""
    for row in commits.of_table(subject.database, subject.table.table_id, upto=subject.version):
        kept = commits.kept_bytes(subject.database, subject.table.table_id, row.version)
        if kept is not None and commits.digest(kept) != row.sha256:
            yield Difference("commit", row.version, "the catalog's copy does not match its digest")


# ---- metadata, protocol, txns and domains ----


def _small_state(reader: TxnLogReader, version: int) -> SmallState:
    """The state of a version in a log."""
    found = reader.snapshot(version)
    state = _apply({}, (found.metadata, found.protocol))
    return _apply(_apply(state, reader.txns(version).values()), reader.domains(version).values())


def _apply(state: SmallState, actions: Iterable[Action]) -> SmallState:
    for action in actions:
        match action:
            case Metadata() | Protocol():
                state[kind_of(action), ""] = meaning(action)
            case Txn():
                state["txn", action.app_id] = meaning(action)
            case DomainMetadata(removed=True):
                state.pop(("domainMetadata", action.domain), None)
            case DomainMetadata():
                state["domainMetadata", action.domain] = meaning(action)
    return state


def _catalog_states(subject: Subject, first: int, last: int) -> Iterator[tuple[int, SmallState]]:
    """The state of each version from ``first`` to ``last`` in the catalog."""
    begun: dict[int, SmallState] = {}
    ended: dict[int, list[tuple[str, str]]] = {}
    for kind, name, since, until, raw in digests.small_rows(subject.database, subject.table.table_id):
        if until is None or until > first:
            data = decode_json(raw)
            removed = kind == "domainMetadata" and data.get("removed")
            begun.setdefault(max(since, first), {})[kind, name] = None if removed else meaning_of(kind, data)
            if until is not None:
                ended.setdefault(until, []).append((kind, name))
    state: SmallState = {}
    for version in range(first, last + 1):
        for key in ended.get(version, ()):
            state.pop(key, None)
        state |= begun.get(version, {})
        yield version, {key: value for key, value in state.items() if value is not None}


def _state_differences(version: int, ours: SmallState, theirs: SmallState) -> Iterator[Difference]:
    """Compare the catalog's state of a version with the log's."""
    if ours == theirs:
        return
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            what = {"metaData": "the metadata", "protocol": "the protocol"}.get(key[0], " ".join(key))
            lacking = "log" if key in ours else "catalog"
            how = "differs" if key in ours and key in theirs else f"is not in the {lacking}"
            yield Difference("state", version, f"{what} {how}")


def _changed_fields(ours: Add, theirs: Add) -> Iterator[str]:
    """The fields in which two adds of one file differ in meaning.

    ``dataChange`` is left out: a checkpoint does not keep the value of the commit.
    """
    for name in ("size", "modification_time", "deletion_vector", "base_row_id", "default_row_commit_version"):
        if getattr(ours, name) != getattr(theirs, name):
            yield name
    if _not_null(ours.partition_values) != _not_null(theirs.partition_values):
        yield "partition_values"
    # checkpoints may omit statistics, tags and unknown fields
    for name in ("tags", "clustering_provider", "extra", "stats"):
        one, other = getattr(ours, name), getattr(theirs, name)
        if one and other and one != other and (name != "stats" or parse_stats(one) != parse_stats(other)):
            yield name


def _not_null(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _differs_in(names: Iterable[str]) -> str:
    return f"it differs in {', '.join(names)}"


# ---- every version ----


@dataclass(slots=True)
class _Interval:
    """A file from the version that added it to the one that removed it; a tombstone has no add."""

    since: int
    until: int | None
    add: Add | None
    remove: dict[str, Any] | None


class _EveryVersion:
    """Compares every version that both sides have, from ``since`` on."""

    def __init__(self, subject: Subject) -> None:
        self._subject, self._reader = subject, subject.reader
        self._listing = listing = list_log(subject.reader.store)
        self._first, self._until = subject.first_version, subject.version
        #: the oldest version after which the log has every commit
        self.since = self._until
        while (
            self.since > self._first and self.since in listing.commits and listing.can_rebuild(self.since - 1)
        ):
            self.since -= 1
        self._from_nothing = self.since == 0 and 0 in listing.commits

    def differences(self) -> Iterator[Difference]:
        yield from self._states()
        passes = self._passes()
        for number in range(passes):
            yield from self._files(frozenset(range(number, BUCKETS, passes)))

    def _passes(self) -> int:
        """How many times to read the log to stay within the memory limit."""
        files = sum(m.size for v, m in self._listing.commits.items() if v >= self.since) // JSON_PER_ACTION
        memory = files * _MEMORY_PER_INTERVAL
        if not self._from_nothing and (found := self._listing.checkpoints.get(self.since)):
            scan = CheckpointScan(self._reader.store, found[0])
            memory += scan.rows * max(_MEMORY_PER_INTERVAL, scan.widest)
        return min(BUCKETS, max(1, ceil(memory / max(1, self._subject.memory_bytes))))

    def _states(self) -> Iterator[Difference]:
        """Metadata, protocol, txns and domains at every version."""
        theirs = {} if self._from_nothing else _small_state(self._reader, self.since)
        for version, ours in _catalog_states(self._subject, self.since, self._until):
            if version > self.since or self._from_nothing:
                _apply(theirs, self._commit(version))
            yield from _state_differences(version, ours, theirs)

    def _files(self, buckets: frozenset[int]) -> Iterator[Difference]:
        """The intervals of all files of some buckets."""
        theirs = self._log_intervals(buckets)
        ours: dict[FileKey, list[_Interval]] = {}
        for rows in digests.interval_rows(self._subject.database, self._subject.table.table_id):
            for row in rows:
                if bucket_of(row["path"]) in buckets and (clipped := self._clipped(row)) is not None:
                    ours.setdefault((canonical_path(row["path"]), row["dv_id"]), []).append(clipped)
            self._subject.tick()
        for key in ours.keys() | theirs.keys():
            for mine, other in zip_longest(ours.get(key, ()), theirs.get(key, ())):
                if (found := self._difference(mine, other)) is not None:
                    yield Difference(found[0], (mine or other).since, found[1], key[0])

    def _clipped(self, values: dict[str, Any]) -> _Interval | None:
        """The part of a row's interval within the compared versions, or None."""
        since, until = values["add_version"], values["remove_version"]
        action = values["remove_action"]
        remove = None if action is None else decode_json(action)
        if since > self._until:
            return None
        if until is not None and until > self._until:
            until, remove = None, None
        if until is not None and until <= self.since and self.since > self._first:
            return None
        # an empty interval with a tombstone is a file that was never live here
        never_live = since == until and action is not None
        return _Interval(max(since, self.since), until, None if never_live else add_from_row(values), remove)

    def _log_intervals(self, buckets: frozenset[int]) -> dict[FileKey, list[_Interval]]:
        found: dict[FileKey, list[_Interval]] = {}
        live: dict[FileKey, _Interval] = {}

        def apply(version: int, actions: Iterable[Action], *, base: bool) -> None:
            files = [a for a in actions if isinstance(a, Add | Remove) and bucket_of(a.path) in buckets]
            for remove in (a for a in files if isinstance(a, Remove)):
                if (ended := live.pop(remove.key, None)) is not None:
                    ended.until, ended.remove = version, remove.to_dict()
                elif not base or self.since == self._first:
                    tombstone = _Interval(version, version, None, remove.to_dict())
                    found.setdefault(remove.key, []).append(tombstone)
            for add in (a for a in files if isinstance(a, Add)):
                key = add.key
                if (replaced := live.get(key)) is not None:
                    replaced.until = version
                live[key] = _Interval(version, None, add, None)
                found.setdefault(key, []).append(live[key])

        if not self._from_nothing:
            for batch in self._base_actions():
                apply(self.since, batch, base=True)
        for version in range(self.since + (not self._from_nothing), self._until + 1):
            apply(version, self._commit(version), base=False)
        return found

    def _base_actions(self) -> Iterator[list[Action]]:
        checkpoints = self._listing.checkpoints.get(self.since, ())
        if not checkpoints:
            yield [*self._reader.tombstones(self.since), *self._reader.files(self.since)]
            return
        for part in CheckpointScan(self._reader.store, checkpoints[0]).parts():
            yield part.actions() if isinstance(part, Piece) else part
            self._subject.tick()

    def _commit(self, version: int) -> Iterator[Action]:
        meta = self._listing.commits[version]
        return iter_actions(self._reader.store, meta.path, size=meta.size)

    def _difference(self, mine: _Interval | None, other: _Interval | None) -> tuple[Kind, str] | None:
        if mine is None or other is None:
            return ("missing_file", _ONLY_IN_LOG) if mine is None else ("extra_file", _ONLY_IN_CATALOG)
        if (mine.since, mine.until) != (other.since, other.until):
            here = f"live from version {mine.since} to {mine.until} in the catalog"
            return "changed_file", f"{here}, from {other.since} to {other.until} in the log"
        if (mine.add is None) != (other.add is None) or mine.remove != other.remove:
            return "changed_file", "its remove action differs"
        if mine.add is None or other.add is None:
            return None
        changed = list(_changed_fields(mine.add, other.add))
        # only commits record dataChange reliably; a checkpoint does not
        from_commit = mine.since > self.since or self._from_nothing
        if from_commit and mine.add.data_change != other.add.data_change:
            changed.append("data_change")
        return ("changed_file", _differs_in(changed)) if changed else None
