"""Rows of files: how an add or a remove becomes an interval in ``dl_files``, one by one or in bulk."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.paths import canonical_path, check_path
from deltalakedb.protocol.slots import SLOT_COLUMNS, Level, SlotEncoder, SlotRow, count_levels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltalakedb.metastore.engines.base import Session

#: file ids are (table id << FILE_ID_BITS) | sequence number, so that a table's files are stored together
FILE_ID_BITS = 40

#: columns of `dl_files`, and what `dl_file_json` holds beside the id, in the tables' own order
MAIN_COLUMNS = (
    "file_id",
    "table_id",
    "add_version",
    "remove_version",
    "tombstone",
    "deletion_timestamp",
    "path_hash",
    "path",
    "dv_id",
    "size",
    "modification_time",
    "data_change",
    *SLOT_COLUMNS,
)
SIDE_COLUMNS = (
    "stats",
    "partition_values",
    "tags",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
    "clustering_provider",
    "add_extra",
    "remove_action",
)
#: positions that closing an interval changes
_REMOVE_VERSION, _TOMBSTONE, _DELETION_TIMESTAMP = (
    MAIN_COLUMNS.index(c) for c in ("remove_version", "tombstone", "deletion_timestamp")
)
_REMOVE_ACTION = SIDE_COLUMNS.index("remove_action")

#: the slots of a file of which nothing is known
_UNKNOWN = SlotEncoder((), {}).encode(Add(path="-", size=0, modification_time=0, data_change=False))

#: rows that wait in memory before they are written
BATCH = 20_000


def path_hash(path: str) -> int:
    """A 64-bit hash of a path's canonical form."""
    data = canonical_path(path).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)


