"""The file-backed transaction log: any version from the files in ``_delta_log``."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deltalakedb.delta_log.checkpoint import iter_checkpoint
from deltalakedb.delta_log.commit_file import is_large, iter_actions, iter_state, read_commit_info
from deltalakedb.delta_log.listing import LogListing, list_log, merged, newest_at
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
from deltalakedb.protocol.actions import Add, Cdc, Remove
from deltalakedb.protocol.codec import decode_commit, decode_json
from deltalakedb.protocol.features import check_readable, check_schema
from deltalakedb.protocol.properties import IN_COMMIT_TIMESTAMPS, is_on, number_or
from deltalakedb.protocol.replay import Replay
from deltalakedb.protocol.txn_log import Commit, Snapshot
from deltalakedb.storage import Store, open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.delta_log.listing import Checkpoint
    from deltalakedb.protocol.actions import Action, CommitInfo, DomainMetadata, Metadata, Txn
    from deltalakedb.storage import ObjectMeta

ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
#: all that a state without its files is made of
STATE_KINDS = frozenset({"protocol", "metaData", "txn", "domainMetadata"})


def open_file_log(
    location: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> FileTxnLogReader:
    """The transaction log of the table at a location, read from its files.

    Args:
        location: The table's root: a path or the URL of an object store.
        storage_options: Credentials and settings, spelled as `deltalake` spells them.

    Raises:
        LogMissingError: There is no ``_delta_log`` with a commit or checkpoint in it.

    Example:
        >>> open_file_log("/data/sales").latest_version()  # doctest: +SKIP
        12
    """
    reader = FileTxnLogReader(location, storage_options)
    reader.versions()
    return reader


class FileTxnLogReader:
    """Reads a table's ``_delta_log``; implements `protocol.txn_log.TxnLogReader`.

    It lists the log once, looks for newer commits whenever the newest version is asked for, and keeps the
    last state that it rebuilt. Threads may share it.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        store: Store | None = None,
    ) -> None:
        self._store = open_store(location, storage_options) if store is None else store
        self._lock = threading.RLock()
        self._listing: LogListing | None = None
        self._states = StateBuilder(self._store)
        #: in-commit timestamps that were read
        self._in_commit: dict[int, int | None] = {}
        #: since when the table has in-commit timestamps, as of a listing
        self._since: tuple[LogListing, _Enablement | None] | None = None

    def __repr__(self) -> str:
        return f"FileTxnLogReader({self.location!r})"

    @property
    def location(self) -> str:
        """The table's root, without credentials."""
        return self._store.location

    @property
    def store(self) -> Store:
        """The table's root as a store."""
        return self._store

    # ---- versions ----

    def latest_version(self) -> int:
        """The newest version.

        Raises:
            LogGapError: It cannot be rebuilt, because a version before it is missing.
        """
        return self._rebuildable(None)[1]

    def versions(self) -> Sequence[int]:
        """All versions that can be rebuilt, ascending."""
        return self._current().versions

    def commit_versions(self) -> Sequence[int]:
        """The versions whose commit file is there, ascending; they need not all be rebuildable."""
        return sorted(self._current().commits)

    def timestamp_of(self, version: int) -> int:
        """When a version was committed, in epoch milliseconds."""
        listing, version = self._rebuildable(version)
        return self._time(listing, version, self._enablement(listing))

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version committed at or before a time; VersionMissingError if there is none."""
        listing = self._current()
        since = self._enablement(listing)
        versions = listing.versions
        if since is not None and since.timestamp is not None:
            # files of a copied table may be younger than the commits in them: never mix the two clocks
            own = timestamp_ms >= since.timestamp
            versions = tuple(v for v in versions if (v >= since.version) is own)
        found = newest_at(versions, timestamp_ms, lambda v: self._time(listing, v, since))
        if found is None:
            first = f"; its oldest is of {_iso(self._time(listing, versions[0], since))}" if versions else ""
            raise VersionMissingError(
                f"the log has no version at or before {_iso(timestamp_ms)}{first}",
                table=self.location,
                suggestion="ask for a later time, or for a version by its number",
            )
        return found

    # ---- state ----

    def snapshot(self, version: int | None = None) -> Snapshot:
        """The table at a version (default: the newest); VersionMissingError if it cannot be rebuilt."""
        with self._lock:
            state, version = self._state(version, files=False)
            protocol, metadata = state.require()
            check_schema(metadata, table=self.location, version=version)
            return Snapshot(version, self.timestamp_of(version), protocol, metadata)

    def files(self, version: int | None = None) -> Iterator[Add]:
        """The live files at a version, in no particular order."""
        with self._lock:
            return iter(list(self._state(version, files=True)[0].files.values()))

    def tombstones(self, version: int | None = None) -> Iterator[Remove]:
        """The removed files that the log still remembers at a version."""
        with self._lock:
            return iter(list(self._state(version, files=True)[0].tombstones.values()))

    def txns(self, version: int | None = None) -> Mapping[str, Txn]:
        """Application transactions by application id."""
        with self._lock:
            return dict(self._state(version, files=False)[0].txns)

    def domains(self, version: int | None = None) -> Mapping[str, DomainMetadata]:
        """Metadata domains by name, without removed ones."""
        with self._lock:
            return dict(self._state(version, files=False)[0].domains)

    # ---- commits ----

    def history(self, limit: int | None = None) -> Sequence[Commit]:
        """Commits whose file is there, newest first."""
        listing = self._current()
        since = self._enablement(listing)
        newest = sorted(listing.commits, reverse=True)
        commits = []
        for version in newest if limit is None else newest[: max(0, limit)]:
            info = self._commit_info(listing, version)
            self._in_commit[version] = None if info is None else info.in_commit_timestamp
            commits.append(Commit(version, self._time(listing, version, since), info))
        return commits

    def commit_bytes(self, version: int) -> bytes:
        """The exact bytes of a commit; VersionMissingError if its file does not exist."""
        try:
            if version >= 0:
                return self._store.get(commit_path(version))
        except StorageMissingError as e:
            self._current()  # no log at all is another error
            raise self._no_commit(version) from e
        raise self._no_commit(version)

    def actions(self, version: int) -> Sequence[Action]:
        """The actions of one commit, in the order written."""
        with self._about(version):
            return decode_commit(self.commit_bytes(version), source=commit_path(version))

    # ---- inside ----

    def _current(self) -> LogListing:
        """The listing, updated with newer commits; LogMissingError if there is no log."""
        with self._lock:
            old = self._listing
            if old is None or old.empty:
                self._relist()
            elif self._store.exists(commit_path(old.latest + 1)):
                self._listing = merged(old, list_log(self._store, start_after=commit_path(old.latest)))
            if (listing := self._listing) is None or listing.empty:
                raise LogMissingError(
                    f"there is no Delta log at {self.location}",
                    table=self.location,
                    suggestion="check the location: a table has a folder _delta_log with a commit in it",
                )
            return listing

    def _relist(self) -> bool:
        """List the whole log again; whether that changed anything."""
        old, self._listing = self._listing, list_log(self._store)
        self._states.clear()
        return old != self._listing

    def _rebuildable(self, version: int | None) -> tuple[LogListing, int]:
        """The listing, and the version if it can be rebuilt."""
        listing = self._listing
        if version is None or listing is None or not listing.has(version):
            listing = self._current()
        wanted = listing.latest if version is None else version
        if listing.has(wanted):
            return listing, wanted
        first, last = (listing.versions or (None,))[0], listing.latest
        if wanted < 0 or wanted > last or (first is not None and wanted < first):
            raise VersionMissingError(
                f"the log has no version {wanted}"
                + (" any more" if first is not None and 0 <= wanted < first else ""),
                table=self.location,
                version=wanted,
                suggestion=f"ask for a version from {first} to {last}" if first is not None else None,
            )
        with self._about(wanted):
            listing.plan(wanted)
        raise LogGapError(
            f"version {wanted} has neither a commit nor a checkpoint of its own",
            table=self.location,
            version=wanted,
            suggestion="ask for a version that versions() names",
        )

    def _state(self, version: int | None, *, files: bool) -> tuple[Replay, int]:
        listing, version = self._rebuildable(version)
        with self._about(version):
            try:
                state = self._states.build(listing, version, files=files)
            except (StorageMissingError, LogCorruptError):
                # a clean-up may have deleted what was listed earlier
                if not self._relist():
                    raise
                listing, version = self._rebuildable(version)
                state = self._states.build(listing, version, files=files)
            protocol, metadata = state.require()
            check_readable(protocol, table=self.location)
            if version == listing.versions[-1]:  # an older one may have been without
                check_schema(metadata, table=self.location, version=version)
        return state, version

    def _enablement(self, listing: LogListing) -> _Enablement | None:
        """Since when the table has in-commit timestamps, by its newest readable metadata."""
        with self._lock:
            if self._since is None or self._since[0] is not listing:
                since = None
                # a head that cannot be read must not keep older versions from being dated
                with contextlib.suppress(LogError, ProtocolError, IndexError):
                    state = self._states.build(listing, listing.versions[-1], files=False)
                    since = None if state.metadata is None else _Enablement.of(state.metadata)
                self._since = (listing, since)
            return self._since[1]

    def _time(self, listing: LogListing, version: int, since: _Enablement | None) -> int:
        if since is not None and version >= since.version:
            return self._in_commit_timestamp(listing, version) or listing.file_times[version]
        return listing.file_times[version]

    def _in_commit_timestamp(self, listing: LogListing, version: int) -> int | None:
        if version not in self._in_commit:
            time = None
            if version in listing.commits:
                info = self._commit_info(listing, version)
                time = None if info is None else info.in_commit_timestamp
            elif version in listing.checksums:
                # with the commit gone, its checksum may still have it
                with contextlib.suppress(LogCorruptError, StorageMissingError):
                    checksum = decode_json(self._store.get(checksum_path(version)))
                    value = checksum.get("inCommitTimestampOpt") if isinstance(checksum, dict) else None
                    time = value if type(value) is int else None
            self._in_commit[version] = time
        return self._in_commit[version]

    def _commit_info(self, listing: LogListing, version: int) -> CommitInfo | None:
        try:
            meta = listing.commits[version]
            return read_commit_info(self._store, meta.path, size=meta.size)
        except StorageMissingError as e:
            raise self._no_commit(version) from e

    def _no_commit(self, version: int) -> VersionMissingError:
        return VersionMissingError(
            f"the log has no commit file of version {version}",
            table=self.location,
            version=version,
            suggestion="ask for a version that commit_versions() names",
        )

    @contextlib.contextmanager
    def _about(self, version: int) -> Iterator[None]:
        """Name the table and the version in every error."""
        try:
            yield
        except DeltaSqlError as e:
            e.table = self.location if e.table is None else e.table
            e.version = version if e.version is None else e.version
            raise


def _iso(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


@dataclass(frozen=True, slots=True)
class _Enablement:
    """Since when a table has in-commit timestamps; without a timestamp since its first version."""

    version: int = 0
    timestamp: int | None = None

    @classmethod
    def of(cls, metadata: Metadata) -> _Enablement | None:
        """The enablement by a table's properties, or None if it has no in-commit timestamps."""
        if not is_on(metadata, IN_COMMIT_TIMESTAMPS):
            return None
        version = number_or(metadata.configuration.get(ENABLEMENT_VERSION), -1)
        timestamp = number_or(metadata.configuration.get(ENABLEMENT_TIMESTAMP), -1)
        return cls() if version < 0 or timestamp < 0 else cls(version, timestamp)


