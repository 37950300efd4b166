"""The follow-up of a commit: publish it, write due checkpoints, clean up. It logs errors and never raises."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogBusyError, DeltaSqlError
from deltalakedb.metastore.outbox import Member
from deltalakedb.mirror.background import PUBLISHER
from deltalakedb.mirror.checkpointer import (
    DEFAULT_INTERVAL,
    CheckpointOptions,
    checkpoint_if_due,
    interval_of,
)
from deltalakedb.mirror.groups import Group
from deltalakedb.mirror.publisher import Target, publish_all
from deltalakedb.mirror.reconciler import reconcile
from deltalakedb.protocol.actions import Metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.txn_log import Snapshot, UnpublishedCommits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Followed:
    """A table that was committed to, and what is to follow.

    Attributes:
        table: The table.
        checkpoints: Whether checkpoints are written, how often, and whether the log is cleaned up after one.
        known: Its new commits, if they are at hand.
    """

    table: Table
    checkpoints: CheckpointOptions
    known: UnpublishedCommits | None = None


def interval(read: Snapshot | None, actions: Iterable[Action]) -> int:
    """Commits between two checkpoints, as the table has it after some actions."""
    metadata = next((a for a in actions if isinstance(a, Metadata)), None if read is None else read.metadata)
    return DEFAULT_INTERVAL if metadata is None else interval_of(metadata)


def follow_up(
    database: Database,
    tables: Sequence[Followed],
    options: Callable[[str], Mapping[str, str] | None],
    *,
    group: str | None = None,
    all_waiting: bool = False,
) -> None:
    """Publish what was just committed and write due checkpoints, as the settings say.

    Args:
        database: The catalog.
        tables: The tables.
        options: Returns the storage options of a location.
        group: The transaction, if it changed several tables.
        all_waiting: Publish everything that waits, however much; a writer publishes its own commits and
            helps with some of those before them.
    """
    publishing = database.engine.config.publish
    if publishing.mode == "background":
        for one in tables:
            PUBLISHER.soon(database, one.table.name, one.checkpoints, options(one.table.location))
    if publishing.mode != "sync" or not tables:
        return
    if all_waiting:
        for one in tables:
            with after_commit(f"{one.table.name} could not be published"):
                reconcile(
                    database,
                    one.table.name,
                    checkpoints=one.checkpoints,
                    storage_options=options(one.table.location),
                )
        return
    due: list[Followed] = []
    with after_commit("it could not be published"):
        published = publish_all(
            database,
            [Target(one.table, options(one.table.location), one.known) for one in tables],
            group=None if group is None else _group(group, tables),
            limit=publishing.help_predecessors + 1,
            seconds=1.0,
        )
        # from the numbers alone: a commit after which none is due costs nothing
        due += [
            one
            for one, done in zip(tables, published, strict=True)
            if one.checkpoints.may_be_due(done.versions) or _is_large(database, one)
        ]
    # after all tables are published, since those of one transaction should appear together
    for one in due:
        with after_commit(f"the checkpoint of {one.table.name} must wait"):
            given, cleanup = options(one.table.location), one.checkpoints.cleanup
            checkpoint_if_due(database, one.table.name, storage_options=given, cleanup=cleanup)


def _is_large(database: Database, one: Followed) -> bool:
    """Whether a commit is a good part of the bytes that may come after a checkpoint."""
    limit = database.engine.config.publish.checkpoint_tail_bytes
    size = 0 if one.known is None else sum(len(data) for _, _, data in one.known.commits)
    return bool(one.checkpoints.write and limit and 8 * size >= limit)


def _group(txn: str, tables: Sequence[Followed]) -> Group:
    """A transaction over several tables, with its members if it is known what all of them became."""
    members = [
        Member(one.table.table_id, one.table.name, one.table.location, version, at, published=False)
        for one in tables
        if one.known is not None
        for version, at, _ in one.known.commits[-1:]
    ]
    return Group(txn, members if len(members) == len(tables) else None)


@contextmanager
def after_commit(trouble: str) -> Iterator[None]:
    """Log errors that happen after a commit. The commit stands; raising would make the caller retry it."""
    try:
        yield
    except CatalogBusyError as error:
        logger.info("%s: %s", trouble, error.message)
    except DeltaSqlError as error:
        logger.warning("the commit stands, but %s: %s", trouble, error.message)
    except Exception:
        logger.exception("the commit stands, but %s", trouble)