def plain_path_hashes(paths: Iterable[bytes]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The hashes of many paths that are in their canonical form."""
    fresh, digests = hashlib.blake2b(digest_size=8).copy, []
    for path in paths:
        hashed = fresh()
        hashed.update(path)
        digests.append(hashed.digest())
    return np.frombuffer(b"".join(digests), ">i8").astype(np.int64)


def main_row(add: Add, encoded: SlotRow) -> list[Any]:
    """A new file's values for `MAIN_COLUMNS` behind its id, its table's and its version."""
    return [
        None,
        True,
        None,
        path_hash(add.path),
        add.path,
        add.dv_id,
        add.size,
        add.modification_time,
        add.data_change,
        *encoded,
    ]


def side_row(add: Add) -> list[Any]:
    """A new file's values for `SIDE_COLUMNS`."""
    return [
        add.stats,
        encode_json(dict(add.partition_values)),
        None if add.tags is None else encode_json(dict(add.tags)),
        None if add.deletion_vector is None else encode_json(add.deletion_vector.to_dict()),
        add.base_row_id,
        add.default_row_commit_version,
        add.clustering_provider,
        encode_json(dict(add.extra)) if add.extra else None,
        None,
    ]


class FileRows:
    """Collects new and closed intervals of one table and writes them in batches.

    Args:
        session: Inside the transaction that changes the table.
        table_id: The table.
        next_seq: The first free sequence number.
        encoder: Turns stats and partition values into slots.
    """

    def __init__(self, session: Session, table_id: int, next_seq: int, encoder: SlotEncoder) -> None:
        self._session = session
        self._table_id = table_id
        self._encoder = encoder
        self.next_seq = next_seq
        self._new: dict[int, tuple[list[Any], list[Any]]] = {}
        self._closed: list[tuple[Any, ...]] = []
        self._encoded: list[SlotRow] = []
        self._levels: dict[tuple[int, int], tuple[int, int, int]] = {}

    def use(self, encoder: SlotEncoder) -> None:
        """Encode files from here on with other slots, after the schema changed."""
        self._encoder = encoder

    def add(self, add: Add, version: int) -> tuple[int, int | None]:
        """A file that lives from a version on; its id and its number of rows.

        Raises:
            ProtocolError: Its path is none of a data file.
        """
        check_path(add.path)
        encoded = self._encoder.encode(add)
        self._encoded.append(encoded)
        file_id = self._take_id()
        main = [file_id, self._table_id, version, *main_row(add, encoded)]
        side = side_row(add)
        self._put(file_id, main, side)
        return file_id, encoded[0]

    def close(self, file_id: int, version: int, remove: Remove | None) -> None:
        """End a file's interval: removed, or replaced by a newer row of the same identity (None)."""
        action = None if remove is None else encode_json(remove.to_dict())
        when = None if remove is None else remove.deletion_timestamp
        if (waiting := self._new.get(file_id)) is not None:
            main, side = waiting
            main[_REMOVE_VERSION], main[_TOMBSTONE], main[_DELETION_TIMESTAMP] = (
                version,
                remove is not None,
                when,
            )
            side[_REMOVE_ACTION] = action
        else:
            self._closed.append((version, remove is not None, when, action, file_id))
            if len(self._closed) >= BATCH:
                self._write_closed()

    def bury(self, remove: Remove, version: int) -> None:
        """A tombstone of a file that never lived in this catalog: an empty interval."""
        file_id = self._take_id()
        main = [
            file_id,
            self._table_id,
            version,
            version,
            True,
            remove.deletion_timestamp,
            path_hash(remove.path),
            remove.path,
            remove.dv_id,
            remove.size or 0,
            0,
            remove.data_change,
            *_UNKNOWN,
        ]
        side = [None, "{}", None, None, None, None, None, None, encode_json(remove.to_dict())]
        self._put(file_id, main, side)

    def live(self, paths: Iterable[str]) -> Mapping[tuple[str, str], tuple[int, int, int | None]]:
        """Live files of the table among some paths, as `live_files` returns them; flush rows before."""
        return live_files(self._session, self._table_id, paths)

    def flush(self) -> None:
        """Write everything that waits."""
        self._write_new()
        self._write_closed()
        self._write_levels()

    def _take_id(self) -> int:
        file_id = (self._table_id << FILE_ID_BITS) | self.next_seq
        self.next_seq += 1
        return file_id

    def _put(self, file_id: int, main: list[Any], side: list[Any]) -> None:
        self._new[file_id] = (main, side)
        if len(self._new) >= BATCH:
            self._write_new()

    def _write_new(self) -> None:
        if not self._new:
            return
        self._count_levels()
        if self._session.engine.dialect.side_table:
            self._session.insert("dl_files", MAIN_COLUMNS, [m for m, _ in self._new.values()])
            self._session.insert(
                "dl_file_json", ("file_id", *SIDE_COLUMNS), [[m[0], *s] for m, s in self._new.values()]
            )
        else:
            self._session.insert(
                "dl_files", (*MAIN_COLUMNS, *SIDE_COLUMNS), [[*m, *s] for m, s in self._new.values()]
            )
        self._new.clear()

    def _write_closed(self) -> None:
        if not self._closed:
            return
        columns = ("remove_version", "tombstone", "deletion_timestamp")
        if self._session.engine.dialect.side_table:
            main = [(v, t, w, i) for v, t, w, _, i in self._closed]
            self._session.update_rows("dl_files", columns, "file_id", main)
            side = [(a, i) for _, _, _, a, i in self._closed]
            self._session.update_rows("dl_file_json", ("remove_action",), "file_id", side)
        else:
            self._session.update_rows("dl_files", (*columns, "remove_action"), "file_id", self._closed)
        self._closed.clear()

    def count(self, levels: Iterable[Level]) -> None:
        """Count files that were written another way into the width levels, which are written last."""
        for slot, level, n, lo, hi in levels:
            have, low, high = self._levels.get((slot, level), (0, lo, hi))
            self._levels[slot, level] = (have + n, min(low, lo), max(high, hi))

    def _count_levels(self) -> None:
        self.count(count_levels(self._encoded))
        self._encoded.clear()

    def _write_levels(self) -> None:
        self._count_levels()
        write_levels(self._session, self._table_id, [Level(*k, *v) for k, v in self._levels.items()])
        self._levels.clear()


def write_levels(session: Session, table_id: int, levels: Sequence[Level]) -> None:
    """Add new files to the width levels of a table, where planning drives indexes by them."""
    dialect = session.engine.dialect
    if levels and dialect.indexed:
        session.update_many(session.sql("files", "upsert level"), [(table_id, *level) for level in levels])


def live_files(
    session: Session, table_id: int, paths: Iterable[str]
) -> Mapping[tuple[str, str], tuple[int, int, int | None]]:
    """Live files among some paths: (canonical path, dv id) -> (file id, size, number of rows)."""
    sql = session.sql("files", "live by hash")
    hashes = sorted({path_hash(p) for p in paths})
    found = {}
    for start in range(0, len(hashes), 500):
        part = hashes[start : start + 500]
        for file_id, path, dv_id, size, num_records, _ in session.rows(
            sql.expand(len(part)), (table_id, *part)
        ):
            found[canonical_path(path), dv_id] = (file_id, size, num_records)
    return found


def write_columns(
    session: Session,
    table_id: int,
    columns: Mapping[str, pa.Array],
    constants: Mapping[str, int | bool | str],
    levels: Sequence[Level],
) -> None:
    """Write new files.

    Args:
        session: Inside the transaction that writes them.
        table_id: The table.
        columns: Columns by name, all of one length; those that are left out or hold only nulls stay null.
        constants: Columns of `dl_files` that are the same for all.
        levels: The width levels that the files add up to.
    """
    kept = {n: c for n, c in columns.items() if c.null_count < len(c)}
    if not session.dialect.side_table:
        session.insert_arrow("dl_files", pa.table(kept), constants)
    else:
        main = {n: c for n, c in kept.items() if n not in SIDE_COLUMNS}
        side = {n: c for n, c in kept.items() if n in SIDE_COLUMNS or n == "file_id"}
        session.insert_arrow("dl_files", pa.table(main), constants)
        session.insert_arrow("dl_file_json", pa.table(side), {})
    write_levels(session, table_id, levels)
