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
    "fs.fs_handler": {"DeltaStorageHandler": "deltalakedb.table.storage_handler"},
    "writer._conversion": {},
    "writer._utils": {
        "try_get_deltatable": "deltalakedb.table.lookup",
        "try_get_table_and_table_uri": "deltalakedb.table.lookup",
    },
    "writer.convert_to": {"convert_to_deltalake": "deltalakedb.table.convert"},
    "writer.properties": {},
    "writer.writer": {"write_deltalake": "deltalakedb.table.writer"},
}
_NONE: Final[Mapping[str, str]] = {}
#: a module of ours -> stock's, and the names that are our own
_modules: dict[str, tuple[str, Mapping[str, str]]] = {}
#: stock's module and a name that is patched there -> its original value
_patched: dict[tuple[str, str], Any] = {}


def stock_getattr(ours: str, stock: str, own: Mapping[str, str] = _NONE) -> Callable[[str], Any]:
    """A module's ``__getattr__``: own names from where they are defined, then submodules, then stock's names.

    Nothing is imported before it is used. Private names work too. A name of stock's that is patched in our
    module, as delta-rs's own tests do, is patched in stock's.

    Args:
        ours: The module's name.
        stock: Stock's module in the same place.
        own: Name -> the module that defines it.
    """
    _modules[ours] = (stock, own)
    sys.modules[ours].__class__ = _PatchingModule

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


def add_aliases() -> None:
    """Make stock's private and nested modules importable under our name, without importing stock."""
    for name, own in _ALIASES.items():
        module = ModuleType(f"deltalakedb.{name}", f"The names of ``deltalake.{name}``.")
        sys.modules[module.__name__] = module
        vars(module)["__getattr__"] = stock_getattr(module.__name__, f"deltalake.{name}", own)


class _PatchingModule(ModuleType):
    """A module in which a patch of stock's name is made in stock's module, where its code looks for it.

    A patch is undone by deleting the name, since it is not among this module's own: that restores stock's.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        module = None if isinstance(value, ModuleType) else self._stock_module(name)
        if module is not None:
            _patched.setdefault((module.__name__, name), vars(module)[name])
            setattr(module, name, value)
        if module is None or name in vars(self):
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in vars(self):
            super().__delattr__(name)
        elif (module := self._stock_module(name)) is not None and (module.__name__, name) in _patched:
            setattr(module, name, _patched.pop((module.__name__, name)))
        else:
            raise AttributeError(f"module {self.__name__!r} has no own attribute {name!r}", name=name)

    def _stock_module(self, name: str) -> ModuleType | None:
        """Stock's module if the name is from there."""
        stock, own = _modules[self.__name__]
        module = sys.modules.get(stock)
        if module is None or name.startswith("__") or name in own or name not in vars(module):
            return None
        return module if vars(self).get(name, vars(module)[name]) is vars(module)[name] else None


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
