"""The SQL-backed writer of the transaction log's seam: a thin door to the one commit path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.catalog import snapshots
from deltalakedb.commit.changes import NewTable, TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import ProtocolError, TableMissingError
from deltalakedb.protocol.log import Committed, Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.protocol.actions import Action


class SqlTxnLogWriter:
    """Appends commits to a table in the catalog; version 0 creates the table.

    Args:
        database: The catalog.
        name: The table's name.
        location: The table's root, needed for version 0.
    """

    def __init__(self, database: Database, name: str, location: str) -> None:
        self.database = database
        self.name = name
        self.location = location

    def commit(self, version: int, actions: Sequence[Action]) -> Committed | Conflict:
        """Make ``actions`` the commit ``version``; a Conflict where that version is taken."""
        try:
            opened = snapshots.open_table(self.database, self.name)
        except TableMissingError:
            head, change = -1, TableChange(NewTable(self.name, self.location), actions)
        else:
            head, change = opened.snapshot.version, TableChange(opened.table, actions, opened.snapshot)
        if version <= head:
            return Conflict(
                "version_taken", version, detail=f"version {version} exists already", table=self.name
            )
        if version > head + 1:
            raise ProtocolError(
                f"version {version} would leave a gap after version {head}",
                table=self.name,
                version=version,
                suggestion=f"the next version is {head + 1}",
            )
        outcome = commit(self.database, [change])
        return outcome if isinstance(outcome, Conflict) else outcome[0]
