"""What imports tell: while they run, and at their end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.transfer.verify import VerifyReport


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import is.

    Attributes:
        phase: ``loading`` or ``verifying``.
        done: Steps done: rows of the checkpoint and commits.
        total: Steps there are.
        files_seen: File actions loaded so far, by this run and earlier ones.
        rate: File actions a second, by this run.
        seconds_left: An estimate, or None where nothing is known yet.
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
        import_id: The import's id in ``dl_v_imports``; None where nothing was to be done.
        action: ``imported``, ``resumed``, ``caught up`` or ``unchanged``.
        digest: The digest of the live files, where one was made.
        verification: What the verification found.
        phases: Seconds by phase.
        passed_over: Torn checkpoints that were passed over for an older one.
        peak_memory_bytes: The most memory the process held.
        engine: Who loaded it: ``local``, or ``spark``.
        note: What is to be said about that choice, or about others who went on writing.
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
