"""All errors of deltalakedb, one tree under the stock ``DeltaError``; docs/reference/errors.md has a list.

The stock classes are exported under their own names, so `except deltalakedb.exceptions.TableNotFoundError`
catches what stock code raises and what we raise.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, ClassVar

from deltalake.exceptions import CommitFailedError as CommitFailedError
from deltalake.exceptions import DeltaError as DeltaError
from deltalake.exceptions import DeltaProtocolError as DeltaProtocolError
from deltalake.exceptions import SchemaMismatchError as SchemaMismatchError
from deltalake.exceptions import TableNotFoundError as TableNotFoundError


class DeltaSqlError(DeltaError):
    """The root of all errors of deltalakedb: what happened, to which table and version, and what to do.

    Attributes:
        message: What happened, in one sentence.
        table: The table's name, if it is about a table.
        version: The table's version, if it is about one.
        suggestion: What the user can do about it, in Python if it is a call.
        command: The same on the command line, if it differs.
        transient: Whether trying again later may succeed.
    """

    transient: ClassVar[bool] = False

    def __init_subclass__(cls, *, transient: bool = False) -> None:
        cls.transient = cls.transient or transient

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        version: int | None = None,
        suggestion: str | None = None,
        command: str | None = None,
        **context: Any,
    ) -> None:
        self.message = message
        self.table = table
        self.version = version
        self.suggestion = suggestion
        self.command = command
        self.context = context
        super().__init__(message)

    def __str__(self) -> str:
        version = "" if self.version is None else f", version {self.version}"
        where = "" if self.table is None else f" [table {self.table}{version}]"
        hint = f"\n  → {self.suggestion}" if self.suggestion else ""
        return f"{self.message}{where}{hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        about = {name: getattr(self, name) for name in ("table", "version", "suggestion", "command")}
        return partial(type(self), self.message, **about, **self.context), ()

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, for ``--json`` output and structured logs."""
        names = ("message", "table", "version", "suggestion", "transient")
        return {"error": type(self).__name__, **{name: getattr(self, name) for name in names}}


class DivergedWarning(UserWarning):
    """A commit is in the catalog, but `_delta_log` has another file in its place."""


class NothingWrittenWarning(UserWarning):
    """The application's version is recorded already, so nothing was written."""


#: what to do about a frozen table
FROZEN_HINT = (
    "`deltasql mirror verify` shows what differs; `deltasql mirror recover` adopts commits beyond the "
    "catalog's newest, `deltasql mirror resolve` decides if both sides have one: see "
    "docs/how-to/keep-the-log-in-step.md"
)


class AddressError(DeltaSqlError, ValueError):
    """A ``deltasql://`` address that cannot be parsed, or is not one of a table or catalog as required."""


class ConfigError(DeltaSqlError, ValueError):
    """A setting that is missing or wrong; the message names the variable, key or line."""


class MissingExtraError(DeltaSqlError, ImportError):
    """An optional dependency is not installed; the suggestion is the pip line to run."""


class SparkSetupError(DeltaSqlError):
    """Java, Spark or one of Delta's jars is missing, or has a version that does not fit."""


class InvalidArgumentError(DeltaSqlError, ValueError):
    """An invalid argument, or combination of arguments."""


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument of the wrong type."""


class ArgumentRangeError(InvalidArgumentError, OverflowError):
    """A number that is negative or too large."""


class PredicateError(DeltaSqlError, ValueError):
    """A filter that cannot be parsed, or that names an unknown column."""


class QueryError(DeltaSqlError, ValueError):
    """A SQL query that is wrong, or that would change something."""


class UnsupportedOperationError(DeltaSqlError, NotImplementedError):
    """An operation that is not supported on a SQL-backed table."""


class FetchLimitError(UnsupportedOperationError):
    """An operation would have to fetch more bytes from an object store than the settings allow."""


class ClockSkewError(DeltaSqlError):
    """The clocks of this host, the database and the store differ too much to delete files by their age."""


class CatalogError(DeltaSqlError):
    """The database that holds the metadata refused or failed."""


class TableMissingError(DeltaSqlError, TableNotFoundError):
    """There is no such table in the catalog."""


class CatalogNotFoundError(CatalogError, TableMissingError):
    """There is no catalog at the address, so no table either; reading creates none."""


class CatalogVersionError(CatalogError):
    """The catalog's schema version does not fit this client."""


class CatalogEncodingError(CatalogError):
    """The database does not store text as UTF-8: names, paths and commits would be changed."""


class CatalogCorruptError(CatalogError):
    """The database file is damaged, or is not a database."""


class CatalogAccessError(CatalogError):
    """The database refused for lack of rights."""


class CatalogBusyError(CatalogError, transient=True):
    """Another process has locked the database."""


class CatalogFullError(CatalogError, transient=True):
    """There is no space left for the database."""


class CatalogUnavailableError(CatalogError, transient=True):
    """The database cannot be reached, or the connection broke."""


