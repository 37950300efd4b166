"""Paths of data files: URL-encoded in the log, decoded for comparison, resolved against a table's root."""

from __future__ import annotations

import os
import posixpath
import re
import zlib
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from deltalakedb.exceptions import OutsidePathError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: what RFC 3986 allows in a path segment, and the slash
_SAFE: Final = "/-_.~!$&'()*+,;=:@"
#: paths that are their own encoding, as most are
_PLAIN: Final = re.compile(r"[A-Za-z0-9/_.=-]*")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_FILE: Final = re.compile(r"file:/+", re.IGNORECASE)
#: if one of several paths has one of these, each of them is checked on its own
_UNUSUAL: Final = ("%", ":", "\x00", "\\", "..")
_first: Final = itemgetter(0)
_OUTSIDE: Final = "have the writer of the log name a file below the table's root"
#: the setting that allows files outside of their table's root
OUTSIDE_SETTING: Final = "catalog.allow_outside_paths"
#: how a path begins that does not continue the root: a slash, a backslash, a scheme, a drive; not the
#: folder of a partition column with a colon in its name, a:b=1/…, as delta-rs writes it
_LEAVES: Final = re.compile(r"[/\\]|[A-Za-z][A-Za-z0-9+.-]*:(?![^/\\]*=)")
#: what other engines call the same stores
_ALIASES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "azure": "az"}


def encode_path(path: str) -> str:
    """A plain path as the log writes it: a URI reference, percent-encoded.

    Example:
        >>> encode_path("day=2024-01-01 00%3A00/a b.parquet")
        'day=2024-01-01%2000%253A00/a%20b.parquet'
    """
    if _PLAIN.fullmatch(path):
        return path
    scheme = match[0] if (match := _URL.match(path)) else ""
    try:
        encoded = quote(path[len(scheme) :], safe=_SAFE)
    except UnicodeEncodeError as e:
        raise ProtocolError(f"the path {path!r} is not Unicode", suggestion="rename the file") from e
    if scheme:
        return scheme + encoded
    # a colon in the first segment would read as a scheme
    head, slash, tail = encoded.partition("/")
    return head.replace(":", "%3A") + slash + tail


def decode_path(path: str) -> str:
    """A path of the log with its percent-encoding undone; one that does not encode UTF-8 stays as it is."""
    try:
        return unquote_to_bytes(path).decode() if "%" in path else path
    except UnicodeError:  # replacing the odd bytes would make two files one
        return path


def canonical_path(path: str) -> str:
    """One text per data file: decoded, and ``file:`` URIs as plain absolute paths."""
    decoded = decode_path(path)
    if decoded[:5].lower() == "file:" and (match := _FILE.match(decoded)):
        return "/" + decoded[match.end() :]
    return decoded


def is_url(path: str) -> bool:
    """Whether a path begins with a scheme, such as ``s3:`` or ``file:``."""
    return _SCHEME.match(path) is not None


def is_absolute(path: str) -> bool:
    """Whether a path of the log does not depend on the table's root."""
    return path.startswith("/") or is_url(path)


