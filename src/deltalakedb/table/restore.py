"""Restoring an older version, and removing missing files from a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.commit.request import Write
from deltalakedb.exceptions import InvalidArgumentError, StorageMissingError
from deltalakedb.metastore import files, vacuumed
from deltalakedb.mirror.drift import ADOPT, FOREIGN_COMMITS, require_no_foreign_commits
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.features import COMMITTER_FEATURES, SPARK_FEATURES, check_writable, union_of
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.paths import encode_path, file_below
from deltalakedb.protocol.properties import number_or
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.table.arguments import epoch_ms, whole_number
from deltalakedb.table.handle import DEFAULT_HOOKS, Hooks, TableHandle, commit_info
from deltalakedb.table.scratch import removes
from deltalakedb.table.sources import Source, SqlSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    import deltalake

    from deltalakedb.protocol.actions import Action, Add, Protocol
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.roots import Root

#: column ids are never used again, not even after a restore
_HIGHEST_COLUMN = "delta.columnMapping.maxColumnId"


@dataclass(frozen=True, slots=True)
class Restored:
    """The version that was restored, the files that came back, and those that were removed."""

    then: Source
    back: Sequence[Add]
    away: Sequence[Add]

    @property
    def metrics(self) -> dict[str, int]:
        """The number of files, under stock's names."""
        return {"numRemovedFile": len(self.away), "numRestoredFile": len(self.back)}


def restore(
    table: TableHandle,
    target: Any,
    *,
    ignore_missing_files: bool = False,
    protocol_downgrade_allowed: bool = False,
    commit_properties: deltalake.CommitProperties | None = None,
    hooks: Hooks = DEFAULT_HOOKS,
    skip_missing_files: bool = False,
    dry_run: bool = False,
) -> Restored:
    """Make a table what it was at a version, or at a time as ISO 8601 text; arguments as in stock.

    With ``ignore_missing_files`` missing files are added back, as in stock, and reads fail until `repair`;
    with ``skip_missing_files`` they are left out. A dry run makes all checks, and commits nothing.
    """
    now = table.snapshot
    # identity columns stay refused: their values must never be assigned twice
    handled = SPARK_FEATURES - {"identityColumns"}
    check_writable(now.protocol, table=table.name, also=COMMITTER_FEATURES | handled)
    version, parameters = _asked(table, target)
    if version >= now.version:
        raise InvalidArgumentError(
            f"the version to restore, {version}, must be less than the table's, {now.version}",
            table=table.name,
            version=now.version,
            suggestion=f"`deltasql history {table.name}` shows the versions",
        )
    source = table.source_at(version)
    back, away = _difference(table, source)
    if skip_missing_files:
        gone = set(missing_files(table.root, [a.path for a in back]))
        back = [a for a in back if a.path not in gone]
    elif not ignore_missing_files:
        _require_files(table, version, back)
    done = Restored(source, back, away)
    if dry_run:
        if table.row.settings.get(FOREIGN_COMMITS) != ADOPT:
            danger = "a restore cannot be committed"  # the real one finds out when it commits
            require_no_foreign_commits(table.database, table.row, table.root.options, danger=danger)
        return done
    actions: list[Action] = [
        *commit_info("RESTORE", parameters, done.metrics, commit_properties),
        *_state(now, source.snapshot, downgrade=protocol_downgrade_allowed),
        *(replace(a, data_change=True) for a in back),
        *removes(away),
    ]
    table.submit(now, [actions], EVERYTHING, hooks=hooks, origin=Write(handled_features=handled))
    return done


def _asked(table: TableHandle, target: Any) -> tuple[int, dict[str, str]]:
    """The version that was asked for, and the parameters in the history."""
    number = int(target) if isinstance(target, bool) else whole_number(target)
    if number is not None and number >= 0:
        return number, {"version": str(number)}
    if isinstance(target, str):
        moment = epoch_ms(target)
        return table.version_at(moment), {"datetime": str(moment)}
    raise InvalidArgumentError(
        f"a table is restored to a version or a time, not to {target!r}", table=table.name
    )


def _difference(table: TableHandle, then: Source) -> tuple[list[Add], list[Add]]:
    """The files to bring back, and those to take away."""
    now = table.source
    if isinstance(now, SqlSource) and isinstance(then, SqlSource):
        return files.difference(table.database, table.row, then.snapshot.version, now.snapshot.version)
    old = {a.key: a for a in then.adds()}
    new = {a.key: a for a in now.adds()}
    return [a for k, a in old.items() if k not in new], [a for k, a in new.items() if k not in old]


