"""Imports as rows: phases, receipts of batches, the moment a table becomes visible, and undoing."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.exceptions import TableExistsError
from deltalakedb.metastore import audit, commits, files, leases, registry
from deltalakedb.metastore.ratify import live_state_versions, revert_rows, set_head
from deltalakedb.metastore.rows import Head, LockedTable, Table
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.storage.store import real_location

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session, SessionSource
    from deltalakedb.metastore.leases import Lease

Phase = Literal["loading", "verifying", "finalized", "failed", "undone", "dropped"]
BatchKind = Literal["base", "tail"]

#: how long a lease on an import holds without a batch
LEASE_MS = 120_000


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
    actor: str
    started_at: int
    updated_at: int
    finished_at: int | None = None
    digest: str | None = None
    error: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.phase in ("loading", "verifying")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a batch is in the catalog, written in the batch's own transaction.

    Attributes:
        batch: Its number in the plan, from 0.
        kind: ``base`` rows come from a checkpoint, ``tail`` rows from commits.
        begins: Its first position in the checkpoint, or its first version; ``ends`` is its last.
        actions: File actions that it held.
        num_files: By how much it changed the number of live files; the next three likewise.
        next_file_seq: The first sequence number that is free after it.
        memory_bytes: The peak memory of the process until then.
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


_IMPORT_COLUMNS = tuple(f.name for f in fields(ImportRow))
_RECEIPT_COLUMNS = ("import_id", *(f.name for f in fields(Receipt)))


def find_open(db: SessionSource, name: str, location: str) -> ImportRow | None:
    """The unfinished import of this table; TableExistsError if another import has its name or location."""
    found = _list(db, "open", name, location)
    for row in found:
        if (row.name, row.location) != (name, location):
            what = f"location {location}" if row.location == location else f"name {name!r}"
            raise TableExistsError(
                f"the {what} belongs to an unfinished import: {row.location} as {row.name!r}",
                table=name,
                suggestion=f"finish that import, or undo it with `deltasql import --undo {row.name}`",
            )
    return found[0] if found else None


def newest_of(db: SessionSource, name: str) -> ImportRow | None:
    return next(iter(list_imports(db, name)), None)


def of_table(db: SessionSource, table_id: int) -> ImportRow | None:
    """The import that made a table, or None for one that was created here."""
    return next(iter(_list(db, "by table", table_id)), None)


def lease_name(location: str) -> str:
    return f"import:{location}"


def list_imports(db: SessionSource, name: str | None = None) -> list[ImportRow]:
    return _list(db, "all") if name is None else _list(db, "by name", name)


def _list(db: SessionSource, statement: str, *params: object) -> list[ImportRow]:
    """Imports from the columns of ``{import}``, which are the fields of an ImportRow."""
    found = []
    for row in db.rows(db.sql("imports", statement), params):
        values = dict(zip(_IMPORT_COLUMNS, row, strict=True))
        texts = {name: decode_json(values[name]) for name in ("plan", "details")}
        found.append(ImportRow(**values | texts))
    return found


def begin(
    db: SessionSource,
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
    """Record a new import and reserve its table's id; the name must be free."""
    with db.write() as session:
        require(session, lease)
        registry.refuse_taken(session, name, location)
        if (found := find_open(session, name, location)) is not None:
            return found
        now = session.now_ms()
        # the row is deleted again at once, but its id is never given to another table
        table_id = registry.insert_row(session, name, location, "importing", None, {}, {})
        session.run(session.sql("imports", "unreserve"), (table_id,))
        row = ImportRow(
            str(uuid.uuid4()),
            table_id,
            name,
            location,
            engine,
            "loading",
            plan,
            first_version,
            source_version,
            batches_total,
            files_expected,
            actor=audit.actor(),
            started_at=now,
            updated_at=now,
        )
        session.insert("dl_imports", _IMPORT_COLUMNS, [_texts(astuple(row))])
        details = {"location": location, "import_id": row.import_id}
        audit.record(session, "begin import", row, version=source_version, at=now, **details)
    return row


def require(session: Session, lease: Lease) -> None:
    """Check inside a transaction that the lease is still held, and extend it."""
    leases.require(session, lease, work="the import", extend_ms=LEASE_MS)


def check_lease(session: Session, lease: Lease) -> None:
    """Check that a lease is still held without extending it: many tasks may check at the same time."""
    leases.require(session, lease, work="the import")


