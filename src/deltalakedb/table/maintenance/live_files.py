"""Which files versions still need, which under a table's root are unknown, and which may be deleted."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import ProtocolError
from deltalakedb.metastore import commits, files, snapshots
from deltalakedb.protocol.actions import Cdc, DeletionVector
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.paths import file_below
from deltalakedb.storage.store import ObjectMeta, RealPlaces, open_store
from deltalakedb.table.locations import is_local
from deltalakedb.table.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import OpenTable, Table
    from deltalakedb.table.sources import Source

#: from so many folders on, an object store is listed once instead of being asked about each
_LIST_FROM: Final = 100


class Deletable:
    """The rule that every deletion of data files follows: vacuum, gc and listings.

    A path of the log is not trusted: a commit of another engine can name any file in a `remove`.

    Args:
        database: The catalog.
        table: The table.
        partition_columns: Folders of these may begin with an underscore.
        temporary: Also files that our own writers had not finished, though their names are hidden.
        storage_options: Options for the store.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        *,
        partition_columns: Sequence[str],
        temporary: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._root = table.location
        self._options = storage_options
        self._shown = Shown(partition_columns, temporary)
        self.others = foreign_places(database, table)

    def among(self, paths: Iterable[str]) -> list[str]:
        """Those of some paths, decoded and below the root, that may be deleted."""
        named = [
            path
            for path in paths
            if {"", ".", ".."}.isdisjoint(path.split("/"))
            and self._shown.path(path)
            and not path.startswith(self.others)
        ]
        if is_local(self._root):
            root = os.path.realpath(self._root).rstrip("/")
            folders = {folder: _is_own(root, folder) for folder in {p.rpartition("/")[0] for p in named}}
            return [p for p in named if folders[p.rpartition("/")[0]] and _is_regular(f"{root}/{p}")]
        tables = tuple(f"{folder}/" for folder in self._nested(named))
        return [path for path in named if not path.startswith(tables)]

    def _nested(self, paths: Sequence[str]) -> set[str]:
        """The folders above some paths in an object store that are tables of their own."""
        above = {folder for path in paths for folder in _above(path)}
        store = open_store(self._root, self._options)
        if len(above) < _LIST_FROM:
            return {f for f in above if next(store.list(f"{f}/{LOG_FOLDER}", recursive=True), None)}
        marked = (m.path.partition(f"/{LOG_FOLDER}/") for m in store.list(recursive=True))
        return {folder for folder, mark, _ in marked if mark}


def foreign_places(database: Database, table: Table) -> tuple[str, ...]:
    """How paths below a table's root begin that belong to other tables of the catalog, or to its database."""
    with database.read() as session:
        places = [f"{row[1]}/" for row in session.rows(database.sql("tables", "places"))]
    if (file := database.address.resolved().path) is not None:
        places.append(file)  # and what begins like it: its log and its locks
    real = RealPlaces()
    root = f"{real.of(table.location).rstrip('/')}/"
    found = (real.of(place.rstrip("/")) + "/" * place.endswith("/") for place in places)
    return tuple(place[len(root) :] for place in found if place.startswith(root) and place != root)


def _is_own(root: str, folder: str) -> bool:
    """Whether a folder below a local root is reached without links, and belongs to no other table."""
    if not folder:
        return True
    if os.path.realpath(f"{root}/{folder}") != f"{root}/{folder}":
        return False
    return not any(os.path.lexists(f"{root}/{above}/{LOG_FOLDER}") for above in _above(f"{folder}/-"))


def _is_regular(path: str) -> bool:
    """Whether there is a regular file at a path."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _above(path: str) -> list[str]:
    """The folders above a path, below the root."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


#: an offset at the end of a vector's id; the text before it may itself end like one
_OFFSET = re.compile(r"@\d+$")


@dataclass(slots=True)
class References:
    """Paths below a table's root, decoded.

    Attributes:
        needed: Files that must stay.
        expired: Files that were removed long enough ago and no version needs, with their sizes.
        known: Every path that SQL knows of the table.
        removed: The version that removed each expired file last.
        changes_known: Whether `needed` holds every change data file of the versions that are retained.
    """

    needed: set[str] = field(default_factory=set)
    expired: dict[str, int] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    removed: dict[str, int] = field(default_factory=dict)
    changes_known: bool = False


