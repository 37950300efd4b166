"""Options that several commands have, and the decorators that make a function a command."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from deltalakedb.transfer import FILE_LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from deltalakedb.cli.context import Invocation

Option: TypeAlias = "Callable[[Any], Any]"
MakeCommand: TypeAlias = "Callable[[Callable[..., Any]], click.Command]"

option = click.option
#: how long a shell waits for table names
_COMPLETION_SECONDS = 3.0


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.find_root().obj, param.name or "", value)


def _common(*names: str, **attributes: Any) -> Option:
    return option(*names, expose_value=False, callback=_remember, **attributes)


FILE = click.Path(exists=True, dir_okay=False)
#: of every command, before or after its name
COMMON = (
    _common(
        "--catalog",
        metavar="CATALOG",
        help="The catalog's address or configured name, instead of DELTASQL_CATALOG or the file's.",
    ),
    _common("--config", metavar="FILE", type=FILE, help="A configuration file, instead of the default ones."),
    _common("--json", is_flag=True, help="Print one JSON document; errors too."),
    _common("--quiet", "-q", is_flag=True, help="Print identifiers only."),
    _common("--debug", is_flag=True, help="Log everything, and show tracebacks."),
)


def common(function: Any, options: Sequence[Option] = COMMON) -> Any:
    """Add options to a function that becomes a command."""
    for add in reversed(options):
        function = add(function)
    return function


def command(
    name: str, *groups: Sequence[Option], group: click.Group | None = None, **attributes: Any
) -> MakeCommand:
    """A command that gets the `Invocation` as its first argument.

    Args:
        name: Its name on the command line.
        groups: Options to add, such as `CHANGING`, besides those of every command.
        group: The group that it belongs to.
        attributes: More arguments of `click.command`.
    """

    def make(function: Any) -> click.Command:
        own = function.__dict__.pop("__click_params__", [])
        for options in (COMMON, *groups):
            common(function, options)
        function.__click_params__ += own
        made: click.Command = click.command(name, **attributes)(click.pass_obj(function))  # type: ignore[no-untyped-call]
        if group is not None:
            group.add_command(made)
        return made

    return make


def table_argument(name: str, **attributes: Any) -> Option:
    """An argument that is the name of a table, which shells complete."""
    return click.argument(name, shell_complete=_complete_table, **attributes)


def _complete_table(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Table names for a shell: soon or not at all, and without a word about errors."""
    import logging
    import threading
    from contextlib import suppress

    names: list[str] = []
    before = logging.root.manager.disable

    def look() -> None:
        with suppress(Exception):
            names.extend(ctx.find_root().obj.table_names())

    # a server that does not answer must not hold up the shell
    looking = threading.Thread(target=look, daemon=True)
    logging.disable()
    try:
        looking.start()
        looking.join(_COMPLETION_SECONDS)
    finally:
        logging.disable(before)
    return sorted(name for name in names if name.startswith(incomplete))


def table_command(
    name: str,
    *groups: Sequence[Option],
    required: bool = True,
    check: Callable[..., None] | None = None,
    **attributes: Any,
) -> MakeCommand:
    """A command with the argument TABLE: its function gets the open catalog and the table's name in it.

    If TABLE is not required and not given, the name is None. With the options `SNAPSHOT` the function gets
    the ``version`` that ``--version`` or ``--at`` means, or None for the newest. ``check`` gets the options
    before the catalog is opened, and raises a UsageError if they do not fit together.
    """

    def make(function: Any) -> click.Command:
        @functools.wraps(function)
        def run(cli: Invocation, table: str | None, **given: Any) -> Any:
            if check is not None:
                check(table=table, **given)
            with cli.open_tables([] if table is None else [table]) as (catalog, names):
                name = names[0] if names else None
                if "at" in given:
                    at, version = given.pop("at"), given["version"]
                    if at is not None and version is not None:
                        raise click.UsageError("give --version or --at, not both")
                    given["version"] = cli.version_of(catalog, name or "", version if at is None else at)
                return function(cli, catalog, name, **given)

        return command(name, *groups, **attributes)(table_argument("table", required=required)(run))

    return make


