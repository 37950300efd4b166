"""Conflicts: check a change against the commits made since it was read.

    winner did                        | I did                          | result
    ----------------------------------|--------------------------------|----------------------------
    add that my reads could match     | read rows or the whole table   | concurrent_append
    (WriteSerializable lets blind appends of others pass, unless metadata changes with it)
    remove F                          | read F or the whole table      | concurrent_delete_read
    remove F                          | remove F                       | concurrent_delete_delete
    metaData                          | anything                       | metadata_changed
    protocol                          | protocol, or features dropped  | protocol_changed
    txn of an application             | same application               | concurrent_transaction
    metadata domain                   | same domain                    | concurrent_domain
    vacuum deletes or deleted F       | add F again                    | concurrent_vacuum

A change of files alone without any data change (a compaction) is checked under snapshot isolation: only the
files that it removes matter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from deltalakedb.commit.request import Adopted, Received, TableChange, Write
from deltalakedb.exceptions import ProtocolError
from deltalakedb.metastore import commits, files, vacuumed
from deltalakedb.protocol.actions import Action, Add, DomainMetadata, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.features import writer_features
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.paths import encode_path, file_below
from deltalakedb.protocol.predicate import predicate_text
from deltalakedb.protocol.row_tracking import ROW_TRACKING_DOMAIN
from deltalakedb.protocol.txn_log import Conflict, ConflictKind, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.files import ConcurrentChange
    from deltalakedb.metastore.rows import LockedTable, Table
    from deltalakedb.protocol.read_set import Isolation

ISOLATION_LEVEL = "delta.isolationLevel"
#: the words that programs written for delta-rs look for
_DELETED = "a concurrent transaction deleted data this operation read"


def conflict(session: Session, locked: LockedTable, change: TableChange) -> Conflict | None:
    """The conflict that keeps a change from being committed on top of the head, or None."""
    read = change.read
    if read is None or locked.table.head.version == read.version:
        return None
    return _Check(session, locked, read).state(change.actions) or data_conflict(session, locked, change, read)


def data_conflict(
    session: Session, locked: LockedTable, change: TableChange, read: Snapshot
) -> Conflict | None:
    """As `conflict`, for data alone: the caller judges changes of metadata and protocol."""
    check = _Check(session, locked, read)
    return check.reads(change) or check.names(change.actions)


def current_protocol(session: Session, table: Table) -> Protocol | None:
    """A table's protocol as the transaction that holds its head sees it."""
    row = session.row(session.sql("snapshots", "live protocol"), (table.table_id,))
    return None if row is None else Protocol.from_dict(decode_json(row[0]))


def vacuumed_files(session: Session, locked: LockedTable, change: TableChange) -> Conflict | None:
    """The conflict of a change that adds files again which a vacuum deletes, or deleted after it was read.

    A commit received from another engine is refused with a ProtocolError for every file that a vacuum ever
    deleted: it is unknown when that engine checked that the file exists.
    """
    origin = change.origin
    if isinstance(origin, Adopted) or (isinstance(origin, Write) and origin.new_names):
        return None  # a commit that is in the log already, or names made up for new files
    adds = [a for a in change.actions if isinstance(a, Add)]
    names = {name for add in adds for name in _names(locked.table.location, add)}
    read = -1 if isinstance(origin, Received) else change.read_version
    found = [
        v
        for v in (vacuumed.among(session, locked.table.table_id, names) if names else ())
        if v.ended is None or v.ended > read
    ]
    if not found:
        return None
    first = min(found, key=lambda v: v.path)
    state = "is deleting" if first.ended is None else "deleted"
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    detail = f"a vacuum {state} the file {first.path}{more}, which this commit adds again"
    if isinstance(origin, Received):
        raise ProtocolError(
            detail,
            table=locked.table.name,
            version=first.started,
            suggestion="restore a version whose files the vacuum kept",
        )
    return Conflict(
        "concurrent_vacuum",
        first.started,
        operation="VACUUM START",
        detail=f"{detail}; an interrupted vacuum is finished by the next one",
        files=tuple(sorted(v.path for v in found))[:5],
        table=locked.table.name,
    )


def _names(root: str, add: Add) -> Iterator[str]:
    """A file and its deletion vector's file, decoded, if they are below the root."""
    vector = add.deletion_vector
    names = [file_below(root, add.path)]
    try:
        if vector is not None and (place := dv_path(vector)) is not None:
            names.append(file_below(root, place if vector.storage_type == "p" else encode_path(place)))
    except ProtocolError:
        pass  # the commit's own checks refuse such a vector
    return (name for name in names if name is not None)