def referenced_files(
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

    Also if nothing is published: commits that are not published can be taken back to it.
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
    """A data file and its deletion vector's file, as far as they are below the root."""
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


#: on object stores nothing shows which new files are in flight, so younger ones are left alone
REMOTE_GRACE_MS = 86_400_000
#: how the name of a data file ends that our own writer has not finished
UNFINISHED = ".parquet.tmp"
_DATA_FOLDERS = ("_change_data", "_delta_index")


def orphans(
    root: str,
    known: Collection[str],
    *,
    partition_columns: Sequence[str],
    before: int,
    now: int,
    others: tuple[str, ...] = (),
    temporary: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[ObjectMeta]:
    """Files that are not among some paths and are old enough.

    Never among them: what lies in a hidden folder or has a hidden name (`_delta_log` above all; change data
    lies in no hidden folder), what belongs to another Delta table below the root, and links.

    Args:
        root: The table's root.
        known: Paths below the root to leave out, decoded.
        partition_columns: Folders of these may begin with an underscore.
        before: Only files last written before this time; the caller minds what is in flight.
        now: The time, by the store's clock.
        others: How paths begin that belong to other tables of the catalog.
        temporary: Also files that our own writers had not finished, though their names are hidden.
        storage_options: Options for the store.
    """
    before = oldest_orphan(root, before=before, now=now)
    found = data_files(
        root,
        partition_columns=partition_columns,
        others=others,
        temporary=temporary,
        storage_options=storage_options,
    )
    strange = [meta for meta in found if meta.modified_ms <= before and meta.path not in known]
    behind_links = linked(root, known) if strange and is_local(root) else frozenset[str]()
    return (meta for meta in strange if meta.path not in behind_links)


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


def oldest_orphan(root: str, *, before: int, now: int) -> int:
    """The time before which a file must have been written, so that it may be an orphan."""
    return before if is_local(root) else min(before, now - REMOTE_GRACE_MS)


def data_files(
    root: str,
    prefix: str = "",
    *,
    partition_columns: Sequence[str],
    others: tuple[str, ...] = (),
    temporary: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[ObjectMeta]:
    """The files below a table's root that may be its data, known or not.

    Args:
        root: The table's root.
        prefix: Only those of a folder right below it.
        partition_columns: As in `orphans`.
        others: As in `orphans`.
        temporary: As in `orphans`.
        storage_options: Options for the store.
    """
    shown = Shown(partition_columns, temporary)
    if is_local(root):
        yield from (meta for meta in _walk(root, prefix, shown) if not meta.path.startswith(others))
        return
    listed = list(open_store(root, storage_options).list(prefix, recursive=True))
    tables = {m.path.partition("/_delta_log/")[0] + "/" for m in listed if "/_delta_log/" in m.path}
    for meta in listed:
        if shown.path(meta.path) and not meta.path.startswith((*tables, *others)):
            yield meta


def top_level(
    root: str, *, partition_columns: Sequence[str], storage_options: Mapping[str, str] | None = None
) -> tuple[list[str], list[ObjectMeta]]:
    """The folders right below a table's root that may hold its data, and the files beside them."""
    shown = Shown(partition_columns, temporary=False)
    store = open_store(root, storage_options)
    folders = [name for name in store.folders() if shown.name(name, top=True)]
    return folders, [meta for meta in store.list() if shown.path(meta.path)]


class Shown:
    """Which names belong to the table's data."""

    def __init__(self, partition_columns: Sequence[str], temporary: bool) -> None:
        self._columns = tuple(f"{name}=" for name in partition_columns)
        self._temporary = temporary

    def name(self, name: str, *, top: bool) -> bool:
        """Whether a folder or file of this name holds data of the table."""
        if not name.startswith((".", "_")) or (self._columns and name.startswith(self._columns)):
            return True
        if name.startswith(".") and name.endswith(UNFINISHED):
            return self._temporary
        return top and name in _DATA_FOLDERS

    def path(self, path: str) -> bool:
        """Whether every part of a path does."""
        return all(self.name(part, top=not place) for place, part in enumerate(path.split("/")))


def _walk(root: str, prefix: str, shown: Shown) -> Iterator[ObjectMeta]:
    """The visible regular files below a local root; links are neither followed nor files."""
    try:
        entries = list(os.scandir(os.path.join(root, prefix)))  # noqa: PTH118 - paths stay texts here
    except FileNotFoundError:
        return
    if prefix and any(entry.name == "_delta_log" for entry in entries):
        return  # another table
    for entry in entries:
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        if not shown.name(entry.name, top=not prefix):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, path, shown)
            continue
        if not entry.is_file(follow_symlinks=False):
            continue
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield ObjectMeta(path, stat.st_size, stat.st_mtime_ns // 1_000_000)
