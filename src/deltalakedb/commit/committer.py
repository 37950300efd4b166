"""The committer: lock the heads, check for conflicts, write the versions, commit."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.commit.conflicts import conflict, vacuumed_files
from deltalakedb.commit.fast_append import try_fast_append
from deltalakedb.commit.request import Adopted, CommitRequest, NewTable, TableChange
from deltalakedb.commit.versions import info_of, write_versions
from deltalakedb.exceptions import (
    FROZEN_HINT,
    CatalogBusyError,
    CatalogUnavailableError,
    CommitError,
    CommitUnknownError,
    DeltaSqlError,
    InvalidArgumentError,
    TableFrozenError,
    commit_interrupted,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, registry
from deltalakedb.metastore.registry import NameChange, change_names, require_same_table
from deltalakedb.protocol.actions import Txn
from deltalakedb.protocol.txn_log import Committed, Conflict
from deltalakedb.retry import backoff

if TYPE_CHECKING:
    from deltalakedb.metastore.commits import TransactionResult
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.rows import LockedTable, Table

logger = logging.getLogger(__name__)

#: how often a transaction is attempted: after deadlocks, serialization failures and lost responses
_ATTEMPTS = 6
#: a commit gives up at this many lock timeouts
_MAX_LOCK_TIMEOUTS = 2
_FIRST_DELAY_S = 0.02

#: whether a table's log has a version beyond the given one; called while the head is locked, or just before
LogAheadCheck = Callable[["Table", int], bool]


class LogAheadError(Exception):
    """The log of a table holds a version beyond the head: nothing was committed."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.name)
        self.table = table


def commit(
    database: Database, request: CommitRequest, *, guard: LogAheadCheck | None = None
) -> list[Committed] | Conflict:
    """Ratify changes of any number of tables in one database transaction.

    Callers outside of this room go through `coordinator.Coordinator`, which also looks for foreign commits,
    publishes, and deletes the files of a commit that did not happen.

    Returns:
        One Committed per change, in the order given, or the Conflict that stopped them all. Of a table that
        was only read, the Committed has the version it was at.

    Raises:
        LogAheadError: The guard, which is called for each changed table while its head is locked, found a
            version beyond the head.
    """
    changes = request.changes
    if not (changes or request.renames or request.statements):
        raise InvalidArgumentError("there is nothing to commit")
    ids = [c.table.table_id for c in changes if not isinstance(c.table, NewTable)]
    if len(set(ids)) < len(ids):
        raise InvalidArgumentError(
            "a commit holds one change per table",
            suggestion="merge the changes of one table into a single TableChange",
        )
    operation = next((i.operation for c in changes if (i := info_of(c.actions))), None) or "UNKNOWN"
    with telemetry.timed(
        "commit_duration_seconds", operation=operation, engine=database.dialect.name
    ) as timer:
        timer.outcome = "error"
        outcome = _with_retries(database, request, guard)
        if isinstance(outcome, Conflict):
            timer.outcome = "conflict"
            telemetry.emit("commit_conflicts_total", 1, kind=outcome.kind)
        elif outcome and all(c.replayed for c in outcome):
            timer.outcome = "replayed"
            telemetry.emit("commit_replays_total", 1, engine=database.dialect.name)
        else:
            timer.outcome = "committed"
    return outcome


def _with_retries(
    database: Database, request: CommitRequest, guard: LogAheadCheck | None
) -> list[Committed] | Conflict:
    """Attempt a commit until its outcome is known.

    Once the outcome of an attempt is unknown, the failure of a later one must not be raised as that of the
    commit, since the caller would delete its files. And a commit that a later attempt finds under its id is
    this call's own success, not a replay of an earlier call.
    """
    txn = request.txn_id or str(uuid.uuid4())
    may_repeat = request.may_repeat and request.txn_id is not None
    lost: CommitUnknownError | None = None
    lock_timeouts = 0
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _attempt(database, request, txn, guard, may_repeat=may_repeat, lost=lost is not None)
        except Exception as error:
            if isinstance(error, CommitUnknownError):
                lost = error
            busy = error.context if isinstance(error, CatalogBusyError) else {}
            lock_timeouts += bool(busy.get("waited"))
            retryable = busy.get("again") and lock_timeouts < _MAX_LOCK_TIMEOUTS
            outcome_can_be_found = isinstance(
                error, CommitUnknownError | CatalogBusyError | CatalogUnavailableError
            ) and not error.context.get("interrupted")
            if attempt == _ATTEMPTS or not (retryable or (lost is not None and outcome_can_be_found)):
                if lost is None or lost is error:
                    raise
                raise lost from error
            logger.info("retrying transaction %s: %s", txn, error)
            time.sleep(backoff(attempt, first=_FIRST_DELAY_S))
    raise AssertionError("the last attempt returns or raises")


