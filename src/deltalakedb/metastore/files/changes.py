"""Changing a table's files: applying commits, undoing them, and finding what changed since a version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.metastore.files.listing import added_between, last_at, live_files
from deltalakedb.metastore.files.packs import unpack
from deltalakedb.metastore.files.rows import Counts, FileRows, id_range
from deltalakedb.protocol.actions import Action, Add, Metadata, Remove
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.predicate import Expr, to_physical
from deltalakedb.protocol.schema import column_types, parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from deltalakedb.metastore.engines.base import Row, Session
    from deltalakedb.protocol.actions import FileKey

#: above every version
_LATEST: Final = 2**62


class FileChanges:
    """Applies the removes and adds of commits to the files of one table, and counts them.

    ``live`` has the live files that the first commits name, as `live_files` returns them.
    """

    def __init__(
        self,
        session: Session,
        table_id: int,
        next_seq: int,
        counts: Counts,
        live: Mapping[FileKey, tuple[int, int, int | None]],
    ) -> None:
        self._session, self._table_id = session, table_id
        self._live = dict(live)
        self.rows = FileRows(session, table_id, next_seq)
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
            paths = [a.path for a in piece if isinstance(a, Add | Remove)]
            self._live = dict(live_files(self._session, self._table_id, paths))
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
    _drop(session, last_at(session, table_id, first - 1) + 1, id_range(table_id)[1] - 1, packs=False)
    for what in ("removals", "removed"):
        session.run(session.sql("files", f"revert {what}"), (table_id, first))


def drop_files(session: Session, table_id: int) -> None:
    first, end = id_range(table_id)
    _drop(session, first, end - 1, packs=True)


def drop_range(session: Session, table_id: int, begin: int, end: int | None = None) -> None:
    """Delete all that is stored for the sequence numbers from ``begin`` up to ``end``, which is left out."""
    first, last = id_range(table_id)
    first, last = first + begin, (last if end is None else first + end) - 1
    unpack(session, table_id, first, last)
    _drop(session, first, last, packs=True)


def _drop(session: Session, first: int, last: int, *, packs: bool) -> None:
    for what in ("details", "stats", *(("blocks", "columns", "packs") if packs else ()), "rows"):
        session.run(session.sql("files", f"range {what}"), (first, last))


@dataclass(frozen=True, slots=True)
class ConcurrentChange:
    """The first concurrent commit that conflicts: its version, and the files or names at fault."""

    version: int
    names: tuple[str, ...]


def removed_since(
    session: Session, table_id: int, since: int, files: Collection[FileKey] | None = None
) -> ConcurrentChange | None:
    """Files live at a version that later commits removed or replaced: any, or some of those given by key."""
    rows = session.rows(session.sql("files", "removed since"), (table_id, since, since))
    return _first(r for r in rows if files is None or (canonical_path(r[0]), r[1]) in files)


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
    columns = ["path", "dv_id", "add_version"]
    blind: set[int] = set()
    if skip_blind:
        blind = {v for (v,) in session.rows(session.sql("files", "blind versions"), (table_id, since))}
    if where is not None:
        columns += ["stats", "partition_values"]
    found = added_between(session, table_id, since, _LATEST, columns, live=False).to_pylist()
    if where is not None:
        schema = parse_schema(metadata.schema_string)
        test = FileFilter(to_physical(where, schema), column_types(schema))
        found = [
            r for r in found if test.may_match(parse_stats(r["stats"]), decode_json(r["partition_values"]))
        ]
    return _first((r["path"], None, r["add_version"]) for r in found if r["add_version"] not in blind)


def keys_added_since(session: Session, table_id: int, version: int) -> list[tuple[str, str]]:
    """Path and deletion vector id of every file that versions after one have added."""
    after, end = last_at(session, table_id, version), id_range(table_id)[1]
    return [(path, dv_id) for path, dv_id in session.rows(session.sql("files", "keys after"), (after, end))]


def _first(rows: Iterable[Row]) -> ConcurrentChange | None:
    """The earliest commit among rows of (path, _, version), with the files that it touched."""
    found = sorted(rows, key=lambda r: r[2])
    if not found:
        return None
    version = found[0][2]
    return ConcurrentChange(version, tuple(r[0] for r in found if r[2] == version)[:5])
