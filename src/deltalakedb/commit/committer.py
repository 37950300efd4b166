"""The committer: lock the heads, check, fix time and bytes, write the rows, commit."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.commit.conflicts import conflict, vacuumed_files
from deltalakedb.commit.fast_append import try_fast_append
from deltalakedb.commit.idempotency import already_applied, previous_result
from deltalakedb.commit.info import info_of
from deltalakedb.commit.request import Adopted, NewTable
from deltalakedb.commit.versions import current_protocol, write_versions
from deltalakedb.exceptions import (
    FROZEN_HINT,
    CatalogBusyError,
    CatalogUnavailableError,
    CommitUnknownError,
    DeltaSqlError,
    InvalidArgumentError,
    TableFrozenError,
    commit_interrupted,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, concurrent_commits, registry
from deltalakedb.metastore.registry import change_names, still_there
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.txn_log import Committed, Conflict
from deltalakedb.retry import backoff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.commit.request import CommitRequest, TableChange
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.registry import NameChange
    from deltalakedb.metastore.rows import LockedTable, Table

logger = logging.getLogger(__name__)

#: how often a transaction is begun again after a deadlock, a serialization failure or a lost answer
_ATTEMPTS = 6
#: how often a lock is waited for to the end of its timeout
_WAITS = 2
_FIRST_WAIT = 0.02

#: asked under the lock, or just before: whether the log of a table holds the version after another
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

    Args:
        database: The catalog.
        request: What to commit.
        guard: Asked of every table that is changed, while its head is held.

    Returns:
        One Committed per change, in the order given, or the Conflict that stopped them all. Of a table that
        was only read, the Committed names the version it was at.

    Raises:
        LogAheadError: The guard found a version beyond the head of a table.
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

    Once an attempt's outcome is unknown, no later failure may pass for the commit's: its files would be
    deleted. And what a later attempt then finds is this call's own success, not a repetition of another's.
    """
    txn = request.txn_id or str(uuid.uuid4())
    may_repeat = request.may_repeat and request.txn_id is not None
    lost: CommitUnknownError | None = None
    waits = 0
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _attempt(database, request, txn, guard, may_repeat=may_repeat, lost=lost is not None)
        except Exception as error:
            if isinstance(error, CommitUnknownError):
                lost = error
            busy = error.context if isinstance(error, CatalogBusyError) else {}
            waits += bool(busy.get("waited"))
            again = busy.get("again") and waits < _WAITS
            reachable = isinstance(
                error, CommitUnknownError | CatalogBusyError | CatalogUnavailableError
            ) and not error.context.get("interrupted")
            if attempt == _ATTEMPTS or not (again or (lost is not None and reachable)):
                if lost is None or lost is error:
                    raise
                raise lost from error
            logger.info("transaction %s is begun again: %s", txn, error)
            time.sleep(backoff(attempt, first=_FIRST_WAIT))
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

    Args:
        database: The catalog.
        request: What to commit.
        txn: The transaction's id.
        guard: Asked of every table that is changed, while its head is held.
        may_repeat: An earlier call may have committed under this id.
        lost: An earlier attempt of this call may have been committed.
    """
    failpoint("commit.before_begin")
    changes, renames = request.changes, request.renames
    used = may_repeat or lost
    if not (used or renames or request.statements):
        appended = try_fast_append(database, changes, txn, guard)
        if appended is not None:
            _answer()
            return appended
    ending = False
    try:
        with database.write() as session:
            held = _lock_tables(session, changes, renames)
            # asked under the lock: the lost attempt may have been on its way until a moment ago
            done = commits.by_transaction(session, txn) if used else None
            if done is not None:
                raise _Stop(previous_result(session, changes, txn, done, replayed=not lost))
            if used:
                # a key: a call with the same id at the same moment, perhaps with no head in common, waits
                _insert_transaction(session, txn, changes)
            seen = _current_tables(changes, held)
            failpoint("commit.locked")
            if (applied := already_applied(session, seen, changes)) is not None:
                raise _Stop(applied)
            for one, change in zip(seen, changes, strict=True):
                if one is None:
                    continue
                _check(session, one, change)
                if guard is not None and change.versions and guard(one.table, one.table.head.version):
                    raise LogAheadError(one.table)
            if renames:
                change_names(session, held, renames)
            locked = _resolve_tables(session, seen, changes, renames)
            with session.batch(1):
                results = [
                    write_versions(session, one, change, txn)
                    for one, change in zip(locked, changes, strict=True)
                ]
                if not used:
                    _insert_transaction(session, txn, changes)
            for statement in request.statements:
                statement(session)
            failpoint("commit.before_commit")
            ending = True
    except _Stop as stop:
        return stop.outcome
    except DeltaSqlError:
        raise  # the engine knows the outcome of its transaction
    except Exception as error:
        if ending:
            raise commit_interrupted(error) from error
        raise
    _answer()
    return results


def _insert_transaction(session: Session, txn: str, changes: Sequence[TableChange]) -> None:
    commits.insert_transaction(session, txn, len(changes), new_id=True)
    for origin in (c.origin for c in changes):
        if isinstance(origin, Adopted) and origin.txn_uuid is not None:
            commits.insert_transaction(session, origin.txn_uuid, 1, new_id=False)


def _answer() -> None:
    """The moment at which a commit stands, and its caller does not know yet."""
    try:
        failpoint("commit.after")
    except Exception as error:
        raise CommitUnknownError("the answer of the commit was lost") from error


def _lock_tables(
    session: Session, changes: Sequence[TableChange], renames: Sequence[NameChange]
) -> dict[int, LockedTable]:
    existing = [c.table.table_id for c in changes if not isinstance(c.table, NewTable)]
    existing += [n.table.table_id for n in renames]
    return registry.lock(session, existing) if existing else {}


def _current_tables(
    changes: Sequence[TableChange], held: Mapping[int, LockedTable]
) -> list[LockedTable | None]:
    """The table of each change as it is now; None for one that the commit creates."""
    return [
        None
        if isinstance(change.table, NewTable)
        # a foreign commit belongs to a location and not to a name
        else still_there(held, change.table, named=not change.is_foreign)
        for change in changes
    ]


def _resolve_tables(
    session: Session,
    seen: Sequence[LockedTable | None],
    changes: Sequence[TableChange],
    renames: Sequence[NameChange],
) -> list[LockedTable]:
    """Every table of the changes under its new name; new ones are created."""
    called = {n.table.table_id: n.new_name for n in renames}
    out = []
    for one, change in zip(seen, changes, strict=True):
        new = change.table
        if isinstance(new, NewTable):
            made = registry.insert(
                session, new.name, new.location, comment=new.comment, tags=new.tags, settings=new.settings
            )
            out.append(made)
        elif one is not None:
            name = called.get(one.table.table_id)
            out.append(one if name is None else replace(one, table=replace(one.table, name=name)))
    return out


def _check(session: Session, locked: LockedTable, change: TableChange) -> None:
    table = locked.table
    if locked.frozen and change.versions and not isinstance(change.origin, Adopted):
        state, reason = _state(session, table)
        registry.refuse_followed(replace(table, state=state))
        raise TableFrozenError(
            f"the table is frozen: {reason}",
            table=table.name,
            version=table.head.version,
            suggestion=FROZEN_HINT,
        )
    if change.is_foreign and change.read_version != table.head.version:
        raise _Stop(
            Conflict(
                "version_taken",
                table.head.version,
                operation=concurrent_commits.operation(session, table.table_id, table.head.version),
                detail=f"version {change.read_version + 1} exists already",
                table=table.name,
            )
        )
    found = conflict(session, locked, change, lambda: current_protocol(session, table)) or vacuumed_files(
        session, locked, change
    )
    if found is not None:
        raise _Stop(found)


def _state(session: Session, table: Table) -> tuple[str, str | None]:
    """A frozen table's state, and the reason for it."""
    sql = statements("tables", session.engine.dialect.name)["by name"]
    row = session.row(sql, (table.name,))
    return ("frozen", None) if row is None else (row[3], row[4])
