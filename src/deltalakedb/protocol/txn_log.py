"""Interface of a transaction log, file-backed (`delta_log`) or SQL-backed (`metastore`, `commit`).

One behaviour suite, ``tests/behaviour``, runs over both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from deltalakedb.protocol.actions import CommitInfo, Metadata
from deltalakedb.protocol.actions import Protocol as ProtocolAction
from deltalakedb.protocol.json_text import JsonValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Action, Add, DomainMetadata, Remove, Txn


@dataclass(frozen=True, slots=True)
class Snapshot(JsonValue):
    """A table at one version: small, immutable, enough to plan with. Files are read separately."""

    version: int
    timestamp: int  # epoch milliseconds of the commit
    protocol: ProtocolAction
    metadata: Metadata

    _parts = {"protocol": ProtocolAction, "metadata": Metadata}


@dataclass(frozen=True, slots=True)
class Commit(JsonValue):
    """One version of a table, with the fields of the view ``dl_v_history`` and of ``deltasql history``.

    A log knows version, time, operation and info; the rest is None if the commit is read from there.

    Attributes:
        committed_at: Epoch milliseconds; strictly increasing.
        operation: The operation's name, if the writer gave one.
        is_blind_append: Whether it only added files, without reading any.
        num_added: The number of files it added.
        num_removed: The number of files it removed.
        actor: Who committed it, if it was ratified here.
        origin: ``sql``, ``service``, ``import`` or ``adopt``.
        txn_uuid: The transaction; the commits of one transaction share it.
        sha256: The digest of the commit's bytes.
        size_bytes: The length of the commit's bytes.
        info: What the writer says it did.
    """

    version: int
    committed_at: int
    operation: str | None = None
    is_blind_append: bool | None = None
    num_added: int | None = None
    num_removed: int | None = None
    actor: str | None = None
    origin: str | None = None
    txn_uuid: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    info: CommitInfo | None = None

    _parts = {"info": CommitInfo}


@dataclass(frozen=True, slots=True)
class UnpublishedCommits:
    """Commits that were just ratified, for a publisher that then need not query the database for them.

    Attributes:
        table_id: The table.
        commits: Version, time and bytes of each commit, in order.
        previous_sha256: The digest of the previous version's bytes; None if it is not known.
        predecessors_published: Whether all earlier versions were published when these were ratified.
        pause_checked: Whether publishing was found not to be paused, and no other process can have paused it
            before these were ratified.
    """

    table_id: int
    commits: tuple[tuple[int, int, bytes], ...]
    previous_sha256: str | None
    predecessors_published: bool
    pause_checked: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that happened."""

    version: int
    committed_at: int  # epoch milliseconds
    #: True if an earlier attempt with the same id had already succeeded, and nothing was written now
    replayed: bool = False
    #: the commits that are not in the log yet; None if they must be queried
    unpublished: UnpublishedCommits | None = field(default=None, compare=False, repr=False)


ConflictKind: TypeAlias = Literal[
    "version_taken",
    "concurrent_append",
    "concurrent_delete_read",
    "concurrent_delete_delete",
    "metadata_changed",
    "protocol_changed",
    "concurrent_transaction",
    "concurrent_domain",
    "concurrent_vacuum",
]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A commit that did not happen, and why."""

    kind: ConflictKind
    version: int  # the winner's version
    operation: str | None = None  # the winner's operation
    detail: str = ""
    files: tuple[str, ...] = field(default=())
    table: str | None = None
    predicate: str | None = None  # by which rows were read that the winner changed


def iso_time(time_ms: int | None) -> str:
    """A commit's time for messages; a log may have any number."""
    try:
        return datetime.fromtimestamp((time_ms or 0) / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


@runtime_checkable
class TxnLogReader(Protocol):
    """Reads a table's transaction log."""

    def latest_version(self) -> int:
        """The newest version."""

    def versions(self) -> Sequence[int]:
        """All versions that can be rebuilt, ascending."""

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version committed at or before a time; VersionMissingError if there is none."""

    def snapshot(self, version: int | None = None) -> Snapshot:
        """The table at a version (default: the newest); VersionMissingError if it cannot be rebuilt."""

    def files(self, version: int | None = None) -> Iterator[Add]:
        """The live files at a version, in no particular order."""

    def tombstones(self, version: int | None = None) -> Iterator[Remove]:
        """The unexpired tombstones at a version."""

    def txns(self, version: int | None = None) -> Mapping[str, Txn]:
        """Application transactions by application id."""

    def domains(self, version: int | None = None) -> Mapping[str, DomainMetadata]:
        """Metadata domains by name, without removed ones."""

    def history(self, limit: int | None = None) -> Sequence[Commit]:
        """Commits, newest first."""

    def commit_bytes(self, version: int) -> bytes:
        """The exact bytes of a commit; VersionMissingError if they are no longer kept."""

    def actions(self, version: int) -> Sequence[Action]:
        """The actions of one commit, in the order written."""


@runtime_checkable
class TxnLogWriter(Protocol):
    """Appends to a table's transaction log."""

    def commit(self, version: int, actions: Sequence[Action]) -> Committed | Conflict:
        """Make ``actions`` the commit ``version``; a Conflict value if that version is taken.

        ``version`` must be the latest version plus one (0 for a new table).
        """
