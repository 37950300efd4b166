"""Imports as rows: phases, receipts of batches, and the moment a table becomes visible."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.exceptions import CatalogBusyError, TableExistsError
from deltalakedb.metastore import audit, registry
from deltalakedb.metastore.leases import Lease, still_held
from deltalakedb.metastore.ratify import set_head, write_commits
from deltalakedb.metastore.statements import statements
from deltalakedb.metastore.values import Head, LockedTable, Table
from deltalakedb.protocol.codec import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Row, Session
    from deltalakedb.metastore.ratify import CommitFacts, Ratification

Phase = Literal["loading", "verifying", "finalized", "failed", "undone", "dropped"]
BatchKind = Literal["base", "tail"]

#: how long a lease on an import holds without a batch
LEASE_MS = 120_000

_RECEIPT_COLUMNS = (
    "import_id",
    "batch",
    "kind",
    "begins",
    "ends",
    "actions",
    "num_files",
    "size_bytes",
    "num_records",
    "files_without_count",
    "next_file_seq",
    "written_at",
    "milliseconds",
    "memory_bytes",
)


@dataclass(frozen=True, slots=True)
class ImportRow:
    """An import as the catalog remembers it."""

    import_id: str
    table_id: int
    name: str
    location: str
    engine: str
    phase: Phase
    plan: Mapping[str, Any]
    first_version: int
    source_version: int
    batches_total: int
    files_expected: int
    deferred_indexes: bool
    actor: str
    started_at: int
    updated_at: int
    finished_at: int | None
    digest: str | None
    error: str | None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether it can be resumed."""
        return self.phase in ("loading", "verifying")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a batch is in the catalog, written in the batch's own transaction.

    Attributes:
        batch: Its number in the plan, from 0.
        kind: ``base`` rows come from a checkpoint, ``tail`` rows from commits.
        begins: Its first position in the checkpoint, or its first version.
        ends: Its last.
        actions: File actions that it held.
        num_files: By how much it changed the number of live files; the next three likewise.
        next_file_seq: The first sequence number that is free after it.
        milliseconds: How long it took.
        memory_bytes: The most memory the process had held by then.
    """

    batch: int
    kind: BatchKind
    begins: int
    ends: int
    actions: int
    num_files: int
    size_bytes: int
    num_records: int
    files_without_count: int
    next_file_seq: int
    written_at: int
    milliseconds: int
    memory_bytes: int


def find_open(database: Database, name: str, location: str) -> ImportRow | None:
    """The unfinished import of this table; TableExistsError where name or location are in another's hands."""
    with database.read() as session:
        return _find_open(session, name, location)


def _find_open(session: Session, name: str, location: str) -> ImportRow | None:
    sql = statements("imports", session.engine.dialect.name)["open"]
    found = [_row(r) for r in session.rows(sql, (name, location))]
    for row in found:
        if (row.name, row.location) != (name, location):
            what = f"location {location}" if row.location == location else f"name {name!r}"
            raise TableExistsError(
                f"the {what} belongs to an unfinished import: {row.location} as {row.name!r}",
                table=name,
                suggestion=f"finish that import, or undo it with `deltasql rollback {row.name}`",
            )
    return found[0] if found else None


def newest_of(database: Database, name: str) -> ImportRow | None:
    """The newest import under a name, whatever became of it."""
    with database.read() as session:
        row = session.row(database.sql("imports", "by name"), (name,))
    return None if row is None else _row(row)


def of_table(database: Database, table_id: int) -> ImportRow | None:
    """The import that made a table, or None for one that was created here."""
    with database.read() as session:
        row = session.row(database.sql("imports", "by table"), (table_id,))
    return None if row is None else _row(row)


def lease_name(location: str) -> str:
    """The name of the lease on what lies at a location."""
    return f"import:{location}"


def list_in(session: Session) -> list[ImportRow]:
    """All imports, newest first."""
    return [_row(r) for r in session.rows(statements("imports", session.engine.dialect.name)["all"])]


def list_imports(database: Database, name: str | None = None) -> list[ImportRow]:
    """All imports, or those under a name, newest first."""
    with database.read() as session:
        if name is None:
            return list_in(session)
        return [_row(r) for r in session.rows(database.sql("imports", "by name"), (name,))]


def begin(
    database: Database,
    lease: Lease,
    *,
    name: str,
    location: str,
    engine: str,
    plan: Mapping[str, Any],
    first_version: int,
    source_version: int,
    batches_total: int,
    files_expected: int,
) -> ImportRow:
    """Note a new import and reserve its table's id; the name must be free."""
    with database.write() as session:
        require(database, session, lease)
        registry.refuse_taken_in(session, name, location)
        if (found := _find_open(session, name, location)) is not None:
            return found
        now = session.now_ms()
        # the row goes again at once, but its id is never given to another table
        tables = statements("tables", database.dialect.name)
        reserved = session.row(tables["insert"], (name, location, "importing", None, "{}", "{}", now, now))
        if reserved is None:
            raise TableExistsError(f"the name {name!r} or its location was taken a moment ago", table=name)
        session.run(database.sql("drop", "dl_tables"), (reserved[0],))
        row = ImportRow(
            str(uuid.uuid4()),
            int(reserved[0]),
            name,
            location,
            engine,
            "loading",
            plan,
            first_version,
            source_version,
            batches_total,
            files_expected,
            False,
            audit.actor(),
            now,
            now,
            None,
            None,
            None,
        )
        values = (
            row.import_id,
            row.table_id,
            name,
            location,
            engine,
            row.phase,
            encode_json(dict(plan)),
            first_version,
            source_version,
            batches_total,
            files_expected,
            False,
            row.actor,
            now,
            now,
            None,
            None,
            None,
            "{}",
        )
        session.run(database.sql("imports", "insert"), values)
        audit.record(
            session,
            "begin import",
            table_id=row.table_id,
            table=name,
            version=source_version,
            at=now,
            location=location,
            import_id=row.import_id,
        )
    return row


