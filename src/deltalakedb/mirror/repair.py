"""Repair: a lost or damaged log mended from SQL, a lost memory mended from the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.catalog import commits, outbox, registry
from deltalakedb.catalog.leases import leased, still_held
from deltalakedb.exceptions import (
    CatalogBusyError,
    InvalidArgumentError,
    LogError,
    TableFrozenError,
    VersionMissingError,
)
from deltalakedb.log.names import commit_path
from deltalakedb.mirror.checkpointer import write_checkpoint_of
from deltalakedb.mirror.drift import Finding, verify
from deltalakedb.mirror.outside import Adopted, adopt
from deltalakedb.mirror.resolve import is_under_way
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.values import Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do."""

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
    if dry_run or not broken:
        return Repaired(tuple(f.version for f in broken), left, dry_run)
    table = registry.find(database, name)
    store = open_store(table.location, storage_options)
    done = []
    with leased(database, f"repair:{table.table_id}") as lease:
        for finding in broken:
            with database.read() as session:
                if not still_held(database, session, lease):
                    raise CatalogBusyError(
                        "the lease ran out before the repair was done",
                        table=name,
                        suggestion="repair again: what was rewritten stays",
                    )
            row = commits.one(database, table, finding.version)
            try:
                data = commits.commit_bytes(database, table, finding.version)
            except VersionMissingError:
                left = (*left, finding)  # its bytes were pruned: only its digest is known
                continue
            _put(store, finding, data, None if row is None else row.timestamp)
            done.append(finding.version)
    logger.warning("%s: %d commit files were rewritten from the catalog", name, len(done))
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

    It begins with a checkpoint at the oldest version whose successors all have bytes.
    """
    table = registry.find(database, name)
    store = open_store(location, storage_options)
    if any(True for _ in store.list("_delta_log")):
        raise InvalidArgumentError(
            f"there is a log at {location} already", table=name, suggestion="choose an empty place"
        )
    first = commits.first_with_bytes(database, table)
    if first > 0:
        write_checkpoint_of(database, name, first, store=store)
    for version in range(first, table.head.version + 1):
        row = commits.one(database, table, version)
        try:
            data = commits.commit_bytes(database, table, version)
        except VersionMissingError:
            if version > first:
                raise
            continue
        store.put_new(commit_path(version), data, mtime_ms=None if row is None else row.timestamp)
    return first, table.head.version


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
        outbox.unfreeze(database, table, f"recovered {len(adopted.versions)} versions from the log")
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
