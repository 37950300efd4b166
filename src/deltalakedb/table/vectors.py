"""Deletion vectors of an open table: the rows they take out, and which files have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from deltalakedb.protocol.dv import block_range, decode_block, decode_inline, dv_path, resolve_dv
from deltalakedb.protocol.paths import is_absolute
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyroaring import BitMap64

    from deltalakedb.protocol.actions import Add, DeletionVector
    from deltalakedb.table.roots import Root

#: as stock gives it
VECTOR_SCHEMA = pa.schema(
    [
        pa.field("filepath", pa.large_string(), nullable=False),
        pa.field("selection_vector", pa.list_(pa.field("item", pa.bool_(), nullable=False)), nullable=False),
    ]
)


class Vectors:
    """Reads the deletion vectors of one table.

    Args:
        root: The table's root.
    """

    def __init__(self, root: Root) -> None:
        self._root = root.location
        self._paths = root.paths
        self._options = root.options

    def rows(self, vector: DeletionVector) -> BitMap64:
        """The indexes of the rows that a vector takes out."""
        path, place = dv_path(vector), resolve_dv(self._paths, vector)
        if path is None or place is None:
            return decode_inline(vector)
        if vector.storage_type == "p":
            folder, _, path = place.rpartition("/")
        else:
            folder = self._root
        return decode_block(vector, open_store(folder, self._options).get_range(path, *block_range(vector)))

    def kept(self, adds: Iterable[Add]) -> Iterator[pa.RecordBatch]:
        """For each file with a vector, which of its rows stay."""
        for add in adds:
            if add.deletion_vector is None:
                continue
            mask = [True] * self.num_rows(add)
            for row in self.rows(add.deletion_vector):
                mask[row] = False
            where = self._paths.resolve(add.path)
            # not URL-encoded: readers join it with file_uris()
            uri = where if "://" in where else f"file://{where}"
            yield pa.RecordBatch.from_arrays(
                [pa.array([uri], pa.large_string()), pa.array([mask], VECTOR_SCHEMA.field(1).type)],
                schema=VECTOR_SCHEMA,
            )

    def num_rows(self, add: Add) -> int:
        """How many rows a data file has, deleted ones included."""
        stats = parse_stats(add.stats)
        if stats is not None and stats.num_records is not None:
            return stats.num_records
        import pyarrow.parquet as pq

        path = self._paths.resolve(add.path)
        folder, name = self._root, path.removeprefix(self._root).lstrip("/")
        if is_absolute(add.path):
            folder, _, name = path.rpartition("/")
        with open_store(folder, self._options).open(name) as file:
            return int(pq.read_metadata(file).num_rows)
