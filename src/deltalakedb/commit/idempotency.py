"""Idempotency: commits made before, found again by the transaction's id or an application's version."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.commit.request import NewTable
from deltalakedb.exceptions import CommitError
from deltalakedb.metastore import concurrent_commits
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.actions import Txn
from deltalakedb.protocol.txn_log import Committed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.commit.request import TableChange
    from deltalakedb.metastore.commits import Achieved
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.rows import LockedTable

logger = logging.getLogger(__name__)


def already_applied(
    session: Session, seen: Sequence[LockedTable | None], changes: Sequence[TableChange]
) -> list[Committed] | None:
    """The earlier commits, if applications have recorded these versions already; else None.

    A lower version than the recorded one is a late repetition, and as much done as an equal one. A commit
    that another engine made is that engine's own decision: it is known again by its bytes.

    Raises:
        CommitError: Only some of the tables that are to be changed have it.
    """
    done, with_it, without, recorded = [], [], [], None
    for one, change in zip(seen, changes, strict=True):
        if one is None:
            done.append(Committed(-1, 0, replayed=True))
            without.append(change.table.name)
            continue
        found = None
        for action in () if change.is_foreign else change.actions:
            if isinstance(action, Txn):
                seen_version = concurrent_commits.application(session, one.table.table_id, action.app_id)
                if seen_version is not None and seen_version[0] >= action.version:
                    found, recorded = seen_version[1], action
        if found is not None:
            done.append(Committed(found, one.table.head.timestamp, replayed=True))
            with_it.append(one.table.name)
        else:
            done.append(Committed(one.table.head.version, one.table.head.timestamp, replayed=True))
            without += [one.table.name] if change.versions else []
    if recorded is None:
        return None
    if without:
        raise _partially_applied(recorded, with_it, without)
    logger.info(
        "version %d of application %s was committed before: nothing to do", recorded.version, recorded.app_id
    )
    return done


def _partially_applied(recorded: Txn, with_it: Sequence[str], without: Sequence[str]) -> CommitError:
    """The transaction can be neither skipped nor done, and trying again changes nothing."""
    return CommitError(
        f"version {recorded.version} of application {recorded.app_id!r} is recorded in {', '.join(with_it)} "
        f"and not in {', '.join(without)}: nothing was committed",
        suggestion="write to the tables that lack it in a transaction of their own, or give all writes of "
        "this one a version that none of its tables has (see DeltaTable.transaction_version)",
    )


def previous_result(
    session: Session, changes: Sequence[TableChange], txn: str, done: Achieved, *, replayed: bool
) -> list[Committed]:
    """What the first call with the same id committed.

    Raises:
        CommitError: It came back from the logs of some of its tables, and another one that is to be changed
            does not have it.
    """
    sql = statements("tables", session.engine.dialect.name)["by name"]
    out, without = [], []
    for change in changes:
        table = change.table
        if isinstance(table, NewTable):
            row = session.row(sql, (table.name,))
            table_id = None if row is None else row[0]
        else:
            table_id = table.table_id
        mine = [c for (of, _), c in done.commits.items() if of == table_id]
        without += [table.name] if change.versions and not mine else []
        out.append(max(mine, key=lambda c: c.version, default=Committed(change.read_version, 0)))
    if without and done.adopted:
        names = ", ".join(without)
        raise CommitError(
            f"the transaction {txn!r} was recovered from the log of another table, and {names} does not have "
            "it: nothing was committed",
            suggestion=f"run `deltasql mirror recover` on {names}, then repeat the transaction; if it "
            "never came there, write its part in a transaction with another id",
        )
    return [replace(c, replayed=replayed) for c in out]
