"""Where tables lie: locations made absolute, and a place for a table that names none."""

from __future__ import annotations

import os
import re
import uuid
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from deltalakedb.catalog import registry
from deltalakedb.exceptions import AddressError, UnsupportedOperationError

if TYPE_CHECKING:
    from deltalakedb.catalog.database import Database

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
ROOT_SETTING = "root"


def normal_location(location: str | os.PathLike[str]) -> str:
    """A location in the one form the catalog keeps: an absolute path, or a URL without a trailing slash."""
    text = os.fspath(location)
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    if _SCHEME.match(text):
        return text.rstrip("/")
    # not resolved: a location may be a link on purpose, and must stay what the user called it
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111


def is_local(location: str) -> bool:
    """Whether a location is on this machine's file system."""
    return not _SCHEME.match(location)


def local_root(location: str, *, table: str | None = None) -> str:
    """A location that must be local."""
    if not is_local(location):
        raise UnsupportedOperationError(
            f"tables on object stores are not served yet: {location}",
            table=table,
            suggestion="use a location on a local or mounted disk",
        )
    return location


def place_for(database: Database, name: str, location: str | None) -> str:
    """The location of a new table: the one given, else one under the catalog's root."""
    if location is not None:
        return local_root(normal_location(location), table=name)
    root = registry.setting(database, ROOT_SETTING) or database.engine.config.catalog.root
    if root is None:
        raise AddressError(
            f"the new table {name!r} needs a place for its files",
            table=name,
            suggestion="give it a location (location=… or &location=… in the address), or the catalog a root",
        )
    *namespace, last = name.split(".")
    folder = "/".join([root.rstrip("/"), *namespace, f"{last}-{uuid.uuid4().hex[:8]}"])
    return local_root(normal_location(folder), table=name)
