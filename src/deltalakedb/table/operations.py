"""Operations on a table: run by delta-rs on a scratch table, harvested, and handed on as work."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from deltalake._internal import RawDeltaTable

from deltalakedb.exceptions import UnsupportedFeatureError
from deltalakedb.failpoints import failpoint
from deltalakedb.protocol.actions import CommitInfo, Remove
from deltalakedb.protocol.features import OURS, check_writable
from deltalakedb.protocol.partition import equal_key
from deltalakedb.protocol.properties import is_on
from deltalakedb.protocol.read_set import EVERYTHING, ReadSet
from deltalakedb.protocol.row_tracking import tracks_rows
from deltalakedb.protocol.schema import PrimitiveType, parse_schema
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.refusals import NOBODY, Concerned, refusals
from deltalakedb.table.staging import Scratch
from deltalakedb.table.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from deltalakedb.protocol.actions import Action, Add
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.source import Source
    from deltalakedb.table.sql_table import SqlDeltaTable
    from deltalakedb.table.staging import Harvest


A = TypeVar("A")
T = TypeVar("T")


def rewrite(
    table: SqlDeltaTable, where: Expr | None, run: Callable[[Stage], T], *, hooks: Hooks = DEFAULT
) -> T:
    """Run an operation that rewrites rows (delete, update, overwrite by predicate) on the candidate files.

    Args:
        table: The open table.
        where: What the operation reads; None for every row.
        run: Calls delta-rs on the scratch table.
        hooks: What is to follow the commit.

    Returns:
        What delta-rs returned.
    """
    with staged(table, *candidates(table, where)) as stage:
        out = call(run, stage, Concerned.at(table))
        stage._hand_on(hooks)
    return out


def candidates(table: SqlDeltaTable, where: Expr | None) -> tuple[list[Add], ReadSet]:
    """The files whose rows an operation may rewrite, and what its result then depends on."""
    refuse_row_ids(table)
    adds = list(table._source.adds(where))
    if where is None or getattr(table._source, "reshaped", False):
        return adds, EVERYTHING
    return adds, ReadSet(predicates=(where,), files=frozenset(a.key for a in adds))


def refuse_row_ids(table: SqlDeltaTable) -> None:
    """Refuse to rewrite rows whose ids have to stay what they are."""
    snapshot = table._source.snapshot
    check_writable(snapshot.protocol, table=table.name, also=OURS)
    if tracks_rows(snapshot.protocol) and is_on(snapshot.metadata, "delta.enableRowTracking"):
        raise UnsupportedFeatureError(
            "rows of a table with row tracking cannot be rewritten here: their ids would change",
            table=table.name,
            suggestion="append instead, or rewrite with an engine that keeps row ids",
            features=("rowTracking",),
        )


class Stage:
    """A scratch table over some files of an open table, ready for delta-rs.

    Args:
        table: The open table.
        adds: The files that delta-rs sees, in this order.
        reads: What the operation's result depends on.
        unlent: Paths of entries that stand for no file.
        shown: The table as delta-rs is to see it, where that is not as it is.
    """

    def __init__(
        self,
        table: SqlDeltaTable,
        adds: Iterable[Add],
        reads: ReadSet,
        *,
        unlent: Collection[str] = (),
        shown: Snapshot | None = None,
    ) -> None:
        snapshot = table._source.snapshot
        check_writable(snapshot.protocol, table=table.name, also=OURS)
        self._table = table
        self._snapshot = snapshot
        self._reads = reads
        failpoint("data.before")
        self.scratch = Scratch.for_writing(table._root, table=table.name)
        try:
            self.scratch.lay(shown or snapshot, adds, unlent=unlent)
            self.raw = call(_open, str(self.scratch.folder), Concerned.at(table))
        except BaseException:
            self.scratch.remove()
            raise

    def harvest(self) -> Harvest:
        """What delta-rs did so far."""
        return self.scratch.harvest(after=self._snapshot.version)

    def _hand_on(self, hooks: Hooks = DEFAULT, harvest: Harvest | None = None) -> Committed | None:
        """Hand what delta-rs did on as work, or what was made of it."""
        return submit(self._table, self.scratch, harvest or self.harvest(), self._reads, hooks=hooks)


def _open(folder: str) -> RawDeltaTable:
    return RawDeltaTable(folder, version=None, storage_options=None)


@contextmanager
def staged(
    table: SqlDeltaTable,
    adds: Iterable[Add],
    reads: ReadSet,
    *,
    unlent: Collection[str] = (),
    shown: Snapshot | None = None,
) -> Iterator[Stage]:
    """A stage that is cleared away whatever happens."""
    stage = Stage(table, adds, reads, unlent=unlent, shown=shown)
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
    kept: frozenset[str] = frozenset(),
) -> Committed | None:
    """Place new files and hand the work, with more actions where given, on to where the table's work goes."""
    more = tuple(more)
    steps: list[Sequence[Action]] = list(harvest.steps)
    if more:
        known = [_counted(a, more) for a in (steps.pop() if steps else ())]
        steps.append((*known, *more))
    if not any(steps):
        return None
    moved = scratch.place(harvest.new_files, fsync=table._database.engine.config.publish.fsync)
    failpoint("data.after")
    read, root = table._source.snapshot, table._root
    first, *then = steps
    work = Work(
        table._row, first, read, reads, moved, harvest.fresh, root=root, hooks=hooks, then=then, kept=kept
    )
    return table._hand_on(work)


