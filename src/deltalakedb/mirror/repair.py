"""Repair: a lost or damaged log mended from SQL, a lost memory mended from the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.catalog import commits, outbox, registry, snapshots
from deltalakedb.catalog.leases import leased, still_held
from deltalakedb.exceptions import (
    CatalogBusyError,
    InvalidArgumentError,
    LogError,
    TableFrozenError,
)
from deltalakedb.log.last_checkpoint import write_last_checkpoint
from deltalakedb.log.names import commit_path
from deltalakedb.mirror.checkpointer import write_checkpoint_of
from deltalakedb.mirror.drift import Finding, verify
from deltalakedb.mirror.outside import Adopted, adopt
from deltalakedb.mirror.resolve import is_under_way
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.codec import encode_commit
from deltalakedb.protocol.rules import IN_COMMIT_TIMESTAMPS, is_on
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.catalog.commits import CommitRow
    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.values import Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

_PRUNED = "its bytes are not in the catalog, so it cannot be written again"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do.

    Attributes:
        rewritten: Versions whose files were written again.
        left: What cannot be mended so: commits of others, and commits whose bytes were pruned.
        dry_run: Whether nothing was changed.
    """

    rewritten: tuple[int, ...]
    left: tuple[Finding, ...]
    dry_run: bool


def repair(
    database: Database,
    name: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Repaired:
    """Rewrite commit files that are missing or damaged, from the bytes in SQL.

    A well-formed commit of somebody else is no damage: it is left alone, and reported.
    """
    registry.refuse_followed(registry.find(database, name))
    report = verify(database, name, storage_options=storage_options, replay=False)
    broken = [f for f in report.findings if f.kind in ("missing", "damaged")]
    left = tuple(f for f in report.findings if f not in broken)
    table = registry.find(database, name)
    pruned = {f.version for f in broken if commits.kept_bytes(database, table.table_id, f.version) is None}
    left += tuple(replace(f, detail=f"{f.detail}; {_PRUNED}") for f in broken if f.version in pruned)
    broken = [f for f in broken if f.version not in pruned]
    if dry_run or not broken:
        return Repaired(tuple(f.version for f in broken), left, dry_run)
    store = open_store(table.location, storage_options)
    done = []
    with leased(database, f"repair:{table.table_id}", work="a resolution or repair", table=name) as lease:
        for finding in broken:
            with database.read() as session:
                if not still_held(database, session, lease):
                    raise CatalogBusyError(
                        "the lease ran out before the repair was done",
                        table=name,
                        suggestion="repair again: what was rewritten stays",
                    )
            row = commits.one(database, table, finding.version)
            data = commits.commit_bytes(database, table, finding.version)
            _put(store, finding, data, None if row is None else row.timestamp)
            done.append(finding.version)
    logger.warning("%s: commit files rewritten from the catalog: %d", name, len(done))
    return Repaired(tuple(done), left, dry_run=False)


def _put(store: Store, finding: Finding, data: bytes, timestamp: int | None) -> None:
    path = commit_path(finding.version)
    if finding.kind == "damaged":
        store.delete(path)
    store.put_new(path, data, mtime_ms=timestamp)


def rebuild(
    database: Database, name: str, location: str, *, storage_options: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Make a table's whole log from SQL into an empty place; the first and last version it holds.

    Where bytes of older commits are not in the catalog, it begins with a checkpoint of the oldest version
    from which on they are. Where not even the newest has any, its file tells only who made it: readers begin
    at the checkpoint, and writers go on from the file.
    """
    table = registry.find(database, name)
    store = open_store(location, storage_options)
    if any(True for _ in store.list("_delta_log")):
        raise InvalidArgumentError(
            f"there is a log at {location} already", table=name, suggestion="choose an empty place"
        )
    last = table.head.version
    first = min(commits.tail_start(database, table), last)
    if first > 0 or commits.kept_bytes(database, table.table_id, first) is None:
        write_last_checkpoint(store, write_checkpoint_of(database, name, first, store=store).hint())
    for row, data in commits.between(database, table, first, last):
        store.put_new(commit_path(row.version), data or _bare(database, name, row), mtime_ms=row.timestamp)
    return first, last


def _bare(database: Database, name: str, row: CommitRow) -> bytes:
    """A commit file beside a checkpoint of the same version, which holds everything but who made it when."""
    given = row.commit().info
    extra = {"timestamp": row.timestamp, **({} if given is None else given.extra)}
    metadata = snapshots.open_table(database, name, row.version).snapshot.metadata
    if is_on(metadata, IN_COMMIT_TIMESTAMPS):
        extra = {"inCommitTimestamp": row.timestamp, **extra}
    return encode_commit([CommitInfo(extra=extra)])


def recover(database: Database, name: str, *, storage_options: Mapping[str, str] | None = None) -> Adopted:
    """Catch up with a log that is ahead of the catalog, after the database came back from an older backup."""
    table = registry.find(database, name)
    if is_under_way(database, table):
        raise TableFrozenError(
            "commits of ours still wait to be made again",
            table=name,
            suggestion="finish `deltasql mirror resolve` first",
        )
    report = verify(database, name, storage_options=storage_options, replay=False)
    foreign = [f for f in report.findings if f.kind == "foreign"]
    if foreign:
        raise TableFrozenError(
            f"version {foreign[0].version} of the log is not the one in the catalog: both sides went on",
            table=name,
            version=foreign[0].version,
            suggestion="decide with `deltasql mirror resolve`",
        )
    _acknowledge(database, table, open_store(table.location, storage_options))
    adopted = adopt(database, name, storage_options, origin="recover")
    if table.state == "frozen":
        outbox.unfreeze(database, table, f"versions recovered from the log: {len(adopted.versions)}")
    return adopted


def _acknowledge(database: Database, table: Table, store: Store) -> None:
    """Note commits as published that are in the log already: an older backup believes that they wait."""
    known = []
    for version in outbox.waiting_versions(database, table.table_id):
        path = commit_path(version)
        if not store.exists(path):
            raise LogError(
                f"version {version} of the catalog is not in the log",
                table=table.name,
                version=version,
                suggestion="publish it with `deltasql mirror run`",
            )
        if store.get(path) != commits.commit_bytes(database, table, version):
            raise TableFrozenError(
                f"version {version} of the log is not the one in the catalog: both sides went on",
                table=table.name,
                version=version,
                suggestion="decide with `deltasql mirror resolve`",
            )
        known.append(version)
    if known:
        outbox.mark_published(database, {table.table_id: known})
