"""A DeltaTable whose metadata lives in SQL."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from deltalake.table import Metadata as StockMetadata
from deltalake.table import ProtocolVersions

from deltalakedb.exceptions import (
    ArgumentRangeError,
    ArgumentTypeError,
    InvalidArgumentError,
    UnsupportedOperationError,
    VersionMissingError,
)
from deltalakedb.metastore import outbox, registry, snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.mirror.folder import require_folder
from deltalakedb.mirror.outside import look_at_open
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.table.arrow_schemas import stock_schema
from deltalakedb.table.delta_table import DeltaTable, warn_ignored
from deltalakedb.table.outliving import Outliving
from deltalakedb.table.places import normal_location, url_of
from deltalakedb.table.raw import RawProxy
from deltalakedb.table.roots import root_at
from deltalakedb.table.scan import check_files, published_table, raw_table
from deltalakedb.table.shapes import MetadataView, instant_ms
from deltalakedb.table.source import (
    LARGEST,
    Source,
    SqlSource,
    before_sql,
    check_open,
    check_version,
    from_log,
)
from deltalakedb.table.sql_reads import SqlReads
from deltalakedb.table.whole_numbers import whole_number
from deltalakedb.table.work import AutoCommit, after_commit
from deltalakedb.uri import Address, parse_uri

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    import deltalake
    from deltalake._internal import RawDeltaTable

    from deltalakedb.metastore.values import OpenTable
    from deltalakedb.metastore.values import Table as TableRow
    from deltalakedb.protocol.log import Committed
    from deltalakedb.table.roots import Root
    from deltalakedb.table.scan import RawTable
    from deltalakedb.table.work import Sink, Work


class SqlDeltaTable(Outliving, SqlReads):
    """A table opened from a catalog by one query; files, statistics and history come when asked for.

    Made by ``DeltaTable("deltasql://…")``; never needs `_delta_log`.
    """

    def __init__(
        self,
        table_uri: str | Path | os.PathLike[str] | Address,
        version: int | None = None,
        storage_options: dict[str, str] | None = None,
        without_files: bool = False,
        log_buffer_size: int | None = None,
        skip_stats: bool = False,
    ) -> None:
        warn_ignored(without_files, log_buffer_size, skip_stats)
        address = parse_uri(table_uri).absolute()
        address.require_table()
        self._address = address
        self._storage_options = storage_options
        self._database = Database.open(address)
        self._sink: Sink = AutoCommit(self._database)
        self._source: Source
        self._row: TableRow
        self._chosen = version is not None
        #: nobody will look at this object after its next operation
        self._passing = False
        #: what the last piece of work became, where it changed nothing but files
        self._appended: Committed | None = None
        self._at_root: Root | None = None
        self._open(version)
        if self._database.engine.config.publish.look_at_open and look_at_open(self._database, self._row):
            self._open(version)
        self._check_location(address.location)

    # ---- opening ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The table's name in its catalog."""
        return self._address.table or ""

    def _check_location(self, location: str | None) -> None:
        """Refuse an address that names another location than the table's."""
        if location and normal_location(location) != self._row.location:
            raise InvalidArgumentError(
                f"the address says location={location}, but the table lies at {self._row.location}",
                table=self.name,
                suggestion="leave location= out: it is needed only where a table is created",
            )

    def _open(self, version: int | None) -> None:
        if version is not None:
            version = check_version(version)
        try:
            opened = snapshots.open_table(self._database, self.name, version)
        except VersionMissingError as error:
            self._row = registry.find(self._database, self.name)
            self._source = from_log(self._row, version, error, self._root.options)
        else:
            self._use(opened)
        check_open(self._source.snapshot, table=self.name)
        self._raw_found: RawTable | None = None

    def _advance(self) -> None:
        """Move to the newest version; what has not changed since the open one is not read again."""
        source = getattr(self, "_source", None)
        if not isinstance(source, SqlSource):
            self._open(None)
            return
        self._use(snapshots.advance(self._database, self.name, source.opened))
        check_open(self._source.snapshot, table=self.name)
        self._raw_found = None

    def _use(self, opened: OpenTable) -> None:
        self._row = opened.table
        self._source = SqlSource(self._database, opened)

    def _source_at(self, version: int) -> Source:
        """The answers about another version."""
        version = check_version(version)
        try:
            return SqlSource(self._database, snapshots.open_table(self._database, self.name, version))
        except VersionMissingError as error:
            return from_log(self._row, version, error, self._root.options)

    @property
    def _table(self) -> Any:  # type: ignore[override]  # stock sets it once, ours follows the snapshot
        # stock's QueryBuilder hands this on to Rust, which takes nothing but the real thing
        if sys._getframe(1).f_globals.get("__name__") == "deltalake.query":
            return self._raw()
        return RawProxy(self)

    @property
    def _moves(self) -> bool:
        """Whether newer versions can be seen: not so inside a transaction."""
        return isinstance(self._sink, AutoCommit)

    def _raw(self, *, files: bool = True) -> RawDeltaTable:
        """delta-rs's own table at the open version, for reading; without files it answers of its schema."""
        snapshot = self._source.snapshot
        if not files:
            return raw_table(snapshot, (), self._root).raw
        if self._raw_found is None:
            found = None
            if self._is_published():
                check_files(self._source, self._root)
                found = published_table(snapshot, self._root)
            self._raw_found = found or raw_table(snapshot, self._source.adds(), self._root)
        return self._raw_found.raw

    def _is_published(self) -> bool:
        """Whether a remote table's log holds just what is open here."""
        if self._root.is_local or not isinstance(self._source, SqlSource) or self._row.state != "active":
            return False
        waiting = outbox.waiting_versions(self._database, self._row.table_id)
        return self.version() < min(waiting, default=self.version() + 1)

    def _newest_version(self) -> int:
        """The newest version that can be seen from here."""
        if not self._moves:
            return self.version()
        return registry.find(self._database, self.name).head.version

    @property
    def _root(self) -> Root:
        """Where the table's files lie."""
        if self._at_root is None or self._at_root.location != self._row.location:
            config = self._database.engine.config
            self._at_root = root_at(self._row.location, self._storage_options, config, table=self._row.name)
        return self._at_root

    def _use_options(self, storage_options: Mapping[str, str] | None) -> None:
        """Take storage options from here on, where any are given."""
        if storage_options is not None:
            self._storage_options, self._at_root = dict(storage_options), None

    def _pass_by(self) -> SqlDeltaTable:
        """Say that nobody will look at this object after its next operation, which saves a query."""
        self._passing = True
        return self

    def _refresh(self) -> None:
        """Move to the newest version before an operation, unless the user chose a version."""
        self._sink.ready()
        registry.refuse_followed(self._row)
        if self._moves and not self._chosen:
            self._advance()
        self._require_folder()

    def _require_folder(self) -> None:
        """Refuse to write where the folder of a published table is gone."""
        require_folder(self._database, self._row, self._root.store)

    def _hand_on(self, work: Work) -> Committed | None:
        """Give work on this table to where its work goes, and show what became of it."""
        outcome = self._sink.submit(work)
        self._appended = None if any(isinstance(a, Metadata | Protocol) for a in work.actions) else outcome
        self._raw_found = None
        if outcome is not None and not self._passing:
            self._chosen = False
            with after_commit(f"{self.name} could not be opened at its new version"):
                self._advance()
        return outcome

    def update_incremental(self) -> None:
        """Move to the newest version."""
        if not self._moves:
            return  # a transaction's view of its tables does not move
        self._chosen = False
        self._advance()

    def load_as_version(self, version: int | str | datetime) -> None:
        """Travel to a version, or to the newest version at a time.

        Args:
            version: A version number, a datetime (naive ones are UTC), or an ISO 8601 text.
        """
        number = None if isinstance(version, str | datetime) else whole_number(version)
        if number is None and not isinstance(version, str | datetime):
            raise TypeError("Invalid datatype provided for version, only int, str or datetime are accepted.")
        if not self._moves:
            raise UnsupportedOperationError(
                "a table inside a transaction stays at the transaction's snapshot",
                table=self.name,
                suggestion="tx.table(name, version=…) reads an older version",
            )
        self._chosen = True
        if not isinstance(version, str | datetime):
            self._open(number)
            return
        self._open(self._version_at(instant_ms(version)))

    def _load_at(self, when: str | datetime) -> None:
        """Travel to the newest version at a time as delta-spark does.

        Raises:
            VersionMissingError: The time is before the first commit; `load_as_version`, like stock, takes
                that for version 0.
        """
        self._open(self._version_at(instant_ms(when), strict=True))
        self._chosen = True

    def _version_at(self, moment: int, *, strict: bool = False) -> int:
        """The newest version at a time; unless strict, version 0 for a time before the first commit."""
        try:
            return snapshots.version_at(self._database, self._row, moment)
        except VersionMissingError as error:
            return before_sql(self._row, moment, error, self._root.options, strict=strict)

    # ---- facts -----------------------------------------------------------------------------------------

    def version(self) -> int:
        """The version that is open."""
        return self._source.snapshot.version

    @property
    def table_uri(self) -> str:
        """The table's root, where its files lie, as a URL."""
        return url_of(self._row.location)

    @property
    def address(self) -> str:
        """The table's ``deltasql://`` address, without its password."""
        return self._address.to_uri()

    def schema(self) -> deltalake.Schema:
        """The table's schema."""
        return stock_schema(self._source.snapshot.metadata.schema_string)

    def metadata(self) -> StockMetadata:
        """The table's metadata."""
        found = self._source.snapshot.metadata
        view = MetadataView(
            found.id,
            found.name,
            found.description,
            list(found.partition_columns),
            found.created_time,
            dict(found.configuration),
        )
        return StockMetadata(view)  # type: ignore[arg-type]  # it only asks for .metadata()

    def protocol(self) -> ProtocolVersions:
        """The protocol's versions and features."""
        found = self._source.snapshot.protocol
        features = [list(f) if f else None for f in (found.writer_features, found.reader_features)]
        return ProtocolVersions(found.min_reader_version, found.min_writer_version, *features)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Commits up to the open version, newest first, as their writers described them."""
        number = whole_number(limit)
        if limit is not None and number is None:
            raise ArgumentTypeError(f"a limit is a whole number, not {limit!r}")
        if number is not None and not 0 <= number < LARGEST:
            raise ArgumentRangeError(f"a limit is a whole number from 0 to 2⁶³, not {limit}")
        out = []
        for commit in self._source.history(number):
            info = {} if commit.info is None else commit.info.to_dict()
            out.append({"timestamp": commit.timestamp, **info, "version": commit.version})
        return out

    def transaction_version(self, app_id: str) -> int | None:
        """The version that an application recorded for itself."""
        if not isinstance(app_id, str):
            raise ArgumentTypeError(f"an application's id is a text, not {app_id!r}")
        return self._source.txn_version(app_id)

    # ---- as an object ----------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if "_source" not in vars(self):
            return f"DeltaTable({self.address!r})"  # its transaction is over: nothing is looked up for this
        return f"DeltaTable({self.address!r}, version={self.version()})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SqlDeltaTable):
            return NotImplemented
        mine, theirs = self._address.resolved().catalog, other._address.resolved().catalog
        return (mine, self.name, self.version()) == (theirs, other.name, other.version())

    __hash__ = None  # type: ignore[assignment]  # a table moves between versions

    @classmethod
    def _inside(
        cls,
        address: Address,
        database: Database,
        row: TableRow,
        source: Source,
        sink: Sink,
        root: Root | None = None,
    ) -> SqlDeltaTable:
        """A table inside a transaction: its answers come from there, its work goes there."""
        made = object.__new__(cls)
        made._address, made._storage_options, made._database = address, None, database
        made._at_root = root
        made._row, made._source, made._sink, made._raw_found = row, source, sink, None
        made._chosen = made._passing = False
        made._appended = None
        return made

    @classmethod
    def _remembered(cls, address: Address, database: Database, opened: OpenTable) -> SqlDeltaTable:
        """A table that nobody looked up, for one append."""
        made = cls._inside(address, database, opened.table, SqlSource(database, opened), AutoCommit(database))
        made._passing = True
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._moves:
            raise UnsupportedOperationError(
                "a table inside a transaction cannot be pickled or copied",
                table=self.name,
                suggestion="pickle a table that was opened outside of the transaction",
            )
        # a pickled table must open elsewhere: the password travels, as it does in the address
        uri = self._address.to_uri(redact=False)
        return DeltaTable, (uri, self.version(), self._storage_options)
