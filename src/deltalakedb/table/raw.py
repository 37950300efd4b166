"""What stands in for delta-rs's raw table inside a SQL-backed DeltaTable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import UnsupportedOperationError
from deltalakedb.protocol.paths import decode_path
from deltalakedb.table.hooks import QUIET, Hooks
from deltalakedb.table.merging import MergePlan
from deltalakedb.table.new_tables import quiet
from deltalakedb.table.operations import rewrite

if TYPE_CHECKING:
    from deltalakedb.table.operations import Stage
    from deltalakedb.table.sql_table import SqlDeltaTable

#: questions that a raw table over a scratch log answers rightly
_ANSWERED = {"scan", "schema", "get_num_index_cols", "get_stats_columns"}


class RawProxy:
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
            suggestion="write, delete, update and merge are; other operations are to come",
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

    # ---- operations ------------------------------------------------------------------------------------

    def delete(
        self,
        predicate: str | None = None,
        writer_properties: Any = None,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> Any:
        """Delete rows."""
        self._owner._refresh()
        where = self._owner._predicate_or_all(predicate)

        def run(stage: Stage) -> Any:
            return stage.raw.delete(predicate, writer_properties, commit_properties, QUIET)

        return rewrite(self._owner, where, run, hooks=Hooks.of(post_commithook_properties))

    def update(
        self, updates: dict[str, str], predicate: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Update rows."""
        self._owner._refresh()
        where = self._owner._predicate_or_all(predicate)
        hooks = Hooks.of(options.pop("post_commithook_properties", None))

        def run(stage: Stage) -> Any:
            return stage.raw.update(updates, predicate, *args, **quiet(options))

        return rewrite(self._owner, where, run, hooks=hooks)

    def create_merge_builder(self, **options: Any) -> MergePlan:
        """Begin a merge."""
        return MergePlan(self._owner, options)

    def merge_execute(self, plan: MergePlan) -> Any:
        """Run a merge and commit it."""
        return plan.execute()

    def write(self, data: Any, **options: Any) -> None:
        """Write rows, for stock code that was handed this table."""
        from deltalakedb.table.writer import write_to

        options.pop("batch_schema", None)
        self._owner._refresh()
        write_to(self._owner, data, **options)
