"""Run the fast part of the tests on the oldest and the newest Python at hand; `make test-pythons` calls it.

It looks for every supported version on the path, in pyenv and in uv, which may install missing ones, and
reports which it found. Each gets an environment of its own, such as `.venv-3.13`, without Spark.

    python tools/test_pythons.py             # oldest and newest
    python tools/test_pythons.py 3.12 -k sqlite
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: what needs neither Spark nor servers, and takes a minute or two
ROOMS = ("protocol", "commit", "storage", "delta_log", "table/test_light_import.py")
FAST = [f"tests/{room}" for room in ROOMS]
FAST += [str(p.relative_to(ROOT)) for p in sorted((ROOT / "tests").glob("test_*.py"))]
#: of the extra `dev`, what these tests do not need
LEFT_OUT = ("deltalakedb", "pyspark", "mypy", "ruff", "pre-commit", "import-linter")


def supported() -> list[str]:
    """The versions that the package claims to support."""
    classifiers = project()["classifiers"]
    return [c.rpartition(" ")[2] for c in classifiers if re.fullmatch(r".*:: Python :: 3\.\d+", c)]


def project() -> dict:  # type: ignore[type-arg]
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def interpreter(version: str) -> str | None:
    """An interpreter of a version such as 3.13, which uv may have to fetch first."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    if uv := shutil.which("uv"):
        subprocess.run([uv, "python", "install", version], capture_output=True, check=False)
        found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False)
        candidates.append(found.stdout.strip())
    test = f"import sys, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for candidate in candidates:
        if candidate and shutil.which(candidate):
            done = subprocess.run([candidate, "-c", test], capture_output=True, check=False)
            if done.returncode == 0:
                return candidate
    return None


def environment(version: str, python: str) -> Path:
    """The Python of an environment with the package and what the tests need."""
    folder = ROOT / f".venv-{version}"
    made = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        extra = project()["optional-dependencies"]["dev"]
        wanted = [line for line in extra if re.match(r"[\w.-]+", line)[0] not in LEFT_OUT]  # type: ignore[index]
        install = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["-c", ROOT / "constraints.txt", "-e", f"{ROOT}[duckdb,postgres]", *wanted]
        subprocess.run(install, check=True)
        (folder / ".installed").touch()
    return made


def main(words: list[str]) -> int:
    asked = [word for word in words if re.fullmatch(r"3\.\d+", word)]
    found = {v: python for v in asked or supported() if (python := interpreter(v)) is not None}
    missing = [v for v in asked or supported() if v not in found]
    print(f"found: {', '.join(found) or 'none'}" + (f"; not found: {', '.join(missing)}" if missing else ""))
    # the classifiers go from the oldest to the newest
    chosen = list(found) if asked else list(dict.fromkeys([*list(found)[:1], *list(found)[-1:]]))
    if not chosen:
        print("Install one of them, or uv, which fetches interpreters.", file=sys.stderr)
        return 1
    status = 0
    for version in chosen:
        print(f"── Python {version}: {found[version]}", flush=True)
        command = [environment(version, found[version]), "-m", "pytest", "-q", "-n", "2"]
        command += [word for word in words if word not in asked]
        status |= subprocess.run([*command, *FAST], cwd=ROOT, check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