@dataclass(frozen=True, slots=True)
class TablePaths:
    """Decides where the files of one table may be, for every reader and every commit.

    Attributes:
        root: The table's root, a plain path or a URL.
        outside: Accept files outside of the root (the setting ``catalog.allow_outside_paths``).
        table: The table's name, for messages.
    """

    root: str
    outside: bool = False
    table: str | None = None

    def resolve(self, path: str) -> str:
        """The absolute path of a data file, or its URL if the root or the path is one.

        Raises:
            OutsidePathError: It leads outside of the root, and the settings do not allow that.
            ProtocolError: It is empty or contains a NUL character.

        Example:
            >>> TablePaths("s3://bucket/t/").resolve("x=1/a%20b.parquet")
            's3://bucket/t/x=1/a b.parquet'
        """
        plain = check_path(path, table=self.table)
        # URL parsers take a backslash for a slash
        leaves = _LEAVES.match(path) or is_absolute(plain) or plain.startswith("\\")
        if leaves and not self.outside and not self._is_below(path):
            raise OutsidePathError(
                f"the path {path[:300]!r} leads outside of the table's root {self.root}",
                table=self.table,
                suggestion="the log may name files that are not the table's own; if you trust it, such as "
                f"a shallow clone, set {OUTSIDE_SETTING} (DELTASQL_CATALOG__ALLOW_OUTSIDE_PATHS) to true",
            )
        return plain if is_absolute(plain) else f"{_plain_root(self.root)}/{plain}"

    def resolve_all(self, paths: Sequence[str]) -> list[str]:
        """What `resolve` returns for each of many paths."""
        if not paths:
            return []
        # one check of all is several times faster than one of each
        joined = "\n".join(paths)
        if "" in paths or "/" in map(_first, paths) or any(mark in joined for mark in _UNUSUAL):
            return [self.resolve(path) for path in paths]
        below = f"{_plain_root(self.root)}/"
        return [below + path for path in paths]

    def _is_below(self, path: str) -> bool:
        if relative_to(self.root, path) is not None:
            return is_absolute(canonical_path(path))
        plain, root = canonical_path(path), _plain_root(self.root)
        if is_url(root) or not plain.startswith("/"):
            return False
        # a folder above the root may be a link, and writers spell the root either way
        return os.path.realpath(plain).startswith(f"{os.path.realpath(root).rstrip('/')}/")


def relative_to(root: str, path: str) -> str | None:
    """The decoded path below the root, or None for a file elsewhere; ProtocolError as `check_path`."""
    plain = check_path(path)
    if not is_absolute(plain):
        return plain
    plain, own = _same_scheme(plain), _plain_root(root)
    # the URL of a root is encoded, the path is not any more
    for spelled in (own, decode_path(own)) if is_url(own) else (own,):
        below = f"{_same_scheme(spelled)}/"
        if plain.startswith(below):
            return plain[len(below) :] or None
    return None


def file_below(root: str, path: str) -> str | None:
    """One name per file below the root, decoded; None for a file that is elsewhere or has no valid path.

    Example:
        >>> file_below("/data/t", "x=1/.//a%20b"), file_below("/data/t", "/data/t/a"), file_below("/t", "..")
        ('x=1/a b', 'a', None)
    """
    try:
        name = relative_to(root, path)
    except ProtocolError:
        return None
    # on a disk "./a" and "x//a" are other names of the same files; in a store they are other objects
    return name if name is None or is_url(root) else posixpath.normpath(name).lstrip("/")


def path_hash(path: str) -> int:
    """The crc32 of a path's canonical form."""
    return zlib.crc32(canonical_path(path).encode("utf-8", "surrogatepass"))


def check_path(path: str, *, table: str | None = None) -> str:
    """The canonical form of a data file's path.

    OutsidePathError if it climbs with ``..``, ProtocolError if it is empty or contains a NUL character.
    """
    plain = canonical_path(path)
    if not plain or "\x00" in plain:
        raise ProtocolError(f"{path!r} is not a path of a data file", table=table, suggestion=_OUTSIDE)
    if ".." in plain and ".." in plain.replace("\\", "/").split("/"):
        raise OutsidePathError(
            f"the path {path[:300]!r} climbs out of its folder with '..'", table=table, suggestion=_OUTSIDE
        )
    return plain


def _plain_root(root: str) -> str:
    # a root is an address, not a path of the log: only file: URIs are encoded
    plain = canonical_path(root) if _FILE.match(root) else root
    if not plain:
        raise ProtocolError("a table without a root has no data files")
    bare = plain.rstrip("/")
    return f"{bare}//" if bare.endswith(":") and is_url(plain) else bare


def _same_scheme(url: str) -> str:
    """Spark's names of S3, Google and Azure storage are the stores' own ones."""
    scheme, mark, rest = url.partition("://")
    return _ALIASES.get(scheme.lower(), scheme.lower()) + mark + rest if mark else url
