"""Exporting: a table of the catalog becomes a plain Delta table, as a copy elsewhere or in place."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from deltalakedb.address import parse_address
from deltalakedb.coordinator.coordinator import refuse_fenced
from deltalakedb.delta_log.commit_file import commit_digest, iter_actions
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import LOG_FOLDER, commit_path
from deltalakedb.delta_log.optional_files import write_last_checkpoint
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogCorruptError,
    LogError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
    TableFrozenError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, outbox, registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import digests
from deltalakedb.mirror import Options, drift, reconciler
from deltalakedb.mirror.checkpointer import write_checkpoint_of
from deltalakedb.mirror.drift import commit_file_state, require_folder
from deltalakedb.protocol.actions import Action, Cdc, DeletionVector, decode_commit
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.paths import relative_to
from deltalakedb.settings import get_config
from deltalakedb.storage.store import Store, local_path, open_store, real_location
from deltalakedb.table.locations import normal_location
from deltalakedb.transfer import FILE_LEVELS, Level
from deltalakedb.transfer.importing.options import EngineOptions, location_lease, require_one_of
from deltalakedb.transfer.reports import ExportReport, VerifyReport
from deltalakedb.transfer.rollback import refuse_unreleasable, release_table
from deltalakedb.transfer.verifying.verifier import (
    Subject,
    compare_rows,
    require_equal,
    verify_head,
    verify_loaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.rows import Table

logger = logging.getLogger(__name__)

#: files that threads share before the next are looked up
_AT_ONCE = 200

ExportHistory: TypeAlias = Literal["full", "newest"]
DataMode: TypeAlias = Literal["copy", "link", "none"]


def export_table(
    uri: str,
    path: str | None = None,
    *,
    history: ExportHistory = "full",
    data: DataMode = "copy",
    verify: Level = "digest",
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write a SQL-backed table as a plain Delta table: elsewhere as a copy, or in place, leaving the catalog.

    Args:
        uri: The table's ``deltasql://`` address.
        path: The root of the copy. Without one the table stays where it is and the catalog forgets it, after
            everything is published and compared. The table's own location is refused here.
        history: ``"full"`` writes every version that SQL holds and whose commits are available,
            ``"newest"`` only the newest one.
        data: ``"copy"`` copies data files, ``"link"`` makes hard links if the file system can, ``"none"``
            writes the log alone.
        verify: How thoroughly the plain table is compared with the catalog.
        dry_run: Report what would happen, and do nothing.
        storage_options: Options for the object store.
        progress: Called now and then with files done and files there are.

    Raises:
        InvalidArgumentError: The path is the table's own location, is inside another table, or holds anything
            but what an earlier attempt of this export left.
        TableExistsError: The path belongs to another table of the catalog, or one is inside the other.
        VerificationError: The plain table differs from the catalog, which keeps the table.

    Example:
        >>> export_table("deltasql://sqlite//lake/meta.db?table=sales.orders", "/archive/orders").version
        12
    """
    began = time.perf_counter()
    require_one_of("level", verify, FILE_LEVELS)
    require_one_of("history", history, get_args(ExportHistory))
    require_one_of("data", data, get_args(DataMode))
    address = parse_address(uri)
    name, database = address.require_table(), Database.open(address)
    table = registry.find(database, name)
    if path is None:
        report = _in_place(database, table, verify, storage_options, dry_run=dry_run)
    else:
        target = normal_location(path)
        copy = _Copy.find(database, table, target, storage_options, history)
        gone = copy.first - table.head.first_version if history == "full" else 0
        versions = table.head.version, copy.first
        report = ExportReport(name, target, False, *versions, versions_gone=gone, dry_run=dry_run)
        if dry_run:
            report = replace(report, **copy.copy_files(data, dry_run=True))
        else:
            with location_lease(database, target):
                copied = copy.copy_files(data, progress)
                failpoint("export.before_log")
                copy.write_log()
                report = replace(report, **copied, verification=copy.verify(verify, storage_options))
    return replace(report, seconds=round(time.perf_counter() - began, 3))


