"""Paths of data files: URL-encoded in the log, decoded for comparison, resolved against a table's root."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from deltalakedb.exceptions import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "canonical_path",
    "decode_path",
    "encode_path",
    "file_below",
    "is_absolute",
    "is_url",
    "relative_to",
    "resolve",
    "resolve_all",
]

#: what RFC 3986 allows in a path segment, and the slash
_SAFE: Final = "/-_.~!$&'()*+,;=:@"
#: paths that are their own encoding, as most are
_PLAIN: Final = re.compile(r"[A-Za-z0-9/_.=-]*")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_FILE: Final = re.compile(r"file:/+", re.IGNORECASE)
#: what, in paths joined by line feeds, asks for a closer look at each
_UNUSUAL: Final = ("%", ":", "..", "\x00", "\n/", "\n\n")
_OUTSIDE: Final = "refuse the commit: a data file must lie below the table's root"


def encode_path(path: str) -> str:
    """A plain path as the log writes it: a URI reference with everything unusual percent-encoded.

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
    if "%" not in path:
        return path
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeError:
        # replacing the odd bytes would make two files one
        return path


def canonical_path(path: str) -> str:
    """One text per data file: decoded, and ``file:`` URIs as plain absolute paths.

    Example:
        >>> canonical_path("file:///data/a%20b"), canonical_path("x=1/a%20b")
        ('/data/a b', 'x=1/a b')
    """
    decoded = decode_path(path)
    if decoded[:5].lower() == "file:" and (match := _FILE.match(decoded)):
        return "/" + decoded[match.end() :]
    return decoded


def is_url(path: str) -> bool:
    """Whether a path begins with a scheme, such as ``s3:`` or ``file:``."""
    return _SCHEME.match(path) is not None


def is_absolute(path: str) -> bool:
    """Whether a path of the log stands for itself, without the table's root."""
    return path.startswith("/") or is_url(path)


def resolve(root: str, path: str, *, inside: bool = False) -> str:
    """Where a data file lies: an absolute path, or a URL where the root or the path is one.

    Args:
        root: The table's root, a plain path or a URL.
        path: The path as the log has it.
        inside: Refuse paths that lead outside of the root.

    Raises:
        ProtocolError: The path is empty, climbs with ``..``, or leads outside although it must not.

    Example:
        >>> resolve("/data/t", "x=1/a%20b.parquet"), resolve("s3://bucket/t/", "a%20b.parquet")
        ('/data/t/x=1/a b.parquet', 's3://bucket/t/a b.parquet')
    """
    plain = check_path(path)
    if not is_absolute(plain):
        return f"{_plain_root(root)}/{plain}"
    if inside and relative_to(root, path) is None:
        raise ProtocolError(f"the file {path!r} lies outside of the table", suggestion=_OUTSIDE)
    return plain


def resolve_all(root: str, paths: Sequence[str]) -> list[str]:
    """Where many data files lie: what `resolve` says of each.

    Raises:
        ProtocolError: As `resolve`.
    """
    if not paths:
        return []
    # one look at all of them is several times faster than a look at each
    joined = "\n".join(["", *paths, ""])
    if any(mark in joined for mark in _UNUSUAL):
        return [resolve(root, path) for path in paths]
    below = f"{_plain_root(root)}/"
    return [below + path for path in paths]


def relative_to(root: str, path: str) -> str | None:
    """The decoded path below the root, or None for a file that lies elsewhere.

    Raises:
        ProtocolError: The path is empty or climbs with ``..``.
    """
    plain = check_path(path)
    if not is_absolute(plain):
        return plain
    below = _same_scheme(_plain_root(root)) + "/"
    plain = _same_scheme(plain)
    return plain[len(below) :] or None if plain.startswith(below) else None


def file_below(root: str, path: str) -> str | None:
    """One name per file below the root, decoded; None for a file that lies elsewhere or has no valid path.

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


def check_path(path: str) -> str:
    """The canonical form of a path that may be a data file's.

    Raises:
        ProtocolError: It is empty, holds a NUL, or climbs with ``..``.
    """
    plain = canonical_path(path)
    if not plain or "\x00" in plain:
        raise ProtocolError(f"{path!r} is not a path of a data file", suggestion=_OUTSIDE)
    if ".." in plain and ".." in plain.replace("\\", "/").split("/"):
        raise ProtocolError(f"the path {path!r} climbs out of its folder", suggestion=_OUTSIDE)
    return plain


def _plain_root(root: str) -> str:
    # a root is an address, not a path of the log: only file: URIs are encoded
    plain = canonical_path(root) if _FILE.match(root) else root
    if not plain:
        raise ProtocolError("a table without a root has no data files")
    bare = plain.rstrip("/")
    return f"{bare}//" if bare.endswith(":") and is_url(plain) else bare


def _same_scheme(url: str) -> str:
    """Spark's names of S3 and Google storage are the stores' own ones."""
    for alias, name in (("s3a://", "s3://"), ("s3n://", "s3://"), ("gcs://", "gs://")):
        if url.startswith(alias):
            return name + url[len(alias) :]
    return url
