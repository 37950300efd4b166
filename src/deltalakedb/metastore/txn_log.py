"""The SQL-backed transaction log: the same methods as the file-backed one, answered by the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore import commits, files, registry, snapshots
from deltalakedb.protocol.actions import decode_commit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import OpenTable, Table
    from deltalakedb.protocol.actions import Action, Add, DomainMetadata, Remove, Txn
    from deltalakedb.protocol.txn_log import Commit, Snapshot


class SqlTxnLogReader:
    """Reads a table's transaction log from the catalog.

    Example:
        >>> log = SqlTxnLogReader(database, "sales.orders")
        >>> log.snapshot().metadata.partition_columns
    """

    def __init__(self, database: Database, name: str) -> None:
        self.database = database
        self.name = name

    def open(self, version: int | None = None) -> OpenTable:
        return snapshots.open_table(self.database, self.name, version)

    def _table(self) -> Table:
        return registry.find(self.database, self.name)

    def latest_version(self) -> int:
        return self._table().head.version

    def versions(self) -> Sequence[int]:
        return commits.versions(self.database, self._table())

    def version_at(self, timestamp_ms: int) -> int:
        return snapshots.version_at(self.database, self._table(), timestamp_ms)

    def snapshot(self, version: int | None = None) -> Snapshot:
        return self.open(version).snapshot

    def files(self, version: int | None = None) -> Iterator[Add]:
        return files.read_adds(self.database, self.open(version))

    def tombstones(self, version: int | None = None) -> Iterator[Remove]:
        opened = self.open(version)
        return files.tombstones(self.database, opened.table, opened.snapshot.version)

    def txns(self, version: int | None = None) -> Mapping[str, Txn]:
        opened = self.open(version)
        return snapshots.txns(self.database, opened.table, opened.snapshot.version)

    def domains(self, version: int | None = None) -> Mapping[str, DomainMetadata]:
        opened = self.open(version)
        return snapshots.domains(self.database, opened.table, opened.snapshot.version)

    def history(self, limit: int | None = None) -> Sequence[Commit]:
        return [row.commit() for row in commits.history(self.database, self._table(), limit=limit)]

    def commit_bytes(self, version: int) -> bytes:
        return commits.commit_bytes(self.database, self._table(), version)

    def actions(self, version: int) -> Sequence[Action]:
        return decode_commit(self.commit_bytes(version), source=f"{self.name} version {version}")
