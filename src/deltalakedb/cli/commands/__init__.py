"""The commands, one file each: a new file with a ``command`` in it is a new command."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def all_commands() -> list[click.Command]:
    """Every command in this folder, by name."""
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return sorted((m.command for m in modules), key=lambda c: c.name or "")
