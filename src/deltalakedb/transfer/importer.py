"""Importing an existing Delta table: its log becomes rows, in one transaction; its files stay untouched."""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb import telemetry
from deltalakedb.catalog import audit, registry, slot_rows
from deltalakedb.catalog.database import Database
from deltalakedb.catalog.file_rows import FileRows
from deltalakedb.catalog.ratify import (
    Counts,
    Ratification,
    apply_state,
    set_head,
    state_versions,
    write_commits,
)
from deltalakedb.catalog.values import LockedTable
from deltalakedb.config import get_config
from deltalakedb.exceptions import AddressError, InvalidArgumentError, VersionMissingError
from deltalakedb.log.reader import FileTxnLogReader
from deltalakedb.protocol.actions import Action, Add, DomainMetadata, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.features import check_readable
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.table.places import normal_location
from deltalakedb.uri import parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalakedb.catalog.engines.base import Session

History = Literal["auto", "checkpoint", "full"]

#: commits whose rows wait in memory
_COMMITS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import is."""

    versions_done: int
    versions_total: int
    files_seen: int


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import brought in."""

    table: str
    location: str
    version: int
    first_version: int
    num_versions: int
    num_files: int
    size_bytes: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def import_table(
    path: str,
    uri: str,
    *,
    history: History = "auto",
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[ImportProgress], None] | None = None,
) -> ImportReport:
    """Take over the Delta table at a path. Nothing of the table itself is changed.

    Args:
        path: The table's root.
        uri: The ``deltasql://`` address it will have.
        history: ``"full"`` loads every version that the log still holds, ``"checkpoint"`` begins with the
            newest checkpoint, ``"auto"`` is full up to 10,000 commits.
        storage_options: Options for the object store.
        progress: Called now and then with how far it is.

    Returns:
        A report of what was loaded.

    Example:
        >>> import_table("/lake/orders", "deltasql://sqlite//lake/meta.db?table=sales.orders")
    """
    began = time.perf_counter()
    address = parse_uri(uri)
    if address.table is None:
        raise AddressError(
            f"{address.to_uri()} is a catalog's address, not a table's", suggestion="add ?table=NAME"
        )
    if history not in ("auto", "checkpoint", "full"):
        raise InvalidArgumentError(f"unknown history {history!r}", suggestion="use auto, checkpoint or full")
    location = normal_location(path)
    if address.location and normal_location(address.location) != location:
        raise InvalidArgumentError(
            f"the address says location={address.location}, but the table lies at {location}",
            table=address.table,
            suggestion="leave location= out of the address",
        )
    reader = FileTxnLogReader(location, get_config().storage_options_for(location, storage_options))
    newest = reader.snapshot()
    check_readable(newest.protocol, table=address.table)
    first = first_version(reader, history)
    database = Database.open(address)
    with database.write() as session:
        loader = _Loader(session, reader, address.table, location, newest.version)
        report = loader.load(first, newest.version, progress)
        telemetry.emit("import_progress_ratio", 1.0, table=address.table)
    return ImportReport(*report, seconds=round(time.perf_counter() - began, 3))


def first_version(reader: FileTxnLogReader, history: History) -> int:
    """The version to begin with: every later one has its own commit file."""
    latest = reader.latest_version()
    commits = set(reader.commit_versions())
    checkpoint = reader.checkpoint_version(latest)
    if history == "auto":
        history = "full" if len(commits) <= get_config().import_.history_limit else "checkpoint"
    if history == "checkpoint" and checkpoint is not None:
        return checkpoint
    rebuildable = set(reader.versions())
    first = latest
    while first - 1 in rebuildable and first in commits:
        first -= 1
    return first


