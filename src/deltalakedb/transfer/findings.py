"""What a verification finds, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from deltalakedb.protocol.actions import Add

Level: TypeAlias = Literal["counts", "digest", "full", "data"]
LEVELS: tuple[Level, ...] = ("counts", "digest", "full", "data")
Kind: TypeAlias = Literal["missing", "extra", "changed", "counts", "state", "commit", "ahead", "log", "rows"]

#: differences that a report shows one by one
SHOWN = 100


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that log and catalog do not agree on.

    Attributes:
        kind: ``missing`` in the catalog, ``extra`` there, ``changed``; ``counts`` of files or bytes;
            ``state`` for metadata, protocol, txns and domains; ``commit`` for a commit's bytes; ``ahead``
            where the log has versions that the catalog does not know; ``log`` where it cannot be read;
            ``rows`` of data.
        version: The version concerned.
        path: The file, where it is about one.
        detail: What was seen.
    """

    kind: Kind
    version: int
    detail: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a comparison of log and catalog found.

    Attributes:
        table: The table.
        level: How thorough it was.
        version: The version that was compared.
        first_version: The oldest version that was compared; less than ``version`` at level ``full``.
        num_files: Live files in the catalog.
        log_num_files: Live files in the log.
        size_bytes: Their bytes in the catalog.
        log_size_bytes: Their bytes in the log.
        digest: The digest of the catalog's live files, from level ``digest`` on.
        log_digest: That of the log's.
        buckets: Buckets of the digest that differ.
        respelled: Files that are spelled differently and mean the same.
        versions_checked: Versions whose whole state was compared.
        commits_checked: Commit files whose bytes were compared.
        rows_checked: Rows of data that were compared.
        num_differences: How many differences there are.
        differences: The first of them.
        seconds: How long it took.
    """

    table: str
    level: Level
    version: int
    first_version: int
    num_files: int
    log_num_files: int
    size_bytes: int
    log_size_bytes: int
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

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class Findings:
    """Collects differences: all are counted, the first are kept."""

    count: int = 0
    kept: list[Difference] = field(default_factory=list)

    def add(self, found: Difference) -> None:
        """Count one more."""
        self.count += 1
        if len(self.kept) < SHOWN:
            self.kept.append(found)

    def extend(self, found: Iterable[Difference]) -> None:
        """Count more."""
        for one in found:
            self.add(one)


def changed_fields(ours: Add, theirs: Add) -> Iterator[str]:
    """The fields in which two adds of one file differ in meaning.

    ``dataChange`` is left out: a checkpoint does not tell what the commit said.
    """
    for name in (
        "size",
        "modification_time",
        "deletion_vector",
        "base_row_id",
        "default_row_commit_version",
    ):
        if getattr(ours, name) != getattr(theirs, name):
            yield name
    if _given(ours.partition_values) != _given(theirs.partition_values):
        yield "partition_values"
    # checkpoints need not have the rest: those without statistics, tags or unknown fields are as good
    for name in ("tags", "clustering_provider", "extra"):
        one, other = getattr(ours, name), getattr(theirs, name)
        if one and other and one != other:
            yield name
    one, other = ours.stats, theirs.stats
    if one and other and one != other and parse_stats(one) != parse_stats(other):
        yield "stats"


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    """Partition values; one that is missing is null."""
    return {name: value for name, value in values.items() if value is not None}
