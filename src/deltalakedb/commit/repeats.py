"""Commits that were made before: found again by the transaction's id, or by an application's version."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.catalog import winners
from deltalakedb.catalog.statements import statements
from deltalakedb.commit.changes import NewTable
from deltalakedb.protocol.actions import Txn
from deltalakedb.protocol.log import Committed, Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.catalog.values import LockedTable
    from deltalakedb.commit.changes import TableChange

logger = logging.getLogger(__name__)


def applications(
    session: Session, seen: Sequence[LockedTable | None], changes: Sequence[TableChange]
) -> list[Committed] | Conflict | None:
    """Whether applications have recorded these versions already: then there is nothing to do.

    A lower version than the recorded one is a late repetition, and as much done as an equal one. A commit
    that another engine made is that engine's own decision: it is known again by its bytes.
    """
    done, fresh, late = [], 0, None
    for one, change in zip(seen, changes, strict=True):
        if one is None:
            done.append(Committed(-1, 0, replayed=True))
            fresh += 1
            continue
        found = None
        for action in change.all_actions if change.made is None else ():
            if isinstance(action, Txn):
                recorded = winners.application(session, one.table.table_id, action.app_id)
                if recorded is not None and recorded[0] >= action.version:
                    found, late = recorded[1], action
        if found is not None:
            done.append(Committed(found, one.table.head.timestamp, replayed=True))
        else:
            done.append(Committed(one.table.head.version, one.table.head.timestamp, replayed=True))
            fresh += bool(change.steps)
    if late is None:
        return None
    if fresh:
        return Conflict(
            "concurrent_transaction",
            max(d.version for d in done),
            detail=f"version {late.version} of application {late.app_id!r} is recorded in some of the tables",
        )
    logger.info("version %d of application %s was committed before: nothing to do", late.version, late.app_id)
    return done


def earlier(
    session: Session,
    changes: Sequence[TableChange],
    done: dict[tuple[int, int], Committed],
    *,
    replayed: bool,
) -> list[Committed]:
    """What the first call of a repeated one achieved."""
    sql = statements("tables", session.engine.dialect.name)["by name"]
    out = []
    for change in changes:
        table = change.table
        if isinstance(table, NewTable):
            row = session.row(sql, (table.name,))
            table_id = None if row is None else row[0]
        else:
            table_id = table.table_id
        mine = [c for (of, _), c in done.items() if of == table_id]
        out.append(max(mine, key=lambda c: c.version, default=Committed(change.read_version, 0)))
    return [replace(c, replayed=replayed) for c in out]
