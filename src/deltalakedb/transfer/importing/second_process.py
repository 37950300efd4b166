"""A second Python process, which encodes the files of a large table while this one writes them."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

import pyarrow as pa

from deltalakedb.exceptions import OperationError
from deltalakedb.settings import get_config, use_config
from deltalakedb.transfer.importing.encoding import ahead
from deltalakedb.transfer.importing.options import note_second_peak, peak_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: unlike `multiprocessing`, this does not import the caller's main module again
_CODE: Final = (
    "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from deltalakedb.transfer.importing.second_process import serve; serve()"
)


def in_second_process(make: Callable[[], Iterator[T]]) -> Iterator[T]:
    """The items of ``make()``, made in a second process, or in a thread if none can be started.

    The second process ends with this one: it makes at most one more item, which it cannot send.

    Raises:
        OperationError: The second process was killed.
    """
    child = _start(make)
    if child is None:
        yield from ahead(make())
        return
    has_received = False
    with child:
        try:
            while (message := _receive(child)) is not None:
                has_received = True
                item, error, peak = message
                note_second_peak(peak)
                if error is not None:
                    raise error
                if not item:
                    return
                yield item.pop()  # keeps no reference while the next one is received
        finally:
            child.kill()
    if has_received:
        raise OperationError(
            f"the process that encodes files was killed (exit code {child.returncode})",
            suggestion="check that the machine has memory left, then run the same import again: it resumes",
        )
    logger.info("no second process could encode files (exit code %s)", child.returncode)
    yield from ahead(make())


def _start(make: Callable[[], Iterator[Any]]) -> subprocess.Popen[bytes] | None:
    is_embedded = "python" not in Path(sys.executable or "").name  # in another program
    if os.cpu_count() == 1 or is_embedded:
        return None
    try:
        task = pickle.dumps(sys.path) + pickle.dumps((make, get_config()))
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only this process, which kills the other one
        )
    except (OSError, pickle.PicklingError, TypeError, AttributeError) as error:
        logger.info("no second process can encode files: %s", error)
        return None
    with suppress(BrokenPipeError), _pipe(child.stdin) as pipe:  # if it has ended, nothing is received
        pipe.write(task)
    return child


def _pipe(found: IO[bytes] | None) -> IO[bytes]:
    return cast("IO[bytes]", found)


def _receive(child: subprocess.Popen[bytes]) -> Any:
    """A list of one item, or empty at the end; an error; the peak memory. None if the process has ended."""
    try:
        return pickle.load(_pipe(child.stdout))  # noqa: S301 - it runs our own code
    except (EOFError, pickle.UnpicklingError):
        return None


class _NoPandas:
    """Keeps Arrow from importing pandas, which takes up to a second and is not needed here."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def serve() -> None:
    """Run the second process: send each item, then an empty list, or the error that ended them."""
    sys.meta_path.insert(0, _NoPandas)
    pa.set_memory_pool(pa.system_memory_pool())  # other pools keep freed memory
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing printed gets into the pipe

    def send(item: list[Any], error: Exception | None) -> None:
        pickle.dump((item, error, peak_bytes()), out, protocol=5)
        out.flush()

    try:
        make, config = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
        with use_config(config):
            for item in make():
                send([item], None)
                del item  # before the next one is made
        send([], None)
    except BrokenPipeError:
        os._exit(0)  # the other process has ended
    except Exception as error:  # the other process raises it
        send([], error)