def _require_files(table: TableHandle, version: int, back: Sequence[Add]) -> None:
    """Refuse to bring back files that are missing, or that a vacuum is deleting."""
    paths = [a.path for a in back]
    vectors = [dv_path(a.deletion_vector) for a in back if a.deletion_vector is not None]
    paths += sorted({encode_path(v) for v in vectors if v is not None})
    names = {name for path in paths if (name := file_below(table.row.location, path)) is not None}
    with table.database.read() as session:
        going = [v for v in vacuumed.among(session, table.row.table_id, names) if v.ended is None]
    if going:
        raise StorageMissingError(
            f"version {version} cannot be restored: the vacuum of version {going[0].started} is deleting the "
            f"file {going[0].path}, or was interrupted before it did",
            table=table.name,
            version=version,
            suggestion="restore a version that vacuum has kept; an interrupted vacuum is finished by running "
            "vacuum again",
        )
    if gone := missing_files(table.root, paths):
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise StorageMissingError(
            f"version {version} cannot be restored: the file {gone[0]}{more} is missing",
            table=table.name,
            version=version,
            suggestion="restore a version that vacuum has kept, or pass ignore_missing_files=True",
            command="restore a version that vacuum has kept, or pass --ignore-missing-files to leave the "
            "missing files out",
        )


def _state(now: Snapshot, then: Snapshot, *, downgrade: bool) -> list[Action]:
    """Protocol and metadata, if they differ."""
    protocol = then.protocol if downgrade else union_of(now.protocol, then.protocol, then.metadata)
    metadata = then.metadata
    ids = [number_or(m.configuration.get(_HIGHEST_COLUMN), 0) for m in (now.metadata, metadata)]
    if ids[0] > ids[1]:
        metadata = replace(metadata, configuration={**metadata.configuration, _HIGHEST_COLUMN: str(ids[0])})
    out: list[Action] = [] if _comparable(protocol) == _comparable(now.protocol) else [protocol]
    return out if metadata == now.metadata else [*out, metadata]


def _comparable(protocol: Protocol) -> tuple[int, int, set[str], set[str]]:
    readers, writers = set(protocol.reader_features or ()), set(protocol.writer_features or ())
    return protocol.min_reader_version, protocol.min_writer_version, readers, writers


def repair(
    table: TableHandle,
    *,
    dry_run: bool,
    commit_properties: deltalake.CommitProperties | None = None,
    hooks: Hooks = DEFAULT_HOOKS,
) -> dict[str, Any]:
    """Find live files that are missing, and remove them from the table unless it is a dry run.

    Return the metrics as delta-rs names and forms them. If files are missing, a frozen table or one whose log
    is ahead of the catalog raises a TableFrozenError.
    """
    snapshot = table.snapshot
    if not dry_run:
        check_writable(snapshot.protocol, table=table.name, also=COMMITTER_FEATURES)
    # other writers may add or remove files meanwhile: only the missing ones are touched
    with table.source.without_tracking():
        paths = table.source.scan(("path",)).column("path").to_pylist()
        gone = missing_files(table.root, paths)
        lost = [a for a in table.source.adds() if a.path in set(gone)] if gone and not dry_run else []
    if gone and table.row.settings.get(FOREIGN_COMMITS) != ADOPT:
        danger = "the missing files may no longer be part of the table"
        require_no_foreign_commits(table.database, table.row, table.root.options, danger=danger)
    metrics = {"dry_run": dry_run, "files_removed": encode_json(gone)}
    if lost:
        actions: list[Action] = [*commit_info("FSCK", {}, metrics, commit_properties), *removes(lost)]
        table.submit(snapshot, [actions], NOTHING, hooks=hooks)
    return metrics


#: for this many files or more, a store is listed once instead of queried for each
_LIST_FROM = 500


def missing_files(root: Root, paths: Sequence[str]) -> list[str]:
    """Those of some paths of the log whose files are missing."""
    listed = {m.path for m in root.store.list("", recursive=True)} if len(paths) >= _LIST_FROM else None

    def exists(path: str) -> bool:
        store, name = root.locate(path)
        return name in listed if listed is not None and store is root.store else store.exists(name)

    return [path for path in paths if not exists(path)]
