"""Scratch tables: a log of one version that names real files, on which delta-spark reads and writes.

Reads keep their logs as long as the session. Operations write new files below a scratch table; a commit in
SQL makes them files of the real table.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import time
import uuid
import weakref
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.address import Address
from deltalakedb.delta_log.names import commit_path
from deltalakedb.delta_log.optional_files import version_checksum, write_checksum
from deltalakedb.exceptions import DeltaError, InvalidArgumentError, UnsupportedOperationError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import snapshots
from deltalakedb.protocol.actions import Action, Add, CommitInfo, DomainMetadata, encode_commit
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.features import (
    COMMITTER_FEATURES,
    FENCE,
    SPARK_FEATURES,
    check_writable,
    tracks_rows,
    without_features,
)
from deltalakedb.protocol.properties import IN_COMMIT_TIMESTAMPS, ROW_TRACKING, is_on
from deltalakedb.spark.expressions import path_name
from deltalakedb.spark.sessions import check_delta
from deltalakedb.storage.store import is_local, open_store
from deltalakedb.table.arguments import instant_ms
from deltalakedb.table.handle import TableHandle, require_handle
from deltalakedb.table.locations import AZURE_SCHEMES
from deltalakedb.table.roots import FILES_FOLDER, Root, with_absolute_path
from deltalakedb.table.scratch import (
    ErrorContext,
    ScratchCommits,
    ScratchTable,
    in_partitions_of,
    removes,
    submit,
    translate_errors,
    with_read_set,
)
from deltalakedb.table.write_locks import WORK_FOLDER, remove_folder, work_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    import deltalake
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.read_set import ReadSet
    from deltalakedb.protocol.txn_log import Committed, Snapshot

#: the setting for the number of partitions into which delta-spark divides the files of a log
_PARTS: Final = "spark.databricks.delta.snapshotPartitions"
_FILES_PER_PART: Final = 5_000
_MOST_PARTS: Final = 50
#: fields of delta-spark in the checksum of a log without files
_NO_FILES: Final = {
    "numDeletedRecordsOpt": 0,
    "numDeletionVectorsOpt": 0,
    "allFiles": [],
    "deletedRecordCountsHistogramOpt": {"deletedRecordCounts": [0] * 10},
}
#: the paths of a session's logs for reads, by a hash of their content
_logs: weakref.WeakKeyDictionary[SparkSession, dict[str, str]] = weakref.WeakKeyDictionary()
#: Hadoop's names of URL schemes
_HADOOP: Final = {"s3": "s3a", "s3n": "s3a", "gcs": "gs"}
#: storage options that name an account, and an endpoint other than that of Azure's public cloud
_ACCOUNT: Final = ("azure_storage_account_name", "account_name")
_ENDPOINT: Final = ("azure_storage_endpoint", "azure_endpoint", "endpoint")
#: the numbers of partitions that operations in progress need, by session
_needed_parts: defaultdict[str, list[int]] = defaultdict(list)
_parts_lock = threading.Lock()
#: a scratch log has one version
_FIRST: Final = commit_path(0)
#: locations that the executors of a session can read, as far as is known
_shared: weakref.WeakKeyDictionary[SparkSession, set[str]] = weakref.WeakKeyDictionary()
#: how Spark and Java report a missing file
_FILE_MISSING: Final = ("FileNotFoundException", "FILE_NOT_EXIST", "NoSuchFileException", "does not exist")
#: Spark's message if it does not know an error class of Delta
_UNKNOWN_CLASS: Final = "Cannot find main error class"
#: violated constraints, as Spark Connect's client reports them
_CONSTRAINTS: Final = (
    "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES]",
    "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED]",
    "[DELTA_EXCEED_CHAR_VARCHAR_LIMIT]",
)
_LONGEST_MESSAGE: Final = 1000


# ---- storage that driver and executors share ---------------------------------------------------------------


def runs_here(spark: SparkSession) -> bool:
    """Whether executors run on this machine."""
    return (spark.conf.get("spark.master", "") or "").startswith("local")


def require_shared_path(spark: SparkSession, location: str, probe: str, *, table: str) -> None:
    """Check once per location that executors on other machines find a table's files at the driver's path.

    Spark itself would report missing files, or write them to disks of other machines. The probe is a
    non-empty text file, or a folder in which to create one.
    """
    if runs_here(spark) or location in _shared.get(spark, ()):
        return
    if not is_local(location):
        if is_local(probe):
            raise UnsupportedOperationError(
                f"executors cannot reach the scratch table of {location}: it is on the driver's disk",
                table=table,
                suggestion="write from a local session, or move the table to a disk that all machines mount",
            )
        return
    with ExitStack() as stack:
        if (file := Path(probe)).is_dir():
            file /= f"seen-{uuid.uuid4().hex}.txt"
            file.write_text("seen\n")
            stack.callback(file.unlink)
        if file.exists():
            if not _is_readable(spark, file):
                raise not_shared_error(location, table=table)
            _shared.setdefault(spark, set()).add(location)


def not_shared_error(location: str, *, table: str | None = None) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"executors cannot read {location}",
        table=table,
        suggestion="mount it on every node under the same path, or keep the table on an object store",
    )


def _is_readable(spark: SparkSession, file: Path) -> bool:
    try:
        return bool(spark.read.text(file.as_uri()).head(1))
    except Exception as error:  # of PySpark or py4j
        if any(word in str(error) for word in _FILE_MISSING):
            return False
        raise


# ---- reads -------------------------------------------------------------------------------------------------


def spark_path(location: str, options: Mapping[str, str] | None = None) -> str:
    """The Hadoop URL of a location.

    In Azure, storage options and the environment name the account if the URL does not.

    Raises:
        InvalidArgumentError: The account is unknown, or the endpoint is not that of Azure's public cloud.
    """
    scheme, _, rest = location.partition("://")
    if scheme not in AZURE_SCHEMES:
        return f"{_HADOOP[scheme]}://{rest}" if scheme in _HADOOP else location
    container, _, path = rest.partition("/")
    if "@" in container:
        return location if scheme.startswith("abfs") else f"abfss://{rest}"
    environment = {key: value for key, value in os.environ.items() if key.startswith("AZURE_")}
    given = {key.lower(): value for key, value in {**environment, **(options or {})}.items()}
    account = next((given[name] for name in _ACCOUNT if given.get(name)), None)
    if account is None or any(given.get(name) for name in _ENDPOINT):
        raise InvalidArgumentError(
            f"Spark needs the storage account in the URL of {location}, "
            + ("and none is set" if account is None else "and the endpoint is not the default one"),
            suggestion="set the storage option azure_storage_account_name, or give the table a location such "
            "as abfss://container@account.dfs.core.windows.net/path",
        )
    return f"abfss://{container}@{account}.dfs.core.windows.net/{path}"


def read_files(
    spark: SparkSession, snapshot: Snapshot, adds: Iterable[Add], root: Root, *, table: str
) -> DataFrame:
    """The rows of some files of a snapshot, read by delta-spark from a log that names only them.

    The log stays as long as the session: a DataFrame may be planned again at any time, and for a second read
    of the same files Delta has the log in its cache.
    """
    provided = [_for_spark(with_absolute_path(add, root.paths), root.options) for add in adds]
    state = encode_commit([snapshot.protocol, snapshot.metadata, *provided])
    known = _logs.setdefault(spark, {})
    key = hashlib.sha256(state).hexdigest()
    if (place := known.get(key)) is None:
        place = _write_read_log(spark, encode_commit([_initial_commit_info(snapshot)]) + state, root, table)
        with log_parts(spark, len(provided)):
            # reads the log now, while the setting for short logs applies
            spark.sql(f"DESCRIBE DETAIL {path_name(place)}").collect()
        known[key] = place
    return spark.read.format("delta").load(place)


def _write_read_log(spark: SparkSession, log: bytes, root: Root, table: str) -> str:
    """Write a log of one version for a session to read; return the folder's path for Spark."""
    here = runs_here(spark)
    above = tempfile.mkdtemp(prefix="deltasql-spark-") if here else root.location
    options = None if here else root.options
    # the log store recognises the folder's name and sends no request to the service
    place = f"{above}/{WORK_FOLDER}/{work_name()}"
    store = open_store(place, options)
    store.put(_FIRST, log)
    if here:
        weakref.finalize(spark, shutil.rmtree, above, ignore_errors=True)
    elif root.is_local:
        weakref.finalize(spark, remove_folder, Path(place))
    else:
        weakref.finalize(spark, store.delete, _FIRST)
    require_shared_path(spark, root.location, f"{place}/{_FIRST}", table=table)
    return spark_path(place, options)


