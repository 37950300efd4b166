"""DuckLake in an environment of its own: it needs an older DuckDB, and its extensions come as wheels."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

VERSION: Final = "1.5.5"
EXTENSIONS: Final = ("ducklake", "postgres_scanner", "sqlite_scanner")
_PACKAGES: Final = (
    f"duckdb=={VERSION}",
    f"duckdb-extensions=={VERSION}",
    *(f"duckdb-extension-{name.replace('_', '-')}=={VERSION}" for name in EXTENSIONS),
)
_TRY: Final = "import duckdb, sys; c = duckdb.connect(); [c.execute(f\"LOAD '{p}'\") for p in sys.argv[1:]]"


class NoDuckLakeError(Exception):
    """Why DuckLake cannot be measured on this machine."""


def ensure(data: Path) -> tuple[Path, list[str]]:
    """The environment's interpreter and its extensions' files; made once.

    Raises:
        NoDuckLakeError: Something could not be installed or does not load.
    """
    home = data / "ducklake-env"
    python = home / "bin" / "python"
    try:
        if not python.exists():
            venv.create(home, with_pip=True)
        if not (files := _files(home)):
            _run(python, "-m", "pip", "install", "--quiet", *_PACKAGES)
            files = _files(home)
        if len(files) != len(EXTENSIONS):
            raise NoDuckLakeError(f"the wheels hold {len(files)} of {len(EXTENSIONS)} extensions")
        _run(python, "-c", _TRY, *files)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoDuckLakeError(str(error)) from error
    return python, files


def _files(home: Path) -> list[str]:
    # ducklake comes last: the others are what it reads its catalogs with
    order = (*(e for e in EXTENSIONS if e != "ducklake"), "ducklake")
    found = [list(home.glob(f"lib/*/site-packages/**/v{VERSION}/{name}.duckdb_extension")) for name in order]
    return [str(files[0]) for files in found if files]


def _run(python: Path, *arguments: str) -> None:
    done = subprocess.run([python, *arguments], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NoDuckLakeError(lines[-1][:300] if lines else f"{python} failed")


if __name__ == "__main__":
    interpreter, _ = ensure(Path(sys.argv[1]))
    print(interpreter)
