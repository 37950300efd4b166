"""The threads that synchronous work runs in: a bounded pool, and lanes that keep the order of calls."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from deltalakedb.settings import get_config

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs calls in threads."""

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call, now or when its turn comes."""
        ...

    def child(self) -> Runner:
        """The runner of an object that one of the calls gave."""
        ...


class Threads:
    """Calls side by side, as many as the setting ``aio.threads`` allows."""

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call as soon as a thread is free."""
        return _pool().submit(call)

    def child(self) -> Runner:
        """Objects that are not meant for several threads at once get a lane of their own."""
        return Lane()


class Lane:
    """Calls one after the other, in the order they were made, each in any thread of the pool.

    A call whose caller has gone away still ends before the next begins: no object is used by two threads.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call when all before it have ended."""
        if self._pid != os.getpid():
            self._forget()  # what waits here waits for threads of the parent process
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
            except BaseException as error:  # the caller shall have it, whatever it is
                future.set_exception(error)
            else:
                future.set_result(result)
        with self._lock:
            self._busy = bool(self._waiting)
            if not self._busy:
                return
        _pool().submit(self._next)  # to the end of the pool's queue: lanes take turns

    def child(self) -> Runner:
        """What belongs to the object shares its lane."""
        return self


async def run(runner: Runner, call: Callable[[], T]) -> T:
    """Run a call in a thread and wait for it without blocking the event loop.

    A task that is cancelled meanwhile stops waiting at once. The call itself is never cut in the middle: one
    that has not begun never does, one that has goes on to its end.
    """
    context = copy_context()
    future = runner.submit(lambda: context.run(call))
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.add_done_callback(_tell)
        raise


async def run_to_the_end(runner: Runner, call: Callable[[], T]) -> T:
    """The same, but a task that is cancelled waits for the end as well."""
    context = copy_context()
    # a future and not a task: a loop that shuts down cancels every task
    done = asyncio.wrap_future(runner.submit(lambda: context.run(call)))
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
    if (lost := done.exception()) is not None:
        _warn(lost)
    raise cancelled


def _tell(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _warn(error)


def _warn(error: BaseException) -> None:
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
    # threads do not survive a fork, and the lock may be held by one of them
    global _executor, _lock
    _executor, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
