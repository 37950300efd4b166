"""What differs between two versions of a table, or between two tables: schema, properties, files, rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.table.read.scan import scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalakedb.protocol.actions import FileKey, Metadata
    from deltalakedb.protocol.actions import Protocol as ProtocolAction
    from deltalakedb.protocol.schema import DataType
    from deltalakedb.table.handle import TableHandle

Change: TypeAlias = Literal["added", "removed", "changed"]
#: rows by their text, with how often each is there
_Rows: TypeAlias = "dict[str, tuple[int, dict[str, Any]]]"
_FILE_COLUMNS: Final = ("path", "dv_id", "size", "num_records")


@dataclass(frozen=True, slots=True)
class ValueDiff:
    """One thing that differs: a column, a property, or a part of the protocol; None if a side lacks it."""

    name: str
    change: Change
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class FileDiff:
    """A file that only one side has."""

    path: str
    change: Change
    size: int
    num_records: int | None


@dataclass(frozen=True, slots=True)
class RowDiff:
    """A row that one side has more often than the other: how often, and its values by column."""

    change: Change
    count: int
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableDiff:
    """What differs between two sides, from the first to the second.

    Attributes:
        before: The name and the version of the first side; ``after`` likewise.
        columns: Top-level columns and their types.
        properties: Table properties, partitioning, description and protocol.
        files: Files that only one side has; a file with other deleted rows counts as two.
        unchanged_files: Files that both sides have.
        rows: Rows that differ; None if they were not compared. At most as many as were asked for.
        rows_added: How many rows the second side has more; None if they were not compared.
        rows_removed: How many rows the first side has more.
    """

    before: tuple[str, int]
    after: tuple[str, int]
    columns: tuple[ValueDiff, ...]
    properties: tuple[ValueDiff, ...]
    files: tuple[FileDiff, ...]
    unchanged_files: int
    rows: tuple[RowDiff, ...] | None = None
    rows_added: int | None = None
    rows_removed: int | None = None

    @property
    def equal(self) -> bool:
        """Whether nothing differs; if rows were compared, files may."""
        rows = self.files if self.rows is None else self.rows
        return not (self.columns or self.properties or rows)

    def to_dict(self) -> dict[str, Any]:
        """The differences as plain data."""
        sides = {
            side: {"table": name, "version": version}
            for side, (name, version) in (("before", self.before), ("after", self.after))
        }
        return asdict(self) | sides | {"equal": self.equal}


def diff_tables(
    before: TableHandle, after: TableHandle, *, rows: bool = False, limit: int | None = None
) -> TableDiff:
    """What differs from one open table to another.

    Args:
        before: A table, or a version of it.
        after: The other one.
        rows: Also compare the rows of the files that differ. They are read into memory.
        limit: The most rows to return.
    """
    old, new = before.snapshot, after.snapshot
    mine, theirs = _files(before), _files(after)
    same_place = before.row.location == after.row.location
    # files with the same name in two folders need not have the same content
    common = mine.keys() & theirs.keys() if same_place else set()
    changed = [
        *(FileDiff(key[0], "removed", *about) for key, about in mine.items() if key not in common),
        *(FileDiff(key[0], "added", *about) for key, about in theirs.items() if key not in common),
    ]
    found = _row_diffs(before, after, common) if rows else None
    return TableDiff(
        before=(before.name, old.version),
        after=(after.name, new.version),
        columns=tuple(_compared(_columns(old.metadata), _columns(new.metadata))),
        properties=tuple(
            _compared(_properties(old.metadata, old.protocol), _properties(new.metadata, new.protocol))
        ),
        files=tuple(sorted(changed, key=lambda f: (f.change, f.path))),
        unchanged_files=len(common),
        rows=None if found is None else tuple(found[:limit]),
        rows_added=None if found is None else sum(r.count for r in found if r.change == "added"),
        rows_removed=None if found is None else sum(r.count for r in found if r.change == "removed"),
    )


def _files(table: TableHandle) -> dict[FileKey, list[Any]]:
    found = table.source.scan(_FILE_COLUMNS)
    rows = zip(*(found.column(name).to_pylist() for name in _FILE_COLUMNS), strict=True)
    return {(canonical_path(path), dv_id or ""): about for path, dv_id, *about in rows}


def _columns(metadata: Metadata) -> dict[str, str]:
    fields = parse_schema(metadata.schema_string).fields
    return {f.name: _type_text(f.type) + ("" if f.nullable else " not null") for f in fields}


def _type_text(kind: DataType) -> str:
    found = kind.to_dict()
    return found if isinstance(found, str) else encode_json(found)


def _properties(metadata: Metadata, protocol: ProtocolAction) -> dict[str, str]:
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    own = {
        "partitioned by": ", ".join(metadata.partition_columns),
        "description": metadata.description or "",
        "protocol": f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}",
        "features": ", ".join(features),
    }
    properties = {key: value or "" for key, value in metadata.configuration.items()}
    return {key: value for key, value in own.items() if value} | properties


def _compared(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ValueDiff]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old != new:
            change: Change = "added" if old is None else "removed" if new is None else "changed"
            yield ValueDiff(name, change, old, new)


def _row_diffs(before: TableHandle, after: TableHandle, common: set[FileKey]) -> list[RowDiff]:
    """Rows of files that only one side has, without those that both have; equal rows are counted."""
    if _columns(before.snapshot.metadata) != _columns(after.snapshot.metadata):
        common = set()  # the same file has other rows
    old, new = _rows(before, common), _rows(after, common)
    sides: tuple[tuple[Change, _Rows, _Rows], ...] = (("removed", old, new), ("added", new, old))
    return [
        RowDiff(change, extra, row)
        for change, more, less in sides
        for text, (count, row) in more.items()
        if (extra := count - less.get(text, (0, row))[0]) > 0
    ]


def _rows(table: TableHandle, common: set[FileKey]) -> _Rows:
    """The rows of the other files by their text, with how often each is there."""
    adds = [add for add in table.source.adds() if add.key not in common]
    found: _Rows = {}
    for batch in scan(table.source, table.root, where=None, columns=None, predicate=None, adds=adds):
        for row in batch.to_pylist():
            text = repr(sorted(row.items()))
            found[text] = (found.get(text, (0, row))[0] + 1, row)
    return found