def _for_spark(add: Add, options: Mapping[str, str] | None) -> Add:
    """Convert paths to Hadoop URLs; those of local files are ``file:/`` with one slash."""

    def hadoop(url: str) -> str:
        local = url.startswith("file:///")
        return f"file:/{url.removeprefix('file:///')}" if local else spark_path(url, options)

    vector = add.deletion_vector
    if vector is not None and vector.storage_type == "p":
        vector = replace(vector, path_or_inline_dv=hadoop(vector.path_or_inline_dv))
    return replace(add, path=hadoop(add.path), deletion_vector=vector)


def _initial_commit_info(snapshot: Snapshot) -> CommitInfo:
    now = time.time_ns() // 1_000_000
    info: dict[str, Any] = {"timestamp": now, "inCommitTimestamp": now}
    return CommitInfo(extra={**info, "operation": f"VERSION {snapshot.version}", "operationParameters": {}})


# ---- operations --------------------------------------------------------------------------------------------


def open_for_write(
    spark: SparkSession,
    table: str | Address | deltalake.DeltaTable,
    storage_options: dict[str, str] | None = None,
) -> TableHandle:
    """Open a table for an operation, at its newest version, also in a transaction."""
    check_delta(spark)
    if isinstance(table, str | Address):
        found = TableHandle.open(table, storage_options=storage_options)
    else:
        found = require_handle(table)
    found.refresh()
    return found


