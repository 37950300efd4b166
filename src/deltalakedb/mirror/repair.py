"""Repair: rewrite a lost or damaged log from the catalog."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.delta_log.commit_file import commit_digest
from deltalakedb.delta_log.last_checkpoint import write_last_checkpoint
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import LAST_CHECKPOINT, commit_path
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore import commits, registry, snapshots
from deltalakedb.metastore.leases import require
from deltalakedb.mirror.checkpointer import tending, write_checkpoint_of
from deltalakedb.mirror.drift import Difference, broken_checkpoints, classify_commit_file, log_differences
from deltalakedb.mirror.folder import require_data
from deltalakedb.mirror.rebase import repair_lease
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.codec import encode_commit
from deltalakedb.protocol.properties import IN_COMMIT_TIMESTAMPS, is_on
from deltalakedb.storage.store import open_store, real_location

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from deltalakedb.delta_log.listing import Checkpoint
    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

_PRUNED = "its bytes are not in the catalog, so it cannot be written again"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do.

    Attributes:
        rewritten: Versions whose commit files were written again.
        left: What cannot be mended so: commits of others, and commits whose bytes were pruned.
        dry_run: Whether nothing was changed.
        begins_at: The version of a checkpoint that was written, at which readers begin since what was before
            it is lost; None where nothing was.
        unfrozen: Whether the table was frozen, and is written again.
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
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    create_folder: bool = False,
) -> Repaired:
    """Rewrite commit files that are missing or damaged, and checkpoints that are broken, from SQL.

    A well-formed commit of somebody else is no damage, nor is anything in the place of a version that only
    waits: it is left alone, and reported. Where the log lost commits whose bytes were pruned, readers begin
    at a checkpoint of the oldest version from which on the catalog has them. A frozen table whose log says
    afterwards what the catalog says may be written again.

    Args:
        database: The catalog.
        name: The table.
        storage_options: Options for the object store.
        dry_run: Change nothing, and report what would be rewritten.
        create_folder: Write the log even if nothing of the table is at its location.

    Raises:
        TableFolderMissingError: There is nothing at the table's location: an unmounted share, perhaps.
    """
    table = registry.find(database, name)
    registry.refuse_followed(table)
    if not create_folder:
        require_data(database, table, open_store(table.location, storage_options))
    store = open_store(table.location, storage_options)
    found = log_differences(database, table, store)
    broken = [f for f in found if f.kind in ("missing", "damaged")]
    left = [f for f in found if f not in broken]
    table = registry.find(database, name)
    # where somebody's commit stands in the place of ours, a new checkpoint would seal our side
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
        # a frozen table whose log can be mended as a whole is written again afterwards
        unfrozen = not left and table.state == "frozen"
        return Repaired(tuple(f.version for f in broken), tuple(left), dry_run, begin, unfrozen, (*torn,))
    done = []
    if broken or torn or begin is not None:
        with repair_lease(database, table) as lease:
            if torn:
                torn = _mend_checkpoints(database, table, store, torn)
            if begin is not None:
                write_last_checkpoint(store, write_checkpoint_of(database, name, begin, store=store).hint())
            for finding in broken:
                with database.read() as session:
                    require(session, lease, work="the repair", table=name)
                lost_race = _put(database, table, store, finding)
                if lost_race is None:
                    done.append(finding.version)
                else:
                    left.append(lost_race)
        logger.warning(
            "%s: commit files rewritten from the catalog: %d, checkpoints: %d", name, len(done), len(torn)
        )
    unfrozen = not left and _unfreeze(database, name, storage_options)
    return Repaired(tuple(done), tuple(left), False, begin, unfrozen, (*torn,))


def _torn(database: Database, table: Table, store: Store) -> dict[int, list[Checkpoint]]:
    """Versions whose checkpoints do not say what the catalog says, and what there is of those."""
    found: dict[int, list[Checkpoint]] = {}
    for finding, checkpoint in broken_checkpoints(database, table, store):
        found.setdefault(finding.version, []).extend(() if checkpoint is None else (checkpoint,))
    return found


def _mend_checkpoints(
    database: Database, table: Table, store: Store, seen: Collection[int]
) -> dict[int, list[Checkpoint]]:
    """Write checkpoints again in the place of broken ones, and point readers to them."""
    with tending(database, table):
        # looked at again, while nobody else writes one or cleans up
        torn = {v: c for v, c in _torn(database, table, store).items() if v in seen}
        for version, broken in torn.items():
            store.delete_all(meta.path for checkpoint in broken for meta in checkpoint.files)
            if not table.head.first_version <= version <= table.published_version:
                store.delete(LAST_CHECKPOINT)  # it names what never was, or is no more
                continue
            written = write_checkpoint_of(database, table.name, version, store=store)
            write_last_checkpoint(store, written.hint())
    return torn


def _begins_at(
    database: Database, table: Table, store: Store, findings: Sequence[Difference], pruned: Collection[int]
) -> int | None:
    """The version at which readers can begin where commits are lost for good; None where none is needed."""
    if not any(f.kind == "missing" and f.version in pruned for f in findings):
        return None
    begin = min(commits.tail_start(database, table), table.published_version)
    if any(f.kind == "foreign" and f.version <= begin for f in findings):
        return None  # it would seal our side of it
    covered = max((v for v in list_log(store).checkpoints if v <= table.published_version), default=-1)
    return begin if covered < begin else None


def _put(database: Database, table: Table, store: Store, finding: Difference) -> Difference | None:
    """Write one commit file again; what somebody else put there in the meantime, which stays."""
    version, path = finding.version, commit_path(finding.version)
    data, row = commits.commit_bytes(database, table, version), commits.one(database, table, version)
    if row is None:
        return finding
    if store.put_new(path, data, mtime_ms=row.timestamp):
        return None
    if commit_digest(store, path).sha256 == commits.digest(data):
        return None
    # seen again, as late as can be: a commit of somebody else is never overwritten
    now = classify_commit_file(database, table.table_id, store, row)
    if finding.kind == "missing" or now.kind == "foreign":
        return replace(now, detail=f"{now.detail}; it came while the log was repaired")
    store.put(path, data, mtime_ms=row.timestamp)
    return None


def _unfreeze(database: Database, name: str, storage_options: Mapping[str, str] | None) -> bool:
    """Let a table be written again whose log says what the catalog says, so that nothing is to be decided."""
    table = registry.find(database, name)
    if table.state != "frozen":
        return False
    if log_differences(database, table, open_store(table.location, storage_options)):
        return False
    registry.unfreeze(database, table, "the log says what the catalog says again")
    return True


def rebuild(
    database: Database, name: str, location: str, *, storage_options: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Make a table's whole log from SQL into an empty place; the first and last version it holds.

    Where bytes of older commits are not in the catalog, it begins with a checkpoint of the oldest version
    from which on they are. Where not even the newest has any, its file tells only who made it: readers begin
    at the checkpoint, and writers go on from the file.

    At the table's own place only published versions are written. One that was interrupted goes on when it is
    repeated: a place is empty also where it holds nothing but the first half of the same log.

    Raises:
        TableFolderMissingError: It is the table's own place, and nothing of the table is there.
    """
    table = registry.find(database, name)
    store = open_store(location, storage_options)
    # what waits comes to the table's own place by publishing alone
    home = open_store(table.location, storage_options)
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
    there = frozenset(meta.path for meta in store.list("_delta_log"))
    _refuse_others(there, name, location, first, last)
    for row, kept in commits.between(database, table, first, last) if there else ():
        path, data = commit_path(row.version), kept or _bare(database, name, row)
        if path in there and store.get(path) != data:
            raise _occupied(name, location)
    if anew and not (LAST_CHECKPOINT in there and first in list_log(store).checkpoints):
        write_last_checkpoint(store, write_checkpoint_of(database, name, first, store=store).hint())
    for row, kept in commits.between(database, table, first, last):
        path, data = commit_path(row.version), kept or _bare(database, name, row)
        if not store.put_new(path, data, mtime_ms=row.timestamp) and store.get(path) != data:
            raise _occupied(name, location)  # since a moment ago
    return first, last


def _refuse_others(there: frozenset[str], name: str, location: str, first: int, last: int) -> None:
    """Refuse a place with a log, unless it is the half of what would be made, of one that was interrupted."""
    ours = {commit_path(version) for version in range(first, last + 1)}
    begun = f"_delta_log/{first:020}.checkpoint."
    if there >= ours or any(
        path not in ours and not path.startswith(begun) and path != LAST_CHECKPOINT for path in there
    ):
        raise _occupied(name, location)


def _occupied(name: str, location: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"there is a log at {location} already", table=name, suggestion="choose an empty place"
    )


def _bare(database: Database, name: str, row: CommitRow) -> bytes:
    """A commit file beside a checkpoint of the same version, which holds everything but who made it when."""
    given = row.commit().info
    extra = {"timestamp": row.timestamp, **({} if given is None else given.extra)}
    metadata = snapshots.open_table(database, name, row.version).snapshot.metadata
    if is_on(metadata, IN_COMMIT_TIMESTAMPS):
        extra = {"inCommitTimestamp": row.timestamp, **extra}
    return encode_commit([CommitInfo(extra=extra)])
