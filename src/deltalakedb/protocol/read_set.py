"""What a writer looked at before it wrote: the part of a change that concurrent commits can invalidate."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.protocol.predicate import Expr

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.protocol.actions import FileKey

Isolation: TypeAlias = Literal["Serializable", "WriteSerializable", "SnapshotIsolation"]


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The rows and files that a writer's result depends on.

    Attributes:
        whole: The whole table was read.
        predicates: Rows were read by these predicates, over logical columns.
        files: The keys of the files that were opened.
    """

    whole: bool = False
    predicates: tuple[Expr, ...] = ()
    files: frozenset[FileKey] = frozenset()

    def __bool__(self) -> bool:
        return self.whole or bool(self.predicates) or bool(self.files)

    def __or__(self, other: ReadSet) -> ReadSet:
        return ReadSet(
            self.whole or other.whole,
            tuple(dict.fromkeys((*self.predicates, *other.predicates))),
            self.files | other.files,
        )


#: nothing was read: a blind append
NOTHING = ReadSet()
#: everything was read
EVERYTHING = ReadSet(whole=True)

#: files of a read set that are written down; a commit that read more counts as having read the whole table
_MOST_FILES: Final = 1_000
#: characters of JSON that are written down, such as of a predicate with a long list of values
_LONGEST: Final = 1 << 20
_NODES: Final = {node.__name__: node for node in get_args(Expr)}
#: values that JSON has no form for, by type: as text, and back
_VALUES: Final[dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]]] = {
    "float": (float.hex, float.fromhex),
    "Decimal": (str, Decimal),
    "datetime": (datetime.isoformat, datetime.fromisoformat),
    "date": (date.isoformat, date.fromisoformat),
    "bytes": (bytes.hex, bytes.fromhex),
}


def encode_reads(reads: ReadSet) -> str:
    """A read set as JSON; everything if it is long or holds a value that JSON cannot express."""
    if not reads.whole and len(reads.files) <= _MOST_FILES:
        with suppress(DeltaSqlError, ValueError, KeyError):
            parts = {"predicates": _plain(reads.predicates), "files": sorted(map(list, reads.files))}
            text = encode_json({name: part for name, part in parts.items() if part})
            if len(text) <= _LONGEST:
                return text
    return encode_json({"whole": True})


def decode_reads(text: str | None) -> ReadSet:
    """The read set that was encoded; everything if it was not recorded or a newer release wrote it."""
    try:
        found = decode_json(text or "")
        predicates = tuple(_value(p) for p in found.get("predicates", ()))
        files = frozenset((path, dv_id) for path, dv_id in found.get("files", ()))
    except (DeltaSqlError, ValueError, TypeError, KeyError, AttributeError):
        return EVERYTHING
    return ReadSet(bool(found.get("whole")), predicates, files)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    name = type(value).__name__
    if name in _NODES:
        return {name: [_plain(getattr(value, field.name)) for field in fields(value)]}
    return {name: _VALUES[name][0](value)}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_value(p) for p in plain)
    if not isinstance(plain, dict):
        return plain
    ((name, part),) = plain.items()
    if name in _NODES:
        return _NODES[name](*(_value(p) for p in part))
    return _VALUES[name][1](part)
