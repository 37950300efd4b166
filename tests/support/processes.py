"""Real child processes at the price of a fork: a server that has imported everything makes them.

A child gets its failpoints through the environment, as any process would; ``arm`` sets them later, once the
child has prepared what the fault is to hit.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalakedb import failpoints
from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogNotFoundError
from deltalakedb.metastore.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

_context = multiprocessing.get_context("forkserver")
# `deltalakedb` alone loads next to nothing: what a child uses is named here, or every child imports it anew
_context.set_forkserver_preload(
    [
        "deltalakedb.catalog",
        "deltalakedb.metastore.engines.duckdb",
        "deltalakedb.metastore.engines.postgres",
        "deltalakedb.metastore.engines.sqlite",
        "deltalakedb.table.read.dataset",
        "duckdb",
        "hypothesis",
        "pandas",
        "psycopg",
        "pyarrow.dataset",
        "pyarrow.parquet",
        "pytest",
    ]
)
PATIENCE = 120


class Child:
    """A process that runs one function.

    Args:
        work: A function of a module that the child can import.
        arguments: What it is called with; plain data.
        points: Failpoints, in the form of DELTASQL_FAILPOINTS.
        folder: Where its answer lies.
        patience: Seconds to wait for its end; one that takes longer is killed.
        settings: Environment variables.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        *arguments: Any,
        folder: Path,
        points: str = "",
        patience: float = PATIENCE,
        **settings: str,
    ) -> None:
        self._patience = patience
        self._catalogs = [a for a in arguments if isinstance(a, str) and a.startswith("deltasql://")]
        self._answer = folder / f"{os.getpid()}-{id(self)}.answer"
        environment = {failpoints.VARIABLE: points, **settings}
        self.process: BaseProcess = _context.Process(
            target=_run, args=(work, arguments, environment, str(self._answer)), daemon=True
        )
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def kill(self) -> None:
        """Kill it, as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.join(self._patience)
        self._end_leases()

    def died(self, *, leases_end: bool = True) -> None:
        """Wait until it was killed by its failpoint; assert that it was.

        Args:
            leases_end: Let the time of its leases pass, as if this happened later.
        """
        self.process.join(self._patience)
        assert self.process.exitcode == -signal.SIGKILL, (
            f"the child ended with {self.process.exitcode}: {self._told()}"
        )
        if leases_end:
            self._end_leases()

    def _end_leases(self) -> None:
        holder = f"{socket.gethostname()}:{self.pid}:%"
        for uri in self._catalogs:
            address = parse_address(uri)
            database = Database.open(address.catalog)
            with suppress(CatalogNotFoundError), database.write() as session:
                session.run("UPDATE dl_leases SET expires_at = 0 WHERE holder LIKE ?", (holder,))
            database.close()

    def result(self) -> Any:
        """Wait for what its function returned."""
        self.process.join(self._patience)
        if self.process.exitcode is None:
            self.kill()
        told = self._told()
        assert self.process.exitcode == 0, f"the child ended with {self.process.exitcode}: {told}"
        return told

    def _told(self) -> Any:
        return json.loads(self._answer.read_text()) if self._answer.exists() else None

    def pause(self) -> None:
        """Wait until it has stopped itself at a failpoint."""
        until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def resume(self) -> None:
        """Let a stopped process go on."""
        os.kill(self.pid, signal.SIGCONT)


def event() -> Any:
    """A flag that the test and its children share."""
    return _context.Event()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that only shows by asking."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def results(children: Sequence[Child]) -> list[Any]:
    """What all of them returned."""
    return [child.result() for child in children]


def arm(points: str) -> None:
    """Switch failpoints on from here on."""
    os.environ[failpoints.VARIABLE] = points
    failpoints._active = failpoints._parse(points)
    failpoints._hits.clear()


def _run(
    work: Callable[..., Any], arguments: Sequence[Any], environment: dict[str, str], answer: str
) -> None:
    os.environ.update(environment)
    arm(environment[failpoints.VARIABLE])
    try:
        told = work(*arguments)
    except BaseException:
        Path(answer).write_text(json.dumps(traceback.format_exc()))
        raise
    Path(answer).write_text(json.dumps(told))