class _Loader:
    """Loads one table inside one transaction."""

    def __init__(
        self, session: Session, reader: FileTxnLogReader, name: str, location: str, newest: int
    ) -> None:
        self._session = session
        self._reader = reader
        self._locked = registry.insert(session, name, location, published_version=newest)
        self._table_id = self._locked.table.table_id
        self._rows = FileRows(session, self._table_id, 0, slot_rows.encoder(session, self._table_id))
        self._counts = Counts()
        self._live: dict[tuple[str, str], tuple[int, int, int | None]] = {}
        self._commits: list[Ratification] = []
        self._txn = str(uuid.uuid4())
        self._seen = 0
        self._since = (-1, -1)

    def load(
        self, first: int, newest: int, progress: Callable[[ImportProgress], None] | None
    ) -> tuple[str, str, int, int, int, int, int]:
        """Load all versions from the first to the newest."""
        total = newest - first + 1
        for version in range(first, newest + 1):
            whole = version == first and version > 0
            self._version(version, self._base(version) if whole else None)
            if progress is not None and (version == newest or version % 100 == 0):
                progress(ImportProgress(version - first + 1, total, self._seen))
        self._rows.flush()
        self._write_commits()
        head = self._counts.head(newest, self._reader.timestamp_of(newest), first)
        table = self._locked.table
        moved = LockedTable(
            replace(table, head=head), self._rows.next_seq, *self._since, shape=uuid.uuid4().hex
        )
        set_head(self._session, moved)
        audit.record(
            self._session,
            "import",
            table_id=self._table_id,
            table=table.name,
            version=newest,
            txn=self._txn,
            first_version=first,
            files=head.num_files,
        )
        return table.name, table.location, newest, first, total, head.num_files, head.size_bytes

    def _base(self, version: int) -> Iterator[Sequence[Action]]:
        """The whole state at the first version, in batches."""
        reader = self._reader
        if reader.checkpoint_version(version) == version:
            yield from reader.iter_checkpoint(version)
            return
        snapshot = reader.snapshot(version)
        yield [snapshot.protocol, snapshot.metadata]
        yield [*reader.txns(version).values(), *reader.domains(version).values()]
        yield list(reader.tombstones(version))
        yield list(reader.files(version))

    def _version(self, version: int, base: Iterator[Sequence[Action]] | None) -> None:
        data: bytes | None
        try:
            data = self._reader.commit_bytes(version)
        except VersionMissingError:
            data = None
        actions = [] if data is None else decode_commit(data, source=f"version {version}")
        for batch in [actions] if base is None else base:
            self._apply(version, batch)
        self._commits.append(
            Ratification(
                version=version,
                timestamp=self._reader.timestamp_of(version),
                actions=actions,
                data=data,
                txn_uuid=self._txn,
                ordinal=version,
                origin="import",
                published=True,
            )
        )
        if len(self._commits) >= _COMMITS_AT_ONCE:
            self._write_commits()

    def _apply(self, version: int, actions: Sequence[Action]) -> None:
        self._since = state_versions(
            replace(self._locked, metadata_version=self._since[0], protocol_version=self._since[1]),
            version,
            actions,
        )
        state = [a for a in actions if isinstance(a, Metadata | Protocol | Txn | DomainMetadata)]
        if encoder := apply_state(self._session, self._table_id, version, state):
            self._rows.use(encoder)
        for action in actions:
            if isinstance(action, Remove):
                self._remove(version, action)
        for action in actions:
            if isinstance(action, Add):
                self._add(version, action)

    def _remove(self, version: int, remove: Remove) -> None:
        found = self._live.pop((canonical_path(remove.path), remove.dv_id), None)
        if found is None:
            self._rows.bury(remove, version)
            return
        file_id, size, records = found
        self._rows.close(file_id, version, remove)
        self._counts.change(-1, size, records)

    def _add(self, version: int, add: Add) -> None:
        key = (canonical_path(add.path), add.dv_id)
        if (found := self._live.get(key)) is not None:
            self._rows.close(found[0], version, None)
            self._counts.change(-1, found[1], found[2])
        file_id, records = self._rows.add(add, version)
        self._live[key] = (file_id, add.size, records)
        self._counts.change(1, add.size, records)
        self._seen += 1

    def _write_commits(self) -> None:
        if self._commits:
            write_commits(self._session, self._table_id, self._commits)
            self._commits.clear()