def isolation_of(change: TableChange) -> Isolation:
    """The isolation level that a change is checked under."""
    actions = change.actions
    files = [a for a in actions if isinstance(a, Add | Remove)]
    if files and not (_changes_metadata(actions) or any(a.data_change for a in files)):
        return "SnapshotIsolation"
    if change.isolation is not None:
        return change.isolation
    declared = "" if change.read is None else change.read.metadata.configuration.get(ISOLATION_LEVEL)
    return "WriteSerializable" if (declared or "").lower() == "writeserializable" else "Serializable"


def _changes_metadata(actions: Sequence[Action]) -> bool:
    """Whether new metadata may have a constraint that rows added by others violate."""
    return any(isinstance(a, Metadata) for a in actions)


def _needs_live_file(action: Action) -> TypeGuard[Add | Remove]:
    """Whether an action needs a live file: its removal, or new statistics for it."""
    return isinstance(action, Remove) or (isinstance(action, Add) and not action.data_change)


class _Check:
    def __init__(self, session: Session, locked: LockedTable, read: Snapshot) -> None:
        self._session, self._locked, self._table, self._read = session, locked, locked.table, read

    def state(self, actions: Sequence[Action]) -> Conflict | None:
        metadata, protocol = self._locked.metadata_version, self._locked.protocol_version
        if metadata > self._read.version:
            return self._conflict("metadata_changed", metadata, "the table's metadata changed")
        if protocol <= self._read.version:
            return None
        mine = any(isinstance(a, Protocol) for a in actions)
        now = current_protocol(self._session, self._table)
        dropped = now is None or set(writer_features(self._read.protocol)) - set(writer_features(now))
        if mine or dropped:
            return self._conflict("protocol_changed", protocol, "the table's protocol changed")
        return None

    def reads(self, change: TableChange) -> Conflict | None:
        """Files that were read or removed, and rows that would have been read."""
        isolation = isolation_of(change)
        table_id, since = self._table.table_id, self._read.version
        replaced = {a.key for a in change.actions if _needs_live_file(a)}
        if replaced and (found := files.removed_since(self._session, table_id, since, replaced)):
            return self._files("concurrent_delete_delete", found, _DELETED)
        if isolation == "SnapshotIsolation":
            return None
        reads, found = change.reads, None
        if reads.whole or reads.files:
            keys = None if reads.whole else reads.files
            found = files.removed_since(self._session, table_id, since, keys)
        if found is not None:
            return self._files("concurrent_delete_read", found, _DELETED)
        skip_blind = isolation == "WriteSerializable" and not _changes_metadata(change.actions)
        for where in (None,) if reads.whole else reads.predicates:
            metadata = self._read.metadata
            found = files.added_since(
                self._session, table_id, since, metadata=metadata, where=where, skip_blind=skip_blind
            )
            if found is not None:
                text = None if where is None else predicate_text(where)
                by = "" if text is None else f" by {text}"
                detail = f"a concurrent transaction added rows that should have been read{by}"
                return replace(self._files("concurrent_append", found, detail), predicate=text)
        return None

    def names(self, actions: Sequence[Action]) -> Conflict | None:
        """Application ids and metadata domains."""
        table_id, since = self._table.table_id, self._read.version
        apps = {a.app_id for a in actions if isinstance(a, Txn)}
        if found := commits.first_since(self._session, "txns", table_id, since, apps):
            detail = f"the application {found.names[0]!r} wrote at the same time"
            return self._conflict("concurrent_transaction", found.version, detail)
        # the row tracking domain is a counter that is merged, not a decision
        named = {a.domain for a in actions if isinstance(a, DomainMetadata)} - {ROW_TRACKING_DOMAIN}
        if found := commits.first_since(self._session, "domains", table_id, since, named):
            detail = f"the metadata domain {found.names[0]!r} changed"
            return self._conflict("concurrent_domain", found.version, detail)
        return None

    def _files(self, kind: ConflictKind, found: ConcurrentChange, detail: str) -> Conflict:
        more = f": {found.names[0]}" if found.names else ""
        return self._conflict(kind, found.version, f"{detail}{more}", found.names)

    def _conflict(
        self, kind: ConflictKind, version: int, detail: str, files: tuple[str, ...] = ()
    ) -> Conflict:
        return Conflict(
            kind,
            version,
            operation=commits.operation(self._session, self._table.table_id, version),
            detail=f"{detail} since version {self._read.version}",
            files=files,
            table=self._table.name,
        )
