"""Sessions that collect the changes of a batch: the rows of each table go in by one statement."""

from __future__ import annotations

import abc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.metastore.engines.base import Session, update_by_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from deltalakedb.metastore.statements import Statement

#: so many rows are written at once
_MANY: Final = 64


class BatchingSession(Session):
    """A session whose batches are written when they end, when something is asked, or at a barrier.

    Inside a batch, changes of one kind are put together, in the order in which the first of each kind came.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._waiting: dict[
            tuple[Any, ...], tuple[list[Sequence[Any]], Callable[[Sequence[Sequence[Any]]], None]]
        ] = {}

    @abc.abstractmethod
    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows now."""

    @abc.abstractmethod
    def _run_many(self, sql: str, params: Iterable[Sequence[Any]]) -> None:
        """Run one statement for many parameter sets now."""

    def _update(self, table: str, columns: Sequence[str], key: str, rows: Sequence[Sequence[Any]]) -> None:
        """Update rows by their key now."""
        self._run_many(update_by_key(table, columns, key), rows)

    @contextmanager
    def batch(self, rows: int) -> Iterator[None]:  # noqa: ARG002 - many rows do not wait, whatever was said
        """Changes whose results are not needed, and of which none depends on another."""
        self._depth += 1
        try:
            yield
        except BaseException:
            self._waiting.clear()  # the transaction ends without them
            raise
        finally:
            self._depth -= 1
        if not self._depth:
            self.barrier()

    def barrier(self) -> None:
        """Write what waits: what comes next may change the same rows."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for rows, write in waiting.values():
                write(rows)

    def run(self, statement: Statement | str, params: Sequence[Any] = ()) -> int:
        """Run a statement, or collect it during a batch."""
        if not self._depth:
            return super().run(statement, params)
        self._count(statement)
        sql = str(statement)
        self._collect((sql,), [params], lambda found: self._run_many(sql, found))
        return -1

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, or collect them during a batch."""
        self._collect((table, *columns), rows, lambda found: self._insert(table, columns, found))

    def update_rows(
        self, table: str, columns: Sequence[str], key: str, rows: Sequence[Sequence[Any]]
    ) -> None:
        """Set columns of rows by their key, or collect that during a batch."""
        write = lambda found: self._update(table, columns, key, found)  # noqa: E731
        self._collect((table, *columns, "", key), rows, write)

    def update_many(self, statement: Statement | str, params: Iterable[Sequence[Any]]) -> None:
        """One statement for many parameter sets, or collected during a batch."""
        sql = str(statement)
        if self._depth:
            self._collect((sql,), list(params), lambda found: self._run_many(sql, found))
        else:
            self._run_many(sql, params)

    def _collect(
        self,
        kind: tuple[Any, ...],
        rows: Sequence[Sequence[Any]],
        write: Callable[[Sequence[Sequence[Any]]], None],
    ) -> None:
        if not rows:
            return
        if not self._depth:
            write(rows)
            return
        if len(rows) >= _MANY:
            self.barrier()
            write(rows)
            return
        waiting = self._waiting.setdefault(kind, ([], write))[0]
        waiting += rows
        if len(waiting) >= _MANY:
            self.barrier()

    def _call(self, statement: Statement | str, params: Sequence[Any]) -> Any:
        self.barrier()
        return super()._call(statement, params)
