"""Large imports encode in a second process: same table, same errors, and neither outlives the other."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltalakedb import import_table, rollback_import
from deltalakedb.exceptions import LogCorruptError, OperationError
from deltalakedb.transfer.importing import loader
from deltalakedb.transfer.importing.second_process import in_second_process
from support.sources import contents, many_files

if TYPE_CHECKING:
    from collections.abc import Iterator

#: a script without `if __name__ == "__main__"`
SCRIPT = """
import sys
from deltalakedb import import_table
from deltalakedb.transfer.importing import loader
loader.SECOND_PROCESS_FROM = 0
print(import_table(sys.argv[1], sys.argv[2], history="checkpoint").num_files)
"""
#: prints the second process's id, then waits for items that never come
PARENT = """
from functools import partial
from deltalakedb.transfer.importing.second_process import in_second_process
from test_second_process import process_ids
for number in in_second_process(partial(process_ids, 2, size=1 << 20)):
    print(number[0], flush=True)
    input()
"""


def process_ids(count: int, *, size: int = 0) -> Iterator[tuple[int, bytes]]:
    for _ in range(count):
        yield os.getpid(), bytes(size)


def killed_after(count: int) -> Iterator[int]:
    yield from range(count)
    os.kill(os.getpid(), signal.SIGKILL)


def torn() -> Iterator[int]:
    yield 1
    raise LogCorruptError("torn", version=7, suggestion="mend it")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}


def test_a_table_is_the_same_as_encoded_in_this_process(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, uri = many_files(tmp_path / "source"), f"{catalog_uri}?table=t"
    wanted = import_table(source, uri, history="checkpoint", batch_size=7)
    rows = contents(uri)
    rollback_import(uri)
    monkeypatch.setattr(loader, "SECOND_PROCESS_FROM", 0)
    done = import_table(source, uri, history="checkpoint", batch_size=7)
    assert (done.digest, done.num_files) == (wanted.digest, wanted.num_files)
    assert contents(uri) == rows


def test_a_torn_checkpoint_is_found_in_the_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, uri = many_files(tmp_path / "source"), f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    wanted = import_table(source, uri)
    rollback_import(uri)
    file = next((Path(source) / "_delta_log").glob("*.checkpoint.parquet"))
    whole = file.read_bytes()
    file.write_bytes(b"PAR1" + bytes(len(whole) - 4 - 4000) + whole[-4000:])
    monkeypatch.setattr(loader, "SECOND_PROCESS_FROM", 0)
    done = import_table(source, uri, history="checkpoint")
    assert (done.digest, done.passed_over) == (wanted.digest, (1,))


def test_a_script_without_a_guard_for_its_main_module(tmp_path: Path) -> None:
    source, uri = many_files(tmp_path / "source"), f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(source), uri]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert int(done.stdout) > 0


def test_items_come_from_another_process_in_their_order() -> None:
    found = {number for number, _ in in_second_process(partial(process_ids, 3))}
    assert len(found) == 1
    assert found != {os.getpid()}


def test_without_a_second_process_the_items_are_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [(os.getpid(), b"")] * 2
    assert list(in_second_process(lambda: process_ids(2))) == here, "a function that no process can be sent"
    for executable in ("/nowhere/python", "/bin/program", ""):
        monkeypatch.setattr(sys, "executable", executable)
        assert list(in_second_process(partial(process_ids, 2))) == here


def test_an_error_arrives_as_what_it_is() -> None:
    items = in_second_process(torn)
    assert next(items) == 1
    with pytest.raises(LogCorruptError) as caught:
        next(items)
    assert (caught.value.version, caught.value.suggestion) == (7, "mend it")


def test_a_second_process_that_is_killed_is_an_error() -> None:
    items = in_second_process(partial(killed_after, 2))
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(OperationError, match="exit code -9") as caught:
        next(items)
    assert "resumes" in (caught.value.suggestion or "")


def test_the_second_process_ends_with_an_unfinished_import() -> None:
    items = in_second_process(partial(process_ids, 5, size=1 << 20))
    child = os.pidfd_open(next(items)[0])
    items.close()  # type: ignore[attr-defined]
    assert select.select([child], [], [], 60)[0], "it still runs"


def test_the_second_process_ends_if_this_one_is_killed() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([child], [], [], 60)[0], "it still runs"
