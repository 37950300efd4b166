"""The rows as a pyarrow dataset. Apart from the rest, since importing pyarrow.dataset brings pandas along."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.partition import parse as parse_partition
from deltalakedb.protocol.paths import decode_path
from deltalakedb.protocol.schema import PrimitiveType, parse_schema
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.table.read.scan import arrow_schema, needs_delta_rs, scan
from deltalakedb.table.unreadable import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.roots import Root
    from deltalakedb.table.sources import Source

#: statistics become fragment guarantees up to this many files; beyond it the database is the one to prune
_GUARANTEES_UPTO = 5_000
_COLUMNS = ("path", "size", "stats", "partition_values")
#: a longest string this long may have been cut short by its writer, and is then no upper bound
_MAY_BE_CUT = 32


def dataset(
    source: Source,
    root: Root,
    *,
    where: Expr | None = None,
    schema: pa.Schema | None = None,
    filesystem: pafs.FileSystem | None = None,
    read_options: ds.ParquetReadOptions | dict[str, Any] | None = None,
    large: bool = False,
) -> ds.Dataset:
    """The rows as a pyarrow dataset over the candidate files.

    Where rows need delta-rs, they are read through it and the dataset holds them in memory.
    """
    metadata = source.snapshot.metadata
    if needs_delta_rs(source.snapshot):
        rows = scan(source, root, where=where, columns=None, predicate=None, large=large)
        table = rows.read_all()
        return ds.dataset(table if schema is None else table.cast(schema))
    arrow = schema or arrow_schema(metadata.schema_string, large=large)
    found = source.scan(_COLUMNS, where)
    options = read_options or {"coerce_int96_timestamp_unit": "us"}
    if not isinstance(options, ds.ParquetReadOptions):
        options = ds.ParquetReadOptions(**options)
    file_format = ds.ParquetFileFormat(
        read_options=options,
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True),
    )
    paths, sizes, *rest = (c.to_pylist() for c in found.columns)
    if filesystem is None:
        paths = [root.arrow_path(path) for path in paths]
        files = root.arrow(dict(zip(paths, sizes, strict=True)))
    else:
        paths = [_below(root, path) for path in paths]
        files = _native(filesystem)
    guarantee = _Guarantees(metadata, arrow, with_stats=found.num_rows <= _GUARANTEES_UPTO)
    fragments = [
        file_format.make_fragment(
            path,
            filesystem=files,
            partition_expression=guarantee.of(decode_json(values), stats),
            file_size=size,
        )
        for path, size, stats, values in zip(paths, sizes, *rest, strict=True)
    ]
    made = ViewableDataset(fragments, _encoded(arrow, options), file_format, files)
    if filesystem is None:
        made.reading = partial(reading, root, lambda: _sized(found), version=source.snapshot.version)
    return made


def _sized(found: pa.Table) -> Iterator[tuple[str, int]]:
    return zip(found.column("path").to_pylist(), found.column("size").to_pylist(), strict=True)


def guarantees(source: Source, root: Root, schema: pa.Schema, where: Expr | None) -> list[tuple[str, Any]]:
    """The candidate files below the root, each with what is certain about its rows."""
    found = source.scan(_COLUMNS, where)
    root.paths.resolve_all(found.column("path").to_pylist())
    guarantee = _Guarantees(source.snapshot.metadata, schema, with_stats=found.num_rows <= _GUARANTEES_UPTO)
    return [
        (decode_path(path), guarantee.of(decode_json(values), stats))
        for path, _, stats, values in zip(*(c.to_pylist() for c in found.columns), strict=True)
    ]


def _native(filesystem: Any) -> pafs.FileSystem:
    """A file system of pyarrow; those of fsspec are wrapped."""
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    if isinstance(filesystem, str):
        return pafs.FileSystem.from_uri(filesystem)[0]
    if not hasattr(filesystem, "protocol"):  # what fsspec's have
        raise ArgumentTypeError(
            f"{type(filesystem).__name__} is not a file system", suggestion="pass one of pyarrow.fs or fsspec"
        )
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))


def _encoded(schema: pa.Schema, options: ds.ParquetReadOptions) -> pa.Schema:
    """The schema with the columns that are read as dictionaries."""
    wanted = options.dictionary_columns or ()
    return pa.schema(
        [f.with_type(pa.dictionary(pa.int32(), f.type)) if f.name in wanted else f for f in schema],
        metadata=schema.metadata,
    )


def _below(root: Root, path: str) -> str:
    return root.paths.resolve(path).removeprefix(root.location).lstrip("/")


class _Guarantees:
    """What is certain about the rows of a file, as a pyarrow expression."""

    def __init__(self, metadata: Metadata, arrow: pa.Schema, *, with_stats: bool) -> None:
        schema = parse_schema(metadata.schema_string)
        self._partitions = []
        for name in metadata.partition_columns:
            if name not in arrow.names:
                raise InvalidArgumentError(
                    f"Column not found in schema: {name}",
                    suggestion="a schema to read with must have every partition column",
                )
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
            column, plain = ds.field(name), arrow_type(kind)
            if nulls is None:
                continue
            if nulls == stats.num_records:
                yield column.is_null()
                continue
            if nulls == 0:
                yield column.is_valid()
            if low is None or high is None or (isinstance(high, str) and len(high) >= _MAY_BE_CUT):
                continue
            inside = (column >= pa.scalar(low, plain).cast(target)) & (
                column <= pa.scalar(high, plain).cast(target)
            )
            yield inside if nulls == 0 else inside | column.is_null()


_VIEW = "_view"
_VIEWED = ("string", "binary")


class ViewableDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset whose files may have view types; filters that Arrow cannot push down are applied to rows."""

    #: reports a file that cannot be read as a typed error
    reading: Callable[[], AbstractContextManager[None]] = nullcontext

    def to_table(self, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:  # noqa: A002
        """The rows as a table; arguments are those of ``Dataset.scanner``."""
        asked = self._scanner_options({"columns": columns, "filter": filter, **options})
        with self.reading():
            try:
                return ds.Scanner.from_dataset(self, **asked).to_table()
            except pa.ArrowNotImplementedError as error:
                if _VIEW not in str(error) or asked.get("filter") is None:
                    raise
            return self._filtered(**asked).to_table()

    def to_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """The rows as batches; arguments are those of ``Dataset.scanner``."""
        with self.reading():
            yield from super().to_batches(*arguments, **options)

    def head(self, *arguments: Any, **options: Any) -> pa.Table:
        """The first rows; arguments are those of ``Dataset.head``."""
        with self.reading():
            return super().head(*arguments, **options)

    def take(self, *arguments: Any, **options: Any) -> pa.Table:
        """Rows by their numbers; arguments are those of ``Dataset.take``."""
        with self.reading():
            return super().take(*arguments, **options)

    def count_rows(self, *arguments: Any, **options: Any) -> int:
        """The number of rows; arguments are those of ``Dataset.count_rows``."""
        with self.reading():
            found: int = super().count_rows(*arguments, **options)
            return found

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> ds.Scanner:  # noqa: A002
        """A scan; arguments are those of ``Dataset.scanner``."""
        asked = self._scanner_options({"columns": columns, "filter": filter, **options})
        if asked.get("filter") is not None and self._has_views(asked["filter"]):
            return self._filtered(**asked)
        return ds.Scanner.from_dataset(self, **asked)

    def _matching(self, where: Any) -> list[ds.Fragment]:
        """The files that may match, also of a dataset filtered before, which does not list them."""
        return list(ds.UnionDataset(self.schema, [self]).get_fragments(filter=where))

    def _has_views(self, where: Any) -> bool:
        """Whether a filter names texts or bytes that a file has as views; what is read here is kept."""
        named = [self.schema.field(n) for n in self._named([where])]
        asked = {f.name for f in named if any(kind in str(f.type) for kind in _VIEWED)}
        return any(
            field.name in asked and _VIEW in str(field.type)
            for fragment in (self._matching(where) if asked else ())
            for field in fragment.physical_schema
        )

    def _named(self, expressions: Iterable[Any]) -> list[str]:
        """The columns that expressions name, and perhaps some more."""
        text = " ".join(str(e) for e in expressions)
        return [n for n in self.schema.names if n in text or "FieldPath" in text]

    def _filtered(self, *, columns: Any = None, filter: Any, **options: Any) -> ds.Scanner:  # noqa: A002
        """A scan that reads what columns and filter need, of the files that may match, and filters rows."""
        files = ds.FileSystemDataset(self._matching(filter), self.schema, self.format, self.filesystem)
        needed = None
        if isinstance(columns, dict):
            needed = self._named([filter, *columns.values()])
        elif columns is not None:
            needed = list(dict.fromkeys([*columns, *self._named([filter])]))
        if needed is not None and "FieldPath" in str(filter):
            needed = [*self.schema.names, *(n for n in needed if n not in self.schema.names)]
        rows = ds.Scanner.from_dataset(files, columns=needed, **options).to_reader()
        return ds.Scanner.from_batches(rows, columns=columns, filter=filter, **options)
