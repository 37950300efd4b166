"""Exit codes, and errors as documents with a message, a table and a suggestion."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import click

from deltalakedb.exceptions import (
    AddressError,
    CommitFailedError,
    ConfigError,
    ConflictError,
    DeltaSqlError,
    InvalidArgumentError,
    PredicateError,
    TableFrozenError,
    VerificationError,
)


class ExitCode(IntEnum):
    """What a command's end means to a script."""

    OK = 0
    ERROR = 1
    USAGE = 2
    DRIFT = 3
    CONFLICT = 4
    FROZEN = 5
    TRY_AGAIN = 75
    INTERRUPTED = 130


#: what each code says in the reference
MEANINGS = {
    ExitCode.OK: "fine",
    ExitCode.ERROR: "an error",
    ExitCode.USAGE: "wrong usage: an argument, an address, a condition or a setting",
    ExitCode.DRIFT: "drift: `_delta_log` or the location is not what the catalog says",
    ExitCode.CONFLICT: "another writer was first",
    ExitCode.FROZEN: "a table is frozen, or its log has diverged",
    ExitCode.TRY_AGAIN: "try again later: busy, full or unreachable",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}

# the first fitting row counts: a conflict is transient too, and still has a code of its own
_BY_TYPE: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (AddressError, ExitCode.USAGE),
    (ConfigError, ExitCode.USAGE),
    (InvalidArgumentError, ExitCode.USAGE),
    (PredicateError, ExitCode.USAGE),
    (click.UsageError, ExitCode.USAGE),
    (ConflictError, ExitCode.CONFLICT),
    (TableFrozenError, ExitCode.FROZEN),
    (VerificationError, ExitCode.DRIFT),
)


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that an error ends a command with."""
    for kind, code in _BY_TYPE:
        if isinstance(error, kind):
            return code
    if isinstance(error, DeltaSqlError):
        return ExitCode.TRY_AGAIN if error.transient else ExitCode.ERROR
    return ExitCode.CONFLICT if isinstance(error, CommitFailedError) else ExitCode.ERROR


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain data: the document that ``--json`` prints."""
    if isinstance(error, DeltaSqlError):
        return error.to_dict()
    if isinstance(error, click.UsageError):
        # the command's own help is the best advice on its usage
        hint = f"`{error.ctx.command_path} --help` shows how it is used" if error.ctx else None
        return _plain("UsageError", error.format_message(), hint)
    if isinstance(error, click.ClickException):
        return _plain(type(error).__name__, error.format_message(), None)
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return _plain(
            type(error).__name__, f"{error.strerror or error}{where}", "check the path and its rights"
        )
    text = " ".join(str(error).split()) or "no details"
    return _plain(type(error).__name__, text, "run it again with --debug to see where it comes from")


def _plain(kind: str, message: str, suggestion: str | None) -> dict[str, Any]:
    return {
        "error": kind,
        "message": message,
        "table": None,
        "version": None,
        "suggestion": suggestion,
        "transient": False,
    }
