"""The fullest comparison: every file's versions, every state, every commit's bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from deltalakedb.delta_log.checkpoint import CheckpointScan, Piece
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_actions, iter_state
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import StorageMissingError
from deltalakedb.metastore import commits as commit_rows
from deltalakedb.metastore.files import SIDE_COLUMNS, add_from_row, digests, path_hash
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
from deltalakedb.protocol.codec import decode_commit, decode_json
from deltalakedb.protocol.digest import BUCKETS, bucket_of
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.transfer.findings import Difference, changed_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.replay import FileKey
    from deltalakedb.transfer.findings import Findings

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


def check_every_version(
    database: Database,
    table_id: int,
    reader: FileTxnLogReader,
    versions: tuple[int, int],
    *,
    memory_bytes: int,
    tick: Callable[[], None],
    findings: Findings,
) -> tuple[int, int, int]:
    """Compare every version that both sides hold.

    Returns:
        The first version that was compared, how many, and how many commits' bytes were compared.
    """
    check = _Check(database, table_id, reader, versions, findings, tick)
    check.commits()
    check.small_states()
    passes = check.passes(memory_bytes)
    for number in range(passes):
        check.files(frozenset(range(number, BUCKETS, passes)))
    return check.since, check.until - check.since + 1, check.compared


class _Check:
    def __init__(
        self,
        database: Database,
        table_id: int,
        reader: FileTxnLogReader,
        versions: tuple[int, int],
        findings: Findings,
        tick: Callable[[], None],
    ) -> None:
        self._database, self._table_id, self._reader = database, table_id, reader
        self._findings, self._tick = findings, tick
        self._first, self.until = versions
        self._listing = list_log(reader.store)
        self.since = self._oldest()
        self.compared = 0

    def _oldest(self) -> int:
        """The oldest version from which on the log has every commit."""
        version = self.until
        while version > self._first and version in self._listing.commits and self._listing.has(version - 1):
            version -= 1
        return version

    @property
    def _from_nothing(self) -> bool:
        return self.since == 0 and 0 in self._listing.commits

    def passes(self, memory_bytes: int) -> int:
        """How often the log is read to keep to the memory."""
        files = sum(m.size for v, m in self._listing.commits.items() if v >= self.since) // _JSON_PER_ACTION
        memory = files * _MEMORY_PER_FILE
        if not self._from_nothing and (found := self._listing.checkpoints.get(self.since)):
            scan = CheckpointScan(self._reader.store, found[0])
            memory += scan.rows * max(_MEMORY_PER_FILE, scan.widest)
        return min(BUCKETS, max(1, ceil(memory / max(1, memory_bytes))))

    # ---- commits ----

    def commits(self) -> None:
        """The bytes of every commit file against the digest and the bytes that the catalog keeps."""
        for row in commit_rows.of_table(self._database, self._table_id):
            if not self._first <= row.version <= self.until or row.sha256 is None:
                continue
            if is_large(self._listing.commits.get(row.version)):
                self.compared += 1
                if commit_digest(self._reader.store, commit_path(row.version)).sha256 != row.sha256:
                    detail = "the log's bytes are not the catalog's"
                    self._findings.add(Difference("commit", row.version, detail))
                continue
            try:
                data = self._reader.store.get(commit_path(row.version))
            except StorageMissingError:
                if row.version >= self.since and row.version in self._listing.commits:
                    self._findings.add(Difference("commit", row.version, "its file is not in the log"))
                continue
            self.compared += 1
            kept = commit_rows.kept_bytes(self._database, self._table_id, row.version)
            if commit_rows.digest(data) != row.sha256:
                self._findings.add(Difference("commit", row.version, "the log's bytes are not the catalog's"))
            elif kept is not None and kept != data:
                self._findings.add(
                    Difference("commit", row.version, "the catalog's bytes do not have their own digest")
                )

    # ---- small states ----

    def small_states(self) -> None:
        """Metadata, protocol, txns and domains at every version."""
        ours: dict[int, dict[tuple[str, str], Any]] = {}
        ended: dict[int, list[tuple[str, str]]] = {}
        for kind, name, since, until, raw in digests.small_rows(self._database, self._table_id):
            begin = max(since, self.since)
            if until is not None and until <= self.since:
                continue
            data = decode_json(raw)
            gone = kind == "domainMetadata" and data.get("removed")
            ours.setdefault(begin, {})[kind, name] = None if gone else meaning_of(kind, data)
            if until is not None:
                ended.setdefault(until, []).append((kind, name))
        theirs_now = self._base_state()
        ours_now: dict[tuple[str, str], Any] = {}
        for version in range(self.since, self.until + 1):
            if version > self.since or self._from_nothing:
                _apply_small(theirs_now, self._state(version))
            for key in ended.get(version, ()):
                ours_now.pop(key, None)
            ours_now |= ours.get(version, {})
            shown = {k: v for k, v in ours_now.items() if v is not None}
            if shown != theirs_now:
                keys = sorted(
                    k for k in shown.keys() | theirs_now.keys() if shown.get(k) != theirs_now.get(k)
                )
                what = ", ".join(" ".join(p for p in key if p) for key in keys)
                self._findings.add(Difference("state", version, f"{what} differ"))

    def _base_state(self) -> dict[tuple[str, str], Any]:
        if self._from_nothing:
            return {}
        snapshot = self._reader.snapshot(self.since)
        state: dict[tuple[str, str], Any] = {
            ("metaData", ""): meaning(snapshot.metadata),
            ("protocol", ""): meaning(snapshot.protocol),
        }
        state |= {("txn", app): meaning(t) for app, t in self._reader.txns(self.since).items()}
        state |= {("domainMetadata", n): meaning(d) for n, d in self._reader.domains(self.since).items()}
        return state

    # ---- files ----

    def files(self, buckets: frozenset[int]) -> None:
        """The intervals of all files of some buckets."""
        theirs = self._of_log(buckets)
        ours: dict[FileKey, list[_Interval]] = {}
        for rows in digests.interval_rows(self._database, self._table_id):
            for row in rows:
                if bucket_of(row[1]) in buckets and (kept := self._clipped(row)) is not None:
                    key = canonical_path(row[5]), row[6]
                    ours.setdefault(key, []).append(kept)
            self._tick()
        for key in ours.keys() | theirs.keys():
            self._compare(key, ours.get(key, []), theirs.get(key, []))

    def _clipped(self, row: tuple[Any, ...]) -> _Interval | None:
        """A row as the compared versions see it; None for one that ended before them."""
        values = dict(zip(_COLUMNS, row, strict=True))
        since, until = values["add_version"], values["remove_version"]
        action = values["remove_action"]
        remove = None if action is None else decode_json(action)
        if since > self.until:
            return None
        if until is not None and until > self.until:
            until, remove = None, None
        if until is not None and until <= self.since and self.since > self._first:
            return None
        # an empty interval that was removed, not replaced, is a tombstone of a file that never lived here
        buried = since == until and values["tombstone"]
        values["data_change"] = bool(values["data_change"])
        return _Interval(max(since, self.since), until, None if buried else add_from_row(values), remove)

    def _of_log(self, buckets: frozenset[int]) -> dict[FileKey, list[_Interval]]:
        found: dict[FileKey, list[_Interval]] = {}
        live: dict[FileKey, _Interval] = {}

        def apply(version: int, actions: list[Action], *, base: bool) -> None:
            for action in actions:
                if isinstance(action, Remove) and bucket_of(path_hash(action.path)) in buckets:
                    key = canonical_path(action.path), action.dv_id
                    if (ended := live.pop(key, None)) is not None:
                        ended.until, ended.remove = version, action.to_dict()
                    elif not base or self.since == self._first:
                        buried = _Interval(version, version, None, action.to_dict())
                        found.setdefault(key, []).append(buried)
            for action in actions:
                if isinstance(action, Add) and bucket_of(path_hash(action.path)) in buckets:
                    key = canonical_path(action.path), action.dv_id
                    if (replaced := live.pop(key, None)) is not None:
                        replaced.until = version
                    live[key] = _Interval(version, None, action, None)
                    found.setdefault(key, []).append(live[key])

        if not self._from_nothing:
            for batch in self._base_actions():
                apply(self.since, batch, base=True)
        for version in range(self.since + (not self._from_nothing), self.until + 1):
            apply(version, self._pieces(version, buckets), base=False)
        return found

    def _base_actions(self) -> Iterator[list[Action]]:
        checkpoints = self._listing.checkpoints.get(self.since, ())
        if not checkpoints:
            yield [*self._reader.tombstones(self.since), *self._reader.files(self.since)]
            return
        for part in CheckpointScan(self._reader.store, checkpoints[0]).parts():
            yield part.actions() if isinstance(part, Piece) else part
            self._tick()

    def _state(self, version: int) -> Iterable[Action]:
        meta = self._listing.commits[version]
        return iter_state(self._reader.store, meta.path) if is_large(meta) else self._actions(version)

    def _pieces(self, version: int, buckets: frozenset[int]) -> list[Action]:
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
                self._tell("missing", other, key, "the log has a file that the catalog does not")
            elif other is None:
                self._tell("extra", mine, key, "the catalog has a file that the log does not")
            elif (mine.since, mine.until) != (other.since, other.until):
                lives = f"it lives from {mine.since} to {mine.until}"
                detail = f"{lives}, in the log from {other.since} to {other.until}"
                self._tell("changed", mine, key, detail)
            elif (mine.add is None) != (other.add is None) or mine.remove != other.remove:
                self._tell("changed", mine, key, "its remove action differs")
            elif mine.add is not None and other.add is not None:
                changed = [*changed_fields(mine.add, other.add), *self._data_change(mine, other)]
                if changed:
                    self._tell("changed", mine, key, f"it differs in {', '.join(changed)}")

    def _data_change(self, mine: _Interval, other: _Interval) -> list[str]:
        """Commits tell whether data changed; a checkpoint that was clipped to does not."""
        if mine.add is None or other.add is None or (mine.since == self.since and self.since > self._first):
            return []
        return ["data_change"] if mine.add.data_change != other.add.data_change else []

    def _tell(self, kind: Any, interval: _Interval | None, key: FileKey, detail: str) -> None:
        version = self.until if interval is None else interval.since
        self._findings.add(Difference(kind, version, detail, key[0]))


def _apply_small(state: dict[tuple[str, str], Any], actions: Iterable[Action]) -> None:
    for action in actions:
        if isinstance(action, Metadata | Protocol):
            state[kind_of(action), ""] = meaning(action)
        elif isinstance(action, Txn):
            state["txn", action.app_id] = meaning(action)
        elif isinstance(action, DomainMetadata):
            if action.removed:
                state.pop(("domainMetadata", action.domain), None)
            else:
                state["domainMetadata", action.domain] = meaning(action)
