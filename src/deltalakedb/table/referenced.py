"""Which files of a table's root somebody needs: live, retained, kept on purpose, or named by a commit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalakedb.exceptions import ProtocolError
from deltalakedb.metastore import commits, files, snapshots
from deltalakedb.protocol.actions import Cdc, DeletionVector
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.paths import file_below
from deltalakedb.table.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import OpenTable
    from deltalakedb.table.sources import Source

#: an offset at the end of a vector's id; the text before it may itself end like one
_OFFSET = re.compile(r"@\d+$")


@dataclass(slots=True)
class References:
    """Paths below a table's root, decoded.

    Attributes:
        needed: Files that must stay.
        expired: Files that were removed long enough ago and nobody needs, with their sizes.
        known: Every path that SQL knows of the table.
        removed: The version that removed each expired file last.
        changes_known: Whether `needed` holds every change data file of the versions that are retained.
    """

    needed: set[str] = field(default_factory=set)
    expired: dict[str, int] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    removed: dict[str, int] = field(default_factory=dict)
    changes_known: bool = False


def references(
    database: Database, opened: OpenTable, *, cutoff: int, kept: Sequence[Source] = (), with_changes: bool
) -> References:
    """What is needed of a table, by SQL alone.

    Args:
        database: The catalog.
        opened: The table at its newest version.
        cutoff: What was removed at or after this time is retained.
        kept: Versions whose files stay whatever their age.
        with_changes: Also look for change data files, in the commits since the cutoff.
    """
    root, out = opened.table.location, References()
    for source in (SqlSource(database, opened), *kept, *_shown(database, opened)):
        out.needed |= needed_by(source, root)
    gone: dict[str, int] = {}
    removed: dict[str, int] = {}
    for file in files.removed(database, opened.table):
        names = file_names(root, file.path, file.dv_id)
        out.known.update(names)
        if file.removed_at >= cutoff:
            out.needed.update(names)
        elif names:
            gone[names[0]] = file.size
            removed[names[0]] = max(file.version, removed.get(names[0], -1))
    if with_changes:
        changes = _changes(database, opened, cutoff, [s.snapshot.version for s in kept])
        out.changes_known = None not in changes
        out.needed |= {name for name in changes if name is not None}
    out.known |= out.needed
    out.expired = {path: size for path, size in gone.items() if path not in out.needed}
    out.removed = {path: removed[path] for path in out.expired}
    return out


def _shown(database: Database, opened: OpenTable) -> Iterable[Source]:
    """The version that readers of the log see, if publishing is behind.

    Whoever publishes, and even if nobody does: commits that are not published can be taken back to it.
    """
    shown = opened.table.published_version
    if 0 <= shown < opened.snapshot.version:
        yield SqlSource(database, snapshots.open_table(database, opened.table.name, shown))


def needed_by(source: Source, root: str) -> frozenset[str]:
    """The files of one version, with their deletion vectors, decoded and below the root."""
    found = source.scan(("path", "dv_id"))
    rows = zip(*(c.to_pylist() for c in found.columns), strict=True)
    return frozenset(name for path, vector in rows for name in file_names(root, path, vector))


def _changes(database: Database, opened: OpenTable, cutoff: int, kept: Sequence[int]) -> set[str | None]:
    """The change data files of versions that are retained or kept, and None if not all of them are known."""
    table = opened.table
    rows = commits.history(database, table, upto=opened.snapshot.version)
    wanted = {r.version for r in rows if r.timestamp >= cutoff or r.version in kept}
    found: set[str | None] = set()
    early = table.head.first_version > 0 and all(r.timestamp >= cutoff for r in rows)
    if early or not {r.version for r in rows}.issuperset(kept):
        found.add(None)  # versions from before the import are retained, and only the log knows their files
    if not wanted:
        return found
    for row, data in commits.between(database, table, min(wanted), max(wanted)):
        if row.version not in wanted:
            continue
        if data is None:
            found.add(None)  # its bytes were pruned
        elif b'"cdc"' in data:
            actions = decode_commit(data, source=f"{table.name} version {row.version}")
            found.update(file_below(table.location, a.path) or "" for a in actions if isinstance(a, Cdc))
    return found


def file_names(root: str, path: str, vector: str) -> list[str]:
    """A data file and its deletion vector's file, as far as they lie below the root."""
    found = [file_below(root, path)]
    if vector and vector[0] != "i":
        # the id does not tell an offset from a text that ends like one: both readings are protected
        for text in {vector[1:], _OFFSET.sub("", vector[1:])}:
            try:
                place = dv_path(
                    DeletionVector(
                        storage_type=vector[0], path_or_inline_dv=text, size_in_bytes=0, cardinality=0
                    )
                )
            except ProtocolError:
                continue
            if place is not None:
                found.append(file_below(root, place if vector[0] == "p" else place.replace("%", "%25")))
    return [name for name in found if name is not None]