@dataclass(frozen=True, slots=True)
class _Built:
    """A state and how it was reached."""

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
        self._torn: dict[Checkpoint, LogCorruptError] = {}

    def clear(self) -> None:
        """Forget all states: the log has changed."""
        self._cached.clear()
        self._torn.clear()

    def build(self, listing: LogListing, version: int, *, files: bool) -> Replay:
        """The state at a version; without files it reads a fraction of a checkpoint.

        A torn checkpoint is passed over for an older one, or for the commits alone.

        Raises:
            LogGapError: A version on the way is missing.
            LogCorruptError: A commit is torn, or no checkpoint on the way can be read.
            StorageMissingError: A file that was listed is gone.
        """
        for with_files in (True,) if files else (True, False):
            cached = self._cached.get(with_files)
            if cached is not None and cached.version == version:
                return cached.state
        torn: LogCorruptError | None = None
        for plan in listing.plans(version):
            if plan.checkpoint is not None and plan.checkpoint in self._torn:
                torn = torn or self._torn[plan.checkpoint]
                continue
            if (moved := self._advance(listing, version, plan.checkpoint, files)) is not None:
                return moved
            try:
                state = self._from_checkpoint(plan.checkpoint, files)
            except LogCorruptError as e:
                if plan.checkpoint is not None:
                    self._torn[plan.checkpoint] = e
                torn = torn or e
                continue
            return self._apply(_Built(version, plan.checkpoint, state), plan.files, files)
        raise torn or LogCorruptError("no checkpoint can be read", version=version)

    def _advance(
        self, listing: LogListing, version: int, checkpoint: Checkpoint | None, files: bool
    ) -> Replay | None:
        """The cached state advanced, if it is between the checkpoint and the version."""
        cached = self._cached.get(files)
        if cached is None or cached.version > version or cached.checkpoint != checkpoint:
            return None
        if (rest := listing.files_between(cached.version, version)) is None:
            return None
        return self._apply(_Built(version, checkpoint, cached.state), rest, files)

    def _from_checkpoint(self, checkpoint: Checkpoint | None, files: bool) -> Replay:
        state = Replay()
        if checkpoint is not None:
            for batch in iter_checkpoint(self._store, checkpoint, kinds=None if files else STATE_KINDS):
                state.commit(batch)
        return state

    def _apply(self, goal: _Built, commits: tuple[ObjectMeta, ...], files: bool) -> Replay:
        # while it changes, the state is no version's
        self._cached.pop(files, None)
        for meta in commits:
            if files:
                goal.state.commit(list(iter_actions(self._store, meta.path, size=meta.size)))
                continue
            large = is_large(meta)  # a torn file action in a large commit is found only by a read with files
            found = (
                iter_state(self._store, meta.path)
                if large
                else iter_actions(self._store, meta.path, size=meta.size)
            )
            goal.state.commit([a for a in found if not isinstance(a, Add | Remove | Cdc)])
        self._cached[files] = goal
        return goal.state
