"""What stands in for delta-rs's raw table inside a SQL-backed DeltaTable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import UnsupportedOperationError
from deltalakedb.protocol.paths import decode_path

if TYPE_CHECKING:
    from deltalakedb.table.sql_table import SqlDeltaTable

#: questions that a raw table over a scratch log answers rightly
_ANSWERED = {"scan", "schema", "get_num_index_cols", "get_stats_columns"}


class RawProxy:
    """Answers stock code that reaches for ``DeltaTable._table``.

    Reads that need delta-rs go to a raw table over a scratch log of the snapshot. Everything that would
    change the scratch table, and so silently lose a write, is refused.
    """

    def __init__(self, owner: SqlDeltaTable) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _ANSWERED:
            return getattr(self._owner._raw_scan().raw, name)  # noqa: SLF001 - the two are one thing
        raise UnsupportedOperationError(
            f"{name} is not offered on SQL-backed tables yet",
            table=self._owner.name,
            suggestion="write with write_deltalake (append, overwrite); other operations are to come",
        )

    def version(self) -> int:
        """The version that is open."""
        return self._owner.version()

    def table_uri(self) -> str:
        """The table's root."""
        return self._owner.table_uri

    def metadata(self) -> Any:
        """The metadata as stock's ``Metadata`` wants it."""
        return self._owner.metadata()._metadata  # noqa: SLF001 - stock's wrapper of what is wanted

    def get_add_file_sizes(self) -> dict[str, int]:
        """Sizes by path as it is on disk, for readers that open the files themselves."""
        found = self._owner._source.scan(("path", "size"))  # noqa: SLF001 - the two are one thing
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
