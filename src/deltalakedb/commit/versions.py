"""The versions of a change: each completed by what is only known under the lock, checked, and written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.commit.changes import NewTable
from deltalakedb.commit.checker import isolation_of
from deltalakedb.commit.duties import own_duties
from deltalakedb.commit.info import own_time, with_info
from deltalakedb.metastore import commits, concurrent_commits
from deltalakedb.metastore.ratify import Ratification, ratify
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.protocol.codec import decode_json, encode_commit
from deltalakedb.protocol.log import Committed, Fresh
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.protocol.reads import encode_reads
from deltalakedb.protocol.rows import ROW_TRACKING_DOMAIN, assign_row_ids, tracks_rows
from deltalakedb.protocol.rules import IN_COMMIT_TIMESTAMPS, check_commit, is_on, note_enablement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.commit.changes import TableChange
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.ratify import Streamed
    from deltalakedb.metastore.values import LockedTable, Table
    from deltalakedb.protocol.actions import Action, Add, Remove


def protocol_now(session: Session, table: Table) -> Protocol | None:
    """A table's protocol as the transaction that holds its head sees it."""
    sql = statements("snapshots", session.engine.dialect.name)["live protocol"]
    row = session.row(sql, (table.table_id,))
    return None if row is None else Protocol.from_dict(decode_json(row[0]))


def ratify_change(
    session: Session, locked: LockedTable, change: TableChange, txn: str, *, again: bool = False
) -> Committed:
    """Write every version of a change; of a table that was only read, nothing.

    Args:
        session: Inside the transaction that holds the head.
        locked: The table.
        change: What it is to become.
        txn: The transaction's id.
        again: The transaction may have made versions of the table before.
    """
    protocol = None if change.read is None else change.read.protocol
    metadata = None if change.read is None else change.read.metadata
    overtaken = change.read is not None and locked.protocol_version > change.read.version
    if overtaken:
        protocol = protocol_now(session, locked.table)
    result = Committed(locked.table.head.version, locked.table.head.timestamp)
    before_all, written = locked, []
    if change.copy is not None and change.copy.txn_uuid is not None:
        txn, again = change.copy.txn_uuid, True  # each version of a transaction is copied by itself
    first = commits.count_of_transaction(session, txn, locked.table.table_id) if again else 0
    outside = session.engine.config.catalog.allow_outside_paths
    paths = TablePaths(locked.table.location, outside, locked.table.name)
    for ordinal, step in enumerate(change.steps, start=first):
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
            also=own_duties(change, step, protocol),
            made_here=change.copy is None,
        )
        streamed = None if change.copy is None else change.copy.streamed
        if streamed is not None:
            streamed = _checked(streamed, paths, version, protocol, metadata)
        in_commit = is_on(metadata, IN_COMMIT_TIMESTAMPS)
        timestamp = max(session.now_ms(), head.timestamp + 1)
        actions: Sequence[Action] = step
        if change.copy is not None:
            timestamp = max(change.copy.timestamp, head.timestamp + 1)
        elif change.exact:
            timestamp = (
                own_time(step, after=head.timestamp, table=name, version=version) if in_commit else timestamp
            )
        else:
            actions = _completed(
                session, locked, change, step, txn, timestamp, protocol, before, metadata, in_commit=in_commit
            )
            # the next step was made before anybody knew what this one says of its time
            metadata = next((a for a in actions if isinstance(a, Metadata)), metadata)
        data = encode_commit(actions) if change.made is None else change.made.data
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
                origin="sql" if change.made is None else change.made.origin,
                published=change.copy is not None,
                fresh=change.fresh,
                streamed=streamed,
                reads=None if change.is_blind_append else encode_reads(change.reads),
            ),
        )
        result = Committed(version, timestamp)
        if change.copy is None and data is not None:
            written.append((version, timestamp, data))
    if not written or before_all.paused or overtaken or isinstance(change.table, NewTable):
        return result
    head = before_all.table.head
    clear = before_all.published_version == head.version
    return replace(result, fresh=Fresh(locked.table.table_id, tuple(written), before_all.digest, clear=clear))


def _checked(
    streamed: Streamed, paths: TablePaths, version: int, protocol: Protocol, metadata: Metadata
) -> Streamed:
    """The same files, each piece checked for its form before it is written."""

    def pieces(kind: type[Add | Remove]) -> Iterator[Sequence[Add | Remove]]:
        for piece in streamed.pieces(kind):
            check_commit(
                piece,
                version=version,
                protocol=protocol,
                metadata=metadata,
                paths=paths,
                made_here=False,
            )
            yield piece

    return replace(streamed, pieces=pieces)


def _completed(
    session: Session,
    locked: LockedTable,
    change: TableChange,
    step: Sequence[Action],
    txn: str,
    timestamp: int,
    protocol: Protocol,
    before: Metadata | None,
    metadata: Metadata,
    *,
    in_commit: bool,
) -> list[Action]:
    """A step's actions with everything that is only known under the lock."""
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
        noted = note_enablement(metadata, before, version=version, timestamp=timestamp)
        actions = [noted if isinstance(a, Metadata) else a for a in actions]
    if tracks_rows(protocol):
        domain = concurrent_commits.domain(session, locked.table.table_id, ROW_TRACKING_DOMAIN)
        actions = assign_row_ids(actions, version=version, domain=domain, table=locked.table.name)
    return actions
