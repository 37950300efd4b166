"""The project's own files agree with each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def pinned() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + [
        line for extra in ("duckdb", "postgres", "spark", "docs", "dev") for line in extras[extra]
    ]
    return [r for r in map(Requirement, lines) if r.name != project["name"]]


def test_constraints_pin_every_development_dependency_to_a_version_that_fits() -> None:
    pins = pinned()
    for requirement in wanted():
        pin = pins[canonicalize_name(requirement.name)]
        version = re.fullmatch(r"==([^=*]+)", str(pin.specifier))
        assert version, f"{pin} is not exact"
        assert requirement.specifier.contains(version[1], prereleases=True), (
            f"{pin} does not fit {requirement}"
        )


def test_constraints_name_no_host() -> None:
    assert "://" not in (ROOT / "constraints.txt").read_text()


def test_make_help_lists_every_target() -> None:
    listing = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == set(re.findall(r"^  make ([\w-]+) ", listing, re.MULTILINE))


def test_the_demo_needs_no_java_npm_or_root() -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "examples/tour.py" in planned
    assert [word for word in ("apt-get install -y", "npm", "java", "spark", "[dev]") if word in planned] == []


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    assert "pip install deltalakedb" in text
    assert re.search(r"^make demo .*\nmake test ", text, re.MULTILINE)


def test_ci_runs_lint_and_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    asked = re.findall(r"^make (.+)$", script.read_text(), re.MULTILINE)
    assert " ".join(asked).split() == ["lint", "test"]
