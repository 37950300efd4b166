"""The fullest comparison: the state of every version, and the life of every file."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from deltalakedb.delta_log.checkpoint import CheckpointScan, Piece
from deltalakedb.delta_log.commit_file import is_large, iter_actions, iter_state
from deltalakedb.delta_log.listing import list_log
from deltalakedb.metastore.files import SIDE_COLUMNS, add_from_row, digests, path_hash
from deltalakedb.mirror.drift import Difference
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.codec import decode_commit, decode_json
from deltalakedb.protocol.digest import BUCKETS, bucket_of
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.transfer.verifying.report import changed_fields
from deltalakedb.transfer.verifying.small_state import (
    apply_actions,
    catalog_states,
    small_state,
    state_differences,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalakedb.mirror.drift import Kind
    from deltalakedb.protocol.actions import Action, FileKey
    from deltalakedb.transfer.verifying.report import Differences
    from deltalakedb.transfer.verifying.verifier import Subject

#: an interval in memory, and its add in JSON
_MEMORY_PER_FILE = 4_000
_JSON_PER_ACTION = 500

_COLUMNS = (
    "file_id",
    "path_hash",
    "add_version",
    "remove_version",
    "tombstone",
    "path",
    "dv_id",
    "size",
    "modification_time",
    "data_change",
    "num_records",
    *SIDE_COLUMNS,
)


@dataclass(slots=True)
class _Interval:
    """A file from the version that added it to the one that ended it; without an add, a tombstone only."""

    since: int
    until: int | None
    add: Add | None
    remove: dict[str, Any] | None


def compare_every_version(subject: Subject, differences: Differences) -> int:
    """Compare every version that both sides hold; returns the oldest of them."""
    check = _Comparison(subject, differences)
    check.states()
    passes = check.passes()
    for number in range(passes):
        check.files(frozenset(range(number, BUCKETS, passes)))
    return check.since


class _Comparison:
    def __init__(self, subject: Subject, differences: Differences) -> None:
        self._subject, self._differences, self._reader = subject, differences, subject.reader
        self._listing = list_log(subject.reader.store)
        self._first, self._until = subject.first_version, subject.version
        self.since = self._oldest()

    def _oldest(self) -> int:
        """The oldest version after which the log has every commit."""
        version = self._until
        while version > self._first and version in self._listing.commits and self._listing.has(version - 1):
            version -= 1
        return version

    @property
    def _from_nothing(self) -> bool:
        return self.since == 0 and 0 in self._listing.commits

    def passes(self) -> int:
        """How often the log is read to stay within the memory."""
        files = sum(m.size for v, m in self._listing.commits.items() if v >= self.since) // _JSON_PER_ACTION
        memory = files * _MEMORY_PER_FILE
        if not self._from_nothing and (found := self._listing.checkpoints.get(self.since)):
            scan = CheckpointScan(self._reader.store, found[0])
            memory += scan.rows * max(_MEMORY_PER_FILE, scan.widest)
        return min(BUCKETS, max(1, ceil(memory / max(1, self._subject.memory_bytes))))

    def states(self) -> None:
        """Metadata, protocol, txns and domains at every version."""
        theirs = {} if self._from_nothing else small_state(self._reader, self.since)
        subject = self._subject
        for version, ours in catalog_states(subject.database, subject.table_id, self.since, self._until):
            if version > self.since or self._from_nothing:
                apply_actions(theirs, self._state_actions(version))
            self._differences.extend(state_differences(version, ours, theirs))

    # ---- files ----

    def files(self, buckets: frozenset[int]) -> None:
        """The intervals of all files of some buckets."""
        theirs = self._log_intervals(buckets)
        ours: dict[FileKey, list[_Interval]] = {}
        for rows in digests.interval_rows(self._subject.database, self._subject.table_id):
            for row in rows:
                if bucket_of(row[1]) in buckets and (clipped := self._clipped(row)) is not None:
                    key = canonical_path(row[5]), row[6]
                    ours.setdefault(key, []).append(clipped)
            self._subject.tick()
        for key in ours.keys() | theirs.keys():
            self._compare(key, ours.get(key, []), theirs.get(key, []))

    def _clipped(self, row: tuple[Any, ...]) -> _Interval | None:
        """A row as the compared versions see it; None for one that ended before them."""
        values = dict(zip(_COLUMNS, row, strict=True))
        since, until = values["add_version"], values["remove_version"]
        action = values["remove_action"]
        remove = None if action is None else decode_json(action)
        if since > self._until:
            return None
        if until is not None and until > self._until:
            until, remove = None, None
        if until is not None and until <= self.since and self.since > self._first:
            return None
        # an empty interval that was removed, not replaced, is a tombstone of a file that never lived here
        buried = since == until and values["tombstone"]
        values["data_change"] = bool(values["data_change"])
        return _Interval(max(since, self.since), until, None if buried else add_from_row(values), remove)

    def _log_intervals(self, buckets: frozenset[int]) -> dict[FileKey, list[_Interval]]:
        found: dict[FileKey, list[_Interval]] = {}
        live: dict[FileKey, _Interval] = {}

        def apply(version: int, actions: list[Action], *, base: bool) -> None:
            files = [a for a in actions if isinstance(a, Add | Remove)]
            files = [a for a in files if bucket_of(path_hash(a.path)) in buckets]
            for remove in (a for a in files if isinstance(a, Remove)):
                key = remove.key
                if (ended := live.pop(key, None)) is not None:
                    ended.until, ended.remove = version, remove.to_dict()
                elif not base or self.since == self._first:
                    buried = _Interval(version, version, None, remove.to_dict())
                    found.setdefault(key, []).append(buried)
            for add in (a for a in files if isinstance(a, Add)):
                key = add.key
                if (replaced := live.pop(key, None)) is not None:
                    replaced.until = version
                live[key] = _Interval(version, None, add, None)
                found.setdefault(key, []).append(live[key])

        if not self._from_nothing:
            for batch in self._base_actions():
                apply(self.since, batch, base=True)
        for version in range(self.since + (not self._from_nothing), self._until + 1):
            apply(version, self._file_actions(version, buckets), base=False)
        return found

    def _base_actions(self) -> Iterator[list[Action]]:
        checkpoints = self._listing.checkpoints.get(self.since, ())
        if not checkpoints:
            yield [*self._reader.tombstones(self.since), *self._reader.files(self.since)]
            return
        for part in CheckpointScan(self._reader.store, checkpoints[0]).parts():
            yield part.actions() if isinstance(part, Piece) else part
            self._subject.tick()

    def _state_actions(self, version: int) -> Iterable[Action]:
        meta = self._listing.commits[version]
        return iter_state(self._reader.store, meta.path) if is_large(meta) else self._actions(version)

    def _file_actions(self, version: int, buckets: frozenset[int]) -> list[Action]:
        """The actions of a commit; of a large one only those on files of some buckets."""
        meta = self._listing.commits[version]
        if not is_large(meta):
            return self._actions(version)
        return [
            action
            for action in iter_actions(self._reader.store, meta.path)
            if isinstance(action, Add | Remove) and bucket_of(path_hash(action.path)) in buckets
        ]

    def _actions(self, version: int) -> list[Action]:
        meta = self._listing.commits[version]
        return decode_commit(self._reader.store.get(meta.path), source=meta.path)

    def _compare(self, key: FileKey, ours: list[_Interval], theirs: list[_Interval]) -> None:
        for number in range(max(len(ours), len(theirs))):
            mine = ours[number] if number < len(ours) else None
            other = theirs[number] if number < len(theirs) else None
            if mine is None:
                self._add("missing_file", other, key, "the log has a file that the catalog does not")
            elif other is None:
                self._add("extra_file", mine, key, "the catalog has a file that the log does not")
            elif (mine.since, mine.until) != (other.since, other.until):
                lives = f"it lives from {mine.since} to {mine.until}"
                detail = f"{lives}, in the log from {other.since} to {other.until}"
                self._add("changed_file", mine, key, detail)
            elif (mine.add is None) != (other.add is None) or mine.remove != other.remove:
                self._add("changed_file", mine, key, "its remove action differs")
            elif mine.add is not None and other.add is not None:
                changed = list(changed_fields(mine.add, other.add))
                # commits say whether data changed; a checkpoint does not, and may be written again
                from_commit = mine.since > self.since or self._from_nothing
                if from_commit and mine.add.data_change != other.add.data_change:
                    changed.append("data_change")
                if changed:
                    self._add("changed_file", mine, key, f"it differs in {', '.join(changed)}")

    def _add(self, kind: Kind, interval: _Interval | None, key: FileKey, detail: str) -> None:
        version = self._until if interval is None else interval.since
        self._differences.add(Difference(kind, version, detail, key[0]))
