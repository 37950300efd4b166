"""Repair: rewrite a lost or damaged log from the catalog."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.delta_log.listing import Checkpoint, list_log
from deltalakedb.delta_log.names import LAST_CHECKPOINT, LOG_FOLDER, commit_path
from deltalakedb.delta_log.optional_files import write_last_checkpoint
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore import commits, registry, snapshots
from deltalakedb.metastore.leases import Lease, leased, require
from deltalakedb.mirror import store_at
from deltalakedb.mirror.checkpointer import checkpoint_lease, write_checkpoint_of
from deltalakedb.mirror.drift import (
    Difference,
    broken_checkpoints,
    commit_file_difference,
    log_differences,
    require_data,
)
from deltalakedb.protocol.actions import CommitInfo, encode_commit
from deltalakedb.protocol.properties import IN_COMMIT_TIMESTAMPS, is_on
from deltalakedb.storage.store import Store, real_location

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager

    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table

logger = logging.getLogger(__name__)

_LEASE_MS = 2 * 60_000
_PRUNED = "its bytes are not in the catalog, so it cannot be written again"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do.

    Attributes:
        rewritten: Versions whose commit files were written again.
        left: What cannot be repaired: foreign commits, and commits whose bytes were pruned.
        dry_run: Whether nothing was changed.
        begins_at: The version of a checkpoint that was written for readers to begin at, because older commits
            are lost; None if none are.
        unfrozen: Whether the table was frozen, and can be written to again.
        checkpoints: Versions whose checkpoints were written again.
    """

    rewritten: tuple[int, ...]
    left: tuple[Difference, ...]
    dry_run: bool
    begins_at: int | None = None
    unfrozen: bool = False
    checkpoints: tuple[int, ...] = ()


def repair(
    database: Database,
    name: str,
    *,
    dry_run: bool = False,
    create_folder: bool = False,
) -> Repaired:
    """Rewrite commit files that are missing or damaged, and checkpoints that are broken, from SQL.

    A foreign commit is not damage, nor is anything in the place of a version that only waits: it stays, and
    is reported. If the log lost commits whose bytes were pruned, readers begin at a checkpoint of the oldest
    version from which on the catalog has them. A frozen table whose log then matches the catalog can be
    written to again.

    ``create_folder`` writes the log even if nothing of the table is at its location.

    Raises:
        TableFolderMissingError: There is nothing at the table's location: an unmounted share, perhaps.
    """
    table = registry.find(database, name)
    registry.refuse_followed(table)
    store = store_at(database, table.location)
    if not create_folder:
        require_data(database, table, store)
    found = log_differences(database, table, store)
    broken = [f for f in found if f.kind in ("missing", "damaged")]
    left = [f for f in found if f not in broken]
    table = registry.find(database, name)
    # if a foreign commit has the place of ours, a new checkpoint would decide for our side
    foreign = [f.version for f in left if f.kind == "foreign"]
    torn = {v: c for v, c in _torn(database, table, store).items() if not foreign or v < min(foreign)}
    pruned = {f.version for f in broken if commits.kept_bytes(database, table.table_id, f.version) is None}
    begin = _begins_at(database, table, store, found, pruned)
    left += [
        replace(f, detail=f"{f.detail}; {_PRUNED}")
        for f in broken
        if f.version in pruned and (begin is None or f.version >= begin)
    ]
    broken = [f for f in broken if f.version not in pruned]
    if dry_run:
        unfrozen = not left and table.state == "frozen"
        return Repaired(tuple(f.version for f in broken), tuple(left), dry_run, begin, unfrozen, (*torn,))
    done = []
    if broken or torn or begin is not None:
        with repair_lease(database, table) as lease:
            if torn:
                torn = _rewrite_checkpoints(database, table, store, torn)
            if begin is not None:
                write_last_checkpoint(store, write_checkpoint_of(database, name, begin, store=store))
            for finding in broken:
                with database.read() as session:
                    require(session, lease, work="the repair", table=name)
                lost_race = _put(database, table, store, finding)
                if lost_race is None:
                    done.append(finding.version)
                else:
                    left.append(lost_race)
        text = "%s: commit files rewritten from the catalog: %d, checkpoints: %d"
        logger.warning(text, name, len(done), len(torn))
    table = registry.find(database, name)
    unfrozen = not left and table.state == "frozen" and not log_differences(database, table, store)
    if unfrozen:
        registry.unfreeze(database, table, "the log matches the catalog again")
    return Repaired(tuple(done), tuple(left), False, begin, unfrozen, (*torn,))


def repair_lease(database: Database, table: Table) -> AbstractContextManager[Lease]:
    """The right to resolve or repair a table, which one process has at a time."""
    work = f"a resolution or repair of {table.name}"
    return leased(database, f"repair:{table.table_id}", work=work, table=table.name, ttl_ms=_LEASE_MS)


def _torn(database: Database, table: Table, store: Store) -> dict[int, list[Checkpoint]]:
    """Versions whose checkpoints do not match the catalog, and the checkpoints that are there."""
    found: dict[int, list[Checkpoint]] = {}
    for finding, checkpoint in broken_checkpoints(database, table, store):
        found.setdefault(finding.version, []).extend(() if checkpoint is None else (checkpoint,))
    return found


