"""Going back to an older version, and taking files that are gone out of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import InvalidArgumentError, StorageMissingError, VersionMissingError
from deltalakedb.metastore import files, snapshots, vacuumed
from deltalakedb.mirror.outside import ADOPT, POLICY, require_no_foreign_commits
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.features import COMMITTER_FEATURES, SPARK_FEATURES, check_writable, union_of
from deltalakedb.protocol.paths import encode_path, file_below, relative_to
from deltalakedb.protocol.properties import number_or
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.storage.store import open_store
from deltalakedb.table.arguments import epoch_ms, whole_number
from deltalakedb.table.commit_info import commit_info
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.intent import WriteIntent
from deltalakedb.table.scratch import removes
from deltalakedb.table.sources import SqlSource, from_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    import deltalake

    from deltalakedb.protocol.actions import Action, Add, Metadata, Protocol
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.roots import Root
    from deltalakedb.table.sources import Source

#: column ids are never used again, not even after a restore
_HIGHEST_COLUMN = "delta.columnMapping.maxColumnId"


def restore(
    table: TableHandle,
    target: Any,
    *,
    ignore_missing_files: bool = False,
    protocol_downgrade_allowed: bool = False,
    commit_properties: deltalake.CommitProperties | None = None,
    hooks: Hooks = DEFAULT,
) -> dict[str, int]:
    """Make a table what it was at a version or a time.

    Args:
        table: The open table.
        target: A version, or a time as ISO 8601 text.
        ignore_missing_files: Go on where files of the older version are gone.
        protocol_downgrade_allowed: Take over the older protocol as well.
        commit_properties: Custom metadata and application transactions.
        hooks: What is to follow the commit.

    Returns:
        The metrics, under the names that stock gives them.
    """
    done = restored(
        table,
        target,
        ignore_missing_files=ignore_missing_files,
        protocol_downgrade_allowed=protocol_downgrade_allowed,
        commit_properties=commit_properties,
        hooks=hooks,
    )
    return done.metrics


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did.

    Attributes:
        then: The version that the table is again.
        back: The files that were brought back.
        away: The files that were taken away.
    """

    then: Source
    back: Sequence[Add]
    away: Sequence[Add]

    @property
    def metrics(self) -> dict[str, int]:
        """How many files, under stock's names."""
        return {"numRemovedFile": len(self.away), "numRestoredFile": len(self.back)}


def restored(
    table: TableHandle,
    target: Any,
    *,
    ignore_missing_files: bool = False,
    protocol_downgrade_allowed: bool = False,
    commit_properties: deltalake.CommitProperties | None = None,
    hooks: Hooks = DEFAULT,
) -> Restored:
    """The same, telling all about the files."""
    now = table.source.snapshot
    # numbers that were given once must not be given again, so the columns that count stay refused
    kept = SPARK_FEATURES - {"identityColumns"}
    check_writable(now.protocol, table=table.name, also=COMMITTER_FEATURES | kept)
    version, parameters = _asked(table, target)
    if version >= now.version:
        raise InvalidArgumentError(
            f"the version to restore, {version}, must be less than the table's, {now.version}",
            table=table.name,
            version=now.version,
        )
    source = _at(table, version)
    back, away = _difference(table, source)
    if not ignore_missing_files:
        _demand(table, version, back)
    done = Restored(source, back, away)
    actions: list[Action] = [
        *commit_info("RESTORE", parameters, done.metrics, commit_properties),
        *_state(now, source.snapshot, downgrade=protocol_downgrade_allowed),
        *(replace(a, data_change=True) for a in back),
        *removes(away),
    ]
    table.submit(
        WriteIntent(table.row, actions, now, EVERYTHING, root=table.root, hooks=hooks, handled_features=kept)
    )
    return done


def _asked(table: TableHandle, target: Any) -> tuple[int, dict[str, str]]:
    """The version that was asked for, and how, in the words of the history."""
    number = int(target) if isinstance(target, bool) else whole_number(target)
    if number is not None and number >= 0:
        return number, {"version": str(number)}
    if isinstance(target, str):
        moment = epoch_ms(target)
        return table.version_at(moment), {"datetime": str(moment)}
    raise InvalidArgumentError(
        f"a table is restored to a version or a time, not to {target!r}", table=table.name
    )


