"""Pruning: the bytes of commits that are safe in the log need not stay in the catalog."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import TableFrozenError, TableMissingError
from deltalakedb.metastore import audit, outbox, registry

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was pruned.

    Attributes:
        table: The table.
        upto: The newest version whose bytes may go; -1 where none may.
        commits: How many lost their bytes, or would.
    """

    table: str
    upto: int
    commits: int

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def prune(database: Database, name: str, *, dry_run: bool = False) -> Pruned:
    """Delete the bytes of published commits that a published checkpoint covers.

    Their sha256 and length stay for ever, and so does everything that tables are read from. What goes is what
    `repair` and `rebuild` would write such commits from.

    Args:
        database: The catalog.
        name: The table.
        dry_run: Only count.
    """
    table = registry.find(database, name)
    status = outbox.status_of(database, name)
    if status is None:
        raise TableMissingError(f"the table {name!r} was dropped a moment ago", table=name)
    if status.state == "frozen":
        raise TableFrozenError(
            f"the table is frozen: {status.state_reason}",
            table=name,
            suggestion="resolve that first: its bytes may be needed for it",
        )
    waiting = outbox.waiting_versions(database, table.table_id)
    # the checkpoint's own version stays, for it is what a rebuilt log goes on from
    covered = min(status.checkpoint_version, status.published_version) - 1
    upto = max(-1, min(covered, *(v - 1 for v in waiting[:1]))) if waiting else max(-1, covered)
    with database.write() as session:
        row = session.row(database.sql("commits", "kept bytes"), (table.table_id, upto))
        count = 0 if row is None else int(row[0])
        if count and not dry_run:
            session.run(database.sql("commits", "prune bytes"), (table.table_id, upto))
            audit.record(session, "prune", table_id=table.table_id, table=name, version=upto, commits=count)
    return Pruned(name, upto, count)
