"""The command that prints shell completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from deltalakedb.cli.options import command

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(cli: Invocation, shell: str) -> None:
    """Print the script that completes commands, options and table names in a shell.

    Tables are those of the catalog that DELTASQL_CATALOG or the configuration file names.

    \b
    Examples:
      deltasql completion bash > ~/.local/share/bash-completion/completions/deltasql
      eval "$(deltasql completion zsh)"
      deltasql completion fish > ~/.config/fish/completions/deltasql.fish
    """
    from deltalakedb.cli.main import cli as program

    kind = get_completion_class(shell)
    script = "" if kind is None else kind(program, {}, "deltasql", "_DELTASQL_COMPLETE").source()
    cli.show({"shell": shell, "script": script}, script, [script])
