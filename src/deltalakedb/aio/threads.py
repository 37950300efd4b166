"""Synchronous calls in threads: a bounded pool, queues that keep the order of calls, proxies and streams."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import pyarrow as pa
from arro3.core import RecordBatch, Schema, Table

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.settings import get_config

if TYPE_CHECKING:
    from pathlib import Path

    import deltalake

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
W = TypeVar("W", bound="AsyncProxy[Any]")

logger = logging.getLogger(__name__)

# ---- calls ---------------------------------------------------------------------------------------------


class SerialQueue:
    """Runs calls one after the other, in the order they were made, each in any thread of the pool.

    A call whose task was cancelled still ends before the next begins: no object is used by two threads.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        #: done when the last call has ended
        self._last: Future[None] | None = None

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call when all before it have ended."""
        future: Future[T] = Future()
        ended: Future[None] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # whatever it is, the caller gets it
                    future.set_exception(error)
            ended.set_result(None)

        if self._pid != os.getpid():
            # in a forked process, earlier calls wait for threads of the parent
            self._pid, self._lock, self._last = os.getpid(), threading.Lock(), None
        with self._lock:
            before, self._last = self._last, ended
        if before is None:
            _pool().submit(work)
        else:
            before.add_done_callback(lambda _: _pool().submit(work))
        return future


def _submit(queue: SerialQueue | None, call: Callable[[], T]) -> Future[T]:
    context = copy_context()
    return (_pool() if queue is None else queue).submit(lambda: context.run(call))


async def run(queue: SerialQueue | None, call: Callable[[], T]) -> T:
    """Run a call in a thread, in its turn if there is a queue, and wait without blocking the event loop.

    A task that is cancelled stops waiting at once. A call that has begun runs to its end; one that has not
    never begins.
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
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
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


# ---- proxies -------------------------------------------------------------------------------------------


