"""DataFrames written to tables: the files by delta-spark, the commit in SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from deltalakedb.address import Address, parse_address
from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.features import SPARK_FEATURES
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.spark.expressions import check_frame, condition_of
from deltalakedb.spark.scratch import (
    candidates,
    replaced_files,
    require_shared_path,
    run_on_scratch,
    translate_delta_errors,
)
from deltalakedb.spark.sessions import check_delta
from deltalakedb.table.handle import TableHandle, warn_nothing_written
from deltalakedb.table.locations import normal_location
from deltalakedb.table.scratch import ErrorContext
from deltalakedb.table.write.write import CreateOptions, create_with, exists, known_mode, open_existing

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame


CREATE_OPTIONS: Final = CreateOptions(handled_features=SPARK_FEATURES)
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
    """Write a DataFrame to a table, which is created if it does not exist.

    Executors write the files, once; the driver commits them in SQL. A failed write changes nothing.

    Args:
        df: The rows.
        uri: The table's address, with ``location=`` for a new table.
        mode: What to do if the table exists; ``errorifexists`` is Spark's other name for ``error``.
        partition_by: Columns to partition a new table by.
        schema_mode: ``merge`` adds new columns, ``overwrite`` replaces the schema with the data.
        replace_where: With ``mode="overwrite"``: replace only the rows that match this condition.
        dynamic: With ``mode="overwrite"``: replace only partitions that occur in the data.
        app_id: An application that writes each of its versions once.
        version: The application's version; a version that was written before is not written again.
        configuration: A new table's properties.
        options: Further options of Delta's writer, such as ``maxRecordsPerFile``; those that mean the same as
            an argument here, such as ``replaceWhere``, are taken as the argument.
        storage_options: Options for the object store, for this process; Spark has its own settings.

    Returns:
        The table's new version, or None if there was nothing to do.

    Raises:
        TableExistsError: The table exists, and the mode is ``error``.
        ConflictError: Another writer changed something that this write depends on.
        OperationError: delta-spark refused a row, for example because it violates a constraint.

    Example:
        >>> write(df, "deltasql://sqlite//lake/meta.db?table=orders", mode="append")
        7
    """
    request = WriteRequest.of(
        df,
        mode,
        partition_by=partition_by,
        schema_mode=schema_mode,
        replace_where=replace_where,
        dynamic=dynamic,
        app_id=app_id,
        version=version,
        options=options,
    )
    request.check()
    address = uri if isinstance(uri, Address) else parse_address(str(uri))
    table = open_existing(address, storage_options)
    if table is None:
        create = request.creation(address.require_table(), configuration, address.location)
        create_with(Database.open(address), address, create, CREATE_OPTIONS, storage_options)
        return 0
    table.check_location(address.location)
    if request.mode not in ("error", "ignore"):
        table.require_writable()
    return request.apply(table)


@dataclass(frozen=True, eq=False)
class WriteRequest:
    """A write of a DataFrame, by the names of the arguments of `write`."""

    df: DataFrame
    mode: str
    partition_by: Sequence[str] | str | None = None
    schema_mode: str | None = None
    replace_where: str | None = None
    dynamic: bool = False
    app_id: str | None = None
    version: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, df: DataFrame, mode: str, *, options: Mapping[str, Any] | None = None, **arguments: Any
    ) -> WriteRequest:
        """A request from the arguments of `write`; options that mean the same as an argument become it."""
        if options is not None and not isinstance(options, Mapping):
            raise ArgumentTypeError(f"options are a mapping from names to values, not {options!r}")
        # false is the default of dynamic
        given = {name: value for name, value in arguments.items() if value is not None and value is not False}
        rest: dict[str, Any] = {}
        for name, value in (options or {}).items():
            argument, meant = _argument(name, value)
            if meant is None:
                rest[name] = value
                # a plain no is left to Spark, whose session may have another default
                yes = _ARGUMENTS.get(name.lower(), ("", {}))[1].get("true")
                agrees = yes is None or given.get(argument) != yes
            else:
                agrees = given.setdefault(argument, meant) == meant
            if not agrees:
                raise InvalidArgumentError(
                    f"{argument}={given[argument]!r} and the option {name} contradict each other",
                    suggestion="leave one out",
                )
        return cls(df, "error" if mode == "errorifexists" else known_mode(mode), options=rest, **given)

    def check(self) -> None:
        """Refuse arguments that make no sense together, whatever the table, and sessions without Delta."""
        check_frame("the data", self.df)
        if self.replace_where is not None and not isinstance(self.replace_where, str):
            raise ArgumentTypeError(f"replace_where is SQL text, not {self.replace_where!r}")
        partly, whole = self.replace_where is not None or self.dynamic, self.mode == "overwrite"
        unknown = self.schema_mode not in (None, "merge", "overwrite")
        both = self.replace_where is not None and self.dynamic
        torn = self.schema_mode == "overwrite" and (not whole or partly)
        unpaired = (self.app_id is None) != (self.version is None)
        alone = "use mode='overwrite' alone, or schema_mode='merge'"
        refusals = (
            (unknown, f"unknown schema_mode {self.schema_mode!r}", "use merge or overwrite"),
            (partly and not whole, "replace_where and dynamic need mode='overwrite'", None),
            (both, "replace_where and dynamic exclude each other", "leave one out"),
            (torn, "a schema is replaced only together with all rows", alone),
            (unpaired, "app_id and version go together", "give both or neither"),
        )
        for refused, why, hint in refusals:
            if refused:
                raise InvalidArgumentError(why, suggestion=hint)
        check_delta(self.df.sparkSession)

    def creation(
        self, table: str, properties: Mapping[str, str] | None, location: str | os.PathLike[str] | None
    ) -> Callable[[str], None]:
        """A function that lets delta-spark create a table of the rows at a path."""

        def create(folder: str) -> None:
            place = normal_location(location or Path(folder).parents[1])
            require_shared_path(self.df.sparkSession, place, folder, table=table)
            with translate_delta_errors(ErrorContext(table)):
                self._save(folder, "append", properties or {})

        return create

    def apply(self, table: TableHandle) -> int | None:
        """Write to an existing table; its new version, or None if nothing was done or not yet committed."""
        if self.mode == "ignore":
            return None
        if self.mode == "error":
            raise exists(table)
        if self.app_id is not None and self.version is not None:
            recorded = table.source.committed_version(self.app_id)
            # a transaction may write one version in several operations; only a higher one makes it late
            noted = table.source.txn_version(self.app_id)
            late = noted is not None and noted > self.version
            if late or (recorded is not None and recorded >= self.version):
                warn_nothing_written(table.name)
                return None
        spark, options = self.df.sparkSession, dict[str, str]()
        read, files, reads, replaced = table.snapshot, list[Add](), NOTHING, None
        if self.mode == "overwrite":
            # the session's default must not turn one kind of overwrite into another
            options["partitionOverwriteMode"] = "dynamic" if self.dynamic else "static"
            reads, replaced = EVERYTHING, partial(replaced_files, table, dynamic=self.dynamic)
        if self.replace_where is not None:
            options["replaceWhere"] = self.replace_where
            files, reads = candidates(table, condition_of(spark, read, self.replace_where))
            replaced = None
        save = partial(self._save, mode=self.mode, more=options)
        done = run_on_scratch(spark, table, save, read=read, files=files, reads=reads, replaced=replaced)
        committed = None if done is None else done[1]
        return None if committed is None or committed.replayed else committed.version

    def _save(self, folder: str, mode: str, more: Mapping[str, str]) -> None:
        settings = dict(self.options)
        if self.app_id is not None:
            settings |= {"txnAppId": self.app_id, "txnVersion": str(self.version)}
        if self.schema_mode is not None:
            settings["mergeSchema" if self.schema_mode == "merge" else "overwriteSchema"] = "true"
        writer = self.df.write.format("delta").mode(mode).options(**settings, **more)
        if self.partition_by:
            columns = [self.partition_by] if isinstance(self.partition_by, str) else self.partition_by
            writer = writer.partitionBy(*columns)
        writer.save(folder)


# ---- options that mean the same as an argument -------------------------------------------------------------

#: the argument that an option means, and its values by the option's; any text if there are none
_ARGUMENTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "replacewhere": ("replace_where", {}),
    "partitionoverwritemode": ("dynamic", {"static": False, "dynamic": True}),
    "mergeschema": ("schema_mode", {"true": "merge", "false": None}),
    "overwriteschema": ("schema_mode", {"true": "overwrite", "false": None}),
    "txnappid": ("app_id", {}),
    "txnversion": ("version", {}),
}
#: they replace rows in a way that a catalog cannot follow
_REFUSED: Final = {"replaceon": "replaceOn", "replaceusing": "replaceUsing"}


def _argument(name: str, value: Any) -> tuple[str, Any]:
    """The argument that an option means, and its value; None as the value if the option stays an option."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"the name of an option is a string, not {name!r}")
    if (key := name.lower()) in _REFUSED:
        raise InvalidArgumentError(
            f"the option {_REFUSED[key]} is not supported",
            suggestion="use replace_where=, dynamic=True, or deltalakedb.spark.merge",
        )
    argument, meanings = _ARGUMENTS.get(key, ("", {}))
    text = str(value)
    if not argument or value is None:
        return argument, None
    if meanings and text.lower() not in meanings:
        raise InvalidArgumentError(f"{name} is {' or '.join(meanings)}, not {text!r}")
    if argument == "version" and not text.isdecimal():
        raise InvalidArgumentError(f"txnVersion is a whole number, not {text!r}")
    return argument, meanings[text.lower()] if meanings else int(text) if argument == "version" else text
