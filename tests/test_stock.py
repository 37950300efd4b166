"""Every name of ``deltalake`` is at the same place under ``deltalakedb``, with the same signature."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from operator import attrgetter
from typing import Any
from unittest import mock

import deltalake
import pytest
from deltalake._internal import RawDeltaTable

import deltalakedb
from deltalakedb.table.drop_in.raw_table import RawSqlTable

MODULES = ["deltalake", *(m.name for m in pkgutil.walk_packages(deltalake.__path__, "deltalake."))]
#: ours in the place of stock's
REPLACED = {"DeltaTable", "__version__", "convert_to_deltalake", "create_table_with_add_actions"}
REPLACED |= {
    "DeltaStorageHandler",
    "QueryBuilder",
    "try_get_deltatable",
    "try_get_table_and_table_uri",
    "write_deltalake",
}


def ours_of(module: str) -> Any:
    return importlib.import_module(module.replace("deltalake", "deltalakedb", 1))


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """The parameters of a function: names, kinds and defaults."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_stock_is_at_the_same_place_with_all_its_names(module: str) -> None:
    stock, ours = importlib.import_module(module), ours_of(module)
    here = {n for n, v in vars(stock).items() if not n.startswith("__") and not inspect.ismodule(v)}
    for name in here | set(getattr(stock, "__all__", ())):
        found = getattr(ours, name)
        if name not in REPLACED and module != "deltalake.exceptions":
            assert found is getattr(stock, name), name


@pytest.mark.parametrize("module", MODULES)
def test_a_star_import_brings_the_same_names(module: str) -> None:
    theirs: dict[str, Any] = {}
    exec(f"from {module} import *", theirs)
    found: dict[str, Any] = {}
    exec(f"from {module.replace('deltalake', 'deltalakedb', 1)} import *", found)
    assert {n for n, v in theirs.items() if not inspect.ismodule(v)} - found.keys() == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_function_of_stock_has_the_same_signature(module: str) -> None:
    stock, ours = importlib.import_module(module), ours_of(module)
    compared = 0
    for name in sorted(n for n in REPLACED if callable(getattr(stock, n, None))):
        assert shape(getattr(ours, name)) == shape(getattr(stock, name)), name
        compared += 1
    assert compared or module not in ("deltalake", "deltalake.writer", "deltalake.table")


def test_every_method_of_a_table_has_the_same_signature() -> None:
    kind = deltalakedb.DeltaTable
    for name in (n for n in vars(deltalake.DeltaTable) if n == "__init__" or not n.startswith("_")):
        theirs, found = (inspect.getattr_static(c, name) for c in (deltalake.DeltaTable, kind))
        # a method may be more than stock has, never of another kind
        assert type(found) is type(theirs), name
        if not isinstance(theirs, property):
            assert shape(getattr(kind, name)) == shape(getattr(deltalake.DeltaTable, name)), name


@pytest.mark.parametrize(
    "place",
    [
        "table.TableMerger",
        "table.TableAlterer",
        "table.TableOptimizer",
        "table.Metadata",
        "query.QueryBuilder",
        "writer.WriterProperties",
    ],
)
def test_the_helpers_of_a_table_have_the_same_methods(place: str) -> None:
    theirs, found = (attrgetter(place)(package) for package in (deltalake, deltalakedb))
    assert shape(found) == shape(theirs)
    for name in (n for n in vars(theirs) if not n.startswith("_")):
        if not isinstance(inspect.getattr_static(theirs, name), property):
            assert shape(getattr(found, name)) == shape(getattr(theirs, name)), name


def test_what_stands_in_for_a_raw_table_has_all_its_methods_with_the_same_parameters() -> None:
    for name in (n for n in dir(RawDeltaTable) if n == "__datafusion_table_provider__" or n[0] != "_"):
        theirs, found = (getattr(kind, name) for kind in (RawDeltaTable, RawSqlTable))
        if callable(theirs):
            # delta-rs names its first parameter positional-only
            mine, stock = ([p for p in shape(f) if p[0] != "self"] for f in (found, theirs))
            assert mine == stock, name


def test_all_holds_every_name_of_stock_in_order() -> None:
    assert set(deltalake.__all__) <= set(deltalakedb.__all__)
    assert deltalakedb.__all__ == sorted(deltalakedb.__all__)
    assert set(deltalakedb.__all__) <= set(dir(deltalakedb))
    assert all(hasattr(deltalakedb, name) for name in deltalakedb.__all__)


def test_our_version_is_our_own() -> None:
    assert deltalakedb.__version__ != deltalake.__version__


@pytest.mark.parametrize("module", ["deltalakedb", "deltalakedb.table", "deltalakedb.schema"])
def test_a_name_that_nobody_has_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match=f"'{module}' has no attribute 'Nobody'"):
        importlib.import_module(module).Nobody  # noqa: B018


def test_our_modules_come_before_those_of_stock() -> None:
    code = "import deltalakedb; assert deltalakedb.exceptions.DeltaSqlError and deltalakedb.table.sources"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_package_alone_imports_nothing_else() -> None:
    code = "import sys, deltalakedb; sys.exit(bool({'deltalake', 'pyarrow', 'pydantic'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_switch_for_nanoseconds_is_the_one_of_stock() -> None:
    assert deltalakedb._nanosecond_timestamps_enabled is deltalake._nanosecond_timestamps_enabled  # type: ignore[attr-defined]
    assert deltalakedb.enable_nanosecond_timestamps is deltalake.enable_nanosecond_timestamps


@pytest.mark.parametrize("module", ["deltalakedb", "deltalakedb.table", "deltalakedb.writer.writer"])
def test_a_name_of_our_own_is_patched_here_alone(module: str) -> None:
    ours = importlib.import_module(module)
    name = "DeltaTable" if module == "deltalakedb.table" else "write_deltalake"
    stock = importlib.import_module(module.replace("deltalakedb", "deltalake", 1))
    ours_before, theirs_before = getattr(ours, name), getattr(stock, name)
    with mock.patch(f"{module}.{name}") as put:
        assert getattr(ours, name) is put
        assert getattr(stock, name) is theirs_before
    assert getattr(ours, name) is ours_before is not theirs_before
    assert getattr(stock, name) is theirs_before
