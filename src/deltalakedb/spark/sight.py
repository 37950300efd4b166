"""Whether executors see the files that the driver sees."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from deltalakedb.exceptions import StorageMissingError, UnsupportedOperationError
from deltalakedb.extras import require
from deltalakedb.protocol.dv import dv_path
from deltalakedb.table.places import is_local
from deltalakedb.table.restore import missing_files
from deltalakedb.table.unreadable import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from deltalakedb.protocol.actions import Add
    from deltalakedb.table.roots import Root

#: places that a session's executors have been asked about
_seen: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
#: what Spark says of a file that is not there, in its own words and in Java's
_GONE: Final = ("FileNotFoundException", "FILE_NOT_EXIST", "NoSuchFileException", "does not exist")


def runs_here(spark: SparkSession) -> bool:
    """Whether executors see the files of this machine."""
    return (spark.conf.get("spark.master", "") or "").startswith("local")


def check_seen(spark: SparkSession, location: str, probe: str, *, table: str) -> None:
    """See once that executors on other machines find a table's folder under the driver's path.

    Spark itself would say that files are gone, or write them where nobody finds them.

    Args:
        spark: The session.
        location: The table's root; places on object stores are not looked at.
        probe: A file below it that has a line, or a folder in which one can be made.
        table: The table's name, for the message.

    Raises:
        UnsupportedOperationError: They do not find it.
    """
    if not is_local(location) or runs_here(spark) or location in _seen.get(spark, ()):
        return
    file = Path(probe)
    if not file.exists():
        return
    made = file / f"seen-{uuid.uuid4().hex}.txt" if file.is_dir() else None
    if made is not None:
        made.write_text("seen\n")
    try:
        found = _is_read(spark, made or file)
    finally:
        if made is not None:
            made.unlink()
    if not found:
        raise unseen(location, table=table)
    _seen.setdefault(spark, set()).add(location)


def check_here(location: str) -> None:
    """Refuse, on an executor, a local folder that is not there.

    Raises:
        UnsupportedOperationError: It is not.
    """
    if is_local(location) and not Path(location).is_dir():
        raise unseen(location)


def unseen(location: str, *, table: str | None = None) -> UnsupportedOperationError:
    """The error where a folder is not the same on all machines."""
    return UnsupportedOperationError(
        f"executors do not see {location}, where the driver has the table",
        table=table,
        suggestion="mount it on all machines under the same path, or keep the table on an object store",
    )


def read_present(
    read: Callable[[], Iterator[pa.RecordBatch]], root: Root, adds: Sequence[Add]
) -> Iterator[pa.RecordBatch]:
    """The rows of some files; if reading fails for one of them, a typed error says why.

    Args:
        read: Starts to read.
        root: The table's root.
        adds: The files.

    Raises:
        StorageMissingError: A file is not there any more.
        StorageAccessError, DataFileCorruptError, StorageError: A file cannot be read.
    """
    try:
        with reading(root, lambda: [(add.path, add.size) for add in adds]):
            yield from read()
    except Exception as error:
        vectors = (dv_path(add.deletion_vector) for add in adds if add.deletion_vector is not None)
        paths = [*(add.path for add in adds), *(path for path in vectors if path is not None)]
        if not (gone := missing_files(root, paths)):
            raise
        raise vacuumed(f"{gone[0]} under {root.location}") from error


def vacuumed(what: str, *, table: str | None = None, version: int | None = None) -> StorageMissingError:
    """The error for a file that a version needs and that was deleted, most likely by a vacuum."""
    return StorageMissingError(
        f"a data file of the version to read was deleted, most likely by a vacuum: {what}",
        table=table,
        version=version,
        suggestion="read a newer version; a stream goes on with a new checkpoint location and "
        "startingVersion=latest, or begins anew without startingVersion; to give streams more time, raise "
        "the table's delta.deletedFileRetentionDuration",
    )


def _is_read(spark: SparkSession, file: Path) -> bool:
    connect = require("pyspark.errors", "spark", "Spark").PySparkException
    classic = require("py4j.protocol", "spark", "Spark").Py4JError
    try:
        return bool(spark.read.text(file.as_uri()).head(1))
    except (connect, classic) as error:
        if any(word in str(error) for word in _GONE):
            return False
        raise
