"""The reference pages say what the code and the database say."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import click
import deltalake
import pytest

import deltalakedb.aio
import deltalakedb.models
import deltalakedb.spark
from deltalakedb import Catalog, CatalogSnapshot, CatalogTransaction
from deltalakedb.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
SYSTEM_TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'view'",
    "duckdb": "SELECT view_name AS name FROM duckdb_views() WHERE NOT internal",
    "postgres": "SELECT viewname::text AS name FROM pg_views WHERE schemaname = current_schema()",
}


CONTEXT = click.Context(cli)
COMMANDS = {name: cli.get_command(CONTEXT, name) for name in cli.list_commands(CONTEXT)}


def test_the_page_of_the_command_line_is_current() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "cli_reference.py"))["page"]
    made = "run: python tools/cli_reference.py > docs/reference/cli.md"
    assert (REFERENCE / "cli.md").read_text("utf-8") == page(), made


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert "Examples:" in command.help
    assert [p.name for p in command.params if isinstance(p, click.Option) and not p.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_common_options(name: str) -> None:
    flags = {flag for param in COMMANDS[name].params for flag in param.opts}
    assert {"--json", "--quiet", "--catalog", "--debug", "--config"} <= flags


def mentioned_commands() -> list[tuple[str, list[str]]]:
    """The lines and inline commands of the documentation that begin with ``deltasql``."""
    pages = [ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "adr")]
    found = []
    for page in pages:
        text = page.read_text("utf-8")
        lines = re.findall(r"`deltasql ([^`\n]+)`|^(?:\$ )?deltasql (.+)$", text, re.MULTILINE)
        found += [(str(page.relative_to(ROOT)), (a or b).split("  #")[0].split()) for a, b in lines]
    return found


def test_every_command_that_a_page_mentions_exists_with_its_options() -> None:
    wrong, mentioned = [], mentioned_commands()
    assert len(mentioned) > 100
    for page, words in mentioned:
        command: click.Command = cli
        rest = list(words)
        while isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z-]+", rest[0]):
            found = command.get_command(CONTEXT, rest[0])
            if found is None:
                break
            command = found
            rest.pop(0)
        if command is cli and rest and re.fullmatch(r"[a-z][a-z-]+", rest[0]):
            wrong.append(f"{page}: deltasql {' '.join(words)}: no such command")
        flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)} | {
            "--help"
        }
        asked = [word.strip("[]().,;").partition("=")[0] for word in rest if word.strip("[").startswith("--")]
        wrong += [f"{page}: deltasql {' '.join(words)}: {a}" for a in asked if a not in flags and a != "--"]
    assert wrong == []


def documented_views() -> dict[str, list[str]]:
    sections = re.split(r"^## ", (REFERENCE / "views.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {
        section.splitlines()[0]: re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) for section in sections
    }


def test_every_view_is_documented_with_its_columns_in_order(catalog_uri: str, engine_name: str) -> None:
    with Catalog(catalog_uri, create=True) as catalog:
        names = catalog.query(SYSTEM_TABLES[engine_name])["name"].to_pylist()
        found = {
            name: catalog.query(f"SELECT * FROM {name} LIMIT 0").column_names
            for name in names
            if name.startswith("dl_")
        }
    assert found == documented_views()


def test_every_public_name_of_ours_is_on_the_python_page() -> None:
    text = (REFERENCE / "python.md").read_text("utf-8")
    ours = set(deltalakedb.__all__) - set(deltalake.__all__)
    assert [name for name in sorted(ours) if f"`{name}" not in text] == []


def test_every_name_of_the_other_public_modules_is_on_the_python_page() -> None:
    text = (REFERENCE / "python.md").read_text("utf-8")
    models = [name for name, value in vars(deltalakedb.models).items() if inspect.isclass(value)]
    names = {*models, *deltalakedb.aio.__all__, *deltalakedb.spark.__all__} - set(deltalake.__all__)
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(
    "owner",
    [Catalog, CatalogSnapshot, CatalogTransaction, deltalakedb.DeltaTable],
    ids=lambda c: c.__name__,
)
def test_every_method_is_on_the_python_page(owner: type) -> None:
    text = (REFERENCE / "python.md").read_text("utf-8")
    methods = [n for n, m in vars(owner).items() if not n.startswith("_") and not inspect.isclass(m)]
    assert [n for n in methods if not re.search(rf"[`(, .]{n}[`(]", text)] == []
