"""The versions of a change: each completed by what is only known under the lock, checked, and written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.commit.conflicts import isolation_of
from deltalakedb.commit.info import in_commit_timestamp, with_info
from deltalakedb.commit.request import Adopted, NewTable, Received, Recommitted, Write
from deltalakedb.metastore import commits, concurrent_commits
from deltalakedb.metastore.ratify import Ratification, ratify
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.protocol.codec import decode_json, encode_commit
from deltalakedb.protocol.commit_rules import check_commit
from deltalakedb.protocol.features import COMMITTER_FEATURES, EXTERNALLY_MANAGED, FENCE, writer_features
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.protocol.properties import IN_COMMIT_TIMESTAMPS, is_on, with_ict_enablement
from deltalakedb.protocol.read_set import encode_reads
from deltalakedb.protocol.row_tracking import ROW_TRACKING_DOMAIN, assign_row_ids, tracks_rows
from deltalakedb.protocol.txn_log import Committed, UnpublishedCommits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from deltalakedb.commit.request import TableChange
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.ratify import Streamed
    from deltalakedb.metastore.rows import LockedTable, Table
    from deltalakedb.protocol.actions import Action, Add, Remove


def current_protocol(session: Session, table: Table) -> Protocol | None:
    """A table's protocol as the transaction that holds its head sees it."""
    sql = statements("snapshots", session.engine.dialect.name)["live protocol"]
    row = session.row(sql, (table.table_id,))
    return None if row is None else Protocol.from_dict(decode_json(row[0]))


def write_versions(session: Session, locked: LockedTable, change: TableChange, txn: str) -> Committed:
    """Write every version of a change; nothing for a table that was only read.

    Args:
        session: A session in the transaction that locks the head.
        locked: The table, as it was when its head was locked.
        change: The change to write.
        txn: The transaction's id.
    """
    origin = change.origin
    protocol = None if change.read is None else change.read.protocol
    metadata = None if change.read is None else change.read.metadata
    overtaken = change.read is not None and locked.protocol_version > change.read.version
    if overtaken:
        protocol = current_protocol(session, locked.table)
    result = Committed(locked.table.head.version, locked.table.head.timestamp)
    before_all, written = locked, []
    first = 0
    if isinstance(origin, Adopted) and origin.txn_uuid is not None:
        txn = origin.txn_uuid
        # each version of a transaction is copied by itself
        first = commits.count_of_transaction(session, txn, locked.table.table_id)
    elif isinstance(origin, Recommitted):
        first = commits.count_of_transaction(session, txn, locked.table.table_id)
    outside = session.engine.config.catalog.allow_outside_paths
    paths = TablePaths(locked.table.location, outside, locked.table.name)
    for ordinal, step in enumerate(change.versions, start=first):
        if ordinal > first:
            session.barrier()  # the head moves again
        head, name = locked.table.head, locked.table.name
        version = head.version + 1
        before = metadata
        protocol, metadata = check_commit(
            step,
            version=version,
            protocol=protocol,
            metadata=metadata,
            paths=paths,
            also=_handled_features(change, step, protocol),
            own_commit=not isinstance(origin, Adopted),
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
                    streamed = _checked(origin.streamed, paths, version, protocol, metadata)
            case Received():
                if in_commit:
                    timestamp = in_commit_timestamp(step, after=head.timestamp, table=name, version=version)
                data, label = origin.data, origin.label
            case Write() | Recommitted():
                actions = _complete(
                    session, locked, change, step, txn, timestamp, protocol, before, metadata, in_commit
                )
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
                is_blind_append=change.is_blind_append,
                origin=label,
                published=isinstance(origin, Adopted),
                new_names=isinstance(origin, Write) and origin.new_names,
                streamed=streamed,
                reads=None if change.is_blind_append else encode_reads(change.reads),
            ),
        )
        result = Committed(version, timestamp)
        if not isinstance(origin, Adopted) and data is not None:
            written.append((version, timestamp, data))
    if not written or before_all.paused or overtaken or isinstance(change.table, NewTable):
        return result
    head = before_all.table.head
    clear = before_all.published_version == head.version
    return replace(
        result,
        unpublished=UnpublishedCommits(locked.table.table_id, tuple(written), before_all.digest, clear=clear),
    )


def _handled_features(
    change: TableChange, step: Sequence[Action], protocol: Protocol | None
) -> Collection[str]:
    """Writer features whose duties are fulfilled: by the committer, or by the engine that made the commit.

    Args:
        change: The change.
        step: The actions of one of its versions.
        protocol: The table's protocol before them.
    """
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


def _checked(
    streamed: Streamed, paths: TablePaths, version: int, protocol: Protocol, metadata: Metadata
) -> Streamed:
    """Return the same files, with every piece validated before it is written."""

    def pieces(kind: type[Add | Remove]) -> Iterator[Sequence[Add | Remove]]:
        for piece in streamed.pieces(kind):
            check_commit(
                piece,
                version=version,
                protocol=protocol,
                metadata=metadata,
                paths=paths,
                own_commit=False,
            )
            yield piece

    return replace(streamed, pieces=pieces)


def _complete(
    session: Session,
    locked: LockedTable,
    change: TableChange,
    step: Sequence[Action],
    txn: str,
    timestamp: int,
    protocol: Protocol,
    before: Metadata | None,
    metadata: Metadata,
    in_commit: bool,
) -> list[Action]:
    """A version's actions with everything that is only known under the lock."""
    version = locked.table.head.version + 1
    actions = with_info(
        step,
        timestamp=timestamp,
        txn=txn,
        in_commit=in_commit,
        read_version=change.read_version,
        isolation=isolation_of(change),
        blind=change.is_blind_append,
    )
    if in_commit and before is not None:
        noted = with_ict_enablement(metadata, before, version=version, timestamp=timestamp)
        actions = [noted if isinstance(a, Metadata) else a for a in actions]
    if tracks_rows(protocol):
        domain = concurrent_commits.domain(session, locked.table.table_id, ROW_TRACKING_DOMAIN)
        actions = assign_row_ids(actions, version=version, domain=domain, table=locked.table.name)
    return actions
