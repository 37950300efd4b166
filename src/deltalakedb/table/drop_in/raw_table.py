"""``RawSqlTable``: what delta-rs's ``RawDeltaTable`` can do, on a SQL-backed table."""

from __future__ import annotations

import inspect
import json
import os
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from arro3.core import RecordBatchReader, Table
from deltalake._internal import RawDeltaTable

from deltalakedb.address import TableUri
from deltalakedb.exceptions import ArgumentTypeError
from deltalakedb.metastore import registry
from deltalakedb.mirror import checkpointer
from deltalakedb.mirror.manifests import write_manifests
from deltalakedb.mirror.reconciler import reconcile
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.paths import decode_path
from deltalakedb.table import alter, dml, optimize, restore
from deltalakedb.table.arguments import checked_number, instant_ms, names_of, sql_text
from deltalakedb.table.dml import MergePlan
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.locations import url_of
from deltalakedb.table.maintenance.vacuum import vacuum
from deltalakedb.table.read import change_feed, scan
from deltalakedb.table.read.scan import VECTOR_SCHEMA, selection_vectors, stock_schema
from deltalakedb.table.scratch import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import deltalake

#: what delta-rs reports for a table that is opened without options
_LOG_BUFFER_PER_CORE = 4


class _Operation:
    """A method with the name and the signature of delta-rs's, which passes the handle and the call on."""

    def __init__(self, run: Callable[[TableHandle, Call], Any], *, refresh: bool = True) -> None:
        self.run = run
        self.refresh = refresh

    def __set_name__(self, owner: type, name: str) -> None:
        signature = inspect.signature(getattr(RawDeltaTable, name))

        def method(raw: RawSqlTable, /, *args: Any, **options: Any) -> Any:
            given = signature.bind(raw, *args, **options)
            given.apply_defaults()
            call = Call(name, {k: v for k, v in given.arguments.items() if k != "self"})
            if self.refresh:
                raw.handle.refresh()
            return self.run(raw.handle, call)

        method.__name__, method.__qualname__ = name, f"{owner.__qualname__}.{name}"
        method.__signature__ = signature  # type: ignore[attr-defined]
        setattr(owner, name, method)


def _write(table: TableHandle, call: Call) -> None:
    from deltalakedb.table.write.write import write_to

    # the schema follows from the data
    write_to(table, **{name: value for name, value in call.arguments.items() if name != "batch_schema"})


