"""How a module of ours carries the names of stock's module at the same place."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NONE: Mapping[str, str] = {}
#: a module of ours -> stock's, and the names that are our own
_PAIRS: dict[str, tuple[str, Mapping[str, str]]] = {}
#: stock's module and a name that is patched there -> what it was
_LENT: dict[tuple[str, str], Any] = {}


def names_of(ours: str, stock: str, own: Mapping[str, str] = _NONE) -> Callable[[str], Any]:
    """A module's ``__getattr__``: own names from where they live, then submodules, then stock's names.

    Nothing is imported before it is asked for. Names that are not public are answered too, for code that uses
    them all the same. A borrowed name that is patched, as tests do, is patched in stock's module too.

    Args:
        ours: The module's name.
        stock: Stock's module at the same place.
        own: Name -> the module that holds it.
    """
    _PAIRS[ours] = (stock, own)
    sys.modules[ours].__class__ = _Borrower

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


class _Borrower(ModuleType):
    """A module whose borrowed names are changed where they live: stock's code looks for them there.

    What patches a name takes it away again afterwards, for it is not among this module's own: that gives
    stock back what it had.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        lender = None if isinstance(value, ModuleType) else self._lender(name)
        if lender is not None:
            _LENT.setdefault((lender.__name__, name), vars(lender)[name])
            setattr(lender, name, value)
        if lender is None or name in vars(self):
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in vars(self):
            super().__delattr__(name)
        elif (lender := self._lender(name)) is not None and (lender.__name__, name) in _LENT:
            setattr(lender, name, _LENT.pop((lender.__name__, name)))
        else:
            raise AttributeError(f"module {self.__name__!r} has no own attribute {name!r}", name=name)

    def _lender(self, name: str) -> ModuleType | None:
        """Stock's module, where the name is borrowed from it."""
        stock, own = _PAIRS[self.__name__]
        module = sys.modules.get(stock)
        if module is None or name.startswith("__") or name in own or name not in vars(module):
            return None
        return module if vars(self).get(name, vars(module)[name]) is vars(module)[name] else None


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
