"""The mutators of delta-rs's raw table, with its signatures, on a SQL-backed table."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deltalake import PostCommitHookProperties

from deltalakedb.table import altering, file_actions, log_upkeep, optimizing, repairing, restoring
from deltalakedb.table.hooks import NO_HOOKS
from deltalakedb.table.merging import MergePlan
from deltalakedb.table.operations import rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import CommitProperties, Field, Schema, TableFeatures, WriterProperties

    from deltalakedb.table.sql_table import SqlDeltaTable

_Hooks = PostCommitHookProperties | None


class RawOperations:
    """What changes a table, called as stock's own classes call it."""

    _owner: SqlDeltaTable

    @contextmanager
    def _working(self, hooks: _Hooks) -> Iterator[SqlDeltaTable]:
        """The table, at its newest version unless the user chose one, with the hooks after its commit."""
        self._owner._refresh()
        self._owner._hooks = hooks
        try:
            yield self._owner
        finally:
            self._owner._hooks = None

    # ---- rows ------------------------------------------------------------------------------------------

    def delete(
        self,
        predicate: str | None = None,
        writer_properties: WriterProperties | None = None,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Delete rows."""
        with self._working(post_commithook_properties) as table:
            return rewrite(
                table,
                table._predicate_or_all(predicate),
                lambda stage: stage.raw.delete(predicate, writer_properties, commit_properties, NO_HOOKS),
            )

    def update(
        self,
        updates: dict[str, str],
        predicate: str | None = None,
        writer_properties: WriterProperties | None = None,
        safe_cast: bool = False,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Update rows."""
        with self._working(post_commithook_properties) as table:
            return rewrite(
                table,
                table._predicate_or_all(predicate),
                lambda stage: stage.raw.update(
                    updates, predicate, writer_properties, safe_cast, commit_properties, NO_HOOKS
                ),
            )

    def create_merge_builder(self, **options: Any) -> MergePlan:
        """Begin a merge."""
        return MergePlan(self._owner, options)

    def merge_execute(self, plan: MergePlan) -> str:
        """Run a merge and commit it."""
        with self._working(plan.hooks):
            return plan.execute()

    def write(self, data: Any, **options: Any) -> None:
        """Write rows, for stock code that was handed this table."""
        from deltalakedb.table.writer import write_to

        options.pop("batch_schema", None)
        with self._working(options.pop("post_commithook_properties", None)) as table:
            write_to(table, data, **options)

    # ---- files -----------------------------------------------------------------------------------------

    def compact_optimize(
        self,
        partition_filters: Any = None,
        target_size: int | None = None,
        max_concurrent_tasks: int | None = None,
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        min_commit_interval: int | None = None,
        writer_properties: WriterProperties | None = None,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Put small files together."""
        with self._working(post_commithook_properties) as table:
            return optimizing.compact(
                table,
                partition_filters,
                target_size,
                lambda stage, target: stage.raw.compact_optimize(
                    partition_filters,
                    target,
                    max_concurrent_tasks,
                    max_spill_size,
                    max_temp_directory_size,
                    min_commit_interval,
                    writer_properties,
                    commit_properties,
                    NO_HOOKS,
                ),
            )

    def z_order_optimize(
        self,
        z_order_columns: list[str],
        partition_filters: Any = None,
        target_size: int | None = None,
        max_concurrent_tasks: int | None = None,
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        min_commit_interval: int | None = None,
        writer_properties: WriterProperties | None = None,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Order rows along a curve through columns."""
        with self._working(post_commithook_properties) as table:
            return optimizing.z_order(
                table,
                partition_filters,
                lambda stage: stage.raw.z_order_optimize(
                    z_order_columns,
                    partition_filters,
                    target_size,
                    max_concurrent_tasks,
                    max_spill_size,
                    max_temp_directory_size,
                    min_commit_interval,
                    writer_properties,
                    commit_properties,
                    NO_HOOKS,
                ),
            )

    def create_write_transaction(
        self,
        actions: list[Any],
        mode: str,
        partition_by: list[str],
        schema: Schema,
        partitions_filters: Any = None,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Commit files that lie there already."""
        with self._working(post_commithook_properties) as table:
            file_actions.hand_in(
                table,
                mode,
                partitions_filters,
                lambda raw: raw.create_write_transaction(
                    actions, mode, partition_by, schema, partitions_filters, commit_properties, NO_HOOKS
                ),
            )

    def restore(
        self,
        target: Any,
        *,
        ignore_missing_files: bool = False,
        protocol_downgrade_allowed: bool = False,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Go back to an older version."""
        with self._working(post_commithook_properties) as table:
            metrics = restoring.restore(
                table,
                target,
                ignore_missing_files=ignore_missing_files,
                protocol_downgrade_allowed=protocol_downgrade_allowed,
                commit_properties=commit_properties,
            )
            return json.dumps(metrics)

    def repair(
        self,
        dry_run: bool = True,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Remove files that are missing."""
        with self._working(post_commithook_properties) as table:
            return json.dumps(repairing.repair(table, dry_run=dry_run, commit_properties=commit_properties))

    # ---- metadata --------------------------------------------------------------------------------------

    def add_columns(
        self,
        fields: list[Field],
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Add columns."""
        with self._working(post_commithook_properties) as table:
            altering.alter(table, lambda raw: raw.add_columns(fields, commit_properties, NO_HOOKS))

    def add_feature(
        self,
        feature: list[TableFeatures],
        allow_protocol_versions_increase: bool,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Add table features."""
        with self._working(post_commithook_properties) as table:
            altering.alter(
                table,
                lambda raw: raw.add_feature(
                    feature, allow_protocol_versions_increase, commit_properties, NO_HOOKS
                ),
            )

    def add_constraints(
        self,
        constraints: dict[str, str],
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Add constraints that every row fulfils."""
        with self._working(post_commithook_properties) as table:
            altering.add_constraint(
                table, lambda raw: raw.add_constraints(constraints, commit_properties, NO_HOOKS)
            )

    def drop_constraints(
        self,
        name: str,
        raise_if_not_exists: bool,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Drop a constraint."""
        with self._working(post_commithook_properties) as table:
            altering.alter(
                table,
                lambda raw: raw.drop_constraints(name, raise_if_not_exists, commit_properties, NO_HOOKS),
            )

    def drop_column_not_null(
        self,
        column_name: str,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Let a column hold nulls."""
        with self._working(post_commithook_properties) as table:
            altering.alter(
                table, lambda raw: raw.drop_column_not_null(column_name, commit_properties, NO_HOOKS)
            )

    def set_table_properties(
        self,
        properties: dict[str, str],
        raise_if_not_exists: bool,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Set properties."""
        with self._working(post_commithook_properties) as table:
            altering.set_properties(
                table,
                properties,
                must_exist=raise_if_not_exists,
                run=lambda raw, some, must: raw.set_table_properties(some, must, commit_properties, NO_HOOKS),
            )

    def set_table_name(
        self,
        name: str,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Set the name in the table's metadata; the catalog's stays."""
        with self._working(post_commithook_properties) as table:
            altering.alter(table, lambda raw: raw.set_table_name(name, commit_properties, NO_HOOKS))

    def set_table_description(
        self,
        description: str,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Set the description."""
        with self._working(post_commithook_properties) as table:
            altering.alter(
                table, lambda raw: raw.set_table_description(description, commit_properties, NO_HOOKS)
            )

    def set_column_metadata(
        self,
        field_name: str,
        metadata: dict[str, str],
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Set metadata of a column."""
        with self._working(post_commithook_properties) as table:
            altering.alter(
                table,
                lambda raw: raw.set_column_metadata(field_name, metadata, commit_properties, NO_HOOKS),
            )

    # ---- the log ---------------------------------------------------------------------------------------

    def create_checkpoint(self) -> None:
        """Write a checkpoint of the open version."""
        log_upkeep.create_checkpoint(self._owner)

    def cleanup_metadata(self) -> None:
        """Delete log files that have served their time."""
        log_upkeep.cleanup_metadata(self._owner)

    def compact_logs(self, starting_version: int, ending_version: int) -> None:
        """Write a log compaction file."""
        log_upkeep.compact_logs(self._owner, starting_version, ending_version)

    def generate(self) -> None:
        """Write symlink manifests."""
        log_upkeep.generate(self._owner)