class RawSqlTable:
    """Has the methods of delta-rs's ``RawDeltaTable``, so that stock's own Python code runs on it.

    ``DeltaTable._table`` of a SQL-backed table. It reads from SQL; operations run on a scratch table of the
    candidate files and are committed in SQL. There is no fallback to delta-rs's own methods: one that changed
    a scratch table alone would silently lose a write.
    """

    def __init__(self, handle: TableHandle) -> None:
        self.handle = handle

    @classmethod
    def reopen(cls, table_uri: str, version: int, storage_options: Mapping[str, str] | None) -> RawSqlTable:
        return cls(TableHandle.open(table_uri, version, storage_options))

    def __reduce__(self) -> tuple[Any, ...]:
        handle = self.handle
        why = "a table inside a transaction cannot be pickled or copied"
        handle.require_live(why, "pickle a table that was opened outside of the transaction")
        # a pickled table must open elsewhere: it carries the password, as the address does
        uri = handle.address.to_uri(redact=False)
        return RawSqlTable.reopen, (uri, handle.version, handle.storage_options)

    @staticmethod
    def is_deltatable(table_uri: str, storage_options: dict[str, str] | None = None) -> bool:
        from deltalakedb.table.drop_in.delta_table import DeltaTable

        return DeltaTable.is_deltatable(table_uri, storage_options)

    def version(self) -> int:
        return self.handle.version

    def get_latest_version(self) -> int:
        table = self.handle
        return registry.find(table.database, table.name).head.version if table.is_live else table.version

    def table_uri(self) -> str:
        return TableUri.of(url_of(self.handle.row.location), self.handle.address)

    def table_config(self) -> tuple[bool, int, bool]:
        return False, _LOG_BUFFER_PER_CORE * (os.cpu_count() or 1), False

    def metadata(self) -> Any:
        found = self.handle.snapshot.metadata
        return SimpleNamespace(
            id=found.id,
            name=found.name,
            description=found.description,
            partition_columns=list(found.partition_columns),
            created_time=found.created_time,
            configuration=dict(found.configuration),
        )

    def protocol_versions(self) -> tuple[int, int, list[str] | None, list[str] | None]:
        found = self.handle.snapshot.protocol
        writer, reader = (list(f) if f else None for f in (found.writer_features, found.reader_features))
        return found.min_reader_version, found.min_writer_version, writer, reader

    @property
    def schema(self) -> deltalake.Schema:
        return stock_schema(self.handle.snapshot.metadata.schema_string)

    def history(self, limit: int | None = None) -> tuple[int, list[str]]:
        found = self.handle.source.history(None if limit is None else checked_number(limit, "limit"))
        newest = found[0].version if found else self.version()
        infos = ({} if c.info is None else c.info.to_dict() for c in found)
        return newest, [
            encode_json({"timestamp": commit.committed_at, **info, "version": commit.version})
            for commit, info in zip(found, infos, strict=True)
        ]

    def transaction_version(self, app_id: str) -> int | None:
        if not isinstance(app_id, str):
            raise ArgumentTypeError(f"an application's id is a text, not {app_id!r}")
        return self.handle.source.txn_version(app_id)

    def load_version(self, version: int) -> None:
        self.handle.load(version)

    def load_with_datetime(self, ds: str) -> None:
        self.handle.load_at(instant_ms(ds))

    def update_incremental(self) -> None:
        self.handle.update()

    def get_add_file_sizes(self) -> dict[str, int]:
        return {decode_path(path): size for path, size in self.handle.file_sizes()}

    def files(self, file_pruning_predicate: Any = None) -> list[str]:
        where = self.handle.where(file_pruning_predicate, files_only=True)
        return [decode_path(p) for p in self.handle.source.scan(("path",), where).column("path").to_pylist()]

    def file_uris(self, file_pruning_predicate: Any = None) -> list[str]:
        where = self.handle.where(file_pruning_predicate, files_only=True)
        found = self.handle.source.scan(("path",), where).column("path").to_pylist()
        return self.handle.root.paths.resolve_all(found)

    def get_active_partitions(self, file_pruning_predicate: Any = None) -> set[frozenset[tuple[str, Any]]]:
        where = self.handle.where(file_pruning_predicate, files_only=True)
        found = scan.partitions(self.handle.source, where)
        return {frozenset(p.items()) for p in found} or {frozenset()}

    def get_add_actions(self, flatten: bool) -> Table:
        return Table.from_arrow(scan.add_actions(self.handle.source, flatten=flatten))

    def dataset_partitions(self, schema: Any, file_pruning_predicate: Any = None) -> list[tuple[str, Any]]:
        from deltalakedb.table.read.dataset import guarantees

        where = self.handle.where(file_pruning_predicate, files_only=True)
        return guarantees(self.handle.source, self.handle.root, pa.schema(schema), where)

    def deletion_vectors(self) -> RecordBatchReader:
        """The files that have a deletion vector, each with the rows that stay (``True``) and go."""
        source, root = self.handle.source, self.handle.root
        scan.check_files(source, root)  # an error of the stream would lose its type
        vectors = selection_vectors(source.adds(), root)
        return RecordBatchReader.from_arrow(pa.RecordBatchReader.from_batches(VECTOR_SCHEMA, vectors))

    load_cdf = _Operation(
        lambda table, call: RecordBatchReader.from_arrow(change_feed.load_cdf(table, **call.arguments)),
        refresh=False,
    )

    def scan(self, columns: list[str] | None = None, predicate: str | None = None) -> RecordBatchReader:
        return RecordBatchReader.from_arrow(rows(self.handle, columns, predicate))

    def get_num_index_cols(self) -> int:
        return int(self._without_files().get_num_index_cols())

    def get_stats_columns(self) -> list[str] | None:
        found: list[str] | None = self._without_files().get_stats_columns()
        return found

    def _without_files(self) -> Any:  # these two methods are not in delta-rs's stubs
        return scan.raw_table(self.handle.snapshot, (), self.handle.root).raw

    def __datafusion_table_provider__(self, session: Any = None) -> Any:
        return scan.raw_of(self.handle).__datafusion_table_provider__(session)

    delete = _Operation(dml.delete)
    update = _Operation(dml.update)
    create_merge_builder = _Operation(MergePlan, refresh=False)
    write = _Operation(_write)
    compact_optimize = _Operation(optimize.compact)
    z_order_optimize = _Operation(optimize.z_order)
    create_write_transaction = _Operation(dml.commit_existing_files)
    restore = _Operation(
        lambda table, call: json.dumps(restore.restore(table, **call.options, hooks=call.hooks).metrics)
    )
    repair = _Operation(
        lambda table, call: json.dumps(restore.repair(table, **call.options, hooks=call.hooks))
    )
    vacuum = _Operation(lambda table, call: vacuum(table, **call.options), refresh=False)
    add_columns = add_feature = drop_constraints = drop_column_not_null = _Operation(alter.alter)
    set_table_name = set_table_description = set_column_metadata = add_columns
    add_constraints = _Operation(partial(alter.alter, validate=True))
    set_table_properties = _Operation(alter.set_properties)

    def merge_execute(self, merge_builder: MergePlan) -> str:
        return merge_builder.execute()

    def create_checkpoint(self) -> None:
        self._publish("a checkpoint is written")
        table, options = self.handle, self.handle.root.options
        checkpointer.checkpoint(table.database, table.name, version=table.version, storage_options=options)

    def cleanup_metadata(self) -> None:
        self._publish("the log is cleaned up")
        checkpointer.clean(self.handle.database, self.handle.name, storage_options=self.handle.root.options)

    def compact_logs(self, starting_version: int, ending_version: int) -> None:
        self._publish("the log is compacted")
        table, span = self.handle, (starting_version, ending_version)
        checkpointer.compact(table.database, table.name, *span, storage_options=table.root.options)

    def generate(self) -> None:
        """Write symlink manifests of the open version."""
        self._require_published("manifests are written")
        table = self.handle
        table.require_writable()
        paths, vectors = (c.to_pylist() for c in table.source.scan(("path", "dv_id")).columns)
        files = zip(paths, vectors, strict=True)
        write_manifests(table.root.paths, files, storage_options=table.root.options)

    def _publish(self, what: str) -> None:
        """Publish first: only published versions can be cleaned up."""
        self._require_published(what)
        reconcile(self.handle.database, self.handle.name, storage_options=self.handle.root.options)

    def _require_published(self, what: str) -> None:
        why = f"{what} from published versions, and a transaction's are still to come"
        self.handle.require_live(why, "do it after the transaction")
        registry.refuse_followed(self.handle.row)


def rows(handle: TableHandle, columns: list[str] | None, predicate: str | None) -> pa.RecordBatchReader:
    names, where = names_of(columns), handle.where(sql_text(predicate))
    return scan.scan(handle.source, handle.root, where=where, columns=names, predicate=predicate)
