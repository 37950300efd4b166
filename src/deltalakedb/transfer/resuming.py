"""Whether an interrupted import can go on: what it was loaded from must still be what the log holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.delta_log.commit_file import commit_digest
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import LogMissingError
from deltalakedb.metastore import commits, imports
from deltalakedb.transfer.plan import base_checkpoint, stamps_of

if TYPE_CHECKING:
    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.transfer.plan import ImportPlan


def outdated(database: Database, row: ImportRow, plan: ImportPlan, reader: FileTxnLogReader) -> str | None:
    """Why what an import has loaded so far is of no use any more; None where it can be gone on with.

    A batch is a run of a checkpoint's rows or of commits: in another log, or in a checkpoint that was written
    again in another order, the same run is something else.
    """
    done = imports.receipts(database, row.import_id)
    if not done:
        return None
    listing = list_log(reader.store)
    if plan.base == "checkpoint":
        try:
            stamps = stamps_of(base_checkpoint(listing, plan))
        except LogMissingError:
            return f"the checkpoint of version {plan.first_version} is gone"
        if plan.stamps and stamps != plan.stamps:
            return f"the checkpoint of version {plan.first_version} was written anew"
    newest = max((r.ends for r in done if r.kind == "tail"), default=plan.first_version)
    if newest > listing.latest:
        return f"the log ends before version {newest}, which is loaded"
    for version in sorted({plan.first_version, newest} & listing.commits.keys()):
        known = commits.by_id(database, row.table_id, version)
        if known is None or known.sha256 is None:
            continue  # what came from a checkpoint alone has none
        if commit_digest(reader.store, commit_path(version)).sha256 != known.sha256:
            return f"version {version} of the log was written anew"
    return None
