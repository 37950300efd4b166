"""``Catalog``: tables by name and location, transactions, namespaces, and queries in plain SQL."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from deltalakedb.address import Address, is_deltasql, parse_address, validate_table_name
from deltalakedb.exceptions import (
    ArgumentTypeError,
    CatalogNotFoundError,
    InvalidArgumentError,
    TableMissingError,
    VersionMissingError,
)
from deltalakedb.extras import LazyModule
from deltalakedb.retry import RETRIED, Retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from deltalake import CommitProperties, PostCommitHookProperties, WriterProperties

    from deltalakedb.coordinator.rebase import Resolved
    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind, WrittenCheckpoint
    from deltalakedb.delta_log.cleanup import CleanupPlan
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.files import PackStatus
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.registry import Namespace
    from deltalakedb.metastore.rows import File, Table
    from deltalakedb.metastore.txn_log import SqlTxnLogReader
    from deltalakedb.mirror.reconciler import Pass
    from deltalakedb.mirror.repair import Repaired
    from deltalakedb.protocol.read_set import Isolation
    from deltalakedb.protocol.txn_log import Commit, Committed, TxnLogReader, TxnLogWriter
    from deltalakedb.settings import Config
    from deltalakedb.sql import SqlEngine
    from deltalakedb.table.diff import TableDiff
    from deltalakedb.table.drop_in.delta_table import DeltaTable
    from deltalakedb.table.maintenance.vacuum import Garbage
    from deltalakedb.table.statistics import TableStats
    from deltalakedb.table.transaction import CatalogTransaction
    from deltalakedb.table.write.source_files import FileFormat, FilesWritten, SourceFile
    from deltalakedb.table.write.write import Mode
    from deltalakedb.transfer import Level
    from deltalakedb.transfer.reports import RelocationReport, RestoreReport, VerifyReport

# each room is imported when a method first needs it, so that importing this module costs little
if TYPE_CHECKING:
    from deltalakedb import settings, sql
    from deltalakedb.commit import txn_log as log_writer
    from deltalakedb.coordinator import coordinator
    from deltalakedb.delta_log import commit_file
    from deltalakedb.delta_log import reader as log_reader
    from deltalakedb.metastore import commits, database, files, outbox, registry, snapshots, txn_log
    from deltalakedb.mirror import checkpointer, drift, publisher, reconciler, repair
    from deltalakedb.protocol import txn_log as protocol_log
    from deltalakedb.table import alter, arguments, locations, sources, statistics
    from deltalakedb.table import diff as diffs
    from deltalakedb.table import handle as handles
    from deltalakedb.table import restore as restoring
    from deltalakedb.table import transaction as transactions
    from deltalakedb.table.drop_in import delta_table
    from deltalakedb.table.maintenance import vacuum
    from deltalakedb.table.read import scan
    from deltalakedb.table.write import source_files, write
    from deltalakedb.transfer import relocating, reports
    from deltalakedb.transfer.importing import api as importing
    from deltalakedb.transfer.verifying import verifier
else:
    log_writer = LazyModule("commit.txn_log")
    coordinator = LazyModule("coordinator.coordinator")
    commit_file = LazyModule("delta_log.commit_file")
    log_reader = LazyModule("delta_log.reader")
    commits = LazyModule("metastore.commits")
    database = LazyModule("metastore.database")
    files = LazyModule("metastore.files")
    outbox = LazyModule("metastore.outbox")
    registry = LazyModule("metastore.registry")
    snapshots = LazyModule("metastore.snapshots")
    txn_log = LazyModule("metastore.txn_log")
    checkpointer = LazyModule("mirror.checkpointer")
    drift = LazyModule("mirror.drift")
    publisher = LazyModule("mirror.publisher")
    reconciler = LazyModule("mirror.reconciler")
    repair = LazyModule("mirror.repair")
    protocol_log = LazyModule("protocol.txn_log")
    settings = LazyModule("settings")
    sql = LazyModule("sql")
    alter = LazyModule("table.alter")
    arguments = LazyModule("table.arguments")
    diffs = LazyModule("table.diff")
    handles = LazyModule("table.handle")
    locations = LazyModule("table.locations")
    restoring = LazyModule("table.restore")
    sources = LazyModule("table.sources")
    statistics = LazyModule("table.statistics")
    transactions = LazyModule("table.transaction")
    delta_table = LazyModule("table.drop_in.delta_table")
    vacuum = LazyModule("table.maintenance.vacuum")
    scan = LazyModule("table.read.scan")
    source_files = LazyModule("table.write.source_files")
    write = LazyModule("table.write.write")
    relocating = LazyModule("transfer.relocating")
    reports = LazyModule("transfer.reports")
    importing = LazyModule("transfer.importing.api")
    verifier = LazyModule("transfer.verifying.verifier")


T = TypeVar("T")


class Catalog:
    """A database with the metadata of Delta tables.

    Args:
        uri: A ``deltasql://`` address without a table.
        config: Settings, as a ``Config`` or a dict of its sections (``{"pool": {"max_size": 2}}``); by
            default those of the process.
        create: Create the catalog now if there is none. Otherwise the first write does, and reads raise
            CatalogNotFoundError.

    Example:
        >>> with Catalog("deltasql://sqlite//lake/meta.db") as catalog:
        ...     catalog.create_table("sales.orders", schema, location="/lake/orders")
        ...     [t.name for t in catalog.tables()]
        ['sales.orders']
    """

    def __init__(
        self, uri: str | Address, *, config: Config | Mapping[str, Any] | None = None, create: bool = False
    ) -> None:
        self._address = address = parse_address(uri).absolute().require_catalog()
        self._database = database.Database.open(address, settings.as_config(config))
        try:
            self._database.ensure(create=create)
        except CatalogNotFoundError as error:
            if create or not self._database.may_be_created(error):
                raise

    @property
    def _config(self) -> Config:
        return self._database.engine.config

    @property
    def uri(self) -> str:
        """The catalog's address, without its password."""
        return self._address.to_uri()

    # ---- finding ---------------------------------------------------------------------------------------

    def tables(self, *, namespace: str | None = None) -> list[Table]:
        """All tables by name, or those of a namespace and below it."""
        return registry.list_tables(self._database, namespace=namespace)

    def table(
        self,
        name: str,
        *,
        version: int | None = None,
        timestamp: str | datetime | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Open a table by name.

        Args:
            name: The table.
            version: The version; by default the newest.
            timestamp: Open the newest version at that time instead: a datetime (naive ones are UTC), or an
                ISO 8601 text with its zone. A time before the first commit is a VersionMissingError.
            storage_options: Options for the object store, if the settings and the environment have none.
        """
        if version is not None and timestamp is not None:
            raise InvalidArgumentError("pass either a version or a timestamp", table=name)
        with settings.use_config(self._config):
            handle = handles.TableHandle.open(
                self.table_uri(name), version, None if storage_options is None else dict(storage_options)
            )
            if timestamp is not None:
                handle.load_at(arguments.instant_ms(timestamp), strict=True)
        return delta_table.table_of(handle)

    def table_uri(self, name: str) -> str:
        """The address of a table in this catalog. It contains the password, if there is one."""
        return self._uri(name)

    def _uri(self, name: str, location: str | os.PathLike[str] | None = None) -> str:
        root = None if location is None else locations.normal_location(location)
        return self._address.with_table(name, location=root).to_uri(redact=False)

    def describe(self, name: str) -> Table:
        """A table's row in the registry."""
        return registry.find(self._database, name)

    def find(
        self, name: str | None = None, *, location: str | os.PathLike[str] | None = None
    ) -> Table | None:
        """Find a table by its name or location (a path or URL); None if there is none."""
        if (name is None) == (location is None):
            raise InvalidArgumentError("pass either a name or a location")
        if location is not None:
            return registry.find_location(self._database, locations.normal_location(location))
        try:
            return registry.find(self._database, name or "")
        except TableMissingError:
            return None

    def files(self, name: str, *, version: int | None = None, where: Any = None) -> Iterator[File]:
        """A table's data files; with a predicate, those that may have rows that it matches.

        Args:
            name: The table.
            version: The version; by default the newest.
            where: A SQL predicate, or filters in disjunctive normal form.
        """
        opened = snapshots.open_table(self._database, name, version)
        predicate = arguments.predicate_of(where, opened.snapshot.metadata, files_only=True)
        return files.read_files(self._database, opened, where=predicate)

    def head(
        self,
        name: str,
        limit: int = 10,
        *,
        version: int | None = None,
        columns: list[str] | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """Some rows of a table; only as many files are opened as it takes.

        Args:
            name: The table.
            limit: The most rows to return.
            version: The version; by default the newest.
            columns: Only these columns.
            where: A SQL predicate that the rows must meet.
        """
        with settings.use_config(self._config):
            handle = handles.TableHandle.open(self.table_uri(name), version)
            return scan.first_rows(
                handle, arguments.checked_number(limit, "limit"), columns=columns, predicate=where
            )

    def diff(
        self,
        name: str,
        other: str | None = None,
        *,
        from_version: int | None = None,
        to_version: int | None = None,
        rows: bool = False,
        limit: int | None = None,
    ) -> TableDiff:
        """What differs between two versions of a table, or two tables: schema, properties, files and rows.

        Args:
            name: The table.
            other: Another table, which the first one is compared with.
            from_version: The version of the first side. By default the newest; if there is no other table,
                the version before ``to_version``.
            to_version: The version of the second side; by default the newest.
            rows: Also compare rows. Those of files that differ are read into memory.
            limit: The most rows to return.
        """
        with settings.use_config(self._config):
            after = handles.TableHandle.open(self.table_uri(other or name), to_version)
            if other is None and from_version is None:
                from_version = max(after.version - 1, after.row.head.first_version)
            before = handles.TableHandle.open(self.table_uri(name), from_version)
            return diffs.diff_tables(before, after, rows=rows, limit=limit)

    def stats(self, name: str, *, version: int | None = None) -> TableStats:
        """What a table's files are like: sizes, small files, partitions, pruning by column, and advice.

        Args:
            name: The table.
            version: The version; by default the newest.
        """
        with settings.use_config(self._config):
            return statistics.table_stats(handles.TableHandle.open(self.table_uri(name), version))

    def watch(
        self,
        *names: str,
        from_version: int | None = None,
        interval: float = 1.0,
        once: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[commits.TableCommit]:
        """Yield the commits of some tables, or of all, as they arrive; in the order of their versions.

        Args:
            names: The tables; by default all, new ones included.
            from_version: Begin with this version of each table; by default with the next commit.
            interval: Seconds between two looks at the catalog.
            once: End after the first look.
            stop: Ends the iteration when it is set.
        """
        reconciler.checked_interval(interval)
        found = commits.CommitWatch(self._database, names, from_version)
        ends = threading.Event() if stop is None else stop
        while True:
            yield from found.look()
            if once or ends.wait(interval):
                return

    def pack_status(self, name: str) -> PackStatus:
        """How many files of a table are packed and how many are recent, and the size of the packs."""
        return files.pack_status(self._database, self.describe(name).table_id)

    def rebuild_packs(self, name: str) -> int:
        """Build the packs of a table again from its rows and statistics, recent files included.

        Readers and writers are not disturbed.

        Returns:
            The number of files packed.
        """
        return files.rebuild(self._database, self.describe(name).table_id)

    def commits(self, name: str, *, limit: int | None = None) -> list[Commit]:
        """A table's commits, newest first, and at most ``limit`` of them."""
        return list(self.log(name).history(limit))

    def log(self, name: str) -> SqlTxnLogReader:
        """The table's transaction log, at the low level."""
        registry.find(self._database, name)
        return txn_log.SqlTxnLogReader(self._database, name)

    # ---- changing --------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        schema: Any,
        *,
        location: str | os.PathLike[str] | None = None,
        mode: Mode = "error",
        partition_by: list[str] | str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Create an empty table.

        Args:
            name: The table's name, dotted for a namespace.
            schema: A Delta schema or anything that exports an Arrow schema.
            location: Its root; by default a folder under the catalog's root.
            mode: What to do if the table exists.
            partition_by: Partition columns.
            description: The description in the table's metadata.
            configuration: Table properties that Delta knows.
            comment: A comment in the registry.
            tags: Tags in the registry.
            storage_options: Options for the object store, if the settings and the environment have none.
        """
        with settings.use_config(self._config):
            write.create_table(
                self._uri(name, location),
                schema,
                mode=mode,
                partition_by=partition_by,
                description=description,
                configuration=configuration,
                comment=comment,
                tags=tags,
                storage_options=None if storage_options is None else dict(storage_options),
            )
        return self.table(name, storage_options=storage_options)

    def write(
        self,
        name: str,
        data: Any,
        *,
        mode: Mode = "append",
        location: str | os.PathLike[str] | None = None,
        partition_by: list[str] | str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        schema_mode: Literal["merge", "overwrite"] | None = None,
        predicate: str | None = None,
        target_file_size: int | None = None,
        writer_properties: WriterProperties | None = None,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Committed | None:
        """Write to a table by name, creating it if it does not exist.

        Args:
            name: The table's name, dotted for a namespace.
            data: Anything that speaks the Arrow PyCapsule interface.
            mode: What to do with an existing table: ``append``, ``overwrite``, ``error`` or ``ignore``.
            location: A new table's root; by default a folder under the catalog's root.
            partition_by: Columns to partition a new table by.
            description: A new table's description.
            configuration: A new table's properties.
            schema_mode: How the data may change the schema.
            predicate: With ``mode="overwrite"``, replace only what matches; every new row must match.
            target_file_size: The size of data files to aim at.
            writer_properties: How Parquet is written.
            commit_properties: Custom metadata and application transactions.
            post_commithook_properties: Whether a due checkpoint is written, and the log cleaned up after it.
            storage_options: Options for the object store, if the settings and the environment have none.

        Returns:
            The commit, or None if ``mode="ignore"`` wrote nothing.
        """
        with settings.use_config(self._config):
            return write.write_table(
                self._uri(name, location),
                data,
                mode=mode,
                partition_by=partition_by,
                description=description,
                configuration=configuration,
                schema_mode=schema_mode,
                predicate=predicate,
                target_file_size=target_file_size,
                writer_properties=writer_properties,
                commit_properties=commit_properties,
                post_commithook_properties=post_commithook_properties,
                storage_options=None if storage_options is None else dict(storage_options),
            )

    def write_files(
        self,
        name: str,
        files: Sequence[SourceFile],
        *,
        file_format: FileFormat | None = None,
        delimiter: str | None = None,
        null_text: str | None = None,
        mode: Mode = "append",
        location: str | os.PathLike[str] | None = None,
        partition_by: list[str] | str | None = None,
        schema_mode: Literal["merge", "overwrite"] | None = None,
    ) -> FilesWritten:
        """Write the rows of CSV, JSON lines or Parquet files to a table, in one commit.

        Rows are streamed. Texts are read in the types of the table's columns; if the table is new, types are
        found out from the first rows. A time without a zone is UTC if the column has one.

        Args:
            name: The table; it is created if it does not exist.
            files: Paths, or one open binary stream. Compressed files end in ``.gz``, ``.bz2``, ``.zst`` or
                ``.lz4``.
            file_format: ``csv``, ``json`` (one object per line) or ``parquet``; by default by the names.
            delimiter: Of CSV files; by default a comma, or a tab for ``.tsv``.
            null_text: What stands for null in CSV files, besides a value that is empty and not in quotes.
            mode: ``append``, ``overwrite``, ``error`` or ``ignore``, if the table exists.
            location: The root of a new table; by default a folder under the catalog's root.
            partition_by: Partition columns of a new table.
            schema_mode: ``merge`` adds new columns to the table, and lets files have different ones;
                ``overwrite`` replaces the schema with ``mode="overwrite"``.

        Example:
            >>> catalog.write_files("sales.orders", ["january.csv", "february.csv.gz"]).num_rows
            1200
        """
        known = self.find(name)
        if known is not None and write.known_mode(mode) == "ignore":
            return source_files.FilesWritten(None, 0)
        schema, partitions = None, [partition_by] if isinstance(partition_by, str) else partition_by or []
        if known is not None:
            metadata = self.log(name).snapshot().metadata
            if partitions and partitions != list(metadata.partition_columns) and schema_mode != "overwrite":
                has = (
                    f"by {', '.join(metadata.partition_columns)}"
                    if metadata.partition_columns
                    else "by nothing"
                )
                raise InvalidArgumentError(
                    f"the table is partitioned {has}, which this write cannot change",
                    table=name,
                    suggestion="leave partition_by out, or replace the table with mode='overwrite' and "
                    "schema_mode='overwrite'",
                    command="leave --partition-by out, or replace the table with --mode overwrite and "
                    "--schema-mode overwrite",
                )
            partitions = partitions or list(metadata.partition_columns)
            schema = None if schema_mode == "overwrite" else scan.arrow_schema(metadata.schema_string)
        rows = source_files.FileRows(
            files,
            file_format,
            delimiter,
            schema,
            merge=schema_mode == "merge",
            null_text=null_text,
            partition_by=partitions,
        )
        options: dict[str, Any] = {"location": location, "partition_by": partition_by}
        try:
            reader = rows.reader()
            if unknown := [column for column in partitions if column not in reader.schema.names]:
                raise InvalidArgumentError(
                    f"there is no column {unknown[0]!r} to partition the table by",
                    table=name,
                    suggestion=f"the columns are {', '.join(reader.schema.names)}",
                )
            done = self.write(name, reader, mode=mode, schema_mode=schema_mode, **options)
        except Exception as error:
            if rows.error is None or rows.error is error:
                raise
            raise rows.error from error  # delta-rs knows only the text of it
        return source_files.FilesWritten(done, rows.num_rows)

    def alter_table(
        self,
        name: str,
        *,
        add_columns: Any = None,
        column_comments: Mapping[str, str] | None = None,
        drop_not_null: Sequence[str] = (),
        add_constraints: Mapping[str, str] | None = None,
        drop_constraints: Sequence[str] = (),
        set_properties: Mapping[str, str] | None = None,
        unset_properties: Sequence[str] = (),
        description: str | None = None,
    ) -> Committed | None:
        """Change columns, constraints, properties and the description of a table, all in one commit.

        ``DeltaTable.alter`` has the same changes one by one, each in a commit of its own.

        Args:
            name: The table.
            add_columns: New nullable columns: a Delta schema or anything that exports an Arrow schema.
            column_comments: Comments by column.
            drop_not_null: Columns that may be null from now on.
            add_constraints: SQL conditions that every row must fulfil, by name; the rows that exist are
                checked.
            drop_constraints: Names of constraints.
            set_properties: Table properties. Those that begin with ``delta.`` must be known ones.
            unset_properties: Properties to remove.
            description: The description in the table's metadata.

        Returns:
            The commit; None if nothing was asked for.

        Example:
            >>> catalog.alter_table("sales.orders", set_properties={"delta.appendOnly": "true"}).version
            8
        """
        with settings.use_config(self._config), self.transaction() as tx:
            alter.alter_all(
                tx.table(name),
                add_columns=add_columns,
                column_comments=column_comments or {},
                drop_not_null=drop_not_null,
                add_constraints=add_constraints or {},
                drop_constraints=drop_constraints,
                set_properties=set_properties or {},
                unset_properties=unset_properties,
                description=description,
            )
        return tx.commits.get(name)

    def restore_table(
        self,
        name: str,
        to: int | str | datetime,
        *,
        ignore_missing_files: bool = False,
        protocol_downgrade_allowed: bool = False,
        dry_run: bool = False,
    ) -> RestoreReport:
        """Make a table what it was at an earlier version or time, in a new commit: ``DeltaTable.restore``.

        Args:
            name: The table.
            to: A version, or a time as a datetime or in ISO 8601, UTC unless it has a zone.
            ignore_missing_files: Restore the files that are left if some of that version were deleted.
            protocol_downgrade_allowed: Also restore the protocol, if it was raised since.
            dry_run: Run all checks and count, but commit nothing.
        """
        with settings.use_config(self._config):
            handle = handles.require_handle(self.table(name))
            handle.require_writable()
            if isinstance(to, str | datetime):
                to = self.log(name).version_at(
                    arguments.epoch_ms(to)
                )  # refuses a time before the first version
            done = restoring.restore(
                handle,
                to,
                skip_missing_files=ignore_missing_files,
                protocol_downgrade_allowed=protocol_downgrade_allowed,
                dry_run=dry_run,
            )
        version = handle.version + dry_run
        counts = len(done.back), len(done.away)
        return reports.RestoreReport(name, done.then.snapshot.version, version, *counts, dry_run=dry_run)

    def register(
        self, name: str, location: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None
    ) -> DeltaTable:
        """Import the plain Delta table at a location in place: no file is moved or rewritten."""
        with settings.use_config(self._config):
            importing.import_table(str(location), self._uri(name), storage_options=storage_options)
        return self.table(name, storage_options=storage_options)

    def rename_table(self, name: str, new_name: str) -> Table:
        """Rename a table; location and history stay."""
        return registry.rename_table(self._database, name, validate_table_name(new_name))

    def drop_table(self, name: str, *, force: bool = False, dry_run: bool = False) -> Table:
        """Remove a table from the catalog. Its data files and `_delta_log` stay: a plain Delta table.

        Args:
            name: The table.
            force: Drop it even if unpublished commits are lost, or a fence keeps all other writers out.
            dry_run: Run all checks, but change nothing.
        """
        table = registry.find(self._database, name)
        if not force:
            coordinator.refuse_fenced(self._database, table)
        if not dry_run:
            return registry.drop_table(self._database, name, force=force)
        if not force:
            with self._database.read() as session:
                registry.refuse_unpublished(session, table)
        return table

    def set_comment(self, name: str, comment: str | None) -> None:
        """Set or clear a table's comment."""
        registry.set_comment(self._database, name, comment)

    def set_tags(self, name: str, tags: Mapping[str, str]) -> None:
        """Replace a table's tags."""
        registry.set_tags(self._database, name, tags)

    def update_tags(self, name: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some of a table's tags, and remove those whose new value is None.

        Returns:
            All tags that the table has now.
        """
        return registry.update_tags(self._database, name, changes)

    def relocate_table(
        self,
        name: str,
        location: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> RelocationReport:
        """Change a table's location after its files were moved or copied there. No file is touched.

        The new location must have the log of this table, with the commits that the catalog published, and a
        few of its data files are looked for. Stop the table's writers before you move its files.

        Args:
            name: The table.
            location: The folder or URL that has its files now.
            storage_options: Options for the object store, if the settings and the environment have none.
            dry_run: Run all checks, but change nothing.

        Raises:
            LogMissingError: There is no `_delta_log`.
            VerificationError: The location has another table, another log, or lacks data files.
            TableExistsError: The location overlaps that of another table.
        """
        return relocating.relocate_table(
            self._database, name, location, storage_options=storage_options, dry_run=dry_run
        )

    def relocate_tables(
        self, old: str | os.PathLike[str], new: str | os.PathLike[str], *, dry_run: bool = False
    ) -> RelocationReport:
        """Change the locations of all tables at or below a folder or URL: a lake that was moved.

        Each table is checked as by ``relocate_table``; if one check fails, no location changes. The catalog's
        root moves, too, if it is at or below ``old``.
        """
        return relocating.relocate_tables(self._database, old, new, dry_run=dry_run)

    def gc(
        self, name: str | None = None, *, older_than_hours: float = 24, dry_run: bool = False
    ) -> list[Garbage]:
        """Delete data files left by failed operations. No version changes.

        Files that a version references or referenced stay; ``vacuum`` deletes those. A table that is frozen
        or whose log is ahead is skipped with a reason (``kept``), since its log may reference files that the
        catalog does not know; with ``name`` it is a TableFrozenError.

        Args:
            name: One table; by default all.
            older_than_hours: Younger files stay, as do those of operations in progress.
            dry_run: Delete nothing.
        """
        return vacuum.collect_all(self._database, name, older_than_hours=older_than_hours, dry_run=dry_run)

    @property
    def mirror(self) -> Mirror:
        """Publishing to `_delta_log`: status, pausing, checkpoints, verification and repair."""
        return Mirror(self._database)

    # ---- transactions ----------------------------------------------------------------------------------

    def transaction(
        self, *, isolation: Isolation | None = None, txn_uuid: str | None = None
    ) -> CatalogTransaction:
        """A transaction over any number of tables: everything it does becomes visible at once, or nothing.

        Args:
            isolation: ``"Serializable"`` (the default) or ``"WriteSerializable"``.
            txn_uuid: Your own id: a transaction that succeeded before with the same id is not repeated, and
                reports the versions of the first one.

        Example:
            >>> with catalog.transaction() as tx:
            ...     tx.write("sales.orders", orders)
            ...     tx.table("sales.stock").update(predicate="sku = 1", updates={"qty": "qty - 1"})
        """
        return transactions.CatalogTransaction(
            self._database, self._address, isolation=isolation, txn_uuid=txn_uuid
        )

    @overload
    def snapshot(self, *, timestamp: None = None) -> CatalogTransaction: ...
    @overload
    def snapshot(self, *, timestamp: str | datetime) -> CatalogSnapshot: ...
    @overload
    def snapshot(self, *, timestamp: str | datetime | None) -> CatalogTransaction | CatalogSnapshot: ...
    def snapshot(self, *, timestamp: str | datetime | None = None) -> CatalogTransaction | CatalogSnapshot:
        """Consistent reads over all tables, now or as of one moment in the past.

        Args:
            timestamp: A datetime (naive ones are UTC), or an ISO 8601 text with its zone. It is compared
                with the times of the commits, which the database's clock sets; imported commits keep the
                times of their log.

        Returns:
            Without a timestamp, a read-only transaction: ``with catalog.snapshot() as s: s.table("a")``.
            With one, a mapping from names to tables at the versions of that moment.

        Example:
            >>> then = catalog.snapshot(timestamp="2026-11-15T12:00:00Z")
            >>> then["sales.orders"].to_pyarrow_table(), then["sales.stock"].to_pyarrow_table()
        """
        if timestamp is None:
            return transactions.CatalogTransaction(self._database, self._address, read_only=True)
        return CatalogSnapshot(self, arguments.instant_ms(timestamp))

    def run(
        self,
        work: Callable[[CatalogTransaction], T],
        *,
        retries: int = 10,
        isolation: Isolation | None = None,
        txn_uuid: str | None = None,
    ) -> T:
        """Run a function in a transaction, and repeat it after a conflict.

        Args:
            work: Called with a new transaction each time. Side effects outside of it are repeated, too.
            retries: How often it is repeated before the conflict is raised.
            isolation: As in ``transaction``.
            txn_uuid: As in ``transaction``.

        Returns:
            What ``work`` returned in the transaction that was committed.
        """
        attempts = Retries(retries)
        while True:
            try:
                with self.transaction(isolation=isolation, txn_uuid=txn_uuid) as tx:
                    return work(tx)
            except RETRIED as error:
                time.sleep(attempts.pause(error))

    # ---- namespaces and settings -----------------------------------------------------------------------

    def namespaces(self) -> list[Namespace]:
        """Namespaces that were created, and those in names of tables."""
        return registry.namespaces(self._database)

    def create_namespace(
        self, name: str, *, comment: str | None = None, properties: Mapping[str, str] | None = None
    ) -> Namespace:
        """Create a namespace; it may be empty."""
        return registry.create_namespace(
            self._database, validate_table_name(name), comment=comment, properties=properties
        )

    def drop_namespace(self, name: str, *, dry_run: bool = False) -> None:
        """Drop a namespace that was created and has no tables; InvalidArgumentError otherwise.

        Args:
            name: The namespace.
            dry_run: Run all checks, but change nothing.
        """
        registry.drop_namespace(self._database, name, dry_run=dry_run)

    @property
    def root(self) -> str | None:
        """The folder or URL of new tables without a location."""
        return registry.setting(self._database, locations.ROOT_SETTING) or self._config.catalog.root

    def set_root(self, root: str | os.PathLike[str] | None) -> None:
        """Set or clear the folder or URL of new tables without a location."""
        registry.set_setting(
            self._database, locations.ROOT_SETTING, None if root is None else locations.normal_location(root)
        )

    def query(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """Query the catalog in plain SQL, for example the ``dl_v_…`` views. It cannot change anything.

        The rows of data tables are not in the database: `deltasql sql` and ``QueryBuilder`` query those.

        Args:
            sql: A query in the database's own dialect.
            params: Values for ``?`` placeholders.
        """
        with self._database.read_only() as session:
            return registry.query(self._database, session, sql, params)

    def sql(
        self,
        query: str,
        *,
        timestamp: str | datetime | None = None,
        versions: Mapping[str, int] | None = None,
        engine: SqlEngine = "auto",
    ) -> pa.RecordBatchReader:
        """Query the data tables by name, and the ``dl_v_…`` views, in SQL. It cannot change anything.

        All tables are read at one moment, and only those that the query names. DuckDB's filters are planned
        in the database, so files that cannot match are not opened.

        Args:
            query: A query in the dialect of the engine. A table is named as in the catalog: ``sales.orders``
                or ``"sales.orders"``; names with more than two dots need the quotes. A table of another
                catalog of the configuration is ``"prod:sales.orders"``, in quotes.
            timestamp: Read the data tables as of a time: a datetime, or an ISO 8601 text with its zone.
            versions: Read some tables at these versions instead, by their names in the query.
            engine: ``duckdb``, ``datafusion``, or DuckDB if it is installed (``auto``).

        Returns:
            The rows, as a stream of Arrow batches; ``read_all()`` makes a table of them.

        Raises:
            QueryError: The query is wrong, or would change something.

        Example:
            >>> catalog.sql("SELECT city, count(*) FROM sales.orders GROUP BY city").read_all()
        """
        left = dict(versions or {})
        catalogs: dict[str, Catalog] = {"": self}
        with settings.use_config(self._config) as config, ExitStack() as stack:
            now = stack.enter_context(self.snapshot())
            moments: dict[str, CatalogTransaction | CatalogSnapshot] = {} if timestamp else {"": now}

            def open_table(name: str) -> DeltaTable:
                prefix, _, table = name.partition(":")
                if prefix not in config.catalogs:
                    prefix, table = "", name
                if prefix not in catalogs:
                    catalogs[prefix] = Catalog(config.catalog_address(prefix), config=config)
                if (version := left.pop(name, None)) is not None:
                    return catalogs[prefix].table(table, version=version)
                if prefix not in moments:
                    moments[prefix] = catalogs[prefix].snapshot(timestamp=timestamp)
                    stack.enter_context(moments[prefix])
                return moments[prefix].table(table)

            rows = sql.run_sql(
                query, now, open_table=open_table, catalogs=config.catalogs.keys(), engine=engine
            )
        if left:
            raise InvalidArgumentError(
                f"the query does not name {', '.join(left)}, so no version can be read",
                suggestion="spell the table as the catalog and the query do",
            )
        return rows

    # ---- end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the catalog's connections; the next use opens them again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Catalog({self.uri!r})"


class CatalogSnapshot(Mapping[str, "DeltaTable"]):
    """All tables of a catalog as of one moment, by name and for reading only.

    ``Catalog.snapshot(timestamp=…)`` makes one.

    Tables that had no version then are not in it. Those that were dropped since are gone with their history,
    and a renamed one has its present name. Either all commits of a transaction are in it or none.

    Attributes:
        timestamp: The moment, in epoch milliseconds.
        versions: The version of each table, by name.
    """

    def __init__(self, catalog: Catalog, timestamp: int) -> None:
        self.timestamp: Final = timestamp
        self._catalog = catalog
        self._opened: dict[str, DeltaTable] = {}
        self._database = catalog._database  # noqa: SLF001
        with self._database.read_only() as session:
            at = snapshots.versions_at(session, timestamp)
            tables = registry.list_tables(session)
        found = {table.name: self._version(table, at.get(table.table_id, -1)) for table in tables}
        self.versions: Final[Mapping[str, int]] = {n: v for n, v in found.items() if v is not None}

    def _version(self, table: Table, version: int) -> int | None:
        if version >= 0 or table.head.first_version == 0:
            return version if version >= 0 else None
        try:  # the log may have versions that were not imported
            return sources.version_at(self._database, table, self.timestamp, strict=True)
        except VersionMissingError:
            return None

    def table(self, name: str) -> DeltaTable:
        """A table as it was then; TableMissingError if it was not there."""
        if name not in self.versions:
            raise TableMissingError(
                f"there was no table {name!r} at {protocol_log.iso_time(self.timestamp)}",
                table=name,
                suggestion=f"the tables were {', '.join(sorted(self.versions)) or 'none'}",
            )
        if name not in self._opened:
            address = self._catalog._address.with_table(name)  # noqa: SLF001
            self._opened[name] = delta_table.table_of(
                transactions.open_old(self._database, address, self.versions[name])
            )
        return self._opened[name]

    def __getitem__(self, name: str) -> DeltaTable:
        if name not in self.versions:
            raise KeyError(name)
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        return name in self.versions

    def __iter__(self) -> Iterator[str]:
        return iter(self.versions)

    def __len__(self) -> int:
        return len(self.versions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def __repr__(self) -> str:
        return f"CatalogSnapshot({protocol_log.iso_time(self.timestamp)}, {dict(self.versions)})"


class Mirror:
    """Publishing to `_delta_log`: status, pausing, checkpoints, verification and repair.

    Example:
        >>> [s.table for s in catalog.mirror.status() if s.versions_behind]
        []
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def status(self, name: str | None = None, *, look: bool = False) -> list[MirrorStatus]:
        """How far each table is published, or one of them.

        Args:
            name: The table; by default all.
            look: Also list the logs for versions that the catalog does not know (``ahead``), with a request
                for each table.
        """
        if name is not None:
            registry.find(self._database, name)
        found = outbox.status(self._database, name)
        return [drift.with_foreign_count(self._database, s) for s in found] if look else found

    def publish(self, name: str) -> Pass:
        """Publish all waiting commits of one table now."""
        table = registry.find(self._database, name)
        done = reconciler.reconcile(self._database, name, checkpoints=reconciler.FORCED)
        publisher.write_missing_manifests(self._database, table_id=table.table_id, force=True)
        return done.with_left(outbox.status(self._database, name))

    def run(self, *, stop: threading.Event | None = None, interval: float = 1.0) -> Pass:
        """Publish the waiting commits of all tables: once, or every ``interval`` seconds until ``stop``."""
        reconciler.checked_interval(interval)
        if stop is None:
            return reconciler.run_once(self._database)
        return reconciler.watch(self._database, stop=stop, interval=interval)

    def thread(self, *, interval: float = 1.0) -> reconciler.ReconcilerThread:
        """A reconciler for a long-lived process, as a context manager."""
        return reconciler.ReconcilerThread(self._database, interval=interval)

    def pause(self, name: str | None = None) -> None:
        """Pause publishing of one table or of the whole catalog; commits are still possible."""
        self._pause(name, paused=True)

    def resume(self, name: str | None = None) -> Pass:
        """Resume publishing and catch up.

        Without a name the catalog's pause ends. Tables that were paused by name stay paused; ``paused`` of
        the result names them.
        """
        self._pause(name, paused=False)
        return self.run() if name is None else self.publish(name)

    def _pause(self, name: str | None, *, paused: bool) -> None:
        if name is None:
            registry.set_setting(self._database, outbox.PAUSED, "true" if paused else None)
        else:
            outbox.set_paused(self._database, registry.find(self._database, name), paused)

    def checkpoint(self, name: str, *, kind: CheckpointKind | None = None) -> WrittenCheckpoint:
        """Write a checkpoint of the newest published version."""
        return checkpointer.checkpoint(self._database, name, kind=kind)

    def clean(self, name: str, *, dry_run: bool = False) -> CleanupPlan:
        """Delete log files whose retention has ended and that a published checkpoint covers.

        A dry run only lists them.
        """
        return checkpointer.clean(self._database, name, dry_run=dry_run)

    def prune(self, name: str, *, dry_run: bool = False) -> checkpointer.Pruned:
        """Delete the bytes of published commits that a published checkpoint covers from the catalog."""
        return checkpointer.prune(self._database, name, dry_run=dry_run)

    def compact_log(self, name: str, start: int, end: int, *, dry_run: bool = False) -> str | None:
        """Write a log compaction file over the published versions ``start`` to ``end``.

        Returns:
            The path of the file, which a dry run does not write; None if the file exists.
        """
        table = registry.find(self._database, name)
        registry.refuse_followed(table)
        for version in (start, end):
            if isinstance(version, bool) or not isinstance(version, int):
                raise ArgumentTypeError(f"a version must be a whole number, not {version!r}", table=name)
        return checkpointer.compact(self._database, name, start, end, dry_run=dry_run)

    def verify(self, name: str, *, replay: bool = True) -> VerifyReport:
        """Compare a table's log with the catalog at every version, and every checkpoint.

        This is `verify_table` at level ``full``, which compares no checkpoints.

        Args:
            name: The table.
            replay: Replay the log and its checkpoints; otherwise only the bytes of commit files are compared,
                as at level ``commits``.
        """
        table = registry.find(self._database, name)
        level: Level = "full" if replay else "commits"
        options = self._database.engine.config.storage_options_for(table.location)
        return verifier.verify_head(self._database, table, level, options, checkpoints=True)

    def repair(self, name: str, *, dry_run: bool = False, create_folder: bool = False) -> Repaired:
        """Rewrite commit files and checkpoints that are missing or damaged from the catalog.

        Args:
            name: The table.
            dry_run: Change nothing, and report what would be rewritten.
            create_folder: Write the log even if nothing of the table is at its location.
        """
        return repair.repair(self._database, name, dry_run=dry_run, create_folder=create_folder)

    def rebuild(self, name: str, location: str | os.PathLike[str]) -> tuple[int, int]:
        """Write the whole log of a table from the catalog to an empty location."""
        if not isinstance(location, str | os.PathLike):
            raise ArgumentTypeError(f"a location must be a path or a URL, not {location!r}", table=name)
        return repair.rebuild(self._database, name, os.fspath(location))

    def recover(self, name: str) -> coordinator.Adoption:
        """Adopt the commits of a log that is ahead of the catalog."""
        return coordinator.Coordinator(self._database).recover(name)

    def resolve(
        self,
        name: str,
        *,
        keep: Literal["theirs"] = "theirs",
        allow_split: bool = False,
        dry_run: bool = False,
    ) -> Resolved:
        """Resolve a divergence: their commits stay, our unpublished ones are committed on top.

        Other tables that diverged and share a transaction with this one are resolved with it.

        Args:
            name: The table.
            keep: Whose commits keep their versions; a log file is never overwritten.
            allow_split: Lose the part of a transaction in this table although its parts in other tables
                cannot be reverted; by default that is an UnsupportedOperationError.
            dry_run: Change nothing, and report what would happen to each of our commits.
        """
        if keep != "theirs":
            raise InvalidArgumentError(
                f"keep={keep!r} is not possible: a log file is never overwritten",
                suggestion="to keep ours, move their commit files away, then call repair()",
            )
        return coordinator.Coordinator(self._database).recommit(
            name, allow_split=allow_split, dry_run=dry_run
        )

    def fence(self, name: str) -> int | None:
        """Keep out writers that bypass the catalog; readers can still read the table.

        A commit adds the writer feature ``deltasqlManaged`` to the table's protocol.

        Returns:
            The version of that commit, or None if the table was already fenced.
        """
        return coordinator.Coordinator(self._database).set_fence(name, fenced=True)

    def unfence(self, name: str) -> int | None:
        """Remove the fence; return the version of that commit, or None if there was no fence."""
        return coordinator.Coordinator(self._database).set_fence(name, fenced=False)

    def policy(self, name: str) -> str:
        """What happens to commits of other writers beyond the head: ``freeze`` or ``adopt``."""
        return str(registry.find(self._database, name).settings.get(drift.FOREIGN_COMMITS, drift.FREEZE))

    def set_policy(self, name: str, policy: Literal["freeze", "adopt"]) -> None:
        """Set what happens to commits of other writers beyond the head."""
        if policy not in (drift.FREEZE, drift.ADOPT):
            raise InvalidArgumentError(f"unknown policy {policy!r}", suggestion="use freeze or adopt")
        registry.set_table_setting(self._database, name, drift.FOREIGN_COMMITS, policy)


@overload
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["r"] = "r",
) -> TxnLogReader: ...
@overload
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["w"],
) -> TxnLogWriter: ...
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["r", "w"] = "r",
) -> TxnLogReader | TxnLogWriter:
    """Open a table's transaction log at the low level: file-backed for a path, SQL-backed for an address.

    Args:
        path_or_uri: A table's root, or its ``deltasql://`` address. The address of a table that version 0
            creates needs ``&location=``.
        storage_options: Options for the object store.
        mode: ``r`` reads versions, files and history; ``w`` appends commits, action by action as given. A
            SQL-backed log is published by the table's next commit or by ``deltasql mirror run``.

    Example:
        >>> [a.path for a in open_log("/lake/orders").files(version=3)]
        >>> open_log("/lake/orders", mode="w").commit(4, [add])
    """
    if not is_deltasql(path_or_uri):
        if mode == "w":
            return commit_file.FileTxnLogWriter(path_or_uri, storage_options)
        return log_reader.open_file_log(path_or_uri, storage_options)
    address = parse_address(path_or_uri)
    name = address.require_table()
    opened = database.Database.open(address)
    if mode == "w":
        location = address.location or registry.find(opened, name).location
        stores = {location: storage_options} if storage_options else None
        commit = coordinator.Coordinator(opened, stores).ratify_or_conflict
        return log_writer.SqlTxnLogWriter(opened, name, location, commit)
    registry.find(opened, name)
    return txn_log.SqlTxnLogReader(opened, name)
