"""What transfers report: plans, progress, outcomes and comparisons, all with ``to_dict``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import msgspec

from deltalakedb.transfer import Level  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from deltalakedb.exceptions import DeltaSqlError
    from deltalakedb.mirror.drift import Difference

Base: TypeAlias = Literal["none", "checkpoint", "state"]


@dataclass(frozen=True, slots=True)
class Report:
    """A report that becomes plain data: its fields, and some of its properties.

    Fields that many have: ``table`` (its name), ``location`` (its root), ``version`` and ``first_version``
    (its newest and oldest), ``num_files`` and ``size_bytes`` (live files), ``seconds`` (how long it took),
    ``dry_run`` (True if nothing was changed), and ``verification`` (how log and catalog compared).
    """

    _computed: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        names = (*self._computed, *(f.name for f in fields(self)))
        return {name: _plain(getattr(self, name)) for name in names}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return dict(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


@dataclass(frozen=True, slots=True)
class VerifyReport(Report):
    """The result of comparing a log with the catalog.

    Attributes:
        version: The version that was compared; -1 if nothing is published yet.
        first_version: The oldest version that was compared; less than ``version`` at level ``full``.
        num_files: Live files in the catalog; ``log_num_files``: those of the log, 0 if not counted.
        size_bytes: Their bytes in the catalog; ``log_size_bytes``: in the log.
        digest: The digest of the catalog's live files, from level ``digest`` on; ``log_digest``: the log's.
        buckets: Buckets of the digest that differ.
        respelled: Files that are spelled differently and mean the same.
        commits_checked: Commit files whose bytes were compared.
        rows_checked: Rows of data that were compared.
        differences: The first of ``num_differences`` differences.
    """

    _computed = ("ok",)

    table: str
    level: Level
    version: int
    first_version: int
    num_files: int = 0
    log_num_files: int = 0
    size_bytes: int = 0
    log_size_bytes: int = 0
    digest: str | None = None
    log_digest: str | None = None
    buckets: tuple[int, ...] = ()
    respelled: int = 0
    versions_checked: int = 1
    commits_checked: int = 0
    rows_checked: int = 0
    num_differences: int = 0
    differences: tuple[Difference, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether log and catalog agree."""
        return not self.num_differences


@dataclass(frozen=True, slots=True)
class TableReport(Report):
    """A report about a table at a location."""

    table: str
    location: str


