"""What stands in for delta-rs's raw table inside a SQL-backed DeltaTable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import UnsupportedOperationError
from deltalakedb.protocol.paths import decode_path
from deltalakedb.table.raw_operations import RawOperations

if TYPE_CHECKING:
    from deltalakedb.table.sql_table import SqlDeltaTable

#: questions that a raw table over a scratch log answers rightly
_ANSWERED = {"scan", "schema", "get_num_index_cols", "get_stats_columns"}


class RawProxy(RawOperations):
    """Answers stock code that reaches for ``DeltaTable._table``.

    Reads that need delta-rs go to a raw table over a scratch log of the snapshot. Operations run on a scratch
    table of the candidate files and are committed in SQL. Whatever else would change the scratch table, and
    so silently lose a write, is refused.
    """

    def __init__(self, owner: SqlDeltaTable) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _ANSWERED:
            return getattr(self._owner._raw_scan().raw, name)
        raise UnsupportedOperationError(
            f"{name} is not offered on SQL-backed tables yet",
            table=self._owner.name,
            suggestion="open the table's folder with deltalake to read it, or use an operation of DeltaTable",
        )

    # ---- facts -----------------------------------------------------------------------------------------

    def version(self) -> int:
        """The version that is open."""
        return self._owner.version()

    def table_uri(self) -> str:
        """The table's root."""
        return self._owner.table_uri

    def metadata(self) -> Any:
        """The metadata as stock's ``Metadata`` wants it."""
        return self._owner.metadata()._metadata

    def get_add_file_sizes(self) -> dict[str, int]:
        """Sizes by path as it is on disk, for readers that open the files themselves."""
        found = self._owner._source.scan(("path", "size"))
        paths, sizes = (c.to_pylist() for c in found.columns)
        return dict(zip(map(decode_path, paths), sizes, strict=True))

    def protocol_versions(self) -> tuple[int, int, list[str] | None, list[str] | None]:
        """The protocol as stock's ``ProtocolVersions`` wants it."""
        found = self._owner.protocol()
        return (
            found.min_reader_version,
            found.min_writer_version,
            found.writer_features,
            found.reader_features,
        )
