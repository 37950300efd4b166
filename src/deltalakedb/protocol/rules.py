"""What the protocol demands of one commit, whoever makes it."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.actions import Action, Add, Cdc, DomainMetadata, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.dv import resolve_dv
from deltalakedb.protocol.features import check_writable
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.upgrades import FENCE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from deltalakedb.protocol.paths import TablePaths

APPEND_ONLY = "delta.appendOnly"
IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
#: since when commits carry their own time, where that is not version 0
_ENABLED = ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp")
ROW_TRACKING = "delta.enableRowTracking"
#: where writers that move rows keep their ids: names that no column of the table has
_ROW_COLUMNS = {
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-",
}

#: writer features whose duties the committer itself fulfils, whatever wrote the data files
OURS = frozenset({"inCommitTimestamp", "domainMetadata", "rowTracking", "vacuumProtocolCheck", FENCE})

#: writer features that delta-spark keeps and delta-rs does not; they ask nothing of a commit without new rows
SPARKS = frozenset(
    {"allowColumnDefaults", "clustering", "identityColumns", "typeWidening", "typeWidening-preview"}
)

#: features that a user may name for other engines to use, although the table is then written here no more
_NAMEABLE = frozenset({"icebergCompatV1", "identityColumns"})


def is_on(metadata: Metadata, name: str) -> bool:
    """Whether a boolean table property is set."""
    return (metadata.configuration.get(name) or "").lower() == "true"


def with_row_columns(metadata: Metadata) -> Metadata:
    """Metadata of a table whose rows have ids, with names for the columns that keep them in moved rows."""
    names = {
        key: f"{start}{uuid.uuid4()}"
        for key, start in _ROW_COLUMNS.items()
        if key not in metadata.configuration
    }
    return replace(metadata, configuration={**metadata.configuration, **names}) if names else metadata


def enablement(metadata: Metadata) -> dict[str, str]:
    """What metadata says of since when commits carry their own time; nothing where that is version 0."""
    return {key: value for key in _ENABLED if (value := metadata.configuration.get(key)) is not None}


def note_enablement(metadata: Metadata, before: Metadata, *, version: int, timestamp: int) -> Metadata:
    """Metadata that says since when commits carry their own time: readers of older versions must know it.

    Args:
        metadata: New metadata of a table whose commits do.
        before: The metadata that it replaces, which may know since when.
        version: The version it becomes.
        timestamp: The time of that.
    """
    if is_on(before, IN_COMMIT_TIMESTAMPS):
        since = enablement(before)
    else:
        since = dict(zip(_ENABLED, (str(version), str(timestamp)), strict=True))
    return replace(metadata, configuration={**metadata.configuration, **since})


def check_commit(
    actions: Sequence[Action],
    *,
    version: int,
    protocol: Protocol | None,
    metadata: Metadata | None,
    paths: TablePaths,
    also: Collection[str] = (),
    made_here: bool = True,
) -> tuple[Protocol, Metadata]:
    """Refuse a commit that the protocol forbids.

    Args:
        actions: The commit's actions.
        version: The version it would become.
        protocol: The table's protocol before it, None for version 0.
        metadata: The table's metadata before it, None for version 0.
        paths: Where the table's files may be, and its name.
        also: Writer features whose duties the caller fulfils itself.
        made_here: False for a commit that another writer has made already: only its form is checked.

    Returns:
        Protocol and metadata as they are after the commit.
    """

    def refuse(message: str, suggestion: str | None = None) -> ProtocolError:
        return ProtocolError(message, table=paths.table, version=version, suggestion=suggestion)

    for kind in (Metadata, Protocol):
        if (count := sum(isinstance(a, kind) for a in actions)) > 1:
            raise refuse(f"a commit holds at most one {kind.__name__} action, this one {count}")
    protocol = next((a for a in actions if isinstance(a, Protocol)), protocol)
    before = metadata
    metadata = next((a for a in actions if isinstance(a, Metadata)), metadata)
    if protocol is None or metadata is None:
        raise refuse("version 0 must carry protocol and metaData")
    if made_here:
        # a feature that is only named asks nothing of a commit without files, but all of those that follow
        bare = version > 0 and not any(isinstance(a, Add | Remove | Cdc) for a in actions)
        check_writable(protocol, table=paths.table, also={*also, *_NAMEABLE} if bare else also)
    for name, files in (
        ("add", [a for a in actions if isinstance(a, Add)]),
        ("remove", [a for a in actions if isinstance(a, Remove)]),
    ):
        keys = [(canonical_path(f.path), f.dv_id) for f in files]
        if len(set(keys)) < len(keys):
            twice = next(k for k, n in Counter(keys).items() if n > 1)
            raise refuse(f"the file {twice[0]} appears twice as {name}")
    check_one_vector(actions, paths, version=version)
    check_places(actions, paths)
    if made_here:
        for what, names in (
            ("application", [a.app_id for a in actions if isinstance(a, Txn)]),
            ("metadata domain", [a.domain for a in actions if isinstance(a, DomainMetadata)]),
        ):
            if repeated := [name for name, n in Counter(names).items() if n > 1]:
                raise refuse(
                    f"the {what} {repeated[0]!r} appears twice: readers would not agree which one holds"
                )
    # what the table was: the commit that removes rows may switch it on, as a replaced table does, but not off
    append_only = made_here and before is not None and is_on(before, APPEND_ONLY)
    if append_only and any(isinstance(a, Remove) and a.data_change for a in actions):
        raise refuse(
            "the table is append-only (delta.appendOnly): rows cannot be removed or replaced",
            "append instead, or set delta.appendOnly to false",
        )
    return protocol, metadata


def check_one_vector(actions: Iterable[Action], paths: TablePaths, *, version: int) -> None:
    """Refuse a commit that adds one data file under several deletion vectors: its rows would count twice."""
    seen: dict[str, str] = {}
    for action in actions:
        if isinstance(action, Add):
            path = canonical_path(action.path)
            if seen.setdefault(path, action.dv_id) != action.dv_id:
                raise ProtocolError(
                    f"the file {path} is added twice, with different deletion vectors",
                    table=paths.table,
                    version=version,
                    suggestion="a version holds a data file once: have the writer remove the other entry",
                )


def check_places(actions: Iterable[Action], paths: TablePaths) -> None:
    """Refuse actions that name files where the table may have none, deletion vectors included.

    Raises:
        OutsidePathError: A file is outside of the table's root, and the settings do not allow that.
        ProtocolError: A path or a deletion vector is malformed.
    """
    for action in actions:
        if isinstance(action, Add | Remove | Cdc):
            paths.resolve(action.path)
            if not isinstance(action, Cdc) and action.deletion_vector is not None:
                resolve_dv(paths, action.deletion_vector)
