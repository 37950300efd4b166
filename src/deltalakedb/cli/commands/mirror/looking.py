"""``deltasql mirror status`` and ``verify``: how the logs stand to the catalog; nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import common

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.mirror.drift import Difference
    from deltalakedb.transfer.verifying.report import VerifyReport


@click.command("status")
@click.argument("table", required=False)
@click.option("--look", is_flag=True, help="Look into the logs too, for commits that are not in the catalog.")
@common
@click.pass_obj
def status(invocation: Invocation, table: str | None, look: bool) -> int:
    """Show how far each log is behind its table, and why.

    Exit code 5 where a table is frozen, 3 where --look finds commits of others, 75 where commits have waited
    for more than 60 seconds, or a checkpoint or the manifest of a transaction cannot be written.

    \b
    Examples:
      deltasql mirror status
      deltasql mirror status --look
      deltasql mirror status sales.orders --json
    """
    with invocation.open_maybe(table) as (catalog, name):
        found = catalog.mirror.status(name, look=look)
    rows = [s.to_dict() | {"published_at": render.iso(s.published_at)} for s in found]
    invocation.output.result(
        {"catalog": catalog.uri, "tables": rows},
        lambda screen: _view_status(screen, found),
        brief=[f"{s.table} {s.versions_behind}" for s in found if s.versions_behind],
    )
    if any(s.state == "frozen" for s in found):
        return ExitCode.FROZEN
    if any(s.ahead for s in found):
        return ExitCode.DRIFT
    late = any(s.alarm or s.checkpoint_error is not None or s.manifests_missing for s in found)
    return ExitCode.TRY_AGAIN if late else ExitCode.OK


def _view_status(screen: Screen, found: Sequence[MirrorStatus]) -> None:
    if not found:
        screen.line("The catalog holds no tables.")
        return
    headers = ("NAME", "VERSION", "PUBLISHED", "BEHIND", "AHEAD", "SECONDS", "CHECKPOINT", "STATE", "WHY")
    rows = [
        (
            s.table,
            str(s.version),
            str(s.published_version) if s.published_version >= 0 else "-",
            render.count(s.versions_behind),
            "-" if s.ahead is None else render.count(s.ahead),
            f"{s.seconds_behind:.0f}",
            str(s.checkpoint_version) if s.checkpoint_version >= 0 else "-",
            "paused" if s.paused and s.state == "active" else s.state,
            _why(s),
        )
        for s in found
    ]
    screen.table(headers, rows, right=headers[1:7])


def _why(status: MirrorStatus) -> str:
    told = []
    if status.ahead:
        commits = render.many(status.ahead, "commit")
        way = "resolve" if status.versions_behind else "recover"
        told.append(f"the log has {commits} of others: `deltasql mirror {way}`")
    if status.state_reason:
        told.append(status.state_reason)
    elif status.error is not None:
        again = f", next try in {status.retry_in:.0f} s" if status.backing_off else ""
        told.append(f"{status.error} ({render.many(status.attempts, 'attempt')}{again})")
    if status.checkpoint_error is not None:
        tries = render.many(status.checkpoint_attempts, "attempt")
        again = f", next try in {status.checkpoint_retry_in:.0f} s" if status.checkpoint_backing_off else ""
        told.append(f"no checkpoint: {status.checkpoint_error} ({tries}{again})")
    if status.checkpoint_holder is not None:
        ends = f"its lease ends in {status.checkpoint_lease:.0f} s"
        told.append(f"a checkpoint or clean-up is under way by {status.checkpoint_holder}, {ends}")
    if status.manifests_missing:
        lacks = f"no manifest of {render.many(status.manifests_missing, 'transaction')}"
        again = f" (next try in {status.manifest_retry_in:.0f} s)" if status.manifest_retry_in else ""
        told.append(f"{lacks}: {status.manifest_error}{again}")
    if status.alarm:
        told.append("ALARM: behind for more than a minute")
    return "; ".join(told) or "-"


@click.command("verify", short_help="Compare log and catalog at every version.")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option(
    "--no-replay", is_flag=True, help="Compare commit files only: faster, and blind to wrong checkpoints."
)
@common
@click.pass_obj
def verify(invocation: Invocation, tables: tuple[str, ...], no_replay: bool) -> int:
    """Compare log and catalog at every version: bytes, replay, checkpoints. Nothing is changed.

    This is `deltasql verify --level full`, which does not compare checkpoints. Without a table all are
    compared. Exit code 3 for drift, 5 if a foreign commit has the place of one of ours.

    \b
    Examples:
      deltasql mirror verify
      deltasql mirror verify sales.orders --json
    """
    targets = [invocation.table_address(table) for table in tables]
    address, *others = {t.catalog for t in targets} or {invocation.catalog_address()}
    if others:
        raise click.UsageError("the tables lie in several catalogs: compare one at a time")
    with invocation.open_catalog(address) as catalog:
        names = [t.table or "" for t in targets] or [t.name for t in catalog.tables()]
        reports = [catalog.mirror.verify(name, replay=not no_replay) for name in names]
    findings = [f for report in reports for f in report.differences]
    invocation.output.result(
        {"ok": not findings, "tables": [r.to_dict() for r in reports]},
        lambda screen: _view_reports(screen, reports),
        brief=[f"{r.table} {f.version} {f.kind}: {f.detail}" for r in reports for f in r.differences],
    )
    return code_of(findings)


def _view_reports(screen: Screen, reports: Sequence[VerifyReport]) -> None:
    for report in reports:
        versions = render.many(report.versions_checked, "version")
        if report.ok:
            screen.line(f"{report.table}: {versions}, the log is what the catalog says.")
            continue
        found = render.many(report.num_differences, "difference")
        screen.line(f"{report.table}: {versions}, {found}", "bold red")
        view_findings(screen, report.differences)
    if not reports:
        screen.line("The catalog holds no tables.")


def view_findings(screen: Screen, findings: Sequence[Difference]) -> None:
    """Draw what is not as it should be."""
    rows = [(str(f.version), f.kind, f.detail) for f in findings]
    screen.table(("VERSION", "KIND", "DETAIL"), rows, right=("VERSION",))


def code_of(findings: Sequence[Difference]) -> ExitCode:
    """The exit code that findings end a command with."""
    if any(f.kind == "foreign" for f in findings):
        return ExitCode.FROZEN
    return ExitCode.DRIFT if findings else ExitCode.OK
