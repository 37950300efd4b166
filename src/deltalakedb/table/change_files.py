"""Which files hold the changes of a range of versions: from the commits that the catalog keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import LogError, ProtocolError, VersionMissingError
from deltalakedb.metastore import commits, snapshots
from deltalakedb.protocol.actions import Add, Cdc, CommitInfo, Metadata, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.dv import inline_dv
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.properties import is_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.actions import Action, DeletionVector
    from deltalakedb.table.vectors import Vectors

ENABLED = "delta.enableChangeDataFeed"


@dataclass(frozen=True, slots=True)
class Version:
    """One commit of the range: when it was made, and its actions."""

    version: int
    timestamp: int
    actions: Sequence[Action]


@dataclass(frozen=True, slots=True)
class Change:
    """A file whose rows are changes of one version.

    Attributes:
        version: The version.
        timestamp: Its time in epoch milliseconds.
        kind: ``insert`` or ``delete``; None for a change data file, which says so row by row.
        add: The file as an add action; a deletion vector in it takes the other rows out.
    """

    version: int
    timestamp: int
    kind: str | None
    add: Add


class ChangeLog:
    """The commits of a table as changes of rows.

    Args:
        database: The catalog.
        table: The table.
        storage_options: Options for the table's store, for versions older than SQL's first.
    """

    def __init__(
        self, database: Database, table: Table, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._database = database
        self._table = table
        self._log = FileTxnLogReader(table.location, storage_options)

    def versions(self, first: int, last: int) -> Iterator[Version]:
        """The commits from a version to another, oldest first.

        Raises:
            VersionMissingError: Neither SQL nor the log has one of them.
        """
        for version in range(first, min(last + 1, self._table.head.first_version)):
            yield self._logged(version)
        for row, data in commits.between(self._database, self._table, first, last):
            if data is None:
                # what was published may be pruned here: its bytes are in the log
                yield self._logged(row.version, row.timestamp)
                continue
            actions = decode_commit(data, source=f"{self._table.name} version {row.version}")
            yield Version(row.version, _moment(actions, row.timestamp), actions)

    def _logged(self, version: int, timestamp: int = 0) -> Version:
        try:
            actions = self._log.actions(version)
        except (LogError, VersionMissingError) as error:
            raise self._lost(version) from error
        return Version(version, _moment(actions, timestamp), actions)

    def _lost(self, version: int) -> VersionMissingError:
        """The error for a version whose commit neither SQL nor the log has."""
        if version < self._table.head.first_version:
            return snapshots.missing_version(self._table, version)
        try:
            logged = set(self._log.commit_versions())
        except LogError:
            logged = set()
        gone = (v for v in commits.without_bytes(self._database, self._table) if v not in logged)
        return VersionMissingError(
            f"the changes of version {version} are no longer kept: its commit was pruned from the catalog "
            "and deleted from _delta_log by log cleanup",
            table=self._table.name,
            version=version,
            suggestion=f"begin at version {next(gone, version) + 1} or later; to keep changes for longer, "
            "raise the table's delta.logRetentionDuration",
        )

    def metadata(self, version: int) -> Metadata:
        """The metadata that hold at a version.

        Raises:
            VersionMissingError: Neither SQL nor the log has it.
        """
        try:
            return snapshots.open_table(self._database, self._table.name, version).snapshot.metadata
        except VersionMissingError as error:
            try:
                return self._log.snapshot(version).metadata
            except (LogError, VersionMissingError):
                raise error from None

    def check_enabled(self, first: int) -> None:
        """Refuse a range that begins where changes were not recorded.

        Raises:
            ProtocolError: The change data feed was off at the first version.
        """
        if not is_on(self.metadata(first), ENABLED):
            raise _not_recorded(self._table.name, first)

    def changes(self, version: Version, vectors: Vectors) -> Iterator[Change]:
        """The files that hold what one version changed.

        Raises:
            ProtocolError: The version switched the change data feed off.
        """
        for action in version.actions:
            if isinstance(action, Metadata) and not is_on(action, ENABLED):
                raise _not_recorded(self._table.name, version.version)
        written = [a for a in version.actions if isinstance(a, Cdc)]
        if written:
            # they are the whole truth: rows that were only copied stand in the data files too
            yield from (_change(version, None, _of_cdc(c)) for c in written)
            return
        removed = {
            canonical_path(a.path): a for a in version.actions if isinstance(a, Remove) and a.data_change
        }
        for add in version.actions:
            if not isinstance(add, Add) or not add.data_change:
                continue
            before = removed.pop(canonical_path(add.path), None)
            if before is None:
                yield _change(version, "insert", add)
            else:
                yield from _between(version, before.deletion_vector, add, vectors)
        gone = list(removed.values())
        known = self._known(version.version, gone)
        for remove in gone:
            yield _change(version, "delete", known.get(remove.key) or _of_remove(remove))

    def _known(self, version: int, removed: Sequence[Remove]) -> dict[tuple[str, str], Add]:
        """The adds of removes that do not describe their files, as the protocol lets them."""
        poor = {r.key for r in removed if r.partition_values is None or r.size is None}
        if not poor or version == 0:
            return {}
        from deltalakedb.table.source import SqlSource

        try:
            before = SqlSource(
                self._database, snapshots.open_table(self._database, self._table.name, version - 1)
            ).adds()
        except VersionMissingError:
            before = self._log.files(version - 1)
        return {a.key: a for a in before if a.key in poor}


def _between(version: Version, before: DeletionVector | None, add: Add, vectors: Vectors) -> Iterator[Change]:
    """A file that stayed and got another deletion vector: the rows that vanished or came back."""
    old = BitMap64() if before is None else vectors.rows(before)
    new = BitMap64() if add.deletion_vector is None else vectors.rows(add.deletion_vector)
    for kind, rows in (("delete", new - old), ("insert", old - new)):
        if rows:
            others = BitMap64(range(vectors.num_rows(add))) - rows
            others.run_optimize()
            yield _change(version, kind, replace(add, deletion_vector=inline_dv(others) if others else None))


def _change(version: Version, kind: str | None, add: Add) -> Change:
    return Change(version.version, version.timestamp, kind, add)


def _of_cdc(cdc: Cdc) -> Add:
    return Add(
        path=cdc.path,
        partition_values=cdc.partition_values,
        size=cdc.size,
        modification_time=0,
        data_change=False,
    )


def _of_remove(remove: Remove) -> Add:
    return Add(
        path=remove.path,
        partition_values=remove.partition_values or {},
        size=remove.size or 0,
        modification_time=0,
        data_change=True,
        stats=remove.stats,
        deletion_vector=remove.deletion_vector,
    )


def _moment(actions: Sequence[Action], fallback: int) -> int:
    """A commit's time as its writer gave it, which is what other readers of the feed show."""
    for action in actions:
        if isinstance(action, CommitInfo):
            return action.in_commit_timestamp or action.timestamp or fallback
    return fallback


def _not_recorded(table: str, version: int) -> ProtocolError:
    return ProtocolError(
        f"Change Data not enabled for version: {version}",
        table=table,
        version=version,
        suggestion=f"begin at a version since which {ENABLED} is 'true'",
    )
