"""Which files versions still need, which under a table's root are unknown, and which may be deleted."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import ProtocolError
from deltalakedb.metastore import commits, files, snapshots
from deltalakedb.protocol.actions import Cdc, DeletionVector, decode_commit
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.paths import file_below
from deltalakedb.storage.store import LinkResolver, ObjectMeta, is_local, open_store
from deltalakedb.table.sources import Source, SqlSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import OpenTable, Table

#: for this many folders or more, an object store is listed once instead of queried for each
_LIST_FROM: Final = 100
#: object stores do not show which new files may still be committed, so younger ones stay
REMOTE_GRACE_MS = 86_400_000
#: the suffix of data files that our own writer has not finished
UNFINISHED: Final = ".parquet.tmp"
_DATA_FOLDERS: Final = ("_change_data", "_delta_index")
#: change data, which only commits name
CHANGES: Final = "_change_data/"
#: an offset at the end of a vector's id; the text before it may itself end like one
_OFFSET: Final = re.compile(r"@\d+$")


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The files below a table's root that may be its data, and which of them may ever be deleted.

    Never among them: what is in a hidden folder or has a hidden name (`_delta_log` above all; change data is
    in no hidden folder), what belongs to another Delta table below the root, and links. Paths are decoded.
    """

    root: str
    #: folders of these may begin with an underscore
    partition_columns: tuple[str, ...]
    #: prefixes of paths that belong to other tables of the catalog, or to its database
    others: tuple[str, ...]
    options: Mapping[str, str] | None = None
    #: also files that our own writers had not finished, though their names are hidden
    temporary: bool = False

    @classmethod
    def of(
        cls,
        database: Database,
        opened: OpenTable,
        options: Mapping[str, str] | None,
        *,
        temporary: bool = False,
    ) -> Self:
        columns, others = opened.snapshot.metadata.partition_columns, _foreign_places(database, opened.table)
        return cls(opened.table.location, columns, others, options, temporary)

    def list(self, folder: str = "") -> Iterator[ObjectMeta]:
        """All of them, or those of a folder right below the root; known or not."""
        if is_local(self.root):
            yield from (meta for meta in self._walk(folder) if not meta.path.startswith(self.others))
            return
        listed = [*open_store(self.root, self.options).list(folder, recursive=True)]
        tables = {m.path.partition("/_delta_log/")[0] + "/" for m in listed if "/_delta_log/" in m.path}
        for meta in listed:
            if self._shows(meta.path) and not meta.path.startswith((*tables, *self.others)):
                yield meta

    def top_level(self) -> tuple[Sequence[str], Sequence[ObjectMeta]]:
        """The folders right below the root that may hold data, and the files beside them."""
        store = open_store(self.root, self.options)
        folders = [name for name in store.folders() if self._shows_name(name, top=True)]
        files = [m for m in store.list() if self._shows(m.path) and not m.path.startswith(self.others)]
        return folders, files

    def orphans(
        self,
        known: Collection[str],
        listed: Iterable[ObjectMeta],
        *,
        before: int,
        pending: int | None,
        now: int,
    ) -> Iterator[ObjectMeta]:
        """The listed files that are not among the known ones, and older than any pending write."""
        before = before if pending is None else min(before, pending)
        before = before if is_local(self.root) else min(before, now - REMOTE_GRACE_MS)
        strange = [meta for meta in listed if meta.modified_ms <= before and meta.path not in known]
        behind_links = linked(self.root, known) if strange and is_local(self.root) else frozenset[str]()
        return (meta for meta in strange if meta.path not in behind_links)

    def deletable(self, paths: Iterable[str]) -> Sequence[str]:
        """Those of some paths that may be deleted: the rule of vacuum, gc and listings.

        A path of the log is not trusted: a commit of another engine can name any file in a `remove`.
        """
        named = [
            path
            for path in paths
            if {"", ".", ".."}.isdisjoint(path.split("/"))
            and self._shows(path)
            and not path.startswith(self.others)
        ]
        if is_local(self.root):
            root = os.path.realpath(self.root).rstrip("/")
            folders = {folder: _is_own(root, folder) for folder in {p.rpartition("/")[0] for p in named}}
            return [p for p in named if folders[p.rpartition("/")[0]] and _is_regular(f"{root}/{p}")]
        tables = tuple(f"{folder}/" for folder in self._nested(named))
        return [path for path in named if not path.startswith(tables)]

    def _nested(self, paths: Sequence[str]) -> set[str]:
        """The folders above some paths in an object store that are tables of their own."""
        above = {folder for path in paths for folder in _above(path)}
        store = open_store(self.root, self.options)
        if len(above) < _LIST_FROM:
            return {f for f in above if next(store.list(f"{f}/{LOG_FOLDER}", recursive=True), None)}
        marked = (m.path.partition(f"/{LOG_FOLDER}/") for m in store.list(recursive=True))
        return {folder for folder, mark, _ in marked if mark}

    def _shows(self, path: str) -> bool:
        return all(self._shows_name(part, top=not place) for place, part in enumerate(path.split("/")))

    def _shows_name(self, name: str, *, top: bool) -> bool:
        """Whether a folder or file of this name holds data of the table."""
        if not name.startswith((".", "_")) or any(name.startswith(f"{c}=") for c in self.partition_columns):
            return True
        if name.startswith(".") and name.endswith(UNFINISHED):
            return self.temporary
        return top and name in _DATA_FOLDERS

    def _walk(self, prefix: str) -> Iterator[ObjectMeta]:
        """The visible regular files below a folder of a local root; links are neither followed nor files."""
        try:
            entries = [*os.scandir(os.path.join(self.root, prefix))]  # noqa: PTH118 - paths stay texts here
        except FileNotFoundError:
            return
        if prefix and any(entry.name == LOG_FOLDER for entry in entries):
            return  # another table
        for entry in entries:
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if not self._shows_name(entry.name, top=not prefix):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path)
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    yield ObjectMeta(path, found.st_size, found.st_mtime_ns // 1_000_000)


def _foreign_places(database: Database, table: Table) -> tuple[str, ...]:
    with database.read() as session:
        places = [f"{row[0]}/" for row in session.rows(database.sql("tables", "locations"))]
    if (file := database.address.resolved().path) is not None:
        places.append(file)  # and what begins like it: its log and its locks
    links = LinkResolver()
    root = f"{links.resolve(table.location).rstrip('/')}/"
    found = (links.resolve(place.rstrip("/")) + "/" * place.endswith("/") for place in places)
    return tuple(place[len(root) :] for place in found if place.startswith(root) and place != root)


def _is_own(root: str, folder: str) -> bool:
    """Whether a folder below a local root is reached without links, and belongs to no other table."""
    if not folder:
        return True
    if os.path.realpath(f"{root}/{folder}") != f"{root}/{folder}":
        return False
    return not any(os.path.lexists(f"{root}/{above}/{LOG_FOLDER}") for above in _above(f"{folder}/-"))


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _above(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


@dataclass(slots=True)
class References:
    """Paths below a table's root, decoded."""

    #: files that must stay
    needed: set[str]
    #: files that were removed long enough ago and no version needs, with their sizes
    expired: dict[str, int]
    #: every path that SQL knows of the table
    known: set[str]
    #: the version that removed each expired file last
    removed: dict[str, int]
    #: whether `needed` has every change data file of the versions that are retained
    changes_known: bool


def referenced_files(
    database: Database, opened: OpenTable, *, cutoff: int, kept: Sequence[Source] = (), with_changes: bool
) -> References:
    """What SQL knows of the files of a table at its newest version.

    Files removed since the cutoff, a time in epoch milliseconds, are retained, as are all files of ``kept``
    versions. With ``with_changes``, change data files are looked for in the commits since the cutoff.
    """
    root, version = opened.table.location, opened.snapshot.version
    sources: list[Source] = [SqlSource(database, opened), *kept]
    # what readers of the log see if publishing is behind; a revert may return to it
    if 0 <= (published := opened.table.published_version) < version:
        sources.append(SqlSource(database, snapshots.open_table(database, opened.table.name, published)))
    needed = {name for source in sources for name in needed_by(source, root)}
    known: set[str] = set()
    gone: dict[str, tuple[int, int]] = {}
    for file in files.removed(database, opened.table):
        names = file_names(root, file.path, file.dv_id)
        known.update(names)
        if file.removed_at >= cutoff:
            needed.update(names)
        elif names:
            gone[names[0]] = file.size, max(file.version, gone.get(names[0], (0, -1))[1])
    changes: set[str | None] = {None}
    if with_changes:
        changes = _changes(database, opened, cutoff, [s.snapshot.version for s in kept])
        needed |= {name for name in changes if name is not None}
    gone = {path: found for path, found in gone.items() if path not in needed}
    sizes = {path: size for path, (size, _) in gone.items()}
    removed = {path: version for path, (_, version) in gone.items()}
    return References(needed, sizes, known | needed, removed, None not in changes)


def needed_by(source: Source, root: str) -> frozenset[str]:
    found = source.scan(("path", "dv_id"))
    rows = zip(*(c.to_pylist() for c in found.columns), strict=True)
    return frozenset(name for path, vector in rows for name in file_names(root, path, vector))


def _changes(database: Database, opened: OpenTable, cutoff: int, kept: Sequence[int]) -> set[str | None]:
    """The change data files of versions that are retained or kept, and None if some are unknown."""
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
    """A data file and its deletion vector's file, as far as they are below the root."""
    found = [file_below(root, path)]
    if vector and vector[0] != "i":
        # an offset and a text that ends like one look the same in the id: both readings are protected
        for text in {vector[1:], _OFFSET.sub("", vector[1:])}:
            read = DeletionVector(
                storage_type=vector[0], path_or_inline_dv=text, size_in_bytes=0, cardinality=0
            )
            with suppress(ProtocolError):
                if (place := dv_path(read)) is not None:
                    found.append(file_below(root, place if vector[0] == "p" else place.replace("%", "%25")))
    return [name for name in found if name is not None]


def linked(root: str, known: Collection[str]) -> frozenset[str]:
    """Where files below a local root really are that paths reach through links, or spell in another way."""
    real = os.path.realpath(root)
    folders: dict[str, list[str]] = {}
    for path in known:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    found: set[str] = set()
    for folder, paths in folders.items():
        there = os.path.realpath(f"{root}/{folder}")
        if there != f"{real}/{folder}".rstrip("/") or _has_links(there):
            found.update(os.path.relpath(os.path.realpath(f"{root}/{path}"), real) for path in paths)
    return frozenset(found)


def _has_links(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.is_symlink() for entry in entries)
    except OSError:
        return False
