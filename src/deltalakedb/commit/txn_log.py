"""The SQL-backed writer of a transaction log, by the one commit path."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from deltalakedb.commit.request import CommitRequest, NewTable, Received, TableChange
from deltalakedb.exceptions import InvalidArgumentError, ProtocolError, TableExistsError, TableMissingError
from deltalakedb.metastore import commits, registry, snapshots
from deltalakedb.protocol.actions import encode_commit
from deltalakedb.protocol.features import FENCE
from deltalakedb.protocol.txn_log import Committed, Conflict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Action


class SqlTxnLogWriter:
    """Appends commits to a table in the catalog; version 0 creates the table.

    Args:
        database: The catalog.
        name: The table's name.
        location: The table's root, needed for version 0.
        commit: Commits a request, such as `Coordinator.ratify_or_conflict`.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        location: str,
        commit: Callable[[CommitRequest], list[Committed] | Conflict],
    ) -> None:
        self.database, self.name, self.location = database, name, location
        self._commit = commit

    def commit(self, version: int, actions: Sequence[Action]) -> Committed | Conflict:
        """Make ``actions`` the commit ``version``, byte for byte; a Conflict if that version is taken."""
        if version < 0:
            raise InvalidArgumentError(f"versions begin at 0, got {version}", table=self.name)
        self.database.ensure()
        table: Table | NewTable = NewTable(self.name, self.location)
        head, read = -1, None
        with suppress(TableMissingError):
            opened = snapshots.open_table(self.database, self.name)
            table, head, read = opened.table, opened.snapshot.version, opened.snapshot
        if version <= head:
            return self._taken(version, actions)
        if version > head + 1:
            raise ProtocolError(
                f"version {version} would leave a gap after version {head}",
                table=self.name,
                version=version,
                suggestion=f"the next version is {head + 1}",
            )
        origin = Received(encode_commit(actions), label="sql", handled_features=frozenset({FENCE}))
        try:
            outcome = self._commit(CommitRequest([TableChange(table, [actions], read, origin=origin)]))
        except TableExistsError as error:
            if version == 0 and error.table == self.name:
                with suppress(TableMissingError):
                    if registry.find(self.database, self.name).head.version >= 0:
                        return self._taken(version, actions)
            raise
        return self._taken(version, actions) if isinstance(outcome, Conflict) else outcome[0]

    def _taken(self, version: int, actions: Sequence[Action]) -> Committed | Conflict:
        """The earlier success of this very commit, or the Conflict with another one."""
        table = registry.find(self.database, self.name)
        winner = commits.one(self.database, table, version)
        if winner is not None and winner.sha256 == commits.digest(encode_commit(actions)):
            return Committed(version, winner.timestamp, replayed=True)
        return Conflict(
            "version_taken",
            version,
            operation=None if winner is None else winner.operation,
            detail=f"version {version} exists already",
            table=self.name,
        )
