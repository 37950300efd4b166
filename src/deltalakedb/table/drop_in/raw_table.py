"""``RawSqlTable``: what delta-rs's ``RawDeltaTable`` can do, on a SQL-backed table."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from arro3.core import RecordBatchReader, Table
from deltalake import PostCommitHookProperties
from deltalake._internal import RawDeltaTable

from deltalakedb.exceptions import (
    ArgumentRangeError,
    ArgumentTypeError,
    UnsupportedOperationError,
)
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.paths import decode_path
from deltalakedb.table import alter, dml, optimize, restore
from deltalakedb.table.arguments import instant_ms, whole_number
from deltalakedb.table.dml import MergePlan
from deltalakedb.table.filters import names_of, sql_text
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.hooks import QUIET, Hooks
from deltalakedb.table.locations import url_of
from deltalakedb.table.maintenance import log_files
from deltalakedb.table.maintenance.vacuum import vacuum
from deltalakedb.table.read import add_actions, change_feed, scan
from deltalakedb.table.read.scan import VECTOR_SCHEMA, Vectors, stock_schema
from deltalakedb.table.scratch import rewrite
from deltalakedb.table.sources import LARGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import deltalake
    from deltalake import CommitProperties, Schema, WriterProperties

_Hooks = PostCommitHookProperties | None

#: what delta-rs itself reports for a table that was opened without options
_LOG_BUFFER_PER_CORE = 4


def _alteration(name: str, doc: str) -> Callable[..., None]:
    """A method that changes metadata by what delta-rs makes of it in a scratch table."""
    signature = inspect.signature(getattr(RawDeltaTable, name))

    def method(self: RawSqlTable, *args: Any, **options: Any) -> None:
        given = signature.bind(None, *args, **options)
        hooks = given.arguments.pop("post_commithook_properties", None)
        _, *rest = given.args
        alter.alter(
            self.refreshed(),
            lambda raw: getattr(raw, name)(*rest, **given.kwargs, post_commithook_properties=QUIET),
            hooks=Hooks.of(hooks),
        )

    method.__name__, method.__qualname__, method.__doc__ = name, f"RawSqlTable.{name}", doc
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


@dataclass(frozen=True)
class _Metadata:
    """What stock's ``Metadata`` reads its answers from."""

    id: str
    name: str | None
    description: str | None
    partition_columns: list[str]
    created_time: int | None
    configuration: Mapping[str, str | None]


