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
#: results of EXPLAIN: plans are drawings, which are printed as they are
_PLANS = (["explain_key", "explain_value"], ["plan_type", "plan"])


def choose_format(cli: Invocation, name: str | None, output: str | None) -> str:
    """The format of ``--format``, of ``--json``, or of the ending of ``--output``."""
    if name is None:
        ending = Path(output or "").suffix.removeprefix(".").lower()
        name = "json" if cli.json else ending if ending in FORMATS else "csv" if output else "table"
    if cli.json and name != "json":
        raise click.UsageError("--json prints JSON: leave out --format")
    if name == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE: it is not text")
    if name == "table" and output is not None:
        raise click.UsageError("--output needs --format csv, json or parquet")
    return name


def limited(reader: pa.RecordBatchReader, limit: int | None) -> pa.RecordBatchReader:
    """At most the first rows of a stream; the rest is not read."""
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


def show_rows(cli: Invocation, reader: pa.RecordBatchReader, name: str, output: str | None = None) -> int:
    """Print rows, or write them to a file, as they come; returns how many there were."""
    counted = _Counted(reader)
    if output is not None:
        with _new_file(Path(output)) as file:
            (_write_parquet if name == "parquet" else _write_csv if name == "csv" else _write_json)(
                counted, file
            )
        return counted.rows
    if name in ("csv", "json"):
        sys.stdout.flush()
        (_write_csv if name == "csv" else _write_json)(counted, sys.stdout.buffer)
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
    """The rows of a stream as tuples of Python values, or its batches; counts what has passed."""

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
    """A file that is there once it is complete."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_parquet(rows: _Counted, file: Any) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, rows.schema) as writer:
        for batch in rows.batches():
            writer.write_batch(batch)


def _write_json(rows: _Counted, file: Any) -> None:
    """One array with an object a line, so that a long result is never in memory as a whole."""
    names, before = rows.schema.names, b"["
    for row in rows:
        line = json.dumps(plain_value(dict(zip(names, row, strict=True))), ensure_ascii=False)
        file.write(before + b"\n  " + line.encode())
        before = b","
    file.write((b"[" if before == b"[" else b"\n") + b"]\n")


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


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def cell_text(value: Any) -> str:
    """A value as people read it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
        case bytes():
            return "0x" + value.hex()
        case dict() | list() | tuple():
            return json.dumps(plain_value(value), ensure_ascii=False)
    return str(value)


def plain_value(value: Any) -> Any:
    """A value as JSON has it: times and decimals are texts, bytes are base64, NaN is null."""
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


def columns_of(text: str | None) -> list[str] | None:
    """Column names that are separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