def open_at(
    uri: str | Address,
    version: int | None,
    timestamp: str | datetime | None,
    storage_options: dict[str, str] | None = None,
) -> TableHandle:
    """Open a table at a version or a time, by default at the newest version."""
    if version is not None and timestamp is not None:
        raise InvalidArgumentError("version and timestamp exclude each other", suggestion="pass only one")
    table = TableHandle.open(uri, version=version, storage_options=storage_options)
    if timestamp is not None:
        table.load_at(instant_ms(timestamp), strict=True)
    return table


def other_query(app_id: str, batch: int, recorded: int, *, table: str | None = None) -> InvalidArgumentError:
    """The error if another query has committed a batch with this number and application id."""
    return InvalidArgumentError(
        f"another query has committed batch {recorded} as application {app_id!r}: batch {batch} of this one "
        "would be skipped as a repetition, and its rows would be lost",
        table=table,
        suggestion="a query with a new checkpoint location needs a new application id (app_id of "
        "foreach_batch, the option appId of a sink); no two queries may share one",
    )


def candidates(table: TableHandle, where: Expr | None) -> tuple[list[Add], ReadSet]:
    """The files whose rows an operation may rewrite, and its read set.

    Raises:
        UnsupportedOperationError: An open transaction wrote some of them, and they have no row ids yet.
    """
    snapshot = table.snapshot
    files, reads = with_read_set(table, where)
    tracked = tracks_rows(snapshot.protocol) and is_on(snapshot.metadata, ROW_TRACKING)
    if tracked and any(add.base_row_id is None for add in files):
        raise UnsupportedOperationError(
            "rows of this transaction get their row ids at the commit, and cannot be rewritten before",
            table=table.name,
            suggestion="commit first, or combine the two operations into one",
        )
    return files, reads


def replaced_files(table: TableHandle, new: Iterable[Action], *, dynamic: bool) -> list[Action]:
    """Removes of the files that an overwrite replaces: all, or those in the partitions of new files.

    Partitions are compared by value: delta-spark compares strings, which writers spell differently.
    """
    partly = dynamic and table.snapshot.metadata.partition_columns
    adds = (action for action in new if isinstance(action, Add))
    return removes(in_partitions_of(table.source, adds) if partly else table.source.adds())


def run_on_scratch(
    spark: SparkSession,
    table: TableHandle,
    run: Callable[[str], object],
    *,
    read: Snapshot,
    files: Sequence[Add],
    reads: ReadSet,
    replaced: Callable[[Sequence[Action]], list[Action]] | None = None,
) -> tuple[Mapping[str, Any], Committed | None] | None:
    """Run an operation of delta-spark on some files of a table, and commit its changes.

    Args:
        spark: The session.
        table: The open table.
        run: Calls delta-spark on the table at a path.
        read: The snapshot that the operation began with, before the files were listed.
        files: The files that delta-spark sees.
        reads: What the operation depends on, for the check for conflicts.
        replaced: Returns removes of further files, which delta-spark does not see, for its actions.

    Returns:
        delta-spark's metrics, and the commit (None in a transaction); None if there was nothing to do.
    """
    check_writable(read.protocol, table=table.name, also=COMMITTER_FEATURES | SPARK_FEATURES)
    domains = snapshots.domains(table.database, table.row, read.version)
    failpoint("data.before")
    with SparkScratchTable(table.root) as scratch, log_parts(spark, len(files)):
        require_shared_path(spark, table.root.location, str(scratch.folder), table=table.name)
        scratch.write_spark_log(read, files, domains)
        with translate_delta_errors(ErrorContext.at(table)):
            run(str(scratch.folder))
        commits = scratch.read_commits()
        more = [] if replaced is None else replaced(commits.actions)
        infos = [action for action in commits.actions if isinstance(action, CommitInfo)]
        if not more and len(infos) == len(commits.actions):
            return None
        committed = submit(table, read, scratch, commits, reads, more, handled_features=SPARK_FEATURES)
    return infos[0].extra.get("operationMetrics") or {} if infos else {}, committed


