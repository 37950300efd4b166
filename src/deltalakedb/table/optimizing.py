"""OPTIMIZE: SQL picks the files, delta-rs rewrites them, and no row changes."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.metastore.files import ADD_COLUMNS, add_from_row, read_some
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.table.bins import Candidate, bins
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.in_flight import WORK_FOLDER
from deltalakedb.table.operations import call, plus, recounted, refuse_row_ids, staged
from deltalakedb.table.overlay import unread
from deltalakedb.table.refusals import Concerned
from deltalakedb.table.source import SqlSource
from deltalakedb.table.unmapped import Unmapped, is_mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.operations import Stage
    from deltalakedb.table.sql_table import SqlDeltaTable
    from deltalakedb.table.staging import Harvest

_TARGET: Final = "delta.targetFileSize"
_DEFAULT_TARGET: Final = 100 * 1024 * 1024
_ORDER: Final = ("add_version", "file_id")
#: metrics that count every file that was looked at
_COUNTED: Final = ("totalConsideredFiles", "totalFilesSkipped")


def compact(
    table: SqlDeltaTable,
    filters: Any,
    target_size: Any,
    run: Callable[[Stage, Any, Any], str],
    *,
    hooks: Hooks = DEFAULT,
) -> str:
    """Put small neighbouring files together.

    Args:
        table: The open table.
        filters: Partition filters.
        target_size: The size to aim at; None for the table's own.
        run: Calls delta-rs on the scratch table, with the target size and the filters.
        hooks: What is to follow the commit.

    Returns:
        delta-rs's metrics as JSON, counting all files of the table that the filters leave.
    """
    refuse_row_ids(table)
    target = _target(table) if target_size is None else target_size
    where = table._predicate_or_all(filters)
    adds: list[Add] = []
    between: frozenset[str] = frozenset()
    left_out = 0
    if isinstance(target, int) and target > 0:
        adds, between, left_out = _to_compact(table, where, target)
    plain = _plain(table)
    with staged(table, adds, NOTHING, unlent=between, shown=plain.snapshot if plain else None) as stage:
        wanted = plain.filters(filters) if plain else filters
        metrics = json.loads(call(lambda s: run(s, target, wanted), stage, Concerned.at(table)))
        more = left_out - len(between)
        stage._hand_on(hooks, recounted(_told(stage, plain), more, *_COUNTED))
    return json.dumps(plus(metrics, more, *_COUNTED))


def z_order(
    table: SqlDeltaTable,
    columns: Any,
    filters: Any,
    run: Callable[[Stage, Any, Any], str],
    *,
    hooks: Hooks = DEFAULT,
) -> str:
    """Rewrite the files of the partitions that the filters leave, in the order of a curve through columns.

    Args:
        table: The open table.
        columns: The columns of the curve.
        filters: Partition filters.
        run: Calls delta-rs on the scratch table, with the columns and the filters.
        hooks: What is to follow the commit.

    Returns:
        delta-rs's metrics as JSON.
    """
    refuse_row_ids(table)
    # nothing is read whose change would matter: rows stay what they are
    with unread(table._source):
        rows = _ordered(table, table._predicate_or_all(filters), ADD_COLUMNS)
    plain = _plain(table)
    with staged(table, map(add_from_row, rows), NOTHING, shown=plain.snapshot if plain else None) as stage:
        if plain is not None:
            columns = plain.names(columns) if isinstance(columns, list) else columns
            filters = plain.filters(filters)
        metrics = call(lambda s: run(s, columns, filters), stage, Concerned.at(table))
        stage._hand_on(hooks, _told(stage, plain))
    return metrics


def _plain(table: SqlDeltaTable) -> Unmapped | None:
    """A mapped table without its mapping: delta-rs refuses to put the files of mapped ones together."""
    snapshot = table._source.snapshot
    return Unmapped(snapshot) if is_mapped(snapshot.metadata) else None


def _told(stage: Stage, plain: Unmapped | None) -> Harvest:
    harvest = stage.harvest()
    return harvest if plain is None else harvest.each(plain.told)


def _to_compact(
    table: SqlDeltaTable, where: Expr | None, target: int
) -> tuple[list[Add], frozenset[str], int]:
    """The files of all bins; the paths of those among them that only part bins; how many others there are.

    delta-rs joins neighbours, and would join two bins whose parting files are left out. So where one bin ends
    and another begins, an entry that is too large for any bin stands between them; it names no file, and is
    never opened.
    """
    with unread(table._source):
        rows = _ordered(table, where, ("path", "dv_id", "size", "partition_values"))
        groups = [_partition(row["partition_values"]) for row in rows]
        found = [Candidate(n, g, r["size"]) for n, (g, r) in enumerate(zip(groups, rows, strict=True))]
        chosen = bins(found, target)
        whole = _whole(table, where, [rows[c.file] for b in chosen for c in b])
    adds: list[Add] = []
    between: set[str] = set()
    in_order = sorted(chosen, key=lambda b: (str(b[0].group), b[0].file))
    for _, of_group in groupby(in_order, key=lambda b: b[0].group):
        for number, one in enumerate(of_group):
            files = [whole[_key(rows[c.file])] for c in one]
            if number:
                adds.append(_between(files[0], len(between), target))
                between.add(adds[-1].path)
            adds += files
    return adds, frozenset(between), len(rows) - (len(adds) - len(between))


def _whole(
    table: SqlDeltaTable, where: Expr | None, rows: Sequence[dict[str, Any]]
) -> dict[tuple[str, str], Add]:
    """Some files as add actions, by their identity."""
    source = table._source
    if not rows:
        return {}
    if isinstance(source, SqlSource):
        return {a.key: a for a in read_some(source.database, [row["file_id"] for row in rows])}
    wanted = {_key(row) for row in rows}
    return {a.key: a for a in source.adds(where) if a.key in wanted}


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return canonical_path(row["path"]), row["dv_id"]


def _between(neighbour: Add, number: int, target: int) -> Add:
    return Add(
        path=f"{WORK_FOLDER}/between-{number}",  # no data file lies there
        partition_values=neighbour.partition_values,
        size=target + 1,
        modification_time=neighbour.modification_time,
        data_change=False,
    )


def _ordered(table: SqlDeltaTable, where: Expr | None, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Candidate files, newest first, as delta-rs reads them from a log."""
    rows = table._source.scan((*columns, *_ORDER), where).to_pylist()
    # what a transaction has added itself has no version yet
    return sorted(
        rows, key=lambda r: (r["add_version"] is not None, -(r["add_version"] or 0), r["file_id"] or 0)
    )


def _partition(text: str) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted(decode_json(text).items()))


def _target(table: SqlDeltaTable) -> int:
    """The size that the table's own properties ask for."""
    with suppress(ValueError):
        size = int(table._source.snapshot.metadata.configuration.get(_TARGET) or "")
        if size > 0:
            return size
    return _DEFAULT_TARGET
