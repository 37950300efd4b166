"""What a writer looked at before it wrote: the part of a change that concurrent commits can invalidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from deltalakedb.protocol.predicate import Expr

Isolation: TypeAlias = Literal["Serializable", "WriteSerializable", "SnapshotIsolation"]


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The rows and files that a writer's result depends on.

    Attributes:
        whole: The whole table was read.
        predicates: Rows were read by these predicates, over logical columns.
        files: The files that were opened: (path, deletion vector id), as the log spells them.
    """

    whole: bool = False
    predicates: tuple[Expr, ...] = ()
    files: frozenset[tuple[str, str]] = frozenset()

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
