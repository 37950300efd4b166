"""Commits that were made before: found again by the transaction's id, or by an application's version."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.commit.changes import NewTable
from deltalakedb.exceptions import CommitError
from deltalakedb.metastore import concurrent_commits
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.actions import Txn
from deltalakedb.protocol.log import Committed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.commit.changes import TableChange
    from deltalakedb.metastore.commits import Achieved
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.values import LockedTable

logger = logging.getLogger(__name__)


def applications(
    session: Session, seen: Sequence[LockedTable | None], changes: Sequence[TableChange]
) -> list[Committed] | None:
    """Whether applications have recorded these versions already: then there is nothing to do.

    A lower version than the recorded one is a late repetition, and as much done as an equal one. A commit
    that another engine made is that engine's own decision: it is known again by its bytes.

    Raises:
        CommitError: Only some of the tables that are to be changed have it.
    """
    done, with_it, without, late = [], [], [], None
    for one, change in zip(seen, changes, strict=True):
        if one is None:
            done.append(Committed(-1, 0, replayed=True))
            without.append(change.table.name)
            continue
        found = None
        for action in change.all_actions if change.made is None else ():
            if isinstance(action, Txn):
                recorded = concurrent_commits.application(session, one.table.table_id, action.app_id)
                if recorded is not None and recorded[0] >= action.version:
                    found, late = recorded[1], action
        if found is not None:
            done.append(Committed(found, one.table.head.timestamp, replayed=True))
            with_it.append(one.table.name)
        else:
            done.append(Committed(one.table.head.version, one.table.head.timestamp, replayed=True))
            without += [one.table.name] if change.steps else []
    if late is None:
        return None
    if without:
        raise _partly(late, with_it, without)
    logger.info("version %d of application %s was committed before: nothing to do", late.version, late.app_id)
    return done


def _partly(late: Txn, with_it: Sequence[str], without: Sequence[str]) -> CommitError:
    """Neither is a repetition to be left away nor a new one to be done, and trying again changes nothing."""
    return CommitError(
        f"version {late.version} of application {late.app_id!r} is recorded in {', '.join(with_it)} "
        f"and not in {', '.join(without)}: nothing was committed",
        suggestion="write to the tables that lack it in a transaction of their own, or give all writes of "
        "this one a version that none of its tables has (DeltaTable.transaction_version tells)",
    )


def earlier(
    session: Session, changes: Sequence[TableChange], txn: str, done: Achieved, *, replayed: bool
) -> list[Committed]:
    """What the first call of a repeated one achieved.

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
        without += [table.name] if change.steps and not mine else []
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
