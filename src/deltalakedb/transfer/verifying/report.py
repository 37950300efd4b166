"""What a verification finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.mirror.drift import Difference
    from deltalakedb.protocol.actions import Add

Level: TypeAlias = Literal["commits", "counts", "digest", "full", "data"]
LEVELS: tuple[Level, ...] = ("commits", "counts", "digest", "full", "data")
#: those that compare files, which is the least before a table becomes visible or is given away
FILE_LEVELS = LEVELS[1:]

#: differences that a report lists
_LISTED = 100


def check_level(level: str, levels: Sequence[str] = LEVELS) -> None:
    """Raise InvalidArgumentError for an unknown level."""
    if level not in levels:
        raise InvalidArgumentError(f"unknown level {level!r}", suggestion=f"use one of {', '.join(levels)}")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of comparing a log with the catalog.

    Attributes:
        table: The table.
        level: How thorough it was.
        version: The version that was compared; -1 if nothing is published yet.
        first_version: The oldest version that was compared; less than ``version`` at level ``full``.
        num_files: Live files in the catalog.
        log_num_files: Live files in the log; 0 if they were not counted.
        size_bytes: Their bytes in the catalog.
        log_size_bytes: Their bytes in the log.
        digest: The digest of the catalog's live files, from level ``digest`` on.
        log_digest: That of the log's.
        buckets: Buckets of the digest that differ.
        respelled: Files that are spelled differently and mean the same.
        versions_checked: Versions that were compared.
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
class Differences:
    """Collects differences: all are counted, the first are listed."""

    count: int = 0
    listed: list[Difference] = field(default_factory=list)

    def add(self, found: Difference) -> None:
        """Add one."""
        self.count += 1
        if len(self.listed) < _LISTED:
            self.listed.append(found)

    def extend(self, found: Iterable[Difference]) -> None:
        """Add several."""
        for one in found:
            self.add(one)


def changed_fields(ours: Add, theirs: Add) -> Iterator[str]:
    """The fields in which two adds of one file differ in meaning.

    ``dataChange`` is left out: a checkpoint does not have what the commit said.
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
    # checkpoints need not have the rest: without statistics, tags or unknown fields they are as good
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