class _Stop(Exception):  # noqa: N818 - not an error: it rolls the transaction back and carries the outcome
    def __init__(self, outcome: list[Committed] | Conflict) -> None:
        self.outcome = outcome


def _attempt(
    database: Database,
    request: CommitRequest,
    txn: str,
    guard: LogAheadCheck | None,
    *,
    may_repeat: bool,
    lost: bool,
) -> list[Committed] | Conflict:
    """Try once.

    ``may_repeat``: an earlier call may have committed under this id. ``lost``: an earlier attempt of this
    call may have, since its response was lost.
    """
    failpoint("commit.before_begin")
    changes, renames = request.changes, request.renames
    id_may_exist = may_repeat or lost
    if database.dialect.fast_append and not (id_may_exist or renames or request.statements):
        appended = try_fast_append(database, changes, txn, guard)
        if appended is not None:
            _reached_commit()
            return appended
    committing = False
    try:
        with database.commit_write() as session:
            existing = [t.table_id for c in changes if not isinstance(t := c.table, NewTable)]
            existing += [n.table.table_id for n in renames]
            locked = registry.lock(session, existing) if existing else {}
            # under the lock: the lost attempt may have committed a moment ago
            done = commits.by_transaction(session, txn) if id_may_exist else None
            if done is not None:
                raise _Stop(_previous_result(session, changes, txn, done, replayed=not lost))
            if id_may_exist:
                # the id is a key: a concurrent call with the same id waits here, even if it locks other heads
                _insert_transaction(session, txn, changes)
                session.flush()
            # each table as it is now; a foreign commit was made for a location, so a renamed table is fine
            current = [
                None
                if isinstance(change.table, NewTable)
                else require_same_table(locked, change.table, named=not change.is_foreign)
                for change in changes
            ]
            failpoint("commit.locked")
            if (applied := _already_applied(session, current, changes)) is not None:
                raise _Stop(applied)
            for one, change in zip(current, changes, strict=True):
                if one is None:
                    continue
                _check(session, one, change)
                if guard is not None and change.versions and guard(one.table, one.table.head.version):
                    raise LogAheadError(one.table)
            if renames:
                change_names(session, locked, renames)
            tables = _resolve_tables(session, current, changes, renames)
            results = [
                write_versions(session, one, change, txn) for one, change in zip(tables, changes, strict=True)
            ]
            if not id_may_exist:
                _insert_transaction(session, txn, changes)
            for statement in request.statements:
                statement(session)
            failpoint("commit.before_commit")
            committing = True
    except _Stop as stop:
        return stop.outcome
    except DeltaSqlError:
        raise  # the engine knows the outcome of its transaction
    except Exception as error:
        if committing:
            raise commit_interrupted(error) from error
        raise
    _reached_commit()
    return results


def _insert_transaction(session: Session, txn: str, changes: Sequence[TableChange]) -> None:
    commits.insert_transaction(session, txn, len(changes), new_id=True)
    for origin in (c.origin for c in changes):
        if isinstance(origin, Adopted) and origin.txn_uuid is not None:
            commits.insert_transaction(session, origin.txn_uuid, 1, new_id=False)


def _reached_commit() -> None:
    """The failpoint after COMMIT; its errors count as a lost response, since the commit stands."""
    try:
        failpoint("commit.after")
    except Exception as error:
        raise CommitUnknownError("the response of the commit was lost") from error


