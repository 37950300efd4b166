"""The documentation site builds without a warning, and its plots show the figures of its tables."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        tmp_path / "site",
    ]
    quiet = {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    for page in ("index", "start/tutorial/index", "reference/messages/index", "about/changelog/index"):
        assert (tmp_path / "site" / f"{page}.html").stat().st_size > 5000
    api = (tmp_path / "site" / "reference" / "api" / "index.html").read_text()
    assert [
        name for name in ("Catalog", "DeltaTable", "import_table", "ConflictError") if name not in api
    ] == []


def test_the_plots_show_the_figures_of_the_tables() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "benchmark_plots.py"))
    drawn = {path.stem: path.read_text("utf-8") for path in tool["FOLDER"].glob("*.svg")}
    assert drawn == tool["charts"](), "run: python tools/benchmark_plots.py"


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = [
        p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md") if p.stem != "template"
    ]
    assert [page for page in pages if page not in listed] == []
