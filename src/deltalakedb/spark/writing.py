"""Spark DataFrames into SQL-backed tables: written by delta-spark, committed in SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import snapshots
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.actions import Add, CommitInfo
from deltalakedb.protocol.features import check_writable
from deltalakedb.protocol.reads import EVERYTHING, NOTHING, ReadSet
from deltalakedb.protocol.rules import OURS, SPARKS
from deltalakedb.spark.conditions import condition_of
from deltalakedb.spark.expressions import check_frame
from deltalakedb.spark.failures import own_words
from deltalakedb.spark.scratch import SparkScratch, check_shared, log_parts
from deltalakedb.spark.sessions import check_delta
from deltalakedb.spark.sight import check_seen
from deltalakedb.spark.write_options import fold_options
from deltalakedb.table.places import place_for
from deltalakedb.table.roots import root_at
from deltalakedb.table.scratch import ErrorContext, in_partitions_of, removes, submit
from deltalakedb.table.work import tell_nothing_written
from deltalakedb.table.write.create import CreateOptions, create_with, exists, known_mode, open_existing
from deltalakedb.uri import Address, parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from deltalakedb.protocol.actions import Action
    from deltalakedb.table.handle import TableHandle

Mode = Literal["error", "errorifexists", "append", "overwrite", "ignore"]


def write(
    df: DataFrame,
    uri: str | Address,
    *,
    mode: Mode = "error",
    partition_by: Sequence[str] | str | None = None,
    schema_mode: Literal["merge", "overwrite"] | None = None,
    replace_where: str | None = None,
    dynamic: bool = False,
    app_id: str | None = None,
    version: int | None = None,
    configuration: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    storage_options: dict[str, str] | None = None,
) -> int | None:
    """Write a DataFrame to a table, creating it where it does not exist.

    Executors write the files, once; the driver commits them in SQL. What fails leaves nothing visible.

    Args:
        df: The rows.
        uri: The table's address; with ``location=`` where the table is to be created.
        mode: What to do with an existing table; ``errorifexists`` is Spark's other name of ``error``.
        partition_by: Columns to partition a new table by.
        schema_mode: ``merge`` adds new columns, ``overwrite`` replaces the schema with the data.
        replace_where: With ``mode="overwrite"``: replace only the rows that match this condition.
        dynamic: With ``mode="overwrite"``: replace only the partitions that the data has.
        app_id: An application that writes each of its versions once.
        version: The application's version; a version that was written before is not written again.
        configuration: A new table's properties.
        options: Further options of Delta's writer, such as ``maxRecordsPerFile``; those that say the same as
            an argument here, such as ``replaceWhere``, are taken as the argument.
        storage_options: Options for the object store, for the catalog's side; Spark has its own settings.

    Returns:
        The table's new version, or None where there was nothing to do.

    Raises:
        TableExistsError: The table exists, and the mode is ``error``.
        ConflictError: Somebody else changed what this write depends on.
        OperationError: delta-spark refused a row, for example by a constraint of the table.

    Example:
        >>> write(df, "deltasql://sqlite//lake/meta.db?table=orders", mode="append")
        7
    """
    wish = Wish(df, mode, partition_by, schema_mode, replace_where, dynamic, app_id, version, options or {})
    wish.check()
    address = uri if isinstance(uri, Address) else parse_uri(str(uri))
    table = open_existing(address, storage_options)
    if table is None:
        _create(address, wish, configuration or {}, storage_options)
        return 0
    table.check_location(address.location)
    if wish.mode not in ("error", "ignore"):
        table.require_folder()
    return wish.fulfil(table)


@dataclass(frozen=True, eq=False)
class Wish:
    """What somebody wants to be written, by the names of `write`."""

    df: DataFrame
    mode: str
    partition_by: Sequence[str] | str | None = None
    schema_mode: str | None = None
    replace_where: str | None = None
    dynamic: bool = False
    app_id: str | None = None
    version: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Give the mode its one name, and what options say of the arguments to these."""
        mode = "error" if self.mode == "errorifexists" else known_mode(self.mode)
        object.__setattr__(self, "mode", mode)
        names = ("replace_where", "dynamic", "schema_mode", "app_id", "version")
        meant, left = fold_options(self.options, {name: getattr(self, name) for name in names})
        for name, value in (meant | {"options": left}).items():
            object.__setattr__(self, name, value)

    def check(self) -> None:
        """Refuse what makes no sense, whatever the table."""
        check_frame("the data", self.df)
        if self.replace_where is not None and not isinstance(self.replace_where, str):
            raise ArgumentTypeError(f"replace_where is SQL text, not {self.replace_where!r}")
        _check(
            self.mode,
            schema_mode=self.schema_mode,
            replace_where=self.replace_where,
            dynamic=self.dynamic,
        )
        if (self.app_id is None) != (self.version is None):
            raise InvalidArgumentError("app_id and version go together", suggestion="give both or neither")
        check_delta(self.df.sparkSession)

    def save(self, folder: str, mode: str = "append", more: Mapping[str, str] | None = None) -> None:
        """Have delta-spark write the rows to the table at a path."""
        settings = dict(self.options)
        if self.app_id is not None:
            settings |= {"txnAppId": self.app_id, "txnVersion": str(self.version)}
        if self.schema_mode is not None:
            settings["mergeSchema" if self.schema_mode == "merge" else "overwriteSchema"] = "true"
        writer = self.df.write.format("delta").mode(mode).options(**settings, **(more or {}))
        if self.partition_by:
            columns = [self.partition_by] if isinstance(self.partition_by, str) else self.partition_by
            writer = writer.partitionBy(*columns)
        writer.save(folder)

    def create(self, folder: str, properties: Mapping[str, str], *, table: str) -> None:
        """Have delta-spark make a table of the rows at a path."""
        check_seen(self.df.sparkSession, str(Path(folder).parents[1]), folder, table=table)
        with own_words(ErrorContext(table)):
            self.save(folder, more=properties)

    def fulfil(self, table: TableHandle) -> int | None:
        """Write to a table that exists; its new version, None where there was nothing to do or not yet."""
        if self.mode == "ignore":
            return None
        if self.mode == "error":
            raise exists(table)
        if self.app_id is not None and self.version is not None and _done(table, self.app_id, self.version):
            tell_nothing_written(table.name)
            return None
        more = {} if self.replace_where is None else {"replaceWhere": self.replace_where}
        if self.mode == "overwrite":
            # a session's own setting must not turn one kind of overwriting into another
            more["partitionOverwriteMode"] = "dynamic" if self.dynamic else "static"
        return _write_to(
            table,
            self.df,
            lambda folder: self.save(folder, self.mode, more),
            self.mode,
            self.replace_where,
            whole=self.dynamic,
        )


