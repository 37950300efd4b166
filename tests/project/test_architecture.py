"""ARCHITECTURE.md speaks of rooms and functions that exist, and of all rooms."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "deltalakedb"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()


def defined(file: Path) -> set[str]:
    """The functions, classes and methods of a module; methods as ``Class.method``."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return names


def test_every_function_that_a_walk_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", TEXT)
    assert len(named) > 30, "the walks name their functions as `room/module.py:function`"
    assert [f"{file}:{name}" for file, name in named if name not in defined(SOURCE / file)] == []


def test_every_file_and_folder_that_is_named_exists() -> None:
    named = re.findall(r"`((?:[\w]+/)+(?:[\w]+\.(?:py|sql|java))?)`", TEXT)
    assert [n for n in named if not (SOURCE / n).exists() and not (ROOT / n).exists()] == []


def test_the_picture_the_table_and_the_contract_have_every_room() -> None:
    rooms = {p.name for p in SOURCE.iterdir() if p.is_dir() and not p.name.startswith("_")}
    table = set(re.findall(r"^\| `(\w+)/`", TEXT, re.MULTILINE))
    picture = set(re.findall(r"(\w+)\[[^\]]*\]", TEXT.partition("```mermaid")[2].partition("```")[0]))
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = {part.strip() for layer in linter["contracts"][0]["layers"] for part in layer.split("|")}
    assert rooms - table == set()
    assert rooms - picture == set()
    assert rooms - layers == set()
