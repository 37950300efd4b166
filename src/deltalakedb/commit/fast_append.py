"""Fast appends: blind appends committed by one statement, so that no head waits for a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.commit.request import NewTable, TableChange, Write
from deltalakedb.commit.versions import complete_commit_info
from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.failpoints import is_watched
from deltalakedb.metastore.files.appends import MOST_FILES, BlindAppend, ratify_appends
from deltalakedb.protocol.actions import Add, CommitInfo, encode_action, encode_commit
from deltalakedb.protocol.commit_rules import check_commit
from deltalakedb.protocol.features import COMMITTER_FEATURES, tracks_rows
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.protocol.properties import IN_COMMIT_TIMESTAMPS, is_on
from deltalakedb.protocol.txn_log import Committed, UnpublishedCommits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.commit.committer import LogAheadCheck
    from deltalakedb.metastore.database import Database

#: how a commit begins whose time is still to come
_INFO_PREFIX: Final = b'{"commitInfo":{"timestamp":0'
#: how many versions the log may be ahead of what a writer has read before the head is queried
_MAX_LOG_LOOKAHEAD: Final = 32
#: places inside the transaction, which one statement does not have
_INSIDE: Final = ("commit.locked", "commit.before_commit")


def try_fast_append(
    database: Database, changes: Sequence[TableChange], txn: str, guard: LogAheadCheck | None
) -> list[Committed] | None:
    """Commit changes that are all plain blind appends, if every table is as its writer saw it; else None.

    Anything else is left to the committer, which locks the heads. A statement whose response was lost cannot
    run a second time, or after a later attempt: the transaction's id is a key.
    """
    if is_watched(*_INSIDE):
        return None
    appends = []
    for change in changes:
        if (append := _as_blind_append(database, change, txn, guard)) is None:
            return None
        appends.append(append)
    if not appends or sum(len(a.adds) for a in appends) > MOST_FILES:
        return None
    if (ratified := ratify_appends(database, appends, txn)) is None:
        return None
    done = []
    for append, one in zip(appends, ratified, strict=True):
        unpublished = None
        if not one.paused:
            written = (one.version, one.timestamp, append.data(one.timestamp))
            unpublished = UnpublishedCommits(
                append.table.table_id,
                (written,),
                one.previous_sha256,
                predecessors_published=one.predecessors_published,
                pause_checked=True,
            )
        done.append(Committed(one.version, one.timestamp, unpublished=unpublished))
    return done


def _as_blind_append(
    database: Database, change: TableChange, txn: str, guard: LogAheadCheck | None
) -> BlindAppend | None:
    """A change as a blind append that needs only a version and a time; None if it is more than that."""
    table, read = change.table, change.read
    if isinstance(table, NewTable) or read is None or change.reads or len(change.versions) != 1:
        return None
    if not (isinstance(change.origin, Write) and change.origin.new_names):
        return None
    (given,) = change.versions
    adds = [a for a in given if isinstance(a, Add)]
    others = len(given) - len(adds)
    if not adds or len(adds) > MOST_FILES or others != sum(isinstance(a, CommitInfo) for a in given):
        return None
    if tracks_rows(read.protocol) or is_on(read.metadata, IN_COMMIT_TIMESTAMPS):
        return None
    try:
        check_commit(
            given,
            version=read.version + 1,
            protocol=read.protocol,
            metadata=read.metadata,
            paths=TablePaths(table.location, database.engine.config.catalog.allow_outside_paths, table.name),
            also=COMMITTER_FEATURES,
        )
    except DeltaSqlError:
        return None  # the committer decides which error comes first
    if (seen := _seen(change, guard)) is None:
        return None
    named, rest = complete_commit_info(given, change, timestamp=0, txn=txn)
    first = encode_action(named)
    if not first.startswith(_INFO_PREFIX):
        return None
    try:
        info = first[len(_INFO_PREFIX) : -1].decode()
    except UnicodeDecodeError:
        return None
    return BlindAppend(table, read.version, seen, info, encode_commit(rest), named.operation, adds)


def _seen(change: TableChange, guard: LogAheadCheck | None) -> int | None:
    """The newest version in the log, which the head must have reached; None if the read one is far behind."""
    version = change.read_version
    if guard is None or isinstance(change.table, NewTable):
        return version
    for _ in range(_MAX_LOG_LOOKAHEAD):
        if not guard(change.table, version):
            return version
        version += 1
    return None
