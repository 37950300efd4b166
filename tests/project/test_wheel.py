"""The wheel as a stranger gets it: its metadata, and the README's program in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from email import message_from_string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (n for n in files.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_string(files.read(name).decode())


def test_the_metadata_is_complete(metadata: Message) -> None:
    assert metadata["Author"] == "deltalakedb developers"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    urls = dict(value.split(", ") for value in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog"} <= set(urls)
    assert {f"Programming Language :: Python :: 3.{n}" for n in (11, 12, 13)} <= set(
        metadata.get_all("Classifier", [])
    )


def test_links_of_the_description_work_outside_of_the_clone(metadata: Message) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", metadata.get_payload())
    assert len(targets) > 8
    assert [t for t in targets if not t.startswith("https://")] == []
    site = dict(v.split(", ") for v in metadata.get_all("Project-URL", []))["Homepage"]
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.*")}
    pages |= {
        f"about/{name}.md" for name in ("architecture", "contributing", "changelog")
    }  # made for the site
    led_to = [t.removeprefix(site) for t in targets if t.startswith(site)]
    files = [f"{page.rstrip('/')}.md" if page.endswith("/") else page or "index.md" for page in led_to]
    assert [file for file in files if file not in pages] == []


def test_the_program_of_the_readme_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    # the running pip installs into the empty environment, from its cache; what PYTHONPATH has is not there
    install = [*PIP, "--python", python, "install", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(install, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, check=True)
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program
    (tmp_path / "program.py").write_text(program[1])
    printed = "[{'id': 2, 'city': 'Oslo'}, {'id': 3, 'city': 'Lima'}]\n2\n"
    listing = [python.with_name("deltasql"), "list", "-q", "--catalog", "deltasql://sqlite/lake/meta.db"]
    for command, expected in (([python, "program.py"], printed), (listing, "orders\nreturns\n")):
        done = subprocess.run(
            command, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
