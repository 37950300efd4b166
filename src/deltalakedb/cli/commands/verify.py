"""``deltasql verify``: compare tables with their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import common, engines
from deltalakedb.transfer.verifying.report import LEVELS
from deltalakedb.transfer.verifying.verifier import verify_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.transfer.verifying.report import Level, VerifyReport


@click.command("verify")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option(
    "--level", type=click.Choice(LEVELS), default="digest", show_default=True, help="How thorough to be."
)
@engines
@common
@click.pass_obj
def command(
    invocation: Invocation,
    tables: tuple[str, ...],
    level: str,
    engine: str,
    master: str | None,
    remote: str | None,
) -> int:
    """Compare tables with their logs, at the newest published version. Nothing is changed.

    Levels: commits (the bytes of every commit file), counts (files, bytes, metadata), digest (every live
    file), full (every field at every version, and the bytes of every commit), data (full, and the rows,
    through the catalog and by stock deltalake). Without a table all are compared. Exit code 3 if a difference
    is found. With --engine spark a Spark job makes the log's digest, and delta-spark reads the plain table's
    rows; what differs is compared here.

    \b
    Examples:
      deltasql verify
      deltasql verify sales.orders --level full
      deltasql verify --level counts --quiet || mail -s drift ops@example.com
    """
    targets = [invocation.table_address(table) for table in tables]
    address, *others = {t.catalog for t in targets} or {invocation.catalog_address()}
    if others:
        raise click.UsageError("the tables lie in several catalogs: compare one at a time")
    with invocation.open_catalog(address) as catalog:
        names = [t.table or "" for t in targets] or [t.name for t in catalog.tables()]
        who: dict[str, Any] = {"engine": engine, "master": master, "remote": remote}
        reports = [verify_table(catalog.table_uri(name), cast("Level", level), **who) for name in names]
    invocation.output.result(
        {"ok": all(r.ok for r in reports), "level": level, "tables": [r.to_dict() for r in reports]},
        lambda screen: _view(screen, reports),
        brief=[f"{r.table} {r.num_differences}" for r in reports if not r.ok],
    )
    return ExitCode.OK if all(r.ok for r in reports) else ExitCode.DRIFT


def _view(screen: Screen, reports: Sequence[VerifyReport]) -> None:
    if not reports:
        screen.line("The catalog holds no tables.")
    for report in reports:
        what = f"{report.table}, version {report.version}, {render.many(report.num_files, 'file')}"
        if report.ok:
            more = (
                f", {render.many(report.versions_checked, 'version')}" if report.versions_checked > 1 else ""
            )
            rows = f", {render.many(report.rows_checked, 'row')}" if report.rows_checked else ""
            screen.line(f"{what}{more}{rows}: the catalog holds what the log says ({report.level}).")
            continue
        screen.line(f"{what}: {render.many(report.num_differences, 'difference')}", "bold red")
        rows_ = [(str(d.version), d.kind, d.path or "-", d.detail) for d in report.differences]
        screen.table(("VERSION", "KIND", "PATH", "DETAIL"), rows_, right=("VERSION",))
        if report.num_differences > len(report.differences):
            screen.line(f"and {render.count(report.num_differences - len(report.differences))} more")
