"""DataFrames written to tables: the files by delta-spark, the commit in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from deltalakedb.address import Address, parse_address
from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.features import SPARK_FEATURES
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING, ReadSet
from deltalakedb.spark.expressions import check_frame, condition_of
from deltalakedb.spark.scratch import require_shared_path, run_on_scratch, translate_delta_errors
from deltalakedb.spark.sessions import check_delta
from deltalakedb.table.intent import warn_nothing_written
from deltalakedb.table.locations import place_for
from deltalakedb.table.scratch import ErrorContext, in_partitions_of, removes
from deltalakedb.table.write.create import CreateOptions, create_with, exists, known_mode, open_existing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from deltalakedb.protocol.actions import Action
    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.scratch import Harvest

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
        _create(address, request, configuration or {}, storage_options)
        return 0
    table.check_location(address.location)
    if request.mode not in ("error", "ignore"):
        table.require_folder()
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
        cls,
        df: DataFrame,
        mode: str,
        *,
        partition_by: Sequence[str] | str | None = None,
        options: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> WriteRequest:
        """A request from the arguments of `write`; options that mean the same as an argument become it.

        Names of options are case-insensitive, as in Spark.

        Raises:
            InvalidArgumentError: Options contradict each other or the arguments, or are not supported.
        """
        if options is not None and not isinstance(options, Mapping):
            raise ArgumentTypeError(f"options are a mapping from names to values, not {options!r}")
        # false is the default of dynamic
        given = {name: value for name, value in arguments.items() if value is not None and value is not False}
        rest: dict[str, Any] = {}
        for name, value in (options or {}).items():
            argument, meant = _argument(name, value)
            if meant is None:
                # a plain no is left to Spark, whose session may have another default
                if given.get(argument) == _SCHEMA_MODES.get(name.lower(), ""):
                    raise _contradiction(argument, given[argument], name)
                rest[name] = value
            elif given.setdefault(argument, meant) != meant:
                raise _contradiction(argument, given[argument], name)
        mode = "error" if mode == "errorifexists" else known_mode(mode)
        return cls(df, mode, partition_by, options=rest, **given)

    def check(self) -> None:
        """Refuse arguments that make no sense together, whatever the table.

        Raises:
            InvalidArgumentError: They make no sense.
            SparkSetupError: The DataFrame's session has no Delta.
        """
        check_frame("the data", self.df)
        if self.replace_where is not None and not isinstance(self.replace_where, str):
            raise ArgumentTypeError(f"replace_where is SQL text, not {self.replace_where!r}")
        if self.schema_mode not in (None, "merge", "overwrite"):
            raise InvalidArgumentError(
                f"unknown schema_mode {self.schema_mode!r}", suggestion="use merge or overwrite"
            )
        partly = self.replace_where is not None or self.dynamic
        if partly and self.mode != "overwrite":
            raise InvalidArgumentError("replace_where and dynamic need mode='overwrite'")
        if self.replace_where is not None and self.dynamic:
            raise InvalidArgumentError(
                "replace_where and dynamic exclude each other", suggestion="leave one out"
            )
        if self.schema_mode == "overwrite" and (self.mode != "overwrite" or partly):
            raise InvalidArgumentError(
                "a schema is replaced only together with all rows",
                suggestion="use mode='overwrite' alone, or schema_mode='merge'",
            )
        if (self.app_id is None) != (self.version is None):
            raise InvalidArgumentError("app_id and version go together", suggestion="give both or neither")
        check_delta(self.df.sparkSession)

    def create(self, folder: str, properties: Mapping[str, str], *, table: str) -> None:
        """Let delta-spark create a table of the rows at a path."""
        require_shared_path(self.df.sparkSession, str(Path(folder).parents[1]), folder, table=table)
        with translate_delta_errors(ErrorContext(table)):
            self._save(folder, "append", properties)

    def apply(self, table: TableHandle) -> int | None:
        """Write to an existing table; its new version, or None if nothing was done or not yet committed."""
        if self.mode == "ignore":
            return None
        if self.mode == "error":
            raise exists(table)
        if self.app_id is not None and self.version is not None and _done(table, self.app_id, self.version):
            warn_nothing_written(table.name)
            return None
        spark, source = self.df.sparkSession, table.source
        options: dict[str, str] = {}
        files: list[Add] = []
        reads = NOTHING
        if self.mode == "overwrite":
            # the session's default must not turn one kind of overwrite into another
            options["partitionOverwriteMode"] = "dynamic" if self.dynamic else "static"
            reads = EVERYTHING
        if self.replace_where is not None:
            options["replaceWhere"] = self.replace_where
            where = condition_of(spark, source.snapshot, self.replace_where)
            files = list(source.adds(where))
            if where is not None:
                reads = ReadSet(predicates=(where,), files=frozenset(a.key for a in files))
        done = run_on_scratch(
            spark,
            table,
            lambda folder: self._save(folder, self.mode, options),
            files=files,
            reads=reads,
            replaced=lambda harvest: self._replaced(table, harvest),
        )
        committed = None if done is None else done.committed
        return None if committed is None or committed.replayed else committed.version

    def _save(self, folder: str, mode: str, more: Mapping[str, str]) -> None:
        """Let delta-spark write the rows to the table at a path."""
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

    def _replaced(self, table: TableHandle, harvest: Harvest) -> list[Action]:
        """Removes of the files that an overwrite replaces and that delta-spark does not see."""
        if self.mode != "overwrite" or self.replace_where is not None:
            return []
        if not self.dynamic or not table.source.snapshot.metadata.partition_columns:
            return removes(table.source.adds())
        # delta-spark compares partition values as strings, which writers spell differently
        new = [action for action in harvest.actions if isinstance(action, Add)]
        return removes(in_partitions_of(table.source, new))


# ---- options that mean the same as an argument -------------------------------------------------------------

#: they replace rows in a way that a catalog cannot follow
_REFUSED: Final = {"replaceon": "replaceOn", "replaceusing": "replaceUsing"}
_SCHEMA_MODES: Final = {"mergeschema": "merge", "overwriteschema": "overwrite"}


def _argument(name: str, value: Any) -> tuple[str, Any]:
    """The argument that an option means, and its value; None as the value if the option stays an option."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"the name of an option is a string, not {name!r}")
    key, text = name.lower(), str(value)
    if key in _REFUSED:
        raise InvalidArgumentError(
            f"the option {_REFUSED[key]} is not supported",
            suggestion="use replace_where=, dynamic=True, or deltalakedb.spark.merge",
        )
    if key in _SCHEMA_MODES:
        on = _choice(name, text, "true", "false") == "true" if value is not None else False
        return "schema_mode", _SCHEMA_MODES[key] if on else None
    if value is None:
        return "", None
    if key == "replacewhere":
        return "replace_where", text
    if key == "partitionoverwritemode":
        return "dynamic", _choice(name, text, "static", "dynamic") == "dynamic"
    if key == "txnappid":
        return "app_id", text
    if key == "txnversion":
        if not text.isdecimal():
            raise InvalidArgumentError(f"txnVersion is a whole number, not {text!r}")
        return "version", int(text)
    return "", None


def _choice(name: str, text: str, *choices: str) -> str:
    if text.lower() not in choices:
        raise InvalidArgumentError(f"{name} is {' or '.join(choices)}, not {text!r}")
    return text.lower()


def _contradiction(argument: str, value: Any, option: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{argument}={value!r} and the option {option} contradict each other", suggestion="leave one out"
    )


# ---- new tables and repeated writes ------------------------------------------------------------------------


def _create(
    address: Address,
    request: WriteRequest,
    configuration: Mapping[str, str],
    storage_options: dict[str, str] | None,
) -> None:
    database, name = Database.open(address), address.table or ""
    database.ensure()
    place = place_for(database, name, address.location)
    require_shared_path(request.df.sparkSession, place, None, table=name)
    create_with(
        database,
        name,
        place,
        lambda folder: request.create(folder, configuration, table=name),
        storage_options=storage_options,
        create_options=CreateOptions(handled_features=SPARK_FEATURES),
    )


def _done(table: TableHandle, app_id: str, version: int) -> bool:
    recorded = table.source.committed_version(app_id)
    if recorded is not None and recorded >= version:
        return True
    # a transaction may write one version in several operations; only a higher one makes it late
    noted = table.source.txn_version(app_id)
    return noted is not None and noted > version