@dataclass(frozen=True, slots=True)
class ImportPlan(TableReport):
    """What an import will do. Made from the log alone, and the same again for the same log.

    Attributes:
        first_version: The oldest of the ``num_versions`` versions that SQL will hold.
        history: ``full`` or ``checkpoint``, as it was decided.
        base: Where the first version comes from: a ``checkpoint``, the replayed ``state``, or ``none``,
            if it is version 0 and its commit is all there is.
        checkpoint: The checkpoint's files.
        base_rows: Rows of the checkpoint, including those of other actions.
        batch_size: Rows of the checkpoint in one batch.
        num_batches: Batches, including those of the commits after the checkpoint.
        tail_bytes: Bytes of the commits that will be replayed.
        num_files: Live files; an estimate unless ``exact``.
        size_bytes: Their bytes; None if they were not counted.
        seconds: An estimate, as are ``memory_bytes`` and ``database_bytes``, by which the database grows.
        passed_over: Checkpoints that cannot be read and were skipped for an older one.
        engine: What loads it: ``local`` or ``spark``.
        engine_reason: Why that was chosen.
        note: A remark on an earlier import.
        stamps: Size and time of each of the checkpoint's files; they differ if it was rewritten.
    """

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
    engine_reason: str = ""
    note: str | None = None
    stamps: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The plan from what ``to_dict`` returned."""
        return msgspec.convert(data, cls)


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import is.

    Attributes:
        phase: ``loading`` or ``verifying``.
        done: Steps done, out of ``total``: rows of the checkpoint and commits.
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
class ImportReport(TableReport):
    """What an import loaded.

    Attributes:
        version: Its newest version; the next commit is one more.
        first_version: The oldest of the ``num_versions`` versions that SQL can rebuild.
        import_id: The import's id in ``dl_v_imports``; None if there was nothing to do.
        action: ``imported``, ``resumed``, ``caught up`` or ``unchanged``.
        digest: The digest of the live files, if one was made.
        phases: Seconds by phase.
        passed_over: Torn checkpoints that were skipped for an older one.
        peak_memory_bytes: The most memory the process held.
        engine: What loaded it: ``local`` or ``spark``.
        note: That the source has newer versions.
    """

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


@dataclass(frozen=True, slots=True)
class ImportStatus(TableReport):
    """The state of one import; its times are in epoch milliseconds.

    Attributes:
        phase: ``loading``, ``verifying``, ``finalized``, ``failed``, ``undone``, or ``dropped`` if it was
            finalized and the table no longer exists.
        first_version: The oldest version that it imports.
        batches_done: Batches with a receipt, out of ``batches_total``.
        actions_done: File actions loaded; ``actions_expected`` is an estimate of how many there are.
        rate: File actions a second while batches were written; None before the first.
        seconds_left: An estimate while it is loading.
        memory_bytes: The most memory that its processes reported.
        updated_at: When its state changed last.
        error: Why it stopped.
        digest: The digest of its live files, once it is verified.
        at_work: Whether a process is working on it; a loading import without one was interrupted.
        looked_at: Of a followed table: when its log was read last.
        lag: Of a followed table: versions of the log that the copy did not have then.
    """

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


@dataclass(frozen=True, slots=True)
class TableOutcome(TableReport):
    """What happened to one of many tables.

    Attributes:
        outcome: ``imported``, ``resumed``, ``caught up``, ``unchanged``, ``planned`` or ``failed``.
        report: The import's report.
        plan: The plan, in a dry run.
        error: Why it failed.
    """

    outcome: str
    report: ImportReport | None = None
    plan: ImportPlan | None = None
    error: DeltaSqlError | None = None


@dataclass(frozen=True, slots=True)
class ManyReport(Report):
    """What happened to many tables, one outcome for each, by name."""

    tables: tuple[TableOutcome, ...]
    seconds: float

    @property
    def failed(self) -> tuple[TableOutcome, ...]:
        """Those that failed."""
        return tuple(t for t in self.tables if t.outcome == "failed")

    @property
    def ok(self) -> bool:
        """Whether none failed."""
        return not self.failed

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        counts = {"ok": self.ok, "num_tables": len(self.tables), "num_failed": len(self.failed)}
        return {**counts, **Report.to_dict(self)}


@dataclass(frozen=True, slots=True)
class FollowReport(TableReport):
    """How far a copy is behind the log that it follows.

    Attributes:
        version: The newest version of the copy; ``source_version``: that of the log at that time.
        brought: Versions that this look imported.
        seconds_behind: Age of the oldest version that the copy lacked.
        action: ``imported`` for a copy that was made now, ``caught up`` or ``unchanged``.
        error: Why the log could not be reached this time; the next look tries again.
    """

    _computed = ("lag",)

    version: int
    source_version: int
    brought: int
    seconds_behind: float
    action: str
    error: str | None = None

    @property
    def lag(self) -> int:
        """Versions of the log that the copy does not have."""
        return max(0, self.source_version - self.version)


@dataclass(frozen=True, slots=True)
class RollbackReport(TableReport):
    """What a rollback did, or would do. Nothing at the location is changed.

    Attributes:
        action: ``undone`` (an unfinished import), ``partly undone``, or ``released`` (a finished one is a
            plain Delta table again).
        version: The newest version of the plain table; None for an unfinished import.
        num_files: File rows that were dropped.
        batches: Batches that were dropped.
        batches_left: Batches that stay; the import resumes from there.
    """

    action: str
    version: int | None
    num_files: int
    batches: int = 0
    batches_left: int = 0
    verification: VerifyReport | None = None
    dry_run: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RestoreReport(Report):
    """What restoring a table did, or would do.

    Attributes:
        restored_version: The version that the table is like now.
        version: The version that the restore committed, or would commit.
        num_restored: Files that came back.
        num_removed: Files that were removed.
    """

    table: str
    restored_version: int
    version: int
    num_restored: int
    num_removed: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RelocatedTable(TableReport):
    """A table at its new location.

    Attributes:
        old_location: Where the catalog had it before.
        version: Its newest version.
    """

    old_location: str
    version: int


@dataclass(frozen=True, slots=True)
class RelocationReport(Report):
    """The locations that were changed in the catalog, or would be.

    Attributes:
        tables: The tables, by name.
        root: The catalog's new root; None if it stays.
    """

    tables: tuple[RelocatedTable, ...]
    root: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ExportReport(TableReport):
    """What an export made, or would make, at a location.

    Attributes:
        in_place: True if it stayed where it was, and the catalog has released it.
        num_files: Files of data, deletion vectors and changes that were copied or linked.
        num_published: Commits that waited and were published before the table left the catalog.
        files_outside: Files that the log names by absolute paths; they stay where they are.
        files_gone: Files of older versions that a vacuum had deleted before.
        versions_gone: Older versions that the log leaves out, since a commit after them is neither in the
            catalog nor in the table's own log.
    """

    in_place: bool
    version: int
    first_version: int
    num_files: int = 0
    size_bytes: int = 0
    num_published: int = 0
    files_outside: int = 0
    files_gone: int = 0
    versions_gone: int = 0
    verification: VerifyReport | None = None
    dry_run: bool = False
    seconds: float = 0.0