def _check(mode: str, *, schema_mode: str | None, replace_where: str | None, dynamic: bool) -> None:
    if schema_mode not in (None, "merge", "overwrite"):
        raise InvalidArgumentError(
            f"unknown schema_mode {schema_mode!r}", suggestion="use merge or overwrite"
        )
    if (replace_where is not None or dynamic) and mode != "overwrite":
        raise InvalidArgumentError("replace_where and dynamic go with mode='overwrite' only")
    if replace_where is not None and dynamic:
        raise InvalidArgumentError(
            "replace_where and dynamic are two ways to say what is replaced", suggestion="leave one out"
        )
    if schema_mode == "overwrite" and (mode != "overwrite" or replace_where is not None or dynamic):
        raise InvalidArgumentError(
            "a schema is replaced only where all rows are",
            suggestion="use mode='overwrite' alone, or schema_mode='merge'",
        )


def _create(
    address: Address, wish: Wish, configuration: Mapping[str, str], storage_options: dict[str, str] | None
) -> None:
    database, name = Database.open(address), address.table or ""
    database.ensure()
    place = place_for(database, name, address.location)
    root = root_at(place, storage_options, database.engine.config)
    check_shared(root, wish.df.sparkSession, table=name)
    create_with(
        database,
        name,
        place,
        lambda folder: wish.create(folder, configuration, table=name),
        storage_options=storage_options,
        create_options=CreateOptions(kept=SPARKS),
    )


def _done(table: TableHandle, app_id: str, version: int) -> bool:
    recorded = table.source.committed_version(app_id)
    if recorded is not None and recorded >= version:
        return True
    # a transaction may write one version in several operations; only a higher one makes it late
    noted = table.source.txn_version(app_id)
    return noted is not None and noted > version


def _write_to(
    table: TableHandle,
    df: DataFrame,
    save: Callable[[str], Any],
    mode: str,
    replace_where: str | None,
    *,
    whole: bool,
) -> int | None:
    snapshot = table.source.snapshot
    check_writable(snapshot.protocol, table=table.name, also=OURS | SPARKS)
    candidates: list[Add] = []
    reads = EVERYTHING if mode == "overwrite" else NOTHING
    where = condition_of(df.sparkSession, snapshot, replace_where)
    if where is not None:
        candidates = list(table.source.adds(where))
        reads = ReadSet(predicates=(where,), files=frozenset(a.key for a in candidates))
    elif replace_where is not None:
        candidates = list(table.source.adds())
    whole = whole and bool(snapshot.metadata.partition_columns)
    replaces_all = mode == "overwrite" and replace_where is None and not whole
    domains = snapshots.domains(table.database, table.row, snapshot.version)
    failpoint("data.before")
    spark = df.sparkSession
    with (
        SparkScratch.at(table.root, spark, table=table.name) as scratch,
        log_parts(spark, len(candidates)),
    ):
        scratch.lay_all(snapshot, candidates, domains)
        with own_words(ErrorContext.at(table)):
            save(str(scratch.folder))
        harvest = scratch.harvest(after=0)
        more: list[Action] = removes(table.source.adds()) if replaces_all else []
        if whole:
            # delta-spark compares partition values as texts, which writers spell differently
            new = [action for action in harvest.actions if isinstance(action, Add)]
            more = removes(in_partitions_of(table.source, new))
        if not more and all(isinstance(action, CommitInfo) for action in harvest.actions):
            return None
        done = submit(table, scratch, harvest, reads, more, kept=SPARKS)
    return None if done is None or done.replayed else done.version
