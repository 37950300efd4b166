"""Staging: a scratch Delta table made from a snapshot, on which delta-rs itself runs."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from deltalakedb.exceptions import StorageError
from deltalakedb.log.names import commit_path, parse_name
from deltalakedb.protocol.actions import Action, Add, Cdc, DeletionVector, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit, encode_commit
from deltalakedb.protocol.features import SCAN_DROPS
from deltalakedb.protocol.paths import decode_path, is_absolute, resolve
from deltalakedb.protocol.rules import OURS
from deltalakedb.storage.local import storage_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltalakedb.protocol.log import Snapshot

#: the link to the table's root inside a scratch folder; no partition folder or data file is called so, and
#: nothing in it is ever percent-encoded: delta-rs compares spelled paths
_LINK = "__deltasql_root__"
#: folder under the table's root that holds scratch tables: same file system, so files are renamed, not copied
WORK_FOLDER = "_deltasql"


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


#: how often the shared work folder may vanish between looking and making
_TIDY_RACES = 20


class Scratch:
    """A folder with a `_delta_log` of its own and a link to the real table.

    Never vacuum a scratch table: delta-rs would follow the link and delete real files.

    Args:
        root: The real table's root.
        folder: Where the scratch table is made.
    """

    def __init__(self, root: str, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self._links: dict[str, str] = {}
        #: linked path -> the add as the real table has it
        self._real: dict[str, Add] = {}
        self._hidden: Protocol | None = None
        self._new_root: Path | None = None
        (folder / "_delta_log").mkdir(parents=True)

    @classmethod
    def for_reading(cls, root: str) -> Scratch:
        """A scratch table in the system's temporary folder: nothing is written near the table."""
        return cls(root, Path(tempfile.mkdtemp(prefix="deltasql-")))

    @classmethod
    def for_writing(cls, root: str, *, table: str) -> Scratch:
        """A scratch table under the table's root, so that new files move by a rename."""
        folder = Path(root) / WORK_FOLDER / uuid.uuid4().hex
        is_new = not Path(root).exists()
        try:
            _make(folder)
            made = cls(root, folder)
            made._new_root = Path(root) if is_new else None
            return made  # noqa: TRY300 - the constructor may fail as well
        except OSError as error:
            raise StorageError(
                f"cannot write under the table's root {root}: {os.strerror(error.errno or 0)}",
                table=table,
                suggestion="check that the folder exists and may be written, and that the disk is not full",
            ) from error

    def lay(self, snapshot: Snapshot, adds: Iterable[Add] = (), *, reading: bool = False) -> None:
        """Write the log that makes this folder the table at the snapshot's version."""
        protocol = _without(snapshot.protocol, SCAN_DROPS if reading else OURS)
        self._hidden = snapshot.protocol if protocol != snapshot.protocol else None
        path = self.folder / commit_path(snapshot.version)
        try:
            actions: list[Action] = [protocol, snapshot.metadata, *map(self._linked, adds)]
            path.write_bytes(encode_commit(actions))
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
        new = dict.fromkeys(
            a.path for a in actions if isinstance(a, Add | Cdc) and not a.path.startswith(_LINK)
        )
        unlinked = tuple(tuple(self._unlinked(a) for a in step) for step in steps)
        fresh = all(a.path in new for a in actions if isinstance(a, Add))
        return Harvest(unlinked, tuple(decode_path(p) for p in new), fresh)

    def place(self, files: Sequence[str], *, fsync: bool) -> list[Path]:
        """Move new files under the table's root; what was moved, so that it can be undone."""
        moved: list[Path] = []
        try:
            for name in files:
                target = Path(self.root) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if fsync:
                    _flush(self.folder / name)
                (self.folder / name).rename(target)
                moved.append(target)
            for folder in {t.parent for t in moved} if fsync else ():
                _flush(folder)
        except OSError as error:
            undo(moved)
            raise StorageError(
                f"new files could not be moved under {self.root}: {os.strerror(error.errno or 0)}",
                suggestion="check space and rights; nothing was committed",
            ) from error
        return moved

    def remove(self) -> None:
        """Delete the scratch folder; links are unlinked, never followed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.parent.name == WORK_FOLDER:
            with suppress(OSError):  # not empty: another writer is at work
                self.folder.parent.rmdir()
        if self._new_root is not None:
            with suppress(OSError):  # not empty: the table was made
                self._new_root.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _linked(self, add: Add) -> Add:
        """An add whose path leads through a link to the real file."""
        if is_absolute(add.path):
            real = Path(resolve(self.root, add.path))
            path = f"{self._link(str(real.parent))}/{quote(real.name)}"
        else:
            path = f"{self._link(self.root)}/{add.path}"
        vector = add.deletion_vector
        if vector is not None and vector.storage_type == "u":
            prefix = f"{self._link(self.root)}/{vector.path_or_inline_dv[:-20]}".rstrip("/")
            vector = replace(vector, path_or_inline_dv=prefix + vector.path_or_inline_dv[-20:])
        self._real[path] = add
        return replace(add, path=path, deletion_vector=vector)

    def _link(self, target: str) -> str:
        if (name := self._links.get(target)) is None:
            name = _LINK if target == self.root else f"{_LINK}{len(self._links)}"
            (self.folder / name).symlink_to(target, target_is_directory=True)
            self._links[target] = name
        return name

    def _unlinked(self, action: Action) -> Action:
        """An action as the real table would have it."""
        if isinstance(action, Protocol) and self._hidden is not None:
            return _with(action, self._hidden)
        if not isinstance(action, Add | Remove):
            return action
        real = self._real.get(action.path)
        path = action.path if real is None else real.path
        return replace(action, path=path, deletion_vector=_unlinked_vector(action.deletion_vector))


def _make(folder: Path) -> None:
    """Make a folder and those above it, though another writer may be tidying up just there."""
    for _ in range(_TIDY_RACES):
        with suppress(FileNotFoundError):
            folder.mkdir(parents=True)
            return
    folder.mkdir(parents=True)


def undo(moved: Iterable[Path]) -> None:
    """Delete files of a commit that certainly did not happen."""
    for file in moved:
        with suppress(OSError):
            file.unlink()


def _unlinked_vector(vector: DeletionVector | None) -> DeletionVector | None:
    if vector is None or vector.storage_type != "u":
        return vector
    prefix, name = vector.path_or_inline_dv[:-20], vector.path_or_inline_dv[-20:]
    prefix = prefix.removeprefix(_LINK).removeprefix("/")
    return replace(vector, path_or_inline_dv=prefix + name)


def _without(protocol: Protocol, features: frozenset[str]) -> Protocol:
    """The protocol without features that delta-rs need not know on a scratch table."""
    if protocol.writer_features is None:
        return protocol
    readers = protocol.reader_features
    return replace(
        protocol,
        reader_features=None if readers is None else tuple(f for f in readers if f not in features),
        writer_features=tuple(f for f in protocol.writer_features if f not in features),
    )


def _with(protocol: Protocol, hidden: Protocol) -> Protocol:
    """The protocol with the features that were hidden from delta-rs."""

    def restored(now: tuple[str, ...] | None, before: tuple[str, ...] | None) -> tuple[str, ...] | None:
        lost = [f for f in before or () if f in OURS and f not in (now or ())]
        return (*(now or ()), *lost) if lost else now

    return replace(
        protocol,
        reader_features=restored(protocol.reader_features, hidden.reader_features),
        writer_features=restored(protocol.writer_features, hidden.writer_features),
    )


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
