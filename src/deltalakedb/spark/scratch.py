"""Scratch tables that delta-spark opens: a log of one version that names real files."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.delta_log.crc import VersionChecksum, write_checksum
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.protocol.actions import Add, CommitInfo
from deltalakedb.protocol.codec import encode_commit
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.features import FENCE, without_features
from deltalakedb.protocol.properties import IN_COMMIT_TIMESTAMPS, is_on
from deltalakedb.protocol.replay import Replay
from deltalakedb.protocol.row_tracking import tracks_rows
from deltalakedb.spark.sight import check_seen, runs_here
from deltalakedb.storage.store import open_store
from deltalakedb.table.in_flight import WORK_FOLDER, work_name
from deltalakedb.table.lending import LENT, Absolute
from deltalakedb.table.staging import Harvest, Scratch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.protocol.actions import Action, DomainMetadata
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.storage.store import Store
    from deltalakedb.table.roots import Root

#: into how many parts delta-spark divides the files of a log
_PARTS: Final = "spark.databricks.delta.snapshotPartitions"
_FILES_A_PART: Final = 5_000
_MOST_PARTS: Final = 50
#: delta-spark's count of files by how many of their rows are deleted
_NONE_DELETED: Final = {"deletedRecordCounts": [0] * 10}
#: logs that a session has for its reads, by what they say
_logs: weakref.WeakKeyDictionary[SparkSession, dict[str, str]] = weakref.WeakKeyDictionary()
#: our schemes of URLs, and Hadoop's
_HADOOP: Final = {"s3": "s3a", "s3n": "s3a", "gcs": "gs"}
_ABFS: Final = ("abfs", "abfss")
_AZURE: Final = ("az", "adl", "azure", *_ABFS)
#: storage options that name an account, and an endpoint other than that of Azure's public cloud
_ACCOUNT: Final = ("azure_storage_account_name", "account_name")
_ENDPOINT: Final = ("azure_storage_endpoint", "azure_endpoint", "endpoint")
#: by session, how many parts the operations under way have asked for
_asked: dict[str, list[int]] = {}
_asking = threading.Lock()
#: delta-spark begins every log at version 0
_FIRST: Final = commit_path(0)


def spark_path(location: str, options: Mapping[str, str] | None = None) -> str:
    """A location as Spark's file systems call it.

    Args:
        location: A path or URL.
        options: Storage options, which name the account if a URL of Azure does not; by default those of the
            environment.

    Raises:
        InvalidArgumentError: Nothing names the account, or the endpoint is not that of Azure's public cloud.
    """
    scheme, _, rest = location.partition("://")
    if scheme not in _AZURE:
        return f"{_HADOOP[scheme]}://{rest}" if scheme in _HADOOP else location
    container, _, path = rest.partition("/")
    if "@" in container:
        return location if scheme in _ABFS else f"abfss://{rest}"
    around = {key: value for key, value in os.environ.items() if key.startswith("AZURE_")}
    given = {key.lower(): value for key, value in {**around, **(options or {})}.items()}
    account = next((given[name] for name in _ACCOUNT if given.get(name)), None)
    if account is None or any(given.get(name) for name in _ENDPOINT):
        raise InvalidArgumentError(
            f"Spark reads {location} by a URL with the storage account in it, "
            + ("and none is named" if account is None else "and the endpoint is not the default one"),
            suggestion="set the storage option azure_storage_account_name, or give the table a location such "
            "as abfss://container@account.dfs.core.windows.net/path",
        )
    return f"abfss://{container}@{account}.dfs.core.windows.net/{path}"


def frame_over(
    spark: SparkSession, snapshot: Snapshot, adds: Iterable[Add], root: Root, *, table: str
) -> DataFrame:
    """The rows of some files of a snapshot, read by delta-spark from a log that names only them.

    The log stays as long as the session: a DataFrame may be planned again at any time, and the same files may
    be asked for again, which Delta then knows already.
    """
    lent = [_for_spark(add, root.options) for add in Absolute(root.paths).lend(list(adds))]
    state = encode_commit([snapshot.protocol, snapshot.metadata, *lent])
    known = _logs.setdefault(spark, {})
    key = hashlib.sha256(state).hexdigest()
    if (place := known.get(key)) is None:
        place = _lay(spark, encode_commit([_opening(snapshot)]) + state, root, table)
        with log_parts(spark, len(lent)):
            # reads the log at once, while it is told that the log is short
            spark.sql(f"DESCRIBE DETAIL delta.`{place.replace('`', '``')}`").collect()
        known[key] = place
    return spark.read.format("delta").load(place)


def _lay(spark: SparkSession, log: bytes, root: Root, table: str) -> str:
    """Write a log of one version for a session to read; where it is, as Spark calls it."""
    here = runs_here(spark)
    above = tempfile.mkdtemp(prefix="deltasql-spark-") if here else root.location
    # by the folder's name the log store knows that no catalog has to be asked
    place = f"{above}/{WORK_FOLDER}/{work_name()}"
    store = open_store(place, None if here else root.options)
    store.put(_FIRST, log)
    folder = Path(place) if root.is_local or here else None
    weakref.finalize(spark, _clear, store, folder, Path(above) if here else None)
    check_seen(spark, root.location, f"{place}/{_FIRST}", table=table)
    return spark_path(place, None if here else root.options)


def _clear(store: Store, folder: Path | None, above: Path | None) -> None:
    store.delete(_FIRST)
    empties = [folder / "_delta_log", folder, folder.parent] if folder is not None else []
    for empty in [*empties, *([above] if above is not None else [])]:
        try:
            empty.rmdir()
        except OSError:  # others are at work there
            return


def _for_spark(add: Add, options: Mapping[str, str] | None) -> Add:
    """Hadoop spells local files with one slash; its own paths never have three."""
    vector = add.deletion_vector
    if vector is not None and vector.storage_type == "p":
        vector = replace(vector, path_or_inline_dv=_hadoop(vector.path_or_inline_dv, options))
    return replace(add, path=_hadoop(add.path, options), deletion_vector=vector)


def _hadoop(url: str, options: Mapping[str, str] | None) -> str:
    return f"file:/{url.removeprefix('file:///')}" if url.startswith("file:///") else spark_path(url, options)


def _opening(snapshot: Snapshot) -> CommitInfo:
    now = time.time_ns() // 1_000_000
    info: dict[str, Any] = {"timestamp": now, "inCommitTimestamp": now}
    return CommitInfo(extra={**info, "operation": f"VERSION {snapshot.version}", "operationParameters": {}})


def _checksum(actions: Iterable[Action], moment: int) -> VersionChecksum:
    """What a log without files comes to."""
    state = Replay().commit(actions)
    dated = is_on(state.require()[1], IN_COMMIT_TIMESTAMPS)
    told = VersionChecksum.of(state, in_commit_timestamp=moment if dated else None)
    return replace(told, extra={"allFiles": [], "deletedRecordCountsHistogramOpt": _NONE_DELETED})


class SparkScratch(Scratch):
    """A scratch table for delta-spark to write to, whose new files become the real table's."""

    bounds_nan = True

    @classmethod
    def at(cls, root: Root, spark: SparkSession, *, table: str) -> SparkScratch:
        """A scratch table at a place that driver and executors share.

        Raises:
            UnsupportedOperationError: There is none.
        """
        check_shared(root, spark, table=table)
        made = cls.for_writing(root, table=table)
        assert isinstance(made, SparkScratch)  # noqa: S101 - for_writing makes what it is called on
        try:
            check_seen(spark, root.location, str(made.folder), table=table)
        except BaseException:
            made.remove()
            raise
        return made

    def lay_all(self, snapshot: Snapshot, adds: Iterable[Add], domains: Mapping[str, DomainMetadata]) -> None:
        """Write the log that makes this folder the table, with everything that delta-spark minds."""
        adds = list(adds)
        lent = self._lender.lend(adds)
        self._lent.update((ours.path, (ours, add)) for ours, add in zip(lent, adds, strict=True))
        # a fence keeps out writers that pass the catalog by, which delta-spark does not do here
        protocol = without_features(snapshot.protocol, {FENCE})
        self._hidden = snapshot.protocol if protocol != snapshot.protocol else None
        opening, store = _opening(snapshot), open_store(str(self.folder))
        actions: list[Action] = [opening, protocol, snapshot.metadata, *domains.values(), *lent]
        store.put(_FIRST, encode_commit(actions))
        if not lent:
            # without it delta-spark replays the log, by jobs that take longer than a small write
            write_checksum(store, 0, _checksum(actions, opening.extra["inCommitTimestamp"]))
        self._tracked = tracks_rows(snapshot.protocol)

    _tracked = False

    def harvest(self, *, after: int) -> Harvest:
        """What delta-spark did; row ids of new files are left to the commit, which alone knows the next."""
        found = super().harvest(after=after)
        vectors = dict.fromkeys(
            path
            for action in found.actions
            if isinstance(action, Add) and (path := self._new_vector(action)) is not None
        )
        new = set(found.new_files)
        whole = found
        if self._tracked:
            known = {real.path for _, real in self._lent.values()}
            whole = found.each(lambda action: _untracked(action, known))
        return replace(whole, new_files=(*found.new_files, *(v for v in vectors if v not in new)))

    def _new_vector(self, add: Add) -> str | None:
        vector = add.deletion_vector
        if vector is None or vector.storage_type != "u" or vector.path_or_inline_dv.startswith(LENT):
            return None
        path = dv_path(vector)
        return path if path is not None and (self.folder / path).exists() else None


