"""Commands about the catalog itself: doctor, init and migrate."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import PREVIEWING, command, option
from deltalakedb.cli.output import ExitCode, Item, Rows, exit_code
from deltalakedb.exceptions import CatalogNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.address import Address
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


@command("init")
@click.argument("address", required=False)
@option("--root", metavar="DIR", help="The folder or URL of new tables that are created without a location.")
def init(cli: Invocation, address: str | None, root: str | None) -> None:
    """Create a catalog, unless there is one.

    ADDRESS is the catalog's address; without it, the catalog is that of --catalog, DELTASQL_CATALOG or the
    configuration file. A database file and the folder above it are created if they are missing; a Postgres
    database must exist. This works even if catalog.create is off: that setting keeps other users of the
    database from doing it by accident. An existing catalog is left as it is, except for --root.

    \b
    Examples:
      deltasql init deltasql://sqlite//srv/lake/meta.db --root /srv/lake
      deltasql init deltasql://postgres/owner@db.example.com/lake/meta
    """
    from deltalakedb.catalog import Catalog

    if address is not None:
        if cli.catalog is not None:
            raise click.UsageError("give ADDRESS or --catalog, one of them")
        cli.catalog = address
    found = cli.catalog_address().absolute()
    made = _version_of(cli, found) == 0
    with Catalog(found, config=cli.settings(create=True), create=True) as catalog:
        if root is not None:
            catalog.set_root(root)
        uri, place, tables = catalog.uri, catalog.root, len(catalog.tables())
    begin = f"Created a catalog at {uri}." if made else f"There is a catalog at {uri}: nothing to create."
    holds = "" if made else f"It has {render.many(tables, 'table')}."
    where = "" if place else " --location DIR"
    steps = [
        *([] if cli.is_default(found) else [f"  export DELTASQL_CATALOG={shlex.quote(uri)}"]),
        "  deltasql list" if tables else f"  deltasql write NAME FILE.csv{where}",
    ]
    view: list[Item] = [" ".join(filter(None, (begin, holds)))]
    if place:
        view.append(f"New tables are created below {place}.")
    cli.show({"catalog": uri, "created": made, "root": place}, [*view, "Next:", *steps], [uri])


def _version_of(cli: Invocation, address: Address) -> int:
    """The schema version of a catalog; 0 if there is none."""
    from deltalakedb.metastore import migrations
    from deltalakedb.metastore.database import Database

    with Database.open(address, cli.settings(create=False, auto_migrate=False)) as database:
        try:
            steps = migrations.pending(database.engine)
        except CatalogNotFoundError:
            return 0
    return len(migrations.migrations()) - len(steps)


@command("migrate", PREVIEWING)
def migrate(cli: Invocation, dry_run: bool) -> None:
    """Upgrade the tables of an existing catalog to the schema of this version of deltalakedb.

    `deltasql init` creates a catalog. This works even if catalog.auto_migrate is off: that setting keeps
    other users of the database from doing it by accident.

    \b
    Examples:
      deltasql migrate --dry-run
      deltasql migrate --catalog deltasql://postgres/owner@db.example.com/lake/meta
    """
    from deltalakedb.metastore import migrations
    from deltalakedb.metastore.database import Database

    address = cli.catalog_address().absolute()
    version, target, uri = _version_of(cli, address), migrations.migrations()[-1].number, address.to_uri()
    if version == 0:
        raise CatalogNotFoundError(
            f"there is no catalog at {uri} to upgrade",
            suggestion=f"check the address, or create it with `deltasql init '{uri}'`",
        )
    steps: Sequence[Migration] = migrations.migrations()[version:]
    if steps and not dry_run:
        with Database.open(address, cli.settings(create=False, auto_migrate=True)) as database:
            steps = migrations.migrate(database.engine)
    document = {
        "catalog": uri,
        "dry_run": dry_run,
        "schema_version": version if dry_run else target,
        "target_version": target,
        "migrations": [{"number": s.number, "title": s.title} for s in steps],
    }
    applied = f"{render.many(len(steps), 'migration')} {'would be ' if dry_run else ''}applied to {uri}:"
    table = Rows("NUMBER>|TITLE", [(s.number, s.title) for s in steps])
    cli.show(document, [applied, table] if steps else f"{uri} is up to date: schema version {target}.")
