"""How imports stand, as the database tells: whoever asks, from whichever process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.catalog import imports
from deltalakedb.catalog.database import Database
from deltalakedb.uri import parse_uri

if TYPE_CHECKING:
    from deltalakedb.catalog.imports import ImportRow


@dataclass(frozen=True, slots=True)
class ImportStatus:
    """How one import stands.

    Attributes:
        table: The table's name.
        location: The source.
        phase: ``loading``, ``verifying``, ``finalized``, ``failed`` or ``undone``.
        first_version: The oldest version it brings.
        version: The newest.
        batches_done: Batches with a receipt.
        batches_total: Batches there are.
        actions_done: File actions loaded.
        actions_expected: An estimate of how many there are.
        rate: File actions a second while batches were written; None before the first.
        seconds_left: An estimate while it is loading.
        memory_bytes: The most memory that its processes told of.
        started_at: When it began, in epoch milliseconds.
        updated_at: When it was heard of last.
        finished_at: When it ended.
        error: Why it stopped.
        digest: The digest of its live files, once it is verified.
        import_id: Its id.
    """

    table: str
    location: str
    phase: str
    first_version: int
    version: int
    batches_done: int
    batches_total: int
    actions_done: int
    actions_expected: int
    rate: float | None
    seconds_left: float | None
    memory_bytes: int
    started_at: int
    updated_at: int
    finished_at: int | None
    error: str | None
    digest: str | None
    import_id: str

    def to_dict(self) -> dict[str, Any]:
        """The status as plain data."""
        return asdict(self)


def import_status(uri: str) -> list[ImportStatus]:
    """The imports of a catalog, or those under a table's name, newest first.

    Args:
        uri: A catalog's or a table's ``deltasql://`` address.

    Example:
        >>> [s.phase for s in import_status("deltasql://sqlite//lake/meta.db")]
        ['finalized']
    """
    address = parse_uri(uri)
    database = Database.open(address)
    return [_status(database, row) for row in imports.list_imports(database, address.table)]


def _status(database: Database, row: ImportRow) -> ImportStatus:
    done = imports.receipts(database, row.import_id)
    # a batch that took no time took less than the clock can tell
    actions, spent = sum(r.actions for r in done), sum(max(r.milliseconds, 1) for r in done) / 1000
    rate = round(actions / spent, 1) if actions else None
    left = None
    if row.phase == "loading" and done:
        left = round(spent / len(done) * max(0, row.batches_total - len(done)), 1)
    return ImportStatus(
        row.name,
        row.location,
        row.phase,
        row.first_version,
        row.source_version,
        len(done),
        row.batches_total,
        actions,
        row.files_expected,
        rate,
        left,
        max((r.memory_bytes for r in done), default=0),
        row.started_at,
        max([row.updated_at, *(r.written_at for r in done)]),
        row.finished_at,
        row.error,
        row.digest,
        row.import_id,
    )