def _untracked(action: Action, known: Collection[str]) -> Action:
    if not isinstance(action, Add) or action.path in known:
        return action
    return replace(action, base_row_id=None, default_row_commit_version=None)


def check_shared(root: Root, spark: SparkSession, *, table: str) -> None:
    """Refuse to write to an object store from a cluster: new files pass through the driver's disk."""
    if not root.is_local and not runs_here(spark):
        raise UnsupportedOperationError(
            f"executors cannot reach the scratch table of {root.location}: it lies on the driver's disk",
            table=table,
            suggestion="write from a local session, or give the table a location that all machines mount",
        )


@contextmanager
def log_parts(spark: SparkSession, files: int) -> Iterator[None]:
    """A scratch log is short: fifty tasks to read it would take longer than the rest.

    The setting is the session's, and several threads may be here at once: it goes with the last of them. What
    the session's user has set stays.
    """
    key, wanted = _session_id(spark), min(_MOST_PARTS, 1 + files // _FILES_A_PART)
    with _asking:
        asked = _asked.get(key, [])
        ours = spark.conf.get(_PARTS, None) == (str(max(asked)) if asked else None)
        if ours:
            spark.conf.set(_PARTS, str(max([*asked, wanted])))
            _asked.setdefault(key, []).append(wanted)
    try:
        yield
    finally:
        if ours:
            _leave(spark, key, wanted)


def _leave(spark: SparkSession, key: str, wanted: int) -> None:
    """Take back what one thread has asked for."""
    with _asking:
        asked = _asked[key]
        before = str(max(asked))
        asked.remove(wanted)
        if not asked:
            del _asked[key]
        if spark.conf.get(_PARTS, None) != before:
            return  # the session's user has set it meanwhile
        if asked:
            spark.conf.set(_PARTS, str(max(asked)))
        else:
            spark.conf.unset(_PARTS)


def _session_id(spark: SparkSession) -> str:
    """The id of a session, which several objects may stand for."""
    found = getattr(spark, "_jsparkSession", None)
    return str(spark.session_id if found is None else found.sessionUUID())  # type: ignore[attr-defined]