def _resolve_tables(
    session: Session,
    current: Sequence[LockedTable | None],
    changes: Sequence[TableChange],
    renames: Sequence[NameChange],
) -> list[LockedTable]:
    """The table of each change, under its new name if it is renamed; new tables are created."""
    names = {n.table.table_id: n.new_name for n in renames}
    out = []
    for one, change in zip(current, changes, strict=True):
        new = change.table
        if isinstance(new, NewTable):
            made = registry.insert(
                session, new.name, new.location, comment=new.comment, tags=new.tags, settings=new.settings
            )
            out.append(made)
        elif one is not None:
            name = names.get(one.table.table_id) or one.table.name
            out.append(replace(one, table=replace(one.table, name=name)) if names else one)
    return out


def _check(session: Session, locked: LockedTable, change: TableChange) -> None:
    """Check, under the lock, that a change may be committed; a conflict is raised as `_Stop`."""
    table = locked.table
    if locked.frozen and change.versions and not isinstance(change.origin, Adopted):
        now, version = registry.find(session, table.name), table.head.version
        registry.refuse_followed(now)
        text = f"the table is frozen: {now.state_reason}"
        raise TableFrozenError(text, table=table.name, version=version, suggestion=FROZEN_HINT)
    if change.is_foreign and change.read_version != (head := table.head.version):
        operation = commits.operation(session, table.table_id, head)
        detail = f"version {change.read_version + 1} exists already"
        raise _Stop(Conflict("version_taken", head, operation=operation, detail=detail, table=table.name))
    if found := conflict(session, locked, change) or vacuumed_files(session, locked, change):
        raise _Stop(found)


# ---- idempotency: earlier commits are found by the transaction's id or an application's version -----------


def _already_applied(
    session: Session, current: Sequence[LockedTable | None], changes: Sequence[TableChange]
) -> list[Committed] | None:
    """The earlier commits, if applications have recorded these versions already; else None.

    A version lower than the recorded one is a late retry. A commit of another engine is recognised by its
    bytes instead.

    Raises:
        CommitError: Only some of the tables have recorded the version.
    """
    done: list[Committed] = []
    having, lacking, recorded = [], [], None
    for one, change in zip(current, changes, strict=True):
        version, at, applied = -1, 0, False
        if one is not None:
            version, at = one.table.head.version, one.table.head.timestamp
            for action in () if change.is_foreign else change.actions:
                if isinstance(action, Txn):
                    known = commits.application(session, one.table.table_id, action.app_id)
                    if known is not None and known[0] >= action.version:
                        version, applied, recorded = known[1], True, action
        done.append(Committed(version, at, replayed=True))
        if applied:
            having.append(change.table.name)
        elif one is None or change.versions:
            lacking.append(change.table.name)
    if recorded is None:
        return None
    if lacking:
        # the transaction can be neither skipped nor committed, and a retry would not change that
        raise CommitError(
            f"version {recorded.version} of application {recorded.app_id!r} is recorded in "
            f"{', '.join(having)} and not in {', '.join(lacking)}: nothing was committed",
            suggestion="write to the tables that lack it in a separate transaction, or give all writes of "
            "this one a version that none of its tables has (see DeltaTable.transaction_version)",
        )
    logger.info(
        "version %d of application %s was already committed: nothing to do", recorded.version, recorded.app_id
    )
    return done


def _previous_result(
    session: Session, changes: Sequence[TableChange], txn: str, done: TransactionResult, *, replayed: bool
) -> list[Committed]:
    """What an earlier call with the same id committed.

    Raises:
        CommitError: The commits were recovered from the logs of some tables, and another table lacks them.
    """
    sql = session.sql("tables", "by name")
    out, lacking = [], []
    for change in changes:
        table = change.table
        row = session.row(sql, (table.name,)) if isinstance(table, NewTable) else (table.table_id,)
        table_id = None if row is None else row[0]
        mine = [c for (of, _), c in done.commits.items() if of == table_id]
        lacking += [table.name] if change.versions and not mine else []
        out.append(max(mine, key=lambda c: c.version, default=Committed(change.read_version, 0)))
    if lacking and done.adopted:
        names = ", ".join(lacking)
        raise CommitError(
            f"the transaction {txn!r} was recovered from the log of another table, and {names} does not have "
            "it: nothing was committed",
            suggestion=f"run `deltasql mirror recover` on {names}, then repeat the transaction; if it was "
            "never there, write its part in a transaction with another id",
        )
    return [replace(c, replayed=replayed) for c in out]
