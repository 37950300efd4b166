"""Staging: a scratch Delta table made from a snapshot, on which delta-rs itself runs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from deltalakedb.delta_log.names import commit_path, parse_name
from deltalakedb.exceptions import StorageError
from deltalakedb.protocol.actions import Action, Add, Cdc, CommitInfo, Metadata, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit, encode_commit
from deltalakedb.protocol.features import without_features
from deltalakedb.protocol.paths import decode_path, encode_path
from deltalakedb.protocol.rules import OURS
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.stats import float_paths, without_highest
from deltalakedb.protocol.upgrades import with_writer_features
from deltalakedb.storage.durable import storage_error
from deltalakedb.table.lending import LENT
from deltalakedb.table.places import url_of
from deltalakedb.table.roots import root_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from deltalakedb.protocol.log import Snapshot
    from deltalakedb.table.roots import PlacedFile, Root
    from deltalakedb.table.work_folders import WorkFolder


_MINUS_ZERO: Final = re.compile(r"-(?:0+(?:\.0*)?|\.0+)(?:[eE][+-]?\d{1,4})?")


@dataclass(frozen=True, slots=True)
class Harvest:
    """What delta-rs did on a scratch table: the actions of each commit, and where its new files lie."""

    steps: tuple[tuple[Action, ...], ...]
    new_files: tuple[str, ...]  # decoded paths relative to the scratch folder and to the table's root alike
    fresh: bool  # every added file is a new one

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions of all commits."""
        return tuple(a for step in self.steps for a in step)

    def each(self, change: Callable[[Action], Action]) -> Harvest:
        """The same with every action changed."""
        return replace(self, steps=tuple(tuple(map(change, step)) for step in self.steps))

    def in_place(self, names: Mapping[str, str] | None = None) -> Harvest:
        """The same where the added files were not made by delta-rs, and lie under the root already.

        Args:
            names: What files are really called, where delta-rs calls them otherwise.
        """

        def named(action: Action) -> Action:
            if not isinstance(action, Add) or not names:
                return action
            path = decode_path(action.path)
            return replace(action, path=encode_path(names.get(path, path)))

        return replace(self.each(named), new_files=(), fresh=False)


