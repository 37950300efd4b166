"""Drift: is `_delta_log` what the catalog published? Its commit files and checkpoints, one by one.

These checks are what repair, publishing and the doctor need. `transfer.verifying` builds the full comparison
of log and catalog on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from deltalakedb.delta_log.checkpoint import is_complete, iter_checkpoint
from deltalakedb.delta_log.commit_file import commit_digest
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import LAST_CHECKPOINT, commit_path
from deltalakedb.delta_log.optional_files import last_checkpoint
from deltalakedb.exceptions import (
    CatalogCorruptError,
    LogError,
    ProtocolError,
    StorageMissingError,
)
from deltalakedb.metastore import commits
from deltalakedb.metastore.txn_log import SqlTxnLogReader
from deltalakedb.mirror.outside import damage, newest_beyond
from deltalakedb.protocol.actions import Add, FileKey, Metadata, Protocol, meaning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalakedb.delta_log.listing import Checkpoint
    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.storage.store import Store

_COMPARED = frozenset({"add", "metaData", "protocol"})
#: published commits that a quick check lists, and how many of the newest it reads
_LISTED, _READ = 1_000, 32
#: a quick check replays checkpoints up to this size
_REPLAYED_BYTES = 8 << 20

Kind: TypeAlias = Literal[
    "missing",
    "damaged",
    "foreign",
    "ahead",
    "checkpoint",
    "commit",
    "log",
    "state",
    "counts",
    "missing_file",
    "extra_file",
    "changed_file",
    "rows",
]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a table's log and the catalog.

    Attributes:
        kind: What differs. Commit files: ``missing`` or ``damaged`` (both can be repaired), ``foreign``
            (another writer's commit has the place of ours), ``ahead`` (the log has versions that the catalog
            does not know), ``commit`` (the catalog's own copy of a commit is damaged). ``checkpoint`` for a
            checkpoint or ``_last_checkpoint``. ``log`` if the log cannot be read. ``state`` for metadata,
            protocol, txns and domains. ``counts`` of files or bytes. Data files: ``missing_file`` (only the
            log has it), ``extra_file`` (only the catalog has it), ``changed_file``. ``rows`` of data.
        version: The version concerned.
        detail: What was found.
        path: The data file, if it is about one.
    """

    kind: Kind
    version: int
    detail: str
    path: str | None = None


# ---- commit files ----


def log_differences(database: Database, table: Table, store: Store) -> list[Difference]:
    """Every commit file that is not as published, and versions beyond the head."""
    found = commit_differences(database, table.table_id, store, published=table.published_version)[1]
    return [*found, *versions_ahead(database, table, store)]


def versions_ahead(database: Database, table: Table, store: Store) -> Iterator[Difference]:
    """The newest version of the log that the catalog does not know, if there is one."""
    if (newest := newest_beyond(database, table, store)) is not None:
        yield Difference("ahead", newest, "the log has a version that the catalog does not know")


def commit_differences(
    database: Database, table_id: int, store: Store, *, published: int, oldest: int = 0
) -> tuple[int, list[Difference]]:
    """Compare the bytes of every commit file with the digests that the catalog keeps.

    The log must have the versions from ``oldest`` or the newest checkpoint to ``published``; later ones only
    wait to be published. Returns how many files were compared, and what differs, by version.
    """
    rows = reversed(commits.of_table(database, table_id))
    return _compare(database, table_id, store, rows, published=published, oldest=oldest)


def newest_commit_differences(database: Database, table: Table, store: Store) -> list[Difference]:
    """What is wrong with the newest published commits, by a cheap check.

    Readers need the commits since the newest checkpoint. One listing shows whether they exist, and their
    sizes; only the newest are read and compared by their digests.
    """
    rows = commits.history(database, table, upto=table.published_version, limit=_LISTED)
    return _compare(database, table.table_id, store, rows, published=table.published_version, read=_READ)[1]


