"""Datasets over files whose own Arrow schema has view types, as delta-rs writes them when it rewrites rows.

Arrow compares the statistics of such files' row groups in these types, and knows no comparison of them with
texts and bytes. The rows themselves are cast when they are read, so there they can be compared.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

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
        """The files that may match, also of a dataset filtered before, which does not tell them."""
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
