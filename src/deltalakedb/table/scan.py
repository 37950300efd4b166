"""Reading rows through delta-rs, and listing files: only candidates are opened."""

from __future__ import annotations

import weakref
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake._internal import RawDeltaTable

from deltalakedb.exceptions import (
    DeltaSqlError,
    FetchLimitError,
    InvalidArgumentError,
    UnsupportedFeatureError,
)
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.paths import resolve_all
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.table.arrow_types import arrow_schema
from deltalakedb.table.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Add, Protocol
    from deltalakedb.protocol.log import Snapshot
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.roots import Root
    from deltalakedb.table.source import Source

#: table features under which a data file's rows are not simply the table's rows
_NEEDS_DELTA_RS = {"columnMapping", "deletionVectors", "typeWidening", "typeWidening-preview"}
_NEEDS_DELTA_RS |= {"variantType", "variantType-preview", "variantShredding-preview"}


def needs_delta_rs(snapshot: Snapshot) -> bool:
    """Whether only delta-rs can read the rows: deletion vectors, mapped or widened columns, variants."""
    protocol, metadata = snapshot.protocol, snapshot.metadata
    if set(protocol.reader_features or ()) & _NEEDS_DELTA_RS:
        return True
    mapping = metadata.configuration.get("delta.columnMapping.mode") or "none"
    return _maps_columns(protocol) and mapping.lower() != "none"


def _maps_columns(protocol: Protocol) -> bool:
    return protocol.min_reader_version >= 2


class RawScan:
    """delta-rs's own table over a scratch log that names only the candidate files."""

    def __init__(
        self, source: Source, root: Root, where: Expr | None = None, *, adds: Iterable[Add] | None = None
    ) -> None:
        self._scratch = Scratch.for_reading(root)
        weakref.finalize(self, self._scratch.remove)
        candidates = source.adds(where) if adds is None else adds
        self._scratch.lay(source.snapshot, candidates, reading=True)
        self.raw = _raw(source.snapshot, str(self._scratch.folder))

    @classmethod
    def published(cls, snapshot: Snapshot, root: Root) -> RawScan:
        """The same over the published log, for what is too large to be fetched."""
        made = object.__new__(cls)
        made.raw = _raw(snapshot, root.location, version=snapshot.version, options=root.options)
        return made

    def batches(
        self, schema: pa.Schema, columns: list[str] | None, predicate: str | None
    ) -> Iterator[pa.RecordBatch]:
        """Record batches in the table's own types; the scratch folder lives as long as the iterator."""
        reader = pa.RecordBatchReader.from_stream(self.raw.scan(columns=columns, predicate=predicate))
        for batch in reader:
            yield _conform(batch, schema)


def _raw(
    snapshot: Snapshot, place: str, *, version: int | None = None, options: Mapping[str, str] | None = None
) -> RawDeltaTable:
    """delta-rs's own table at a place."""
    try:
        return RawDeltaTable(
            place, version=version, storage_options=None if options is None else dict(options)
        )
    except BaseException as error:
        raise readable_error(error, snapshot) from error


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in the table's own types: delta-rs answers with view types."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def readable_error(error: BaseException, snapshot: Snapshot) -> DeltaSqlError:
    """delta-rs's refusal to open a scratch table as a typed error."""
    if isinstance(error, DeltaSqlError | KeyboardInterrupt | SystemExit | MemoryError):
        raise error
    features = ", ".join(snapshot.protocol.reader_features or ()) or "none"
    return UnsupportedFeatureError(
        f"delta-rs cannot read this table: {' '.join(str(error).split())[:300]}",
        version=snapshot.version,
        suggestion=f"the table's reader features are: {features}",
    )


def known(columns: list[str], schema: pa.Schema) -> list[str]:
    """Columns that the table has; InvalidArgumentError for one that it has not."""
    for column in columns:
        if column not in schema.names:
            raise InvalidArgumentError(
                f"the table has no column {column!r}",
                suggestion=f"its columns are {', '.join(schema.names[:20])}",
            )
    return columns


def raw_scan(source: Source, root: Root, is_published: Callable[[], bool]) -> RawScan:
    """delta-rs's own table over all files, for queries of any kind.

    Files of an object store are fetched; where they are too large for that, delta-rs reads the published log.
    """
    try:
        return RawScan(source, root)
    except FetchLimitError:
        if not is_published():
            raise
        return RawScan.published(source.snapshot, root)


def scan(
    source: Source,
    root: Root,
    *,
    where: Expr | None,
    columns: list[str] | None,
    predicate: str | None,
) -> pa.RecordBatchReader:
    """Rows through delta-rs: right for every feature that delta-rs reads."""
    whole = arrow_schema(source.snapshot.metadata.schema_string)
    schema = whole if columns is None else pa.schema([whole.field(c) for c in known(columns, whole)])

    def batches() -> Iterator[pa.RecordBatch]:
        for adds in groups:
            yield from RawScan(source, root, adds=adds).batches(schema, columns, predicate)

    # the first is made at once, so that what cannot be read is refused here and not later
    groups = root.groups(source.adds(where))
    first = RawScan(source, root, adds=next(groups)).batches(schema, columns, predicate)
    return pa.RecordBatchReader.from_batches(schema, chain(first, batches()))


def file_uris(source: Source, root: str, where: Expr | None) -> list[str]:
    """Absolute paths of the candidate files."""
    return resolve_all(root, source.scan(("path",), where).column("path").to_pylist())


def partitions(source: Source, where: Expr | None) -> Sequence[dict[str, str | None]]:
    """The distinct partition values of the candidate files, in the order they appear."""
    metadata = source.snapshot.metadata
    if not metadata.partition_columns:
        return []
    schema = parse_schema(metadata.schema_string)
    keys = []
    for name in metadata.partition_columns:
        field = schema.field(name)
        keys.append((name, name if field is None else field.physical_name))
    seen: dict[tuple[str | None, ...], dict[str, str | None]] = {}
    for text in source.scan(("partition_values",), where).column("partition_values").to_pylist():
        values = decode_json(text)
        row = {name: values.get(physical, values.get(name)) for name, physical in keys}
        seen.setdefault(tuple(row.values()), row)
    return list(seen.values())
