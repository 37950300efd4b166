"""The committer: lock the heads, check, fix time and bytes, write the rows, commit."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.commit.at_once import commit_at_once
from deltalakedb.commit.changes import NewTable
from deltalakedb.commit.checker import conflict, vacuumed_files
from deltalakedb.commit.info import info_of
from deltalakedb.commit.repeats import applications, earlier
from deltalakedb.commit.versions import protocol_now, ratify_change
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
from deltalakedb.protocol.log import Committed, Conflict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.commit.changes import TableChange
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.registry import NameChange
    from deltalakedb.metastore.values import LockedTable, Table

logger = logging.getLogger(__name__)

#: how often a transaction is begun again after a deadlock, a serialization failure or a lost answer
_ATTEMPTS = 6
#: how often a lock is waited for to the end of its timeout
_WAITS = 2
_FIRST_WAIT = 0.02

#: a user's own work on the same database, run inside the commit's transaction
OwnWork = Callable[["Session"], object]
#: asked under the lock, or just before: whether the log of a table holds the version after another
Guard = Callable[["Table", int], bool]


class LogAheadError(Exception):
    """The log of a table holds a version beyond the head: nothing was committed."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.name)
        self.table = table


def commit(
    database: Database,
    changes: Sequence[TableChange],
    *,
    txn_uuid: str | None = None,
    repeated: bool = True,
    names: Sequence[NameChange] = (),
    own: Sequence[OwnWork] = (),
    guard: Guard | None = None,
) -> list[Committed] | Conflict:
    """Ratify changes of any number of tables in one database transaction.

    Args:
        database: The catalog.
        changes: One change per table; a change without actions only takes part in the check.
        txn_uuid: The id by which a repeated call finds its own earlier success.
        repeated: An earlier call may have used the id; False where it was just made.
        names: Tables that are dropped or renamed, done after the checks and before tables are created.
        own: The user's own work on the same database, done after the checks in the same transaction.
        guard: Asked of every table that is changed, while its head is held.

    Returns:
        One Committed per change, in the order given, or the Conflict that stopped them all. Of a table that
        was only read, the Committed names the version it was at.

    Raises:
        LogAheadError: The guard said so of a table.
    """
    if not changes and not names and not own:
        raise InvalidArgumentError("there is nothing to commit")
    ids = [c.table.table_id for c in changes if not isinstance(c.table, NewTable)]
    if len(set(ids)) < len(ids):
        raise InvalidArgumentError("a commit holds one change per table", suggestion="fold them into one")
    txn = txn_uuid or str(uuid.uuid4())
    operation = next((i.operation for c in changes if (i := info_of(c.all_actions))), None) or "UNKNOWN"
    with telemetry.timed(
        "commit_duration_seconds", operation=operation, engine=database.dialect.name
    ) as timer:
        timer.outcome = "error"
        again = repeated and txn_uuid is not None
        outcome = _until_answered(database, changes, txn, names, own, guard, repeated=again)
        if isinstance(outcome, Conflict):
            timer.outcome = "conflict"
            telemetry.emit("commit_conflicts_total", 1, kind=outcome.kind)
        elif outcome and all(c.replayed for c in outcome):
            timer.outcome = "replayed"
            telemetry.emit("commit_replays_total", 1, engine=database.dialect.name)
        else:
            timer.outcome = "committed"
    return outcome


def _until_answered(
    database: Database,
    changes: Sequence[TableChange],
    txn: str,
    names: Sequence[NameChange],
    own: Sequence[OwnWork],
    guard: Guard | None,
    *,
    repeated: bool,
) -> list[Committed] | Conflict:
    """Attempt a commit until it is known what became of it.

    Once an attempt's outcome is unknown, no later failure may pass for the commit's: its files would be
    deleted. And what a later attempt then finds is this call's own success, not a repetition of another's.
    """
    lost: CommitUnknownError | None = None
    waits = 0
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _attempt(
                database, changes, txn, names, own, guard, repeated=repeated, lost=lost is not None
            )
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
            # jitter, so that those who collided do not meet again
            time.sleep(random.uniform(0, _FIRST_WAIT * 2**attempt))  # noqa: S311
    raise AssertionError("the last attempt returns or raises")


class _Stop(Exception):  # noqa: N818 - not an error: it carries an answer out of the transaction
    def __init__(self, outcome: list[Committed] | Conflict) -> None:
        self.outcome = outcome


