"""The questions that stock code asks ``DeltaTable._table``, answered from SQL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.paths import decode_path
from deltalakedb.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from deltalakedb.table.sql_table import SqlDeltaTable

#: what delta-rs itself reports for a table that was opened without options
_LOG_BUFFER_PER_CORE = 4


class RawReads:
    """Answers of a raw table about the version that is open, whoever asks."""

    def __init__(self, owner: SqlDeltaTable) -> None:
        self._owner = owner

    @staticmethod
    def is_deltatable(table_uri: str, storage_options: dict[str, str] | None = None) -> bool:
        """Whether there is a table at an address."""
        return DeltaTable.is_deltatable(table_uri, storage_options)

    def version(self) -> int:
        """The version that is open."""
        return self._owner.version()

    def get_latest_version(self) -> int:
        """The newest version."""
        return self._owner._newest_version()

    def table_uri(self) -> str:
        """The table's root."""
        return self._owner.table_uri

    def table_config(self) -> tuple[bool, int, bool]:
        """How delta-rs would have opened the table."""
        return False, _LOG_BUFFER_PER_CORE * (os.cpu_count() or 1), False

    def metadata(self) -> Any:
        """The metadata as stock's ``Metadata`` wants it."""
        return self._owner.metadata()._metadata

    def protocol_versions(self) -> tuple[int, int, list[str] | None, list[str] | None]:
        """The protocol as stock's ``ProtocolVersions`` wants it."""
        found = self._owner.protocol()
        return (
            found.min_reader_version,
            found.min_writer_version,
            found.writer_features,
            found.reader_features,
        )

    @property
    def schema(self) -> Any:
        """The table's schema."""
        return self._owner.schema()

    def history(self, limit: int | None = None) -> tuple[int, list[str]]:
        """The newest version listed, and the commits as JSON."""
        found = self._owner.history(limit)
        newest = found[0]["version"] if found else self._owner.version()
        return newest, [encode_json(entry) for entry in found]

    def transaction_version(self, app_id: str) -> int | None:
        """The version that an application recorded for itself."""
        return self._owner.transaction_version(app_id)

    # ---- versions --------------------------------------------------------------------------------------

    def load_version(self, version: int) -> None:
        """Travel to a version."""
        self._owner.load_as_version(version)

    def load_with_datetime(self, ds: str) -> None:
        """Travel to a time."""
        self._owner.load_as_version(ds)

    def update_incremental(self) -> None:
        """Move to the newest version."""
        self._owner.update_incremental()

    # ---- files -----------------------------------------------------------------------------------------

    def get_add_file_sizes(self) -> dict[str, int]:
        """Sizes by path as it is on disk, for readers that open the files themselves."""
        found = self._owner._source.scan(("path", "size"))
        paths, sizes = (c.to_pylist() for c in found.columns)
        return dict(zip(map(decode_path, paths), sizes, strict=True))

    def files(self, file_pruning_predicate: Any = None) -> list[str]:
        """Paths of candidate files below the table's root."""
        where = self._owner._pruning(file_pruning_predicate)
        return [decode_path(p) for p in self._owner._source.scan(("path",), where).column("path").to_pylist()]

    def file_uris(self, file_pruning_predicate: Any = None) -> list[str]:
        """Absolute paths of candidate files."""
        return self._owner.file_uris(file_pruning_predicate=file_pruning_predicate)

    def get_active_partitions(self, file_pruning_predicate: Any = None) -> set[frozenset[tuple[str, Any]]]:
        """The partitions of candidate files."""
        found = self._owner.partitions(file_pruning_predicate=file_pruning_predicate)
        return {frozenset(p.items()) for p in found} or {frozenset()}

    def get_add_actions(self, flatten: bool) -> Any:
        """The live files as Arrow."""
        return self._owner.get_add_actions(flatten)

    def dataset_partitions(self, schema: Any, file_pruning_predicate: Any = None) -> list[tuple[str, Any]]:
        """Candidate files below the root, each with what is certain about its rows."""
        import pyarrow as pa

        from deltalakedb.table.dataset import guarantees

        where = self._owner._pruning(file_pruning_predicate)
        return guarantees(self._owner._source, self._owner._root, pa.schema(schema), where)

    def deletion_vectors(self) -> Any:
        """The files that have a deletion vector, with the rows that stay."""
        return self._owner.deletion_vectors()

    # ---- rows ------------------------------------------------------------------------------------------

    def load_cdf(
        self,
        starting_version: int | None = None,
        ending_version: int | None = None,
        starting_timestamp: str | None = None,
        ending_timestamp: str | None = None,
        columns: list[str] | None = None,
        predicate: str | None = None,
        allow_out_of_range: bool = False,
    ) -> Any:
        """The rows that a range of versions changed."""
        return self._owner.load_cdf(
            starting_version,
            ending_version,
            starting_timestamp,
            ending_timestamp,
            columns,
            predicate,
            allow_out_of_range,
        )

    def scan(self, columns: list[str] | None = None, predicate: str | None = None) -> Any:
        """Rows as a stream."""
        return self._owner.scan(columns, predicate)

    def get_num_index_cols(self) -> int:
        """How many leading columns have statistics."""
        return int(self._owner._raw(files=False).get_num_index_cols())  # type: ignore[attr-defined]  # not in its stubs

    def get_stats_columns(self) -> list[str] | None:
        """The columns that have statistics, where the table names them."""
        found: list[str] | None = self._owner._raw(files=False).get_stats_columns()  # type: ignore[attr-defined]
        return found

    def __datafusion_table_provider__(self, session: Any = None) -> Any:
        """The table for the DataFusion package."""
        return self._owner._raw().__datafusion_table_provider__(session)
