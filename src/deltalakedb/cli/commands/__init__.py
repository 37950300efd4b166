"""The commands, one file each: a new file with a ``command`` in it is a new command, named like the file."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def command_names() -> list[str]:
    """The names of all commands; none of them is loaded for that."""
    return sorted(_modules())


def load_command(name: str) -> click.Command | None:
    """The command of a name, from the file named like it; None where there is none."""
    module = _modules().get(name)
    return None if module is None else importlib.import_module(f"{__name__}.{module}").command


def all_commands() -> dict[str, click.Command]:
    """Every command by name, loaded."""
    return {name: command for name in command_names() if (command := load_command(name)) is not None}


def _modules() -> dict[str, str]:
    return {m.name.rstrip("_").replace("_", "-"): m.name for m in pkgutil.iter_modules(__path__)}