class SparkScratchTable(ScratchTable):
    """A scratch table for delta-spark to write to, whose new files become the real table's."""

    stats_include_nan = True
    _tracked = False

    def write_spark_log(
        self, snapshot: Snapshot, adds: Sequence[Add], domains: Mapping[str, DomainMetadata]
    ) -> None:
        """Write the log that makes this folder a Delta table for delta-spark."""
        self._version = 0
        provided = self._work.provide(adds)
        self._provided.update((ours.path, (ours, add)) for ours, add in zip(provided, adds, strict=True))
        # a fence blocks writers that bypass the catalog; delta-spark does not bypass it here
        protocol = without_features(snapshot.protocol, {FENCE})
        self._hidden = [FENCE] if protocol != snapshot.protocol else []
        self._tracked = tracks_rows(snapshot.protocol)
        info, store = _initial_commit_info(snapshot), open_store(str(self.folder))
        actions: list[Action] = [info, protocol, snapshot.metadata, *domains.values(), *provided]
        store.put(_FIRST, encode_commit(actions))
        if not provided:
            # without it delta-spark replays the log in jobs that take longer than a small write
            timed = is_on(snapshot.metadata, IN_COMMIT_TIMESTAMPS)
            checksum = version_checksum(
                protocol,
                snapshot.metadata,
                num_files=0,
                size_bytes=0,
                txns=(),
                domains=domains.values(),
                in_commit_timestamp=info.extra["inCommitTimestamp"] if timed else None,
            )
            write_checksum(store, 0, checksum | _NO_FILES)

    def read_commits(self) -> ScratchCommits:
        """What delta-spark did. The commit assigns the row ids of new files."""
        found = super().read_commits()
        adds = [action for action in found.actions if isinstance(action, Add)]
        new = dict.fromkeys((*found.new_files, *filter(None, map(self._new_vector, adds))))
        known = {real.path for _, real in self._provided.values()}

        def untracked(action: Action) -> Action:
            if not self._tracked or not isinstance(action, Add) or action.path in known:
                return action
            return replace(action, base_row_id=None, default_row_commit_version=None)

        return replace(found.each(untracked), new_files=tuple(new))

    def _new_vector(self, add: Add) -> str | None:
        vector = add.deletion_vector
        if vector is None or vector.storage_type != "u" or vector.path_or_inline_dv.startswith(FILES_FOLDER):
            return None
        path = dv_path(vector)
        return path if path is not None and (self.folder / path).exists() else None


@contextmanager
def log_parts(spark: SparkSession, files: int) -> Iterator[None]:
    """Let delta-spark read a scratch log in few tasks: its default of 50 takes longer than the operation.

    Threads share the session and its setting: the last one unsets it. A value set by the user stays.
    """
    found = getattr(spark, "_jsparkSession", None)  # several Python objects may share a session
    needed = _needed_parts[str(spark.session_id if found is None else found.sessionUUID())]  # type: ignore[attr-defined]
    wanted = min(_MOST_PARTS, 1 + files // _FILES_PER_PART)
    with _parts_lock:
        if ours := _is_our_setting(spark, needed):
            needed.append(wanted)
            spark.conf.set(_PARTS, str(max(needed)))
    try:
        yield
    finally:
        if ours:
            with _parts_lock:
                ours = _is_our_setting(spark, needed)
                needed.remove(wanted)
                if ours and needed:
                    spark.conf.set(_PARTS, str(max(needed)))
                elif ours:
                    spark.conf.unset(_PARTS)


def _is_our_setting(spark: SparkSession, needed: Sequence[int]) -> bool:
    """Whether operations have set the value; otherwise the user has."""
    return spark.conf.get(_PARTS, None) == (str(max(needed)) if needed else None)


@contextmanager
def translate_delta_errors(about: ErrorContext) -> Iterator[None]:
    """Raise delta-spark's errors as OperationError with their message, if PySpark has no class for them."""
    with translate_errors(about):
        try:
            yield
        except Exception as error:
            # by its name: a client of Spark Connect has no py4j
            if type(error).__name__ == "Py4JJavaError":
                text = _java_message(error)
            elif any(name in str(error) for name in _CONSTRAINTS):
                text = str(error).partition("\n\nJVM stacktrace")[0]
            else:
                raise
            raise DeltaError(" ".join(text.split())[:_LONGEST_MESSAGE]) from error


def _java_message(error: Any) -> str:
    """The message of the innermost cause of a Java error, or of the error that PySpark failed to convert."""
    at: Any = error
    while at is not None:
        java, message = getattr(at, "java_exception", None), None
        while java is not None:
            message, java = java.getMessage() or message, java.getCause()
        if message and _UNKNOWN_CLASS not in message:
            return str(message)
        at = at.__context__
    return str(error).partition("\n\tat ")[0]
