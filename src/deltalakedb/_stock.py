"""How a module of ours has the names of stock's module in the same place."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: stock's private and nested modules, each with our own names in it and where these are
_ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "_internal": {},
    "_util": {},
    "fs._base_handler": {},
    "fs.fs_handler": {"DeltaStorageHandler": "deltalakedb.fs"},
    "writer._conversion": {},
    "writer._utils": {
        "try_get_deltatable": "deltalakedb.table.drop_in.functions",
        "try_get_table_and_table_uri": "deltalakedb.table.drop_in.functions",
    },
    "writer.convert_to": {"convert_to_deltalake": "deltalakedb.table.drop_in.functions"},
    "writer.properties": {},
    "writer.writer": {"write_deltalake": "deltalakedb.table.drop_in.delta_table"},
}
_NONE: Final[Mapping[str, str]] = {}


def stock_getattr(ours: str, stock: str, own: Mapping[str, str] = _NONE) -> Callable[[str], Any]:
    """A module's ``__getattr__``: own names from where they are defined, then submodules, then stock's names.

    Nothing is imported before it is used, and own names are then set in the module. Private names work too.

    Args:
        ours: The module's name.
        stock: Stock's module in the same place.
        own: Name -> the module that defines it.
    """

    def get(name: str) -> Any:
        if (home := own.get(name)) is not None:
            found = getattr(importlib.import_module(home), name)
            return vars(sys.modules[ours]).setdefault(name, found)
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


def add_aliases() -> None:
    """Make stock's private and nested modules importable under our name, without importing stock."""
    for name, own in _ALIASES.items():
        module = ModuleType(f"deltalakedb.{name}", f"The names of ``deltalake.{name}``.")
        sys.modules[module.__name__] = module
        vars(module)["__getattr__"] = stock_getattr(module.__name__, f"deltalake.{name}", own)


def _submodule(package: str, name: str) -> ModuleType | None:
    """A submodule, which has priority over stock's module of the same name."""
    full = f"{package}.{name}"
    if full in sys.modules or name.startswith("__") or not hasattr(sys.modules[package], "__path__"):
        return sys.modules.get(full)
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as missing:
        if missing.name == full:
            return None
        raise
