"""The file system handler of ``deltalake.fs``, which takes SQL-backed tables too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake.fs

from deltalakedb.table.raw import RawProxy

if TYPE_CHECKING:
    from deltalake._internal import RawDeltaTable


class DeltaStorageHandler(deltalake.fs.DeltaStorageHandler):
    """A handler for pyarrow's file systems, rooted at a table."""

    @classmethod
    def from_table(
        cls,
        table: RawDeltaTable,
        options: dict[str, str] | None = None,
        known_sizes: dict[str, int] | None = None,
    ) -> Any:
        """The handler of a table's own store.

        Args:
            table: What ``DeltaTable._table`` gives.
            options: Options for the store; by default those of the table.
            known_sizes: Sizes of files, which then need not be asked for.
        """
        given: Any = table
        if not isinstance(given, RawProxy):
            return super().from_table(table, options, known_sizes)
        owner = given._owner
        found = dict(owner._root.options or {}) if options is None else options
        return cls(owner.table_uri, found or None, known_sizes)
