"""Checkpoints as streams of actions: Parquet or JSON, in parts, with sidecars; memory stays bounded."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.exceptions import (
    LogCorruptError,
    OutsidePathError,
    ProtocolError,
    StorageError,
    StorageMissingError,
)
from deltalakedb.log.names import SIDECAR_FOLDER
from deltalakedb.log.struct_stats import stats_json
from deltalakedb.protocol.actions import Action, Sidecar, UnknownAction, action_from_dict, kind_of
from deltalakedb.protocol.codec import decode_line
from deltalakedb.protocol.paths import decode_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.log.listing import Checkpoint
    from deltalakedb.storage import Store

BATCH_ROWS = 4096
_BUFFER_BYTES = 1 << 20
_PARSED = "stats_parsed"
#: read elsewhere or not at all: the strings of `partitionValues` are the truth
_SKIPPED = {"partitionValues_parsed", _PARSED}
_FILE_KINDS = {"add", "remove", "cdc"}
#: structs inside an action whose absent fields are nulls in Parquet
_NESTED = ("deletionVector", "format")
_TORN = "delete the broken checkpoint if the log holds the commits before it, or restore it from a copy"


def iter_checkpoint(
    store: Store,
    checkpoint: Checkpoint,
    *,
    kinds: frozenset[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[list[Action]]:
    """The actions of a checkpoint in batches, in no particular order.

    Args:
        store: The table's root.
        checkpoint: Which one.
        kinds: Only these action kinds; sidecars are read only where they can hold one of them.
        batch_rows: The size of a batch, at most.

    Raises:
        LogCorruptError: A file of it is missing or torn; batches may have been given before that shows.
    """
    wanted = None if kinds is None else kinds | {"sidecar"}
    sidecars: list[Sidecar] = []
    for meta in checkpoint.files:
        for batch in _iter_file(store, meta.path, wanted, batch_rows):
            sidecars += [action for action in batch if isinstance(action, Sidecar)]
            rest: list[Action] = [action for action in batch if not isinstance(action, Sidecar)]
            if rest:
                yield rest
    if kinds is None or kinds & _FILE_KINDS:
        for sidecar in sidecars:
            yield from _iter_file(store, sidecar_path(sidecar), kinds, batch_rows)


def is_whole(store: Store, checkpoint: Checkpoint) -> bool:
    """Whether all files of a checkpoint are there and end as they should; cheap, so not a full proof."""
    try:
        for path in named_sidecars(store, checkpoint):
            with open_parquet(store, path):
                pass
    except LogCorruptError:
        return False
    return True


def named_sidecars(store: Store, checkpoint: Checkpoint) -> set[str]:
    """Where the sidecars lie that a checkpoint names.

    Raises:
        LogCorruptError: A file of the checkpoint itself is missing or torn.
    """
    return {
        sidecar_path(action)
        for meta in checkpoint.files
        for batch in _iter_file(store, meta.path, frozenset({"sidecar"}), BATCH_ROWS)
        for action in batch
        if isinstance(action, Sidecar)
    }


def sidecar_path(sidecar: Sidecar) -> str:
    """Where a sidecar lies: always in the table's own folder, so that a copied table finds its own."""
    return f"{SIDECAR_FOLDER}/{decode_path(sidecar.path).rpartition('/')[2]}"


def _iter_file(
    store: Store, path: str, kinds: frozenset[str] | None, batch_rows: int
) -> Iterator[list[Action]]:
    read = _iter_json if path.endswith(".json") else _iter_parquet
    return read(store, path, kinds, batch_rows)


def _iter_json(
    store: Store, path: str, kinds: frozenset[str] | None, batch_rows: int
) -> Iterator[list[Action]]:
    with as_torn(path), store.open(path) as file:
        number = 0
        while lines := list(islice(file, batch_rows)):
            batch = []
            for line in lines:
                number += 1
                # lines of other kinds are decoded too: a torn one must show
                action = decode_line(line, source=path, number=number)
                if action is not None and (kinds is None or kind_of(action) in kinds):
                    batch.append(action)
            yield batch
        if not number:
            raise LogCorruptError(f"the checkpoint file {path} is empty", suggestion=_TORN)


def _iter_parquet(
    store: Store, path: str, kinds: frozenset[str] | None, batch_rows: int
) -> Iterator[list[Action]]:
    with open_parquet(store, path) as file:
        columns = wanted_columns(file, kinds)
        if not columns:
            return
        utc = instants(file)
        batches = file.iter_batches(batch_size=batch_rows, columns=columns, use_threads=False)
        while True:
            with as_torn(path):
                if (batch := next(batches, None)) is None:
                    return
                actions = [
                    action
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                    for action in column_actions(name, column, utc)
                ]
            yield actions


