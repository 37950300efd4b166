"""Relocating: tables whose files were moved or copied elsewhere get their new locations in the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogMissingError,
    UnsupportedOperationError,
    VerificationError,
)
from deltalakedb.metastore import files, registry, snapshots
from deltalakedb.metastore.outbox import put_setting
from deltalakedb.mirror.drift import lost_file, newest_commit_differences
from deltalakedb.protocol.paths import relative_to
from deltalakedb.storage.store import open_store
from deltalakedb.table.locations import ROOT_SETTING, normal_location, place_for
from deltalakedb.transfer.reports import RelocatedTable, RelocationReport

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.mirror import Options


def relocate_table(
    database: Database,
    name: str,
    location: str | os.PathLike[str],
    *,
    storage_options: Options = None,
    dry_run: bool = False,
) -> RelocationReport:
    """Change the location of one table, after checking that its log and files are there."""
    table, place = registry.find(database, name), place_for(database, name, normal_location(location))
    if place == table.location:
        raise InvalidArgumentError(
            f"the table is at {place} already", table=name, suggestion="give the place that it was moved to"
        )
    return _relocate(database, [(table, place)], None, storage_options, dry_run=dry_run)


def relocate_tables(
    database: Database,
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    storage_options: Options = None,
    dry_run: bool = False,
) -> RelocationReport:
    """Change the locations of all tables at or below a folder or URL, all of them or none."""
    before, after = normal_location(old), normal_location(new)
    if before == after:
        raise InvalidArgumentError(
            f"{old} and {new} are the same place", suggestion="give the old place, then the new one"
        )
    moves = [
        (table, place_for(database, table.name, place))
        for table in registry.list_tables(database)
        if (place := _moved(table.location, before, after)) is not None
    ]
    if not moves:
        raise InvalidArgumentError(
            f"no table of the catalog is at or below {before}",
            suggestion="`deltasql list --json` shows the locations of all tables",
        )
    root = registry.setting(database, ROOT_SETTING)
    new_root = None if root is None else _moved(root, before, after)
    return _relocate(database, moves, new_root, storage_options, dry_run=dry_run)


def _moved(location: str, before: str, after: str) -> str | None:
    """A location below one prefix as it is below the other; None if it is not below the first."""
    if location == before:
        return after
    below = location.removeprefix(f"{before.rstrip('/')}/")
    return None if below == location else f"{after.rstrip('/')}/{below}"


def _relocate(
    database: Database,
    moves: Sequence[tuple[Table, str]],
    root: str | None,
    given: Options,
    *,
    dry_run: bool,
) -> RelocationReport:
    registry.refuse_overlaps(database, moves)
    for table, location in moves:
        _require_same_table(database, table, location, given)
    if not dry_run:
        with database.write() as session:
            held = registry.lock(session, [table.table_id for table, _ in moves])
            for table, _ in moves:
                now = registry.require_same_table(held, table).table
                if (now.head.version, now.published_version) != (table.head.version, table.published_version):
                    raise UnsupportedOperationError(
                        "another writer changed the table in the meantime",
                        table=table.name,
                        version=now.head.version,
                        suggestion="stop the table's writers, move what they wrote, then try again",
                    )
            registry.refuse_overlaps(session, moves)
            registry.move_tables(session, moves)
            if root is not None:
                put_setting(session, ROOT_SETTING, root)
    tables = [RelocatedTable(table.name, place, table.location, table.head.version) for table, place in moves]
    return RelocationReport(tuple(tables), root, dry_run)


def _require_same_table(database: Database, table: Table, location: str, given: Options) -> None:
    """Check that a location has the log that the catalog published, and a few of the table's files."""
    options = database.engine.config.storage_options_for(location, given)
    store, published = open_store(location, options), table.published_version
    whole = f"copy all of {table.location} to {location}, then try again"

    def refuse(message: str, suggestion: str = whole) -> None:
        raise VerificationError(message, table=table.name, version=published, suggestion=suggestion)

    for path in files.some_live(database, table):
        is_absolute = "://" in path or path.startswith(("/", "file:"))
        if is_absolute and relative_to(table.location, path) is not None:
            refuse(
                f"the log names files by absolute paths below {table.location}, so readers would still look "
                f"there: {path}",
                f"write a copy with other paths: `deltasql export {table.name} {location}`",
            )
    if published >= 0:
        if next(iter(store.list(LOG_FOLDER)), None) is None:
            raise LogMissingError(
                f"there is no {LOG_FOLDER} at {location}",
                table=table.name,
                version=published,
                suggestion="move the table's folder there first; this changes only the catalog",
            )
        ours = snapshots.open_table(database, table.name, published).snapshot.metadata.id
        theirs = FileTxnLogReader(location, options, store=store).snapshot().metadata.id
        if ours != theirs:
            other = "check the location: this is another table"
            refuse(f"the table at {location} has the id {theirs}, and {table.name} has {ours}", other)
        for found in newest_commit_differences(database, table, store)[:1]:
            refuse(
                f"the log at {location} differs from the catalog at version {found.version}: {found.detail}"
            )
    if (lost := lost_file(database, table, store)) is not None:
        refuse(f"the data file {lost} is missing at {location}")
