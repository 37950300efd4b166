"""The reference page of the command line, made from the commands themselves.

``python tools/cli_reference.py > docs/reference/cli.md`` writes it anew.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

from deltalakedb.cli.main import cli
from deltalakedb.cli.output import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION = """\
# The command line

<!-- Made by `python tools/cli_reference.py > docs/reference/cli.md`: change the commands instead. -->

`deltasql COMMAND --help` shows the same. `TABLE` is a name in the catalog, a name in a catalog of the
configuration (`prod:sales.orders`), a full [address](addresses.md), or the path or URL of a registered table:
`./orders`, `/srv/lake/orders`, `s3://bucket/orders`. A table whose name has a colon needs its address.
The catalog is that of `--catalog`, of the variable `DELTASQL_CATALOG`, or of the
[configuration](configuration.md) file, in this order.

- Results go to stdout; notes, progress and logs go to stderr. On a terminal there is colour and a progress
  bar, in a pipe there are plain lines. `NO_COLOR=1` turns colour off.
- With `--json` stdout holds exactly one document (`watch`: one for each commit). For an error
  it is an object with `error`, `message`, `table`, `version`, `suggestion`, `transient` and `exit_code`.
- Times are ISO 8601 in UTC.
- Commands that only read never create a catalog.
- Ctrl-C rolls back the operation in progress.

`deltasql completion bash` prints a script that completes commands, options and table names in bash; zsh and
fish work too."""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield from ("", "## Exit codes", "", "| code | meaning |", "|---|---|")
    yield from (f"| {int(code)} | {code.meaning} |" for code in ExitCode)
    yield from ("", "## Options of every command", "")
    yield from _options([p for p in cli.params if p.name != "version"])
    yield from ("", "They may come before or after the command. `deltasql --version` prints the version.")
    common = {p.name or "" for p in cli.params if p.name != "version"}
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        yield from ("", f"## {name}", "")
        yield from _command(name, command, common)
        if isinstance(command, click.Group):
            for below, part in sorted(command.commands.items()):
                yield from ("", f"### {name} {below}", "")
                yield from _command(f"{name} {below}", part, common)


def _command(name: str, command: click.Command, common: set[str]) -> Iterator[str]:
    context = click.Context(command, info_name=f"deltasql {name}")
    pieces = " ".join(command.collect_usage_pieces(context))
    text, _, examples = inspect.cleandoc(command.help or "").partition("\b\nExamples:\n")
    yield from ("```text", f"deltasql {name} {pieces}", "```", "")
    yield text.strip()
    own = [p for p in command.params if p.name not in common]
    if any(isinstance(p, click.Option) for p in own):
        yield ""
        yield from _options(own)
    if examples:
        yield from ("", "```console", *inspect.cleandoc(examples).splitlines(), "```")


def _options(params: list[click.Parameter]) -> Iterator[str]:
    yield from ("| option | meaning |", "|---|---|")
    for option in params:
        if isinstance(option, click.Option):
            yield f"| {_names(option)} | {_meaning(option)} |"


def _names(option: click.Option) -> str:
    names = sorted(option.opts, key=len, reverse=True)
    if not option.is_flag:
        names[0] += f" {option.make_metavar(click.Context(cli))}"
    return ", ".join(f"`{_cell(name)}`" for name in names)


def _meaning(option: click.Option) -> str:
    default = f" Default: `{option.default}`." if option.show_default else ""
    return _cell((option.help or "") + default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    click.echo(page(), nl=False)