class AsyncProxy(Generic[S]):
    """An object whose methods await those of a synchronous one.

    Args:
        make: Makes the synchronous object, in a thread, when it is first needed.
        queue: Runs its calls one after the other; None for calls side by side.
    """

    def __init__(self, make: Callable[[], S], queue: SerialQueue | None) -> None:
        self._make = make
        self._queue = queue
        self._making = threading.Lock()
        self._made: S | None = None

    @classmethod
    def _by(cls, make: Callable[[], S], queue: SerialQueue | None) -> Self:
        """A proxy of an object that is made when it is first needed, whatever the constructor takes."""
        proxy = cls.__new__(cls)
        AsyncProxy.__init__(proxy, make, queue)
        return proxy

    @classmethod
    def _of(cls, made: S, queue: SerialQueue | None) -> Self:
        proxy = cls._by(lambda: made, queue)
        proxy._made = made
        return proxy

    def _now(self) -> S:
        """The synchronous object, for attributes that need no thread; it must be open."""
        if self._made is None:
            raise InvalidArgumentError(
                f"the {type(self).__name__} is not open yet",
                suggestion="await it, or one of its methods, or enter it with `async with` first",
            )
        return self._made

    def _sync(self) -> S:
        """The synchronous object; for use in threads."""
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _child_queue(self) -> SerialQueue:
        """The queue of an object that a method returns: this one's, or a new one."""
        return self._queue or SerialQueue()

    async def _run(self, call: Callable[[S], T]) -> T:
        return await run(self._queue, lambda: call(self._sync()))

    async def _open(self) -> Self:
        await self._run(lambda _: None)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait until the object is open: ``table = await DeltaTable(uri)``."""
        return self._open().__await__()

    def __repr__(self) -> str:
        return f"aio.{type(self).__name__}({'not open yet' if self._made is None else repr(self._made)})"


if TYPE_CHECKING:

    class AsyncMethod(Generic[P, R]):
        """A method that is awaited."""

        def __get__(self, instance: object, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...

    class Method(Generic[P, R]):
        """A method that returns at once."""

        def __get__(self, instance: object, owner: type) -> Callable[P, R]: ...


@overload
def async_method(method: Callable[Concatenate[Any, P], Any], into: type[W]) -> AsyncMethod[P, W]: ...
@overload
def async_method(method: Callable[Concatenate[Any, P], R]) -> AsyncMethod[P, R]: ...
def async_method(method: Callable[..., Any], into: type[AsyncProxy[Any]] | None = None) -> Any:
    """The asynchronous form of a method; ``into`` is the asynchronous class of its result."""

    @functools.wraps(method)
    async def call(self: AsyncProxy[Any], *args: Any, **options: Any) -> Any:
        result = await self._run(lambda sync: _call(sync, method, args, options))
        return result if into is None else into._of(result, self._child_queue())

    return call


def async_factory(
    method: Callable[Concatenate[Any, P], Any], into: Callable[[Callable[[], Any], SerialQueue], R]
) -> Method[P, R]:
    """The asynchronous form of a method whose result is made when it is first used: ``into(make, queue)``."""

    @functools.wraps(method)
    def call(self: AsyncProxy[Any], *args: Any, **options: Any) -> R:
        return into(lambda: _call(self._sync(), method, args, options), self._child_queue())

    return call  # type: ignore[return-value]  # a function is such a descriptor


@overload
def async_function(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]: ...
@overload
def async_function(
    function: Callable[P, Any], into: Callable[[Any], T]
) -> Callable[P, Coroutine[Any, Any, T]]: ...
def async_function(function: Callable[..., Any], into: Callable[[Any], Any] | None = None) -> Any:
    """The asynchronous form of a function; ``into`` makes the asynchronous form of its result."""

    @functools.wraps(function)
    async def call(*args: Any, **options: Any) -> Any:
        proxies = [a for a in (*args, *options.values()) if isinstance(a, AsyncProxy)]
        queue = proxies[0]._queue if proxies else None
        result = await run(queue, lambda: function(*_unwrap(args), **_unwrap(options)))
        return result if into is None else into(result)

    return call


def async_function_on_table(
    function: Callable[Concatenate[Any, P], R],
    kind: type[W],  # noqa: ARG001 - for type checkers
) -> Callable[Concatenate[str | Path | deltalake.DeltaTable | W, P], Coroutine[Any, Any, R]]:
    """The asynchronous form of a function whose first argument is an address or a table of either form."""
    return async_function(function)


def _call(sync: Any, method: Callable[..., Any], args: Any, options: Any) -> Any:
    # by name: the object may be of a subclass that overrides the method
    return getattr(sync, method.__name__)(*_unwrap(args), **_unwrap(options))


def _unwrap(given: Any) -> Any:
    """Arguments with synchronous objects instead of their proxies; for use in threads."""
    if isinstance(given, dict):
        return dict(zip(given, _unwrap(given.values()), strict=True))
    return tuple(value._sync() if isinstance(value, AsyncProxy) else value for value in given)


# ---- streams -------------------------------------------------------------------------------------------


class Stream(AsyncProxy[Iterator[T]]):
    """Items in their order, a bounded number of them in memory.

    ``async for item in stream``; ``await stream`` opens it before that, so that errors come early. It is read
    once.

    Args:
        make: Makes the iterator, in a thread.
        queue: Runs that; the items themselves are fetched in a queue of the stream.
    """

    #: items that are fetched at a time
    _at_once = 1000

    def __init__(self, make: Callable[[], Any], queue: SerialQueue | None) -> None:
        super().__init__(lambda: self._iterate(make()), queue)
        self._fetching = SerialQueue()
        self._ahead: deque[T] = deque()
        self._over = False

    def _iterate(self, made: Any) -> Iterator[T]:
        return iter(made)

    # the two below run in threads; their results stay even if the task that waited was cancelled

    def _fetch(self) -> None:
        if not self._over:
            fetched = list(islice(self._sync(), self._at_once))
            self._ahead.extend(fetched)
            self._over = not fetched

    def _close(self) -> None:
        self._over = True
        if isinstance(self._made, GeneratorType):
            self._made.close()

    async def _open(self) -> Self:
        return self if self._over else await super()._open()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._made is None:
            await self._open()
        if not self._ahead and not self._over:
            await run(self._fetching, self._fetch)
        if self._ahead:
            return self._ahead.popleft()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Read no more, and close what is open."""
        self._ahead.clear()
        await run(self._fetching, self._close)

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Batches(Stream[RecordBatch]):
    """Record batches, each read in a thread when it is requested."""

    _at_once = 1
    _reader: pa.RecordBatchReader

    def _iterate(self, made: Any) -> Iterator[RecordBatch]:
        # pyarrow's reader lets other threads run while it waits for the next batch
        self._reader = pa.RecordBatchReader.from_stream(made)
        return self._batches()

    def _batches(self) -> Iterator[RecordBatch]:
        with self._reader:
            for batch in self._reader:
                yield RecordBatch.from_arrow(batch)

    async def schema(self) -> Schema:
        """The schema of the batches."""
        await self._open()
        return Schema.from_arrow(self._reader.schema)

    async def read_all(self) -> Table:
        """The remaining rows as one table."""
        await self._open()

        def read() -> Table:
            left = [*self._ahead, *(() if self._over else self._sync())]
            self._ahead.clear()
            self._close()
            return Table.from_batches(left, schema=Schema.from_arrow(self._reader.schema))

        return await run(self._fetching, read)