@contextlib.contextmanager
def open_parquet(store: Store, path: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file of a checkpoint; LogCorruptError where it is missing or has no whole footer."""
    with contextlib.ExitStack() as stack:
        with as_torn(path):
            handle = stack.enter_context(store.open(path))
            file = stack.enter_context(
                pq.ParquetFile(
                    handle,
                    buffer_size=_BUFFER_BYTES,
                    pre_buffer=False,
                    coerce_int96_timestamp_unit="us",
                    page_checksum_verification=True,
                )
            )
        yield file


@contextlib.contextmanager
def as_torn(path: str) -> Iterator[None]:
    """Turn what a broken file makes its reader say into one typed error; a store that is away stays away."""
    try:
        yield
    except StorageMissingError as e:
        raise LogCorruptError(f"the checkpoint file {path} is missing", suggestion=_TORN) from e
    except (StorageError, LogCorruptError, OutsidePathError):
        raise
    except ProtocolError as e:
        raise LogCorruptError(f"the checkpoint file {path}: {e.message}", suggestion=_TORN) from e
    except (pa.ArrowException, OSError, ValueError, OverflowError) as e:
        raise LogCorruptError(f"the checkpoint file {path} cannot be read: {e}", suggestion=_TORN) from e


def wanted_columns(file: pq.ParquetFile, kinds: frozenset[str] | None) -> list[str]:
    """The columns to read for some action kinds; statistics as structs only where some have no other form."""
    columns = []
    for top in file.schema_arrow:
        if kinds is not None and top.name not in kinds:
            continue
        if not pa.types.is_struct(top.type):
            columns.append(top.name)
            continue
        columns += [f"{top.name}.{child.name}" for child in top.type if child.name not in _SKIPPED]
        if top.name == "add" and top.type.get_field_index(_PARSED) >= 0 and _lacks_json_stats(file):
            columns.append(f"add.{_PARSED}")
    return columns


def _lacks_json_stats(file: pq.ParquetFile) -> bool:
    """Whether some add may have no JSON statistics, told by the footer's counts of nulls."""
    paths = {file.schema.column(i).path: i for i in range(len(file.schema))}
    if "add.stats" not in paths or "add.path" not in paths:
        return True
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        counts = []
        for name in ("add.stats", "add.path"):
            statistics = group.column(paths[name]).statistics
            if statistics is None or not statistics.has_null_count:
                return True
            counts.append(statistics.null_count)
        if counts[0] != counts[1]:
            return True
    return False


def instants(file: pq.ParquetFile) -> frozenset[str]:
    """Timestamps of the old INT96 kind, which are instants without saying so."""
    prefix = f"add.{_PARSED}."
    columns = (file.schema.column(i) for i in range(len(file.schema)))
    return frozenset(
        column.path.removeprefix(prefix)
        for column in columns
        if column.physical_type == "INT96" and column.path.startswith(prefix)
    )


def column_actions(kind: str, column: Any, utc: frozenset[str]) -> Iterator[Action]:
    """The actions of one kind in a column of a checkpoint."""
    if not len(column := column.drop_null()):
        return
    if not pa.types.is_struct(column.type):
        yield from (UnknownAction(kind=kind, value=value) for value in column.to_pylist())
        return
    parsed: list[str | None] | None = None
    children, fields = column.flatten(), list(column.type)
    if kind == "add" and (at := column.type.get_field_index(_PARSED)) >= 0:
        parsed = stats_json(children.pop(at), utc=utc)
        fields.pop(at)
    for row, value in enumerate(_rows([field.name for field in fields], children)):
        if not value or (kind in _FILE_KINDS and "path" not in value):
            continue  # some writers spell an absent action as a struct of nulls
        if parsed is not None and "stats" not in value and parsed[row] is not None:
            value["stats"] = parsed[row]
        if (action := action_from_dict({kind: value})) is not None:
            yield action


def _rows(names: list[str], columns: list[Any]) -> list[dict[str, Any]]:
    """Columns as rows without nulls; column by column, since Arrow's own way is several times slower."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(columns[0]))] if columns else []
    for name, column in zip(names, columns, strict=True):
        if column.null_count == len(column):
            continue
        values = _maps(column) if pa.types.is_map(column.type) else column.to_pylist(maps_as_pydicts="lossy")
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name] = value
        if name in _NESTED:
            _tidy(rows, name)
    return rows


def _maps(column: pa.MapArray) -> Iterator[dict[str, Any] | None]:
    keys, items, offsets = column.keys.to_pylist(), column.items.to_pylist(), column.offsets.to_pylist()
    for row, present in enumerate(column.is_valid().to_pylist()):
        at = slice(offsets[row], offsets[row + 1])
        yield dict(zip(keys[at], items[at], strict=True)) if present else None


def _tidy(rows: list[dict[str, Any]], name: str) -> None:
    for row in rows:
        if isinstance(value := row.get(name), dict):
            row[name] = {key: item for key, item in value.items() if item is not None}
            if not row[name]:
                del row[name]
