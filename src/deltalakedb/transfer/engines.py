"""The seam between the pipeline and who does the loading: one process here, a cluster elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from deltalakedb.protocol.paths import TablePaths

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.protocol.digest import FileDigest
    from deltalakedb.transfer.data_rows import RowDigest
    from deltalakedb.transfer.plan import ImportPlan
    from deltalakedb.transfer.proofs import BaseProof
    from deltalakedb.transfer.report import ImportProgress


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Everything that an engine needs to load a table.

    Attributes:
        database: The catalog.
        row: The import; its ``table_id`` is reserved, its receipts say what is loaded already.
        plan: What to load.
        reader: The source's log.
        lease: The right to load, checked inside every batch's transaction.
        tell: Called with how far it is.
        rate_limit: File actions a second at most; 0 is no limit.
        prove: The load will be compared by a digest: it may be counted while it passes.
    """

    database: Database
    row: ImportRow
    plan: ImportPlan
    reader: FileTxnLogReader
    lease: Lease
    tell: Callable[[ImportProgress], None]
    rate_limit: int = 0
    prove: bool = False

    @property
    def paths(self) -> TablePaths:
        """Where the table's files may be."""
        outside = self.database.engine.config.catalog.allow_outside_paths
        return TablePaths(self.row.location, outside, self.row.name)


class LoadEngine(Protocol):
    """Brings every batch of a plan into the catalog that has no receipt yet.

    An engine writes each batch in one transaction with its receipt (`catalog.imports.write_receipt`), after
    `catalog.imports.require` has found the lease to be held. The batches of the base may be written in any
    order; the tail follows in the order of its versions.
    """

    name: str

    def load(self, task: LoadTask) -> None:
        """Load what is missing; returns when every batch has its receipt."""
        ...

    def log_digest(
        self, reader: FileTxnLogReader, version: int, *, tick: Callable[[], None]
    ) -> FileDigest | None:
        """The digest of the files that live at a version by the log; None leaves that to the caller."""
        ...

    def proof(self, version: int) -> BaseProof | None:
        """What was counted of the log while it was loaded; None where that does not tell of the version."""
        ...

    def row_digest(self, location: str, version: int) -> RowDigest | None:
        """The digest of the rows that a plain table has at a version; None leaves that to the caller."""
        ...