def require(database: Database, session: Session, lease: Lease) -> None:
    """Check inside a transaction that the lease is still ours, and hold it for longer."""
    if not still_held(database, session, lease):
        raise CatalogBusyError(
            f"the lease {lease.name} ran out or was taken over",
            suggestion="look whether another import of the table is at work, then resume",
        )
    session.run(
        database.sql("leases", "extend"), (session.now_ms() + LEASE_MS, lease.name, lease.token, lease.holder)
    )


def set_phase(
    database: Database,
    session: Session,
    row: ImportRow,
    phase: Phase,
    *,
    digest: str | None = None,
    error: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> ImportRow:
    """Move an import to another phase."""
    now = session.now_ms()
    moved = replace(
        row,
        phase=phase,
        updated_at=now,
        finished_at=None if phase in ("loading", "verifying") else now,
        digest=digest or row.digest,
        error=error,
        details={**row.details, **(details or {})},
    )
    values = (
        moved.phase,
        now,
        moved.finished_at,
        moved.digest,
        error if error is None else error[:2000],
        encode_json(dict(moved.details)),
        row.import_id,
    )
    session.run(database.sql("imports", "set phase"), values)
    return moved


def extend(
    database: Database,
    session: Session,
    row: ImportRow,
    plan: Mapping[str, Any],
    *,
    source_version: int,
    batches_total: int,
) -> ImportRow:
    """Note that the source moved on, or that the number of batches is known better."""
    now = session.now_ms()
    values = (encode_json(dict(plan)), source_version, batches_total, now, row.import_id)
    session.run(database.sql("imports", "set plan"), values)
    return replace(row, plan=plan, source_version=source_version, batches_total=batches_total, updated_at=now)


def receipts(database: Database, import_id: str) -> list[Receipt]:
    """What is loaded already, in order."""
    with database.read() as session:
        rows = session.rows(database.sql("imports", "receipts"), (import_id,))
    return [Receipt(*r) for r in rows]


def write_receipt(session: Session, import_id: str, receipt: Receipt) -> None:
    """Write a batch's receipt, inside the batch's transaction; a second one is refused by its key."""
    values = [
        import_id,
        receipt.batch,
        receipt.kind,
        receipt.begins,
        receipt.ends,
        receipt.actions,
        receipt.num_files,
        receipt.size_bytes,
        receipt.num_records,
        receipt.files_without_count,
        receipt.next_file_seq,
        receipt.written_at,
        receipt.milliseconds,
        receipt.memory_bytes,
    ]
    session.insert("dl_import_batches", _RECEIPT_COLUMNS, [values])


def note_large_commit(session: Session, table_id: int, commit: Ratification, facts: CommitFacts) -> None:
    """Write the row of a commit whose bytes stay in the log alone: only their digest is kept."""
    write_commits(session, table_id, [replace(commit, facts=facts)])


def has_other_files(database: Database, session: Session, table_id: int) -> bool:
    """Whether the catalog holds files of other tables."""
    return session.row(database.sql("imports", "other files"), (table_id,)) is not None


def show_table(
    database: Database,
    session: Session,
    row: ImportRow,
    head: Head,
    *,
    next_file_seq: int,
    shape: str,
    following: bool = False,
) -> None:
    """Make an imported table visible: its rows in the registry, its head, and its published watermark."""
    registry.refuse_taken_in(session, row.name, row.location)
    now = session.now_ms()
    session.run(database.sql("imports", "insert table"), (row.table_id, row.name, row.location, now, now))
    session.run(database.sql("tables", "insert head"), (row.table_id,))
    session.run(database.sql("tables", "insert mirror"), (row.table_id, head.version))
    since = session.row(database.sql("snapshots", "state versions"), (row.table_id, row.table_id))
    metadata, protocol = since if since is not None else (-1, -1)
    table = Table(
        row.table_id, row.name, row.location, "active", None, None, {}, {}, now, now, head, head.version
    )
    newest = session.row(database.sql("commits", "one"), (row.table_id, head.version))
    digest = None if newest is None else newest[10]
    set_head(session, LockedTable(table, next_file_seq, metadata, protocol, shape=shape, digest=digest))
    if following:
        session.run(database.sql("tables", "set state"), (registry.FOLLOWING, None, now, row.table_id))
        session.run(database.sql("tables", "set frozen"), (True, row.table_id))


def note_follower(database: Database, row: ImportRow, source_version: int) -> None:
    """Leave a word on when a followed log was looked at, and how far it was."""
    with database.relaxed_write() as session:
        now = session.now_ms()
        details = {**row.details, "looked_at": now, "seen_version": source_version}
        values = (row.phase, now, row.finished_at, row.digest, None, encode_json(details), row.import_id)
        session.run(database.sql("imports", "set phase"), values)


def _row(row: Row) -> ImportRow:
    values = list(row)
    values[6] = decode_json(values[6])
    values[11] = bool(values[11])
    values[18] = decode_json(values[18])
    return ImportRow(*values)
