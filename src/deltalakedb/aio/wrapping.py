"""How asynchronous classes are made of synchronous ones: method by method, with the same parameters."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from deltalakedb.aio.threads import Threads, run
from deltalakedb.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from pathlib import Path

    import deltalake

    from deltalakedb.aio.streams import Stream
    from deltalakedb.aio.threads import Runner

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
W = TypeVar("W", bound="Wrapped[Any]")
I = TypeVar("I", bound="Stream[Any]")  # noqa: E741 - items


class Wrapped(Generic[S]):
    """An object whose methods await what those of a synchronous one do.

    Args:
        make: Makes the synchronous object, in a thread, when it is first needed.
        runner: Runs its calls.
    """

    def __init__(self, make: Callable[[], S], runner: Runner) -> None:
        self._make = make
        self._runner = runner
        self._making = threading.Lock()
        self._made: S | None = None

    @classmethod
    def _by(cls, make: Callable[[], S], runner: Runner) -> Self:
        """Wrap an object that is made when it is first needed, whatever the class's own constructor takes."""
        wrapped = cls.__new__(cls)
        Wrapped.__init__(wrapped, make, runner)
        return wrapped

    @classmethod
    def _of(cls, made: S, runner: Runner) -> Self:
        """Wrap an object that there is."""
        wrapped = cls._by(lambda: made, runner)
        wrapped._made = made
        return wrapped

    def _now(self) -> S:
        """The synchronous object, for facts that it has at hand; it must be open."""
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

    async def _run(self, call: Callable[[S], T]) -> T:
        return await run(self._runner, lambda: call(self._sync()))

    async def _open(self) -> Self:
        await self._run(lambda _: None)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait until the object is open: ``table = await DeltaTable(uri)``."""
        return self._open().__await__()

    def __repr__(self) -> str:
        return f"aio.{type(self).__name__}({'not open yet' if self._made is None else repr(self._made)})"


if TYPE_CHECKING:

    class Awaits(Generic[P, R]):
        """A method that awaits."""

        def __get__(self, instance: object, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...

    class Gives(Generic[P, R]):
        """A method that gives something at once."""

        def __get__(self, instance: object, owner: type) -> Callable[P, R]: ...


@overload
def awaits(method: Callable[Concatenate[Any, P], Any], into: type[W]) -> Awaits[P, W]: ...
@overload
def awaits(method: Callable[Concatenate[Any, P], R]) -> Awaits[P, R]: ...
def awaits(method: Callable[..., Any], into: type[Wrapped[Any]] | None = None) -> Any:
    """The asynchronous form of a method.

    Args:
        method: The method of the synchronous class.
        into: The asynchronous class of what it returns.
    """
    name = method.__name__

    @functools.wraps(method)
    async def awaiting(self: Wrapped[Any], *args: Any, **options: Any) -> Any:
        found = await self._run(lambda sync: getattr(sync, name)(*plain(args), **plain(options)))
        return found if into is None else into._of(found, self._runner.child())

    return awaiting


def streams(
    method: Callable[Concatenate[Any, P], Any], into: Callable[[Callable[[], Any], Runner], I]
) -> Gives[P, I]:
    """The asynchronous form of a method that gives an iterator: ``async for item in …``.

    Args:
        method: The method of the synchronous class.
        into: The kind of stream.
    """
    name = method.__name__

    @functools.wraps(method)
    def streaming(self: Wrapped[Any], *args: Any, **options: Any) -> I:
        return into(lambda: getattr(self._sync(), name)(*plain(args), **plain(options)), self._runner)

    return streaming  # type: ignore[return-value]  # a function is such a descriptor


def gives(method: Callable[Concatenate[Any, P], Any], into: type[W]) -> Gives[P, W]:
    """The asynchronous form of a method that only makes an object: it is made when it is first used.

    Args:
        method: The method of the synchronous class.
        into: The asynchronous class of what it makes.
    """
    name = method.__name__

    @functools.wraps(method)
    def giving(self: Wrapped[Any], *args: Any, **options: Any) -> W:
        return into._by(
            lambda: getattr(self._sync(), name)(*plain(args), **plain(options)), self._runner.child()
        )

    return giving  # type: ignore[return-value]  # a function is such a descriptor


@overload
def awaits_function(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]: ...
@overload
def awaits_function(
    function: Callable[P, Any], into: Callable[[Any], T]
) -> Callable[P, Coroutine[Any, Any, T]]: ...
def awaits_function(function: Callable[..., Any], into: Callable[[Any], Any] | None = None) -> Any:
    """The asynchronous form of a function.

    Args:
        function: The synchronous function.
        into: Makes the asynchronous form of what it returns.
    """

    @functools.wraps(function)
    async def awaiting(*args: Any, **options: Any) -> Any:
        given = [a for a in (*args, *options.values()) if isinstance(a, Wrapped)]
        runner = given[0]._runner if given else Threads()
        found = await run(runner, lambda: function(*plain(args), **plain(options)))
        return found if into is None else into(found)

    return awaiting


def awaits_with_table(
    function: Callable[Concatenate[Any, P], R],
    kind: type[W],  # noqa: ARG001 - for type checkers
) -> Callable[Concatenate[str | Path | deltalake.DeltaTable | W, P], Coroutine[Any, Any, R]]:
    """The asynchronous form of a function whose first argument is an address or a table of either form."""
    return awaits_function(function)


def plain(given: Any) -> Any:
    """Arguments with synchronous objects in the place of asynchronous ones; for use in threads."""
    if isinstance(given, dict):
        return {key: plain_one(value) for key, value in given.items()}
    return tuple(map(plain_one, given))


def plain_one(value: Any) -> Any:
    """An argument as synchronous code knows it."""
    return value._sync() if isinstance(value, Wrapped) else value
