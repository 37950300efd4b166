"""The command ``deltasql``: finds its commands, runs one, and turns every end into an exit code."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from deltalakedb._version import __version__
from deltalakedb.cli.context import Invocation
from deltalakedb.cli.options import common
from deltalakedb.cli.output import ExitCode, Interrupted, describe, exit_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: the commands of each module, which is imported when one of them is used
_COMMANDS = {
    "tables": ("list", "show", "schema", "history", "create", "drop"),
    "changes": ("write", "alter", "optimize", "restore"),
    "registry": ("rename", "tag", "comment", "namespace", "relocate"),
    "files": ("files", "packs", "vacuum", "gc", "checkpoint"),
    "transfer": ("import", "import-all", "import-status", "export", "verify"),
    "mirror": ("mirror",),
    "catalog": ("doctor", "init", "migrate"),
    "config": ("config",),
    "query": ("sql", "head"),
    "inspect": ("stats", "diff", "watch"),
    "completion": ("completion",),
    "serve": ("serve",),
}
_EPILOG = """\b
Examples:
  export DELTASQL_CATALOG=deltasql://sqlite//srv/lake/meta.db
  deltasql create sales.orders --schema id:long,city:string --location /srv/lake/orders
  deltasql list
  deltasql show sales.orders
  deltasql sql "SELECT city, count(*) FROM sales.orders GROUP BY city"
  deltasql files sales.orders --where "city = 'Rome'"
  deltasql --json history sales.orders
"""


class Deltasql(click.Group):
    """A group whose every end, error or not, is an exit code, and that loads only the command it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return sorted(name for names in _COMMANDS.values() for name in names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        for module, names in _COMMANDS.items():
            if cmd_name in names:
                values = vars(importlib.import_module(f"deltalakedb.cli.commands.{module}")).values()
                return next(c for c in values if isinstance(c, click.Command) and c.name == cmd_name)
        return None

    def main(  # type: ignore[override]  # click's other parameters pass through
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run one command; ends the process in standalone mode, returns the exit code otherwise."""
        words = list(sys.argv[1:] if args is None else args)
        # an error in the line itself must be answered in the form asked for, wherever the option is
        flags = _flags(self, words)
        invocation = Invocation(json="json" in flags, debug="debug" in flags, words=words)
        code = self._run(words, invocation, extra | {"prog_name": "deltasql"})
        if standalone_mode:
            sys.exit(code)
        return code

    def _run(self, words: list[str], invocation: Invocation, extra: dict[str, Any]) -> int:
        try:
            with _logging(invocation):
                code = super().main(words, standalone_mode=False, obj=invocation, **extra)
                sys.stdout.flush()
                return code if isinstance(code, int) else ExitCode.OK
        except click.exceptions.NoArgsIsHelpError as bare:
            click.echo(bare.format_message())
            return ExitCode.OK
        except BrokenPipeError:
            # the reader of the pipe has seen enough; what is still buffered must not fail once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.OK
        except click.Abort as abort:
            # click wraps Ctrl-C and the end of the input alike
            interrupted = not isinstance(abort.__cause__ or abort.__context__, EOFError)
            code = ExitCode.INTERRUPTED if interrupted else ExitCode.ERROR
            message = "interrupted: the operation in progress was rolled back" if interrupted else "no answer"
            found = describe(click.ClickException(message)) | {"error": "Interrupted"}
            if isinstance(abort, Interrupted):
                found |= {"message": abort.message, "suggestion": abort.suggestion}
        except Exception as error:
            if invocation.debug:
                traceback.print_exception(error)
            code, found = exit_code(error), describe(error)
        invocation.error(found, code)
        return code


def _flags(command: click.Command, words: list[str], parent: click.Context | None = None) -> set[str]:
    """The flags on a line that may be wrong, without values of options and what follows ``--``."""
    group = command if isinstance(command, click.Group) else None
    context = click.Context(
        command,
        parent=parent,
        resilient_parsing=True,
        ignore_unknown_options=True,
        allow_extra_args=True,
        allow_interspersed_args=group is None,
    )
    options, rest, _ = command.make_parser(context).parse_args(list(words))
    found = {name for name, value in options.items() if value is True}
    if group is None or not rest:
        return found
    # a word that is no command: the options of every command may follow it all the same
    below = group.get_command(context, rest[0]) or click.Command(None, params=group.params)
    return found | _flags(below, rest[1:], context)


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

    TABLE is a name in the catalog, a name in a configured catalog (prod:sales.orders), a full address such
    as deltasql://sqlite//srv/lake/meta.db?table=sales.orders, or the path or URL of a registered table. The
    catalog is that of --catalog, of the variable DELTASQL_CATALOG, or of deltasql.toml.
    """


def main() -> None:
    cli.main()


if __name__ == "__main__":
    main()
