"""Commands that examine tables: stats, diff and watch."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.context import stop_on_signal
from deltalakedb.cli.options import (
    SNAPSHOT,
    VERSION_OR_TIME,
    command,
    flag,
    interval,
    number,
    option,
    table_argument,
    table_command,
)
from deltalakedb.cli.output import DataRows, Item, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from deltalakedb.catalog import Catalog
    from deltalakedb.cli.context import Invocation
    from deltalakedb.metastore.commits import TableCommit
    from deltalakedb.table.diff import TableDiff, ValueDiff
    from deltalakedb.table.statistics import TableStats

_MARKS = {"added": "+", "removed": "-", "changed": "~"}


@table_command("stats", SNAPSHOT)
def stats(cli: Invocation, catalog: Catalog, name: str, version: int | None) -> None:
    """Show the sizes, partitions and pruning of a table's files, and which command would help.

    READS is the share of the files that a query for one value of a column reads, estimated from their
    statistics: 1% prunes well, 100% not at all. No file is opened.

    \b
    Examples:
      deltasql stats sales.orders
      deltasql stats sales.orders --json
    """
    found = catalog.stats(name, version=version)
    cli.show(found, _view_stats(found), [advice.command for advice in found.advice])


def _view_stats(found: TableStats) -> Iterator[Item]:
    yield f"{found.table} (version {found.version})", "bold"
    if found.smallest is None or found.median is None or found.largest is None:
        yield "The table has no files."
        return
    merging = (
        f"; {found.mergeable_files:,} of them can become {found.merged_files:,}" if found.merged_files else ""
    )
    yield {
        "files": render.count(found.num_files),
        "size": render.size(found.size_bytes),
        "rows": "unknown (some files have no row count)"
        if found.num_records is None
        else render.count(found.num_records),
        "file sizes": f"{render.size(found.smallest)} to {render.size(found.largest)}, "
        f"median {render.size(found.median)}, target {render.size(found.target_size)}",
        "small files": f"{found.small_files:,}{merging}",
        "partitions": render.count(found.num_partitions) if found.num_partitions else None,
    }
    if found.partitions:
        rows: list[tuple[object, ...]] = [
            (
                ", ".join(f"{k}={'null' if v is None else v}" for k, v in p.values.items()),
                render.count(p.num_files),
                render.size(p.size_bytes),
            )
            for p in found.partitions
        ]
        yield ""
        yield Rows("LARGEST PARTITIONS|FILES>|SIZE>", rows)
    if found.pruning:
        rows = [
            (
                p.column + (" (partition)" if p.is_partition else ""),
                "-" if p.share is None else f"{p.share:.2%}" if p.share < 0.1 else f"{p.share:.0%}",
                render.count(p.without_bounds) if p.without_bounds else None,
            )
            for p in found.pruning
        ]
        yield ""
        yield Rows("COLUMN|READS>|FILES WITHOUT BOUNDS>", rows)
    for advice in found.advice:
        yield ""
        yield f"{advice.reason}:"
        yield f"  → {advice.command}", "yellow"


@command("diff")
@table_argument("table")
@table_argument("other", metavar="[OTHER]", required=False)
@option(
    "--from",
    type=VERSION_OR_TIME,
    help="The version to start from, or a time; default: the one before --to, or the newest with OTHER.",
)
@option("--to", type=VERSION_OR_TIME, help="The version to compare with, or a time; default: the newest.")
@flag("--rows", "Also compare the rows of files that differ; they are read into memory.")
@number("--limit", "N", "Show at most N rows or files.", default=20, show_default=True)
def diff(
    cli: Invocation, table: str, other: str | None, rows: bool, limit: int, **sides: int | datetime | None
) -> None:
    """Show what differs between two versions of a table, or between two tables.

    Schema, properties and files are compared; with --rows also the rows. With two tables, --from is a
    version or time of the first and --to one of the second. A time is in ISO 8601, UTC unless it has a zone.

    \b
    Examples:
      deltasql diff sales.orders
      deltasql diff sales.orders --from 3 --to 7 --rows
      deltasql diff sales.orders --from 2026-11-14 --to 2026-11-15T12:00Z
      deltasql diff sales.orders staging.orders --rows --json
    """
    with cli.open_tables([table] if other is None else [table, other]) as (catalog, names):
        first = cli.version_of(catalog, names[0], sides["from"])
        last = cli.version_of(catalog, names[-1], sides["to"])
        found = catalog.diff(*names, from_version=first, to_version=last, rows=rows, limit=limit)
    cli.show(lambda: _diff_document(found), _view_diff(found, limit), [f.path for f in found.files])


def _diff_document(found: TableDiff) -> dict[str, Any]:
    from deltalakedb.cli.rows import plain_value

    return {key: plain_value(value) for key, value in found.to_dict().items()}


def _view_diff(found: TableDiff, limit: int) -> Iterator[Item]:
    (old, before), (new, after) = found.before, found.after
    yield f"{old} (version {before}) → {new} (version {after})", "bold"
    if found.equal and not found.files:
        yield "Nothing differs."
        return
    for title, some in (("Columns", found.columns), ("Properties", found.properties)):
        if some:
            yield f"{title}:"
            yield from (_line(change) for change in some)
    if found.files:
        counts = {kind: [f for f in found.files if f.change == kind] for kind in ("added", "removed")}
        parts = [
            f"{len(some):,} {kind} ({render.size(sum(f.size for f in some))})"
            for kind, some in counts.items()
            if some
        ]
        yield f"Files: {', '.join(parts)}, {found.unchanged_files:,} unchanged"
        for file in found.files[:limit]:
            rows = "" if file.num_records is None else f", {render.many(file.num_records, 'row')}"
            yield f"  {_MARKS[file.change]} {file.path} ({render.size(file.size)}{rows})"
        if len(found.files) > limit:
            yield f"  and {len(found.files) - limit:,} more", "dim"
    if found.rows is not None:
        yield from _view_rows(found)


def _line(change: ValueDiff) -> str:
    what = {"added": change.after, "removed": change.before}.get(
        change.change, f"{change.before} → {change.after}"
    )
    return f"  {_MARKS[change.change]} {change.name}: {what}"


def _view_rows(found: TableDiff) -> Iterator[Item]:
    from deltalakedb.cli.rows import cell_text

    yield f"Rows: {found.rows_added or 0:,} added, {found.rows_removed or 0:,} removed"
    if not found.rows:
        return
    names = list(dict.fromkeys(name for row in found.rows for name in row.row))
    rows = (
        (_MARKS[r.change], r.count, *(cell_text(r.row[n]) if n in r.row else None for n in names))
        for r in found.rows
    )
    yield DataRows([("", False), ("TIMES", True), *((name, False) for name in names)], rows)
    left = (found.rows_added or 0) + (found.rows_removed or 0) - sum(r.count for r in found.rows)
    if left:
        yield f"and {left:,} more", "dim"


@command("watch")
@table_argument("tables", metavar="[TABLE]...", nargs=-1)
@interval(1.0, "Seconds between two checks of the catalog.")
@flag("--once", "Check once, then exit.")
@option(
    "--from",
    "from_version",
    metavar="VERSION",
    type=click.IntRange(0),
    help="Start at this version of each table; by default at the next commit.",
)
def watch(
    cli: Invocation, tables: tuple[str, ...], interval: float, once: bool, from_version: int | None
) -> None:
    """Show commits to the given tables, or to all, as they arrive. Ctrl-C stops it.

    With --json each commit is one JSON document on a line of its own.

    \b
    Examples:
      deltasql watch
      deltasql watch sales.orders --from 0 --once
      deltasql watch --json --interval 5 | while read -r commit; do ./notify "$commit"; done
    """
    with cli.open_tables(tables) as (catalog, names), stop_on_signal() as stop:
        if not once:
            cli.note(f"Watching {', '.join(names) or 'all tables'}; Ctrl-C stops it.")
        for found in catalog.watch(
            *names, from_version=from_version, interval=interval, once=once, stop=stop
        ):
            _show_commit(cli, found)
            if stop.is_set():
                return


def _show_commit(cli: Invocation, found: TableCommit) -> None:
    name, commit = found
    when = render.iso(commit.committed_at)
    if cli.json:
        document = {"table": name, **commit.to_dict(), "committed_at": when}
        click.echo(json.dumps(document, ensure_ascii=False))
    elif cli.quiet:
        click.echo(f"{name} {commit.version}")
    else:
        changes = f"+{commit.num_added} -{commit.num_removed} files"
        by = f" by {commit.actor}" if commit.actor else ""
        click.echo(
            render.clean(
                f"{when}  {name}  version {commit.version}  {commit.operation or '-'}  {changes}{by}"
            )
        )
    # a reader of the pipe gets each commit as it arrives
    sys.stdout.flush()