def _require_equal(checked: VerifyReport) -> VerifyReport:
    hint = "the catalog keeps the table; `deltasql verify` shows all differences"
    require_equal(checked, "the plain table differs from the catalog", hint)
    return checked


def _in_place(
    database: Database, table: Table, level: Level, given: Options, *, dry_run: bool
) -> ExportReport:
    """Let the catalog forget the table, after everything is published and compared."""
    storage = get_config().storage_options_for(table.location, given)
    waiting = table.head.version - table.published_version
    with nullcontext() if dry_run else location_lease(database, table.location):
        if dry_run:
            _refuse_what_waits(database, table, storage)
            refuse_fenced(database, table)
        else:
            if table.state != "frozen":
                reconciler.reconcile(database, table.name, storage_options=storage)
            table = registry.find(database, table.name)
            refuse_unreleasable(database, table)
        checked = _require_equal(verify_head(database, table, level, storage, engine=EngineOptions()))
        if not dry_run:
            failpoint("export.verified")
            release_table(database, table)
    head = table.head
    numbers = head.version, head.first_version, head.num_files, head.size_bytes, waiting
    return ExportReport(table.name, table.location, True, *numbers, verification=checked, dry_run=dry_run)


def _refuse_what_waits(database: Database, table: Table, options: Options) -> None:
    """Refuse a table with commits that could not be published; those that can be are published later."""
    status = outbox.status_of(database, table.name)
    if table.published_version == table.head.version or status is None or status.paused:
        refuse_unreleasable(database, table)
        return
    if table.state == "frozen" or drift.with_foreign_count(database, status).ahead:
        raise TableFrozenError(
            f"commits of the table cannot be published: {table.state_reason or 'its log has other ones'}",
            table=table.name,
            version=table.head.version,
            suggestion="resolve that first: `deltasql mirror status` and `deltasql mirror resolve`",
        )
    require_folder(database, table, open_store(table.location, options))


