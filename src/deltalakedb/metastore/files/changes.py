"""Changing a table's files: applying commits, undoing them, and finding what changed since a version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import ProtocolError
from deltalakedb.metastore.files import slots
from deltalakedb.metastore.files.pruning import plan_added
from deltalakedb.metastore.files.rows import FILE_ID_BITS, FileRows, path_hash
from deltalakedb.metastore.rows import Head
from deltalakedb.protocol.actions import Action, Add, Metadata, Remove
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.paths import canonical_path, encode_path
from deltalakedb.protocol.predicate import Expr, to_physical
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import SlotEncoder, column_types
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.engines.base import Row, Session

#: path hashes in one statement
_AT_ONCE: Final = 500


@dataclass(slots=True)
class Counts:
    """A head's counters while files come and go."""

    num_files: int = 0
    size_bytes: int = 0
    num_records: int = 0
    files_without_count: int = 0

    @classmethod
    def of(cls, head: Head) -> Counts:
        return cls(head.num_files, head.size_bytes, head.num_records, head.files_without_count)

    def change(self, sign: int, size: int, records: int | None) -> None:
        """Count a file in (1) or out (-1)."""
        self.num_files += sign
        self.size_bytes += sign * size
        if records is None:
            self.files_without_count += sign
        else:
            self.num_records += sign * records

    def add(self, other: Counts) -> None:
        self.num_files += other.num_files
        self.size_bytes += other.size_bytes
        self.num_records += other.num_records
        self.files_without_count += other.files_without_count

    def head(self, version: int, timestamp: int, first_version: int) -> Head:
        """A head with these counters.

        Raises:
            ProtocolError: They do not fit 64 bits, so some file has a size that no file can have.
        """
        if not -(2**63) <= self.size_bytes < 2**63:
            raise ProtocolError(
                f"version {version} makes the table {self.size_bytes} bytes large, which no table can be",
                version=version,
                suggestion="have the writer of the commit correct the sizes of its files",
            )
        counts = (self.num_files, self.size_bytes, self.num_records, self.files_without_count)
        return Head(version, timestamp, first_version, *counts)


class FileChanges:
    """Applies the removes and adds of commits to the files of one table, and counts them.

    ``live`` has the live files that the first commits name, as `live_files` returns them.
    """

    def __init__(
        self,
        session: Session,
        table_id: int,
        next_seq: int,
        encoder: SlotEncoder,
        counts: Counts,
        live: Mapping[tuple[str, str], tuple[int, int, int | None]],
    ) -> None:
        self._live = dict(live)
        self.rows = FileRows(session, table_id, next_seq, encoder)
        self.counts = counts
        self.added = self.removed = 0
        self.data_change = False

    def apply(self, version: int, actions: Sequence[Action]) -> None:
        """Apply a commit's removes, then its adds."""
        for action in actions:
            if isinstance(action, Remove):
                self._remove(version, action)
        for action in actions:
            if isinstance(action, Add):
                self._add(version, action)

    def apply_pieces(self, version: int, pieces: Iterable[Sequence[Action]]) -> None:
        """Apply a commit too large for memory: each piece is looked up, applied and written in turn."""
        for piece in pieces:
            self._live = dict(self.rows.live(a.path for a in piece if isinstance(a, Add | Remove)))
            self.apply(version, piece)
            self.rows.flush()

    def _remove(self, version: int, remove: Remove) -> None:
        self.removed += 1
        self.data_change |= remove.data_change
        found = self._live.pop(remove.key, None)
        if found is None:
            self.rows.bury(remove, version)
            return
        file_id, size, records = found
        self.rows.close(file_id, version, remove)
        self.counts.change(-1, size, records)

    def _add(self, version: int, add: Add) -> None:
        self.added += 1
        self.data_change |= add.data_change
        key = add.key
        if (found := self._live.get(key)) is not None:
            file_id, size, records = found
            self.rows.close(file_id, version, None)
            self.counts.change(-1, size, records)
        file_id, records = self.rows.add(add, version)
        self._live[key] = (file_id, add.size, records)
        self.counts.change(1, add.size, records)


