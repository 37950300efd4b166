"""Drift: does `_delta_log` say at every version what the catalog says?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.delta_log.checkpoint import is_complete, iter_checkpoint
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_actions
from deltalakedb.delta_log.last_checkpoint import read_last_checkpoint
from deltalakedb.delta_log.listing import last_checkpoint, list_log
from deltalakedb.delta_log.names import LAST_CHECKPOINT, commit_path
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    LogCorruptError,
    LogError,
    ProtocolError,
    StorageMissingError,
    VersionMissingError,
)
from deltalakedb.metastore import commits, registry
from deltalakedb.metastore.commits import digest
from deltalakedb.metastore.txn_log import SqlTxnLogReader
from deltalakedb.mirror.outside import newest_beyond
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Protocol, meaning
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from deltalakedb.delta_log.listing import Checkpoint
    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.log import TxnLogReader
    from deltalakedb.storage.store import Store

_COMPARED = frozenset({"add", "metaData", "protocol"})

_NO_CHECKPOINT = "_last_checkpoint names a checkpoint that is not there"
#: published commits that a cheap look goes back to, and those of them that it reads
_TAIL, _TAIL_READ = 1_000, 32
#: a checkpoint up to this size is replayed by a cheap look
_REPLAYED_BYTES = 8 << 20

Kind = Literal["missing", "damaged", "foreign", "ahead", "checkpoint", "state"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: ``missing`` or ``damaged`` files can be repaired; ``foreign`` commits stand in the place of
            ours, ``ahead`` beyond them; ``checkpoint`` and ``state`` replay to something else.
        version: The version concerned.
        detail: What was seen.
    """

    kind: Kind
    version: int
    detail: str


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What a comparison of log and catalog found."""

    table: str
    versions_checked: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether log and catalog agree."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"ok": self.ok, **asdict(self)}


def verify(
    database: Database,
    name: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    replay: bool = True,
) -> DriftReport:
    """Compare a table's log with the catalog, version by version.

    Args:
        database: The catalog.
        name: The table.
        storage_options: Options for the object store.
        replay: Also replay the log, and each checkpoint, and compare live files, metadata and protocol.
    """
    table = registry.find(database, name)
    store = open_store(table.location, storage_options)
    rows = commits.history(database, table)
    found = list(_files(database, store, table, rows))
    broken = any(f.kind in ("missing", "damaged", "foreign") for f in found)
    if replay and not broken and table.published_version >= 0:
        found += _replays(database, store, table)
    checked = sum(r.version <= table.published_version for r in rows)
    return DriftReport(name, checked, tuple(sorted(found, key=lambda f: f.version)))


def _files(database: Database, store: Store, table: Table, rows: list[CommitRow]) -> Iterator[Finding]:
    listing = list_log(store)
    covered = max(listing.checkpoints, default=-1)
    for row in rows:
        if row.sha256 is None:
            continue  # imported from a checkpoint: there never were bytes
        path = commit_path(row.version)
        try:
            large = is_large(listing.commits.get(row.version))
            found = commit_digest(store, path).sha256 if large else digest(store.get(path))
        except StorageMissingError:
            # cleaning up is every engine's right, below a checkpoint
            if covered <= row.version <= table.published_version:
                yield Finding("missing", row.version, "the commit file is not there")
            continue
        if found == row.sha256:
            continue
        if row.version > table.published_version:
            # only what we published can be damaged
            yield Finding(
                "foreign", row.version, "something else stands in the place of a version that waits"
            )
        else:
            yield judge(database, table, store, row.version)
    if (newest := newest_beyond(database, table, store)) is not None:
        yield Finding("ahead", newest, "the log has a version that the catalog did not make")


def tail_findings(database: Database, table: Table, store: Store) -> list[Finding]:
    """What is wrong with the newest published commits, for a look that costs little.

    Readers need the commits since the newest checkpoint: whether they are there, and their sizes, is seen in
    one listing; the newest ones are read and compared by their digests.
    """
    rows = commits.history(database, table, upto=table.published_version, limit=_TAIL)
    listing = list_log(store)
    covered = max((v for v in listing.checkpoints if v <= table.published_version), default=-1)
    found = []
    for number, row in enumerate(rows):
        if row.version < covered or row.sha256 is None:
            continue  # every engine may clean up below a checkpoint
        there = listing.commits.get(row.version)
        if there is None:
            found.append(Finding("missing", row.version, "the commit file is not there"))
        elif (row.size_bytes is not None and there.size != row.size_bytes) or (
            number < _TAIL_READ and commit_digest(store, there.path).sha256 != row.sha256
        ):
            found.append(judge(database, table, store, row.version))
    return found


def newest_checkpoint_findings(database: Database, table: Table, store: Store) -> list[Finding]:
    """What is wrong with the newest checkpoint and its hint; a large checkpoint is not replayed."""
    listing = list_log(store)
    newest = max(listing.checkpoints, default=-1)
    found: list[Finding] = []
    known = table.head.first_version <= newest <= table.published_version
    for checkpoint in listing.checkpoints.get(newest, ()) if known else ():
        if sum(meta.size for meta in checkpoint.files) > _REPLAYED_BYTES:
            if not is_complete(store, checkpoint):
                found.append(Finding("checkpoint", newest, "the checkpoint is torn"))
            continue
        ours, read = SqlTxnLogReader(database, table.name), partial(_of_checkpoint, store, checkpoint)
        found += _compared("checkpoint", ours, newest, read)
    hint = read_last_checkpoint(store)
    if hint is None and store.exists(LAST_CHECKPOINT):
        found.append(Finding("checkpoint", max(newest, 0), "_last_checkpoint cannot be read"))
    elif hint is not None and hint.version > newest:
        found.append(Finding("checkpoint", hint.version, _NO_CHECKPOINT))
    return found


def judge(database: Database, table: Table, store: Store, version: int) -> Finding:
    """What other bytes than ours in the file of a published version are: damage, or somebody's commit."""
    path, info = commit_path(version), CommitInfo()
    try:
        # to its end, line by line: it may be of any size
        for action in iter_actions(store, path):
            info = action if isinstance(action, CommitInfo) else info
    except LogCorruptError as error:
        return Finding("damaged", version, error.message)
    try:
        there, ours = commit_digest(store, path), commits.commit_bytes(database, table, version)
        if there.size < len(ours) and there.sha256 == digest(ours[: there.size]):
            return Finding("damaged", version, "the commit file is cut short")
    except VersionMissingError:
        # pruned: only its digest is known, and who made it
        row = commits.one(database, table, version)
        if row is not None and info.extra.get("txnId") == row.txn_uuid:
            return Finding("damaged", version, "the commit file is not as it was published")
    return Finding("foreign", version, "another commit stands in the place of ours")


