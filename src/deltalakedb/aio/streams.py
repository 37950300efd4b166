"""Iterators that are read in threads, a piece at a time: ``async for``."""

from __future__ import annotations

from collections import deque
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from arro3.core import RecordBatch, Schema, Table

from deltalakedb.aio.threads import SerialQueue, run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    import pyarrow as pa


T = TypeVar("T")


class Stream(Generic[T]):
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
        self._make = make
        self._queue = queue
        self._fetching = SerialQueue()
        self._items: Iterator[T] | None = None
        self._ahead: deque[T] = deque()
        self._over = False

    def _iterate(self, made: Any) -> Iterator[T]:
        return iter(made)

    # the three below run in threads; their results stay even if the task that waited was cancelled

    def _make_items(self) -> None:
        if self._items is None and not self._over:
            self._items = self._iterate(self._make())

    def _fetch(self) -> None:
        if self._items is not None and not self._over:
            fetched = list(islice(self._items, self._at_once))
            self._ahead.extend(fetched)
            self._over = not fetched

    def _close(self) -> None:
        items, self._items, self._over = self._items, None, True
        if isinstance(items, GeneratorType):
            items.close()

    async def _open(self) -> Self:
        if self._items is None and not self._over:
            await run(self._queue, self._make_items)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
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
    """Record batches, each read in a thread when it is asked for."""

    _at_once = 1
    _reader: pa.RecordBatchReader

    def _iterate(self, made: Any) -> Iterator[RecordBatch]:
        import pyarrow as pa

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
            left = [*self._ahead, *(self._items or ())]
            self._ahead.clear()
            self._close()
            return Table.from_batches(left, schema=Schema.from_arrow(self._reader.schema))

        return await run(self._fetching, read)
