"""The reference pages of addresses, settings, errors and signals say what the code says."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest

from deltalakedb import exceptions, telemetry
from deltalakedb.address import OPTIONS, parse_address
from deltalakedb.settings import Config

REFERENCE = Path(__file__).parents[2] / "docs/reference"


def rows(page: str) -> list[list[str]]:
    """The cells of a page's table rows, without backticks."""
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        for line in lines
        if line[:2] == "| "
    ]


@pytest.fixture(autouse=True)
def _away_from_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DELTASQL_CONFIG", "DELTASQL_CATALOG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("page", ["addresses.md", "configuration.md", "errors.md", "telemetry.md"])
def test_the_examples_of_a_page_run(page: str) -> None:
    result = doctest.testfile(str(REFERENCE / page), module_relative=False, encoding="utf-8")
    assert result.attempted > 0
    assert result.failed == 0


def test_every_address_on_the_page_parses() -> None:
    block = re.search(r"```text\n(.*?)```", (REFERENCE / "addresses.md").read_text(), re.DOTALL)
    assert block
    for line in block[1].splitlines():
        assert parse_address(parse_address(line).to_uri(redact=False)) == parse_address(line)


def test_every_driver_option_is_on_the_page() -> None:
    listed = {name for row in rows("addresses.md") for name in row[0].split(", ")}
    assert {name for options in OPTIONS.values() for name in options} <= listed


def test_every_setting_is_on_the_page_with_its_default() -> None:
    listed = {row[0]: row[1] for row in rows("configuration.md") if re.fullmatch(r"\w+\.\w+", row[0])}
    assert listed == {setting.name: setting.value for setting in Config().describe()}


def test_the_files_on_the_page_load(tmp_path: Path) -> None:
    text = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    for kind in ("toml", "yaml"):
        block = re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)
        assert block
        (tmp_path / f"page.{kind}").write_text(block[1])
        assert Config.load(tmp_path / f"page.{kind}").catalog.uri is not None


def test_every_error_is_on_the_page() -> None:
    listed = {row[0]: row for row in rows("errors.md") if row[0].endswith("Error")}
    ours = [
        c for c in vars(exceptions).values() if inspect.isclass(c) and issubclass(c, exceptions.DeltaSqlError)
    ]
    assert set(listed) == {kind.__name__ for kind in ours}
    for kind in ours:
        _, also, transient, _ = listed[kind.__name__]
        bases = {base.__name__ for base in kind.__bases__ if base is not exceptions.DeltaSqlError}
        assert {name for name in also.split(", ") if name} == bases
        assert (transient == "yes") == kind.transient


def test_every_signal_is_on_the_page() -> None:
    listed = {row[0]: (row[1], row[2], row[3].lower()) for row in rows("telemetry.md")[1:]}
    signals = telemetry.SIGNALS.values()
    assert listed == {s.name: (s.kind, ", ".join(s.labels), s.help.lower()) for s in signals}
