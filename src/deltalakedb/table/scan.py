"""Reading rows: only candidate files are opened, and each table feature is honoured."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake._internal import RawDeltaTable

from deltalakedb.exceptions import DeltaSqlError, UnsupportedFeatureError
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.partition import parse as parse_partition
from deltalakedb.protocol.paths import resolve
from deltalakedb.protocol.schema import PrimitiveType, parse_schema
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.table.arrow_types import arrow_schema, arrow_type
from deltalakedb.table.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.protocol.actions import Metadata, Protocol
    from deltalakedb.protocol.log import Snapshot
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.source import Source

#: statistics become fragment guarantees up to this many files; beyond it the database is the one to prune
_GUARANTEES_UPTO = 5_000
#: a longest string this long may have been cut short by its writer, and is then no upper bound
_MAY_BE_CUT = 32
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

    def __init__(self, source: Source, root: str, where: Expr | None = None) -> None:
        self._scratch = Scratch.for_reading(root)
        weakref.finalize(self, self._scratch.remove)
        self._scratch.lay(source.snapshot, source.adds(where), reading=True)
        try:
            self.raw = RawDeltaTable(str(self._scratch.folder), version=None, storage_options=None)
        except BaseException as error:
            raise readable_error(error, source.snapshot) from error

    def batches(
        self, schema: pa.Schema, columns: list[str] | None, predicate: str | None
    ) -> Iterator[pa.RecordBatch]:
        """Record batches in the table's own types; the scratch folder lives as long as the iterator."""
        reader = pa.RecordBatchReader.from_stream(self.raw.scan(columns=columns, predicate=predicate))
        for batch in reader:
            yield _conform(batch, schema)


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


def scan(
    source: Source,
    root: str,
    *,
    where: Expr | None,
    columns: list[str] | None,
    predicate: str | None,
) -> pa.RecordBatchReader:
    """Rows through delta-rs: right for every feature that delta-rs reads."""
    whole = arrow_schema(source.snapshot.metadata.schema_string)
    schema = whole if columns is None else pa.schema([whole.field(c) for c in columns])
    raw = RawScan(source, root, where)
    return pa.RecordBatchReader.from_batches(schema, raw.batches(schema, columns, predicate))


def dataset(
    source: Source,
    root: str,
    *,
    where: Expr | None = None,
    schema: pa.Schema | None = None,
    filesystem: pafs.FileSystem | None = None,
    read_options: ds.ParquetReadOptions | None = None,
    large: bool = False,
) -> ds.Dataset:
    """The rows as a pyarrow dataset over the candidate files.

    Where rows need delta-rs, they are read through it and the dataset holds them in memory.
    """
    metadata = source.snapshot.metadata
    if needs_delta_rs(source.snapshot):
        table = scan(source, root, where=where, columns=None, predicate=None).read_all()
        return ds.dataset(table if schema is None else table.cast(schema))
    arrow = schema or arrow_schema(metadata.schema_string, large=large)
    found = source.scan(("path", "size", "stats", "partition_values"), where)
    options = read_options or ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    file_format = ds.ParquetFileFormat(
        read_options=options,
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True),
    )
    files = filesystem or pafs.LocalFileSystem()
    guarantee = _Guarantees(metadata, arrow, with_stats=found.num_rows <= _GUARANTEES_UPTO)
    fragments = [
        file_format.make_fragment(
            _place(root, path, relative=filesystem is not None),
            filesystem=files,
            partition_expression=guarantee.of(decode_json(values), stats),
            file_size=size,
        )
        for path, size, stats, values in zip(*(c.to_pylist() for c in found.columns), strict=True)
    ]
    return ds.FileSystemDataset(fragments, arrow, file_format, files)


def _place(root: str, path: str, *, relative: bool) -> str:
    real = resolve(root, path)
    return real.removeprefix(root).lstrip("/") if relative else real


class _Guarantees:
    """What is certain about the rows of a file, as a pyarrow expression."""

    def __init__(self, metadata: Metadata, arrow: pa.Schema, *, with_stats: bool) -> None:
        schema = parse_schema(metadata.schema_string)
        self._partitions = []
        for name in metadata.partition_columns:
            field = schema.field(name)
            kind = field.type if field and isinstance(field.type, PrimitiveType) else PrimitiveType("string")
            physical = name if field is None else field.physical_name
            self._partitions.append((name, physical, kind, arrow.field(name).type))
        self._bounded = [
            (leaf.path[0], leaf.physical_path, leaf.type, arrow.field(leaf.path[0]).type)
            for leaf in (schema.leaves() if with_stats else ())
            if len(leaf.path) == 1
            and leaf.path[0] not in metadata.partition_columns
            and leaf.path[0] in arrow.names
            and str(leaf.type) not in ("binary", "variant", "float", "double")
            and arrow_type(leaf.type) is not None
        ]

    def of(self, values: dict[str, str | None], stats_text: str | None) -> Any:
        """The guarantee for one file."""
        terms = []
        for name, physical, kind, target in self._partitions:
            value = parse_partition(values.get(physical, values.get(name)), kind)
            column = ds.field(name)
            terms.append(
                column.is_null()
                if value is None
                else column == pa.scalar(value, arrow_type(kind)).cast(target)
            )
        stats = parse_stats(stats_text) if self._bounded else None
        if stats is not None:
            terms += self._bounds(stats)
        out = terms[0] if terms else pc.scalar(True)
        for term in terms[1:]:
            out = out & term
        return out

    def _bounds(self, stats: Any) -> Iterator[Any]:
        for name, physical, kind, target in self._bounded:
            low, high, nulls = stats.bounds(physical, kind)
            if low is None or high is None or nulls is None:
                continue
            if isinstance(high, str) and len(high) >= _MAY_BE_CUT:
                continue
            column, plain = ds.field(name), arrow_type(kind)
            inside = (column >= pa.scalar(low, plain).cast(target)) & (
                column <= pa.scalar(high, plain).cast(target)
            )
            yield inside if nulls == 0 else inside | column.is_null()


def file_uris(source: Source, root: str, where: Expr | None) -> list[str]:
    """Absolute paths of the candidate files."""
    return [resolve(root, p) for p in source.scan(("path",), where).column("path").to_pylist()]


def partitions(source: Source, where: Expr | None) -> Sequence[dict[str, str | None]]:
    """The distinct partition values of the candidate files, in the order they appear."""
    metadata = source.snapshot.metadata
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
