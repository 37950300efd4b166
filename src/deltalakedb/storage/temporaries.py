"""Files on local disk that get their names when they are whole."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TEMP_PREFIX = ".dl-"
_TEMP_SUFFIX = ".tmp"
#: file systems without hard links say one of these
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100


def temporary_name(folder: str) -> str:
    """A hidden name in a folder for a file that is not whole yet."""
    return f"{folder}/{_TEMP_PREFIX}{os.urandom(16).hex()}{_TEMP_SUFFIX}"


def is_temporary(name: str) -> bool:
    """Whether a file of this name is not whole yet, or never became so."""
    return name.startswith(_TEMP_PREFIX) and name.endswith(_TEMP_SUFFIX)


def forget_checksum(target: Path | str) -> None:
    """Take away what Hadoop's local file system keeps beside its own files.

    It would refuse to read what is written in their place.
    """
    folder, _, name = str(target).rpartition("/")
    with contextlib.suppress(OSError):
        os.unlink(f"{folder}/.{name}.crc")  # noqa: PTH108


def remove(path: str) -> None:
    """Take a file away that may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def link_new(temporary: Path | str, target: Path | str, *, links_only: bool = False) -> bool:
    """Give a file another name unless the name is taken: atomic, and never a part of the file."""
    forget_checksum(target)
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as e:
        if links_only or e.errno not in _NO_LINKS or not sys.platform.startswith("linux"):
            raise
        return _rename_new(temporary, target)
    return True


def _rename_new(temporary: Path | str, target: Path | str) -> bool:
    """The same for file systems without hard links, by Linux's renameat2."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE):
        code = ctypes.get_errno()
        if code == errno.EEXIST:
            return False
        raise OSError(code, os.strerror(code), str(target))
    return True
