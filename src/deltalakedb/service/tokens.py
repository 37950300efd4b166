"""The token that a service and its callers share: from a file or the settings, never a command line."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import ConfigError
from deltalakedb.redaction import Secret

if TYPE_CHECKING:
    from deltalakedb.settings import Config

#: a shorter one could be guessed
_SHORTEST: Final = 16
#: a longer file does not contain a token
_LONGEST: Final = 4096


def new_token() -> Secret:
    return Secret(secrets.token_urlsafe(32))


def write_token(path: Path, token: Secret) -> None:
    """Write a token to a new file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token.reveal()}\n")


def read_token(path: str | os.PathLike[str]) -> Secret:
    """The token in a file; ConfigError if it is missing or short, or other users may read or change it."""
    what = f"the token file {os.fspath(path)}"
    try:
        with Path(path).open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            text = file.read(_LONGEST + 1).strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{what} cannot be read: {error}", suggestion="check the path and its permissions"
        ) from error
    if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{what} is open to other users: its mode is {stat.S_IMODE(status.st_mode):04o} and its owner "
            f"has the id {status.st_uid}",
            suggestion=f"put a new token into a file of your own and run: chmod 600 {os.fspath(path)}",
        )
    return _checked(text, what)


def token_of(config: Config) -> Secret | None:
    """The token of the settings: ``service.token``, else that of ``service.token_file``; None for neither."""
    service = config.service
    if service.token is not None:
        return _checked(service.token.get_secret_value(), "the setting service.token")
    return None if service.token_file is None else read_token(Path(service.token_file).expanduser())


def _checked(text: str, where: str) -> Secret:
    if not _SHORTEST <= len(text) <= _LONGEST or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            f"{where} has no token of {_SHORTEST} letters and digits or more",
            suggestion="make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return Secret(text)
