"""The only place where SQL is built: which files of a table may hold rows that match a predicate.

The plan is one statement over `dl_files`. If the database has indexes, one column drives: a partition
value, or the stats slot with the fewest candidates, one UNION ALL branch for each of its width levels. All
other conditions filter. They never lose a file; survivors are rechecked with ``Plan.residual``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore.files.conditions import NEVER, Condition, Conditions, both, interval
from deltalakedb.metastore.files.rows import FILE_ID_BITS, SIDE_COLUMNS
from deltalakedb.protocol.images import EMPTY, IMAX, IMIN, MISSING
from deltalakedb.protocol.predicate import (
    Compare,
    Expr,
    In,
    IsNull,
    Path,
    StartsWith,
    conjunction,
    conjuncts,
    normalize,
)
from deltalakedb.protocol.skipping import without_nan
from deltalakedb.protocol.slots import INDEXED_SLOTS, Level, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.metastore.engines.base import Dialect

__all__ = ["Plan", "plan_added", "plan_files", "plan_new", "plan_page"]

_COLUMN: Final = re.compile(r"[a-z][a-z0-9_]*")
#: partition columns with an index of their own
_INDEXED_TEXTS: Final = 2
#: a range drives before a partition value when it leaves at most this part of the files
_SELECTIVE: Final = 0.01
#: an index pays while it leaves at most this part of the files
_WORTHWHILE: Final = 0.3


_BY_OTHERS: Final = Condition(
    "NOT EXISTS (SELECT 1 FROM dl_commits c"
    " WHERE c.table_id = f.table_id AND c.version = f.add_version AND c.is_blind_append)"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A statement that yields a superset of the matching files.

    Attributes:
        sql: The statement, with ``?`` for parameters.
        params: Its parameters in order.
        residual: What is left to ask of each file's statistics; None if the statement is exact.
        driver: What leads the search: ``p0``, ``s1`` or None for a scan. For tests and explanations.
    """

    sql: str
    params: tuple[Any, ...]
    residual: Expr | None
    driver: str | None = None


class _Driver(NamedTuple):
    name: str
    #: one condition for each branch; the branches have no file in common
    branches: tuple[Condition, ...]


def plan_files(
    expr: Expr | None,
    *,
    table_id: int,
    version: int,
    slots: Sequence[Slot],
    levels: Sequence[Level],
    columns: Sequence[str],
    facts: Dialect,
) -> Plan:
    """The statement that finds the files of a version which may hold matching rows.

    Args:
        expr: The predicate over physical column paths; None for all files.
        table_id: The table.
        version: The version to read.
        slots: The table's slots.
        levels: The width levels of its indexed slots.
        columns: The columns to select, by their plain names.
        facts: What the database can do.
    """
    wanted = None if expr is None else normalize(expr)
    rules = Conditions(slots)
    select = _select(columns, facts)
    condition = None if wanted is None else rules.of(wanted)
    first, last = table_id << FILE_ID_BITS, (table_id + 1) << FILE_ID_BITS
    in_ids = Condition("f.file_id >= ? AND f.file_id < ?", (first, last))
    in_table = Condition("f.table_id = ?", (table_id,))
    residual = _residual(wanted, rules)
    driver = None
    branches: list[Condition | None]
    if not facts.indexed:
        branches = [both((in_ids, _alive(version), condition))]
    else:
        # the plus keeps the index on add_version out of it
        live = Condition("f.remove_version IS NULL AND +f.add_version <= ?", (version,))
        dead = Condition("f.remove_version > ? AND +f.add_version <= ?", (version, version))
        # an unindexed condition beside `table_id =` makes SQLite walk a partial index row by row
        branches = [both((in_ids, live, condition))]
        if wanted is not None and (driver := _driver(wanted, rules, levels)) is not None:
            quiet = Conditions(slots, texts_drive=driver.name[0] == "p").of(wanted)
            branches = [both((in_table, live, b, quiet)) for b in driver.branches]
        # files may have been removed since the version was the newest
        branches.append(both((in_table, dead, condition)))
    found = [b for b in branches if b is not None]
    return Plan(
        " UNION ALL ".join(f"{select} WHERE {b.sql}" for b in found),
        tuple(p for b in found for p in b.params),
        residual,
        None if driver is None else driver.name,
    )


def plan_page(
    *,
    table_id: int,
    version: int,
    after: int,
    limit: int,
    columns: Sequence[str],
    facts: Dialect,
    end: int | None = None,
) -> Plan:
    """The statement for the next files of a version in the order of their ids, up to an id or to the last."""
    last = (table_id + 1) << FILE_ID_BITS if end is None else end
    alive = _alive(version)
    page = f"f.file_id > ? AND f.file_id < ? AND {alive.sql} ORDER BY f.file_id LIMIT ?"
    return Plan(f"{_select(columns, facts)} WHERE {page}", (after, last, *alive.params, limit), None)


def plan_new(*, table_id: int, after: int, version: int, columns: Sequence[str], facts: Dialect) -> Plan:
    """The statement for the files of a version that an earlier one did not have."""
    alive = _alive(version)
    new = f"f.table_id = ? AND f.add_version > ? AND {alive.sql}"
    return Plan(f"{_select(columns, facts)} WHERE {new}", (table_id, after, *alive.params), None)


