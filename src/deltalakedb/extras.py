"""Imports when they are needed, and optional ones, whose error has the pip command that installs them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType


class LazyModule:
    """A module of ours that is imported when one of its names is first used.

    Args:
        name: Its name below ``deltalakedb``, such as ``metastore.registry``.
    """

    def __init__(self, name: str) -> None:
        self._name = f"deltalakedb.{name}"

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def pip_line(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'deltalakedb[{extra}]'"


def available(module: str) -> bool:
    """Whether the module is installed; nothing is imported but its parent packages."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional module; MissingExtraError if it is not installed, or installed and broken.

    Args:
        module: The module's full name, such as ``psycopg``.
        extra: The extra of this package that installs it.
        purpose: What it is needed for: the end of the sentence "duckdb is needed for …".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            message, command = f"{module} is needed for {purpose} and is not installed", pip_line(extra)
        else:
            message = f"{module} is needed for {purpose} and is installed, but cannot be imported: {error}"
            command = pip_line(extra).replace("install", "install --force-reinstall")
        raise MissingExtraError(message, suggestion=command, module=module, extra=extra) from error
