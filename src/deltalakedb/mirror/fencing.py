"""The fence: a writer feature that only the catalog's writers know, so that all others refuse to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.commit.changes import TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import ConflictError, UnsupportedOperationError
from deltalakedb.metastore import snapshots
from deltalakedb.mirror.folder import require_folder
from deltalakedb.mirror.outside import look_ahead
from deltalakedb.mirror.reconciler import reconcile
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.features import FENCE, SPARKS, with_writer_features, without_writer_feature
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.txn_log import Conflict
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.actions import Protocol

#: commits of others that may come in between
_ATTEMPTS = 5


def is_fenced(protocol: Protocol) -> bool:
    """Whether only writers of the catalog may write."""
    return FENCE in (protocol.writer_features or ())


def refuse_fenced(database: Database, table: Table) -> None:
    """Refuse to leave a fenced table to writers that cannot get in."""
    if is_fenced(snapshots.open_table(database, table.name).snapshot.protocol):
        raise UnsupportedOperationError(
            "the table is fenced: once it is dropped, nobody can write to it any more",
            table=table.name,
            suggestion="`deltasql mirror fence --remove` takes it away; or drop with force=True (`--force`)",
        )


def set_fence(database: Database, name: str, *, fenced: bool) -> int | None:
    """Put the fence up or take it away by a commit; its version, or None where there was nothing to do."""
    for attempt in range(_ATTEMPTS):
        opened = snapshots.open_table(database, name)
        options = database.engine.config.storage_options_for(opened.table.location)
        require_folder(database, opened.table, open_store(opened.table.location, options))
        if look_ahead(database, opened.table, options):
            opened = snapshots.open_table(database, name)
        before = opened.snapshot.protocol
        if is_fenced(before) == fenced:
            return None
        after = with_writer_features(before, [FENCE]) if fenced else without_writer_feature(before, FENCE)
        operation = "ADD FEATURE" if fenced else "DROP FEATURE"
        info = CommitInfo(extra={"operation": operation, "operationParameters": {"name": FENCE}})
        change = TableChange(opened.table, [info, after], opened.snapshot, NOTHING, kept=SPARKS)
        outcome = commit(database, [change])
        if not isinstance(outcome, Conflict):
            if database.engine.config.publish.mode != "off":
                reconcile(database, name)
            return outcome[0].version
        if attempt == _ATTEMPTS - 1:
            raise ConflictError(
                f"{outcome.detail}; version {outcome.version} was first",
                table=name,
                version=outcome.version,
                suggestion="try again when the table is quieter",
                kind=outcome.kind,
            )
    raise AssertionError("the last attempt returns or raises")
