"""Writes the versions of a change: each is completed under the lock, checked and ratified."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb._version import __version__
from deltalakedb.commit.conflicts import current_protocol, isolation_of
from deltalakedb.commit.request import Adopted, NewTable, Received, Recommitted, TableChange, Write
from deltalakedb.exceptions import ProtocolError
from deltalakedb.metastore import commits
from deltalakedb.metastore.ratify import Ratification, Streamed, ratify
from deltalakedb.protocol.actions import Action, Add, CommitInfo, Metadata, Protocol, Remove, encode_commit
from deltalakedb.protocol.commit_rules import check_commit
from deltalakedb.protocol.features import (
    COMMITTER_FEATURES,
    EXTERNALLY_MANAGED,
    FENCE,
    tracks_rows,
    writer_features,
)
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.protocol.properties import IN_COMMIT_TIMESTAMPS, is_on, with_ict_enablement
from deltalakedb.protocol.read_set import encode_reads
from deltalakedb.protocol.row_tracking import ROW_TRACKING_DOMAIN, assign_row_ids
from deltalakedb.protocol.txn_log import Committed, UnpublishedCommits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.rows import LockedTable

#: prefix of the engineInfo in our commits
_ENGINE: Final = "deltalakedb:"
#: the longest transaction id that a client may give, in characters
_MAX_ID_LENGTH: Final = 200


def write_versions(session: Session, locked: LockedTable, change: TableChange, txn: str) -> Committed:
    """Write all versions of a change in the transaction that locks the head; a read table has none.

    ``locked`` is the table as it was when its head was locked, ``txn`` the transaction's id.
    """
    origin, read, initial, first = change.origin, change.read, locked, 0
    adopted, blind = isinstance(origin, Adopted), change.is_blind_append
    protocol, metadata = (None, None) if read is None else (read.protocol, read.metadata)
    protocol_changed = read is not None and locked.protocol_version > read.version
    if protocol_changed:
        protocol = current_protocol(session, locked.table)
    if isinstance(origin, Adopted) and origin.txn_uuid is not None:
        txn = origin.txn_uuid  # a copy keeps the id of the transaction that made it
    if isinstance(origin, Recommitted) or (isinstance(origin, Adopted) and origin.txn_uuid is not None):
        first = commits.count_of_transaction(session, txn, locked.table.table_id)
    allow_outside = session.engine.config.catalog.allow_outside_paths
    paths = TablePaths(locked.table.location, allow_outside, locked.table.name)
    result, written = Committed(locked.table.head.version, locked.table.head.timestamp), []
    for ordinal, step in enumerate(change.versions, start=first):
        head, name = locked.table.head, locked.table.name
        version, before = head.version + 1, metadata
        protocol, metadata = check_commit(
            step,
            version=version,
            protocol=protocol,
            metadata=metadata,
            paths=paths,
            also=_handled_features(change, step, protocol),
            own_commit=not adopted,
        )
        in_commit = is_on(metadata, IN_COMMIT_TIMESTAMPS)
        timestamp = max(session.now_ms(), head.timestamp + 1)
        actions: Sequence[Action] = step
        streamed, label = None, "sql"
        data: bytes | None
        match origin:
            case Adopted():
                timestamp = max(origin.timestamp, head.timestamp + 1)
                data, label = origin.data, origin.label
                if origin.streamed is not None:
                    streamed = _validated(origin.streamed, paths, version, protocol, metadata)
            case Received():
                if in_commit:
                    timestamp = checked_in_commit_timestamp(
                        step, after=head.timestamp, table=name, version=version
                    )
                data, label = origin.data, origin.label
            case Write() | Recommitted():
                info, rest = complete_commit_info(
                    step, change, timestamp=timestamp, txn=txn, in_commit=in_commit
                )
                actions = [info, *rest]
                if in_commit and before is not None:
                    new_metadata = with_ict_enablement(metadata, before, version=version, timestamp=timestamp)
                    actions = [new_metadata if isinstance(a, Metadata) else a for a in actions]
                if tracks_rows(protocol):
                    domain = commits.domain(session, locked.table.table_id, ROW_TRACKING_DOMAIN)
                    actions = assign_row_ids(actions, version=version, domain=domain, table=name)
                # the next version copies the in-commit timestamp enablement from the completed metadata
                metadata = next((a for a in actions if isinstance(a, Metadata)), metadata)
                data = encode_commit(actions)
        locked = ratify(
            session,
            locked,
            Ratification(
                version=version,
                timestamp=timestamp,
                actions=actions,
                data=data,
                txn_uuid=txn,
                ordinal=ordinal,
                is_blind_append=blind,
                origin=label,
                published=adopted,
                new_names=isinstance(origin, Write) and origin.new_names,
                streamed=streamed,
                reads=None if blind else encode_reads(change.reads),
            ),
        )
        result = Committed(version, timestamp)
        if not adopted and data is not None:
            written.append((version, timestamp, data))
    if not written or initial.paused or protocol_changed or isinstance(change.table, NewTable):
        return result
    published = initial.published_version == initial.table.head.version
    unpublished = UnpublishedCommits(
        locked.table.table_id, tuple(written), initial.digest, predecessors_published=published
    )
    return Committed(result.version, result.committed_at, unpublished=unpublished)


def _handled_features(
    change: TableChange, step: Sequence[Action], protocol: Protocol | None
) -> Collection[str]:
    """Writer features whose rules the committer, or the engine that made the commit, has followed."""
    origin = change.origin
    if isinstance(origin, Adopted):
        return {FENCE}
    if isinstance(origin, Received):
        if origin.handled_features is not None:
            return origin.handled_features
        # the engine handles all features, except those that take commit decisions away from the catalog
        after = next((a for a in step if isinstance(a, Protocol)), protocol)
        return frozenset() if after is None else writer_features(after) - EXTERNALLY_MANAGED
    return COMMITTER_FEATURES | origin.handled_features


def _validated(
    streamed: Streamed, paths: TablePaths, version: int, protocol: Protocol, metadata: Metadata
) -> Streamed:
    """Return the same stream of files, in which each piece is validated before it is written."""

    def pieces(kind: type[Add | Remove]) -> Iterator[Sequence[Add | Remove]]:
        for piece in streamed.pieces(kind):
            check_commit(
                piece, version=version, protocol=protocol, metadata=metadata, paths=paths, own_commit=False
            )
            yield piece

    return replace(streamed, pieces=pieces)


# ---- commitInfo ------------------------------------------------------------------------------------------


def info_of(actions: Sequence[Action]) -> CommitInfo | None:
    return next((a for a in actions if isinstance(a, CommitInfo)), None)


def own_transaction(actions: Sequence[Action]) -> str | None:
    """The transaction id of a commit that this library made; None if the id is missing or not valid."""
    info = (info_of(actions) or CommitInfo()).extra
    txn, engine = info.get("txnId"), info.get("engineInfo")
    if not (isinstance(txn, str) and isinstance(engine, str) and engine.startswith(_ENGINE)):
        return None
    return txn if txn.isprintable() and 0 < len(txn) <= _MAX_ID_LENGTH else None


def complete_commit_info(
    actions: Sequence[Action], change: TableChange, *, timestamp: int, txn: str, in_commit: bool = False
) -> tuple[CommitInfo, list[Action]]:
    """The completed commitInfo, which in-commit timestamps require to come first, and the other actions."""
    given = (info_of(actions) or CommitInfo()).extra
    info: dict[str, Any] = {"inCommitTimestamp": timestamp} if in_commit else {}
    info["timestamp"] = timestamp
    info |= {k: v for k, v in given.items() if k not in ("timestamp", "inCommitTimestamp")}
    info.setdefault("operation", "WRITE")
    info.setdefault("operationParameters", {})
    if change.read is not None:
        info["readVersion"] = change.read.version
    info["isolationLevel"] = isolation_of(change)
    info["isBlindAppend"] = change.is_blind_append
    info["engineInfo"] = f"{_ENGINE}{__version__}"
    info.setdefault("clientVersion", f"deltalakedb.{__version__}")  # that of delta-rs is kept
    info["txnId"] = txn
    return CommitInfo(extra=info), [a for a in actions if not isinstance(a, CommitInfo)]


def checked_in_commit_timestamp(actions: Sequence[Action], *, after: int, table: str, version: int) -> int:
    """The inCommitTimestamp of a received commit; ProtocolError unless it is later than ``after``."""
    info = info_of(actions) or CommitInfo()
    if info.in_commit_timestamp is None or info.in_commit_timestamp <= after:
        raise ProtocolError(
            f"the commit's inCommitTimestamp is {info.in_commit_timestamp}, not after {after}",
            table=table,
            version=version,
            suggestion="in-commit timestamps are on: each commit must carry a later one than its predecessor",
        )
    return info.in_commit_timestamp
