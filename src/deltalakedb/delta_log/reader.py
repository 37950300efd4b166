"""The file-backed transaction log: any version from what lies in ``_delta_log``."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from deltalakedb.delta_log.checkpoint import is_whole, iter_checkpoint
from deltalakedb.delta_log.commit_info import find_commit_info
from deltalakedb.delta_log.large_commits import is_large, large_commit_info
from deltalakedb.delta_log.listing import LogListing, list_log, merged
from deltalakedb.delta_log.names import checksum_path, commit_path
from deltalakedb.delta_log.states import StateBuilder
from deltalakedb.delta_log.times import Enablement, enablement, file_times, newest_at
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
from deltalakedb.protocol.codec import decode_commit, decode_json
from deltalakedb.protocol.features import check_readable, check_schema
from deltalakedb.protocol.txn_log import Commit, Snapshot
from deltalakedb.storage import Store, open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Action, Add, CommitInfo, DomainMetadata, Remove, Txn
    from deltalakedb.protocol.replay import Replay


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
        self._times: dict[int, int] | None = None
        #: in-commit timestamps that were read
        self._own_times: dict[int, int | None] = {}
        #: since when the table keeps its commits' own times, as of a listing
        self._since: tuple[LogListing, Enablement | None] | None = None
        self._states = StateBuilder(self._store)

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
        return self._known(None)[1]

    def versions(self) -> Sequence[int]:
        """All versions that can be rebuilt, ascending."""
        return self._current().versions

    def commit_versions(self) -> Sequence[int]:
        """The versions whose commit file is there, ascending; they need not all be rebuildable."""
        return sorted(self._current().commits)

    def timestamp_of(self, version: int) -> int:
        """When a version was committed, in epoch milliseconds."""
        listing, version = self._known(version)
        return self._time(listing, version, self._enablement(listing))

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version committed at or before a time; VersionMissingError where there is none."""
        listing = self._current()
        since = self._enablement(listing)
        versions = listing.versions
        if since is not None and since.timestamp is not None:
            # files of a copied table may be younger than the commits in them: never mix the two clocks
            own = timestamp_ms >= since.timestamp
            versions = tuple(v for v in versions if (v >= since.version) is own)
        found = newest_at(versions, timestamp_ms, lambda v: self._time(listing, v, since))
        if found is None:
            first = f"; its oldest is of {self._time(listing, versions[0], since)} ms" if versions else ""
            raise VersionMissingError(
                f"the log has no version at or before {timestamp_ms} ms{first}",
                table=self.location,
                suggestion="ask for a later time, or for a version by its number",
            )
        return found

    # ---- state ----

    def snapshot(self, version: int | None = None) -> Snapshot:
        """The table at a version (default: the newest); VersionMissingError where it cannot be rebuilt."""
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
            info = self._commit_info(version)
            self._own_times[version] = None if info is None else info.in_commit_timestamp
            commits.append(Commit(version, self._time(listing, version, since), info))
        return commits

    def commit_bytes(self, version: int) -> bytes:
        """The exact bytes of a commit; VersionMissingError where its file is not there."""
        try:
            return self._store.get(commit_path(version)) if version >= 0 else self._no_commit(version)
        except StorageMissingError as e:
            self._current()  # no log at all is another error
            return self._no_commit(version, e)

    def actions(self, version: int) -> Sequence[Action]:
        """The actions of one commit, in the order written."""
        with self._placed(version):
            return decode_commit(self.commit_bytes(version), source=commit_path(version))

    # ---- checkpoints ----

    def checkpoint_version(self, version: int | None = None) -> int | None:
        """The newest whole checkpoint that leads to a version, or None where JSON alone must do."""
        listing, version = self._known(version)
        for plan in listing.plans(version):
            if plan.checkpoint is None or is_whole(self._store, plan.checkpoint):
                return None if plan.checkpoint is None else plan.checkpoint.version
        raise LogCorruptError(
            "no whole checkpoint leads to the version, and its commits are not all there",
            table=self.location,
            version=version,
            suggestion="restore the checkpoint or the commits before it from a copy",
        )

    def iter_checkpoint(self, version: int) -> Iterator[list[Action]]:
        """The actions of a checkpoint in batches, with bounded memory and in no particular order.

        Raises:
            VersionMissingError: There is no checkpoint of that version.
            LogCorruptError: It is torn; what `checkpoint_version` named was whole at its ends.
        """
        candidates = self._current().checkpoints.get(version, ())
        for checkpoint in candidates:
            if is_whole(self._store, checkpoint):
                return iter_checkpoint(self._store, checkpoint)
        if candidates:
            raise LogCorruptError(
                "the checkpoint is torn",
                table=self.location,
                version=version,
                suggestion="ask checkpoint_version() for one that is whole",
            )
        raise VersionMissingError(
            f"there is no checkpoint of version {version}",
            table=self.location,
            version=version,
            suggestion="ask checkpoint_version() for one that is there",
        )

    # ---- inside ----

    def _current(self) -> LogListing:
        """The listing, with commits that came since; LogMissingError where there is no log."""
        with self._lock:
            old = self._listing
            if old is None or old.empty:
                self._relist()
            elif self._store.exists(commit_path(old.latest + 1)):
                newer = list_log(self._store, start_after=commit_path(old.latest))
                self._listing, self._times = merged(old, newer), None
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
        self._times = None
        self._states.forget()
        return old != self._listing

    def _known(self, version: int | None) -> tuple[LogListing, int]:
        """The listing and a version in it that can be rebuilt."""
        listing = self._listing
        if version is None or listing is None or not listing.has(version):
            listing = self._current()
        wanted = listing.latest if version is None else version
        if listing.has(wanted):
            return listing, wanted
        first, last = (listing.versions or (None,))[0], listing.latest
        if version is not None and (version < 0 or version > last or (first is not None and version < first)):
            raise VersionMissingError(
                f"the log has no version {version}"
                + (" any more" if first is not None and 0 <= version < first else ""),
                table=self.location,
                version=version,
                suggestion=f"ask for a version from {first} to {last}" if first is not None else None,
            )
        with self._placed(wanted):
            listing.plan(wanted)
        raise LogGapError(
            f"version {wanted} has neither a commit nor a checkpoint of its own",
            table=self.location,
            version=wanted,
            suggestion="ask for a version that versions() names",
        )

    def _state(self, version: int | None, *, files: bool) -> tuple[Replay, int]:
        listing, version = self._known(version)
        with self._placed(version):
            try:
                state = self._states.build(listing, version, files=files)
            except (StorageMissingError, LogCorruptError):
                # a clean-up may have taken away what was listed earlier
                if not self._relist():
                    raise
                listing, version = self._known(version)
                state = self._states.build(listing, version, files=files)
            protocol, metadata = state.require()
            check_readable(protocol, table=self.location)
            if version == listing.versions[-1]:  # an older one may have been without
                check_schema(metadata, table=self.location, version=version)
        return state, version

    def _enablement(self, listing: LogListing) -> Enablement | None:
        """Since when the table keeps its commits' own times, by its newest readable metadata."""
        with self._lock:
            if self._since is None or self._since[0] is not listing:
                since = None
                # a head that cannot be read must not keep older versions from being dated
                with contextlib.suppress(LogError, ProtocolError, IndexError):
                    state = self._states.build(listing, listing.versions[-1], files=False)
                    since = None if state.metadata is None else enablement(state.metadata)
                self._since = (listing, since)
            return self._since[1]

    def _time(self, listing: LogListing, version: int, since: Enablement | None) -> int:
        if since is not None and version >= since.version and (own := self._own_time(listing, version)):
            return own
        with self._lock:
            if self._times is None or listing is not self._listing:
                self._times = file_times(listing)
            return self._times[version]

    def _own_time(self, listing: LogListing, version: int) -> int | None:
        if version not in self._own_times:
            time = None
            if version in listing.commits:
                info = self._commit_info(version)
                time = None if info is None else info.in_commit_timestamp
            elif version in listing.checksums:
                # with the commit gone, its checksum may still know
                with contextlib.suppress(LogCorruptError, StorageMissingError):
                    checksum = decode_json(self._store.get(checksum_path(version)))
                    value = checksum.get("inCommitTimestampOpt") if isinstance(checksum, dict) else None
                    time = value if type(value) is int else None
            self._own_times[version] = time
        return self._own_times[version]

    def _commit_info(self, version: int) -> CommitInfo | None:
        listing = self._listing
        if listing is not None and is_large(listing.commits.get(version)):
            return large_commit_info(self._store, commit_path(version))
        return find_commit_info(self.commit_bytes(version), source=commit_path(version))

    def _no_commit(self, version: int, cause: Exception | None = None) -> bytes:
        raise VersionMissingError(
            f"the log has no commit file of version {version}",
            table=self.location,
            version=version,
            suggestion="ask for a version that commit_versions() names",
        ) from cause

    @contextlib.contextmanager
    def _placed(self, version: int) -> Iterator[None]:
        """Say in every error which table and version it is about."""
        try:
            yield
        except DeltaSqlError as e:
            e.table = self.location if e.table is None else e.table
            e.version = version if e.version is None else e.version
            raise
