"""The verifier: compares a log with the catalog, at five levels."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.address import parse_address
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import LogError, VersionMissingError
from deltalakedb.metastore import commits, files, registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import digests
from deltalakedb.mirror.drift import (
    Difference,
    broken_checkpoints,
    commit_differences,
    versions_ahead,
)
from deltalakedb.settings import get_config
from deltalakedb.transfer.resources import memory_bound
from deltalakedb.transfer.verifying.every_version import compare_every_version
from deltalakedb.transfer.verifying.log_replay import LogReplay
from deltalakedb.transfer.verifying.report import Differences, VerifyReport, changed_fields, check_level
from deltalakedb.transfer.verifying.small_state import catalog_states, small_state, state_differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.digest import FileDigest
    from deltalakedb.transfer.importing.engines import EngineName, EngineOptions, LoadEngine
    from deltalakedb.transfer.verifying.report import Level

#: what a file takes in memory while it is compared field by field, on both sides
_MEMORY_PER_FILE = 6_000
#: levels that compare the bytes of every commit file
_BYTES = ("commits", "full", "data")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is compared: a table's rows, which need not be visible yet, and a log.

    Attributes:
        database: The catalog.
        table_id: The table.
        name: Its name.
        reader: The log.
        first_version: The oldest version that the catalog holds.
        version: The newest version that is compared; -1 if nothing is published.
        first_commit: The oldest version whose commit file the log must have.
        checkpoints_of: The table whose checkpoints are compared too, one by one.
        engine: Who replays the log; None for this process.
        tick: Called now and then.
        memory_bytes: How much memory the comparison may use.
    """

    database: Database
    table_id: int
    name: str
    reader: FileTxnLogReader
    first_version: int
    version: int
    first_commit: int = 0
    checkpoints_of: Table | None = None
    engine: LoadEngine | None = None
    tick: Callable[[], None] = lambda: None
    memory_bytes: int = field(default_factory=lambda: memory_bound())


