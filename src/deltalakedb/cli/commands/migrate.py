"""``deltasql migrate``: create or upgrade the catalog's own tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.cli import render
from deltalakedb.cli.options import changing, command
from deltalakedb.exceptions import CatalogNotFoundError
from deltalakedb.metastore import migrations
from deltalakedb.metastore.database import Database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.metastore.migrations import Migration


@command("migrate", changing)
def migrate(invocation: Invocation, dry_run: bool) -> None:
    """Create the catalog's tables, or bring them up to date. The owner's command.

    It works if catalog.create and catalog.auto_migrate are off: those settings keep other users of the
    database from doing this by accident.

    \b
    Examples:
      deltasql migrate --dry-run
      deltasql migrate --catalog deltasql://postgres/owner@db.example.com/lake/meta
    """
    address = invocation.catalog_address()
    settings = invocation.settings(create=not dry_run, auto_migrate=True)
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
    target = migrations.migrations()[-1].number

    def view(screen: Screen) -> None:
        if not steps:
            screen.line(f"{address.to_uri()} is up to date: schema version {target}.")
            return
        verb = "would be applied to" if dry_run else "applied to"
        screen.line(f"{render.many(len(steps), 'migration')} {verb} {address.to_uri()}:")
        screen.table(("NUMBER", "TITLE"), [(str(s.number), s.title) for s in steps], right=("NUMBER",))

    document = {
        "catalog": address.to_uri(),
        "dry_run": dry_run,
        "schema_version": steps[0].number - 1 if dry_run and steps else target,
        "target_version": target,
        "migrations": [{"number": s.number, "title": s.title} for s in steps],
    }
    invocation.output.result(document, view)
