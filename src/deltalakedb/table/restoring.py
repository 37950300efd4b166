"""Restoring a table to an older version: the difference of two versions, read from SQL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import InvalidArgumentError, StorageMissingError, VersionMissingError
from deltalakedb.metastore import files, snapshots, vacuumed
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.features import OURS, SPARKS, check_writable, union_of
from deltalakedb.protocol.paths import encode_path, file_below
from deltalakedb.protocol.properties import number_or
from deltalakedb.protocol.read_set import EVERYTHING
from deltalakedb.table.commit_notes import notes
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.operations import removes
from deltalakedb.table.presence import missing
from deltalakedb.table.shapes import epoch_ms
from deltalakedb.table.source import SqlSource, from_log
from deltalakedb.table.whole_numbers import whole_number
from deltalakedb.table.work import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    import deltalake

    from deltalakedb.protocol.actions import Action, Add, Metadata, Protocol
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.source import Source
    from deltalakedb.table.sql_table import SqlDeltaTable

#: column ids are never used again, not even after a restore
_HIGHEST_COLUMN = "delta.columnMapping.maxColumnId"


def restore(
    table: SqlDeltaTable,
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
    table: SqlDeltaTable,
    target: Any,
    *,
    ignore_missing_files: bool = False,
    protocol_downgrade_allowed: bool = False,
    commit_properties: deltalake.CommitProperties | None = None,
    hooks: Hooks = DEFAULT,
) -> Restored:
    """The same, telling all about the files."""
    now = table._source.snapshot
    # numbers that were given once must not be given again, so the columns that count stay refused
    kept = SPARKS - {"identityColumns"}
    check_writable(now.protocol, table=table.name, also=OURS | kept)
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
        *notes("RESTORE", parameters, done.metrics, commit_properties),
        *_state(now, source.snapshot, downgrade=protocol_downgrade_allowed),
        *(replace(a, data_change=True) for a in back),
        *removes(away),
    ]
    table._hand_on(Work(table._row, actions, now, EVERYTHING, root=table._root, hooks=hooks, kept=kept))
    return done


def _asked(table: SqlDeltaTable, target: Any) -> tuple[int, dict[str, str]]:
    """The version that was asked for, and how, in the words of the history."""
    number = int(target) if isinstance(target, bool) else whole_number(target)
    if number is not None and number >= 0:
        return number, {"version": str(number)}
    if isinstance(target, str):
        moment = epoch_ms(target)
        return table._version_at(moment), {"datetime": str(moment)}
    raise InvalidArgumentError(
        f"a table is restored to a version or a time, not to {target!r}", table=table.name
    )


def _at(table: SqlDeltaTable, version: int) -> Source:
    try:
        return SqlSource(table._database, snapshots.open_table(table._database, table.name, version))
    except VersionMissingError as error:
        return from_log(table._row, version, error, table._root.options)


def _difference(table: SqlDeltaTable, then: Source) -> tuple[list[Add], list[Add]]:
    """The files to bring back, and those to take away."""
    now = table._source
    if isinstance(now, SqlSource) and isinstance(then, SqlSource):
        return files.difference(table._database, table._row, then.snapshot.version, now.snapshot.version)
    old = {a.key: a for a in then.adds()}
    new = {a.key: a for a in now.adds()}
    return [a for k, a in old.items() if k not in new], [a for k, a in new.items() if k not in old]


def _demand(table: SqlDeltaTable, version: int, back: Sequence[Add]) -> None:
    """Refuse to bring back files that are not there any more."""
    paths = [a.path for a in back]
    vectors = [dv_path(a.deletion_vector) for a in back if a.deletion_vector is not None]
    paths += sorted({encode_path(v) for v in vectors if v is not None})
    names = {name for path in paths if (name := file_below(table._row.location, path)) is not None}
    with table._database.read() as session:
        going = [v for v in vacuumed.among(session, table._row.table_id, names) if v.ended is None]
    if going:
        raise StorageMissingError(
            f"version {version} cannot be restored: the vacuum of version {going[0].started} is deleting the "
            f"file {going[0].path}, or was interrupted before it did",
            table=table.name,
            version=version,
            suggestion="restore a version that vacuum has kept; an interrupted vacuum is finished by running "
            "vacuum again",
        )
    if gone := missing(table._root, paths):
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
