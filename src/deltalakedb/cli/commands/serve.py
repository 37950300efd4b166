"""``deltasql serve``: the service that ratifies commits of other engines."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli.context import Invocation, stop_on_signal
from deltalakedb.cli.options import PAIR, command, flag, number, option

if TYPE_CHECKING:
    from deltalakedb.redaction import Secret
    from deltalakedb.settings import Config


@command("serve")
@flag("--commits", "Ratify commits that delta-spark's own writers make.")
@option("--host", metavar="ADDRESS", help="The address to listen at, instead of service.host.")
@option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="The port, instead of service.port; 0 takes any that is free.",
)
@option(
    "--token-file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="The file with the token that callers must send. A missing file is created.",
)
@option(
    "--table",
    "tables",
    metavar="NAME=LOCATION",
    type=PAIR,
    multiple=True,
    help="A table that may be created at a location outside of the catalog's root. Repeatable.",
)
@number("--max-bytes", "BYTES", "The largest commit that is accepted, instead of service.max_bytes.", 1)
def serve(
    cli: Invocation, commits: bool, token_file: str | None, tables: tuple[tuple[str, str], ...], **listen: Any
) -> None:
    """Let Spark sessions commit through the catalog with their own writers.

    Each commit that a session configured by deltalakedb.spark.configure makes is sent here, decided in the
    database and published before it is answered. The token comes from --token-file, from the setting
    service.token_file or from the variable DELTASQL_SERVICE__TOKEN; it is never shown. Ctrl-C and SIGTERM end
    the service once open requests are answered. GET /health reports whether the catalog can be reached.

    \b
    Examples:
      deltasql serve --commits --token-file /run/deltasql/token
      deltasql serve --commits --port 0 --table sales.orders=/srv/lake/orders
    """
    from deltalakedb.service.server import commit_server

    if not commits:
        raise click.UsageError("nothing to serve: pass --commits")
    token = _token(cli.settings(), token_file)
    with cli.open_catalog() as catalog:
        server = commit_server(cli.catalog_address(), token, tables=dict(tables), **listen)
        if not cli.quiet:
            logging.getLogger("deltalakedb.service").setLevel(logging.INFO)
        with stop_on_signal() as stop, server:
            line = f"Commits to {catalog.uri} are ratified at {server.url}"
            cli.show({"url": server.url, "catalog": catalog.uri}, line, [server.url])
            sys.stdout.flush()
            stop.wait()
    cli.note("The service has ended.")


def _token(config: Config, path: str | None) -> Secret:
    """The token of the file that is named, else that of the settings."""
    from deltalakedb.service.server import new_token, read_token, token_of, write_token

    if path is not None:
        if not Path(path).exists():
            write_token(Path(path), new_token())
        return read_token(path)
    if (found := token_of(config)) is None:
        raise click.UsageError(
            "no token is named: use --token-file FILE (created if it is missing), or set service.token_file "
            "or DELTASQL_SERVICE__TOKEN"
        )
    return found
