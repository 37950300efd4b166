"""The commands, by noun; a module is imported when one of its commands is used."""

from __future__ import annotations

import importlib

import click

_MODULES = {
    "tables": ("list", "show", "schema", "history", "create", "drop"),
    "files": ("files", "vacuum", "gc", "checkpoint"),
    "transfer": ("import", "import-all", "import-status", "rollback", "export", "verify"),
    "mirror": ("mirror",),
    "catalog": ("doctor", "migrate"),
    "serve": ("serve",),
}


def command_names() -> list[str]:
    """The names of all commands; none of them is imported for that."""
    return sorted(name for names in _MODULES.values() for name in names)


def load_command(name: str) -> click.Command | None:
    """The command of a name, or None."""
    for module, names in _MODULES.items():
        if name in names:
            values = vars(importlib.import_module(f"{__name__}.{module}")).values()
            return next(c for c in values if isinstance(c, click.Command) and c.name == name)
    return None


def all_commands() -> dict[str, click.Command]:
    """Every command by name, imported."""
    return {name: command for name in command_names() if (command := load_command(name)) is not None}
