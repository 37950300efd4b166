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

#: unlike `multiprocessing`, this runs no module of the caller again
_CODE: Final = (
    "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from deltalakedb.transfer.importing.second_process import serve; serve()"
)


def in_second_process(make: Callable[[], Iterator[T]]) -> Iterator[T]:
    """The items of ``make()``, made in a second process; in a thread if there can be none.

    The second process ends with this one: it works on the next item at most, and cannot send it any more.

    Raises:
        OperationError: The second process was killed.
    """
    child = _started(make)
    if child is None:
        yield from ahead(make())
        return
    is_first = True
    with child:
        try:
            while (found := _received(child)) is not None:
                is_first = False
                item, error, peak = found
                note_second_peak(peak)
                if error is not None:
                    raise error
                if not item:
                    return
                yield item.pop()  # it is not kept while the next one is received
        finally:
            child.kill()
    if not is_first:
        raise OperationError(
            f"the process that encodes files was ended from outside (exit code {child.returncode})",
            suggestion="check that the machine has memory left, then run the same import again: it resumes",
        )
    logger.info("no second process could encode files (exit code %s)", child.returncode)
    yield from ahead(make())


def _started(make: Callable[[], Iterator[Any]]) -> subprocess.Popen[bytes] | None:
    if (
        os.cpu_count() == 1 or "python" not in Path(sys.executable or "").name
    ):  # another program embeds Python
        return None
    try:
        task = pickle.dumps(sys.path) + pickle.dumps((make, get_config()))
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other one
        )
    except (OSError, pickle.PicklingError, TypeError, AttributeError) as error:
        logger.info("no second process can encode files: %s", error)
        return None
    with suppress(BrokenPipeError), _pipe(child.stdin) as pipe:  # if it has ended, nothing is received
        pipe.write(task)
    return child


def _pipe(found: IO[bytes] | None) -> IO[bytes]:
    return cast("IO[bytes]", found)


def _received(child: subprocess.Popen[bytes]) -> Any:
    """A list of an item or nothing, an error, and the memory that the process took; None if it ended."""
    try:
        return pickle.load(_pipe(child.stdout))  # noqa: S301 - it runs our own code
    except (EOFError, pickle.UnpicklingError):
        return None


class _NoPandas:
    """Arrow imports pandas if it finds it, and uses nothing of it here; that takes up to a second."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def serve() -> None:
    """What the second process runs: send the items, then nothing, or the error."""
    sys.meta_path.insert(0, _NoPandas)
    pa.set_memory_pool(pa.system_memory_pool())  # the others keep what was freed
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not disturb

    def send(item: list[Any], error: Exception | None) -> None:
        pickle.dump((item, error, peak_bytes()), out, protocol=5)
        out.flush()

    try:
        make, config = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
        with use_config(config):
            for item in map(list, zip(make())):  # lists of one
                send(item, None)
                item.clear()  # before the next one is made
        send([], None)
    except BrokenPipeError:
        os._exit(0)  # nobody reads any more
    except Exception as error:  # it is raised there
        send([], error)
