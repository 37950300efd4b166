"""Windows of a checkpoint as rows of the catalog: by columns where that can be, else file by file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from deltalakedb.delta_log.checkpoint import Piece, column_actions, corrupt_errors
from deltalakedb.metastore import files
from deltalakedb.metastore.files import FILE_ID_BITS, Counts, FileRows, write_columns
from deltalakedb.protocol.actions import Add, Remove
from deltalakedb.protocol.rules import check_places
from deltalakedb.transfer.vectors import check_paths, hashes_of, plain_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.delta_log.checkpoint import Window
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.paths import TablePaths
    from deltalakedb.protocol.slot_vectors import SlotVectors
    from deltalakedb.protocol.slots import Level, SlotEncoder
    from deltalakedb.transfer.vectors import PlainFiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Encoders:
    """The two ways in which files become slot rows, both with the same result, and where files may be."""

    one: SlotEncoder
    many: SlotVectors
    paths: TablePaths

    @classmethod
    def of(cls, session: Session, table_id: int, paths: TablePaths) -> Encoders:
        """Those of a table as it is now."""
        return cls(files.slot_encoder(session, table_id), files.slot_vectors(session, table_id), paths)


@dataclass(frozen=True, slots=True)
class Block:
    """Files as columns, ready to be written."""

    columns: Mapping[str, pa.Array]
    levels: Sequence[Level]
    counts: Counts


@dataclass(frozen=True, slots=True)
class PreparedWindow:
    """A window whose files are encoded: what can be done without the database is done."""

    begin: int
    end: int
    parts: list[Block | list[Action]] = field(default_factory=list)


def prepare(window: Window, encoders: Encoders) -> PreparedWindow:
    """Encode a window's files."""
    made = PreparedWindow(window.begin, window.end)
    for part in window.parts:
        if not isinstance(part, Piece):
            check_places(part, encoders.paths)
            made.parts.append(part)
            continue
        with corrupt_errors(part.path):
            files = plain_files(part.batch)
            block = None if files is None else block_of(files, encoders)
        if block is None:
            actions = part.actions()
            with corrupt_errors(part.path):
                check_places(actions, encoders.paths)
            made.parts.append(actions)
            continue
        made.parts.append(block)
        if (at := part.batch.schema.get_field_index("remove")) >= 0:
            # tombstones stand in rows of their own
            with corrupt_errors(part.path):
                removes = list(column_actions("remove", part.batch.column(at), part.utc))
                check_places(removes, encoders.paths)
            made.parts.append(removes)
    return made


def block_of(files: PlainFiles, encoders: Encoders) -> Block | None:
    """Files by columns; None where their statistics ask for the other way.

    Raises:
        OutsidePathError: A file is outside of the table's root, and the settings do not allow that.
        ProtocolError: A path is none of a data file.
    """
    check_paths(files.paths, encoders.paths)
    made = encoders.many.columns(files.stats, files.partitions)
    if made is None:
        return None
    odd = np.flatnonzero(made.odd).tolist()
    if odd:
        made.replace_rows(odd, [encoders.one.encode(_add(files, n)) for n in odd])
    counts = Counts(
        len(files.paths),
        int(np.asarray(files.sizes).sum()),
        int(made.num_records.fill_null(0).to_numpy(zero_copy_only=False).sum()),
        made.num_records.null_count,
    )
    columns = {
        "path_hash": pa.array(hashes_of(files.paths)),
        "path": files.paths,
        "size": files.sizes,
        "modification_time": files.times,
        "data_change": files.data_changes,
        **made.arrays(),
        "stats": files.stats,
        "partition_values": files.values,
    }
    return Block(columns, made.levels(), counts)


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


def write_window(
    session: Session, table_id: int, version: int, window: PreparedWindow, encoders: Encoders
) -> tuple[Counts, int]:
    """Write a window's files; what they count to, and how many file actions there were."""
    rows = FileRows(session, table_id, window.begin, encoders.one)
    counts, actions = Counts(), 0
    constants: dict[str, int | bool | str] = {
        "table_id": table_id,
        "add_version": version,
        "tombstone": True,
        "dv_id": "",
    }
    for part in window.parts:
        if isinstance(part, Block):
            first, many = (table_id << FILE_ID_BITS) | rows.next_seq, part.counts.num_files
            rows.next_seq += many
            ids = pa.array(np.arange(first, first + many))
            write_columns(session, table_id, {"file_id": ids, **part.columns}, constants, ())
            rows.count(part.levels)
            counts.add(part.counts)
            actions += many
        else:
            actions += _write_actions(rows, counts, version, part)
    rows.flush()
    return counts, actions


def _write_actions(rows: FileRows, counts: Counts, version: int, actions: Iterable[Action]) -> int:
    """Write files one by one; how many there were."""
    done = 0
    for action in actions:
        if isinstance(action, Add):
            _, records = rows.add(action, version)
            counts.change(1, action.size, records)
            done += 1
        elif isinstance(action, Remove):
            rows.bury(action, version)
            done += 1
    return done


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in a thread while the one before it is used."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="deltasql-ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # not the end
