"""How asynchronous classes are made of synchronous ones: method by method, with the same parameters."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from deltalakedb.aio.threads import SerialQueue, run
from deltalakedb.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from pathlib import Path

    import deltalake

    from deltalakedb.aio.streams import Stream

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
W = TypeVar("W", bound="AsyncProxy[Any]")
I = TypeVar("I", bound="Stream[Any]")  # noqa: E741 - items


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
        """A proxy of an object that exists."""
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
        """The queue of an object that a method returns: this one's, or its own."""
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


def async_iterator(
    method: Callable[Concatenate[Any, P], Any], into: Callable[[Callable[[], Any], SerialQueue | None], I]
) -> Method[P, I]:
    """The asynchronous form of a method that returns an iterator; ``into`` is the kind of stream."""

    @functools.wraps(method)
    def call(self: AsyncProxy[Any], *args: Any, **options: Any) -> I:
        return into(lambda: _call(self._sync(), method, args, options), self._queue)

    return call  # type: ignore[return-value]  # a function is such a descriptor


def async_factory(method: Callable[Concatenate[Any, P], Any], into: type[W]) -> Method[P, W]:
    """The asynchronous form of a method that only makes an object, when that is first used."""

    @functools.wraps(method)
    def call(self: AsyncProxy[Any], *args: Any, **options: Any) -> W:
        return into._by(lambda: _call(self._sync(), method, args, options), self._child_queue())

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
