"""What is known of imports: progress while they run, a report at the end, their status at any time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from deltalakedb.address import parse_address
from deltalakedb.exceptions import TableMissingError
from deltalakedb.metastore import imports, registry
from deltalakedb.metastore.database import Database
from deltalakedb.transfer.resources import is_leased

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.imports import ImportRow, Receipt
    from deltalakedb.transfer.verifying.report import VerifyReport


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import is.

    Attributes:
        phase: ``loading`` or ``verifying``.
        done: Steps done: rows of the checkpoint and commits.
        total: Steps there are.
        files_seen: File actions loaded so far, by this run and earlier ones.
        rate: File actions a second, by this run.
        seconds_left: An estimate, or None if nothing is known yet.
    """

    phase: str
    done: int
    total: int
    files_seen: int = 0
    rate: float = 0.0
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import brought in.

    Attributes:
        table: The table's name.
        location: Its root.
        version: Its newest version; the next commit is one more.
        first_version: The oldest version that SQL can rebuild.
        num_versions: How many it can.
        num_files: Live files.
        size_bytes: Their bytes.
        seconds: How long this run took.
        import_id: The import's id in ``dl_v_imports``; None if there was nothing to do.
        action: ``imported``, ``resumed``, ``caught up`` or ``unchanged``.
        digest: The digest of the live files, if one was made.
        verification: What the verification found.
        phases: Seconds by phase.
        passed_over: Torn checkpoints that were skipped for an older one.
        peak_memory_bytes: The most memory the process held.
        engine: Who loaded it: ``local``, or ``spark``.
        note: A remark on that choice, or that other writers went on.
    """

    table: str
    location: str
    version: int
    first_version: int
    num_versions: int
    num_files: int
    size_bytes: int
    seconds: float
    import_id: str | None = None
    action: str = "imported"
    digest: str | None = None
    verification: VerifyReport | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    passed_over: tuple[int, ...] = ()
    peak_memory_bytes: int = 0
    engine: str = "local"
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        checked = self.verification
        return {
            **{k: v for k, v in asdict(self).items() if k != "verification"},
            "phases": dict(self.phases),
            "verification": None if checked is None else checked.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class ImportStatus:
    """The state of one import.

    Attributes:
        table: The table's name.
        location: The source.
        phase: ``loading``, ``verifying``, ``finalized``, ``failed``, ``undone``, or ``dropped`` if it was
            finalized and the table no longer exists.
        first_version: The oldest version it brings.
        version: The newest.
        batches_done: Batches with a receipt.
        batches_total: Batches there are.
        actions_done: File actions loaded.
        actions_expected: An estimate of how many there are.
        rate: File actions a second while batches were written; None before the first.
        seconds_left: An estimate while it is loading.
        memory_bytes: The most memory that its processes reported.
        started_at: When it began, in epoch milliseconds.
        updated_at: When its state changed last.
        finished_at: When it ended.
        error: Why it stopped.
        digest: The digest of its live files, once it is verified.
        import_id: Its id.
        at_work: Whether a process is working on it; a loading import without one was interrupted.
        looked_at: Of a followed table: when its log was looked at last, in epoch milliseconds.
        lag: Of a followed table: versions of the log that the copy did not have then.
    """

    table: str
    location: str
    phase: str
    first_version: int
    version: int
    batches_done: int
    batches_total: int
    actions_done: int
    actions_expected: int
    rate: float | None
    seconds_left: float | None
    memory_bytes: int
    started_at: int
    updated_at: int
    finished_at: int | None
    error: str | None
    digest: str | None
    import_id: str
    at_work: bool = False
    looked_at: int | None = None
    lag: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The status as plain data."""
        return asdict(self)


def import_status(uri: str) -> list[ImportStatus]:
    """The imports of a catalog, or those under a table's name, newest first.

    Args:
        uri: A catalog's or a table's ``deltasql://`` address.

    Example:
        >>> [s.phase for s in import_status("deltasql://sqlite//lake/meta.db")]
        ['finalized']
    """
    address = parse_address(uri)
    database = Database.open(address)
    rows = imports.list_imports(database, address.table)
    return [_status(database, row) for row in rows]


def _status(database: Database, row: ImportRow) -> ImportStatus:
    done = imports.receipts(database, row.import_id)
    actions, spent = sum(r.actions for r in done), _seconds(row, done)
    rate = round(actions / spent, 1) if actions else None
    left = None
    if row.phase == "loading" and done:
        left = round(spent / len(done) * max(0, row.batches_total - len(done)), 1)
    return ImportStatus(
        row.name,
        row.location,
        row.phase,
        row.first_version,
        row.source_version,
        len(done),
        row.batches_total,
        actions,
        row.files_expected,
        rate,
        left,
        max((r.memory_bytes for r in done), default=0),
        row.started_at,
        max([row.updated_at, *(r.written_at for r in done)]),
        row.finished_at,
        row.error,
        row.digest,
        row.import_id,
        row.is_open and is_leased(database, row.location),
        *_followed(database, row),
    )


def _seconds(row: ImportRow, done: Sequence[Receipt]) -> float:
    """The time that batches took, with pauses for a rate limit and without interruptions."""
    spent, before = 0, row.started_at
    for receipt in done:
        gap = receipt.written_at - before
        own = max(receipt.milliseconds, 1)  # the clock does not show less
        spent += own if gap < own or gap > own + imports.LEASE_MS else gap
        before = receipt.written_at
    return spent / 1000


def _followed(database: Database, row: ImportRow) -> tuple[int | None, int | None]:
    """When a followed log was looked at, and how far the copy was behind."""
    if row.phase != "finalized" or (looked_at := row.details.get("looked_at")) is None:
        return None, None
    try:
        head = registry.find(database, row.name).head.version
    except TableMissingError:
        return None, None
    return looked_at, max(0, row.details["seen_version"] - head)
