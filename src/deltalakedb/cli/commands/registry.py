"""Commands for what only the catalog stores about tables: names, tags, comments, namespaces and locations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from deltalakedb.address import is_deltasql
from deltalakedb.cli import render
from deltalakedb.cli.context import Invocation, is_location
from deltalakedb.cli.options import CHANGING, PAIR, command, common, flag, option, table_command
from deltalakedb.cli.output import Item, Rows
from deltalakedb.exceptions import TableMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.catalog import Catalog
    from deltalakedb.transfer.reports import RelocationReport


@table_command("rename")
@click.argument("new_name")
def rename(cli: Invocation, catalog: Catalog, name: str, new_name: str) -> None:
    """Rename a table in the catalog. Its location, files and history stay.

    NEW_NAME may be in another namespace. Readers and writers that have the table open by its old name get an
    error when they use it next.

    \b
    Examples:
      deltasql rename sales.orders sales.orders_2025
      deltasql rename staging.orders sales.orders --json
    """
    table = catalog.rename_table(name, new_name)
    document = {"table": table.name, "old_name": name, "location": table.location}
    cli.show(document, f"Renamed {name} to {table.name}; its files stay at {table.location}.", [table.name])


@table_command("tag")
@click.argument("tags", metavar="[KEY=VALUE]...", nargs=-1, type=PAIR)
@option("--remove", metavar="KEY", multiple=True, help="Remove a tag; repeatable.")
def tag(
    cli: Invocation, catalog: Catalog, name: str, tags: tuple[tuple[str, str], ...], remove: tuple[str, ...]
) -> None:
    """Show, set or remove the tags of a table in the catalog. Other tags stay as they are.

    \b
    Examples:
      deltasql tag sales.orders
      deltasql tag sales.orders team=web tier=gold
      deltasql tag sales.orders --remove tier
    """
    before = dict(catalog.describe(name).tags)
    if both := {key for key, _ in tags} & {*remove}:
        raise click.UsageError(f"the tag {min(both)} is both set and removed: leave one out")
    if missing := {*remove} - before.keys():
        has = f"it has {', '.join(sorted(before))}" if before else "it has no tags"
        raise click.UsageError(f"{name} has no tag {min(missing)}: {has}")
    now = before
    if tags or remove:
        now = catalog.update_tags(name, {**dict(tags), **dict.fromkeys(remove)})
    shown = dict(sorted(now.items()))
    view: list[Item] = [f"{name}:", shown] if now else [f"{name} has no tags."]
    cli.show({"table": name, "tags": now}, view, [f"{key}={value}" for key, value in shown.items()])


def _check_comment(*, text: str | None, remove: bool, **_: object) -> None:
    if remove and text is not None:
        raise click.UsageError("give TEXT or --remove, not both")


@table_command("comment", check=_check_comment)
@click.argument("text", required=False)
@flag("--remove", "Remove the comment.")
def comment(cli: Invocation, catalog: Catalog, name: str, text: str | None, remove: bool) -> None:
    """Show, set or remove the comment of a table in the catalog.

    `deltasql alter --description` sets the description in the table's own metadata, which every reader of the
    table sees.

    \b
    Examples:
      deltasql comment sales.orders
      deltasql comment sales.orders 'Orders of the web shop, one row each'
      deltasql comment sales.orders --remove
    """
    if text is not None or remove:
        catalog.set_comment(name, text)
    now = catalog.describe(name).comment
    cli.show(
        {"table": name, "comment": now},
        f"{name} has no comment." if now is None else f"{name}: {now}",
        [] if now is None else [now],
    )


@click.group("namespace")
@common
def namespace() -> None:
    """List, create and drop namespaces: the part of a table's name before its last dot.

    A table may be in a namespace that was never created; creating one gives it a comment, and keeps it
    visible while it is empty.

    \b
    Examples:
      deltasql namespace list
      deltasql namespace create sales --comment 'What the shop sells'
      deltasql namespace drop sales
    """


in_group = partial(command, group=namespace)


@in_group("list")
def list_namespaces(cli: Invocation) -> None:
    """List namespaces: those that were created, and those in the names of tables.

    \b
    Examples:
      deltasql namespace list
      deltasql namespace list --json
    """
    with cli.open_catalog() as catalog:
        names = [table.namespace for table in catalog.tables()]
        found = [
            {
                "name": n.name,
                "tables": sum(name == n.name for name in names),
                "comment": n.comment,
                "properties": dict(n.properties),
                "created_at": render.iso(n.created_at),
            }
            for n in catalog.namespaces()
        ]
    rows = [(n["name"], n["tables"], n["comment"]) for n in found]
    view: list[Item] = [Rows("NAME|TABLES>|COMMENT", rows)] if rows else ["The catalog has no namespaces."]
    cli.show({"catalog": catalog.uri, "namespaces": found}, view, [str(n["name"]) for n in found])


@in_group("create")
@click.argument("name")
@option("--comment", help="What the namespace is for.")
@option("--property", "properties", type=PAIR, multiple=True, help="A property of your own; repeatable.")
def create_namespace(
    cli: Invocation, name: str, comment: str | None, properties: tuple[tuple[str, str], ...]
) -> None:
    """Create a namespace.

    \b
    Examples:
      deltasql namespace create sales
      deltasql namespace create sales.eu --comment 'Sales in Europe' --property owner=ada
    """
    with cli.open_catalog() as catalog:
        made = catalog.create_namespace(name, comment=comment, properties=dict(properties))
    document = {"namespace": made.name, "comment": made.comment, "properties": dict(made.properties)}
    cli.show(document, f"Created the namespace {made.name}.", [made.name])


@in_group("drop", CHANGING)
@click.argument("name")
def drop_namespace(cli: Invocation, name: str, dry_run: bool) -> None:
    """Drop a namespace that has no tables.

    \b
    Examples:
      deltasql namespace drop sales
      deltasql namespace drop sales --yes --json
    """
    with cli.open_catalog() as catalog:
        catalog.drop_namespace(name, dry_run=True)
        if not dry_run:
            cli.confirm(f"Drop the namespace {name}?")
            catalog.drop_namespace(name)
    verb = "Would drop" if dry_run else "Dropped"
    document = {"namespace": name, "dropped": not dry_run, "dry_run": dry_run}
    cli.show(document, f"{verb} the namespace {name}.")


@command("relocate", CHANGING)
@click.argument("table", metavar="TABLE|OLD")
@click.argument("new")
def relocate(cli: Invocation, table: str, new: str, dry_run: bool) -> None:
    """Change the location of a table that was moved, or of all tables below a folder or URL that was moved.

    Move the files first, with no writers running; this changes only the catalog. TABLE is a table's name or
    address, and NEW its new folder or URL. OLD is a folder or URL: every table at or below it gets the
    same path below NEW, and so does the catalog's root; if one table cannot, none does. Exit code 3 if NEW
    has another table's log, an older copy, or not all files.

    \b
    Examples:
      deltasql relocate sales.orders /srv/lake2/orders --dry-run
      deltasql relocate sales.orders s3://bucket/orders --yes
      deltasql relocate /srv/lake /mnt/lake --dry-run
      deltasql relocate s3://old-bucket/lake s3://new-bucket/lake --yes
    """
    many = is_location(table) and not is_deltasql(table)
    with cli.open_tables([] if many else [table]) as (catalog, names):
        if many:
            run = partial(catalog.relocate_tables, table, new)
        else:
            run = partial(catalog.relocate_table, names[0], new)
        try:
            found = run(dry_run=True)
        except TableMissingError as error:
            hint = f"{error.suggestion}; to move all tables below a folder, write it as ./{table}"
            raise TableMissingError(error.message, table=table, suggestion=hint) from error
        if not dry_run:
            tables = render.many(len(found.tables), "table")
            cli.confirm(f"Change the location of {tables}? No file is touched.")
            found = run()
    cli.show(found, _view_relocation(found), [t.table for t in found.tables])


def _view_relocation(found: RelocationReport) -> Iterator[Item]:
    verb = "Would change" if found.dry_run else "Changed"
    yield f"{verb} the location of {render.many(len(found.tables), 'table')}:"
    rows = [(t.table, t.version, t.old_location, t.location) for t in found.tables]
    yield Rows("NAME|VERSION>|FROM|TO", rows)
    if found.root:
        yield f"New tables {'would be' if found.dry_run else 'are'} created below {found.root}."
