"""Verification: does the catalog hold what the log says? At four levels, at any time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.config import get_config
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import InvalidArgumentError, LogError, VersionMissingError
from deltalakedb.metastore import files, registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import digests
from deltalakedb.mirror.outside import newest_beyond
from deltalakedb.protocol.actions import meaning, meaning_of
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.replay import file_key
from deltalakedb.storage.store import open_store
from deltalakedb.transfer.findings import LEVELS, Difference, Findings, Level, VerifyReport, changed_fields
from deltalakedb.transfer.intervals import check_every_version
from deltalakedb.transfer.live import LiveFiles
from deltalakedb.transfer.memory import memory_bound
from deltalakedb.uri import parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.digest import FileDigest
    from deltalakedb.transfer.choosing import EngineName, EngineWish
    from deltalakedb.transfer.engines import LoadEngine

__all__ = ["Difference", "Level", "VerifyReport", "verify_loaded", "verify_table"]

#: what a file takes in memory while it is compared field by field, on both sides
_MEMORY_PER_FILE = 6_000


@dataclass(frozen=True, slots=True)
class Subject:
    """What is compared: a table's rows, visible or not, and its log."""

    database: Database
    table_id: int
    name: str
    reader: FileTxnLogReader
    first_version: int
    version: int
    memory_bytes: int
    tick: Callable[[], None] = lambda: None
    engine: LoadEngine | None = None


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
        level: ``counts`` (files, bytes, metadata), ``digest`` (every live file), ``full`` (every field at
            every version that both sides hold, and the bytes of every commit) or ``data`` (the rows, read
            through the catalog and by stock ``deltalake`` or Spark).
        engine: Who reads the log: as in ``import_table``. Spark makes the digest of the log, and reads the
            plain table's rows; what differs, and the level ``full``, are looked at by this process.
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
    from deltalakedb.transfer.choosing import EngineWish  # its engines compare too

    check_level(level)
    wish = EngineWish(engine, spark, master, remote)
    address = parse_uri(uri)
    name = address.require_table()
    database = Database.open(address)
    table = registry.find(database, name)
    options = get_config().storage_options_for(table.location, storage_options)
    extra = []
    # that a followed log is ahead is no difference but a delay
    if table.state != registry.FOLLOWING:
        store = open_store(table.location, options)
        if (ahead := newest_beyond(database, table, store)) is not None:
            extra.append(Difference("ahead", ahead, "the log has a version that the catalog does not know"))
    return verify_head(database, table, level, options, wish=wish, found=extra)


def verify_head(
    database: Database,
    table: Table,
    level: Level,
    options: Mapping[str, str] | None,
    *,
    wish: EngineWish,
    found: Sequence[Difference] = (),
) -> VerifyReport:
    """Compare a table's log with the catalog at the newest version that is published, whatever lies beyond.

    Args:
        database: The catalog.
        table: The table.
        level: As in ``verify_table``.
        options: The options for the table's location.
        wish: Who reads the log.
        found: Differences that are known already.
    """
    subject = Subject(
        database,
        table.table_id,
        table.name,
        FileTxnLogReader(table.location, options),
        table.head.first_version,
        table.published_version,
        memory_bound(),
        engine=wish.make(wish.decide(num_files=table.head.num_files)),
    )
    report = verify_loaded(subject, level, found)
    if level == "data":
        from deltalakedb.transfer.data_rows import check_rows  # deltalake's reading costs time to import

        uri = database.address.with_table(table.name).to_uri(redact=False)
        report = check_rows(report, uri, table.location, options, options, subject.engine)
    return report


def check_level(level: str) -> None:
    """InvalidArgumentError for a level that there is not."""
    if level not in LEVELS:
        raise InvalidArgumentError(f"unknown level {level!r}", suggestion=f"use one of {', '.join(LEVELS)}")


def verify_loaded(subject: Subject, level: Level, found: Sequence[Difference] = ()) -> VerifyReport:
    """Compare what is loaded with the log; ``data`` compares no more than ``full`` here."""
    began = time.perf_counter()
    findings = Findings()
    findings.extend(found)
    version = subject.version
    try:
        files_of_log = LiveFiles(subject.reader, version, memory_bytes=subject.memory_bytes)
        findings.extend(_small_state(subject))
        numbers = _counted(subject, files_of_log) if level == "counts" else None
        if numbers is not None:
            findings.extend(_count_differences(version, *numbers))
            report = VerifyReport(
                subject.name, level, version, version, numbers[0], numbers[1], numbers[2], numbers[3]
            )
        else:
            report = _digested(subject, level, files_of_log, findings)
        if level in ("full", "data"):
            since, checked, commits = check_every_version(
                subject.database,
                subject.table_id,
                subject.reader,
                (subject.first_version, version),
                memory_bytes=subject.memory_bytes,
                tick=subject.tick,
                findings=findings,
            )
            report = _with(report, first_version=since, versions_checked=checked, commits_checked=commits)
    except (LogError, VersionMissingError) as error:
        findings.add(Difference("log", version, error.message))
        size = files.totals_at(subject.database, subject.table_id, version)
        report = VerifyReport(subject.name, level, version, version, size[0], 0, size[1], 0)
    return _with(
        report,
        num_differences=findings.count,
        differences=tuple(findings.kept),
        seconds=round(time.perf_counter() - began, 3),
    )


