"""The last phase of an import: a table that is loaded and verified becomes visible, all at once."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import VerificationError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import audit, imports
from deltalakedb.metastore.values import Head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.transfer.findings import VerifyReport
    from deltalakedb.transfer.plan import ImportPlan


def counted_head(
    database: Database, row: ImportRow, timestamp: int, plan: ImportPlan, report: VerifyReport
) -> tuple[Head, int]:
    """The head that the receipts add up to, and the first sequence number that is free.

    Args:
        database: The catalog.
        row: The import.
        timestamp: When its newest version was committed.
        plan: What was loaded.
        report: What was verified.

    Raises:
        VerificationError: The receipts tell of other files than those that were verified.
    """
    done = imports.receipts(database, row.import_id)
    head = Head(
        plan.version,
        timestamp,
        plan.first_version,
        sum(r.num_files for r in done),
        sum(r.size_bytes for r in done),
        sum(r.num_records for r in done),
        sum(r.files_without_count for r in done),
    )
    if (head.num_files, head.size_bytes) != (report.num_files, report.size_bytes):
        raise VerificationError(
            f"the receipts tell of {head.num_files} files, the catalog holds {report.num_files}",
            table=row.name,
            suggestion=f"roll the import back with `deltasql rollback {row.name}` and begin again",
        )
    return head, max((r.next_file_seq for r in done), default=0)


def show(
    database: Database,
    lease: Lease,
    row: ImportRow,
    head: Head,
    report: VerifyReport,
    next_file_seq: int,
    details: Mapping[str, Any],
    *,
    following: bool,
) -> None:
    """Make the table visible, in one transaction."""
    with database.write() as session:
        imports.require(session, lease)
        imports.show_table(
            session,
            row,
            head,
            next_file_seq=next_file_seq,
            shape=uuid.uuid4().hex,
            following=following,
        )
        imports.set_phase(session, row, "finalized", digest=report.digest, details=details)
        audit.record(
            session,
            "import",
            table_id=row.table_id,
            table=row.name,
            version=head.version,
            txn=row.import_id,
            first_version=head.first_version,
            files=head.num_files,
            digest=report.digest,
        )
        failpoint("import.before_finalize")