def verify_table(
    uri: str,
    level: Level = "digest",
    *,
    engine: EngineName = "auto",
    spark: Any = None,
    master: str | None = None,
    remote: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> VerifyReport:
    """Compare a table's log with the catalog, at the newest version that is published. Nothing is changed.

    Args:
        uri: The table's ``deltasql://`` address.
        level: ``commits`` (the bytes of every commit file), ``counts`` (files, bytes, metadata), ``digest``
            (every live file), ``full`` (every field at every version that both sides hold, and the bytes of
            every commit) or ``data`` (``full``, and the rows, read through the catalog and by stock
            ``deltalake`` or Spark).
        engine: Who reads the log, as in ``import_table``. Spark makes the digest of the log and reads the
            plain table's rows; this process compares what differs, and does the rest of level ``full``.
        spark: As in ``import_table``.
        master: As in ``import_table``.
        remote: As in ``import_table``.
        storage_options: Options for the object store.

    Returns:
        A report; ``ok`` says whether they agree.

    Example:
        >>> verify_table("deltasql://sqlite//lake/meta.db?table=sales.orders", "full").ok
        True
    """
    from deltalakedb.transfer.importing.engines import EngineOptions  # its engines compare too

    check_level(level)
    options = EngineOptions(engine, spark, master, remote)
    address = parse_address(uri)
    name = address.require_table()
    database = Database.open(address)
    table = registry.find(database, name)
    storage = get_config().storage_options_for(table.location, storage_options)
    return verify_head(database, table, level, storage, engine=options)


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
    """Compare a table's log with the catalog at the newest version that is published.

    Args:
        database: The catalog.
        table: The table.
        level: As in ``verify_table``.
        storage_options: The options for the table's location.
        engine: Who reads the log; by default this process.
        look_ahead: Report versions of the log beyond the head. In a copy that follows another table they are
            a delay, not a difference.
        checkpoints: At level ``full``, also replay every checkpoint by itself. Readers and imports skip a
            broken one, so otherwise it is no difference.
    """
    reader = FileTxnLogReader(table.location, storage_options)
    found: list[Difference] = []
    if look_ahead and table.state != registry.FOLLOWING:
        found += versions_ahead(database, table, reader.store)
    subject = Subject(
        database,
        table.table_id,
        table.name,
        reader,
        table.head.first_version,
        table.published_version,
        checkpoints_of=table if checkpoints else None,
        engine=None if engine is None else engine.make(engine.decide(num_files=table.head.num_files)),
    )
    report = verify_loaded(subject, level, *found)
    if level == "data" and table.published_version >= 0:
        from deltalakedb.transfer.verifying.data_rows import check_rows  # imports deltalake's reader

        uri = database.address.with_table(table.name).to_uri(redact=False)
        report = check_rows(report, uri, table.location, storage_options, storage_options, subject.engine)
    return report


def verify_loaded(subject: Subject, level: Level, *found: Difference) -> VerifyReport:
    """Compare a subject's rows with its log; ``data`` compares no more than ``full`` here.

    If commit files are missing, damaged or foreign, that is reported and nothing is replayed: every later
    version would differ because of it.
    """
    began = time.perf_counter()
    differences = Differences()
    differences.extend(found)
    compared, broken = 0, False
    if level in _BYTES:
        compared, different = commit_differences(
            subject.database,
            subject.table_id,
            subject.reader.store,
            published=subject.version,
            oldest=subject.first_commit,
        )
        differences.extend(different)
        broken = bool(different)
    if level == "commits" or broken or subject.version < 0:
        report = replace(_unread(subject, level), versions_checked=compared)
    else:
        try:
            report = _replayed(subject, level, differences)
        except (LogError, VersionMissingError) as error:
            differences.add(Difference("log", subject.version, error.message))
            report = _unread(subject, level)
    return replace(
        report,
        commits_checked=compared,
        num_differences=differences.count,
        differences=tuple(differences.listed),
        seconds=round(time.perf_counter() - began, 3),
    )


def _unread(subject: Subject, level: Level) -> VerifyReport:
    """A report on a log whose files were not counted."""
    version = subject.version
    count, size, *_ = files.totals_at(subject.database, subject.table_id, version)
    return VerifyReport(subject.name, level, version, version, count, 0, size, 0)


def _replayed(subject: Subject, level: Level, differences: Differences) -> VerifyReport:
    log = LogReplay(subject.reader, subject.version, memory_bytes=subject.memory_bytes)
    full = level in ("full", "data")
    if full and (table := subject.checkpoints_of) is not None:
        found = broken_checkpoints(subject.database, table, subject.reader.store)
        differences.extend(difference for difference, _ in found)
    differences.extend(_newest_state(subject))
    report = (
        _counted(subject, log, differences)
        if level == "counts"
        else _digested(subject, level, log, differences)
    )
    if full:
        differences.extend(_damaged_copies(subject))
        since = compare_every_version(subject, differences)
        return replace(report, first_version=since, versions_checked=subject.version - since + 1)
    return report


def _newest_state(subject: Subject) -> Iterator[Difference]:
    version = subject.version
    theirs = small_state(subject.reader, version)
    for _, ours in catalog_states(subject.database, subject.table_id, version, version):
        yield from state_differences(version, ours, theirs)


def _damaged_copies(subject: Subject) -> Iterator[Difference]:
    """Commits whose bytes in the catalog do not have the digest that the catalog keeps."""
    for row in commits.of_table(subject.database, subject.table_id):
        if row.sha256 is None or row.version > subject.version:
            continue
        kept = commits.kept_bytes(subject.database, subject.table_id, row.version)
        if kept is not None and commits.digest(kept) != row.sha256:
            yield Difference("commit", row.version, "the catalog's copy does not have its own digest")


def _counted(subject: Subject, log: LogReplay, differences: Differences) -> VerifyReport:
    version = subject.version
    count, size, *_ = files.totals_at(subject.database, subject.table_id, version)
    theirs = log.digest(tick=subject.tick)
    if count != theirs.num_files:
        detail = f"the catalog has {count} live files, the log {theirs.num_files}"
        differences.add(Difference("counts", version, detail))
    if size != theirs.size_bytes:
        detail = f"the catalog's files have {size} bytes, the log's {theirs.size_bytes}"
        differences.add(Difference("counts", version, detail))
    return VerifyReport(
        subject.name, "counts", version, version, count, theirs.num_files, size, theirs.size_bytes
    )


def _digested(subject: Subject, level: Level, log: LogReplay, differences: Differences) -> VerifyReport:
    ours, theirs = _digests(subject, log)
    version = subject.version
    buckets = ours.differing(theirs)
    before = differences.count
    respelled = _compare_files(subject, log, buckets, differences) if buckets else 0
    return VerifyReport(
        subject.name,
        level,
        version,
        version,
        ours.num_files,
        theirs.num_files,
        ours.size_bytes,
        theirs.size_bytes,
        digest=ours.hex(),
        log_digest=theirs.hex(),
        buckets=tuple(buckets) if differences.count > before else (),
        respelled=respelled,
    )


def _digests(subject: Subject, log: LogReplay) -> tuple[FileDigest, FileDigest]:
    """The digests of the catalog's files and of the log's."""
    version = subject.version
    with ThreadPoolExecutor(1, thread_name_prefix="deltasql-digest") as pool:
        # the database works on its own side while the log is read here
        asked = pool.submit(digests.table_digest, subject.database, subject.table_id, version)
        theirs = None
        if subject.engine is not None:
            theirs = subject.engine.log_digest(subject.reader, version, tick=subject.tick)
        if theirs is None:
            theirs = log.digest(tick=subject.tick)
        return asked.result(), theirs


def _compare_files(subject: Subject, log: LogReplay, buckets: list[int], differences: Differences) -> int:
    """Compare the files of some buckets one by one; returns how many are only spelled differently."""
    version = subject.version
    total = files.totals_at(subject.database, subject.table_id, version)[0]
    per_bucket = max(1, total // 4096) * _MEMORY_PER_FILE
    group = max(1, subject.memory_bytes // per_bucket)
    respelled = 0
    for start in range(0, len(buckets), group):
        some = buckets[start : start + group]
        theirs = {add.key: add for add in log.in_buckets(some)}
        for add in digests.files_in(subject.database, subject.table_id, version, some):
            other = theirs.pop(add.key, None)
            if other is None:
                detail = "the catalog has a file that the log does not"
                differences.add(Difference("extra_file", version, detail, add.path))
            elif changed := list(changed_fields(add, other)):
                detail = f"it differs in {', '.join(changed)}"
                differences.add(Difference("changed_file", version, detail, add.path))
            elif (add.stats, add.path, dict(add.partition_values)) != (
                other.stats,
                other.path,
                dict(other.partition_values),
            ):
                respelled += 1
        for add in theirs.values():
            detail = "the log has a file that the catalog does not"
            differences.add(Difference("missing_file", version, detail, add.path))
        subject.tick()
    return respelled
