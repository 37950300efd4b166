"""The command ``deltasql``: finds its commands, runs one, and turns every end into an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from deltalakedb._version import __version__
from deltalakedb.cli.commands import command_names, load_command
from deltalakedb.cli.context import Invocation
from deltalakedb.cli.errors import ExitCode, describe, exit_code
from deltalakedb.cli.options import common

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EPILOG = """\b
Examples:
  export DELTASQL_CATALOG=deltasql://sqlite//srv/lake/meta.db
  deltasql create sales.orders --schema id:long,city:string --location /srv/lake/orders
  deltasql list
  deltasql show sales.orders
  deltasql files sales.orders --where "city = 'Rome'"
  deltasql --json history sales.orders
"""


class Deltasql(click.Group):
    """A group whose every end, error or not, is an exit code, and that loads only the command it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return command_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return load_command(cmd_name)

    def main(  # type: ignore[override]  # click's other parameters pass through
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run one command; ends the process in standalone mode, returns the exit code otherwise."""
        words = list(sys.argv[1:] if args is None else args)
        # an error in the line itself must be answered in the form asked for, wherever the option stands
        given = _given(self, words)
        invocation = Invocation(json="json" in given, debug="debug" in given)
        code = self._run(words, invocation, {"prog_name": "deltasql"} | extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def _run(self, words: list[str], invocation: Invocation, extra: dict[str, Any]) -> int:
        try:
            with _logging(invocation):
                code = super().main(words, standalone_mode=False, obj=invocation, **extra)
                sys.stdout.flush()
        except BrokenPipeError:
            # the reader of the pipe has seen enough; what is still buffered must not fail once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.OK
        except click.Abort as abort:
            return _aborted(abort, invocation)
        except Exception as error:
            return _failed(error, invocation)
        return code if isinstance(code, int) else ExitCode.OK


def _given(group: click.Group, words: list[str]) -> set[str]:
    """The flags on a line that may be wrong, without values of options and what follows ``--``."""
    found: set[str] = set()
    command: click.Command | None = group
    parent: click.Context | None = None
    rest = words
    while command is not None:
        context = click.Context(
            command,
            parent=parent,
            resilient_parsing=True,
            ignore_unknown_options=True,
            allow_extra_args=True,
            allow_interspersed_args=not isinstance(command, click.Group),
        )
        options, rest, _ = command.make_parser(context).parse_args(list(rest))
        found.update(name for name, value in options.items() if value is True)
        below = command.get_command(context, rest[0]) if isinstance(command, click.Group) and rest else None
        if below is None and isinstance(command, click.Group) and rest:
            # a word that is no command: the options of every command may follow it all the same
            context.allow_interspersed_args = True
            options, _, _ = command.make_parser(context).parse_args(list(rest))
            found.update(name for name, value in options.items() if value is True)
        command, parent, rest = below, context, rest[1:]
    return found


def _failed(error: Exception, invocation: Invocation) -> int:
    if invocation.debug:
        traceback.print_exception(error)
    code = exit_code(error)
    invocation.error(describe(error), code)
    return code


def _aborted(abort: click.Abort, invocation: Invocation) -> int:
    # click wraps Ctrl-C and the end of the input alike
    interrupted = not isinstance(abort.__cause__ or abort.__context__, EOFError)
    code = ExitCode.INTERRUPTED if interrupted else ExitCode.ERROR
    message = "interrupted: whatever was under way was rolled back" if interrupted else "no answer was given"
    invocation.error(describe(click.ClickException(message)) | {"error": "Interrupted"}, code)
    return code


@contextmanager
def _logging(invocation: Invocation) -> Iterator[None]:
    logger, handler = logging.getLogger("deltalakedb"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if invocation.debug else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@click.group(
    cls=Deltasql,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 110},
)
@click.version_option(__version__, "--version", "-V", prog_name="deltasql", message="%(prog)s %(version)s")
@common
def cli() -> None:
    """Delta tables whose metadata lives in a database.

    TABLE is a name in the catalog, or a full address such as
    deltasql://sqlite//srv/lake/meta.db?table=sales.orders. The catalog is that of --catalog, of the
    variable DELTASQL_CATALOG, or of deltasql.toml.
    """


def main() -> None:
    cli.main()


if __name__ == "__main__":
    main()
