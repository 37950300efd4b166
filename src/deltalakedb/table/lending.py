"""Real files lent to a scratch table: by links on local disk, by copies from an object store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from deltalakedb.exceptions import FetchLimitError, StorageMissingError
from deltalakedb.protocol.actions import DeletionVector
from deltalakedb.protocol.dv import block_range, decode_block, resolve_dv, z85_encode
from deltalakedb.protocol.paths import encode_path, is_absolute, is_url, relative_to
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.paths import TablePaths
    from deltalakedb.storage.store import Store

#: what lent files lie under inside a scratch folder; no partition folder or data file is called so
LENT: Final = "__deltasql_root__"


class Absolute:
    """Lends files for reading, by paths that stand for themselves.

    Args:
        paths: Where the table's files may be; its root is a local path.
    """

    copies: Final = False

    def __init__(self, paths: TablePaths) -> None:
        self._paths = paths

    def lend(self, adds: Sequence[Add]) -> list[Add]:
        """The adds with absolute paths, those of their deletion vectors included."""
        return [self._placed(add) for add in adds]

    def _placed(self, add: Add) -> Add:
        vector = add.deletion_vector
        place = None if vector is None else resolve_dv(self._paths, vector)
        if vector is not None and place is not None and vector.storage_type == "u":
            vector = replace(vector, storage_type="p", path_or_inline_dv=_url(place))
        return replace(add, path=_url(self._paths.resolve(add.path)), deletion_vector=vector)


def _url(place: str) -> str:
    return encode_path(place) if is_url(place) else f"file://{encode_path(place)}"


class Links:
    """Lends files by symbolic links to the folders that hold them.

    Args:
        paths: Where the table's files may be; its root is a local path.
        folder: The scratch folder.
    """

    copies: Final = False

    def __init__(self, paths: TablePaths, folder: Path) -> None:
        self._paths = paths
        self._root = paths.root
        self._folder = folder
        self._links: dict[str, str] = {}

    def lend(self, adds: Sequence[Add]) -> list[Add]:
        """The adds with paths that lead through a link to the real files."""
        return [self._linked(add) for add in adds]

    def _linked(self, add: Add) -> Add:
        real = Path(self._paths.resolve(add.path))
        if is_absolute(add.path):
            path = f"{self._link(str(real.parent))}/{quote(real.name)}"
        else:
            path = f"{self._link(self._root)}/{add.path}"
        vector = add.deletion_vector
        if vector is not None:
            resolve_dv(self._paths, vector)
        if vector is not None and vector.storage_type == "u":
            prefix = f"{self._link(self._root)}/{vector.path_or_inline_dv[:-20]}".rstrip("/")
            vector = replace(vector, path_or_inline_dv=prefix + vector.path_or_inline_dv[-20:])
        return replace(add, path=path, deletion_vector=vector)

    def _link(self, target: str) -> str:
        if (name := self._links.get(target)) is None:
            name = LENT if target == self._root else f"{LENT}{len(self._links)}"
            (self._folder / name).symlink_to(target, target_is_directory=True)
            self._links[target] = name
        return name


class Copies:
    """Lends files by fetching them, several at a time; deletion vectors travel inside the log.

    Args:
        paths: Where the table's files may be; its root is a URL.
        store: The store at the root.
        folder: The scratch folder.
        options: Storage options for files that lie outside of the root.
        limit: Bytes to fetch at most.
        parallel: Transfers at a time.
    """

    copies: Final = True

    def __init__(
        self,
        paths: TablePaths,
        store: Store,
        folder: Path,
        *,
        options: Mapping[str, str] | None,
        limit: int,
        parallel: int,
    ) -> None:
        self._paths = paths
        self._root = paths.root
        self._store = store
        self._folder = folder / LENT
        self._options = options
        self._limit = limit
        self._parallel = parallel

    def lend(self, adds: Sequence[Add]) -> list[Add]:
        """The adds with paths of fetched copies.

        Raises:
            FetchLimitError: They are larger than the limit; nothing was fetched.
        """
        check_limit(self._root, [add.size for add in adds], self._limit)
        if not adds:
            return []
        self._folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(min(self._parallel, len(adds))) as pool:
            pending = [pool.submit(self._copied, number, add) for number, add in enumerate(adds)]
            try:
                return [found.result() for found in pending]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _copied(self, number: int, add: Add) -> Add:
        # short names of our own: a key may be longer than a file name can be, or lie outside of the root
        name = f"{number}.parquet"
        store, path = self._place(self._paths.resolve(add.path))
        try:
            store.fetch(path, self._folder / name)
            vector = self._inline(add.deletion_vector)
        except StorageMissingError as error:
            raise StorageMissingError(
                f"a data file of the table is missing: {error.message}",
                suggestion="somebody deleted it: restore it, or read a version that does not need it",
            ) from error
        return replace(add, path=f"{LENT}/{name}", deletion_vector=vector)

    def _inline(self, vector: DeletionVector | None) -> DeletionVector | None:
        """The vector with its rows inside, so that its file is not needed."""
        if vector is None or (url := resolve_dv(self._paths, vector)) is None:
            return vector
        store, path = self._place(url)
        block = store.get_range(path, *block_range(vector))
        decode_block(vector, block)
        data = block[4:-4]
        text = z85_encode(data + bytes(-len(data) % 4))
        return DeletionVector(
            storage_type="i",
            path_or_inline_dv=text,
            size_in_bytes=vector.size_in_bytes,
            cardinality=vector.cardinality,
        )

    def _place(self, url: str) -> tuple[Store, str]:
        if (inside := relative_to(self._root, url.replace("%", "%25"))) is not None:
            return self._store, inside
        folder, _, name = url.rpartition("/")
        return open_store(folder, self._options), name


def check_limit(root: str, sizes: Sequence[int], limit: int) -> None:
    """Refuse to fetch more than the settings allow."""
    size = sum(sizes)
    if size > limit:
        raise FetchLimitError(
            f"this operation would have to fetch {len(sizes)} files of {size:,} bytes from {root}, and the "
            f"setting remote.fetch_limit_bytes allows {limit:,}",
            suggestion="narrow the predicate to fewer files, raise remote.fetch_limit_bytes "
            "(DELTASQL_REMOTE__FETCH_LIMIT_BYTES) where the disk has the space, or run it on Spark",
        )
