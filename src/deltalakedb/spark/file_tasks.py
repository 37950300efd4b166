"""What tasks of ``format("deltasql")`` read: data files and changes, by delta-rs and without a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from deltalakedb.exceptions import StorageMissingError
from deltalakedb.protocol.dv import dv_path
from deltalakedb.spark.scratch import not_shared_error
from deltalakedb.table.locations import is_local
from deltalakedb.table.read.change_feed import read_changes
from deltalakedb.table.read.scan import arrow_schema, conformed, raw_table
from deltalakedb.table.restore import missing_files
from deltalakedb.table.roots import root_at
from deltalakedb.table.scratch import ErrorContext, translate_errors
from deltalakedb.table.unreadable import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.paths import TablePaths
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.read.change_feed import Change
    from deltalakedb.table.roots import Root

#: bytes of files that one task reads, as in Spark's own sources
_BYTES_PER_TASK: Final = 128 << 20


class TablePartition(InputPartition):
    """What a task needs to know of a table."""

    def __init__(self, snapshot: Snapshot, root: Root) -> None:
        super().__init__(None)
        self.snapshot = snapshot
        self.paths: TablePaths = root.paths
        self.storage_options: Mapping[str, str] | None = root.options

    def root(self) -> Root:
        """The table's root, opened by the task.

        Raises:
            UnsupportedOperationError: It is a folder that this machine does not have.
        """
        paths = self.paths
        require_folder(paths.root)
        return root_at(paths.root, self.storage_options, table=paths.table, outside=paths.outside)


class FilePartition(TablePartition):
    """Data files that one task reads."""

    def __init__(self, snapshot: Snapshot, root: Root, adds: list[Add]) -> None:
        super().__init__(snapshot, root)
        self.adds = adds


class ChangePartition(TablePartition):
    """Changes that one task reads."""

    def __init__(self, snapshot: Snapshot, root: Root, changes: list[Change]) -> None:
        super().__init__(snapshot, root)
        self.changes = changes


def split_files(snapshot: Snapshot, adds: Iterable[Add], root: Root) -> list[FilePartition]:
    """Files in groups for one task each."""
    groups: list[list[Add]] = []
    size = 0
    for add in adds:
        if not groups or size + add.size > _BYTES_PER_TASK:
            groups.append([])
            size = 0
        groups[-1].append(add)
        size += add.size
    return [FilePartition(snapshot, root, group) for group in groups]


def read_partition(
    partition: InputPartition, columns: list[str], predicate: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, by delta-rs.

    Args:
        partition: The task's files or changes; of another type if Spark has none for it.
        columns: The columns to read.
        predicate: Only rows for which it is true; files only.

    Raises:
        UnsupportedOperationError: The table's folder is not on this machine.
        StorageMissingError: A file is missing.
        StorageAccessError, DataFileCorruptError, StorageError: A file cannot be read.
    """
    if isinstance(partition, ChangePartition):
        root, snapshot, changes = partition.root(), partition.snapshot, partition.changes
        adds = [change.add for change in changes]
        return _read_present(lambda: read_changes(snapshot, changes, root, columns), root, adds)
    if isinstance(partition, FilePartition):
        root = partition.root()
        return _read_present(lambda: _read_files(partition, root, columns, predicate), root, partition.adds)
    return iter(())


def _read_files(
    partition: FilePartition, root: Root, columns: list[str], predicate: str | None
) -> Iterator[pa.RecordBatch]:
    snapshot = partition.snapshot
    whole = arrow_schema(snapshot.metadata.schema_string)
    schema = pa.schema([whole.field(name).with_nullable(True).remove_metadata() for name in columns])
    table = raw_table(snapshot, partition.adds, root)
    with translate_errors(
        ErrorContext(partition.paths.table, root.location, snapshot.version, snapshot.metadata)
    ):
        found = table.raw.scan(columns=columns, predicate=predicate)
    return conformed(pa.RecordBatchReader.from_stream(found), schema, table)


def _read_present(
    read: Callable[[], Iterator[pa.RecordBatch]], root: Root, adds: Sequence[Add]
) -> Iterator[pa.RecordBatch]:
    """Rows; a failure that a file is the reason for is raised as a typed error."""
    try:
        with reading(root, lambda: [(add.path, add.size) for add in adds]):
            yield from read()
    except Exception as error:
        vectors = (dv_path(add.deletion_vector) for add in adds if add.deletion_vector is not None)
        paths = [*(add.path for add in adds), *(path for path in vectors if path is not None)]
        if not (gone := missing_files(root, paths)):
            raise
        raise vacuumed_error(f"{gone[0]} under {root.location}") from error


def require_folder(location: str) -> None:
    """Refuse, on an executor, a local folder that this machine does not have.

    Raises:
        UnsupportedOperationError: There is no such folder.
    """
    if is_local(location) and not Path(location).is_dir():
        raise not_shared_error(location)


def vacuumed_error(what: str, *, table: str | None = None, version: int | None = None) -> StorageMissingError:
    """The error for a file that a version needs and that was deleted, most likely by a vacuum."""
    return StorageMissingError(
        f"a data file of the version to read was deleted, most likely by a vacuum: {what}",
        table=table,
        version=version,
        suggestion="read a newer version; a stream continues with a new checkpoint location and "
        "startingVersion=latest, or starts over without startingVersion; to give streams more time, raise "
        "the table's delta.deletedFileRetentionDuration",
    )