class Scratch:
    """A folder with a `_delta_log` of its own, to which the real table's files are lent.

    Never vacuum a scratch table: where files are lent by links, delta-rs would follow them and delete real
    files.

    Args:
        root: The real table's root.
        work: The folder that the scratch table is made in.
    """

    #: whether the engine's statistics count NaN as the greatest value
    bounds_nan = False

    def __init__(self, root: Root, work: WorkFolder) -> None:
        self.root = root
        self.folder = work.path
        self._work = work
        self._lender = root.lender(work.path)
        #: path of a lent file -> the add as the scratch table has it, and as the real table has it
        self._lent: dict[str, tuple[Add, Add]] = {}
        self._hidden: Protocol | None = None
        #: physical paths of columns of floating point, whose maxima delta-rs writes without regard to NaN
        self._floats: Sequence[tuple[str, ...]] = ()
        (self.folder / "_delta_log").mkdir(parents=True)

    @classmethod
    def for_writing(cls, root: Root | str, *, table: str) -> Scratch:
        """A scratch table whose new files are to become the real table's."""
        root = root_at(root) if isinstance(root, str) else root
        try:
            return cls(root, root.work_folder())
        except StorageError:  # which is an OSError too, and says more
            raise
        except OSError as error:
            raise StorageError(
                f"cannot write under the table's root {root.location}: {os.strerror(error.errno or 0)}",
                table=table,
                suggestion="check that the folder exists and may be written, and that the disk is not full",
            ) from error

    def lay(self, snapshot: Snapshot, adds: Iterable[Add] = (), *, unlent: Collection[str] = ()) -> None:
        """Write the log that makes this folder the table at the snapshot's version.

        Args:
            snapshot: The version.
            adds: The files that delta-rs is to see, in this order.
            unlent: Paths of entries that stand for no file.
        """
        protocol = without_features(snapshot.protocol, OURS)
        self._hidden = snapshot.protocol if protocol != snapshot.protocol else None
        path = self.folder / commit_path(snapshot.version)
        try:
            adds = list(adds)
            real = [a for a in adds if a.path not in unlent]
            self._floats = float_paths(parse_schema(snapshot.metadata.schema_string))
            lent = self._lender.lend([cautious(add, self._floats) for add in real])
            self._lent.update((ours.path, (ours, add)) for ours, add in zip(lent, real, strict=True))
            shown = iter(lent)
            actions: list[Action] = [protocol, snapshot.metadata]
            actions += [a if a.path in unlent else next(shown) for a in adds]
            path.write_bytes(encode_commit(actions))
        except StorageError:  # one of them is an OSError too
            raise
        except OSError as error:
            raise storage_error(error, "write", path) from error

    def harvest(self, *, after: int) -> Harvest:
        """The actions of every commit after a version, with paths as the real table spells them."""
        steps: list[list[Action]] = []
        for file in sorted((self.folder / "_delta_log").iterdir()):
            name = parse_name(file.name)
            if name is not None and name.kind == "commit" and name.version > after:
                steps.append(decode_commit(file.read_bytes(), source=file.name))
        actions = [a for step in steps for a in step]
        for action in actions:
            if isinstance(action, Metadata) and not self.bounds_nan:
                self._floats = float_paths(parse_schema(action.schema_string))
        new = dict.fromkeys(
            a.path for a in actions if isinstance(a, Add | Cdc) and not a.path.startswith(LENT)
        )
        real = tuple(tuple(map(self._real, step)) for step in steps)
        fresh = all(a.path in new for a in actions if isinstance(a, Add))
        return Harvest(real, tuple(decode_path(p) for p in new), fresh)

    def place(self, files: Sequence[str], *, fsync: bool) -> list[PlacedFile]:
        """Bring new files under the table's root; what was brought, so that it can be undone."""
        return self.root.take(self.folder, files, fsync=fsync)

    def remove(self) -> None:
        """Delete the scratch folder."""
        self._work.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _placed(self, info: CommitInfo) -> CommitInfo:
        """What delta-rs says of an operation, with the real table's place."""
        said = info.extra.get("operationParameters")
        if not isinstance(said, dict) or "location" not in said:
            return info
        said = {**said, "location": url_of(self.root.location)}
        return replace(info, extra={**info.extra, "operationParameters": said})

    def _real(self, action: Action) -> Action:
        """An action as the real table would have it."""
        if isinstance(action, CommitInfo):
            return self._placed(action)
        if isinstance(action, Protocol) and self._hidden is not None:
            return _with(action, self._hidden)
        if isinstance(action, Add) and action.path not in self._lent:
            return cautious(action, self._floats, if_equal=True)
        if not isinstance(action, Add | Remove) or (found := self._lent.get(action.path)) is None:
            return action
        ours, real = found
        vector = action.deletion_vector
        if vector == ours.deletion_vector:
            vector = real.deletion_vector
        if action.partition_values == ours.partition_values:
            action = replace(action, partition_values=real.partition_values)
        return replace(action, path=real.path, deletion_vector=vector)


def cautious(add: Add, floats: Sequence[tuple[str, ...]], *, if_equal: bool = False) -> Add:
    """A file whose statistics say nothing about the largest floats, among which NaN may be.

    In partition values there is one zero: delta-rs tells the two apart.
    """
    stats = without_highest(add.stats, floats, if_equal=if_equal)
    values = dict(add.partition_values)
    for name in {path[0] for path in floats if len(path) == 1} & values.keys():
        if _MINUS_ZERO.fullmatch(values[name] or ""):
            values[name] = "0"
    if stats == add.stats and values == add.partition_values:
        return add
    return replace(add, stats=stats, partition_values=values)


def _with(protocol: Protocol, hidden: Protocol) -> Protocol:
    """The protocol with the features that were hidden from delta-rs."""

    def restored(now: tuple[str, ...] | None, before: tuple[str, ...] | None) -> tuple[str, ...] | None:
        lost = [f for f in before or () if f in OURS and f not in (now or ())]
        return (*(now or ()), *lost) if lost else now

    readers = restored(protocol.reader_features, hidden.reader_features)
    lost = [f for f in hidden.writer_features or () if f in OURS]
    # a protocol of before features had names must name all of them now
    whole = with_writer_features(protocol, lost) if lost else protocol
    return replace(whole, reader_features=readers)
