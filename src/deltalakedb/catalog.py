"""``Catalog``: tables by name and location, transactions, namespaces, and queries in plain SQL."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from deltalakedb.address import is_deltasql, parse_address, validate_table_name
from deltalakedb.catalog_mirror import Mirror
from deltalakedb.commit.txn_log import SqlTxnLogWriter
from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.coordinator.fence import refuse_fenced
from deltalakedb.delta_log.reader import open_file_log
from deltalakedb.delta_log.writer import FileTxnLogWriter
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    InvalidArgumentError,
    TableFrozenError,
    TableMissingError,
)
from deltalakedb.metastore import files, registry, snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.txn_log import SqlTxnLogReader
from deltalakedb.retry import RETRIED, Retries
from deltalakedb.settings import as_config, use_config
from deltalakedb.table.drop_in.delta_table import DeltaTable
from deltalakedb.table.filters import predicate_of
from deltalakedb.table.locations import ROOT_SETTING, normal_location
from deltalakedb.table.maintenance.garbage import Garbage, collect
from deltalakedb.table.transaction import Transaction
from deltalakedb.table.write.create import create_table
from deltalakedb.table.write.write import write_deltalake
from deltalakedb.transfer.importing.api import import_table

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from deltalakedb.address import Address
    from deltalakedb.metastore.registry import Namespace
    from deltalakedb.metastore.rows import File, Table
    from deltalakedb.protocol.read_set import Isolation
    from deltalakedb.protocol.txn_log import Commit, TxnLogReader, TxnLogWriter
    from deltalakedb.settings import Config


T = TypeVar("T")


class Catalog:
    """A database that holds the metadata of Delta tables.

    Args:
        uri: A ``deltasql://`` address without a table.
        config: Settings, as a ``Config`` or a dict of its sections (``{"pool": {"max_size": 2}}``); by
            default those of the process.
        create: Create the catalog now if there is none. Otherwise the first write does, and reads raise
            CatalogNotFoundError.

    Example:
        >>> with Catalog("deltasql://sqlite//lake/meta.db") as catalog:
        ...     catalog.create_table("sales.orders", schema, location="/lake/orders")
        ...     [t.name for t in catalog.tables()]
        ['sales.orders']
    """

    def __init__(
        self,
        uri: str | Address,
        *,
        config: Config | Mapping[str, Any] | None = None,
        create: bool = False,
    ) -> None:
        address = parse_address(uri).absolute()
        if address.is_table:
            raise InvalidArgumentError(
                f"{address.to_uri()} is a table's address, not a catalog's",
                suggestion=f"use {address.catalog.to_uri()}, or open the table with DeltaTable(…)",
            )
        self._address = address
        self._database = Database.open(address, as_config(config))
        try:
            self._database.ensure(create=create)
        except CatalogNotFoundError as error:
            if create or not self._database.may_be_created(error):
                raise

    @property
    def _config(self) -> Config:
        return self._database.engine.config

    @property
    def uri(self) -> str:
        """The catalog's address, without its password."""
        return self._address.to_uri()

    # ---- finding ---------------------------------------------------------------------------------------

    def tables(self, *, namespace: str | None = None) -> list[Table]:
        """All tables by name, or those of a namespace and below it."""
        return registry.list_tables(self._database, namespace=namespace)

    def table(
        self,
        name: str,
        *,
        version: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Open a table by name."""
        options = None if storage_options is None else dict(storage_options)
        with use_config(self._config):
            return DeltaTable(self.table_uri(name), version=version, storage_options=options)

    def table_uri(self, name: str) -> str:
        """The address of a table in this catalog. It contains the password, if there is one."""
        return self._address.with_table(name).to_uri(redact=False)

    def describe(self, name: str) -> Table:
        """A table's row in the registry."""
        return registry.find(self._database, name)

    def find(
        self, name: str | None = None, *, location: str | os.PathLike[str] | None = None
    ) -> Table | None:
        """The table of a name or at a location, or None.

        Args:
            name: The table's name.
            location: The table's root, a path or URL.
        """
        if (name is None) == (location is None):
            raise InvalidArgumentError("give either a name or a location")
        if location is not None:
            return registry.find_location(self._database, normal_location(location))
        try:
            return registry.find(self._database, name or "")
        except TableMissingError:
            return None

    def files(self, name: str, *, version: int | None = None, where: Any = None) -> Iterator[File]:
        """A table's data files; with filters, those that may hold what they ask for.

        Args:
            name: The table.
            version: The version; by default the newest.
            where: A SQL predicate, or filters in disjunctive normal form.
        """
        opened = snapshots.open_table(self._database, name, version)
        predicate = predicate_of(where, opened.snapshot.metadata, files_only=True)
        return files.read_files(self._database, opened, where=predicate)

    def commits(self, name: str, *, limit: int | None = None) -> list[Commit]:
        """A table's commits, newest first.

        Args:
            name: The table.
            limit: The largest number of commits.
        """
        return list(self.log(name).history(limit))

    def log(self, name: str) -> SqlTxnLogReader:
        """The table's transaction log, at the low level."""
        registry.find(self._database, name)
        return SqlTxnLogReader(self._database, name)

    # ---- changing --------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        schema: Any,
        *,
        location: str | os.PathLike[str] | None = None,
        mode: str = "error",
        partition_by: list[str] | str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Create an empty table.

        Args:
            name: The table's name, dotted for a namespace.
            schema: A Delta schema or anything that exports an Arrow schema.
            location: Its root; by default a folder under the catalog's root.
            mode: What to do if the name is taken.
            partition_by: Partition columns.
            description: The description in the table's metadata.
            configuration: Table properties.
            comment: A comment in the registry.
            tags: Tags in the registry.
            storage_options: Options for the object store, where the settings and the environment have none.
        """
        where = None if location is None else normal_location(location)
        address = self._address.with_table(name, location=where)
        with use_config(self._config):
            create_table(
                address.to_uri(redact=False),
                schema,
                mode=mode,
                partition_by=partition_by,
                description=description,
                configuration=configuration,
                comment=comment,
                tags=tags,
                storage_options=None if storage_options is None else dict(storage_options),
            )
        return self.table(name, storage_options=storage_options)

    def write(
        self, name: str, data: Any, *, location: str | os.PathLike[str] | None = None, **options: Any
    ) -> None:
        """Write to a table by name: ``write_deltalake`` with the catalog's address filled in.

        What ``write_deltalake`` calls ``name`` is another one, in a new table's metadata: to set it, write
        to ``catalog.table_uri(name)``.
        """
        where = None if location is None else normal_location(location)
        address = self._address.with_table(name, location=where)
        with use_config(self._config):
            write_deltalake(address.to_uri(redact=False), data, **options)

    def register(
        self,
        name: str,
        location: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Import the plain Delta table at a location in place: no file is moved or rewritten."""
        address = self._address.with_table(name)
        with use_config(self._config):
            import_table(str(location), address.to_uri(redact=False), storage_options=storage_options)
        return self.table(name, storage_options=storage_options)

    def rename_table(self, name: str, new_name: str) -> Table:
        """Give a table another name; location and history stay."""
        return registry.rename_table(self._database, name, validate_table_name(new_name))

    def drop_table(self, name: str, *, force: bool = False, dry_run: bool = False) -> Table:
        """Remove a table from the catalog. Its data files and `_delta_log` stay: a plain Delta table.

        Args:
            name: The table.
            force: Drop it even if unpublished commits are lost by it, or a fence keeps all other writers out.
            dry_run: Change nothing, but make all checks.
        """
        table = registry.find(self._database, name)
        if not force:
            refuse_fenced(self._database, table)
        if not dry_run:
            return registry.drop_table(self._database, name, force=force)
        if not force:
            with self._database.read() as session:
                registry.refuse_unpublished(session, table)
        return table

    def set_comment(self, name: str, comment: str | None) -> None:
        """Set or clear a table's comment."""
        registry.set_comment(self._database, name, comment)

    def set_tags(self, name: str, tags: Mapping[str, str]) -> None:
        """Replace a table's tags."""
        registry.set_tags(self._database, name, tags)

    def gc(
        self, name: str | None = None, *, older_than_hours: float = 24, dry_run: bool = False
    ) -> list[Garbage]:
        """Delete data files left by failed operations. No version changes.

        Files that a version references or referenced are not touched: that is what ``vacuum`` is for. Nor is
        a table that is frozen or whose log is ahead, since its log may reference files that the catalog does
        not know: with ``name`` that is a TableFrozenError, otherwise it is skipped with a reason (``kept``).

        Args:
            name: One table; by default all.
            older_than_hours: Younger files stay, as do those of operations in progress.
            dry_run: Delete nothing.
        """
        if name is not None:
            registry.refuse_followed(registry.find(self._database, name))
        # the owners of a followed table may be writing files that the catalog does not know yet
        mine = (t.name for t in self.tables() if t.state != registry.FOLLOWING)
        names = list(mine) if name is None else [name]
        found = []
        for each in names:
            options = self._config.storage_options_for(self.describe(each).location)
            try:
                found.append(
                    collect(
                        self._database,
                        each,
                        older_than_hours=older_than_hours,
                        dry_run=dry_run,
                        storage_options=options,
                    )
                )
            except TableFrozenError as error:
                if name is not None:
                    raise
                found.append(Garbage(each, (), (), 0, deleted=False, kept=error.message))
        return found

    @property
    def mirror(self) -> Mirror:
        """How the catalog's tables reach their `_delta_log`: status, publishing, pausing, repair."""
        return Mirror(self._database)

    # ---- transactions ----------------------------------------------------------------------------------

    def transaction(self, *, isolation: Isolation | None = None, txn_uuid: str | None = None) -> Transaction:
        """A transaction over any number of tables: everything it does becomes visible at once, or nothing.

        Args:
            isolation: ``"Serializable"`` (the default) or ``"WriteSerializable"``.
            txn_uuid: Your own id: a transaction that succeeded before with the same id is not repeated, and
                reports the versions of then.

        Example:
            >>> with catalog.transaction() as tx:
            ...     tx.write("sales.orders", orders)
            ...     tx.table("sales.stock").update(predicate="sku = 1", updates={"qty": "qty - 1"})
        """
        return Transaction(self._database, self._address, isolation=isolation, txn_uuid=txn_uuid)

    def snapshot(self) -> Transaction:
        """Consistent reads over all tables: ``with catalog.snapshot() as s: s.table("a"), s.table("b")``."""
        return Transaction(self._database, self._address, read_only=True)

    def run(
        self,
        work: Callable[[Transaction], T],
        *,
        retries: int = 10,
        isolation: Isolation | None = None,
        txn_uuid: str | None = None,
    ) -> T:
        """Run a function in a transaction, and repeat it after a conflict.

        Args:
            work: Called with a new transaction each time; what it does outside of it is repeated, too.
            retries: How often it is repeated before the conflict is raised.
            isolation: As in ``transaction``.
            txn_uuid: As in ``transaction``.

        Returns:
            The result of the call that was committed.
        """
        attempts = Retries(retries)
        while True:
            try:
                with self.transaction(isolation=isolation, txn_uuid=txn_uuid) as tx:
                    return work(tx)
            except RETRIED as error:
                time.sleep(attempts.pause(error))

    # ---- namespaces and settings -----------------------------------------------------------------------

    def namespaces(self) -> list[Namespace]:
        """Namespaces that were created, and those in names of tables."""
        return registry.namespaces(self._database)

    def create_namespace(
        self, name: str, *, comment: str | None = None, properties: Mapping[str, str] | None = None
    ) -> Namespace:
        """Create a namespace; it may be empty."""
        return registry.create_namespace(
            self._database, validate_table_name(name), comment=comment, properties=properties
        )

    def drop_namespace(self, name: str) -> None:
        """Drop an empty namespace."""
        registry.drop_namespace(self._database, name)

    @property
    def root(self) -> str | None:
        """The folder or URL of new tables without a location."""
        return registry.setting(self._database, ROOT_SETTING) or self._config.catalog.root

    def set_root(self, root: str | os.PathLike[str] | None) -> None:
        """Set or clear the folder or URL of new tables without a location."""
        registry.set_setting(self._database, ROOT_SETTING, None if root is None else normal_location(root))

    def query(self, sql: str, params: tuple[Any, ...] = ()) -> pa.Table:
        """Query the catalog in plain SQL, for example the ``dl_v_…`` views. It cannot change anything.

        Args:
            sql: A query in the database's own dialect.
            params: Values for ``?`` placeholders.
        """
        with self._database.read_only() as session:
            return session.query(sql, params)

    # ---- end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the catalog's connections; the next use opens them again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Catalog({self.uri!r})"


@overload
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["r"] = "r",
) -> TxnLogReader: ...
@overload
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["w"],
) -> TxnLogWriter: ...
def open_log(
    path_or_uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: Literal["r", "w"] = "r",
) -> TxnLogReader | TxnLogWriter:
    """Open a table's transaction log at the low level: file-backed for a path, SQL-backed for an address.

    Args:
        path_or_uri: A table's root, or its ``deltasql://`` address. The address of a table that version 0
            creates needs ``&location=``.
        storage_options: Options for the object store.
        mode: ``r`` reads versions, files and history; ``w`` appends commits, action by action as given. A
            SQL-backed log is published by the table's next commit or by ``deltasql mirror run``.

    Example:
        >>> [a.path for a in open_log("/lake/orders").files(version=3)]
        >>> open_log("/lake/orders", mode="w").commit(4, [add])
    """
    if not is_deltasql(path_or_uri):
        if mode == "w":
            return FileTxnLogWriter(path_or_uri, storage_options)
        return open_file_log(path_or_uri, storage_options)
    address = parse_address(path_or_uri)
    name = address.require_table()
    database = Database.open(address)
    if mode == "w":
        location = address.location or registry.find(database, name).location
        coordinator = Coordinator(database, {location: storage_options} if storage_options else None)
        return SqlTxnLogWriter(database, name, location, commit=coordinator.decide)
    registry.find(database, name)
    return SqlTxnLogReader(database, name)
