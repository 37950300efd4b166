"""What a table looks like inside a transaction: its snapshot, with the transaction's own work on top."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from deltalakedb.metastore.files import FILE_SCHEMA, totals
from deltalakedb.protocol.actions import Add, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.predicate import to_physical
from deltalakedb.protocol.read_set import NOTHING, ReadSet
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import column_types
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.protocol.txn_log import Snapshot
from deltalakedb.table.source import SqlSource, add_row, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Commit
    from deltalakedb.table.source import Source

_Key = tuple[str, str]


class Overlay:
    """A source that shows a transaction its own work, and remembers what was read beneath it.

    Args:
        base: The table at the transaction's snapshot; None for a table that the transaction creates.
        created: The snapshot of a new table.
    """

    def __init__(self, base: Source | None, created: Snapshot | None = None) -> None:
        self._base = base
        self._snapshot = created if base is None else base.snapshot
        self._added: dict[_Key, Add] = {}
        self._removed: set[_Key] = set()
        self._txns: dict[str, int] = {}
        self.reads: ReadSet = NOTHING

    @property
    def snapshot(self) -> Snapshot:
        """Metadata and protocol as the transaction has made them."""
        if self._snapshot is None:
            raise LookupError("a new table has no snapshot before its first operation")
        return self._snapshot

    @property
    def reshaped(self) -> bool:
        """Whether the transaction has changed the schema, so that its predicates say nothing to the base."""
        base = None if self._base is None else self._base.snapshot.metadata.schema_string
        return base is not None and base != self.snapshot.metadata.schema_string

    def apply(self, actions: Sequence[Action]) -> None:
        """Put an operation's actions on top."""
        for action in actions:
            if isinstance(action, Metadata):
                self._snapshot = replace(self.snapshot, metadata=action)
            elif isinstance(action, Protocol):
                self._snapshot = replace(self.snapshot, protocol=action)
            elif isinstance(action, Txn):
                self._txns[action.app_id] = action.version
            elif isinstance(action, Remove) and self._added.pop(action.key, None) is None:
                self._removed.add(action.key)
        for action in actions:
            if isinstance(action, Add):
                self._added[action.key] = action

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        """Columns of the files that may hold what a predicate asks for."""
        schema = pa.schema([FILE_SCHEMA.field(c) for c in columns])
        mine = pa.Table.from_pylist([add_row(a) for a in self._own(where)], schema=schema)
        if self._base is None:
            return mine
        wanted = [*columns, *(c for c in ("path", "dv_id") if c not in columns)]
        where = None if self.reshaped else where
        found = self._base.scan(wanted, where)
        paths, vectors = found.column("path").to_pylist(), found.column("dv_id").to_pylist()
        pairs = zip(paths, vectors, strict=True) if where is not None or self._removed else ()
        keys = [(canonical_path(p), d) for p, d in pairs]
        self._note(where, iter(keys))
        if self._removed:
            found = found.filter(pa.array([k not in self._removed for k in keys], pa.bool_()))
        return pa.concat_tables([mine, found.select(list(columns))])

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        """The same files as add actions, the transaction's own first as in a log that is read."""
        yield from self._own(where)
        if self._base is not None:
            beneath = None if self.reshaped else where
            below = list(self._base.adds(beneath))
            self._note(beneath, (a.key for a in below))
            yield from (a for a in below if a.key not in self._removed)

    def history(self, limit: int | None) -> Sequence[Commit]:
        """Commits up to the transaction's snapshot; its own are still to come."""
        return [] if self._base is None else self._base.history(limit)

    def txn_version(self, app_id: str) -> int | None:
        """An application's own version."""
        if (mine := self._txns.get(app_id)) is not None:
            return mine
        return self.committed_version(app_id)

    def committed_version(self, app_id: str) -> int | None:
        """An application's version beneath the transaction, whatever its own operations noted."""
        return None if self._base is None else self._base.txn_version(app_id)

    def num_records(self) -> int:
        """The rows that statistics tell."""
        return counted(self)

    def _own(self, where: Expr | None) -> list[Add]:
        if where is None or not self._added:
            return list(self._added.values())
        schema = parse_schema(self.snapshot.metadata.schema_string)
        files = FileFilter(to_physical(where, schema), column_types(schema))
        return [a for a in self._added.values() if files.may_match(parse_stats(a.stats), a.partition_values)]

    def _note(self, where: Expr | None, keys: Iterator[_Key]) -> None:
        if where is None:
            self.reads |= ReadSet(whole=True)
        else:
            self.reads |= ReadSet(predicates=(where,), files=frozenset(keys))


def committed_version(source: Source, app_id: str) -> int | None:
    """An application's version as others see it: what a transaction noted itself is not done yet."""
    return source.committed_version(app_id) if isinstance(source, Overlay) else source.txn_version(app_id)


def num_files(source: Source) -> int:
    """How many files there are, which says nothing of what is in them."""
    if isinstance(source, SqlSource):
        return totals(source.database, source.opened)[0]
    with unread(source):
        return int(source.scan(("path",)).num_rows)


@contextmanager
def unread(source: Source) -> Iterator[None]:
    """Look at files without depending on them: what is seen here is not noted as read."""
    if not isinstance(source, Overlay):
        yield
        return
    noted = source.reads
    try:
        yield
    finally:
        source.reads = noted


def created(actions: Sequence[Action]) -> Snapshot:
    """A new table as its first operation makes it."""
    metadata = next(a for a in actions if isinstance(a, Metadata))
    protocol = next(a for a in actions if isinstance(a, Protocol))
    return Snapshot(0, 0, protocol, metadata)
