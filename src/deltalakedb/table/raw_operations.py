"""The mutators of delta-rs's raw table, with its signatures, on a SQL-backed table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deltalake import PostCommitHookProperties

from deltalakedb.table import altering, deleting, file_actions, log_upkeep, optimizing, repairing, restoring
from deltalakedb.table.hooks import QUIET, Hooks
from deltalakedb.table.merging import MergePlan
from deltalakedb.table.operations import rewrite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalake import CommitProperties, Field, Schema, TableFeatures, WriterProperties

    from deltalakedb.table.sql_table import SqlDeltaTable

_Hooks = PostCommitHookProperties | None


class RawOperations:
    """What changes a table, called as stock's own classes call it."""

    _owner: SqlDeltaTable

    def _ready(self) -> SqlDeltaTable:
        """The table, at its newest version unless the user chose one."""
        self._owner._refresh()
        return self._owner

    # ---- rows ------------------------------------------------------------------------------------------

    def delete(
        self,
        predicate: str | None = None,
        writer_properties: WriterProperties | None = None,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Delete rows."""
        return deleting.delete(
            self._ready(),
            predicate,
            lambda raw, meant: raw.delete(meant, writer_properties, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
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
        table = self._ready()
        return rewrite(
            table,
            table._predicate_or_all(predicate),
            lambda stage: stage.raw.update(
                updates, predicate, writer_properties, safe_cast, commit_properties, QUIET
            ),
            hooks=Hooks.of(post_commithook_properties),
        )

    def create_merge_builder(
        self,
        source: Any,
        batch_schema: Any,
        predicate: str,
        source_alias: str | None = None,
        target_alias: str | None = None,
        merge_schema: bool = False,
        safe_cast: bool = False,
        streamed_exec: bool = False,
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        writer_properties: WriterProperties | None = None,
        post_commithook_properties: _Hooks = None,
        commit_properties: CommitProperties | None = None,
    ) -> MergePlan:
        """Begin a merge."""
        options = {name: value for name, value in locals().items() if name != "self"}
        return MergePlan(self._owner, options)

    def merge_execute(self, merge_builder: MergePlan) -> str:
        """Run a merge and commit it."""
        return merge_builder.execute()

    def write(
        self,
        data: Any,
        batch_schema: Any,  # noqa: ARG002 - it follows from the data
        mode: str,
        schema_mode: str | None = None,
        partition_by: list[str] | None = None,
        predicate: str | None = None,
        target_file_size: int | None = None,
        name: str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        writer_properties: WriterProperties | None = None,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Write rows, for stock code that was handed this table."""
        from deltalakedb.table.writer import write_to

        write_to(
            self._ready(),
            data,
            mode=mode,
            schema_mode=schema_mode,
            partition_by=partition_by,
            predicate=predicate,
            target_file_size=target_file_size,
            name=name,
            description=description,
            configuration=configuration,
            writer_properties=writer_properties,
            commit_properties=commit_properties,
            post_commithook_properties=post_commithook_properties,
        )

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
        return optimizing.compact(
            self._ready(),
            partition_filters,
            target_size,
            lambda stage, target, filters: stage.raw.compact_optimize(
                filters,
                target,
                max_concurrent_tasks,
                max_spill_size,
                max_temp_directory_size,
                min_commit_interval,
                writer_properties,
                commit_properties,
                QUIET,
            ),
            hooks=Hooks.of(post_commithook_properties),
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
        return optimizing.z_order(
            self._ready(),
            z_order_columns,
            partition_filters,
            lambda stage, columns, filters: stage.raw.z_order_optimize(
                columns,
                filters,
                target_size,
                max_concurrent_tasks,
                max_spill_size,
                max_temp_directory_size,
                min_commit_interval,
                writer_properties,
                commit_properties,
                QUIET,
            ),
            hooks=Hooks.of(post_commithook_properties),
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
        file_actions.hand_in(
            self._ready(),
            mode,
            partitions_filters,
            lambda raw: raw.create_write_transaction(
                actions, mode, partition_by, schema, partitions_filters, commit_properties, QUIET
            ),
            hooks=Hooks.of(post_commithook_properties),
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
        metrics = restoring.restore(
            self._ready(),
            target,
            ignore_missing_files=ignore_missing_files,
            protocol_downgrade_allowed=protocol_downgrade_allowed,
            commit_properties=commit_properties,
            hooks=Hooks.of(post_commithook_properties),
        )
        return json.dumps(metrics)

    def repair(
        self,
        dry_run: bool = True,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Remove files that are missing."""
        return json.dumps(
            repairing.repair(
                self._ready(),
                dry_run=dry_run,
                commit_properties=commit_properties,
                hooks=Hooks.of(post_commithook_properties),
            )
        )

    # ---- metadata --------------------------------------------------------------------------------------

    def add_columns(
        self,
        fields: list[Field],
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Add columns."""
        altering.alter(
            self._ready(),
            lambda raw: raw.add_columns(fields, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    def add_feature(
        self,
        feature: list[TableFeatures],
        allow_protocol_versions_increase: bool,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Add table features."""
        altering.alter(
            self._ready(),
            lambda raw: raw.add_feature(feature, allow_protocol_versions_increase, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    def add_constraints(
        self,
        constraints: dict[str, str],
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Add constraints that every row fulfils."""
        altering.add_constraint(
            self._ready(),
            lambda raw: raw.add_constraints(constraints, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    def drop_constraints(
        self,
        name: str,
        raise_if_not_exists: bool,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Drop a constraint."""
        altering.alter(
            self._ready(),
            lambda raw: raw.drop_constraints(name, raise_if_not_exists, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    def drop_column_not_null(
        self,
        column_name: str,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Let a column hold nulls."""
        altering.alter(
            self._ready(),
            lambda raw: raw.drop_column_not_null(column_name, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    def set_table_properties(
        self,
        properties: dict[str, str],
        raise_if_not_exists: bool,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Set properties."""
        altering.set_properties(
            self._ready(),
            properties,
            must_exist=raise_if_not_exists,
            run=lambda raw, some, must: raw.set_table_properties(some, must, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    def set_table_name(
        self,
        name: str,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Set the name in the table's metadata; the catalog's stays."""
        altering.alter(
            self._ready(),
            lambda raw: raw.set_table_name(name, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    def set_table_description(
        self,
        description: str,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Set the description."""
        altering.alter(
            self._ready(),
            lambda raw: raw.set_table_description(description, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    def set_column_metadata(
        self,
        field_name: str,
        metadata: dict[str, str],
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Set metadata of a column."""
        altering.alter(
            self._ready(),
            lambda raw: raw.set_column_metadata(field_name, metadata, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
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
