"""Every error of deltalakedb, as one tree under the stock ``DeltaError``.

    DeltaError                            (deltalake's own root)
    └── DeltaSqlError                     everything that deltalakedb raises itself
        ├── AddressError                  a deltasql:// address that cannot be read        (ValueError)
        ├── ConfigError                   a setting that is wrong                          (ValueError)
        ├── MissingExtraError             an optional dependency is not installed          (ImportError)
        ├── SparkSetupError               Java, Spark or a jar that is missing or does not fit
        ├── InvalidArgumentError          an argument that makes no sense                  (ValueError)
        │   ├── ArgumentRangeError        a negative version, or one beyond all numbers    (OverflowError)
        │   └── ArgumentTypeError         an argument of the wrong type                    (TypeError)
        ├── PredicateError                a filter that cannot be understood               (ValueError)
        ├── UnsupportedOperationError     not offered here, with what to do instead    (NotImplementedError)
        │   ├── FetchLimitError           more to fetch from an object store than the settings allow
        │   └── TableFollowedError        a read-only copy of a table that others write
        ├── ClockSkewError                clocks differ too much to delete files by their age
        ├── CatalogError                  the database that holds the metadata
        │   ├── CatalogNotFoundError      no catalog there: reading creates none        (TableMissingError)
        │   ├── CatalogVersionError       its schema is newer or older than this client
        │   ├── CatalogEncodingError      its database does not keep text as UTF-8
        │   ├── CatalogCorruptError       the file is damaged or is no database
        │   ├── CatalogAccessError        no rights
        │   ├── CatalogBusyError          held by somebody else                            (transient)
        │   ├── CatalogFullError          no space left for the database                   (transient)
        │   └── CatalogUnavailableError   cannot be reached, or the connection broke       (transient)
        ├── TableMissingError             no such table                                (TableNotFoundError)
        ├── TableExistsError              name or location taken                           (FileExistsError)
        ├── TableFrozenError              writes are refused until somebody decides
        ├── VersionMissingError           a version or time that the table does not have   (ValueError)
        ├── LogError                      a `_delta_log` that cannot be read
        │   ├── LogMissingError           there is none                                (TableNotFoundError)
        │   ├── LogGapError               a version is missing
        │   └── LogCorruptError           torn, damaged or contradictory
        ├── ProtocolError                 the Delta protocol forbids it                (DeltaProtocolError)
        │   ├── OutsidePathError          a file outside of its table's root
        │   └── UnsupportedFeatureError   a table feature that this client does not know
        ├── SchemaError                   data that does not fit the table             (SchemaMismatchError)
        ├── OperationError                delta-rs could not do it: bad SQL, rows that break a constraint, …
        ├── VerificationError             log and catalog do not say the same
        ├── StorageError                  a file or an object store said no                (OSError)
        │   ├── StorageMissingError       there is no such file or object                  (FileNotFoundError)
        │   │   └── TableFolderMissingError  a published table's folder or log is gone
        │   ├── StorageAccessError        no rights on a file or an object                 (PermissionError)
        │   ├── DataFileCorruptError      a data file that is cut short or damaged
        │   └── StorageUnavailableError   and may say yes later                            (transient)
        └── CommitError                   a commit that did not happen                     (CommitFailedError)
            ├── ConflictError             somebody else was first                          (transient)
            └── CommitUnknownError        the answer was lost; ask again with the same id  (transient)

The stock classes are exported under their own names, so `except deltalakedb.exceptions.TableNotFoundError`
catches what stock code raises and what we raise.
"""

from __future__ import annotations

from typing import Any, ClassVar

from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)

__all__ = [
    "AddressError",
    "ArgumentRangeError",
    "ArgumentTypeError",
    "CatalogAccessError",
    "CatalogBusyError",
    "CatalogCorruptError",
    "CatalogEncodingError",
    "CatalogError",
    "CatalogFullError",
    "CatalogNotFoundError",
    "CatalogUnavailableError",
    "CatalogVersionError",
    "ClockSkewError",
    "CommitError",
    "CommitFailedError",
    "CommitUnknownError",
    "ConfigError",
    "ConflictError",
    "DataFileCorruptError",
    "DeltaError",
    "DeltaProtocolError",
    "DeltaSqlError",
    "DivergedWarning",
    "FetchLimitError",
    "InvalidArgumentError",
    "LogCorruptError",
    "LogError",
    "LogGapError",
    "LogMissingError",
    "MissingExtraError",
    "NothingWrittenWarning",
    "OperationError",
    "OutsidePathError",
    "PredicateError",
    "ProtocolError",
    "SchemaError",
    "SchemaMismatchError",
    "SparkSetupError",
    "StorageAccessError",
    "StorageError",
    "StorageMissingError",
    "StorageUnavailableError",
    "TableExistsError",
    "TableFolderMissingError",
    "TableFollowedError",
    "TableFrozenError",
    "TableMissingError",
    "TableNotFoundError",
    "UnsupportedFeatureError",
    "UnsupportedOperationError",
    "VerificationError",
    "VersionMissingError",
]


class DeltaSqlError(DeltaError):
    """The root of what deltalakedb raises: what happened, to which table and version, and what to do.

    Attributes:
        message: What happened, in one sentence.
        table: The table's name, where one is concerned.
        version: The table's version, where one is concerned.
        suggestion: What the user can do about it.
        transient: True where trying again later may succeed.
    """

    transient: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        version: int | None = None,
        suggestion: str | None = None,
        **context: Any,
    ) -> None:
        self.message = message
        self.table = table
        self.version = version
        self.suggestion = suggestion
        self.context = context
        super().__init__(message)

    def __str__(self) -> str:
        where = ""
        if self.table is not None:
            where = f" [table {self.table}" + (
                f", version {self.version}]" if self.version is not None else "]"
            )
        hint = f"\n  → {self.suggestion}" if self.suggestion else ""
        return f"{self.message}{where}{hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.table, self.version, self.suggestion, self.context)

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, for ``--json`` output and structured logs."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "table": self.table,
            "version": self.version,
            "suggestion": self.suggestion,
            "transient": self.transient,
        }


