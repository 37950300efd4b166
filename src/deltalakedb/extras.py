"""Optional imports: the error for a missing one has the pip command that installs it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from deltalakedb.exceptions import MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType


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
    """Import an optional module, or raise an error that says how to install it.

    Args:
        module: The module's full name, such as ``psycopg``.
        extra: The extra of this package that brings it.
        purpose: What it is needed for, as the end of the sentence "duckdb is needed for …".

    Raises:
        MissingExtraError: The module is not installed, or is installed and broken.

    Example:
        >>> require("json", "dev", "an example").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and _is_part_of(error.name, module)
        if missing:
            message, command = f"{module} is needed for {purpose} and is not installed", pip_line(extra)
        else:
            message = f"{module} is needed for {purpose} and is installed, but cannot be imported: {error}"
            command = pip_line(extra).replace("install", "install --force-reinstall")
        raise MissingExtraError(message, suggestion=command, module=module, extra=extra) from error


def _is_part_of(name: str | None, module: str) -> bool:
    return name is not None and (module == name or module.startswith(f"{name}."))
