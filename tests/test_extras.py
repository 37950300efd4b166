"""Optional imports: present, missing, broken."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from deltalakedb.exceptions import DeltaSqlError, MissingExtraError
from deltalakedb.extras import available, pip_line, require


def test_an_installed_module_is_returned() -> None:
    assert require("json", "dev", "a test") is json
    assert require("os.path", "dev", "a test").join("a", "b") == "a/b"


@pytest.mark.parametrize("module", ["no_such_module_here", "no_such_module_here.inner", "json.no_such_part"])
def test_a_missing_module_is_answered_with_the_pip_line(module: str) -> None:
    with pytest.raises(
        MissingExtraError, match="is needed for DuckDB catalogs and is not installed"
    ) as caught:
        require(module, "duckdb", "DuckDB catalogs")
    assert caught.value.suggestion == "pip install 'deltalakedb[duckdb]'"
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, DeltaSqlError)


def test_a_module_that_lacks_something_itself_is_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_extra_of_tests.py").write_text("import needed_by_it_and_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"cannot be imported: .*needed_by_it") as caught:
        require("broken_extra_of_tests", "spark", "Spark")
    assert "--force-reinstall 'deltalakedb[spark]'" in str(caught.value.suggestion)


def test_available_looks_without_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explodes_on_import_of_tests.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert available("explodes_on_import_of_tests")
    assert not available("no_such_module_here")
    assert not available("no_such_module_here.inner")


def test_every_extra_that_is_suggested_is_in_the_project_file() -> None:
    project = Path(__file__).parents[1]
    extras = tomllib.loads((project / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    call = re.compile(r"\brequire\(\s*\"[\w.]+\",\s*\"(\w+)\"|pip_line\(\"(\w+)\"")
    texts = (file.read_text(encoding="utf-8") for file in (project / "src").rglob("*.py"))
    suggested = {one or other for text in texts for one, other in call.findall(text)}
    assert {"duckdb", "postgres", "spark"} <= suggested <= set(extras) | {"dev"}
    assert pip_line("spark") == "pip install 'deltalakedb[spark]'"