def recounted(harvest: Harvest, more: int, *names: str) -> Harvest:
    """A harvest whose metrics count files that delta-rs did not see."""

    def counted(action: Action) -> Action:
        if not isinstance(action, CommitInfo) or "operationMetrics" not in action.extra:
            return action
        metrics = plus(action.extra["operationMetrics"], more, *names)
        return replace(action, extra={**action.extra, "operationMetrics": metrics})

    return harvest.each(counted)


def plus(metrics: dict[str, Any], more: int, *names: str) -> dict[str, Any]:
    """Metrics with more added to some of them."""
    return metrics | {name: metrics[name] + more for name in names if name in metrics}


def _counted(action: Action, more: Sequence[Action]) -> Action:
    """A commitInfo whose metrics know of the files that the engine did not see, by the names that it has."""
    if not isinstance(action, CommitInfo) or "operationMetrics" not in action.extra:
        return action
    metrics, gone = dict(action.extra["operationMetrics"]), [a for a in more if isinstance(a, Remove)]
    if "numRemovedFiles" in metrics:  # delta-spark's are texts
        size = sum(remove.size or 0 for remove in gone)
        metrics |= {"numRemovedFiles": str(len(gone)), "numRemovedBytes": str(size)}
    else:
        metrics["num_removed_files"] = len(gone)
    return replace(action, extra={**action.extra, "operationMetrics": metrics})


def call(operation: Callable[[A], T], argument: A, about: Concerned = NOBODY) -> T:
    """Run delta-rs; what it refuses becomes a typed error about the table concerned."""
    with refusals(about):
        return operation(argument)


def in_partitions_of(source: Source, new: Iterable[Add]) -> Iterator[Add]:
    """The live files in the partitions that new files are in, by the values and not by their spelling."""
    metadata = source.snapshot.metadata
    schema = parse_schema(metadata.schema_string)
    columns: dict[str, PrimitiveType] = {}
    for name in metadata.partition_columns:
        field = schema.field(name)
        kind = field.type if field and isinstance(field.type, PrimitiveType) else PrimitiveType("string")
        columns[name if field is None else field.physical_name] = kind
    keys = {equal_key(add.partition_values, columns) for add in new}
    return (add for add in source.adds() if equal_key(add.partition_values, columns) in keys)


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