@dataclass(frozen=True, slots=True)
class _Copy:
    """A table's commits and the files that its versions need, each once, on their way to another place.

    Attributes:
        first: The version that the copied log begins with.
        bare: Whether the version has no commit file, so that its log begins with a checkpoint.
        in_log: Versions whose bytes only the table's own log has; their digests agree.
    """

    database: Database
    table: Table
    source: Store
    goal: Store
    first: int
    bare: bool
    in_log: frozenset[int]

    @classmethod
    def find(
        cls, database: Database, table: Table, target: str, given: Options, history: ExportHistory
    ) -> _Copy:
        """Begin a copy to a target that is free, of the longest log without a gap that ends with the head."""
        if real_location(target) == real_location(table.location):
            raise InvalidArgumentError(
                f"{target} is the table's own location",
                table=table.name,
                suggestion="use --in-place (in Python: give no path) to leave it there and let the catalog "
                "forget it; for a copy choose another folder",
            )
        registry.refuse_taken(database, table.name, target, free=True)
        options = get_config().storage_options_for
        source, goal = (open_store(place, options(place, given)) for place in (table.location, target))
        oldest = first = table.head.version if history == "newest" else table.head.first_version
        bare, in_log = commits.one(database, table, oldest) is None, set[int]()
        for version in commits.without_bytes(database, table):
            if version < oldest:
                break
            row = commits.one(database, table, version)
            # a version that was imported from a checkpoint never had bytes
            known = row is not None and row.sha256 is not None
            if not known or commit_file_state(database, table, source, version) != "ours":
                first, bare = version, True
                break
            in_log.add(version)
        if first > oldest:
            logger.warning(
                "the exported log of %s begins with version %d, not %d: the commit of that version is "
                "neither in the catalog nor, unchanged, in _delta_log",
                table.name,
                first,
                oldest,
            )
        copy = cls(database, table, source, goal, first, bare, frozenset(in_log))
        copy.refuse_place()
        return copy

    def refuse_place(self) -> None:
        """Refuse a folder that holds more than an earlier attempt left, or that is inside another table."""
        goal, place = self.goal, local_path(self.goal.location)

        def refuse(message: str, suggestion: str) -> None:
            raise InvalidArgumentError(message, table=self.table.name, suggestion=suggestion)

        if place is not None and place.is_file():
            refuse(f"{goal.location} is a file", "choose an empty folder")
        for above in () if place is None else place.parents:
            if above.name == LOG_FOLDER or (above / LOG_FOLDER).is_dir():
                refuse(
                    f"{goal.location} is inside the Delta table at {above}",
                    "choose a folder outside: cleaning that table would delete the exported files",
                )
        there = {*goal.folders(), *(meta.path for meta in goal.list())} - {LOG_FOLDER}
        if there:
            there -= {path.partition("/")[0] for path in self._files(Counter())}
        if there:
            some = ", ".join(sorted(there)[:3]) + (", …" if len(there) > 3 else "")
            refuse(
                f"the target {goal.location} is not empty: it holds {some}", "choose an empty or new folder"
            )
        listing = list_log(goal)
        ours = all(
            version in self._versions
            and commit_file_state(self.database, self.table, goal, version) == "ours"
            for version in listing.commits
        )
        if not ours or (not listing.commits and set(listing.checkpoints) - {self.first}):
            refuse(f"there is another table's log at {goal.location}", "choose an empty place")

    # ---- commits ----

    def write_log(self) -> None:
        """A checkpoint if the log does not begin with the commit of version 0, then every commit."""
        if self.first > 0 or self.bare:
            written = write_checkpoint_of(self.database, self.table.name, self.first, store=self.goal)
            write_last_checkpoint(self.goal, written)
        for version in self._versions:
            row = commits.one(self.database, self.table, version)
            if version in self.in_log:
                self._copy_commit(version, row)
            else:
                data = commits.commit_bytes(self.database, self.table, version)
                self.goal.put_new(commit_path(version), data, mtime_ms=None if row is None else row.timestamp)

    def verify(self, level: Level, given: Options) -> VerifyReport:
        """Compare the written log with the catalog; VerificationError if they differ."""
        reader, first = FileTxnLogReader(self.goal.location, store=self.goal), self._versions.start
        versions = self.table.head.first_version, self.table.head.version
        subject = Subject(self.database, self.table, reader, *versions, given, first_commit=first)
        checked = verify_loaded(subject, level)
        return _require_equal(compare_rows(subject, checked) if level == "data" and checked.ok else checked)

    @property
    def _versions(self) -> range:
        """The versions whose commits the copied log has."""
        return range(self.first + self.bare, self.table.head.version + 1)

    def _copy_commit(self, version: int, row: CommitRow | None) -> None:
        """Copy a commit of any size; the copy is what is checked."""
        path = commit_path(version)
        with self._fetched(path) as fetched:
            if row is None or _sha256(fetched) != row.sha256:
                raise LogCorruptError(
                    f"{path} has changed since it was imported",
                    table=self.table.name,
                    version=version,
                    suggestion="restore the file from a copy, or export with history='newest'",
                    command="restore the file from a copy, or export with --history newest",
                )
            is_new = self.goal.put_file(path, fetched)
        there = local_path(self.goal.location)
        if is_new and there is not None:
            os.utime(there / path, (row.timestamp / 1000, row.timestamp / 1000))

    @contextmanager
    def _fetched(self, path: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="deltalakedb-export-") as folder:
            fetched = Path(folder) / "file"
            self.source.fetch(path, fetched)
            yield fetched

    # ---- data files ----

    def copy_files(
        self, mode: DataMode, progress: Callable[[int, int], None] | None = None, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Copy every file that the log names, also vectors and change data; counts by field of the report.

        A dry run compares listings of both places instead: files of one size count as equal.
        """
        done = Counter[str]()
        if mode == "none":
            return {}
        work: Callable[[str], int | None] = partial(self._copy, mode)
        if dry_run:
            sizes = {meta.path: meta.size for meta in self.source.list(recursive=True)}
            work = partial(self._size, sizes, {m.path: m.size for m in self.goal.list(recursive=True)})
        far = local_path(self.source.location) is None or local_path(self.goal.location) is None
        with ThreadPoolExecutor(get_config().remote.parallel if far else 1) as pool:
            needed = self._files(done)
            waiting = iter(needed.items())
            while some := dict(islice(waiting, _AT_ONCE)):
                for path, size in zip(some, pool.map(work, some), strict=True):
                    if size is not None:
                        done.update(num_files=1, size_bytes=size)
                    elif not some[path]:
                        done["files_gone"] += 1
                    else:
                        raise LogError(
                            f"the data file {path} of the newest version is gone",
                            table=self.table.name,
                            version=self.table.head.version,
                            suggestion="restore it from a copy, or export with data='none'",
                            command="restore it from a copy, or export with --data none",
                        )
                if progress is not None:
                    progress(done["num_files"] + done["files_gone"], len(needed))
        return dict(done)

    def _size(self, sizes: Mapping[str, int], there: Mapping[str, int], path: str) -> int | None:
        size = sizes.get(path)
        if size is not None and there.get(path, size) != size:
            raise self._occupied(path)
        return size

    def _files(self, done: Counter[str]) -> dict[str, bool]:
        """Paths below the root, and whether the newest version needs them; others are counted."""
        found: dict[str, bool] = {}
        for path, live in self._needed():
            # an absolute path into the table would still name the old place
            is_absolute = "://" in path or path.startswith(("/", "file:"))
            relative = None if is_absolute else relative_to(self.table.location, path)
            if relative is None:
                done["files_outside"] += 1
            else:
                found[relative] = live or found.get(relative, False)
        return found

    def _needed(self) -> Iterator[tuple[str, bool]]:
        """Paths as the log spells them, and whether the newest version needs them."""
        newest = self.table.head.version
        for rows in digests.interval_rows(self.database, self.table.table_id):
            for row in rows:
                since, until = row["add_version"], row["remove_version"]
                buried = since == until and row["remove_action"] is not None
                if buried or (until is not None and until <= self.first) or since > newest:
                    continue
                live = until is None or until > newest
                yield row["path"], live
                vector = row["deletion_vector"]
                if vector and (file := dv_path(DeletionVector.from_dict(decode_json(vector)))):
                    yield file, live
        for version in self._versions:
            for action in self._actions_with_changes(version):
                if isinstance(action, Cdc):
                    yield action.path, False

    def _actions_with_changes(self, version: int) -> Iterable[Action]:
        if version in self.in_log:
            return iter_actions(self.source, commit_path(version))
        data = commits.commit_bytes(self.database, self.table, version)
        return decode_commit(data, source=f"version {version}") if b'"cdc"' in data else ()

    def _copy(self, mode: DataMode, path: str) -> int | None:
        """Copy or link one file; returns its size, or None if it is gone."""
        here, there = local_path(self.source.location), local_path(self.goal.location)
        try:
            size = self.source.head(path).size
            if here is None:
                with self._fetched(path) as fetched:
                    self._put(fetched, path)
            elif mode != "link" or there is None or not _link(here / path, there / path):
                self._put(here / path, path)
        except StorageMissingError:
            return None
        return size

    def _put(self, file: Path, path: str) -> None:
        """Copy a file, unless an earlier attempt did; another file in its place is an error."""
        if not self.goal.put_file(path, file) and not _is_same(file, self.goal, path):
            raise self._occupied(path)

    def _occupied(self, path: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"there is another file at {self.goal.location}/{path}; nothing was overwritten",
            suggestion="move it away, or choose an empty place",
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _is_same(file: Path, goal: Store, path: str) -> bool:
    """Whether a file that was there has the same bytes."""
    try:
        same_size = goal.head(path).size == file.stat().st_size
        return same_size and commit_digest(goal, path).sha256 == _sha256(file)
    except StorageUnavailableError:
        raise
    except StorageError:  # a folder, or a link that leads nowhere
        return False


def _link(source: Path, goal: Path) -> bool:
    """Make a hard link; False if that is not possible, or if there is another file."""
    with suppress(OSError):  # another file system, one without links, or a file that is there
        goal.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, goal)
        return True
    with suppress(OSError):
        return source.samefile(goal)
    return False