def _attempt(
    database: Database,
    changes: Sequence[TableChange],
    txn: str,
    names: Sequence[NameChange],
    own: Sequence[OwnWork],
    guard: Guard | None,
    *,
    repeated: bool,
    lost: bool,
) -> list[Committed] | Conflict:
    failpoint("commit.before_begin")
    if not (repeated or lost or names or own):
        done_at_once = commit_at_once(database, changes, txn, guard)
        if done_at_once is not None:
            _answer()
            return done_at_once
    ending = False
    try:
        with database.write() as session:
            held = _hold(session, changes, names)
            # asked under the lock: the lost attempt may have been on its way until a moment ago
            done = commits.by_transaction(session, txn) if repeated or lost else None
            if done is not None:
                raise _Stop(earlier(session, changes, txn, done, replayed=not lost))
            if repeated or lost:
                # a key: who has the same id at the same moment, and perhaps no head in common, waits here
                _note(session, txn, changes)
            seen = _seen(changes, held)
            failpoint("commit.locked")
            if (done_before := applications(session, seen, changes)) is not None:
                raise _Stop(done_before)
            for one, change in zip(seen, changes, strict=True):
                if one is None:
                    continue
                _check(session, one, change)
                if guard is not None and change.steps and guard(one.table, one.table.head.version):
                    raise LogAheadError(one.table)
            if names:
                change_names(session, held, names)
            locked = _made(session, seen, changes, names)
            with session.batch(1):
                results = [
                    ratify_change(session, one, change, txn)
                    for one, change in zip(locked, changes, strict=True)
                ]
                if not (repeated or lost):
                    _note(session, txn, changes)
            for work in own:
                work(session)
            failpoint("commit.before_commit")
            ending = True
    except _Stop as stop:
        return stop.outcome
    except DeltaSqlError:
        raise  # the engine knows what became of its transaction
    except Exception as error:
        if ending:
            raise commit_interrupted(error) from error
        raise
    _answer()
    return results


def _note(session: Session, txn: str, changes: Sequence[TableChange]) -> None:
    commits.insert_transaction(session, txn, len(changes), fresh=True)
    for copy in (c.copy for c in changes):
        if copy is not None and copy.txn_uuid is not None:
            commits.insert_transaction(session, copy.txn_uuid, 1, fresh=False)


def _answer() -> None:
    """The moment at which a commit stands, and nobody has been told."""
    try:
        failpoint("commit.after")
    except Exception as error:
        raise CommitUnknownError("the answer of the commit was lost") from error


def _hold(
    session: Session, changes: Sequence[TableChange], names: Sequence[NameChange]
) -> dict[int, LockedTable]:
    """Hold the heads of the tables that exist."""
    existing = [c.table.table_id for c in changes if not isinstance(c.table, NewTable)]
    existing += [n.table.table_id for n in names]
    return registry.lock(session, existing) if existing else {}


def _seen(changes: Sequence[TableChange], held: Mapping[int, LockedTable]) -> list[LockedTable | None]:
    """The table of each change as it is now; None for one that is still to be made."""
    return [
        None
        if isinstance(change.table, NewTable)
        # what others made belongs to a place and not to a name
        else still_there(held, change.table, named=change.made is None)
        for change in changes
    ]


def _made(
    session: Session,
    seen: Sequence[LockedTable | None],
    changes: Sequence[TableChange],
    names: Sequence[NameChange],
) -> list[LockedTable]:
    """Every table of the changes by its new name, new ones made."""
    called = {n.table.table_id: n.new_name for n in names}
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
    if locked.frozen and change.steps and change.copy is None:
        state, reason = _state(session, table)
        registry.refuse_followed(replace(table, state=state))
        raise TableFrozenError(
            f"the table is frozen: {reason}",
            table=table.name,
            version=table.head.version,
            suggestion=FROZEN_HINT,
        )
    if change.exact and change.read_version != table.head.version:
        raise _Stop(
            Conflict(
                "version_taken",
                table.head.version,
                operation=concurrent_commits.operation(session, table.table_id, table.head.version),
                detail=f"version {change.read_version + 1} exists already",
                table=table.name,
            )
        )
    found = conflict(session, locked, change, lambda: protocol_now(session, table)) or vacuumed_files(
        session, locked, change
    )
    if found is not None:
        raise _Stop(found)


def _state(session: Session, table: Table) -> tuple[str, str | None]:
    """A frozen table's state, and why it is in it."""
    sql = statements("tables", session.engine.dialect.name)["by name"]
    row = session.row(sql, (table.name,))
    return ("frozen", None) if row is None else (row[3], row[4])
