"""Tables whose transaction is over: they follow what was committed, or say that nothing was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import InvalidArgumentError, TableMissingError
from deltalakedb.table.work import AutoCommit

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.table.work import Sink

#: what a table has from its transaction, and loses with it
_OF_TRANSACTIONS = ("_sink", "_row", "_source")


class Outliving:
    """The part of a SQL-backed table that takes leave of its transaction."""

    _database: Database
    _sink: Sink
    _ended: tuple[int | None, bool]

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """The table's name in its catalog."""

        def _open(self, version: int | None) -> None: ...

    def _outlive(self, version: int | None, *, rolled_back: bool) -> None:
        """Its transaction is over: where its answers come from is looked up when it is asked again.

        Args:
            version: What to show then; None where the table, or what it showed, is not there any more.
            rolled_back: Whether nothing of the transaction happened.
        """
        self._ended = (version, rolled_back)
        for name in _OF_TRANSACTIONS:
            vars(self).pop(name, None)

    def _follow(self) -> None:
        """Become an ordinary table."""
        version, rolled_back = self._ended
        if rolled_back:
            raise InvalidArgumentError(
                "the table belongs to a transaction that was rolled back",
                table=self.name,
                suggestion="open it anew: nothing of the transaction has happened",
            )
        if version is None:
            raise TableMissingError(
                f"the table {self.name!r} was dropped in its transaction",
                table=self.name,
                suggestion="open the table that has its name now, where there is one",
            )
        self._sink = AutoCommit(self._database)
        self._open(version)

    if not TYPE_CHECKING:  # a type checker must go on finding misspelled names

        def __getattr__(self, name: str) -> Any:
            if name in _OF_TRANSACTIONS and "_ended" in vars(self):
                self._follow()
                return vars(self)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name)
