"""The committer: lock the heads, check, fix time and bytes, write the rows, commit."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deltalakedb import telemetry
from deltalakedb._version import __version__
from deltalakedb.catalog import commits, registry
from deltalakedb.catalog.ratify import Ratification, ratify
from deltalakedb.catalog.statements import statements
from deltalakedb.commit.changes import NewTable, TableChange
from deltalakedb.exceptions import CommitUnknownError, ProtocolError, TableFrozenError, TableMissingError
from deltalakedb.protocol.actions import Action, Add, CommitInfo, Metadata, Protocol, Remove
from deltalakedb.protocol.codec import encode_commit
from deltalakedb.protocol.log import Committed, Conflict
from deltalakedb.protocol.rules import IN_COMMIT_TIMESTAMPS, check_commit, is_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.catalog.values import LockedTable, Table

logger = logging.getLogger(__name__)

#: how often a commit whose answer was lost is asked after
_ATTEMPTS = 3


def commit(
    database: Database, changes: Sequence[TableChange], *, txn_uuid: str | None = None
) -> list[Committed] | Conflict:
    """Ratify changes of any number of tables in one database transaction.

    Args:
        database: The catalog.
        changes: One change per table.
        txn_uuid: The id by which a repeated call finds its own earlier success.

    Returns:
        One Committed per change, in the order given, or the Conflict that stopped them all.
    """
    txn = txn_uuid or str(uuid.uuid4())
    repeated = txn_uuid is not None
    operation = next((o for c in changes if (o := _operation(c.actions))), "UNKNOWN")
    with telemetry.timed(
        "commit_duration_seconds", operation=operation, engine=database.dialect.name
    ) as timer:
        timer.outcome = "error"
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                outcome = _attempt(database, changes, txn, repeated=repeated)
            except CommitUnknownError:
                if attempt == _ATTEMPTS:
                    raise
                logger.warning("the outcome of transaction %s is unknown: asking again", txn)
                repeated = True
            else:
                break
        if isinstance(outcome, Conflict):
            timer.outcome = "conflict"
            telemetry.emit("commit_conflicts_total", 1, kind=outcome.kind)
        else:
            timer.outcome = "committed"
    return outcome


class _Stop(Exception):  # noqa: N818 - not an error: it carries a value out of the transaction
    def __init__(self, conflict: Conflict) -> None:
        self.conflict = conflict


def _attempt(
    database: Database, changes: Sequence[TableChange], txn: str, *, repeated: bool
) -> list[Committed] | Conflict:
    try:
        with database.write() as session:
            if repeated and (done := commits.by_transaction(database, session, txn)):
                return _earlier(database, changes, done)
            locked = _lock(session, changes)
            results = [
                _ratify(session, one, change, txn) for one, change in zip(locked, changes, strict=True)
            ]
            session.run(
                statements("commits", database.dialect.name)["insert transaction"],
                (txn, results[0].timestamp, None, len(results)),
            )
    except _Stop as stop:
        return stop.conflict
    return results


def _lock(session: Session, changes: Sequence[TableChange]) -> list[LockedTable]:
    existing = [c.table.table_id for c in changes if not isinstance(c.table, NewTable)]
    held = registry.lock(session, existing) if existing else {}
    out = []
    for change in changes:
        table = change.table
        if isinstance(table, NewTable):
            made = registry.insert(
                session,
                table.name,
                table.location,
                comment=table.comment,
                tags=table.tags,
                settings=table.settings,
            )
            out.append(made)
        elif (found := held.get(table.table_id)) is None:
            raise TableMissingError(f"the table {table.name!r} was dropped in the meantime", table=table.name)
        else:
            out.append(found)
    return out


def _ratify(session: Session, locked: LockedTable, change: TableChange, txn: str) -> Committed:
    table = locked.table
    if table.state == "frozen":
        raise TableFrozenError(
            f"the table is frozen: {table.state_reason}",
            table=table.name,
            version=table.head.version,
            suggestion="find out who wrote to its _delta_log, then decide which side is right",
        )
    if conflict := _conflict(session, table, change):
        raise _Stop(conflict)
    version = table.head.version + 1
    _, metadata = check_commit(
        change.actions,
        version=version,
        protocol=None if change.read is None else change.read.protocol,
        metadata=None if change.read is None else change.read.metadata,
        root=table.location,
        table=table.name,
    )
    in_commit = is_on(metadata, IN_COMMIT_TIMESTAMPS)
    timestamp = max(session.now_ms(), table.head.timestamp + 1)
    actions: Sequence[Action]
    if change.exact:
        actions = change.actions
        timestamp = _own_time(change, table) if in_commit else timestamp
    else:
        actions = _with_info(change, txn, timestamp, in_commit=in_commit)
    ratify(
        session,
        locked,
        Ratification(
            version=version,
            timestamp=timestamp,
            actions=actions,
            data=encode_commit(actions),
            txn_uuid=txn,
            is_blind_append=_is_blind_append(change),
        ),
    )
    return Committed(version, timestamp)


def _conflict(session: Session, table: Table, change: TableChange) -> Conflict | None:
    """What committed since the read version and cannot stand beside this change."""
    if table.head.version == change.read_version:
        return None
    sql = statements("snapshots", session.engine.dialect.name)["metadata since"]
    since = change.read_version
    row = session.row(sql, (table.table_id, since, table.table_id, since))
    if row is not None and row[0] is not None:
        return Conflict(
            "metadata_changed",
            int(row[0]),
            detail="the table's metadata or protocol changed since it was read",
            table=table.name,
        )
    if change.blind and _is_blind_append(change):
        return None
    return Conflict(
        "version_taken",
        table.head.version,
        detail=f"the table moved from version {since} to {table.head.version} since it was read",
        table=table.name,
    )


def _is_blind_append(change: TableChange) -> bool:
    changes_table = any(isinstance(a, Remove | Metadata | Protocol) for a in change.actions)
    return change.blind and not changes_table and any(isinstance(a, Add) for a in change.actions)


def _with_info(change: TableChange, txn: str, timestamp: int, *, in_commit: bool) -> list[Action]:
    """The actions with their commitInfo first, as in-commit timestamps demand."""
    given = next((a for a in change.actions if isinstance(a, CommitInfo)), CommitInfo())
    info: dict[str, Any] = {"inCommitTimestamp": timestamp} if in_commit else {}
    info["timestamp"] = timestamp
    info.update({k: v for k, v in given.extra.items() if k not in ("timestamp", "inCommitTimestamp")})
    info.setdefault("operation", "WRITE")
    info.setdefault("operationParameters", {})
    if change.read is not None:
        info["readVersion"] = change.read.version
    info["isBlindAppend"] = _is_blind_append(change)
    info["engineInfo"] = f"deltalakedb:{__version__}"
    info["txnId"] = txn
    rest = [a for a in change.actions if not isinstance(a, CommitInfo)]
    return [replace(given, extra=info), *rest]


def _own_time(change: TableChange, table: Table) -> int:
    """The time inside a commit that is taken over as it is; it must be later than the one before."""
    info = next((a for a in change.actions if isinstance(a, CommitInfo)), CommitInfo())
    if info.in_commit_timestamp is None or info.in_commit_timestamp <= table.head.timestamp:
        raise ProtocolError(
            f"the commit's inCommitTimestamp is {info.in_commit_timestamp}, not after {table.head.timestamp}",
            table=table.name,
            version=table.head.version + 1,
            suggestion="in-commit timestamps are on: each commit must carry a later one than its predecessor",
        )
    return info.in_commit_timestamp


def _earlier(
    database: Database, changes: Sequence[TableChange], done: dict[tuple[int, int], Committed]
) -> list[Committed]:
    out = []
    for change in changes:
        table = change.table
        table_id = (
            registry.find(database, table.name).table_id if isinstance(table, NewTable) else table.table_id
        )
        out.append(done[table_id, 0])
    return out


def _operation(actions: Sequence[Action]) -> str | None:
    info = next((a for a in actions if isinstance(a, CommitInfo)), None)
    return None if info is None else info.operation
