"""Commands about the catalog itself: doctor and migrate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import CHANGING, command
from deltalakedb.cli.output import ExitCode, Item, Rows, exit_code
from deltalakedb.exceptions import CatalogNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.cli.context import Invocation
    from deltalakedb.doctor import Check
    from deltalakedb.metastore.migrations import Migration

_MARKS = {"ok": ("✓", ""), "warning": ("!", "yellow"), "failed": ("✗", "red")}
#: the most urgent first: what needs a person's decision goes before what may pass by itself
_URGENCY = (ExitCode.USAGE, ExitCode.ERROR, ExitCode.FROZEN, ExitCode.DRIFT, ExitCode.TRY_AGAIN)
_FINDINGS = {
    "drift": ExitCode.DRIFT,
    "diverged": ExitCode.FROZEN,
    "frozen": ExitCode.FROZEN,
    "late": ExitCode.TRY_AGAIN,
}


@command("doctor")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
def doctor(cli: Invocation, tables: tuple[str, ...]) -> int:
    """Check the address, driver, connection, schema, rights and durability, and then each table.

    A table is fine if it is not frozen, and its location and a few of its data files exist. The commits
    since its newest checkpoint must be in _delta_log with their sizes, the newest ones byte for byte. That
    checkpoint must be readable, and _last_checkpoint must name no later one. No commit may have waited for
    more than 60 seconds, and no other writer may have committed there. Nothing is changed;
    `deltasql mirror verify` compares everything.

    \b
    Examples:
      deltasql doctor
      deltasql doctor sales.orders --json
    """
    from deltalakedb.doctor import examine
    from deltalakedb.settings import use_config

    address, names = cli.one_catalog(tables)
    with use_config(cli.settings(create=False, auto_migrate=False)) as config:
        checks = list(examine(address, config, tables=names))
    failed = [c for c in checks if c.status == "failed"]
    codes = {_FINDINGS[c.finding] if c.error is None else exit_code(c.error) for c in failed}
    code = next((c for c in _URGENCY if c in codes), ExitCode.OK)
    document = {"catalog": address.to_uri(), "ok": code == ExitCode.OK, "exit_code": code, "checks": checks}
    brief = [f"{c.status}: {c.title}: {c.detail}" for c in checks if c.status != "ok"]
    cli.show(document, _view_checks(address.to_uri(), checks), brief)
    return code


def _view_checks(address: str, checks: Sequence[Check]) -> Iterator[Item]:
    yield address, "bold"
    table = None
    for check in checks:
        if check.table != table:
            table = check.table
            yield f"table {table}", "bold"
        mark, style = _MARKS[check.status]
        yield f"  {mark} {check.title}: {check.detail}", style
        if check.suggestion:
            yield f"      → {check.suggestion}"
    failed, warned = (sum(c.status == status for c in checks) for status in ("failed", "warning"))
    if failed or warned:
        yield f"{render.many(failed, 'failure')}, {render.many(warned, 'warning')}", "bold"
    else:
        yield "Everything is fine.", "bold green"


@command("migrate", CHANGING)
def migrate(cli: Invocation, dry_run: bool) -> None:
    """Create the catalog's tables, or bring them up to date.

    This works even if catalog.create and catalog.auto_migrate are off: those settings keep other users of the
    database from doing it by accident.

    \b
    Examples:
      deltasql migrate --dry-run
      deltasql migrate --catalog deltasql://postgres/owner@db.example.com/lake/meta
    """
    from deltalakedb.metastore import migrations
    from deltalakedb.metastore.database import Database

    address = cli.catalog_address()
    settings = cli.settings(create=not dry_run, auto_migrate=True)
    steps: Sequence[Migration]
    with Database.open(address, settings) as database:
        try:
            steps = migrations.pending(database.engine)
        except CatalogNotFoundError:
            if not dry_run:
                raise
            steps = migrations.migrations()
        if not dry_run:
            steps = migrations.migrate(database.engine)
    target, uri = migrations.migrations()[-1].number, address.to_uri()
    document = {
        "catalog": uri,
        "dry_run": dry_run,
        "schema_version": steps[0].number - 1 if dry_run and steps else target,
        "target_version": target,
        "migrations": [{"number": s.number, "title": s.title} for s in steps],
    }
    applied = f"{render.many(len(steps), 'migration')} {'would be ' if dry_run else ''}applied to {uri}:"
    table = Rows("NUMBER>|TITLE", [(s.number, s.title) for s in steps])
    cli.show(document, [applied, table] if steps else f"{uri} is up to date: schema version {target}.")
