"""Options that every command has, accepted before and after the command's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any] | click.Command")


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.find_root().obj, param.name or "", value)


def _option(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_remember, **attributes)


_COMMON = (
    _option("--catalog", metavar="ADDRESS", help="The catalog, instead of DELTASQL_CATALOG or the file's."),
    _option(
        "--config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="A configuration file, instead of the usual ones.",
    ),
    _option("--json", is_flag=True, help="Print one JSON document; errors too."),
    _option("--quiet", "-q", is_flag=True, help="Print identifiers only."),
    _option("--debug", is_flag=True, help="Log everything, and show tracebacks."),
)


def common(command: F) -> F:
    """Add the options of every command."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


def command(
    name: str, *options: Callable[[Any], Any], **attributes: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """A command that gets the `Invocation` as its first argument.

    Args:
        name: Its name on the command line.
        options: Groups of options to add, such as `changing`, besides those of every command.
        attributes: More arguments of `click.command`.
    """

    def make(function: Any) -> click.Command:
        own = function.__dict__.pop("__click_params__", [])
        for group in (common, *options):
            group(function)
        function.__click_params__ += own
        made: click.Command = click.command(name, **attributes)(click.pass_obj(function))  # type: ignore[no-untyped-call]
        return made

    return make


previewing = click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")


def changing(command: F) -> F:
    """Add the options of a command that changes something."""
    return _option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(previewing(command))


LEVEL = click.Choice(["counts", "digest", "full", "data"])


def engines(command: F) -> F:
    """Add the options of a command that Spark can do."""
    command = click.option(
        "--remote", metavar="URL", help="A Spark Connect server, such as sc://host:15002, for --engine spark."
    )(command)
    command = click.option(
        "--master", metavar="URL", help="Where Spark runs, such as local[*] or spark://host:7077."
    )(command)
    return click.option(
        "--engine",
        type=click.Choice(["auto", "local", "spark"]),
        default="auto",
        show_default=True,
        help="Where the work runs; auto takes Spark above 500,000 files.",
    )(command)


def importing(command: F) -> F:
    """Add the options of a command that imports."""
    command = engines(command)
    command = click.option(
        "--rate", type=click.IntRange(0), metavar="FILES", help="Files loaded in a second at most."
    )(command)
    command = click.option(
        "--batch-size",
        type=click.IntRange(1),
        metavar="ROWS",
        help="Rows of the checkpoint in one transaction.",
    )(command)
    command = click.option(
        "--verify",
        type=LEVEL,
        default="digest",
        show_default=True,
        help="How thoroughly the load is compared with the log before the table becomes visible.",
    )(command)
    return click.option(
        "--history",
        type=click.Choice(["auto", "checkpoint", "full"]),
        default="auto",
        show_default=True,
        help="Versions to load: full is all that the log holds, checkpoint those from the newest one on.",
    )(command)


class Pairs(click.ParamType[tuple[str, str]]):
    """``key=value`` arguments."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first equals sign."""
        if isinstance(value, tuple):
            return value  # a default that click converts again
        key, equals, rest = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        return key, rest


PAIR = Pairs()
