"""The rows of CSV, JSON lines and Parquet files as one stream of Arrow batches, ready to be written."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.exceptions import InvalidArgumentError, SchemaError, StorageMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.protocol.txn_log import Committed

FileFormat: TypeAlias = Literal["csv", "json", "parquet"]
SourceFile: TypeAlias = str | os.PathLike[str] | BinaryIO
FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)
_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
#: the types of CSV and JSON columns are found out from this many bytes
_BLOCK_BYTES = 16 << 20
_WRONG_VALUE = (
    "columns have the types of the table, or of the first rows: correct the value, or create the table "
)
_WRONG_VALUE += "first (`deltasql create --schema`); --null TEXT names a text that is null"
_HINTS = {
    "csv": "the first line must have the column names; pass another delimiter if it is not a comma",
    "json": "write one JSON object per line",
    "parquet": "check that the file is complete",
}


@dataclass(frozen=True, slots=True)
class FilesWritten:
    """What writing files to a table committed.

    Attributes:
        commit: The commit; None if ``mode="ignore"`` found the table, and nothing was written.
        num_rows: Rows of the files that were written.
    """

    commit: Committed | None
    num_rows: int


@dataclass(slots=True)
class FileRows:
    """The rows of some files, in one schema, read while they are written.

    Attributes:
        files: Paths, or one open binary stream.
        format: Of all files; by default what their names say.
        delimiter: Of CSV files; by default a comma, or a tab for ``.tsv``.
        schema: The columns of the table that the rows go to, if it exists: texts are read in these types.
        merge: Whether files may have different columns; the missing ones are null.
        null_text: What stands for null in CSV files, besides a value that is empty and not in quotes.
        partition_by: Partition columns. Delta has no empty partition value: an empty text is null there.
        num_rows: Rows that were read so far.
        error: What went wrong while reading.
    """

    files: Sequence[SourceFile]
    format: FileFormat | None = None
    delimiter: str | None = None
    schema: pa.Schema | None = None
    merge: bool = False
    null_text: str | None = None
    partition_by: Sequence[str] = ()
    num_rows: int = 0
    error: Exception | None = None
    _streamed: pa.RecordBatchReader | None = field(default=None, init=False)

    def reader(self) -> pa.RecordBatchReader:
        """The rows as a stream; errors in a file's first rows are raised here."""
        if not self.files:
            raise InvalidArgumentError("there are no files to write", suggestion="name one file or more")
        if len(self.files) > 1 and not all(isinstance(f, str | os.PathLike) for f in self.files):
            raise InvalidArgumentError("a stream cannot be read together with other files")
        schemas = [self._opened(file, self.schema).schema for file in self.files]
        schema = self._common(schemas)
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _common(self, schemas: Sequence[pa.Schema]) -> pa.Schema:
        """One schema for all files; SchemaError if their columns may not differ, or have no common type."""
        first = schemas[0]
        for file, schema in zip(self.files, schemas, strict=True):
            if not self.merge and (odd := set(schema.names) ^ set(first.names)):
                both = f"{_name(file)} and {_name(self.files[0])}"
                raise SchemaError(
                    f"{both} have different columns: {', '.join(sorted(odd))}",
                    suggestion="write them one by one, or pass schema_mode='merge'",
                    command="write them one by one, or pass --schema-mode merge",
                )
        try:
            found = pa.unify_schemas([s.remove_metadata() for s in schemas], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SchemaError(
                f"the files have different types for a column: {error}",
                suggestion="write them one by one, or convert one of them",
            ) from error
        table = [] if self.schema is None else list(self.schema)
        names = [column.name for column in table]
        if table and not self.merge and (new := [n for n in found.names if n not in names]):
            raise SchemaError(
                f"the table does not have the columns {', '.join(new)}",
                suggestion=f"it has {', '.join(names)}; schema_mode='merge' adds new ones",
                command=f"it has {', '.join(names)}; --schema-mode merge adds new ones",
            )
        missing = [f for f in table if f.name not in found.names and not _is_computed(f)]
        return pa.schema([*(_writable(f, self.schema) for f in found), *missing])

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for file in self.files:
            try:
                for batch in self._opened(file, schema):
                    self.num_rows += batch.num_rows
                    yield _aligned(batch, schema, self.partition_by)
            except (pa.ArrowException, OSError) as error:
                self.error = _unreadable(file, self._format(file), error)
                raise self.error from error

    def _opened(self, file: SourceFile, schema: pa.Schema | None) -> pa.RecordBatchReader:
        """A file as batches; a stream is opened once."""
        if self._streamed is not None:
            return self._streamed
        kind = self._format(file)
        try:
            if kind == "csv":
                found = self._open_csv(file, schema)
            else:
                found = _open_json(file, schema) if kind == "json" else _open_parquet(file)
        except FileNotFoundError as error:
            raise StorageMissingError(
                f"there is no file {_name(file)}", suggestion="check the path"
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(file, kind, error) from error
        if not isinstance(file, str | os.PathLike):
            self._streamed = found
        return found

    def _open_csv(self, file: SourceFile, schema: pa.Schema | None) -> pa.RecordBatchReader:
        import pyarrow.csv as pacsv

        types = {f.name: f.type for f in _read_as(schema) if not pa.types.is_nested(f.type)}
        delimiter = self.delimiter or (",", "\t")[".tsv" in _name(file)]
        return pacsv.open_csv(
            _source(file),
            read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                null_values=[""] if self.null_text is None else ["", self.null_text],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _format(self, file: SourceFile) -> FileFormat:
        if self.format is not None:
            if self.format not in FORMATS:
                raise InvalidArgumentError(
                    f"unknown format {self.format!r}", suggestion=f"use one of {', '.join(FORMATS)}"
                )
            return self.format
        suffixes = [s.lower() for s in Path(_name(file)).suffixes if s.lower() not in _COMPRESSED]
        if suffixes and (found := _SUFFIXES.get(suffixes[-1])) is not None:
            return found
        raise InvalidArgumentError(
            f"the name of {_name(file)} does not say its format",
            suggestion=f"pass file_format: one of {', '.join(FORMATS)}",
            command=f"pass --format: one of {', '.join(FORMATS)}",
        )


def _name(file: SourceFile) -> str:
    return os.fspath(file) if isinstance(file, str | os.PathLike) else "the input"


def _unreadable(file: SourceFile, kind: FileFormat, error: Exception) -> InvalidArgumentError:
    text = " ".join(str(error).split())
    is_value = any(
        words in text for words in ("conversion error", "changed from", "unexpected field", "Failed to parse")
    )
    hint = _WRONG_VALUE if is_value and "()" not in text else _HINTS[kind]
    if "Truncated" in text:
        hint = "check that the file is complete"
    elif kind == "csv" and "columns, got" in text:
        hint = "every line must have as many values as the first; pass another delimiter if it is not a comma"
    return InvalidArgumentError(f"{_name(file)} cannot be read as {kind}: {text}", suggestion=hint)


def _source(file: SourceFile) -> Any:
    """What Arrow reads: it decompresses by the file's name."""
    return pa.input_stream(os.fspath(file)) if isinstance(file, str | os.PathLike) else file


def _read_as(schema: pa.Schema | None) -> list[pa.Field]:
    """The columns whose types are known before a text is read; a time may have a zone or not."""
    fields = [] if schema is None else list(schema)
    return [f for f in fields if not pa.types.is_timestamp(f.type) and not pa.types.is_null(f.type)]


def _open_json(file: SourceFile, schema: pa.Schema | None) -> pa.RecordBatchReader:
    import pyarrow.json as pajson

    # Arrow reads dates and decimals only as what they look like; they are cast afterwards
    known = [f for f in _read_as(schema) if _is_plain_json(f.type)]
    return pajson.open_json(
        _source(file),
        read_options=pajson.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=pajson.ParseOptions(explicit_schema=pa.schema(known) if known else None),
    )


def _is_plain_json(kind: pa.DataType) -> bool:
    """Whether JSON has values of a type, or of the types that it is made of."""
    if pa.types.is_struct(kind):
        return all(_is_plain_json(kind.field(n).type) for n in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _is_plain_json(kind.value_type)
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)
    return any(test(kind) for test in plain)


def _open_parquet(file: SourceFile) -> pa.RecordBatchReader:
    import pyarrow.parquet as pq

    source: Any = os.fspath(file) if isinstance(file, str | os.PathLike) else pa.BufferReader(file.read())
    opened = pq.ParquetFile(source)
    return pa.RecordBatchReader.from_batches(opened.schema_arrow.remove_metadata(), opened.iter_batches())


def _is_computed(column: pa.Field) -> bool:
    """Whether writers compute a column that the rows do not have; others are null then."""
    return any(
        key.startswith((b"delta.generation", b"delta.identity", b"CURRENT_DEFAULT"))
        for key in column.metadata or {}
    )


def _writable(column: pa.Field, table: pa.Schema | None) -> pa.Field:
    """A column in a type that Delta has: the table's, text if it is empty, times in microseconds."""
    known = None if table is None else next((f for f in table if f.name == column.name), None)
    kind = column.type
    if known is not None:
        kind = known.type
    elif pa.types.is_null(kind):
        kind = pa.string()
    elif pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", kind.tz)
    return pa.field(column.name, kind)


def _aligned(batch: pa.RecordBatch, schema: pa.Schema, partition_by: Sequence[str]) -> pa.RecordBatch:
    """A batch with the columns of a schema; a time without a zone is UTC if the column has one."""
    columns = []
    for column in schema:
        if column.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, column.type))
            continue
        values = batch.column(column.name)
        if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(column.type):
            values = values.cast(pa.timestamp(column.type.unit, values.type.tz))
        values = values.cast(column.type)
        if column.name in partition_by and pa.types.is_string(column.type):
            values = pc.if_else(pc.equal(values, ""), None, values)
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
