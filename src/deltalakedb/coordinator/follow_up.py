"""The follow-up of a commit: publish it, write due checkpoints, clean up. It logs errors and never raises."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogBusyError, DeltaSqlError
from deltalakedb.mirror.background import PUBLISHER
from deltalakedb.mirror.checkpointer import checkpoint_if_due
from deltalakedb.mirror.publisher import publish_all
from deltalakedb.mirror.reconciler import reconcile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.mirror.publisher import Target

logger = logging.getLogger(__name__)


def follow_up(
    database: Database, targets: Sequence[Target], *, group: str | None = None, all_waiting: bool = False
) -> None:
    """Publish what was just committed and write due checkpoints, by the settings.

    A writer publishes its own commits and some of those before them; ``all_waiting``: everything that waits.
    """
    publishing = database.engine.config.publish
    if publishing.mode == "background":
        for one in targets:
            PUBLISHER.soon(database, one.table.name, one.checkpoints, one.storage_options)
    if publishing.mode != "sync" or not targets:
        return
    if all_waiting:
        for one in targets:
            with after_commit(f"{one.table.name} could not be published"):
                name, given = one.table.name, one.storage_options
                reconcile(database, name, checkpoints=one.checkpoints, storage_options=given)
        return
    due: list[Target] = []
    with after_commit("it could not be published"):
        limit = publishing.help_predecessors + 1
        published = publish_all(database, targets, group=group, limit=limit, seconds=1.0)
        # from the numbers alone: a commit after which none is due costs nothing
        due += [
            one
            for one, done in zip(targets, published, strict=True)
            if one.checkpoints.may_be_due(done.versions) or _is_large(database, one)
        ]
    # after all tables are published, since those of one transaction should appear together
    for one in due:
        with after_commit(f"the checkpoint of {one.table.name} must wait"):
            given, cleanup = one.storage_options, one.checkpoints.cleanup
            checkpoint_if_due(database, one.table.name, storage_options=given, cleanup=cleanup)


def _is_large(database: Database, one: Target) -> bool:
    """Whether a commit is a good part of the bytes that may come after a checkpoint."""
    limit = database.engine.config.publish.checkpoint_tail_bytes
    size = 0 if one.known is None else sum(len(data) for _, _, data in one.known.commits)
    return bool(one.checkpoints.write and limit and 8 * size >= limit)


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
