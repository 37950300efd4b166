"""The fence: a writer feature that only the catalog's writers know, so that all others refuse to write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deltalakedb.commit.request import CommitRequest, TableChange, Write
from deltalakedb.coordinator.coordinator import Coordinator, require_writable
from deltalakedb.exceptions import ConflictError, UnsupportedOperationError
from deltalakedb.metastore import snapshots
from deltalakedb.protocol.actions import CommitInfo, Protocol
from deltalakedb.protocol.features import FENCE, SPARK_FEATURES, with_writer_features, without_writer_feature
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.retry import Retries

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table

#: conflicting commits of other writers that may come in between
_RETRIES = 4


def is_fenced(protocol: Protocol) -> bool:
    return FENCE in (protocol.writer_features or ())


def refuse_fenced(database: Database, table: Table) -> None:
    """Refuse to leave a fenced table to writers that cannot get in."""
    if is_fenced(snapshots.open_table(database, table.name).snapshot.protocol):
        raise UnsupportedOperationError(
            "the table is fenced: once it is dropped, no engine can write to it",
            table=table.name,
            suggestion="`deltasql mirror fence --remove` removes it; or drop with force=True (`--force`)",
        )


def set_fence(database: Database, name: str, *, fenced: bool) -> int | None:
    """Add or remove the fence by a commit; its version, or None if there was nothing to do."""
    coordinator, attempts = Coordinator(database), Retries(_RETRIES)
    while True:
        opened = snapshots.open_table(database, name)
        table, before = opened.table, opened.snapshot.protocol
        require_writable(database, table, coordinator.store(table))
        if is_fenced(before) == fenced:
            return None
        after = with_writer_features(before, [FENCE]) if fenced else without_writer_feature(before, FENCE)
        operation = "ADD FEATURE" if fenced else "DROP FEATURE"
        info = CommitInfo(extra={"operation": operation, "operationParameters": {"name": FENCE}})
        origin = Write(handled_features=SPARK_FEATURES)
        change = TableChange(table, [[info, after]], opened.snapshot, NOTHING, origin)
        try:
            return coordinator.commit(CommitRequest([change]))[0].version
        except ConflictError as error:
            time.sleep(attempts.pause(error))