def plan_added(
    expr: Expr | None,
    *,
    table_id: int,
    since: int,
    slots: Sequence[Slot],
    facts: Dialect,
    skip_blind: bool = False,
) -> Plan:
    """The statement that finds files added after a version that may hold matching rows, removed since or not.

    It selects path, version, stats and partition values.

    Args:
        expr: The predicate over physical column paths; None for all files.
        table_id: The table.
        since: The version.
        slots: The table's slots in use.
        facts: What the database can do.
        skip_blind: Leave out the files of blind appends.
    """
    rules = Conditions(slots)
    wanted = None if expr is None else normalize(expr)
    conditions = (
        Condition("f.table_id = ? AND f.add_version > ?", (table_id, since)),
        _BY_OTHERS if skip_blind else None,
        None if wanted is None else rules.of(wanted),
    )
    added = both(conditions) or NEVER
    select = _select(("path", "add_version", "stats", "partition_values"), facts)
    return Plan(f"{select} WHERE {added.sql}", added.params, _residual(wanted, rules))


def _select(columns: Sequence[str], facts: Dialect) -> str:
    if odd := [column for column in columns if not _COLUMN.fullmatch(column)]:
        raise InvalidArgumentError(
            f"{odd[0]!r} is not a column of dl_files", suggestion="name columns as the migration spells them"
        )
    aside = [facts.side_table and column in SIDE_COLUMNS for column in columns]
    names = ", ".join(f"{'j' if other else 'f'}.{c}" for c, other in zip(columns, aside, strict=True))
    join = " JOIN dl_file_json j ON j.file_id = f.file_id" if any(aside) else ""
    return f"SELECT {names} FROM dl_files f{join}"  # noqa: S608 - names are checked above


def _alive(version: int) -> Condition:
    """Files that were live at the version, whatever became of them."""
    return Condition(
        "f.add_version <= ? AND (f.remove_version IS NULL OR f.remove_version > ?)", (version, version)
    )


def _residual(wanted: Expr | None, rules: Conditions) -> Expr | None:
    if wanted is None:
        return None
    left = [c for c in conjuncts(wanted) if not rules.settles(c)]
    rest = conjunction(left)
    return None if not left or rest == conjunction(()) else rest


def _driver(wanted: Expr, rules: Conditions, levels: Sequence[Level]) -> _Driver | None:
    operands = conjuncts(wanted)
    total = max((sum(x.n for x in levels if x.slot == s) for s in range(INDEXED_SLOTS)), default=0)
    ranges = sorted(_ranges(operands, rules, levels), key=lambda found: found[0])
    texts = _text_driver(operands, rules)
    if ranges and ranges[0][0] <= total * (_SELECTIVE if texts is not None else _WORTHWHILE):
        return ranges[0][1]
    return texts


def _text_driver(operands: Sequence[Expr], rules: Conditions) -> _Driver | None:
    """A partition column that is bound to some values, or lies between two."""
    between: dict[Path, set[str]] = {}
    for operand in operands:
        if not isinstance(operand, Compare | In | IsNull):
            continue
        slot = rules.texts.get(operand.column)
        if slot is None or slot.since or slot.slot >= _INDEXED_TEXTS:
            continue
        found = rules.on_text(operand, operand.column)
        if found is None:
            continue
        if not isinstance(operand, Compare) or operand.op == "=":
            return _Driver(f"p{slot.slot}", (found,))
        between.setdefault(operand.column, set()).add(operand.op[0])
    for column, sides in between.items():
        if {"<", ">"} <= sides:
            return _between(column, operands, rules)
    return None


def _between(column: Path, operands: Sequence[Expr], rules: Conditions) -> _Driver:
    slot = rules.texts[column]
    name = f"f.p{slot.slot}"
    found = both(
        Condition(f"{name} {o.op} ?", c.params)
        for o in operands
        if isinstance(o, Compare) and o.column == column and o.op[0] in "<>"
        if (c := rules.on_text(o, column)) is not None
    )
    span = found or NEVER
    if slot.encoding == "string":
        return _Driver(f"p{slot.slot}", (span,))
    odd = Condition(f"{name} < '0'")  # dates of years beyond 9999
    return _Driver(f"p{slot.slot}", (both((span, Condition(f"{name} >= '0'"))) or span, odd))


def _ranges(
    operands: Sequence[Expr], rules: Conditions, levels: Sequence[Level]
) -> Iterator[tuple[float, _Driver]]:
    """Stats slots that could drive, each with the number of files it is likely to leave."""
    no_nan = without_nan(operands)
    for slot in rules.images.values():
        known = [x for x in levels if x.slot == slot.slot]
        # without level rows the branches are not known
        if slot.slot >= INDEXED_SLOTS or slot.since or not known:
            continue
        low, high = IMIN, IMAX
        for operand in operands:
            if isinstance(operand, Compare | In | StartsWith):
                span = interval(operand, slot, no_nan) if operand.column == slot.field else None
                if span is not None:
                    low, high = max(low, span[0]), min(high, span[1])
        if (low, high) != (IMIN, IMAX):
            yield _branches(slot, low, high, known, rules)


def _branches(
    slot: Slot, low: int, high: int, levels: Sequence[Level], rules: Conditions
) -> tuple[float, _Driver]:
    number = slot.slot
    # rows from before the slot was taken are missing here without being counted anywhere
    unknown = Condition(f"f.k{number} = ?", (MISSING,))
    branches = [both((unknown, rules.within(slot, (low, high)))) or unknown]
    expected = float(sum(x.n for x in levels if x.level == MISSING))
    for found in levels:
        if found.level in (MISSING, EMPTY) or low > found.hi or high < found.lo or low > high:
            continue
        # width < 4 ** level, so a maximum further up belongs to a minimum above the interval
        reach = min(IMAX, high + (1 << 2 * found.level))
        branches.append(
            Condition(
                f"f.k{number} = ? AND f.s{number}_max BETWEEN ? AND ? AND f.s{number}_min <= ?",
                (found.level, low, reach, high),
            )
        )
        share = (min(reach, found.hi) - max(low, found.lo)) / max(1, found.hi - found.lo)
        expected += found.n * min(1.0, max(0.0, share))
    return expected, _Driver(f"s{number}", tuple(branches))
