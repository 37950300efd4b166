"""The SQL-backed writer of a transaction log: a thin door to the one commit path."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from deltalakedb.commit import committer
from deltalakedb.commit.request import CommitRequest, NewTable, Received, TableChange
from deltalakedb.exceptions import InvalidArgumentError, ProtocolError, TableExistsError, TableMissingError
from deltalakedb.metastore import commits, registry, snapshots
from deltalakedb.protocol.codec import encode_commit
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
        commit: Commits a request, by default without a look at the table's folder and log.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        location: str,
        *,
        commit: Callable[[CommitRequest], list[Committed] | Conflict] | None = None,
    ) -> None:
        self.database = database
        self.name = name
        self.location = location
        self._commit = commit or partial(committer.commit, database)

    def commit(self, version: int, actions: Sequence[Action]) -> Committed | Conflict:
        """Make ``actions`` the commit ``version``, byte for byte; a Conflict if that version is taken."""
        if version < 0:
            raise InvalidArgumentError(f"a version counts from 0, and {version} is below", table=self.name)
        self.database.ensure()
        try:
            opened = snapshots.open_table(self.database, self.name)
        except TableMissingError:
            head, read = -1, None
            table: Table | NewTable = NewTable(self.name, self.location)
        else:
            head, read, table = opened.snapshot.version, opened.snapshot, opened.table
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
            if version == 0 and error.table == self.name and self._exists():
                return self._taken(version, actions)
            raise
        return self._taken(version, actions) if isinstance(outcome, Conflict) else outcome[0]

    def _exists(self) -> bool:
        try:
            return registry.find(self.database, self.name).head.version >= 0
        except TableMissingError:
            return False

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
