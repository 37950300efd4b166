"""Locations of tables: made absolute, and chosen for a table without one."""

from __future__ import annotations

import os
import re
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from deltalakedb.exceptions import AddressError
from deltalakedb.metastore import registry
from deltalakedb.storage.store import is_local

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database

AZURE_SCHEMES = ("az", "adl", "azure", "abfs", "abfss")
_SCHEMES = ("s3", "gs", *AZURE_SCHEMES)
#: what other engines call the same stores
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
ROOT_SETTING = "root"
#: the longest folder name in bytes, with room for a suffix and hidden names
_LONGEST_FOLDER = 200
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
#: what is left as it is in the URL of an object
SAFE_IN_URLS = "/-_.~!$&'()*+,;=:@"
#: what Rust leaves as it is when it makes a URL of a path
_SAFE_IN_PATHS = "/-_.~!$&'()*+,;=:@[]|^"


def normal_location(location: str | os.PathLike[str]) -> str:
    """A location in the one form the catalog keeps: an absolute path, or a URL without a trailing slash."""
    text = os.fspath(location)
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    if not is_local(text):
        return _normal_url(text)
    # links are not resolved: the location stays as the user spelled it
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111


def _normal_url(text: str) -> str:
    """A URL as the stores spell it themselves, and without secrets: it is kept in the database."""
    parts = urlsplit(text)
    container = parts.netloc.rpartition("@")[0]
    if parts.query or parts.fragment or ":" in container:
        raise AddressError(
            f"the location {parts.scheme}://{parts.hostname or ''}{parts.path} carries credentials or other "
            "parts that do not belong to a place",
            suggestion="give credentials as storage_options, in the settings, or in the environment",
        )
    scheme = _ALIASES.get(parts.scheme.lower(), parts.scheme.lower())
    if scheme not in _SCHEMES:
        raise AddressError(
            f"no object store is known by {scheme}://",
            suggestion=f"give a local path or a URL that begins with {', '.join(_SCHEMES)}",
        )
    path = quote(parts.path.rstrip("/"), safe=f"%{SAFE_IN_URLS}")
    return f"{scheme}://{parts.netloc}{path}"


def url_of(location: str) -> str:
    """A location as stock's ``table_uri`` writes it: a URL that ends with a slash."""
    if not is_local(location):
        return f"{location}/"
    return f"file://{quote(location.rstrip('/'), safe=_SAFE_IN_PATHS)}/"


def place_for(database: Database, name: str, location: str | None) -> str:
    """The location of a new table: the one given, else one under the catalog's root."""
    if location is not None:
        return _readable(normal_location(location), name)
    root = registry.setting(database, ROOT_SETTING) or database.engine.config.catalog.root
    if root is None:
        raise AddressError(
            f"the new table {name!r} needs a place for its files",
            table=name,
            suggestion="give it a location (location=… or &location=… in the address), or the catalog a root",
        )
    # a name may be longer than the 255 bytes that file systems accept
    parts = (part.encode()[:_LONGEST_FOLDER].decode(errors="ignore").rstrip() for part in name.split("."))
    *namespace, last = parts
    folder = "/".join([root.rstrip("/"), *namespace, f"{last}-{uuid.uuid4().hex[:8]}"])
    return _readable(normal_location(folder), name)


def _readable(location: str, name: str) -> str:
    """A location that other readers find: delta-rs decodes a path once more than it was encoded."""
    if is_local(location) and (found := _ESCAPE.search(location)) is not None:
        raise AddressError(
            f"the location {location} holds {found[0]}, which readers of Delta tables take for "
            f"{unquote(found[0], errors='replace')!r} and then look elsewhere",
            table=name,
            suggestion="choose a folder without a % before two hexadecimal digits; other % signs are fine",
        )
    return location
