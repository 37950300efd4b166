"""``deltasql import-all``: take over every Delta table below a place, or those of a list."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode, exit_code
from deltalakedb.cli.options import changing, common, importing
from deltalakedb.config import use_config
from deltalakedb.transfer.importing.many import import_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.transfer.importing.engines import EngineName
    from deltalakedb.transfer.importing.many import ManyReport, TableOutcome
    from deltalakedb.transfer.importing.options import History
    from deltalakedb.transfer.verifying.report import Level


@click.command("import-all")
@click.argument("root", required=False)
@click.option(
    "--list",
    "list_file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A file of lines NAME PATH instead of a place to search; - reads them from the input.",
)
@click.option("--namespace", metavar="NAME", help="Put before the names of tables that are found.")
@importing
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="Tables at a time.")
@click.option("--no-catch-up", is_flag=True, help="Leave tables that were imported before as they are.")
@changing
@common
@click.pass_obj
def command(
    invocation: Invocation,
    root: str | None,
    list_file: str | None,
    namespace: str | None,
    history: str,
    verify: str,
    batch_size: int | None,
    rate: int | None,
    parallel: int | None,
    no_catch_up: bool,
    engine: str,
    master: str | None,
    remote: str | None,
    dry_run: bool,
) -> int:
    """Take over every Delta table below ROOT, a folder or a bucket's prefix.

    A table's name is its path below ROOT with dots for slashes; one that the catalog has already keeps its
    own. One that fails, also for its name, leaves the others alone. Run it again to go on with what is left:
    finished tables only bring in their new commits. Exit code 0 where all went well, else that of the first
    failure.

    \b
    Examples:
      deltasql import-all /srv/lake --dry-run
      deltasql import-all /srv/lake --namespace raw --parallel 4
      deltasql import-all --list tables.txt --json
    """
    if (root is None) == (list_file is None):
        raise click.UsageError("give ROOT or --list FILE, one of them")
    source = root if root is not None else _read_list(list_file or "-")
    address = invocation.catalog_address()
    with (
        use_config(invocation.settings()),
        invocation.output.progress("importing tables") as advance,
    ):

        def tell(done: int, total: int, outcome: TableOutcome) -> None:
            advance(done, total)
            if outcome.error is not None:
                invocation.output.note(f"{outcome.table} failed: {outcome.error.message}")
                if outcome.error.suggestion:
                    invocation.output.note(f"  → {outcome.error.suggestion}")

        report = import_tables(
            source,
            address.to_uri(redact=False),
            namespace=namespace,
            history=cast("History", history),
            verify=cast("Level", verify),
            catch_up=not no_catch_up,
            parallel=parallel,
            batch_size=batch_size,
            rate_limit=rate,
            dry_run=dry_run,
            engine=cast("EngineName", engine),
            master=master,
            remote=remote,
            progress=tell,
        )
    document = {**report.to_dict(), "catalog": address.to_uri(), "dry_run": dry_run}
    invocation.output.result(
        document,
        lambda screen: _view(screen, report),
        brief=[f"{t.table} {t.outcome}" for t in report.tables],
    )
    failed = next((t.error for t in report.failed if t.error is not None), None)
    return ExitCode.OK if failed is None else exit_code(failed)


def _read_list(name: str) -> Mapping[str, str]:
    try:
        # what editors put before a text is no part of a name
        text = (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the list is not UTF-8: {error.reason} at byte {error.start}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise click.UsageError(f"line {number} of the list is not of the form NAME PATH: {line!r}")
        if words[0] in found:
            raise click.UsageError(f"line {number} of the list names {words[0]} again")
        found[words[0]] = words[1].strip()
    return found


def _view(screen: Screen, report: ManyReport) -> None:
    if not report.tables:
        screen.line("No Delta tables were found.")
        return
    rows = []
    for table in report.tables:
        shown = table.report or table.plan
        rows.append(
            (
                table.table,
                table.outcome,
                "-" if shown is None else str(shown.version),
                "-" if shown is None else render.count(shown.num_files),
                table.location if table.error is None else table.error.message,
            )
        )
    headers = ("NAME", "OUTCOME", "VERSION", "FILES", "LOCATION")
    screen.table(headers, rows, right=headers[2:4])
    failed = f", {len(report.failed)} failed" if report.failed else ""
    screen.line(f"{render.many(len(report.tables), 'table')}{failed}, {report.seconds:g} s.")
