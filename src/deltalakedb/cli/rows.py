"""Rows of data as a table, CSV, JSON or Parquet: printed, or written to a file."""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import pyarrow as pa

from deltalakedb.cli.output import DataRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.cli.context import Invocation

FORMATS = ("table", "csv", "json", "parquet")
#: the columns of EXPLAIN results, whose plans are printed as they are
_PLANS = (["explain_key", "explain_value"], ["plan_type", "plan"])


def choose_format(cli: Invocation, name: str | None, output: str | None) -> str:
    """The format of ``--format``, of ``--json``, or of the ending of ``--output``."""
    if name is None:
        ending = Path(output or "").suffix.removeprefix(".").lower()
        name = "json" if cli.json else ending if ending in FORMATS else "csv" if output else "table"
    if cli.json and name != "json":
        raise click.UsageError(f"--json and --format {name} exclude each other: pass one of them")
    if name == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE: it is not text")
    if name == "table" and output is not None:
        raise click.UsageError("--output needs --format csv, json or parquet")
    return name


def limited(reader: pa.RecordBatchReader, limit: int | None) -> pa.RecordBatchReader:
    """The first rows of a stream, at most ``limit``; the rest is not read."""
    if limit is None:
        return reader

    def batches() -> Iterator[pa.RecordBatch]:
        left = limit
        while left > 0:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            yield batch.slice(0, left)
            left -= batch.num_rows

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def show_rows(
    cli: Invocation, reader: pa.RecordBatchReader, format_name: str, output: str | None = None
) -> int:
    """Print rows, or write them to a file, as they come; returns how many there were."""
    counted = _Counted(reader)
    if output is not None:
        with _new_file(Path(output)) as file:
            _WRITERS[format_name](counted, file)
    elif format_name in _WRITERS:
        sys.stdout.flush()
        _WRITERS[format_name](counted, sys.stdout.buffer)
    elif cli.quiet:
        for row in counted:
            click.echo("\t".join(map(cell_text, row)))
    elif reader.schema.names in _PLANS:
        for _, plan in counted:
            click.echo(str(plan).rstrip("\n"))
    else:
        columns = [(field.name, _is_number(field.type)) for field in reader.schema]
        cli.show(None, [DataRows(columns, (tuple(map(cell_text, row)) for row in counted))])
    return counted.rows


class _Counted:
    """A stream, read as batches or as tuples of Python values; counts the rows read so far."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader, self.schema, self.rows = reader, reader.schema, 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._reader:
            self.rows += batch.num_rows
            yield batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches():
            columns = [column.to_pylist() for column in batch.columns]
            yield from zip(*columns, strict=True)


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name only when it is complete."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_parquet(rows: _Counted, file: Any) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, rows.schema) as writer:
        for batch in rows.batches():
            writer.write_batch(batch)


def _write_json(rows: _Counted, file: Any) -> None:
    """One array with an object a line, so that a long result is never in memory as a whole."""
    names, before = rows.schema.names, b"[\n  "
    for row in rows:
        line = json.dumps(plain_value(dict(zip(names, row, strict=True))), ensure_ascii=False)
        file.write(before + line.encode())
        before = b",\n  "
    file.write(b"\n]\n" if rows.rows else b"[]\n")


def _write_csv(rows: _Counted, file: Any) -> None:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.schema.names)
    lines = (["" if v is None else cell_text(v) for v in row] for row in rows)
    while True:
        file.write(text.getvalue().encode())
        text.seek(0)
        text.truncate()
        if not (some := list(islice(lines, 1000))):
            return
        writer.writerows(some)


_WRITERS = {"csv": _write_csv, "json": _write_json, "parquet": _write_parquet}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def cell_text(value: Any) -> str:
    """A value as the text of a cell, in a table or in CSV."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat(sep=" ")
        case date() | time():
            return value.isoformat()
        case bytes():
            return "0x" + value.hex()
        case dict() | list() | tuple():
            return json.dumps(plain_value(value), ensure_ascii=False)
    return str(value)


def plain_value(value: Any) -> Any:
    """A value for JSON: times and decimals become strings, bytes base64, NaN and infinities null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): plain_value(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_value(item) for item in value]
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)
