"""The file-backed transaction log: reads any version from the files in ``_delta_log``."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, NamedTuple

from deltalakedb.delta_log.checkpoint import iter_checkpoint
from deltalakedb.delta_log.commit_file import LogFolder, is_large, iter_actions, iter_state, read_commit_info
from deltalakedb.delta_log.listing import Checkpoint, LogListing, list_log, newest_at
from deltalakedb.delta_log.names import checksum_path, commit_path
from deltalakedb.exceptions import (
    DeltaSqlError,
    LogCorruptError,
    LogError,
    LogGapError,
    LogMissingError,
    ProtocolError,
    StorageMissingError,
    VersionMissingError,
)
from deltalakedb.protocol.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Remove,
    Txn,
    decode_commit,
)
from deltalakedb.protocol.features import check_readable, check_schema
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.properties import (
    ENABLEMENT_TIMESTAMP,
    ENABLEMENT_VERSION,
    IN_COMMIT_TIMESTAMPS,
    is_on,
    number_or,
)
from deltalakedb.protocol.replay import Replay
from deltalakedb.protocol.txn_log import Commit, Snapshot, TxnLogReader, iso_time

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.storage import ObjectMeta, Store


#: the actions of a state without its files
_STATE_KINDS = frozenset({"protocol", "metaData", "txn", "domainMetadata"})


def open_file_log(
    location: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> FileTxnLogReader:
    """The transaction log of the table at a location, a path or a URL, read from its files.

    Raises:
        LogMissingError: There is no ``_delta_log`` with a commit or checkpoint in it.

    Example:
        >>> open_file_log("/data/sales").latest_version()  # doctest: +SKIP
        12
    """
    reader = FileTxnLogReader(location, storage_options)
    reader.versions()
    return reader


class FileTxnLogReader(LogFolder, TxnLogReader):
    """Reads a table's ``_delta_log``.

    It lists the log once, looks for newer commits when the newest version is requested, and caches the last
    state that it rebuilt. Threads may share it.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        store: Store | None = None,
    ) -> None:
        super().__init__(location, storage_options, store=store)
        self._lock = threading.RLock()
        self._listing = LogListing()
        self._states = StateBuilder(self.store)
        #: in-commit timestamps by version
        self._in_commit: dict[int, int | None] = {}
        #: a listing, and since when the table has in-commit timestamps
        self._since: tuple[LogListing, _Enablement | None] | None = None

    # ---- versions ----

    def latest_version(self) -> int:
        """The newest version; LogGapError if a version before it is missing."""
        return self._rebuildable(None)[1]

    def versions(self) -> Sequence[int]:
        return self._current().versions

    def commit_versions(self) -> Sequence[int]:
        """The versions that have a commit file, ascending; some of them may not be rebuildable."""
        return sorted(self._current().commits)

    def timestamp_of(self, version: int) -> int:
        """When a version was committed, in epoch milliseconds."""
        listing, version = self._rebuildable(version)
        return self._time(listing, version, self._enablement(listing))

    def version_at(self, timestamp_ms: int) -> int:
        listing = self._current()
        since, versions = self._enablement(listing), listing.versions
        if since is not None and since.timestamp is not None:
            # files of a copied table may be newer than their commits: never mix file times with commit times
            own = timestamp_ms >= since.timestamp
            versions = tuple(v for v in versions if (v >= since.version) is own)
        found = newest_at(versions, timestamp_ms, lambda v: self._time(listing, v, since))
        if found is None:
            first = f"; the oldest: {iso_time(self._time(listing, versions[0], since))}" if versions else ""
            what = f"the log has no version at or before {iso_time(timestamp_ms)}{first}"
            hint = "choose a later time, or a version by its number"
            raise VersionMissingError(what, table=self.location, suggestion=hint)
        return found

    # ---- state ----

    def snapshot(self, version: int | None = None) -> Snapshot:
        with self._state(version) as (state, at):
            protocol, metadata = state.require()
            check_schema(metadata, table=self.location, version=at)
            return Snapshot(at, self.timestamp_of(at), protocol, metadata)

    def files(self, version: int | None = None) -> Iterator[Add]:
        with self._state(version, files=True) as (state, _):
            return iter(list(state.files.values()))

    def tombstones(self, version: int | None = None) -> Iterator[Remove]:
        with self._state(version, files=True) as (state, _):
            return iter(list(state.tombstones.values()))

    def txns(self, version: int | None = None) -> Mapping[str, Txn]:
        with self._state(version) as (state, _):
            return dict(state.txns)

    def domains(self, version: int | None = None) -> Mapping[str, DomainMetadata]:
        with self._state(version) as (state, _):
            return dict(state.domains)

    # ---- commits ----

    def history(self, limit: int | None = None) -> Sequence[Commit]:
        listing = self._current()
        since = self._enablement(listing)
        newest = sorted(listing.commits, reverse=True)
        commits = []
        for version in newest if limit is None else newest[: max(0, limit)]:
            info = self._commit_info(listing, version)
            self._in_commit[version] = None if info is None else info.in_commit_timestamp
            operation = None if info is None else info.operation
            commits.append(Commit(version, self._time(listing, version, since), operation, info=info))
        return commits

    def commit_bytes(self, version: int) -> bytes:
        try:
            return self.store.get(commit_path(version))
        except StorageMissingError as e:
            self._current()  # raises LogMissingError if there is no log
            raise self._no_commit(version) from e

    def actions(self, version: int) -> Sequence[Action]:
        with self._error_context(version):
            return decode_commit(self.commit_bytes(version), source=commit_path(version))

    # ---- internals ----

    def _current(self) -> LogListing:
        """The listing, updated with newer commits; LogMissingError if there is no log."""
        with self._lock:
            old = self._listing
            if old.empty:
                self._relist()
            elif self.store.exists(commit_path(old.latest + 1)):
                self._listing = old.with_newer(list_log(self.store, start_after=commit_path(old.latest)))
            if self._listing.empty:
                hint = "check the location: a table has a folder _delta_log with a commit in it"
                what = f"there is no Delta log at {self.location}"
                raise LogMissingError(what, table=self.location, suggestion=hint)
            return self._listing

    def _relist(self) -> bool:
        """List the whole log again; return whether it has changed."""
        old, self._listing = self._listing, list_log(self.store)
        self._states.clear()
        return old != self._listing

    def _rebuildable(self, version: int | None) -> tuple[LogListing, int]:
        """The listing, and the version (None: the newest), which can be rebuilt from it."""
        listing = self._listing
        if version is None or not listing.can_rebuild(version):
            listing = self._current()
        wanted = listing.latest if version is None else version
        if listing.can_rebuild(wanted):
            return listing, wanted
        first, last = next(iter(listing.versions), None), listing.latest
        with self._error_context(wanted):
            if wanted < 0 or wanted > last or (first is not None and wanted < first):
                raise VersionMissingError(
                    f"the log has no version {wanted}" + (" any more" if 0 <= wanted <= last else ""),
                    suggestion=None if first is None else f"choose a version from {first} to {last}",
                )
            listing.plan(wanted)
            raise LogGapError(
                f"version {wanted} has neither a commit nor a checkpoint of its own",
                suggestion="choose a version that versions() returns",
            )

    @contextlib.contextmanager
    def _state(self, version: int | None, *, files: bool = False) -> Iterator[tuple[Replay, int]]:
        """The state at a version, locked against changes by other threads, and the version."""
        with self._lock:
            listing, version = self._rebuildable(version)
            with self._error_context(version):
                try:
                    state = self._states.build(listing, version, files=files)
                except (StorageMissingError, LogCorruptError):
                    # a clean-up may have deleted files that were listed earlier
                    if not self._relist():
                        raise
                    listing, version = self._rebuildable(version)
                    state = self._states.build(listing, version, files=files)
                protocol, metadata = state.require()
                check_readable(protocol, table=self.location)
                if version == listing.versions[-1]:  # an older version may lack a schema
                    check_schema(metadata, table=self.location, version=version)
            yield state, version

    def _enablement(self, listing: LogListing) -> _Enablement | None:
        """Since when the table has in-commit timestamps, by its newest readable metadata."""
        with self._lock:
            if self._since is None or self._since[0] is not listing:
                since = None
                # older versions have times even if the newest one cannot be read
                with contextlib.suppress(LogError, ProtocolError, IndexError):
                    state = self._states.build(listing, listing.versions[-1], files=False)
                    since = _enablement_of(state.metadata)
                self._since = (listing, since)
            return self._since[1]

    def _time(self, listing: LogListing, version: int, since: _Enablement | None) -> int:
        has_own = since is not None and version >= since.version
        own = self._in_commit_timestamp(listing, version) if has_own else None
        return own or listing.file_times[version]

    def _in_commit_timestamp(self, listing: LogListing, version: int) -> int | None:
        if version not in self._in_commit:
            time = None
            if version in listing.commits:
                info = self._commit_info(listing, version)
                time = None if info is None else info.in_commit_timestamp
            elif version in listing.checksums:
                # the commit file was deleted, but its checksum may have the time
                with contextlib.suppress(LogCorruptError, StorageMissingError):
                    checksum = decode_json(self.store.get(checksum_path(version)))
                    value = checksum.get("inCommitTimestampOpt") if isinstance(checksum, dict) else None
                    time = value if type(value) is int else None
            self._in_commit[version] = time
        return self._in_commit[version]

    def _commit_info(self, listing: LogListing, version: int) -> CommitInfo | None:
        meta = listing.commits[version]
        try:
            return read_commit_info(self.store, meta.path, size=meta.size)
        except StorageMissingError as e:
            raise self._no_commit(version) from e

    def _no_commit(self, version: int) -> VersionMissingError:
        return VersionMissingError(
            f"the log has no commit file of version {version}",
            table=self.location,
            version=version,
            suggestion="choose a version that commit_versions() returns",
        )

    @contextlib.contextmanager
    def _error_context(self, version: int) -> Iterator[None]:
        """Add the table and the version to every error."""
        try:
            yield
        except DeltaSqlError as e:
            e.table = self.location if e.table is None else e.table
            e.version = version if e.version is None else e.version
            raise


