"""Resolving a divergence: their commits stay, ours that nobody outside ever saw go on top of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.catalog import commits, outbox, registry, snapshots, unratify
from deltalakedb.catalog.files import read_adds
from deltalakedb.catalog.leases import leased
from deltalakedb.commit.changes import TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.log.names import commit_path
from deltalakedb.mirror.drift import verify
from deltalakedb.mirror.outside import adopt
from deltalakedb.mirror.publisher import publish
from deltalakedb.protocol.actions import Add, CommitInfo, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.log import Conflict
from deltalakedb.protocol.reads import NOTHING, ReadSet
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.catalog.commits import CommitRow
    from deltalakedb.catalog.database import Database
    from deltalakedb.protocol.actions import Action

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of a divergence.

    Attributes:
        theirs: Versions of the log that were taken over.
        ours: Our commits that were made again: old version -> new version.
        lost: Our commits that cannot stand beside theirs: version -> why.
    """

    theirs: tuple[int, ...]
    ours: dict[int, int]
    lost: dict[int, str]


def resolve(database: Database, name: str, *, storage_options: Mapping[str, str] | None = None) -> Resolved:
    """Keep their commits where both sides have one, and commit ours again on top, with new versions.

    Only commits that were never published move; each keeps its transaction's id, so that a repeated call
    answers with the new version. Every step is in the audit.
    """
    table = registry.find(database, name)
    report = verify(database, name, storage_options=storage_options, replay=False)
    waiting = outbox.waiting_versions(database, table.table_id)
    published_twice = [f.version for f in report.findings if f.kind == "foreign"]
    if published_twice:
        raise InvalidArgumentError(
            f"version {published_twice[0]} was published by us and overwritten by somebody else",
            table=name,
            suggestion="put our file back with `deltasql mirror repair` after moving theirs away",
        )
    if not waiting:
        raise InvalidArgumentError(
            "there is nothing to resolve: every commit of ours is in the log",
            table=name,
            suggestion="`deltasql mirror recover` takes over commits beyond the head",
        )
    first = waiting[0]
    store = open_store(table.location, storage_options)
    if not store.exists(commit_path(first)):
        raise InvalidArgumentError(
            f"there is nothing to resolve: version {first} of ours only waits to be published",
            table=name,
            suggestion="publish it with `deltasql mirror run`",
        )
    with leased(database, f"repair:{table.table_id}", ttl_ms=15 * 60_000):
        rows = [r for v in waiting if (r := commits.one(database, table, v)) is not None]
        bodies = {
            r.version: decode_commit(
                commits.commit_bytes(database, table, r.version), source=f"version {r.version}"
            )
            for r in rows
        }
        unratify.take_back(database, table, first)
        outbox.unfreeze(database, table, f"versions from {first} on are taken from the log")
        theirs = adopt(database, name, storage_options)
        again, lost = _again(database, name, rows, bodies)
    publish(database, registry.find(database, name), storage_options=storage_options)
    return Resolved(theirs.versions, again, lost)


def _again(
    database: Database, name: str, rows: Sequence[CommitRow], bodies: Mapping[int, Sequence[Action]]
) -> tuple[dict[int, int], dict[int, str]]:
    done: dict[int, int] = {}
    lost: dict[int, str] = {}
    for row in rows:
        opened = snapshots.open_table(database, name)
        actions = bodies[row.version]
        removed = frozenset(a.key for a in actions if isinstance(a, Remove))
        live = {a.key for a in _live(database, name, removed)}
        if removed - live:
            lost[row.version] = "a file that it removes is gone"
            continue
        info = next((a for a in actions if isinstance(a, CommitInfo)), CommitInfo())
        rest = [a for a in actions if not isinstance(a, CommitInfo)]
        noted = CommitInfo(extra={**info.extra, "recommittedFrom": row.version})
        reads = NOTHING if row.is_blind_append else ReadSet(files=removed)
        change = TableChange(opened.table, [noted, *rest], opened.snapshot, reads)
        # its own id, so that a repeated call of its writer finds it; the answer must be a new one here
        outcome = commit(database, [change], txn_uuid=row.txn_uuid, repeated=False)
        if isinstance(outcome, Conflict):
            lost[row.version] = outcome.detail
        else:
            done[row.version] = outcome[0].version
    if lost:
        logger.error("%s: %d commits could not be made again: %s", name, len(lost), lost)
    return done, lost


def _live(database: Database, name: str, keys: frozenset[tuple[str, str]]) -> list[Add]:
    if not keys:
        return []
    return [a for a in read_adds(database, snapshots.open_table(database, name)) if a.key in keys]
