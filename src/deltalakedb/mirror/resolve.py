"""Resolving a divergence: their commits stay, ours that nobody outside ever saw go on top of them."""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from deltalakedb.catalog import commits, group_notes, outbox, registry, snapshots, unratify
from deltalakedb.catalog.files import read_adds
from deltalakedb.catalog.leases import leased, require
from deltalakedb.commit.changes import TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError, ProtocolError
from deltalakedb.log.names import commit_path
from deltalakedb.log.reader import FileTxnLogReader
from deltalakedb.mirror.drift import verify
from deltalakedb.mirror.folder import require_folder
from deltalakedb.mirror.our_commits import Fitness, Ours, Shape, foresee, parts_of
from deltalakedb.mirror.outside import adopt
from deltalakedb.mirror.publisher import publish
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.codec import decode_json, encode_json
from deltalakedb.protocol.log import Conflict
from deltalakedb.protocol.reads import NOTHING, ReadSet
from deltalakedb.protocol.rules import SPARKS
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.leases import Lease
    from deltalakedb.catalog.values import Table
    from deltalakedb.commit.committer import OwnWork
    from deltalakedb.mirror.our_commits import Key, OurCommit
    from deltalakedb.protocol.actions import Action

logger = logging.getLogger(__name__)

_LEASE_MS = 2 * 60_000
#: features that files keep which were written before; two writers may have counted to the same numbers
_KEPT = SPARKS - {"identityColumns"}


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of a divergence, or would.

    Attributes:
        theirs: Versions of the log that were taken over.
        ours: Our commits that were made again: old version -> new version.
        lost: Our commits that cannot stand beside theirs: version -> why.
        commits: What these commits of ours are, by their old versions.
        dry_run: Whether nothing was changed.
    """

    theirs: tuple[int, ...]
    ours: dict[int, int]
    lost: dict[int, str]
    commits: tuple[OurCommit, ...] = ()
    dry_run: bool = False


def resolve(
    database: Database,
    name: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Resolved:
    """Keep their commits where both sides have one, and commit ours again on top, with new versions.

    Only commits that were never published move; each keeps its transaction's id, so that a repeated call
    answers with the new version. Every step is in the audit. What is left to do is kept in the catalog and
    the table stays frozen until it is done: a resolution that was interrupted goes on when it is repeated.

    Args:
        database: The catalog.
        name: The table.
        storage_options: Options for the object store.
        dry_run: Change nothing, and tell what would become of each commit.
    """
    table = registry.find(database, name)
    if dry_run:
        ours = _noted(database, table) or _waiting(database, table, storage_options)
        seen = foresee(database, name, ours, FileTxnLogReader(table.location, storage_options))
        return Resolved(seen.theirs, dict(seen.ours), dict(seen.lost), _told(ours), dry_run=True)
    require_folder(database, table, open_store(table.location, storage_options))
    with mending(database, table) as lease:
        # asked inside every transaction: two resolutions at once would mix
        table = registry.find(database, name)
        may = partial(require, database, lease=lease, work="the resolution", table=name)
        noted = _noted(database, table)
        ours = _take_back(database, table, storage_options, may) if noted is None else noted
        first = ours[0].version
        adopt(database, name, storage_options, own=[may])
        made = [r for r in commits.history(database, registry.find(database, name)) if r.version >= first]
        theirs = sorted(r.version for r in made if r.origin == "adopt")
        done = _made_before(ours, [(r.version, r.txn_uuid) for r in reversed(made) if r.origin != "adopt"])
        again, lost = _again(database, name, ours, done, theirs, may)
        reason = f"commits from version {first} on: {len(again)} made again, {len(lost)} lost"
        outbox.unfreeze(database, table, reason, note=_note(table), own=[may])
    publish(database, registry.find(database, name), storage_options=storage_options)
    return Resolved(tuple(theirs), again, lost, _told(ours))


def _told(ours: Sequence[Ours]) -> tuple[OurCommit, ...]:
    return tuple(o.told() for o in ours)


def mending(database: Database, table: Table) -> AbstractContextManager[Lease]:
    """The right to resolve or repair a table, which one has at a time."""
    work = f"a resolution or repair of {table.name}"
    return leased(database, f"repair:{table.table_id}", work=work, table=table.name, ttl_ms=_LEASE_MS)


def is_under_way(database: Database, table: Table) -> bool:
    """Whether a resolution was begun, and commits of ours wait to be made again."""
    return registry.setting(database, _note(table)) is not None


# ---- taking back ---------------------------------------------------------------------------------------


def _waiting(database: Database, table: Table, storage_options: Mapping[str, str] | None) -> list[Ours]:
    """Our commits in whose place somebody else's stand."""
    report = verify(database, table.name, storage_options=storage_options, replay=False)
    published = registry.find(database, table.name).published_version
    foreign = [f.version for f in report.findings if f.kind == "foreign" and f.version <= published]
    if foreign:
        raise InvalidArgumentError(
            f"version {foreign[0]} was published by us and overwritten by somebody else",
            table=table.name,
            suggestion="put our file back with `deltasql mirror repair` after moving theirs away",
        )
    if damaged := [f.version for f in report.findings if f.kind == "damaged"]:
        raise InvalidArgumentError(
            f"version {damaged[0]}, which we published, is damaged in the log",
            table=table.name,
            suggestion="put it back with `deltasql mirror repair` first",
        )
    waiting = outbox.waiting_versions(database, table.table_id)
    if not waiting:
        raise InvalidArgumentError(
            "there is nothing to resolve: every commit of ours is in the log",
            table=table.name,
            suggestion="`deltasql mirror recover` takes over commits beyond the head",
        )
    first = waiting[0]
    if not open_store(table.location, storage_options).exists(commit_path(first)):
        raise InvalidArgumentError(
            f"there is nothing to resolve: version {first} of ours only waits to be published",
            table=table.name,
            suggestion="publish it with `deltasql mirror run`",
        )
    if first == table.head.first_version:
        raise InvalidArgumentError(
            f"version {first} of the log is another table's: ours never began there",
            table=table.name,
            suggestion="move its files away, then `deltasql mirror repair` and `deltasql mirror run` publish "
            f"ours; or `deltasql drop {table.name} --force`, then `deltasql import` takes theirs over",
        )
    rows = [r for v in waiting if (r := commits.one(database, table, v)) is not None]
    return [
        Ours(r.version, r.txn_uuid, r.is_blind_append, commits.commit_bytes(database, table, r.version))
        for r in rows
    ]