def flag(name: str, text: str, **attributes: Any) -> Option:
    return option(name, is_flag=True, help=text, **attributes)


def number(name: str, metavar: str | None, text: str, least: int = 0, **attributes: Any) -> Option:
    return option(name, metavar=metavar, type=click.IntRange(least), help=text, **attributes)


def interval(default: float, text: str) -> Option:
    kind = click.FloatRange(min=0.01, max=86_400)  # Python's events cannot wait for any number of seconds
    return option("--interval", metavar="SECONDS", type=kind, default=default, show_default=True, help=text)


def choice(name: str, values: Iterable[str], default: str, text: str) -> Option:
    return option(name, type=click.Choice(list(values)), default=default, show_default=True, help=text)


def verification(text: str) -> Option:
    return choice("--verify", FILE_LEVELS, "digest", text)


def _take_over(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from deltalakedb.metastore.leases import taking_over

        ctx.with_resource(taking_over())


_TAKE_OVER = "Take over from a process that has crashed, before its lease ends."
#: of commands that can show what they would do
PREVIEWING = (flag("--dry-run", "Show what would happen, and change nothing."),)
#: of commands that change something
CHANGING = (_common("--yes", "-y", is_flag=True, help="Do not ask for confirmation."), *PREVIEWING)
#: of commands that hold a lease
LEASING = (flag("--take-over", _TAKE_OVER, expose_value=False, callback=_take_over),)
_SPARK = (
    option("--master", metavar="URL", help="Where Spark runs, such as local[*] or spark://host:7077."),
    option(
        "--remote", metavar="URL", help="A Spark Connect server, such as sc://host:15002, for --engine spark."
    ),
)
_ENGINE = "Where the work runs"
#: of commands that Spark can run
ENGINES = (
    choice(
        "--engine",
        ["auto", "local", "spark"],
        "auto",
        f"{_ENGINE}; auto is this process unless --master or --remote names a cluster.",
    ),
    *_SPARK,
)
#: of commands that Spark runs only if it is asked to
SPARK_ENGINE = (
    choice("--engine", ["local", "spark"], "local", f"{_ENGINE}: in this process, or as a Spark job."),
    *_SPARK,
)
#: of commands that import
IMPORTING = (
    choice(
        "--history",
        ["auto", "checkpoint", "full"],
        "auto",
        "Versions to load: full is all that the log holds, checkpoint those from the newest one on.",
    ),
    verification("How thoroughly the load is compared with the log before the table becomes visible."),
    number("--batch-size", "ROWS", "Rows of the checkpoint in one transaction.", 1),
    option(
        "--rate",
        "rate_limit",
        metavar="FILES",
        type=click.IntRange(0),
        help="The most files to load per second.",
    ),
    *ENGINES,
)


class _Time(click.ParamType[datetime]):
    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            moment = datetime.fromisoformat(str(value).upper())
        except ValueError:
            self.fail(f"{value!r} is not a time: write it as 2026-11-15T12:00:00Z or 2026-11-15", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


#: a time in ISO 8601
TIME = _Time()


class _VersionOrTime(click.ParamType[Any]):
    name = "VERSION|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        return int(text) if text.isdecimal() else TIME.convert(text, param, ctx)


#: a version, or the time that means one
VERSION_OR_TIME = _VersionOrTime()
#: of commands that read one version of a table; `table_command` makes one ``version`` of both
SNAPSHOT = (
    number("--version", "N", "Read this version; default: the newest."),
    option("--at", type=TIME, help="Read the version of that time; ISO 8601, UTC unless it has a zone."),
)


class _Pair(click.ParamType[tuple[str, str]]):
    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value  # a default that click converts again
        key, equals, rest = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        return key, rest


#: ``key=value`` arguments
PAIR = _Pair()


def columns_of(text: str | None) -> list[str] | None:
    """The column names in a comma-separated list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
