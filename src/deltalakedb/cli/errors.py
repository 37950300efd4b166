"""Exit codes, and errors as documents with a message, a table and a suggestion."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Self

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
    """What a command's end means to a script, with the words of the reference."""

    meaning: str

    OK = 0, "fine"
    ERROR = 1, "an error"
    USAGE = 2, "wrong usage: an argument, an address, a condition or a setting"
    DRIFT = 3, "drift: `_delta_log` or the location differs from the catalog"
    CONFLICT = 4, "another writer was first"
    FROZEN = 5, "a table is frozen, or its log has diverged"
    TRY_AGAIN = 75, "try again later: busy, full or unreachable"
    INTERRUPTED = 130, "interrupted by Ctrl-C"

    def __new__(cls, value: int, meaning: str = "") -> Self:
        self = int.__new__(cls, value)
        self._value_ = value
        self.meaning = meaning
        return self


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that an error ends a command with."""
    match error:
        case AddressError() | ConfigError() | InvalidArgumentError() | PredicateError() | click.UsageError():
            return ExitCode.USAGE
        case ConflictError():  # transient too, and still has a code of its own
            return ExitCode.CONFLICT
        case TableFrozenError():
            return ExitCode.FROZEN
        case VerificationError():
            return ExitCode.DRIFT
        case DeltaSqlError():
            return ExitCode.TRY_AGAIN if error.transient else ExitCode.ERROR
    return ExitCode.CONFLICT if isinstance(error, CommitFailedError) else ExitCode.ERROR


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain data: the document that ``--json`` prints."""
    if isinstance(error, DeltaSqlError):
        return error.to_dict()
    kind, message, suggestion = type(error).__name__, " ".join(str(error).split()) or "no details", None
    if isinstance(error, click.ClickException):
        message = error.format_message()
        if isinstance(error, click.UsageError):
            # the command's own help is the best advice on its usage
            kind = "UsageError"
            suggestion = f"`{error.ctx.command_path} --help` shows how it is used" if error.ctx else None
    elif isinstance(error, OSError):
        message = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        suggestion = "check the path and its permissions"
    else:
        suggestion = "run it again with --debug for a traceback"
    return DeltaSqlError(message, suggestion=suggestion).to_dict() | {"error": kind}