def _replays(database: Database, store: Store, table: Table) -> Iterator[Finding]:
    """Replay every checkpoint, and the newest published version, and compare with SQL."""
    yield from (finding for finding, _ in broken_checkpoints(database, store, table))
    ours, newest = SqlTxnLogReader(database, table.name), table.published_version
    theirs = FileTxnLogReader(table.location, store=store)
    yield from _compared("state", ours, newest, lambda: _of_log(theirs, newest))


def broken_checkpoints(
    database: Database, store: Store, table: Table
) -> Iterator[tuple[Finding, Checkpoint | None]]:
    """Checkpoints that do not say what the catalog says; None for one that is not there, only its hint."""
    hint = last_checkpoint(store)
    ours, listing = SqlTxnLogReader(database, table.name), list_log(store)
    known = range(table.head.first_version, table.published_version + 1)
    for version, found in sorted(listing.checkpoints.items()):
        for checkpoint in found if version in known else ():
            # each by itself: a reader would pass over a broken one and take another way
            read = partial(_of_checkpoint, store, checkpoint)
            yield from ((finding, checkpoint) for finding in _compared("checkpoint", ours, version, read))
    # readers that trust a hint find nothing there; a later one would do
    if hint is not None and hint > max(listing.checkpoints, default=-1) and hint == last_checkpoint(store):
        yield Finding("checkpoint", hint, _NO_CHECKPOINT), None


@dataclass(frozen=True, slots=True)
class _State:
    """What a table is at a version."""

    metadata: Metadata | None
    protocol: Protocol | None
    files: frozenset[tuple[str, str]]


def _of_log(reader: TxnLogReader, version: int) -> _State:
    snapshot = reader.snapshot(version)
    return _State(snapshot.metadata, snapshot.protocol, frozenset(_key(a) for a in reader.files(version)))


def _of_checkpoint(store: Store, checkpoint: Checkpoint) -> _State:
    if not is_complete(store, checkpoint):
        raise LogCorruptError("the checkpoint is torn")
    metadata, protocol, keys = None, None, set[tuple[str, str]]()
    for batch in iter_checkpoint(store, checkpoint, kinds=_COMPARED):
        keys.update(_key(a) for a in batch if isinstance(a, Add))
        metadata = next((a for a in batch if isinstance(a, Metadata)), metadata)
        protocol = next((a for a in batch if isinstance(a, Protocol)), protocol)
    return _State(metadata, protocol, frozenset(keys))


def _same(one: Metadata | Protocol | None, other: Metadata | Protocol | None) -> bool:
    return one == other or (one is not None and other is not None and meaning(one) == meaning(other))


def _key(add: Add) -> tuple[str, str]:
    return canonical_path(add.path), add.dv_id


def _compared(
    kind: Kind, ours: SqlTxnLogReader, version: int, read: Callable[[], _State]
) -> Iterator[Finding]:
    mine = _of_log(ours, version)
    try:
        other = read()
    except (LogError, ProtocolError, VersionMissingError) as error:
        # a store that is away says nothing of what is there
        yield Finding(kind, version, error.message)
        return
    if not _same(mine.metadata, other.metadata):
        yield Finding(kind, version, "the metadata differs")
    elif not _same(mine.protocol, other.protocol):
        yield Finding(kind, version, "the protocol differs")
    elif mine.files != other.files:
        lost, extra = len(mine.files - other.files), len(other.files - mine.files)
        yield Finding(
            kind, version, f"files that only the catalog has: {lost}; files that only the log has: {extra}"
        )
