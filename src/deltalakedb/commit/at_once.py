"""Blind appends committed by one statement, on engines where a head must not wait for a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.commit.changes import NewTable
from deltalakedb.commit.checker import isolation_of
from deltalakedb.commit.info import info_of, with_info
from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.failpoints import is_watched
from deltalakedb.metastore.files.appends import MOST_FILES, BlindAppend, known_shape, ratify_appends
from deltalakedb.protocol.actions import Add, CommitInfo
from deltalakedb.protocol.codec import encode_action, encode_commit
from deltalakedb.protocol.log import Committed, Fresh
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.protocol.rows import tracks_rows
from deltalakedb.protocol.rules import IN_COMMIT_TIMESTAMPS, OURS, check_commit, is_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.commit.changes import TableChange
    from deltalakedb.commit.committer import Guard
    from deltalakedb.metastore.database import Database

#: how a commit begins whose time is still to come
_TIMELESS: Final = b'{"commitInfo":{"timestamp":0'
#: how many versions the log may be ahead of what a writer has read before the head is asked
_LOOKS: Final = 32
#: places inside the transaction, which one statement does not have
_INSIDE: Final = ("commit.locked", "commit.before_commit")


def commit_at_once(
    database: Database, changes: Sequence[TableChange], txn: str, guard: Guard | None
) -> list[Committed] | None:
    """Commit changes that are all plain blind appends, if every table is as its writer saw it.

    Whatever is out of the ordinary is left to the committer that holds the heads and looks: then nothing has
    happened. A statement that was lost on its way cannot happen a second time, or after a later attempt: the
    transaction's id is a key.

    Returns:
        One Committed per change, or None where it was not tried or nothing happened.

    Raises:
        CommitUnknownError: The connection broke.
    """
    if not database.dialect.at_once or is_watched(*_INSIDE):
        return None
    appends = []
    for change in changes:
        if (append := _blind(database, change, txn, guard)) is None:
            return None
        appends.append(append)
    if not appends or sum(len(a.adds) for a in appends) > MOST_FILES:
        return None
    ratified = ratify_appends(database, appends, txn)
    if ratified is None:
        return None
    done = []
    for append, one in zip(appends, ratified, strict=True):
        fresh = None
        if not one.paused:
            written = (one.version, one.timestamp, append.data(one.timestamp))
            fresh = Fresh(append.table.table_id, (written,), one.after, clear=one.clear, asked=True)
        done.append(Committed(one.version, one.timestamp, fresh=fresh))
    return done


def _blind(database: Database, change: TableChange, txn: str, guard: Guard | None) -> BlindAppend | None:
    """A change as a blind append that needs nothing but a version and a time; None where it is more."""
    table, read = change.table, change.read
    if isinstance(table, NewTable) or read is None or not change.fresh or change.reads or change.then:
        return None
    if change.exact or change.made is not None:
        return None
    adds = [a for a in change.actions if isinstance(a, Add)]
    others = len(change.actions) - len(adds)
    if not adds or len(adds) > MOST_FILES or others != sum(isinstance(a, CommitInfo) for a in change.actions):
        return None
    if tracks_rows(read.protocol) or is_on(read.metadata, IN_COMMIT_TIMESTAMPS):
        return None
    if (shape := known_shape(database, table.table_id)) is None:
        return None
    try:
        check_commit(
            change.actions,
            version=read.version + 1,
            protocol=read.protocol,
            metadata=read.metadata,
            paths=TablePaths(table.location, database.engine.config.catalog.allow_outside_paths, table.name),
            also=OURS,
        )
    except DeltaSqlError:
        return None  # whether something else comes first is seen when the head is held
    if (seen := _seen(change, guard)) is None:
        return None
    actions = with_info(
        change.actions,
        timestamp=0,
        txn=txn,
        in_commit=False,
        read_version=read.version,
        isolation=isolation_of(change),
        blind=True,
    )
    first = encode_action(actions[0])
    if not first.startswith(_TIMELESS):
        return None
    try:
        info = first[len(_TIMELESS) : -1].decode()
    except UnicodeDecodeError:
        return None
    named = info_of(actions)
    return BlindAppend(
        table,
        read.version,
        seen,
        shape,
        info,
        encode_commit(actions[1:]),
        None if named is None else named.operation,
        adds,
    )


def _seen(change: TableChange, guard: Guard | None) -> int | None:
    """The newest version in the log, counted from the one that was read; None where that is far behind.

    The head must have come as far, or the log holds what the catalog did not make.
    """
    version = change.read_version
    if guard is None or isinstance(change.table, NewTable):
        return version
    for _ in range(_LOOKS):
        if not guard(change.table, version):
            return version
        version += 1
    return None