def _take_back(
    database: Database, table: Table, storage_options: Mapping[str, str] | None, may: OwnWork
) -> list[Ours]:
    """Take our unpublished commits back, noting them in the same transaction."""
    ours = _waiting(database, table, storage_options)
    first = ours[0].version
    try:
        foresee(database, table.name, ours, FileTxnLogReader(table.location, storage_options))
    except DeltaSqlError as error:
        raise InvalidArgumentError(
            f"their commits cannot be read, so nothing was changed: {error.message}",
            table=table.name,
            suggestion="wait until their writer is done with the file, or have it mended, then resolve; or "
            "move it out of _delta_log, then `deltasql mirror recover` lets ours be published",
        ) from error
    value = [[o.version, o.txn_uuid, o.is_blind_append, base64.b64encode(o.data).decode()] for o in ours]
    reason = f"versions from {first} on are being resolved; `deltasql mirror resolve` goes on with it"
    note = unratify.Note(_note(table), encode_json(value), reason)
    unratify.take_back(database, table, first, ours[-1].version, note=note, own=[may])
    return ours


def _note(table: Table) -> str:
    return f"{group_notes.RESOLVING}{table.table_id}"


def _noted(database: Database, table: Table) -> list[Ours] | None:
    """What an interrupted resolution took back."""
    value = registry.setting(database, _note(table))
    if value is None:
        return None
    return [Ours(v, txn, blind, base64.b64decode(data)) for v, txn, blind, data in decode_json(value)]


# ---- making again --------------------------------------------------------------------------------------


def _made_before(ours: Sequence[Ours], made: Sequence[tuple[int, str]]) -> dict[int, int]:
    """Our commits that an interrupted resolution made again already: old version -> new version."""
    done: dict[int, int] = {}
    for txn in dict.fromkeys(o.txn_uuid for o in ours):
        old = [o.version for o in ours if o.txn_uuid == txn]
        done.update(zip(old, [version for version, by in made if by == txn], strict=False))
    return done


def _again(
    database: Database,
    name: str,
    ours: Sequence[Ours],
    done: Mapping[int, int],
    theirs: Sequence[int],
    may: OwnWork,
) -> tuple[dict[int, int], dict[int, str]]:
    made = dict(done)
    lost: dict[int, str] = {}
    before = snapshots.open_table(database, name, ours[0].version - 1).snapshot
    after = snapshots.open_table(database, name, theirs[-1]).snapshot if theirs else before
    fitness = Fitness(before, Shape.of(after))
    for part in parts_of(ours):
        if part.commits[0].version in made:
            continue
        opened = snapshots.open_table(database, name)
        why = fitness.why_not(part, _live(database, name, part.removed))
        if why is None:
            noted = [_with_note(step, o.version) for step, o in zip(part.steps, part.commits, strict=True)]
            reads = NOTHING if all(o.is_blind_append for o in part.commits) else ReadSet(files=part.removed)
            change = TableChange(
                opened.table, noted[0], opened.snapshot, reads, then=noted[1:], again=may, kept=_KEPT
            )
            try:
                # its own id: a repeated call of its writer finds it; the answer must be a new one here
                outcome = commit(database, [change], txn_uuid=part.txn_uuid, repeated=False)
            except ProtocolError as error:
                why = error.message  # such as rows that go, where others made the table append-only
            else:
                if not isinstance(outcome, Conflict):
                    newest = outcome[0].version - len(part.commits) + 1
                    made.update((o.version, newest + n) for n, o in enumerate(part.commits))
                    continue
                why = outcome.detail
            fitness.lost(part)
        lost.update((o.version, why) for o in part.commits)
    if lost:
        logger.error("%s: commits that could not be made again: %d, %s", name, len(lost), lost)
    return made, lost


def _with_note(actions: Sequence[Action], version: int) -> list[Action]:
    info = next((a for a in actions if isinstance(a, CommitInfo)), CommitInfo())
    rest = [a for a in actions if not isinstance(a, CommitInfo)]
    return [CommitInfo(extra={**info.extra, "recommittedFrom": version}), *rest]


def _live(database: Database, name: str, keys: frozenset[Key]) -> frozenset[Key]:
    if not keys:
        return keys
    adds = read_adds(database, snapshots.open_table(database, name))
    return frozenset(a.key for a in adds if a.key in keys)
