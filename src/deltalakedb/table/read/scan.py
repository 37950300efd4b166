"""Reading rows through delta-rs and listing files: only candidates are opened."""

from __future__ import annotations

import weakref
from itertools import chain
from typing import TYPE_CHECKING, Final

import deltalake
import pyarrow as pa
from deltalake._internal import RawDeltaTable

from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError, ProtocolError, UnsupportedFeatureError
from deltalakedb.protocol.codec import decode_json, encode_commit
from deltalakedb.protocol.commit_rules import check_places
from deltalakedb.protocol.dv import block_range, decode_block, decode_inline, dv_path, resolve_dv
from deltalakedb.protocol.features import SCAN_DROPS, without_features
from deltalakedb.protocol.paths import is_absolute
from deltalakedb.protocol.properties import mapping_mode
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.stats import float_paths, parse_stats
from deltalakedb.storage.durable import storage_error
from deltalakedb.storage.store import open_store
from deltalakedb.table.scratch import ErrorContext, cautious, translate_errors
from deltalakedb.table.unreadable import reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyroaring import BitMap64

    from deltalakedb.protocol.actions import Add, DeletionVector, Protocol
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.roots import Root, WorkFolder
    from deltalakedb.table.sources import Source

#: with one of these features a file may hold variants in pieces, and need not
_SHREDDING: Final = frozenset({"variantShredding", "variantShredding-preview"})
#: table features under which a data file's rows are not simply the table's rows
_NEEDS_DELTA_RS = {"columnMapping", "deletionVectors", "typeWidening", "typeWidening-preview"}
_NEEDS_DELTA_RS |= {"variantType", "variantType-preview", *_SHREDDING}


def needs_delta_rs(snapshot: Snapshot) -> bool:
    """Whether only delta-rs can read the rows: deletion vectors, mapped or widened columns, variants."""
    protocol, metadata = snapshot.protocol, snapshot.metadata
    if set(protocol.reader_features or ()) & _NEEDS_DELTA_RS:
        return True
    return _maps_columns(protocol) and mapping_mode(metadata) != "none"


def _maps_columns(protocol: Protocol) -> bool:
    return protocol.min_reader_version >= 2


def raw_table(
    snapshot: Snapshot,
    adds: Iterable[Add],
    root: Root,
) -> RawTable:
    """delta-rs's own table over some files of a snapshot.

    It is loaded from a log, and all of it is in memory then, so the log is gone when this returns; fetched
    files stay as long as anybody holds the answer. Never vacuum such a table.

    Raises:
        UnsupportedFeatureError: delta-rs does not read such a table.
        FetchLimitError: The files would have to be fetched, and are too large for that.
    """
    adds = list(adds)
    refuse_shredded(snapshot, adds, root)
    work = root.work_folder(reading=True)
    protocol = without_features(snapshot.protocol, SCAN_DROPS)
    try:
        path = work.path / commit_path(snapshot.version)
        lender = root.lender(work.path, reading=True)
        floats = float_paths(parse_schema(snapshot.metadata.schema_string))
        files = lender.lend([cautious(add, floats) for add in adds])
        try:
            path.parent.mkdir()
            path.write_bytes(encode_commit([protocol, snapshot.metadata, *files]))
        except OSError as error:
            raise storage_error(error, "write", path) from error
        raw = _opened(snapshot, str(work.path))
    except BaseException:
        work.close()
        raise
    if lender.copies:
        return RawTable(raw, work)
    work.close()
    return RawTable(raw)


def published_table(snapshot: Snapshot, root: Root) -> RawTable | None:
    """The same over a remote table's published log, so that nothing is fetched; None where that cannot be."""
    if root.is_local or set(snapshot.protocol.writer_features or ()) & SCAN_DROPS:
        return None
    try:
        return RawTable(_opened(snapshot, root.location, version=snapshot.version, options=root.options))
    except UnsupportedFeatureError:
        return None  # the log is gone, or is not for delta-rs


class RawTable:
    """A raw table of delta-rs, and what it needs to be there while it is read."""

    def __init__(self, raw: RawDeltaTable, work: WorkFolder | None = None) -> None:
        self.raw = raw
        if work is not None:
            weakref.finalize(self, work.close)


def _opened(
    snapshot: Snapshot, place: str, *, version: int | None = None, options: Mapping[str, str] | None = None
) -> RawDeltaTable:
    try:
        return RawDeltaTable(
            place, version=version, storage_options=None if options is None else dict(options)
        )
    except BaseException as error:
        raise readable_error(error, snapshot) from error


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in the table's own types: delta-rs answers with view types."""
    if not schema.names:
        return batch  # without columns only the number of rows is left
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


