"""The threads that synchronous calls run in: a bounded pool, and queues that keep the order of calls."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from deltalakedb.settings import get_config

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

logger = logging.getLogger(__name__)


class SerialQueue:
    """Runs calls one after the other, in the order they were made, each in any thread of the pool.

    A call whose task was cancelled still ends before the next begins: no object is used by two threads.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call when all before it have ended."""
        if self._pid != os.getpid():
            self._clear()  # the calls of the queue wait for threads of the parent process
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((future, call))
            if self._busy:
                return future
            self._busy = True
        _pool().submit(self._next)
        return future

    def _next(self) -> None:
        future, call = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:  # whatever it is, the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)
        with self._lock:
            self._busy = bool(self._waiting)
            if not self._busy:
                return
        _pool().submit(self._next)  # to the end of the pool's queue: queues take turns


def _submit(queue: SerialQueue | None, call: Callable[[], T]) -> Future[T]:
    context = copy_context()
    return (_pool() if queue is None else queue).submit(lambda: context.run(call))


async def run(queue: SerialQueue | None, call: Callable[[], T]) -> T:
    """Run a call in a thread, in its turn if there is a queue, and wait without blocking the event loop.

    A task that is cancelled stops waiting at once. The call itself is not interrupted: it runs to its end,
    unless it has not begun, in which case it never does.
    """
    future = _submit(queue, call)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.add_done_callback(_log_lost_error)
        raise


async def run_to_the_end(queue: SerialQueue | None, call: Callable[[], T]) -> T:
    """The same, but a task that is cancelled waits for the end of the call, too."""
    # a future and not a task: a loop that shuts down cancels every task
    future = _submit(queue, call)
    done = asyncio.wrap_future(future)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # it is in the future, and raised from there
            break
    if cancelled is None:
        return done.result()
    done.exception()  # retrieved, so that asyncio does not report it
    _log_lost_error(future)
    raise cancelled


def _log_lost_error(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("a call failed after its task was cancelled: %s", error)


_executor: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _pool() -> ThreadPoolExecutor:
    global _executor
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(get_config().aio.threads, thread_name_prefix="deltasql-aio")
        return _executor


def _after_fork() -> None:
    # threads do not survive a fork, and one of them may have held the lock
    global _executor, _lock
    _executor, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