def set_phase(
    session: Session,
    row: ImportRow,
    phase: Phase,
    *,
    digest: str | None = None,
    error: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> ImportRow:
    moved = _save(
        session,
        row,
        phase=phase,
        finished_at=None if phase in ("loading", "verifying") else session.now_ms(),
        digest=digest or row.digest,
        error=error if error is None else error[:2000],
        details={**row.details, **(details or {})},
    )
    return replace(moved, error=error)


def extend(
    session: Session, row: ImportRow, plan: Mapping[str, Any], *, source_version: int, batches_total: int
) -> ImportRow:
    """Record that the source moved on, or that the number of batches is known better."""
    return _save(session, row, plan=plan, source_version=source_version, batches_total=batches_total)


def _save(session: Session, row: ImportRow, **changes: Any) -> ImportRow:
    changes["updated_at"] = session.now_ms()
    values = (*_texts(changes.values()), row.import_id)
    session.update_rows("dl_imports", tuple(changes), "import_id", [values])
    return replace(row, **changes)


def _texts(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(encode_json(dict(v)) if isinstance(v, Mapping) else v for v in values)


def receipts(db: SessionSource, import_id: str) -> list[Receipt]:
    return [Receipt(*r) for r in db.rows(db.sql("imports", "receipts"), (import_id,))]


def write_receipt(session: Session, import_id: str, receipt: Receipt, proof: bytes | None = None) -> None:
    """Write a batch's receipt, inside the batch's transaction; a second one is refused by its key.

    The ``proof`` of a batch of the base is what was read (`BatchProof` in `transfer.importing.proof`). If all
    batches have theirs, the import is verified without reading the log again, also if it was resumed or
    loaded by Spark.
    """
    session.insert("dl_import_batches", (*_RECEIPT_COLUMNS, "proof"), [(import_id, *astuple(receipt), proof)])


def proofs(db: SessionSource, import_id: str) -> list[tuple[int, int, bytes | None]]:
    """The first and the last row of each loaded batch of the base, and its proof."""
    with db.read() as session:
        rows = session.blobs(session.sql("imports", "proofs"), (import_id,))
    return [(begins, ends, None if proof is None else bytes(proof)) for begins, ends, proof in rows]


def claim_batch(session: Session, import_id: str, batch: int) -> bool:
    """Claim a batch inside the transaction that loads it; False if it is loaded already.

    Waits for a twin that has claimed it and not ended yet: of a task that runs twice one has an effect.
    """
    return session.run(session.sql("imports", "claim receipt"), (import_id, batch)) == 1


def write_claimed_receipt(
    session: Session, import_id: str, receipt: Receipt, proof: bytes | None = None
) -> None:
    session.run(session.sql("imports", "unclaim receipt"), (import_id, receipt.batch))
    write_receipt(session, import_id, receipt, proof)


def show_table(
    session: Session, row: ImportRow, head: Head, *, next_file_seq: int, following: bool = False
) -> None:
    """Make an imported table visible: its rows in the registry, its head, and its published watermark."""
    registry.refuse_taken(session, row.name, row.location)
    session.run(session.sql("imports", "drop proofs"), (row.import_id,))
    now = session.now_ms()
    values = (row.table_id, row.name, row.location, real_location(row.location), now, now)
    session.run(session.sql("imports", "insert table"), values)
    registry.insert_head(session, row.table_id, row.name, head.version)
    metadata, protocol = live_state_versions(session, row.table_id)
    table = Table(
        row.table_id, row.name, row.location, "active", None, None, {}, {}, now, now, head, head.version
    )
    newest = commits.by_id(session, row.table_id, head.version)
    digest = None if newest is None else newest.sha256
    set_head(session, LockedTable(table, next_file_seq, metadata, protocol, digest=digest))
    if following:
        registry.set_state(session, row.table_id, registry.FOLLOWING, None)


def note_follower(db: SessionSource, row: ImportRow, source_version: int) -> None:
    with db.relaxed_write() as session:
        details = {**row.details, "looked_at": session.now_ms(), "seen_version": source_version}
        _save(session, row, error=None, details=details)


def undo_rows(database: Database, row: ImportRow, lease: Lease) -> int:
    """Delete everything that an unfinished import loaded, in pieces; an upper limit of its files."""
    loaded = 0
    for receipt in reversed(receipts(database, row.import_id)):
        loaded = max(loaded, receipt.next_file_seq)
        if receipt.kind == "base":
            undo_batch(database, row, receipt, lease)
    with database.write() as session:
        require(session, lease)
        files.drop_range(session, row.table_id, 0)
        registry.delete_rows(session, row.table_id)
        session.run(session.sql("imports", "drop receipts"), (row.import_id, 0))
    return loaded


def undo_batch(database: Database, row: ImportRow, receipt: Receipt, lease: Lease) -> None:
    with database.write() as session:
        require(session, lease)
        if receipt.kind == "tail":
            revert_rows(session, row.table_id, receipt.begins)
            # the numbers of its files are used again, so their packs must go too
            before = (r.next_file_seq for r in receipts(session, row.import_id) if r.batch < receipt.batch)
            files.drop_range(session, row.table_id, max(before, default=0), receipt.next_file_seq)
        elif receipt.ends < receipt.begins:  # the first version's state, which everything else needs
            registry.delete_rows(session, row.table_id)
        else:
            files.drop_range(session, row.table_id, receipt.begins, receipt.next_file_seq)
        session.run(session.sql("imports", "drop receipts"), (row.import_id, receipt.batch))
