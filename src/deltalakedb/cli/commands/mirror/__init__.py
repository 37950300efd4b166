"""``deltasql mirror``: how tables reach their _delta_log, and what to do when they do not."""

from __future__ import annotations

import click

from deltalakedb.cli.commands.mirror.looking import status, verify
from deltalakedb.cli.commands.mirror.mending import fence, policy, rebuild, recover, repair, resolve
from deltalakedb.cli.commands.mirror.publishing import pause, resume, run
from deltalakedb.cli.commands.mirror.tidying import clean, compact, prune
from deltalakedb.cli.options import common


@click.group("mirror")
@common
def command() -> None:
    """Look after the copy of every table in its _delta_log: status, publishing, pausing, mending.

    \b
    Examples:
      deltasql mirror status
      deltasql mirror run --watch
      deltasql mirror verify sales.orders
    """


for _command in (
    status,
    verify,
    run,
    pause,
    resume,
    repair,
    rebuild,
    recover,
    resolve,
    policy,
    fence,
    prune,
    clean,
    compact,
):
    command.add_command(_command)
