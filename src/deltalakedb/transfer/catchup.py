"""Catching up: commits that others made since an import are brought in by the one commit path."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deltalakedb.coordinator import guard
from deltalakedb.exceptions import (
    TableFrozenError,
    UnsupportedOperationError,
    VerificationError,
)
from deltalakedb.metastore import outbox, registry
from deltalakedb.mirror import outside
from deltalakedb.storage.store import open_store
from deltalakedb.transfer.memory import peak_bytes
from deltalakedb.transfer.report import ImportReport
from deltalakedb.transfer.verify import verify_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import Table
    from deltalakedb.transfer.findings import Level


def catch_up_table(
    database: Database, table: Table, location: str, options: Mapping[str, str] | None, level: Level
) -> ImportReport:
    """Bring in what the log has beyond the catalog; a look at its end where there is nothing."""
    began = time.perf_counter()
    registry.refuse_elsewhere(table, location)
    brought: tuple[int, ...] = ()
    checked = None
    outside.refuse_rewritten(database, table, open_store(table.location, options))
    if outside.is_ahead(database, table, options):
        brought = _bring(database, table, options)
        table = registry.find(database, table.name)
        from deltalakedb.transfer.choosing import EngineWish  # Arrow's functions cost time to import

        # others may have gone on since: that is for the next time, and no difference
        checked = verify_head(database, table, level, options, wish=EngineWish())
        if not checked.ok:
            raise VerificationError(
                f"after catching up the catalog is not what the log says: {checked.differences[0].detail}",
                table=table.name,
                version=table.head.version,
                suggestion="`deltasql verify` shows all differences",
                report=checked,
            )
    head = table.head
    return ImportReport(
        table.name,
        table.location,
        head.version,
        head.first_version,
        len(brought),
        head.num_files,
        head.size_bytes,
        round(time.perf_counter() - began, 3),
        action="caught up" if brought else "unchanged",
        digest=None if checked is None else checked.digest,
        verification=checked,
        peak_memory_bytes=peak_bytes(),
    )


def _bring(database: Database, table: Table, options: Mapping[str, str] | None) -> tuple[int, ...]:
    if waiting := outbox.lag(database, table.table_id).versions:
        raise UnsupportedOperationError(
            f"{waiting} commits of the catalog wait to be published, and others wrote to the log",
            table=table.name,
            suggestion="`deltasql mirror run` publishes; where both sides went on, `deltasql mirror resolve`",
        )
    if table.state == "frozen":
        # it was frozen because the log is ahead: that is what is mended here, and nothing else
        try:
            return guard.recover(database, table.name, storage_options=options).versions
        except TableFrozenError as error:
            error.suggestion = error.suggestion or "look at `deltasql mirror status`"
            raise
    return guard.adopt(database, table.name, options, origin="import").versions
