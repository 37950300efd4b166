"""``deltasql doctor``: a checklist of what may be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode, exit_code
from deltalakedb.cli.options import command
from deltalakedb.doctor import Check, examine
from deltalakedb.settings import use_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}
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
def doctor(invocation: Invocation, tables: tuple[str, ...]) -> int:
    """Check the address, driver, connection, schema, rights and durability, and then each table.

    A table is fine if it is not frozen, and its location and a few of its data files are there. The commits
    since its newest checkpoint must be in _delta_log with their sizes, the newest ones byte for byte. That
    checkpoint must be readable, and _last_checkpoint must name no later one. No commit may have waited for
    more than 60 seconds, and no other writer may have committed there. Nothing is changed;
    `deltasql mirror verify` compares everything.

    \b
    Examples:
      deltasql doctor
      deltasql doctor sales.orders --json
    """
    address, names = invocation.one_catalog(tables)
    with use_config(invocation.settings(create=False, auto_migrate=False)) as config:
        checks = list(examine(address, config, tables=names))
    codes = {_code(check) for check in checks}
    code = next((c for c in _URGENCY if c in codes), ExitCode.OK)
    document = {
        "catalog": address.to_uri(),
        "ok": code == ExitCode.OK,
        "exit_code": int(code),
        "checks": [check.to_dict() for check in checks],
    }
    bad = [c for c in checks if c.status != "ok"]
    invocation.output.result(
        document,
        lambda screen: _view(screen, address.to_uri(), checks),
        brief=[f"{c.status}: {c.title}: {c.detail}" for c in bad],
    )
    return code


def _code(check: Check) -> ExitCode:
    if check.status != "failed":
        return ExitCode.OK
    return _FINDINGS[check.finding] if check.error is None else exit_code(check.error)


def _view(screen: Screen, address: str, checks: Sequence[Check]) -> None:
    screen.line(address, "bold")
    table = None
    for check in checks:
        if check.table != table:
            table = check.table
            screen.line(f"table {table}", "bold")
        mark, style = _MARKS[check.status]
        screen.line(f"  {mark} {check.title}: {check.detail}", style if check.status != "ok" else None)
        if check.suggestion:
            screen.line(f"      → {check.suggestion}")
    failed = sum(c.status == "failed" for c in checks)
    warned = sum(c.status == "warning" for c in checks)
    if failed or warned:
        screen.line(f"{render.many(failed, 'failure')}, {render.many(warned, 'warning')}", "bold")
    else:
        screen.line("Everything is fine.", "bold green")