class _Enablement(NamedTuple):
    """Since when a table has in-commit timestamps; without a timestamp, since its first version."""

    version: int = 0
    timestamp: int | None = None


def _enablement_of(metadata: Metadata | None) -> _Enablement | None:
    if metadata is None or not is_on(metadata, IN_COMMIT_TIMESTAMPS):
        return None
    version = number_or(metadata.configuration.get(ENABLEMENT_VERSION), -1)
    timestamp = number_or(metadata.configuration.get(ENABLEMENT_TIMESTAMP), -1)
    return _Enablement() if version < 0 or timestamp < 0 else _Enablement(version, timestamp)


class _Built(NamedTuple):
    """A state, and the version and checkpoint that it was built from."""

    version: int
    checkpoint: Checkpoint | None
    state: Replay


class StateBuilder:
    """Rebuilds the state of a version, starting from the last state if possible.

    The returned state is cached, and the next call may modify it: copy what is needed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        #: the last state with files, and the last one without
        self._cached: dict[bool, _Built] = {}

    def clear(self) -> None:
        self._cached.clear()

    def build(self, listing: LogListing, version: int, *, files: bool) -> Replay:
        """The state at a version; without files it reads a fraction of a checkpoint.

        A torn checkpoint is replaced by an older one or by the commits alone. LogGapError if a version in
        between is missing, LogCorruptError if a commit is torn or no checkpoint can be read,
        StorageMissingError if a listed file was deleted.
        """
        for with_files in (True,) if files else (True, False):
            cached = self._cached.get(with_files)
            if cached is not None and cached.version == version:
                return cached.state
        torn: list[LogCorruptError] = []
        for plan in listing.plans(version):
            checkpoint, commits, state = plan.checkpoint, plan.files, Replay()
            cached, rest = self._cached.get(files), None
            if cached is not None and cached.version <= version and cached.checkpoint == checkpoint:
                rest = listing.files_between(cached.version, version)
            if cached is not None and rest is not None:
                state, commits = cached.state, rest
            elif checkpoint is not None:
                try:
                    for batch in iter_checkpoint(
                        self._store, checkpoint, kinds=None if files else _STATE_KINDS
                    ):
                        state.commit(batch)
                except LogCorruptError as e:
                    torn.append(e)
                    continue
            self._cached.pop(files, None)  # a state that is being changed belongs to no version
            for meta in commits:
                state.commit(self._actions(meta, files))
            self._cached[files] = _Built(version, checkpoint, state)
            return state
        raise torn[0]

    def _actions(self, meta: ObjectMeta, files: bool) -> list[Action]:
        if files or not is_large(meta):
            found = iter_actions(self._store, meta.path, size=meta.size)
        else:  # only a read with files notices a torn file action in a large commit
            found = iter_state(self._store, meta.path)
        return [a for a in found if files or not isinstance(a, Add | Remove | Cdc)]
