"""What a load saw of its base, counted while it passed: the log need not be read again to compare it.

A stretch of files is told by one digest over all their texts, which a database makes quickly; the files
themselves are hashed one by one only here. Where every stretch of the catalog is what the log said, the sums
made here are those of both.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.metastore.files.digests import Stretch
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.digest import SEPARATOR, STRETCH_SEPARATOR, FileDigest
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.replay import file_key
from deltalakedb.transfer.live import hashed
from deltalakedb.transfer.vectors import may_be_spelled_otherwise
from deltalakedb.transfer.windows import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.digest import Numbers
    from deltalakedb.transfer.live import Tail
    from deltalakedb.transfer.windows import PreparedWindow

#: which of some files
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


@dataclass(slots=True)
class BaseProof:
    """The files of a base as the log told them.

    Attributes:
        first_version: The version of the checkpoint that they come from.
        version: The version at which the load is compared.
        tail: What the commits up to it do.
        kept: The digest of the files that no commit of the tail touches.
        touched: That of the others.
        stretches: All of them in order.
        rows: How many rows of the base were seen.
    """

    first_version: int
    version: int
    tail: Tail
    kept: FileDigest = field(default_factory=FileDigest)
    touched: FileDigest = field(default_factory=FileDigest)
    stretches: list[Stretch] = field(default_factory=list)
    rows: int = 0
    #: paths that the tail touches, of files without a deletion vector
    _plain: pa.Array | None = None

    def look(self, window: PreparedWindow) -> None:
        """Count a window in; they come in order."""
        seq = window.begin
        for part in window.parts:
            if isinstance(part, Block):
                self._columns(seq, part.columns)
                seq += part.counts.num_files
            else:
                self._actions(seq, part)
                seq += sum(1 for a in part if isinstance(a, Add | Remove))
        self.rows += window.end - window.begin

    def log_digest(self) -> FileDigest:
        """The digest of the files that live at the version, by the log."""
        made = FileDigest().merge(self.kept)
        made.add_rows(hashed(add) for add in self.tail.live.values())
        return made

    def base_digest(self) -> FileDigest:
        """The digest of all files of the base."""
        return FileDigest().merge(self.kept).merge(self.touched)

    def _columns(self, seq: int, columns: Mapping[str, pa.Array]) -> None:
        paths = columns["path"]
        texts = pc.binary_join_element_wise(
            paths,
            "",
            columns["size"].cast(pa.string()),
            columns["modification_time"].cast(pa.string()),
            columns["partition_values"],
            pc.fill_null(columns["stats"], ""),
            SEPARATOR,
        ).cast(pa.binary())
        hashes = columns["path_hash"].to_numpy(zero_copy_only=False)
        sizes = columns["size"].to_numpy(zero_copy_only=False)
        self._count(seq, hashes, sizes, texts, self._touched(paths))

    def _touched(self, paths: pa.Array) -> Flags:
        if not self.tail.touched:
            return np.zeros(len(paths), bool)
        found: Flags
        if may_be_spelled_otherwise(paths):
            keys = self.tail.touched
            return np.array([(canonical_path(p), "") in keys for p in paths.to_pylist()], bool)
        if self._plain is None:
            self._plain = pa.array([path for path, vector in self.tail.touched if not vector], pa.string())
        found = pc.is_in(paths, value_set=self._plain).to_numpy(zero_copy_only=False)
        return found

    def _actions(self, seq: int, actions: list[Action]) -> None:
        adds = [a for a in actions if isinstance(a, Add)]
        if not adds:
            return
        rows = [hashed(add) for add in adds]
        texts = [SEPARATOR.join(map(str, row[1:])).encode("utf-8", "surrogatepass") for row in rows]
        hashes, sizes = (np.array(v, np.int64) for v in ([r[0] for r in rows], [a.size for a in adds]))
        touched = np.array([file_key(a) in self.tail.touched for a in adds], bool)
        files = sum(1 for a in actions if isinstance(a, Add | Remove))
        self._count(seq, hashes, sizes, pa.array(texts, pa.binary()), touched, ids=files)

    def _count(
        self,
        seq: int,
        hashes: Numbers,
        sizes: Numbers,
        texts: pa.Array,
        touched: Flags,
        *,
        ids: int | None = None,
    ) -> None:
        whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        joined = pc.binary_join(whole, STRETCH_SEPARATOR.encode())[0].as_buffer()
        found = hashlib.md5(joined, usedforsecurity=False).hexdigest()
        self.stretches.append(Stretch(seq, seq + (len(texts) if ids is None else ids), len(texts), found))
        if touched.any():
            here = pa.array(touched)
            self.touched.add_texts(hashes[touched], sizes[touched], texts.filter(here).to_pylist())
            texts, hashes, sizes = texts.filter(pc.invert(here)), hashes[~touched], sizes[~touched]
        self.kept.add_texts(hashes, sizes, texts.to_pylist())


@contextmanager
def looking(proof: BaseProof | None) -> Iterator[Callable[[PreparedWindow], None]]:
    """A function that counts a window into a proof, in a thread of its own while the window is written."""
    if proof is None:
        yield lambda _: None
        return
    under_way: list[Future[None]] = []

    def settle() -> None:
        while under_way:
            under_way.pop().result()

    def look(window: PreparedWindow) -> None:
        settle()  # one window at a time, or they would pile up in memory
        under_way.append(pool.submit(proof.look, window))

    with ThreadPoolExecutor(1, thread_name_prefix="deltasql-proof") as pool:
        yield look
        settle()
