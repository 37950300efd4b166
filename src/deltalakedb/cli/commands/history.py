"""``deltasql history``: what was committed, when, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import common
from deltalakedb.metastore import commits
from deltalakedb.protocol.codec import decode_json

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.values import Table


@click.command("history")
@click.argument("table")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=0), help="Show at most so many, the newest first."
)
@common
@click.pass_obj
def command(invocation: Invocation, table: str, limit: int | None) -> None:
    """Show a table's commits, the newest first.

    \b
    Examples:
      deltasql history sales.orders --limit 10
      deltasql history sales.orders --json
    """
    with invocation.open_table(table) as (catalog, name):
        row = catalog.describe(name)
        found = commits.history(catalog.log(name).database, row, limit=limit)
    shown = [_commit(c, row) for c in found]
    invocation.output.result(
        {"table": name, "commits": shown},
        lambda screen: _view(screen, shown),
        brief=[str(c.version) for c in found],
    )


def _commit(commit: CommitRow, table: Table) -> dict[str, Any]:
    return {
        "version": commit.version,
        "committed_at": render.iso(commit.timestamp),
        "operation": commit.operation,
        "files_added": commit.num_added,
        "files_removed": commit.num_removed,
        "actor": commit.actor,
        "origin": commit.origin,
        "published": commit.version <= table.published_version,
        "transaction": commit.txn_uuid,
        "info": None if commit.info is None else decode_json(commit.info),
    }


def _view(screen: Screen, commits: list[dict[str, Any]]) -> None:
    rows = [
        (
            str(c["version"]),
            c["committed_at"],
            c["operation"] or "-",
            f"+{c['files_added']} -{c['files_removed']}",
            c["actor"] or "-",
            "yes" if c["published"] else "waiting",
        )
        for c in commits
    ]
    headers = ("VERSION", "COMMITTED", "OPERATION", "FILES", "BY", "PUBLISHED")
    screen.table(headers, rows, right=headers[:1])