def _rewrite_checkpoints(
    database: Database, table: Table, store: Store, seen: Collection[int]
) -> dict[int, list[Checkpoint]]:
    """Replace broken checkpoints, and point readers to the new ones."""
    with checkpoint_lease(database, table):
        # checked again, while no other process writes one or cleans up
        torn = {v: c for v, c in _torn(database, table, store).items() if v in seen}
        for version, broken in torn.items():
            store.delete_all(meta.path for checkpoint in broken for meta in checkpoint.files)
            if not table.head.first_version <= version <= table.published_version:
                store.delete(LAST_CHECKPOINT)  # it names a checkpoint that does not exist
                continue
            written = write_checkpoint_of(database, table.name, version, store=store)
            write_last_checkpoint(store, written)
    return torn


def _begins_at(
    database: Database, table: Table, store: Store, findings: Sequence[Difference], pruned: Collection[int]
) -> int | None:
    """The version at which readers can begin if commits are lost; None if no checkpoint is needed."""
    if not any(f.kind == "missing" and f.version in pruned for f in findings):
        return None
    begin = min(commits.tail_start(database, table), table.published_version)
    if any(f.kind == "foreign" and f.version <= begin for f in findings):
        return None  # it would decide for our side
    covered = max((v for v in list_log(store).checkpoints if v <= table.published_version), default=-1)
    return begin if covered < begin else None


def _put(database: Database, table: Table, store: Store, finding: Difference) -> Difference | None:
    """Write one commit file again; returns what another writer put there meanwhile, which stays."""
    version, path = finding.version, commit_path(finding.version)
    data, row = commits.commit_bytes(database, table, version), commits.one(database, table, version)
    if row is None:
        return finding
    if store.put_new(path, data, mtime_ms=row.timestamp):
        return None
    # checked again, as late as possible: a foreign commit is never overwritten
    now = commit_file_difference(database, table.table_id, store, row, published=table.published_version)
    if now is None:
        return None
    if finding.kind == "missing" or now.kind == "foreign":
        return replace(now, detail=f"{now.detail}; it came while the log was repaired")
    store.put(path, data, mtime_ms=row.timestamp)
    return None


def rebuild(database: Database, name: str, location: str) -> tuple[int, int]:
    """Write a table's whole log from SQL into an empty place; returns the first and last version it holds.

    If bytes of older commits are not in the catalog, it begins with a checkpoint of the oldest version from
    which on they are. If not even the newest has any, its file has only its commitInfo: readers begin at the
    checkpoint, and writers continue from the file.

    At the table's own place only published versions are written. One that was interrupted continues when it
    is repeated: a place is also empty if it holds only the first part of the same log.

    Raises:
        TableFolderMissingError: It is the table's own place, and nothing of the table is there.
    """
    table = registry.find(database, name)
    store = store_at(database, location)
    # commits that wait reach the table's own place only by publishing
    home = store_at(database, table.location)
    own = real_location(store.location) == real_location(home.location)
    if not own:
        registry.refuse_taken(database, name, store.location, free=True)
    last = table.published_version if own else table.head.version
    if last < 0:
        raise InvalidArgumentError("nothing of the table is published yet", table=name)
    if own:
        require_data(database, table, home)
    first = min(commits.tail_start(database, table), last)
    anew = first > 0 or commits.kept_bytes(database, table.table_id, first) is None
    there = {meta.path for meta in store.list(LOG_FOLDER)}
    ours, begun = {commit_path(v) for v in range(first, last + 1)}, f"_delta_log/{first:020}.checkpoint."
    occupied = InvalidArgumentError(
        f"there is a log at {location} already", table=name, suggestion="choose an empty place"
    )
    rest = {path for path in there - ours if not path.startswith(begun)}
    if there >= ours or rest - {LAST_CHECKPOINT}:
        raise occupied
    for row, kept in commits.between(database, table, first, last) if there else ():
        path, data = commit_path(row.version), kept or _bare(database, name, row)
        if path in there and store.get(path) != data:
            raise occupied
    if anew and not (LAST_CHECKPOINT in there and first in list_log(store).checkpoints):
        write_last_checkpoint(store, write_checkpoint_of(database, name, first, store=store))
    for row, kept in commits.between(database, table, first, last):
        path, data = commit_path(row.version), kept or _bare(database, name, row)
        if not store.put_new(path, data, mtime_ms=row.timestamp) and store.get(path) != data:
            raise occupied
    return first, last


def _bare(database: Database, name: str, row: CommitRow) -> bytes:
    """A commit file beside a checkpoint of the same version: only its commitInfo."""
    given = row.commit().info
    extra = {"timestamp": row.timestamp, **({} if given is None else given.extra)}
    metadata = snapshots.open_table(database, name, row.version).snapshot.metadata
    if is_on(metadata, IN_COMMIT_TIMESTAMPS):
        extra = {"inCommitTimestamp": row.timestamp, **extra}
    return encode_commit([CommitInfo(extra=extra)])