class RawSqlTable:
    """Has the methods of delta-rs's ``RawDeltaTable``, so that stock's own Python code runs on it.

    ``DeltaTable._table`` of a SQL-backed table. Questions are answered from SQL. Operations run on a scratch
    table of the candidate files and are committed in SQL. There is nothing else: a method that changed a
    scratch table alone would silently lose a write.
    """

    def __init__(self, handle: TableHandle) -> None:
        self.handle = handle

    def refreshed(self) -> TableHandle:
        """The handle, at its newest version unless the user chose one."""
        self.handle.refresh()
        return self.handle

    @classmethod
    def reopen(cls, table_uri: str, version: int, storage_options: Mapping[str, str] | None) -> RawSqlTable:
        """The table of a pickle."""
        return cls(TableHandle.open(table_uri, version, storage_options))

    def __reduce__(self) -> tuple[Any, ...]:
        handle = self.handle
        if not handle.is_live:
            raise UnsupportedOperationError(
                "a table inside a transaction cannot be pickled or copied",
                table=handle.name,
                suggestion="pickle a table that was opened outside of the transaction",
            )
        # a pickled table must open elsewhere: it carries the password, as the address does
        uri = handle.address.to_uri(redact=False)
        return RawSqlTable.reopen, (uri, handle.version, handle.storage_options)

    # ---- facts -----------------------------------------------------------------------------------------

    @staticmethod
    def is_deltatable(table_uri: str, storage_options: dict[str, str] | None = None) -> bool:
        """Whether there is a table at an address."""
        from deltalakedb.table.drop_in.delta_table import DeltaTable

        return DeltaTable.is_deltatable(table_uri, storage_options)

    def version(self) -> int:
        """The open version."""
        return self.handle.version

    def get_latest_version(self) -> int:
        """The newest version."""
        return self.handle.newest_version()

    def table_uri(self) -> str:
        """The table's root as a URL."""
        return url_of(self.handle.row.location)

    def table_config(self) -> tuple[bool, int, bool]:
        """How delta-rs would have opened the table."""
        return False, _LOG_BUFFER_PER_CORE * (os.cpu_count() or 1), False

    def metadata(self) -> Any:
        """The metadata as stock's ``Metadata`` reads it."""
        found = self.handle.snapshot.metadata
        return _Metadata(
            found.id,
            found.name,
            found.description,
            list(found.partition_columns),
            found.created_time,
            dict(found.configuration),
        )

    def protocol_versions(self) -> tuple[int, int, list[str] | None, list[str] | None]:
        """The protocol as stock's ``ProtocolVersions`` takes it."""
        found = self.handle.snapshot.protocol
        writer, reader = (list(f) if f else None for f in (found.writer_features, found.reader_features))
        return found.min_reader_version, found.min_writer_version, writer, reader

    @property
    def schema(self) -> deltalake.Schema:
        """The table's schema."""
        return stock_schema(self.handle.snapshot.metadata.schema_string)

    def history(self, limit: int | None = None) -> tuple[int, list[str]]:
        """The newest version listed, and the commits up to the open version, newest first, as JSON."""
        number = whole_number(limit)
        if limit is not None and number is None:
            raise ArgumentTypeError(f"a limit is a whole number, not {limit!r}")
        if number is not None and not 0 <= number < LARGEST:
            raise ArgumentRangeError(f"a limit is a whole number from 0 to 2⁶³, not {limit}")
        found = self.handle.source.history(number)
        newest = found[0].version if found else self.version()
        infos = ({} if c.info is None else c.info.to_dict() for c in found)
        return newest, [
            encode_json({"timestamp": commit.timestamp, **info, "version": commit.version})
            for commit, info in zip(found, infos, strict=True)
        ]

    def transaction_version(self, app_id: str) -> int | None:
        """The version that an application recorded for itself."""
        if not isinstance(app_id, str):
            raise ArgumentTypeError(f"an application's id is a text, not {app_id!r}")
        return self.handle.source.txn_version(app_id)

    # ---- versions --------------------------------------------------------------------------------------

    def load_version(self, version: int) -> None:
        """Move to a version."""
        self.handle.load(version)

    def load_with_datetime(self, ds: str) -> None:
        """Move to the newest version at a time."""
        self.handle.load_at(instant_ms(ds))

    def update_incremental(self) -> None:
        """Move to the newest version."""
        self.handle.update()

    # ---- files -----------------------------------------------------------------------------------------

    def get_add_file_sizes(self) -> dict[str, int]:
        """Sizes by path on disk, for readers that open the files themselves."""
        return {decode_path(path): size for path, size in self.handle.file_sizes()}

    def files(self, file_pruning_predicate: Any = None) -> list[str]:
        """Paths of candidate files below the table's root."""
        where = self.handle.where(file_pruning_predicate, files_only=True)
        return [decode_path(p) for p in self.handle.source.scan(("path",), where).column("path").to_pylist()]

    def file_uris(self, file_pruning_predicate: Any = None) -> list[str]:
        """Absolute paths of candidate files."""
        where = self.handle.where(file_pruning_predicate, files_only=True)
        return scan.file_uris(self.handle.source, self.handle.root, where)

    def get_active_partitions(self, file_pruning_predicate: Any = None) -> set[frozenset[tuple[str, Any]]]:
        """The partitions of candidate files."""
        where = self.handle.where(file_pruning_predicate, files_only=True)
        found = scan.partitions(self.handle.source, where)
        return {frozenset(p.items()) for p in found} or {frozenset()}

    def get_add_actions(self, flatten: bool) -> Table:
        """The live files with their sizes, statistics and partition values, as Arrow."""
        source = self.handle.source
        found = source.scan(add_actions.COLUMNS)
        return Table.from_arrow(add_actions.add_actions(found, source.snapshot.metadata, flatten=flatten))

    def dataset_partitions(self, schema: Any, file_pruning_predicate: Any = None) -> list[tuple[str, Any]]:
        """Candidate files below the root, each with what is certain about its rows."""
        from deltalakedb.table.read.dataset import guarantees

        where = self.handle.where(file_pruning_predicate, files_only=True)
        return guarantees(self.handle.source, self.handle.root, pa.schema(schema), where)

    def deletion_vectors(self) -> RecordBatchReader:
        """The files that have a deletion vector, each with the rows that stay (``True``) and go."""
        source, root = self.handle.source, self.handle.root
        scan.check_files(source, root)  # an error of the stream would lose its type
        reader = pa.RecordBatchReader.from_batches(VECTOR_SCHEMA, Vectors(root).kept(source.adds()))
        return RecordBatchReader.from_arrow(reader)

    # ---- reading rows ----------------------------------------------------------------------------------

    def load_cdf(
        self,
        starting_version: int | None = None,
        ending_version: int | None = None,
        starting_timestamp: str | None = None,
        ending_timestamp: str | None = None,
        columns: list[str] | None = None,
        predicate: str | None = None,
        allow_out_of_range: bool = False,
    ) -> RecordBatchReader:
        """The rows that a range of versions changed."""
        wanted = change_feed.Range(
            starting_version, ending_version, starting_timestamp, ending_timestamp, allow_out_of_range
        )
        return RecordBatchReader.from_arrow(
            change_feed.load_cdf(self.handle, wanted, columns=columns, predicate=predicate)
        )

    def scan(self, columns: list[str] | None = None, predicate: str | None = None) -> RecordBatchReader:
        """Rows as a stream, read by delta-rs from candidate files only."""
        return RecordBatchReader.from_arrow(rows(self.handle, columns, predicate))

    def get_num_index_cols(self) -> int:
        """How many leading columns have statistics."""
        return int(self.handle.raw(files=False).get_num_index_cols())  # type: ignore[attr-defined]  # not in its stubs

    def get_stats_columns(self) -> list[str] | None:
        """The columns that have statistics, if the table names them."""
        found: list[str] | None = self.handle.raw(files=False).get_stats_columns()  # type: ignore[attr-defined]
        return found

    def __datafusion_table_provider__(self, session: Any = None) -> Any:
        """The table for the DataFusion package."""
        return self.handle.raw().__datafusion_table_provider__(session)

    # ---- changing rows ---------------------------------------------------------------------------------

    def delete(
        self,
        predicate: str | None = None,
        writer_properties: WriterProperties | None = None,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> str:
        """Delete rows."""
        return dml.delete(
            self.refreshed(),
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
        table = self.refreshed()
        return rewrite(
            table,
            table.where_or_all(predicate),
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
        return MergePlan(self.handle, options)

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
        from deltalakedb.table.write.write import write_to

        write_to(
            self.refreshed(),
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
        return optimize.compact(
            self.refreshed(),
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
        return optimize.z_order(
            self.refreshed(),
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
        """Commit files that are in place already."""
        dml.commit_existing_files(
            self.refreshed(),
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
        metrics = restore.restore(
            self.refreshed(),
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
            restore.repair(
                self.refreshed(),
                dry_run=dry_run,
                commit_properties=commit_properties,
                hooks=Hooks.of(post_commithook_properties),
            )
        )

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
        """Delete data files that no retained version references."""
        return vacuum(
            self.handle,
            dry_run=dry_run,
            retention_hours=retention_hours,
            enforce=enforce_retention_duration,
            full=full,
            keep_versions=keep_versions,
            commit_properties=commit_properties,
        )

    # ---- metadata --------------------------------------------------------------------------------------

    add_columns = _alteration("add_columns", "Add columns.")
    add_feature = _alteration("add_feature", "Add table features.")
    drop_constraints = _alteration("drop_constraints", "Drop a constraint.")
    drop_column_not_null = _alteration("drop_column_not_null", "Let a column hold nulls.")
    set_table_name = _alteration("set_table_name", "Set the name in the metadata; the catalog's stays.")
    set_table_description = _alteration("set_table_description", "Set the description.")
    set_column_metadata = _alteration("set_column_metadata", "Set metadata of a column.")

    def add_constraints(
        self,
        constraints: dict[str, str],
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: _Hooks = None,
    ) -> None:
        """Add constraints that every row fulfils."""
        alter.add_constraint(
            self.refreshed(),
            lambda raw: raw.add_constraints(constraints, commit_properties, QUIET),
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
        alter.set_properties(
            self.refreshed(),
            properties,
            must_exist=raise_if_not_exists,
            run=lambda raw, some, must: raw.set_table_properties(some, must, commit_properties, QUIET),
            hooks=Hooks.of(post_commithook_properties),
        )

    # ---- the log ---------------------------------------------------------------------------------------

    def create_checkpoint(self) -> None:
        """Write a checkpoint of the open version."""
        log_files.create_checkpoint(self.handle)

    def cleanup_metadata(self) -> None:
        """Delete log files that have served their time."""
        log_files.cleanup_metadata(self.handle)

    def compact_logs(self, starting_version: int, ending_version: int) -> None:
        """Write a log compaction file."""
        log_files.compact_logs(self.handle, starting_version, ending_version)

    def generate(self) -> None:
        """Write symlink manifests."""
        log_files.generate(self.handle)


def rows(handle: TableHandle, columns: list[str] | None, predicate: str | None) -> pa.RecordBatchReader:
    """Rows that a SQL predicate selects, read by delta-rs from candidate files only."""
    names, where = names_of(columns), handle.where(sql_text(predicate))
    return scan.scan(handle.source, handle.root, where=where, columns=names, predicate=predicate)
