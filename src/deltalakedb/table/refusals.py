"""What delta-rs refuses on a scratch table, as an error about the real one."""

from __future__ import annotations

import re
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from deltalakedb.exceptions import (
    CommitError,
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    DeltaSqlError,
    InvalidArgumentError,
    OperationError,
    ProtocolError,
    SchemaError,
    SchemaMismatchError,
    StorageError,
    StorageMissingError,
    UnsupportedOperationError,
)
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.table.lending import LENT
from deltalakedb.table.unreadable import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.table.handle import TableHandle

#: what delta-rs raises -> ours, which is a subclass of it; classes that are not its own pass as they are
_OURS: Mapping[type[Exception], type[DeltaSqlError]] = {
    SchemaMismatchError: SchemaError,
    CommitFailedError: CommitError,
    DeltaProtocolError: ProtocolError,
    DeltaError: OperationError,
    FileNotFoundError: StorageMissingError,
    OSError: StorageError,
    NotImplementedError: UnsupportedOperationError,
    ValueError: InvalidArgumentError,
    Exception: OperationError,
}
_LENT = rf"(?:/{LENT}\d*)?"
_BESIDE = re.compile(rf"/_deltasql/(?:[\w.]+-)*[0-9a-f]{{32}}{_LENT}")
_PATH = re.compile(r"[^\s'\"(]+")
_ELSEWHERE = re.compile(rf"\bdeltasql-(?:fetched-)?[a-z0-9_]{{8}}{_LENT}")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
#: how delta-rs tells that a stream of data raised an error itself
_DATA_BROKE = "Python exception:"
#: how it reports that a data file may be at fault: its reader failed, or a task of it panicked
_FILE_BROKE = ("arquet", "panicked")
#: columns that a suggestion names at most
_SHOWN = 20


class Concerned(NamedTuple):
    """The table that an operation is about, as far as it is known.

    Attributes:
        name: Its name.
        location: Its root.
        version: Its version.
        metadata: Its metadata.
        hint: What to do about a failure, if that is known.
        unreadable: Finds the data file that an error is about.
    """

    name: str | None = None
    location: str | None = None
    version: int | None = None
    metadata: Metadata | None = None
    hint: str | None = None
    unreadable: Callable[[str], StorageError | None] | None = None

    @classmethod
    def at(cls, table: TableHandle) -> Concerned:
        """An open table, at the version it shows."""
        snapshot = table.source.snapshot
        look = partial(unreadable, table.root, table.file_sizes, table=table.name, version=snapshot.version)
        return cls(table.name, table.row.location, snapshot.version, snapshot.metadata, unreadable=look)


NOBODY = Concerned()


@contextmanager
def refusals(about: Concerned) -> Iterator[None]:
    """Let delta-rs's errors be typed ones, and its panics errors; nothing tells of a scratch folder.

    Ours is always a subclass of what stock would raise in the same place.
    """
    try:
        yield
    except DeltaSqlError:
        raise
    except Exception as error:
        text = without_scratch(str(error), about.location)
        if text != str(error):
            error.args = (text,)  # it stays behind ours as the cause, and is shown with it
        if (ours := _OURS.get(type(error))) is None:
            raise
        by_file = any(word in text for word in _FILE_BROKE)
        if by_file and about.unreadable is not None and (found := about.unreadable(text)):
            raise found from error
        raise ours(
            text.strip(), table=about.name, version=about.version, suggestion=_suggestion(ours, about, text)
        ) from error
    except BaseException as panic:
        if isinstance(panic, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        text = without_scratch(str(panic), about.location)
        panic.args = (text,)
        if about.unreadable is not None and (found := about.unreadable(text)):
            raise found from panic
        raise OperationError(
            f"delta-rs stopped unexpectedly: {text}", table=about.name, version=about.version
        ) from panic


def without_scratch(text: str, location: str | None) -> str:
    """A message with the table's own paths instead of those of a scratch table."""

    def rebased(path: re.Match[str]) -> str:
        # the last one counts: a temporary folder may itself be inside another
        found = deque(_ELSEWHERE.finditer(path[0]), maxlen=1)
        return (location or "…") + path[0][found[0].end() :] if found else path[0]

    return _COLOUR.sub("", _PATH.sub(rebased, _BESIDE.sub("", text)))


def _suggestion(kind: type[DeltaSqlError], about: Concerned, text: str) -> str | None:
    """What the table asks of rows and expressions, where one of them may be the reason."""
    if about.hint is not None and kind is OperationError:
        return about.hint
    if _DATA_BROKE in text:
        return "nothing was written; look at what makes the batches"
    if about.metadata is None or kind not in (OperationError, SchemaError, ProtocolError):
        return None
    names = [f.name for f in parse_schema(about.metadata.schema_string).fields]
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    rules = {
        key.removeprefix("delta.constraints."): rule
        for key, rule in about.metadata.configuration.items()
        if key.startswith("delta.constraints.")
    }
    if kind is SchemaError:
        return f"the table's columns are {shown}; schema_mode='merge' lets new ones in"
    told = "".join(f"; every row must meet {name}: {rule}" for name, rule in rules.items())
    return f"the table's columns are {shown}{told}"