def revert_files(session: Session, table_id: int, first: int) -> None:
    """Undo what the versions from ``first`` on did to a table's files."""
    _run_all(session, "revert", (table_id, first))


def drop_files(session: Session, table_id: int) -> None:
    _run_all(session, "drop", (table_id,))


def drop_range(session: Session, table_id: int, begin: int, end: int | None = None) -> None:
    """Delete the file rows with sequence numbers from ``begin`` up to ``end``, which is left out."""
    first = table_id << FILE_ID_BITS
    last = ((table_id + 1) << FILE_ID_BITS) if end is None else first + end
    _run_all(session, "range", (first + begin, last - 1))


def has_other_files(session: Session, table_id: int) -> bool:
    return session.row(session.sql("files", "other files"), (table_id,)) is not None


def _run_all(session: Session, prefix: str, params: Sequence[int]) -> None:
    for statement in session.all_sql("files", f"{prefix} "):
        session.run(statement, params)


@dataclass(frozen=True, slots=True)
class ConcurrentChange:
    """The first concurrent commit that conflicts: its version, and the files or names at fault."""

    version: int
    names: tuple[str, ...]


def removed_since(
    session: Session, table_id: int, since: int, files: Collection[tuple[str, str]] | None = None
) -> ConcurrentChange | None:
    """Files live at a version that later commits removed or replaced: any, or some of those given by key."""
    if files is None:
        return _first(session.rows(session.sql("files", "removed since"), (table_id, since, since)))
    found: list[Row] = []
    for part in hash_parts(encode_path(path) for path, _ in files):
        sql = session.sql("files", "removed since among").expand(len(part))
        found += session.rows(sql, (table_id, since, since, *part))
    return _first(r for r in found if (canonical_path(r[0]), r[1]) in files)


def added_since(
    session: Session,
    table_id: int,
    since: int,
    *,
    metadata: Metadata,
    where: Expr | None = None,
    skip_blind: bool = False,
) -> ConcurrentChange | None:
    """Files added after a version that may hold rows a predicate over logical columns selects.

    The metadata must be unchanged since. ``skip_blind`` leaves out blind appends, as WriteSerializable does.
    """
    schema = parse_schema(metadata.schema_string)
    physical = None if where is None else to_physical(where, schema)
    plan = plan_added(
        physical,
        table_id=table_id,
        since=since,
        slots=[s for s in slots.read_slots(session, table_id) if s.dropped is None],
        facts=session.dialect,
        skip_blind=skip_blind,
    )
    rows = session.rows(plan.sql, plan.params)
    if physical is not None:
        files = FileFilter(physical, column_types(schema))
        rows = [r for r in rows if files.may_match(parse_stats(r[2]), decode_json(r[3]))]
    return _first((path, None, version) for path, version, *_ in rows)


def keys_added_since(session: Session, table_id: int, version: int) -> list[tuple[str, str]]:
    """Path and deletion vector id of every file that versions after one have added."""
    rows = session.rows(session.sql("files", "keys added since"), (table_id, version))
    return [(path, dv_id) for path, dv_id in rows]


def hash_parts(paths: Iterable[str]) -> Iterator[Sequence[int]]:
    """The hashes of some paths, as many at a time as one statement takes."""
    hashes = sorted({path_hash(path) for path in paths})
    return (hashes[at : at + _AT_ONCE] for at in range(0, len(hashes), _AT_ONCE))


def _first(rows: Iterable[Row]) -> ConcurrentChange | None:
    """The earliest commit among rows of (path, _, version), with the files that it touched."""
    found = sorted(rows, key=lambda r: r[2])
    if not found:
        return None
    version = found[0][2]
    return ConcurrentChange(version, tuple(r[0] for r in found if r[2] == version)[:5])