def _at(table: TableHandle, version: int) -> Source:
    try:
        return SqlSource(table.database, snapshots.open_table(table.database, table.name, version))
    except VersionMissingError as error:
        return from_log(table.row, version, error, table.root.options)


def _difference(table: TableHandle, then: Source) -> tuple[list[Add], list[Add]]:
    """The files to bring back, and those to take away."""
    now = table.source
    if isinstance(now, SqlSource) and isinstance(then, SqlSource):
        return files.difference(table.database, table.row, then.snapshot.version, now.snapshot.version)
    old = {a.key: a for a in then.adds()}
    new = {a.key: a for a in now.adds()}
    return [a for k, a in old.items() if k not in new], [a for k, a in new.items() if k not in old]


def _demand(table: TableHandle, version: int, back: Sequence[Add]) -> None:
    """Refuse to bring back files that are not there any more."""
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
        )


def _state(now: Snapshot, then: Snapshot, *, downgrade: bool) -> list[Action]:
    """Protocol and metadata, where they differ."""
    protocol = then.protocol if downgrade else union_of(now.protocol, then.protocol, then.metadata)
    metadata = _metadata(now.metadata, then.metadata)
    out: list[Action] = []
    if not _same(protocol, now.protocol):
        out.append(protocol)
    if metadata != now.metadata:
        out.append(metadata)
    return out


def _same(one: Protocol, other: Protocol) -> bool:
    return (
        one.min_reader_version == other.min_reader_version
        and one.min_writer_version == other.min_writer_version
        and set(one.reader_features or ()) == set(other.reader_features or ())
        and set(one.writer_features or ()) == set(other.writer_features or ())
    )


def _metadata(now: Metadata, then: Metadata) -> Metadata:
    highest = [number_or(m.configuration.get(_HIGHEST_COLUMN), 0) for m in (now, then)]
    if max(highest) == highest[1]:
        return then
    return replace(then, configuration={**then.configuration, _HIGHEST_COLUMN: str(highest[0])})


def repair(
    table: TableHandle,
    *,
    dry_run: bool,
    commit_properties: deltalake.CommitProperties | None = None,
    hooks: Hooks = DEFAULT,
) -> dict[str, Any]:
    """Find live files that are missing, and remove them from the table.

    A dry run refuses what the real run refuses.

    Args:
        table: The open table.
        dry_run: Only find them.
        commit_properties: Custom metadata and application transactions.
        hooks: What is to follow the commit.

    Returns:
        The metrics, under the names and in the forms that delta-rs gives them.

    Raises:
        TableFrozenError: Files are missing, and the table is frozen, or its log is ahead of the catalog.
    """
    snapshot = table.source.snapshot
    if not dry_run:
        check_writable(snapshot.protocol, table=table.name, also=COMMITTER_FEATURES)
    # other writers may add or remove files meanwhile: only the missing ones are touched
    with table.source.without_tracking():
        paths = table.source.scan(("path",)).column("path").to_pylist()
        gone = missing_files(table.root, paths)
        lost = [a for a in table.source.adds() if a.path in set(gone)] if gone and not dry_run else []
    if gone and table.row.settings.get(POLICY) != ADOPT:
        danger = "the missing files may no longer be part of the table"
        require_no_foreign_commits(table.database, table.row, table.root.options, danger=danger)
    metrics = {"dry_run": dry_run, "files_removed": encode_json(gone)}
    if lost:
        actions: list[Action] = [*commit_info("FSCK", {}, metrics, commit_properties), *removes(lost)]
        table.submit(WriteIntent(table.row, actions, snapshot, NOTHING, root=table.root, hooks=hooks))
    return metrics


#: from so many files on, a store is listed once instead of being asked about each
_LIST_FROM = 500


def missing_files(root: Root, paths: Sequence[str]) -> list[str]:
    """The files, spelled as the log spells them, that are not there any more.

    Args:
        root: The table's root.
        paths: Paths of the log.
    """
    listed = {m.path for m in root.store.list("", recursive=True)} if len(paths) >= _LIST_FROM else None
    gone = []
    for path in paths:
        place = root.paths.resolve(path)
        below = relative_to(root.location, path)
        if below is None:
            folder, _, name = place.rpartition("/")
            there = open_store(folder or "/", root.options).exists(name)
        else:
            there = root.store.exists(below) if listed is None else below in listed
        if not there:
            gone.append(path)
    return gone