def _with(report: VerifyReport, **changes: object) -> VerifyReport:
    return replace(report, **changes)  # type: ignore[arg-type]


def _counted(subject: Subject, log: LiveFiles) -> tuple[int, int, int, int]:
    ours = files.totals_at(subject.database, subject.table_id, subject.version)
    count, size = log.counts(tick=subject.tick)
    return ours[0], count, ours[1], size


def _count_differences(
    version: int, files: int, log_files: int, size: int, log_size: int
) -> Iterator[Difference]:
    if files != log_files:
        yield Difference("counts", version, f"the catalog has {files} live files, the log {log_files}")
    if size != log_size:
        yield Difference("counts", version, f"the catalog's files have {size} bytes, the log's {log_size}")


def _digested(subject: Subject, level: Level, log: LiveFiles, findings: Findings) -> VerifyReport:
    ours, theirs = _proven(subject) or _both_read(subject, log)
    version = subject.version
    differing = ours.differing(theirs)
    respelled = _compare_files(subject, log, differing, findings) if differing else 0
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
        buckets=tuple(differing) if findings.count else (),
        respelled=respelled,
    )


def _proven(subject: Subject) -> tuple[FileDigest, FileDigest] | None:
    """The digests of both sides by what was counted during the load; None where the catalog differs."""
    proof = None if subject.engine is None else subject.engine.proof(subject.version)
    if proof is None:
        return None
    database, table_id = subject.database, subject.table_id
    for stretch in proof.stretches:
        if not digests.holds(database, table_id, proof.first_version, stretch):
            return None
        subject.tick()
    ours = digests.changed_digest(
        database, table_id, proof.base_digest(), proof.first_version, subject.version, proof.rows
    )
    return ours, proof.log_digest()


def _both_read(subject: Subject, log: LiveFiles) -> tuple[FileDigest, FileDigest]:
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


def _compare_files(subject: Subject, log: LiveFiles, buckets: list[int], findings: Findings) -> int:
    """Compare the files of some buckets one by one; how many are only spelled differently."""
    total = files.totals_at(subject.database, subject.table_id, subject.version)[0]
    per_bucket = max(1, total // 4096) * _MEMORY_PER_FILE
    group = max(1, subject.memory_bytes // per_bucket)
    respelled = 0
    for start in range(0, len(buckets), group):
        some = buckets[start : start + group]
        theirs: dict[tuple[str, str], Add] = {}
        for add in log.in_buckets(some):
            theirs[file_key(add)] = add
        for add in digests.files_in(subject.database, subject.table_id, subject.version, some):
            other = theirs.pop(file_key(add), None)
            if other is None:
                detail = "the catalog has a file that the log does not"
                findings.add(Difference("extra", subject.version, detail, add.path))
            elif changed := list(changed_fields(add, other)):
                findings.add(
                    Difference("changed", subject.version, f"it differs in {', '.join(changed)}", add.path)
                )
            elif (add.stats, add.path, dict(add.partition_values)) != (
                other.stats,
                other.path,
                dict(other.partition_values),
            ):
                respelled += 1
        for add in theirs.values():
            detail = "the log has a file that the catalog does not"
            findings.add(Difference("missing", subject.version, detail, add.path))
        subject.tick()
    return respelled


def _small_state(subject: Subject) -> Iterator[Difference]:
    """Metadata, protocol, txns and domains at the version."""
    version, reader = subject.version, subject.reader
    snapshot = reader.snapshot(version)
    theirs = {("metaData", ""): meaning(snapshot.metadata), ("protocol", ""): meaning(snapshot.protocol)}
    theirs |= {("txn", app): meaning(t) for app, t in reader.txns(version).items()}
    theirs |= {("domainMetadata", name): meaning(d) for name, d in reader.domains(version).items()}
    ours = {}
    for kind, name, since, until, raw in digests.small_rows(subject.database, subject.table_id):
        if since <= version and (until is None or until > version):
            value = decode_json(raw)
            if not (kind == "domainMetadata" and value.get("removed")):
                ours[kind, name] = meaning_of(kind, value)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            what = " ".join(part for part in key if part)
            side = "differs" if key in ours and key in theirs else "is not in the log"
            detail = f"{what} {side}" if key in ours else f"{what} is not in the catalog"
            yield Difference("state", version, detail)
