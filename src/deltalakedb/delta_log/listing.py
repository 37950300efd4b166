"""List the files of a ``_delta_log``: which of them rebuild a version, and when versions were committed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from deltalakedb.delta_log.names import LOG_FOLDER, parse_name
from deltalakedb.exceptions import LogGapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.storage import ObjectMeta, Store


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: one file, or all parts in order."""

    version: int
    files: tuple[ObjectMeta, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to rebuild a version: a checkpoint or nothing, then JSON files in order."""

    version: int
    checkpoint: Checkpoint | None
    files: tuple[ObjectMeta, ...]

    @property
    def base(self) -> int:
        return -1 if self.checkpoint is None else self.checkpoint.version


@dataclass(frozen=True)
class LogListing:
    """The log's files at one moment; incomplete multi-part checkpoints are left out."""

    commits: Mapping[int, ObjectMeta] = field(default_factory=dict)
    checkpoints: Mapping[int, Sequence[Checkpoint]] = field(default_factory=dict)
    #: by the last version they cover
    compacted: Mapping[int, Sequence[tuple[int, ObjectMeta]]] = field(default_factory=dict)
    checksums: Mapping[int, ObjectMeta] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.commits and not self.checkpoints

    @cached_property
    def latest(self) -> int:
        """The newest version that any file names, or -1; it may be after a gap."""
        return max(max(self.commits, default=-1), max(self.checkpoints, default=-1))

    @cached_property
    def versions(self) -> tuple[int, ...]:
        """All versions that can be rebuilt, ascending."""
        return tuple(sorted(v for v in self._rebuildable if v in self.commits or v in self.checkpoints))

    def can_rebuild(self, version: int) -> bool:
        return version in self._rebuildable and (version in self.commits or version in self.checkpoints)

    def plans(self, version: int) -> Iterator[Plan]:
        """The ways to rebuild a version, the one with the newest checkpoint first; LogGapError if none."""
        found = False
        bases = sorted((v for v in self.checkpoints if v <= version), reverse=True)
        for base in (*bases, -1):
            if (files := self.files_between(base, version)) is not None:
                for checkpoint in self.checkpoints[base] if base >= 0 else (None,):
                    found = True
                    yield Plan(version, checkpoint, files)
        if not found:
            missing = max(v for v in self._rebuildable if v <= version) + 1
            raise LogGapError(
                f"version {version} cannot be rebuilt: the log lacks version {missing}",
                version=version,
                suggestion="restore the missing commit file or a checkpoint after it from a copy",
            )

    def plan(self, version: int) -> Plan:
        return next(self.plans(version))

    def files_between(self, base: int, version: int) -> tuple[ObjectMeta, ...] | None:
        """The JSON files that lead from one version (-1: nothing) to another; None if one is missing."""
        at, files = version, []
        while at > base:
            if at in self.commits and (at - 1 == base or at - 1 in self._rebuildable):
                files.append(self.commits[at])
                at -= 1
                continue
            # of several compacted files the longest saves the most reads
            for start, meta in sorted(self.compacted.get(at, ()), key=lambda pair: pair[0]):
                if start > base and (start - 1 == base or start - 1 in self._rebuildable):
                    files.append(meta)
                    at = start - 1
                    break
            else:
                return None
        return tuple(reversed(files))

    @cached_property
    def file_times(self) -> Mapping[int, int]:
        """Times of versions by their files, strictly increasing.

        A file that is not younger than its predecessor counts as 1 ms younger. A version without a commit
        file has its checkpoint's time, which may be later than the commit's, but not than the next one's.
        """
        times: dict[int, int] = {}
        last: int | None = None
        for version in sorted(self.commits):
            own = self.commits[version].modified_ms
            last = own if last is None or own > last else last + 1
            times[version] = last
        for version in sorted(set(self.checkpoints) - set(times), reverse=True):
            own = min(meta.modified_ms for meta in self.checkpoints[version][0].files)
            after = times.get(version + 1)
            times[version] = own if after is None else min(own, after - 1)
        return times

    @cached_property
    def _rebuildable(self) -> frozenset[int]:
        """-1, the state before the first commit, and all versions that files lead to."""
        reached = {-1}
        for v in sorted({*self.commits, *self.compacted, *self.checkpoints}):
            if (
                v in self.checkpoints
                or (v in self.commits and v - 1 in reached)
                or any(start - 1 in reached for start, _ in self.compacted.get(v, ()))
            ):
                reached.add(v)
        return frozenset(reached)

    def with_newer(self, new: LogListing) -> LogListing:
        """This listing with the files of a later, partial one."""
        return LogListing(
            {**self.commits, **new.commits},
            {**self.checkpoints, **new.checkpoints},
            {**self.compacted, **new.compacted},
            {**self.checksums, **new.checksums},
        )


def list_log(store: Store, *, start_after: str | None = None) -> LogListing:
    """List a table's log, or only files whose path sorts after a given one, in one request."""
    return parse_listing(store.list(LOG_FOLDER, start_after=start_after))


def parse_listing(files: Iterable[ObjectMeta]) -> LogListing:
    """Sort files by their names; those that are not the log's are ignored."""
    commits: dict[int, ObjectMeta] = {}
    checksums: dict[int, ObjectMeta] = {}
    checkpoints: dict[int, list[Checkpoint]] = {}
    compacted: dict[int, list[tuple[int, ObjectMeta]]] = {}
    parts: dict[tuple[int, int], dict[int, ObjectMeta]] = {}
    for meta in files:
        if (name := parse_name(meta.name)) is None:
            continue
        if name.kind == "commit":
            commits[name.version] = meta
        elif name.kind == "checksum":
            checksums[name.version] = meta
        elif name.kind == "compacted" and name.end is not None:
            compacted.setdefault(name.end, []).append((name.version, meta))
        elif name.kind == "part":
            parts.setdefault((name.version, name.parts), {})[name.part] = meta
        else:
            checkpoints.setdefault(name.version, []).append(Checkpoint(name.version, (meta,)))
    for (version, total), found in parts.items():
        if len(found) == total:
            files = tuple(found[part] for part in sorted(found))
            checkpoints.setdefault(version, []).append(Checkpoint(version, files))
    return LogListing(commits, checkpoints, compacted, checksums)


def newest_at(versions: Sequence[int], timestamp_ms: int, time_of: Callable[[int], int]) -> int | None:
    """The newest of ascending versions whose time is not after a moment, by binary search."""
    at = bisect_right(versions, timestamp_ms, key=time_of)
    return versions[at - 1] if at else None
