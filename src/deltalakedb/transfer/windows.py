"""Windows of a checkpoint as rows of the catalog: by columns where that can be, else file by file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from deltalakedb.catalog import slot_rows
from deltalakedb.catalog.file_columns import write_columns
from deltalakedb.catalog.file_rows import SEQ_BITS, FileRows, path_hash
from deltalakedb.catalog.ratify import Counts
from deltalakedb.log.checkpoint import column_actions
from deltalakedb.log.checkpoint_scan import Piece
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.transfer.vectors import plain_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.log.checkpoint_scan import Window
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.slot_vectors import SlotVectors
    from deltalakedb.protocol.slots import SlotEncoder
    from deltalakedb.transfer.vectors import PlainFiles


@dataclass(frozen=True, slots=True)
class Encoders:
    """The two ways in which files become slot rows; both give the same."""

    one: SlotEncoder
    many: SlotVectors

    @classmethod
    def of(cls, session: Session, table_id: int) -> Encoders:
        """Those of a table as it is now."""
        return cls(slot_rows.encoder(session, table_id), slot_rows.vectors(session, table_id))


def write_window(
    session: Session, table_id: int, version: int, window: Window, encoders: Encoders
) -> tuple[Counts, int]:
    """Write a window's files; what they count to, and how many file actions there were."""
    writer = _Writer(session, table_id, version, window.begin, encoders)
    for part in window.parts:
        if not isinstance(part, Piece):
            writer.actions_of(part)
        elif (files := plain_files(part.batch)) is not None and writer.columns_of(files):
            # tombstones are few, and stand in rows of their own
            if (at := part.batch.schema.get_field_index("remove")) >= 0:
                writer.actions_of(column_actions("remove", part.batch.column(at), part.utc))
        else:
            writer.actions_of(part.actions())
    writer.rows.flush()
    return writer.counts, writer.actions


class _Writer:
    def __init__(self, session: Session, table_id: int, version: int, seq: int, encoders: Encoders) -> None:
        self._session, self._table_id, self._version = session, table_id, version
        self._encoders = encoders
        self.rows = FileRows(session, table_id, seq, encoders.one)
        self.counts = Counts()
        self.actions = 0

    def actions_of(self, actions: Iterable[Action]) -> None:
        """Write files one by one."""
        for action in actions:
            if isinstance(action, Add):
                _, records = self.rows.add(action, self._version)
                self.counts.change(1, action.size, records)
                self.actions += 1
            elif isinstance(action, Remove):
                self.rows.bury(action, self._version)
                self.actions += 1

    def columns_of(self, files: PlainFiles) -> bool:
        """Write files by columns; False where their statistics ask for the other way."""
        made = self._encoders.many.columns(files.stats, files.partitions)
        if made is None:
            return False
        odd = np.flatnonzero(made.odd).tolist()
        if odd:
            made.replace_rows(odd, [self._encoders.one.encode(_add(files, n)) for n in odd])
        count = len(files.paths)
        first = (self._table_id << SEQ_BITS) | self.rows.next_seq
        self.rows.next_seq += count
        columns = {
            "file_id": pa.array(np.arange(first, first + count)),
            "path_hash": pa.array([path_hash(p) for p in files.paths.to_pylist()], pa.int64()),
            "path": files.paths,
            "size": files.sizes,
            "modification_time": files.times,
            "data_change": files.data_changes,
            **made.arrays(),
            "stats": files.stats,
            "partition_values": pa.array(files.values, pa.string()),
        }
        constants: dict[str, int | bool | str] = {
            "table_id": self._table_id,
            "add_version": self._version,
            "tombstone": True,
            "dv_id": "",
        }
        write_columns(self._session, self._table_id, columns, constants, made.levels())
        known = count - made.num_records.null_count
        self.counts.num_files += count
        self.counts.size_bytes += int(np.asarray(files.sizes).sum())
        self.counts.num_records += int(made.num_records.fill_null(0).to_numpy(zero_copy_only=False).sum())
        self.counts.files_without_count += count - known
        self.actions += count
        return True


def _add(files: PlainFiles, number: int) -> Add:
    """One file of many, for the encoder."""
    return Add(
        path=files.paths[number].as_py(),
        partition_values={name: values[number].as_py() for name, values in files.partitions.items()},
        size=files.sizes[number].as_py(),
        modification_time=files.times[number].as_py(),
        data_change=files.data_changes[number].as_py(),
        stats=files.stats[number].as_py(),
    )
