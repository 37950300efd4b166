"""What operations that died have left under a table's root: found and deleted, no version touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.delta_log.cleanup import sweep
from deltalakedb.metastore import commits, snapshots
from deltalakedb.mirror.clocks import checked_clock
from deltalakedb.mirror.outside import require_no_foreign_commits
from deltalakedb.storage.store import open_store
from deltalakedb.table.locations import is_local
from deltalakedb.table.maintenance.live_files import Deletable, orphans, referenced_files
from deltalakedb.table.write_locks import oldest_pending_write, operation_folders, remove_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.database import Database

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Garbage:
    """What was found under one table's root.

    Attributes:
        table: The table's name.
        files: Data files that no version ever knew, and files that their writers never finished, below the
            root.
        work_folders: Folders of operations that died.
        size_bytes: The size of the files.
        deleted: Whether they are gone now.
        kept: Why the table was not looked at: its log may name files that the catalog does not know.
    """

    table: str
    files: tuple[str, ...]
    work_folders: tuple[str, ...]
    size_bytes: int
    deleted: bool
    kept: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "table": self.table,
            "files": list(self.files),
            "work_folders": list(self.work_folders),
            "size_bytes": self.size_bytes,
            "deleted": self.deleted,
            "kept": self.kept,
        }


def collect(
    database: Database,
    name: str,
    *,
    older_than_hours: float,
    dry_run: bool,
    storage_options: Mapping[str, str] | None = None,
) -> Garbage:
    """Delete what died operations have left of a table; nothing that any version of SQL names.

    Args:
        database: The catalog.
        name: The table.
        older_than_hours: Younger files stay: writers that do not go through SQL may be about to commit them.
        dry_run: Only look.
        storage_options: Options for the table's store.

    Raises:
        TableFrozenError: The table is frozen, or its log is ahead: files that only the log names would go.
        ClockSkewError: The clocks of host, database and store differ.
    """
    opened = snapshots.open_table(database, name)
    table = opened.table
    store = open_store(table.location, storage_options)
    require_no_foreign_commits(database, table, storage_options)
    clock = checked_clock(database, name, store, dry_run=dry_run)
    # before anything is read: what is in flight now may be committed in the next moment
    oldest = oldest_pending_write(table.location)
    folders = operation_folders(table.location) if is_local(table.location) else []
    dead = [folder for folder in folders if folder.ours and not folder.alive]
    found = referenced_files(database, opened, cutoff=0, with_changes=True)
    age = int(older_than_hours * _HOUR_MS)
    now, before = clock.on_store(clock.now), clock.on_store(clock.now - age)
    created = table.created_at + max(0, clock.ahead)
    columns = opened.snapshot.metadata.partition_columns
    rule = Deletable(
        database, table, partition_columns=columns, temporary=True, storage_options=storage_options
    )
    # change data of versions whose commits are not all here may be named by the log alone
    whole = table.head.first_version == 0 and commits.first_with_bytes(database, table) == 0
    strangers = [
        meta
        for meta in orphans(
            table.location,
            found.known,
            partition_columns=columns,
            before=before if oldest is None else min(before, oldest),
            now=now,
            others=rule.others,
            temporary=True,
            storage_options=storage_options,
        )
        # older ones may belong to versions of before the table was taken over
        if meta.modified_ms >= created and (whole or not meta.path.startswith("_change_data/"))
    ]
    allowed = set(rule.among(meta.path for meta in strangers))
    strangers = [meta for meta in strangers if meta.path in allowed]
    if not dry_run:
        again = snapshots.open_table(database, name)
        require_no_foreign_commits(database, again.table, storage_options)
        live = referenced_files(database, again, cutoff=0, with_changes=True).known
        strangers = [meta for meta in strangers if meta.path not in live]
        for meta in strangers:
            store.delete(meta.path)
        for folder in dead:
            remove_folder(folder.path)
    unfinished = sweep(store, now_ms=now, older_than_ms=age, dry_run=dry_run)
    return Garbage(
        name,
        tuple(meta.path for meta in (*strangers, *unfinished)),
        tuple(folder.path.name for folder in dead),
        sum(meta.size for meta in (*strangers, *unfinished)),
        deleted=not dry_run,
    )