class TableExistsError(DeltaSqlError, FileExistsError):
    """The name or the location is taken."""


class TableFrozenError(DeltaSqlError):
    """The table is frozen: it is read as before, but writes are refused until it is recovered or resolved."""


class TableFollowedError(UnsupportedOperationError):
    """The table is a read-only copy of one that others write; it cannot be changed."""


class VersionMissingError(DeltaSqlError, ValueError):
    """The table has no such version, or none at such a time."""


class LogError(DeltaSqlError):
    """A ``_delta_log`` folder that cannot be read."""


class LogMissingError(LogError, TableNotFoundError):
    """There is no ``_delta_log`` with a commit or checkpoint in it."""


class LogGapError(LogError):
    """A version between two others is missing."""


class LogCorruptError(LogError):
    """A log file is torn, damaged or contradicts another."""


class ProtocolError(DeltaSqlError, DeltaProtocolError):
    """The Delta protocol forbids what was asked, or the table violates the protocol."""


class OutsidePathError(ProtocolError):
    """A log, a commit or a catalog names a file outside of its table's root, which the settings forbid."""


class UnsupportedFeatureError(ProtocolError):
    """The table needs a feature that this client does not know."""


class SchemaError(DeltaSqlError, SchemaMismatchError):
    """Data that does not fit the table's schema."""


class OperationError(DeltaSqlError):
    """delta-rs or delta-spark could not run it: an expression, a row or a file that it does not accept."""


class VerificationError(DeltaSqlError):
    """The log and the catalog of a table differ; nothing was made visible or dropped."""


class StorageError(DeltaSqlError, OSError):
    """An error of a file system or an object store."""


class StorageMissingError(StorageError, FileNotFoundError):
    """There is no such file or object."""


class TableFolderMissingError(StorageMissingError):
    """The folder of a table with published versions, or its log on an object store, is missing."""


class StorageAccessError(StorageError, PermissionError):
    """A file system or an object store refused for lack of rights."""


class DataFileCorruptError(StorageError):
    """A data file is cut short or damaged."""


class StorageUnavailableError(StorageError, transient=True):
    """The store cannot be reached, or asks to try later."""


class CommitError(DeltaSqlError, CommitFailedError):
    """A commit that did not happen."""


class ConflictError(CommitError, transient=True):
    """A concurrent commit conflicts with this one. ``version`` is that of the other commit.

    Attributes:
        kind: The rule that was violated, such as ``concurrent_append``.
        operation: The operation of the other commit.
        predicate: The predicate by which rows were read that the other commit added.
        files: Paths of conflicting files in the table, or some of them if there are many.
    """

    def __init__(self, message: str, **about: Any) -> None:
        super().__init__(message, **about)
        self.kind: str | None = about.get("kind")
        self.operation: str | None = about.get("operation")
        self.predicate: str | None = about.get("predicate")
        self.files: tuple[str, ...] = tuple(about.get("files", ()))

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, with the kind of the conflict."""
        names = ("kind", "operation", "predicate")
        return super().to_dict() | {name: getattr(self, name) for name in names} | {"files": list(self.files)}


class CommitUnknownError(CommitError, transient=True):
    """The outcome of a commit is unknown; repeating it with the same id returns the outcome.

    ``context["interrupted"]`` is True if a signal or an unexpected error interrupted the commit, rather than
    the database: then it is not repeated automatically.
    """


#: the kinds of error that delta-rs, DataFusion, DuckDB and Arrow put before a message
_ENGINE_KINDS = re.compile(
    r"""(?: Optimizer\ rule\ '\w+'\ failed\s+caused\ by\s+
          | (?: Generic | Generic\ DeltaTable | Generic\ delta\ kernel | External | Schema | Arrow | Kernel
              | Cast | SQL | Execution | C\ Data\ interface )\ error:\s
          | Error\ during\ planning:\s | Kernel:\s | Invalid:\s
          | [A-Z]\w+\ Error:\s | [Ii]nvalid\ Input\ Error:\s )+""",
    re.VERBOSE,
)


def engine_text(error: BaseException | str) -> str:
    """The message of an engine, without the kinds of error before it and a traceback after it."""
    text = str(error).partition(". Detail: Python exception")[0].strip()
    return text[found.end() :] if (found := _ENGINE_KINDS.match(text)) else text


def commit_interrupted(error: BaseException, *, by_database: bool = False) -> CommitUnknownError:
    """The error for an exception at the end of a commit, raised by the database or by something else."""
    return CommitUnknownError(
        f"the commit was interrupted ({type(error).__name__}: {error}): it may stand",
        suggestion="look at the table's history, or repeat a transaction with the same txn_uuid; "
        "the new data files were kept, and `deltasql gc` removes them if no version needs them",
        interrupted=not by_database,
    )


__all__ = sorted(
    name for name, value in globals().items() if isinstance(value, type) and issubclass(value, Exception)
)