def scan(
    source: Source,
    root: Root,
    *,
    where: Expr | None,
    columns: list[str] | None,
    predicate: str | None,
    large: bool = False,
) -> pa.RecordBatchReader:
    """Rows through delta-rs: right for every feature that delta-rs reads."""
    whole = arrow_schema(source.snapshot.metadata.schema_string, large=large)
    schema = whole if columns is None else pa.schema([whole.field(c) for c in known(columns, whole)])
    groups = root.groups(source.adds(where))
    snapshot = source.snapshot
    about = ErrorContext(None, root.location, snapshot.version, snapshot.metadata)

    def rows(adds: list[Add]) -> Iterator[pa.RecordBatch]:
        table = raw_table(source.snapshot, adds, root)
        with translate_errors(about):
            found = table.raw.scan(columns=columns, predicate=predicate)
        reader = pa.RecordBatchReader.from_stream(found)
        return guarded(conformed(reader, schema, table), adds, root, snapshot.version)

    # planned here, so that a wrong predicate is an error of this call and not of the first batch
    first = rows(next(groups))
    rest = (batch for adds in groups for batch in rows(adds))
    return pa.RecordBatchReader.from_batches(schema, chain(first, rest))


def conformed(reader: pa.RecordBatchReader, schema: pa.Schema, *held: RawTable) -> Iterator[pa.RecordBatch]:
    """The batches in the table's own types; tables that are read stay until the last of them."""
    for batch in reader:
        yield conform(batch, schema)
    del held


def guarded(
    batches: Iterator[pa.RecordBatch], adds: Iterable[Add], root: Root, version: int
) -> Iterator[pa.RecordBatch]:
    """The batches; if reading fails for a file that cannot be read, the error is about that file."""
    with reading(root, lambda: [(add.path, add.size) for add in adds], version=version):
        yield from batches


def check_files(source: Source, root: Root) -> None:
    """Check where the files of a version are, for a reader that opens what the log names by itself.

    Raises:
        OutsidePathError: One is outside of the table's root, and the settings do not allow that.
    """
    if root.paths.outside:
        return
    found = source.scan(("path", "dv_id"))
    root.paths.resolve_all(found.column("path").to_pylist())
    if any(found.column("dv_id").to_pylist()):
        check_places(source.adds(), root.paths)


def file_uris(source: Source, root: Root, where: Expr | None) -> list[str]:
    """Absolute paths of the candidate files."""
    return root.paths.resolve_all(source.scan(("path",), where).column("path").to_pylist())


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


def refuse_shredded(snapshot: Snapshot, adds: Sequence[Add], root: Root) -> None:
    """Refuse files that really hold variants in pieces; others are read like any.

    Raises:
        UnsupportedFeatureError: A file does; the error names the feature.
    """
    named = sorted(_SHREDDING.intersection(snapshot.protocol.reader_features or ()))
    if not named:
        return
    import pyarrow.parquet as pq

    for add in adds:
        path = root.arrow_path(add.path)
        try:
            schema = pq.read_schema(path, filesystem=root.arrow({path: add.size}))
        except FileNotFoundError:
            continue  # reading it will report that
        if any(_in_pieces(field.type) for field in schema):
            raise UnsupportedFeatureError(
                f"{add.path} holds variants in pieces ({', '.join(named)}), and delta-rs cannot join them",
                version=snapshot.version,
                suggestion="read the table with Spark 4, or rewrite its files there without shredding",
            )


def _in_pieces(kind: pa.DataType) -> bool:
    children = [kind.field(i) for i in range(kind.num_fields)]
    names = {c.name for c in children}
    return {"metadata", "typed_value"} <= names or any(_in_pieces(c.type) for c in children)


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


def stock_schema(schema_string: str) -> deltalake.Schema:
    """A table's schema as delta-rs has it.

    Raises:
        ProtocolError: delta-rs does not know a type of it.
    """
    try:
        return deltalake.Schema.from_json(schema_string)
    except ValueError as error:
        raise ProtocolError(
            f"delta-rs cannot read the table's schema: {str(error)[:300]}",
            suggestion="read an older version of the table, or have its writer mend the schema",
        ) from error


def arrow_schema(schema_string: str, *, large: bool = False) -> pa.Schema:
    """The Arrow schema of a table, as delta-rs itself gives it."""
    return pa.schema(stock_schema(schema_string).to_arrow(as_large_types=large))