def _compare(
    database: Database,
    table_id: int,
    store: Store,
    rows: Iterable[CommitRow],
    *,
    published: int,
    oldest: int = 0,
    read: int | None = None,
) -> tuple[int, list[Difference]]:
    """Compare commit files by size, and the first ``read`` of them (or all) by their digests."""
    listing = list_log(store)
    # every engine may clean up below a checkpoint
    covered = max((v for v in listing.checkpoints if v <= published), default=-1)
    compared, found = 0, []
    for number, row in enumerate(rows):
        if row.sha256 is None or (read is not None and row.version < covered):
            continue  # imported from a checkpoint, so there never were bytes; or not needed by readers
        there = listing.commits.get(row.version)
        try:
            if there is None:
                raise StorageMissingError(commit_path(row.version))
            same = row.size_bytes in (None, there.size)
            if same and (read is None or number < read):
                same = commit_digest(store, there.path).sha256 == row.sha256
        except StorageMissingError:
            if max(covered, oldest) <= row.version <= published:
                found.append(Difference("missing", row.version, "the commit file is not there"))
            continue
        compared += 1
        if not same and row.version <= published:
            found.append(classify_commit_file(database, table_id, store, row))
        elif not same:  # only what we published can be damaged
            detail = "another commit has the place of a version that waits"
            found.append(Difference("foreign", row.version, detail))
    return compared, found


def classify_commit_file(database: Database, table_id: int, store: Store, row: CommitRow) -> Difference:
    """Whether other bytes than ours in the file of a published version are damage or a foreign commit."""
    try:
        how = damage(database, table_id, store, row)
    except CatalogCorruptError:
        return Difference("commit", row.version, "the catalog's copy does not have its own digest")
    if how is not None:
        return Difference("damaged", row.version, how)
    return Difference("foreign", row.version, "another commit has the place of ours")


# ---- checkpoints ----


def broken_checkpoints(
    database: Database, table: Table, store: Store, *, quick: bool = False
) -> Iterator[tuple[Difference, Checkpoint | None]]:
    """Checkpoints that do not match the catalog, and a broken `_last_checkpoint` (without a checkpoint).

    ``quick`` looks at the newest checkpoint only, and replays it only if it is small.
    """
    hint = last_checkpoint(store)
    ours, listing = SqlTxnLogReader(database, table.name), list_log(store)
    newest = max(listing.checkpoints, default=-1)
    for version in sorted(listing.checkpoints):
        if not table.head.first_version <= version <= table.published_version:
            continue  # the catalog does not know that version
        if quick and version < newest:
            continue
        for checkpoint in listing.checkpoints[version]:
            # each by itself: a reader would skip a broken one and use another
            large = quick and sum(meta.size for meta in checkpoint.files) > _REPLAYED_BYTES
            detail = _torn(store, checkpoint) if large else _checkpoint_difference(ours, store, checkpoint)
            if detail is not None:
                yield Difference("checkpoint", version, detail), checkpoint
    # read again: another process may have written a checkpoint meanwhile
    if hint is None and store.exists(LAST_CHECKPOINT) and last_checkpoint(store) is None:
        yield Difference("checkpoint", max(newest, 0), "_last_checkpoint cannot be read"), None
    elif hint is not None and hint > newest and hint == last_checkpoint(store):
        detail = "_last_checkpoint names a checkpoint that is not there"
        yield Difference("checkpoint", hint, detail), None


def _torn(store: Store, checkpoint: Checkpoint) -> str | None:
    return None if is_complete(store, checkpoint) else "the checkpoint is torn"


def _checkpoint_difference(ours: SqlTxnLogReader, store: Store, checkpoint: Checkpoint) -> str | None:
    if (torn := _torn(store, checkpoint)) is not None:
        return torn
    metadata, protocol = None, None
    theirs: set[FileKey] = set()
    try:
        for batch in iter_checkpoint(store, checkpoint, kinds=_COMPARED):
            theirs.update(a.key for a in batch if isinstance(a, Add))
            metadata = next((a for a in batch if isinstance(a, Metadata)), metadata)
            protocol = next((a for a in batch if isinstance(a, Protocol)), protocol)
    except (LogError, ProtocolError) as error:  # any other error says nothing about the checkpoint
        return error.message
    snapshot = ours.snapshot(checkpoint.version)
    if not _same(snapshot.metadata, metadata):
        return "the metadata differs"
    if not _same(snapshot.protocol, protocol):
        return "the protocol differs"
    mine = {add.key for add in ours.files(checkpoint.version)}
    if mine == theirs:
        return None
    lost, extra = len(mine - theirs), len(theirs - mine)
    return f"files that only the catalog has: {lost}; files that only the log has: {extra}"


def _same(ours: Metadata | Protocol, theirs: Metadata | Protocol | None) -> bool:
    return ours == theirs or (theirs is not None and meaning(ours) == meaning(theirs))
