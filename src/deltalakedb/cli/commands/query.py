"""Commands that show rows: sql and head."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import PAIR, SNAPSHOT, choice, columns_of, command, number, option, table_command

if TYPE_CHECKING:
    from datetime import datetime

    from deltalakedb.catalog import Catalog
    from deltalakedb.cli.context import Invocation

_FORMAT = option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="How rows are shown; default: table, or what the ending of --output says.",
)
_OUTPUT = option("--output", "-o", metavar="FILE", help="Write the rows to a file.")


@command("sql", SNAPSHOT[1:])
@click.argument("query", required=False)
@option(
    "--version",
    "versions",
    type=PAIR,
    metavar="TABLE=N",
    multiple=True,
    help="Read a table at this version; repeatable.",
)
@_FORMAT
@_OUTPUT
@number("--limit", "N", "Show at most N rows.")
@choice(
    "--engine", ["auto", "duckdb", "datafusion"], "auto", "What runs the query; auto: DuckDB if installed."
)
def sql(
    cli: Invocation,
    query: str | None,
    form: str | None,
    output: str | None,
    limit: int | None,
    engine: str,
    versions: tuple[tuple[str, str], ...],
    at: datetime | None,
) -> None:
    """Query data tables by name, and the metadata views (dl_v_tables, dl_v_files, dl_v_history, …).

    Without QUERY it opens a prompt with history and completion; in a pipe it reads the query from the input.
    It only reads: statements that would change something are refused. All tables are read at one moment, or
    as of --at, and single ones at a --version. A table is named as in the catalog: sales.orders, or
    "sales.orders"; "prod:sales.orders" is one of another catalog of the configuration, always in quotes.
    DuckDB can also read files beside them: FROM 'cities.csv'.

    \b
    Examples:
      deltasql sql "SELECT city, count(*) FROM sales.orders GROUP BY city"
      deltasql sql "SELECT * FROM sales.orders WHERE id > 100" --output orders.parquet
      deltasql sql "SELECT name, num_files FROM dl_v_tables" --format csv
      deltasql sql "SELECT count(*) FROM sales.orders" --at 2026-11-15T12:00Z
      deltasql sql "SELECT count(*) FROM sales.orders" --version sales.orders=3
      deltasql sql 'SELECT * FROM sales.orders EXCEPT SELECT * FROM "prod:sales.orders"'
      deltasql sql < report.sql
      deltasql sql
    """
    from deltalakedb.cli.rows import choose_format, limited, show_rows

    chosen = choose_format(cli, form, output)
    asks = query is None and sys.stdin.isatty()
    if asks and output is not None:
        raise click.UsageError("--output needs a QUERY")
    if query is None and not asks:
        query = sys.stdin.read()
    numbers = {table: _version(table, text) for table, text in versions}
    options: dict[str, Any] = {"timestamp": at, "versions": numbers, "engine": engine}
    with cli.open_catalog() as catalog:
        if query is None:
            from deltalakedb.cli.prompt import Prompt

            Prompt(cli, catalog, chosen, options, limit).run()
            return
        count = show_rows(cli, limited(catalog.sql(query, **options), limit), chosen, output)
    if output is not None:
        cli.note(f"Wrote {render.many(count, 'row')} to {output}.")


def _version(table: str, text: str) -> int:
    if not text.isdecimal():
        raise click.UsageError(f"{text!r} is not a version: write --version {table}=3")
    return int(text)


@table_command("head", SNAPSHOT)
@option(
    "-n",
    "--rows",
    "limit",
    metavar="N",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="How many rows.",
)
@option("--columns", metavar="COLUMNS", help="Only these columns, separated by commas.")
@option("--where", metavar="SQL", help="Only rows that meet a condition.")
@_FORMAT
@_OUTPUT
def head(
    cli: Invocation,
    catalog: Catalog,
    name: str,
    version: int | None,
    limit: int,
    columns: str | None,
    where: str | None,
    form: str | None,
    output: str | None,
) -> None:
    """Show some rows of a table; which ones is up to the order of its files.

    \b
    Examples:
      deltasql head sales.orders
      deltasql head sales.orders -n 3 --columns id,city --where "city = 'Rome'"
      deltasql head sales.orders --version 3 --json
    """
    from deltalakedb.cli.rows import choose_format, show_rows

    chosen = choose_format(cli, form, output)
    found = catalog.head(name, limit, version=version, columns=columns_of(columns), where=where)
    count = show_rows(cli, found.to_reader(), chosen, output)
    if output is not None:
        cli.note(f"Wrote {render.many(count, 'row')} to {output}.")
