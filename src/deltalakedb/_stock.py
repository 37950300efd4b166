"""How a module of ours carries the names of stock's module at the same place."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

_NONE: Mapping[str, str] = {}


def names_of(ours: str, stock: str, own: Mapping[str, str] = _NONE) -> Callable[[str], Any]:
    """A module's ``__getattr__``: own names from where they live, then submodules, then stock's names.

    Nothing is imported before it is asked for. Names that are not public are answered too, for code that uses
    them all the same.

    Args:
        ours: The module's name.
        stock: Stock's module at the same place.
        own: Name -> the module that holds it.
    """

    def get(name: str) -> Any:
        if (home := own.get(name)) is not None:
            return getattr(importlib.import_module(home), name)
        if (module := _submodule(ours, name)) is not None:
            return module
        theirs = importlib.import_module(stock)
        if name == "__all__" and not hasattr(theirs, name):
            return [n for n in dir(theirs) if not n.startswith("_")]
        try:
            return getattr(theirs, name)
        except AttributeError:
            raise AttributeError(f"module {ours!r} has no attribute {name!r}", name=name) from None

    return get


def _submodule(package: str, name: str) -> ModuleType | None:
    """A submodule, which must come before stock's module of the same name."""
    if name.startswith("__") or not hasattr(sys.modules[package], "__path__"):
        return None
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as missing:
        if missing.name == f"{package}.{name}":
            return None
        raise