def _rebuild(
    cls: type[DeltaSqlError],
    message: str,
    table: str | None,
    version: int | None,
    suggestion: str | None,
    context: dict[str, Any],
) -> DeltaSqlError:
    return cls(message, table=table, version=version, suggestion=suggestion, **context)


class DivergedWarning(UserWarning):
    """A commit stands in the catalog, but `_delta_log` has something else in its place."""


class NothingWrittenWarning(UserWarning):
    """A write was done before: its application's version is recorded, so nothing was written now."""


#: what to do about a frozen table
FROZEN_HINT = (
    "`deltasql mirror verify` shows what differs; `deltasql mirror recover` takes over commits beyond the "
    "catalog's newest, `deltasql mirror resolve` decides where both sides have one: see "
    "docs/how-to/keep-the-log-in-step.md"
)


class AddressError(DeltaSqlError, ValueError):
    """A ``deltasql://`` address that cannot be understood."""


class ConfigError(DeltaSqlError, ValueError):
    """A setting that is missing or wrong; the message names the variable, key or line."""


class MissingExtraError(DeltaSqlError, ImportError):
    """An optional dependency is not installed; the suggestion is the pip line to run."""


class SparkSetupError(DeltaSqlError):
    """Java, Spark or one of Delta's jars is missing, or has a version that does not fit."""


class InvalidArgumentError(DeltaSqlError, ValueError):
    """An argument that makes no sense, alone or beside another."""


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument of a type that is not taken there."""


class ArgumentRangeError(InvalidArgumentError, OverflowError):
    """A number that is negative, or too large, where neither has a meaning."""


class PredicateError(DeltaSqlError, ValueError):
    """A filter that cannot be understood, or that names a column the table does not have."""


class UnsupportedOperationError(DeltaSqlError, NotImplementedError):
    """An operation that is not offered on a SQL-backed table."""


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
    """The database does not keep text as UTF-8: names, paths and commits would not be what they were."""


class CatalogCorruptError(CatalogError):
    """The database file is damaged, or is not a database."""


class CatalogAccessError(CatalogError):
    """The database refused for lack of rights."""


class CatalogBusyError(CatalogError):
    """Somebody else holds the database."""

    transient = True


class CatalogFullError(CatalogError):
    """There is no space left for the database."""

    transient = True


class CatalogUnavailableError(CatalogError):
    """The database cannot be reached, or the connection broke."""

    transient = True


class TableExistsError(DeltaSqlError, FileExistsError):
    """The name or the location is taken."""


class TableFrozenError(DeltaSqlError):
    """The table is frozen: it is read as before, but writes are refused until somebody decides."""


class TableFollowedError(UnsupportedOperationError):
    """The table is a read-only copy of one that others write: nothing may be changed through it."""


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
    """The log and the catalog do not say the same of a table; nothing was made visible or dropped."""


class StorageError(DeltaSqlError, OSError):
    """A file system or an object store refused."""


class StorageMissingError(StorageError, FileNotFoundError):
    """There is no such file or object."""


class TableFolderMissingError(StorageMissingError):
    """The folder of a table with published versions, or its log on an object store, is gone."""


class StorageAccessError(StorageError, PermissionError):
    """A file system or an object store refused for lack of rights."""


class DataFileCorruptError(StorageError):
    """A data file is cut short or damaged."""


class StorageUnavailableError(StorageError):
    """A store that may answer later."""

    transient = True


class CommitError(DeltaSqlError, CommitFailedError):
    """A commit that did not happen."""


class ConflictError(CommitError):
    """Another writer was first, and the two cannot both be right.

    ``version`` is the winner's.
    """

    transient = True

    @property
    def kind(self) -> str | None:
        """Which rule the two ran into, ``concurrent_append`` for one."""
        return self.context.get("kind")

    @property
    def operation(self) -> str | None:
        """The winner's operation."""
        return self.context.get("operation")

    @property
    def files(self) -> tuple[str, ...]:
        """The files at fault, by their paths in the table; some of them, where they are many."""
        return tuple(self.context.get("files", ()))

    @property
    def predicate(self) -> str | None:
        """The predicate by which rows were read that the winner added."""
        return self.context.get("predicate")

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, with what the two ran into."""
        return super().to_dict() | {
            "kind": self.kind,
            "operation": self.operation,
            "files": list(self.files),
            "predicate": self.predicate,
        }


class CommitUnknownError(CommitError):
    """The outcome of a commit is unknown; asking again with the same id gives the answer.

    ``context["interrupted"]`` is True if a signal or an unexpected error cut the commit off, rather than the
    database: then it is not repeated by itself.
    """

    transient = True


def commit_interrupted(error: BaseException, *, by_database: bool = False) -> CommitUnknownError:
    """What to raise if an exception that says nothing about the outcome came while a commit was ending.

    Args:
        error: The exception.
        by_database: The database raised it; False for a signal or an unexpected error.
    """
    return CommitUnknownError(
        f"the commit was interrupted ({type(error).__name__}: {error}): it may stand",
        suggestion="look at the table's history, or repeat a transaction with the same txn_uuid; "
        "the new data files were kept, and `deltasql gc` removes them if no version needs them",
        interrupted=not by_database,
    )
