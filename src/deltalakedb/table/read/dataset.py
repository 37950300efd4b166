"""The rows as a pyarrow dataset. Apart from the rest, since importing pyarrow.dataset brings pandas along."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce, wraps
from operator import and_
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from deltalakedb.exceptions import ArgumentTypeError, DeltaSqlError, InvalidArgumentError, PredicateError
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.partition import parse as parse_partition
from deltalakedb.protocol.partition import partition_columns
from deltalakedb.protocol.paths import decode_path
from deltalakedb.protocol.schema import Leaf, parse_schema
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.table.arguments import predicate_of
from deltalakedb.table.read.scan import arrow_schema, needs_delta_rs, scan
from deltalakedb.table.roots import Root, reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.sources import Source

#: statistics become fragment guarantees up to this many files; beyond it only the database prunes
_GUARANTEES_UPTO = 5_000
_COLUMNS = ("path", "size", "partition_values", "stats")
#: a maximum this long may have been truncated by its writer, and is then no upper bound
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
    """The rows as a pyarrow dataset over the candidate files, or in memory if only delta-rs can read them."""
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
        read_options=options, default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
    )
    paths, sizes = found.column("path").to_pylist(), found.column("size").to_pylist()
    if filesystem is None:
        paths = [root.arrow_path(path) for path in paths]
        files = root.arrow(dict(zip(paths, sizes, strict=True)))
    else:
        paths = [p.removeprefix(root.location).lstrip("/") for p in root.paths.resolve_all(paths)]
        files = _native(filesystem)
    fragments = [
        file_format.make_fragment(path, filesystem=files, partition_expression=expression, file_size=size)
        for path, size, expression in zip(paths, sizes, _guarantees(found, metadata, arrow), strict=True)
    ]
    encoded = options.dictionary_columns or ()
    fields = [f.with_type(pa.dictionary(pa.int32(), f.type)) if f.name in encoded else f for f in arrow]
    made = ViewableDataset(fragments, pa.schema(fields, metadata=arrow.metadata), file_format, files)
    if filesystem is None:
        logged = found.column("path").to_pylist()
        made.reading = partial(
            reading, root, lambda: zip(logged, sizes, strict=True), version=source.snapshot.version
        )
    return made


def guarantees(source: Source, root: Root, schema: pa.Schema, where: Expr | None) -> list[tuple[str, Any]]:
    """The candidate files below the root, each with what is certain about its rows."""
    found = source.scan(_COLUMNS, where)
    paths = found.column("path").to_pylist()
    root.paths.resolve_all(paths)
    expressions = _guarantees(found, source.snapshot.metadata, schema)
    return list(zip(map(decode_path, paths), expressions, strict=True))


def _native(filesystem: Any) -> pafs.FileSystem:
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    if isinstance(filesystem, str):
        return pafs.FileSystem.from_uri(filesystem)[0]
    if not hasattr(filesystem, "protocol"):  # what fsspec's have
        raise ArgumentTypeError(
            f"{type(filesystem).__name__} is not a file system", suggestion="pass one of pyarrow.fs or fsspec"
        )
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))


def _guarantees(found: pa.Table, metadata: Metadata, arrow: pa.Schema) -> Iterator[Any]:
    for name in metadata.partition_columns:
        if name not in arrow.names:
            raise InvalidArgumentError(
                f"Column not found in schema: {name}",
                suggestion="a schema to read with must have every partition column",
            )
    partitions = partition_columns(metadata)
    leaves = parse_schema(metadata.schema_string).leaves()
    bounded = [
        leaf
        for leaf in (leaves if found.num_rows <= _GUARANTEES_UPTO else ())
        if len(leaf.path) == 1
        and leaf.path[0] not in metadata.partition_columns
        and leaf.path[0] in arrow.names
        and str(leaf.type) not in ("binary", "variant", "float", "double")
        and arrow_type(leaf.type) is not None
    ]
    for text, stats_text in zip(*(found.column(c).to_pylist() for c in _COLUMNS[2:]), strict=True):
        values, terms = decode_json(text), []
        for name, physical, kind in partitions:
            value, column = parse_partition(values.get(physical, values.get(name)), kind), ds.field(name)
            exact = None if value is None else pa.scalar(value, arrow_type(kind)).cast(arrow.field(name).type)
            terms.append(column.is_null() if exact is None else column == exact)
        if bounded and (stats := parse_stats(stats_text)) is not None:
            terms += [term for leaf in bounded for term in _bounds(stats, leaf, arrow)]
        yield reduce(and_, terms) if terms else pc.scalar(True)


def _bounds(stats: Any, leaf: Leaf, arrow: pa.Schema) -> Iterator[Any]:
    (name,) = leaf.path
    low, high, nulls = stats.bounds(leaf.physical_path, leaf.type)
    column, plain, target = ds.field(name), arrow_type(leaf.type), arrow.field(name).type
    if nulls is not None and nulls == stats.num_records:
        yield column.is_null()
    elif nulls is not None:
        if nulls == 0:
            yield column.is_valid()
        if low is None or high is None or (isinstance(high, str) and len(high) >= _MAY_BE_CUT):
            return
        inside = (column >= pa.scalar(low, plain).cast(target)) & (
            column <= pa.scalar(high, plain).cast(target)
        )
        yield inside if nulls == 0 else inside | column.is_null()


_VIEW = "_view"
_VIEWED = ("string", "binary")


def _reported(name: str) -> Callable[..., Any]:
    """A method of pyarrow's datasets that reports files which cannot be read."""

    def method(self: ViewableDataset, *arguments: Any, **options: Any) -> Any:
        with self.reading():
            return getattr(ds.FileSystemDataset, name)(self, *arguments, **options)

    return wraps(getattr(ds.FileSystemDataset, name))(method)


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
        with self.reading():
            yield from super().to_batches(*arguments, **options)

    head, take, count_rows = map(_reported, ("head", "take", "count_rows"))

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> ds.Scanner:  # noqa: A002
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
        elif columns is not None:  # field paths in a filter count from the schema's first column
            needed = list(dict.fromkeys([*self._named([filter]), *columns]))
        rows = ds.Scanner.from_dataset(files, columns=needed, **options).to_reader()
        return ds.Scanner.from_batches(rows, columns=columns, filter=filter, **options)


class PlannedDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset without files of its own: each scan plans in the database, by the filter of the scan.

    DuckDB pushes filters and columns into ``scanner``.
    """

    _source: Source
    _root: Root
    #: the typed error of a scan; engines only keep its text
    failure: DeltaSqlError | None = None

    @classmethod
    def of(cls, source: Source, root: Root) -> Self:
        schema = arrow_schema(source.snapshot.metadata.schema_string)
        made = cls([], schema, ds.ParquetFileFormat(), pafs.LocalFileSystem())
        made._source, made._root = source, root
        return made

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> ds.Scanner:  # noqa: A002
        try:
            where = self._planned(filter)
            if not needs_delta_rs(self._source.snapshot):
                found = dataset(self._source, self._root, where=where)
                return found.scanner(columns=columns, filter=filter, **options)
            named = [n for n in self.schema.names if filter is not None and n in str(filter)]
            needed = None if columns is None else [*dict.fromkeys([*columns, *named])]
            rows = scan(self._source, self._root, where=where, columns=needed, predicate=None)
            return ds.Scanner.from_batches(rows, columns=columns, filter=filter, **options)
        except DeltaSqlError as error:
            self.failure = error
            raise

    def _planned(self, expression: Any) -> Expr | None:
        """The predicate to plan by; None if nothing is known about the filter."""
        if expression is None or not all(map(_PLAIN_NAME.fullmatch, self.schema.names)):
            return None
        text = pushed_down(str(expression))
        try:
            return predicate_of(text, self._source.snapshot.metadata, files_only=True)
        except PredicateError:
            return None


_PLAIN_NAME: Final = re.compile(r"[^\W\d]\w*")
_UNCLOSED: Final = r'"(?:[^"\\]|\\.)*'
_TEXT: Final = _UNCLOSED + '"'
_NUMBER: Final = r"-?\d+(?:\.\d+)?"
_TIME: Final = r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?Z?)?"
_COMPARISON: Final = re.compile(rf"(\w+) (==|!=|<=|>=|<|>) ({_TEXT}|{_TIME}|{_NUMBER})")
_NULLNESS: Final = re.compile(r"(is_valid|is_null)\((\w+)(?:, \{nan_is_null=false\})?\)")
_MEMBERSHIP: Final = re.compile(
    r"if_else\(is_valid\((\w+)\), is_in\(\1, \{value_set=[^:\[]+(?:\[\w+\])?:\[([^\]]*)\], "
    r"null_matching_behavior=MATCH\}\), null\[bool\]\)"
)
_JOINED: Final = re.compile(rf'{_UNCLOSED}(?:"|$)|[()]| (?:and|or) ')
_PLAIN: Final = re.compile(f"{_TIME}|{_NUMBER}")
_NUMBER_ALONE: Final = re.compile(_NUMBER)
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}


def pushed_down(text: str) -> str | None:
    """A SQL predicate that is true for every row for which a pyarrow expression, given as text, is true.

    It may be true for more rows: what is not understood is left out. None if nothing is left. pyarrow has no
    other way to look into an expression. Lists of texts are not understood, since they are not escaped.
    """
    if found := _MEMBERSHIP.fullmatch(text):
        values = [value.strip() for value in found[2].split(",")]
        known = all(_PLAIN.fullmatch(value) for value in values)
        return f'"{found[1]}" IN ({", ".join(map(_sql_literal, values))})' if known else None
    if found := _NULLNESS.fullmatch(text):
        return f'"{found[2]}" IS {"NOT " if found[1] == "is_valid" else ""}NULL'
    if not (text.startswith("(") and text.endswith(")")):
        return None
    inner = text[1:-1]
    if found := _COMPARISON.fullmatch(inner):
        if any(escape not in _ESCAPED for escape in _ESCAPE.findall(found[3])):
            return None
        return f'"{found[1]}" {found[2].replace("==", "=")} {_sql_literal(found[3])}'
    depth = 0
    for mark in _JOINED.finditer(inner):
        depth += {"(": 1, ")": -1}.get(mark[0], 0)
        if depth == 0 and mark[0] in (" and ", " or "):
            sides = [pushed_down(side) for side in (inner[: mark.start()], inner[mark.end() :])]
            known_sides = [f"({side})" for side in sides if side is not None]
            if mark[0] == " or ":
                return " OR ".join(known_sides) if len(known_sides) == 2 else None
            return " AND ".join(known_sides) or None
    return None


def _sql_literal(text: str) -> str:
    if text.startswith('"'):
        text = _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], text[1:-1]).replace("'", "''")
        return f"'{text}'"
    return text if _NUMBER_ALONE.fullmatch(text) else f"'{text}'"
