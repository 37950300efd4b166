"""What stands in for delta-rs's raw table inside a SQL-backed DeltaTable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import UnsupportedOperationError
from deltalakedb.table.hooks import QUIET, Hooks
from deltalakedb.table.merging import MergePlan
from deltalakedb.table.new_tables import quiet
from deltalakedb.table.operations import rewrite
from deltalakedb.table.raw_reads import RawReads
from deltalakedb.table.vacuum import vacuum

if TYPE_CHECKING:
    from deltalakedb.table.operations import Stage


class RawProxy(RawReads):
    """Answers stock code that reaches for ``DeltaTable._table``.

    Questions are answered from SQL. Operations run on a scratch table of the candidate files and are
    committed in SQL. Whatever else would change the scratch table, and so silently lose a write, is refused.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedOperationError(
            f"{name} is not offered on SQL-backed tables yet",
            table=self._owner.name,
            suggestion="write, delete, update and merge are; other operations are to come",
        )

    # ---- operations ------------------------------------------------------------------------------------

    def delete(
        self,
        predicate: str | None = None,
        writer_properties: Any = None,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> Any:
        """Delete rows."""
        self._owner._refresh()
        where = self._owner._predicate_or_all(predicate)

        def run(stage: Stage) -> Any:
            return stage.raw.delete(predicate, writer_properties, commit_properties, QUIET)

        return rewrite(self._owner, where, run, hooks=Hooks.of(post_commithook_properties))

    def update(
        self, updates: dict[str, str], predicate: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Update rows."""
        self._owner._refresh()
        where = self._owner._predicate_or_all(predicate)
        hooks = Hooks.of(options.pop("post_commithook_properties", None))

        def run(stage: Stage) -> Any:
            return stage.raw.update(updates, predicate, *args, **quiet(options))

        return rewrite(self._owner, where, run, hooks=hooks)

    def create_merge_builder(self, **options: Any) -> MergePlan:
        """Begin a merge."""
        return MergePlan(self._owner, options)

    def merge_execute(self, plan: MergePlan) -> Any:
        """Run a merge and commit it."""
        return plan.execute()

    def write(self, data: Any, **options: Any) -> None:
        """Write rows, for stock code that was handed this table."""
        from deltalakedb.table.writer import write_to

        options.pop("batch_schema", None)
        self._owner._refresh()
        write_to(self._owner, data, **options)

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
