"""Operations on a table: run by delta-rs on a scratch table, harvested, and handed on as work."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deltalake._internal import RawDeltaTable

from deltalakedb.exceptions import UnsupportedFeatureError
from deltalakedb.failpoints import failpoint
from deltalakedb.protocol.actions import CommitInfo, Remove
from deltalakedb.protocol.features import check_writable
from deltalakedb.protocol.reads import EVERYTHING, ReadSet
from deltalakedb.protocol.rows import tracks_rows
from deltalakedb.protocol.rules import OURS, is_on
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.refusals import NOBODY, Concerned, refusals
from deltalakedb.table.staging import Scratch
from deltalakedb.table.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from deltalakedb.protocol.actions import Action, Add
    from deltalakedb.protocol.log import Committed
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.sql_table import SqlDeltaTable
    from deltalakedb.table.staging import Harvest


def rewrite(
    table: SqlDeltaTable, where: Expr | None, run: Callable[[Stage], Any], *, hooks: Hooks = DEFAULT
) -> Any:
    """Run an operation that rewrites rows (delete, update, overwrite by predicate) on the candidate files.

    Args:
        table: The open table.
        where: What the operation reads; None for every row.
        run: Calls delta-rs on the scratch table.
        hooks: What is to follow the commit.

    Returns:
        What delta-rs returned.
    """
    with staged(table, where) as stage:
        out = call(run, stage, Concerned.at(table))
        stage._hand_on(hooks)
    return out


class Stage:
    """A scratch table over the candidate files of an open table, ready for delta-rs."""

    def __init__(self, table: SqlDeltaTable, where: Expr | None) -> None:
        snapshot = table._source.snapshot
        check_writable(snapshot.protocol, table=table.name, also=OURS)
        if tracks_rows(snapshot.protocol) and is_on(snapshot.metadata, "delta.enableRowTracking"):
            raise UnsupportedFeatureError(
                "rows of a table with row tracking cannot be rewritten here: their ids would change",
                table=table.name,
                suggestion="append instead, or rewrite with an engine that keeps row ids",
                features=("rowTracking",),
            )
        self._table = table
        self._snapshot = snapshot
        candidates = list(table._source.adds(where))
        self._reads = EVERYTHING
        if where is not None:
            self._reads = ReadSet(predicates=(where,), files=frozenset(a.key for a in candidates))
        failpoint("data.before")
        self.scratch = Scratch.for_writing(table._root, table=table.name)
        try:
            self.scratch.lay(snapshot, candidates)
            self.raw = call(_open, str(self.scratch.folder), Concerned.at(table))
        except BaseException:
            self.scratch.remove()
            raise

    def _hand_on(self, hooks: Hooks = DEFAULT) -> Committed | None:
        """Hand what delta-rs did on as work."""
        harvest = self.scratch.harvest(after=self._snapshot.version)
        return submit(self._table, self.scratch, harvest, self._reads, hooks=hooks)


def _open(folder: str) -> RawDeltaTable:
    return RawDeltaTable(folder, version=None, storage_options=None)


@contextmanager
def staged(table: SqlDeltaTable, where: Expr | None) -> Iterator[Stage]:
    """A stage that is cleared away whatever happens."""
    stage = Stage(table, where)
    try:
        yield stage
    finally:
        stage.scratch.remove()


def submit(
    table: SqlDeltaTable,
    scratch: Scratch,
    harvest: Harvest,
    reads: ReadSet,
    more: Iterable[Action] = (),
    *,
    hooks: Hooks = DEFAULT,
) -> Committed | None:
    """Place new files and hand the work, with more actions where given, on to where the table's work goes."""
    more = tuple(more)
    actions = (*(_counted(a, len(more)) if more else a for a in harvest.actions), *more)
    if not actions:
        return None
    moved = scratch.place(harvest.new_files, fsync=table._database.engine.config.publish.fsync)
    failpoint("data.after")
    read, root = table._source.snapshot, table._root
    work = Work(table._row, actions, read, reads, moved, harvest.fresh, root=root, hooks=hooks)
    return table._hand_on(work)


def _counted(action: Action, removed: int) -> Action:
    """A commitInfo whose metrics know of the files that delta-rs did not see."""
    if not isinstance(action, CommitInfo) or "operationMetrics" not in action.extra:
        return action
    metrics = {**action.extra["operationMetrics"], "num_removed_files": removed}
    return replace(action, extra={**action.extra, "operationMetrics": metrics})


def call(operation: Callable[[Any], Any], argument: Any, about: Concerned = NOBODY) -> Any:
    """Run delta-rs; what it refuses becomes a typed error about the table concerned."""
    with refusals(about):
        return operation(argument)


def removes(adds: Iterable[Add]) -> list[Action]:
    """Live files as removes."""
    now = time.time_ns() // 1_000_000
    return [
        Remove(
            path=a.path,
            deletion_timestamp=now,
            data_change=True,
            extended_file_metadata=True,
            partition_values=a.partition_values,
            size=a.size,
            tags=a.tags,
            deletion_vector=a.deletion_vector,
            base_row_id=a.base_row_id,
            default_row_commit_version=a.default_row_commit_version,
        )
        for a in adds
    ]
