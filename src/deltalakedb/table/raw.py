"""What stands in for delta-rs's raw table inside a SQL-backed DeltaTable."""

from __future__ import annotations

from typing import Any

from deltalakedb.table.raw_operations import RawOperations
from deltalakedb.table.raw_reads import RawReads
from deltalakedb.table.vacuum import vacuum


class RawProxy(RawReads, RawOperations):
    """Answers stock code that reaches for ``DeltaTable._table``.

    Questions are answered from SQL. Operations run on a scratch table of the candidate files and are
    committed in SQL. There is nothing else: what changes a scratch table would silently lose a write.
    """

    def vacuum(
        self,
        dry_run: bool,
        retention_hours: int | None = None,
        enforce_retention_duration: bool = True,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,  # noqa: ARG002 - the mirror does these jobs
        full: bool = False,
        keep_versions: Any = None,
    ) -> list[str]:
        """Delete files that no retained version needs."""
        return vacuum(
            self._owner,
            dry_run=dry_run,
            retention_hours=retention_hours,
            enforce=enforce_retention_duration,
            full=full,
            keep_versions=keep_versions,
            commit_properties=commit_properties,
        )
