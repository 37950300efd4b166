"""Drift: does `_delta_log` say at every version what the catalog says?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.catalog import commits, registry
from deltalakedb.catalog.commits import digest
from deltalakedb.catalog.txn_log import SqlTxnLogReader
from deltalakedb.exceptions import DeltaSqlError, StorageMissingError, VersionMissingError
from deltalakedb.log.listing import list_log
from deltalakedb.log.names import commit_path
from deltalakedb.log.reader import FileTxnLogReader
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalakedb.catalog.commits import CommitRow
    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.values import Table
    from deltalakedb.storage.store import Store

Kind = Literal["missing", "damaged", "foreign", "ahead", "checkpoint", "state"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: ``missing`` or ``damaged`` files can be repaired; ``foreign`` commits stand in the place of
            ours, ``ahead`` beyond them; ``checkpoint`` and ``state`` replay to something else.
        version: The version concerned.
        detail: What was seen.
    """

    kind: Kind
    version: int
    detail: str


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What a comparison of log and catalog found."""

    table: str
    versions_checked: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether log and catalog agree."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"ok": self.ok, **asdict(self)}


def verify(
    database: Database,
    name: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    replay: bool = True,
) -> DriftReport:
    """Compare a table's log with the catalog, version by version.

    Args:
        database: The catalog.
        name: The table.
        storage_options: Options for the object store.
        replay: Also replay the log, and each checkpoint, and compare live files, metadata and protocol.
    """
    table = registry.find(database, name)
    store = open_store(table.location, storage_options)
    rows = commits.history(database, table, upto=table.published_version)
    found = list(_files(database, store, table, rows))
    if replay and not any(f.kind in ("missing", "damaged", "foreign") for f in found):
        found += _replays(database, store, table)
    return DriftReport(name, len(rows), tuple(sorted(found, key=lambda f: f.version)))


def _files(database: Database, store: Store, table: Table, rows: list[CommitRow]) -> Iterator[Finding]:
    listing = list_log(store)
    covered = max(listing.checkpoints, default=-1)
    for row in rows:
        if row.sha256 is None:
            continue  # imported from a checkpoint: there never were bytes
        try:
            data = store.get(commit_path(row.version))
        except StorageMissingError:
            # cleaning up is every engine's right, below a checkpoint
            if row.version >= covered:
                yield Finding("missing", row.version, "the commit file is not there")
            continue
        if digest(data) != row.sha256:
            yield Finding(*_other(database, table, row.version, data))
    if store.exists(commit_path(table.head.version + 1)):
        yield Finding("ahead", table.head.version + 1, "the log has a version that the catalog did not make")


def _other(database: Database, table: Table, version: int, data: bytes) -> tuple[Kind, int, str]:
    """What other bytes are: damage, or somebody's commit."""
    try:
        decode_commit(data, source=commit_path(version))
    except DeltaSqlError as error:
        return "damaged", version, error.message
    try:
        if commits.commit_bytes(database, table, version).startswith(data):
            return "damaged", version, "the commit file is cut short"
    except VersionMissingError:
        pass  # pruned: only its digest is known
    return "foreign", version, "another commit stands in the place of ours"


def _replays(database: Database, store: Store, table: Table) -> Iterator[Finding]:
    """Replay the log from every checkpoint, and compare with SQL."""
    ours, theirs = SqlTxnLogReader(database, table.name), FileTxnLogReader(table.location, store=store)
    listing = list_log(store)
    wanted = {table.published_version, *listing.checkpoints}
    for version in sorted(v for v in wanted if table.head.first_version <= v <= table.published_version):
        kind: Kind = "checkpoint" if version in listing.checkpoints else "state"
        try:
            differs = _differs(ours, theirs, version)
        except DeltaSqlError as error:
            yield Finding(kind, version, error.message)
        else:
            if differs:
                yield Finding(kind, version, differs)


def _differs(ours: SqlTxnLogReader, theirs: FileTxnLogReader, version: int) -> str | None:
    mine, other = ours.snapshot(version), theirs.snapshot(version)
    if mine.metadata != other.metadata:
        return "the metadata differs"
    if mine.protocol != other.protocol:
        return "the protocol differs"
    left = {(canonical_path(a.path), a.dv_id) for a in ours.files(version)}
    right = {(canonical_path(a.path), a.dv_id) for a in theirs.files(version)}
    if left != right:
        lost, extra = len(left - right), len(right - left)
        return f"the log lacks {lost} files that the catalog has, and has {extra} that it lacks"
    return None
