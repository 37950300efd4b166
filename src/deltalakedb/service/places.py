"""From the path of a log file, however an engine spells it, to the table it belongs to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from deltalakedb.address import BAD_CHARACTER, validate_table_name
from deltalakedb.delta_log.names import LOG_FOLDER, parse_name
from deltalakedb.exceptions import AddressError, InvalidArgumentError
from deltalakedb.metastore import registry
from deltalakedb.table.locations import ROOT_SETTING, is_local, normal_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table

#: the suffix of a database's folder in Spark's warehouse
_DATABASE_FOLDER: Final = ".db"
#: prefixes of folders that are not tables
_HIDDEN: Final = ("_", ".")
_AZURE: Final = ("az", "adl", "azure", "abfs", "abfss")


@dataclass(frozen=True, slots=True)
class LogPath:
    """A path in a table's log.

    Attributes:
        location: The table's root, as the catalog spells it; None if no catalog can have a table there.
        name: The file's name.
    """

    location: str | None
    name: str

    @property
    def version(self) -> int | None:
        """The version of a commit; None for other files."""
        found = parse_name(self.name)
        return found.version if found is not None and found.kind == "commit" else None


def parse_path(text: str) -> LogPath:
    """Parse the URI of a file in `_delta_log`, percent-encoded as by Hadoop's ``Path.toUri()``.

    Raises:
        InvalidArgumentError: It is not the URI of a file in a log.
    """
    if BAD_CHARACTER.search(unquote(text)):
        raise InvalidArgumentError("the path contains a control character")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidArgumentError("the path is not a URI") from error
    folder, _, name = parts.path.rpartition("/")
    root, slash, log = folder.rpartition("/")
    local = parts.scheme in ("", "file")
    if log != LOG_FOLDER or not slash or not name or (local and not root.startswith("/")):
        raise InvalidArgumentError(
            "the path is not a file in a table's _delta_log",
            suggestion="send the whole URI, such as file:/lake/orders/_delta_log/00000000000000000000.json",
        )
    if local:
        return LogPath(normal_location(unquote(root)), unquote(name))
    try:
        return LogPath(normal_location(f"{parts.scheme}://{parts.netloc}{root}"), unquote(name))
    except AddressError:
        return LogPath(None, unquote(name))  # a file system that no catalog knows


class Places:
    """The tables of a catalog by location, and the locations where new ones may be created.

    Args:
        database: The catalog.
        named: Names of tables that may be created, with their locations.
    """

    def __init__(self, database: Database, named: Mapping[str, str] | None = None) -> None:
        self._database = database
        self._named = {_key(normal_location(at)): validate_table_name(n) for n, at in (named or {}).items()}

    def table(self, location: str) -> Table | None:
        """The table at a location, also if a link or another scheme leads to it."""
        found = registry.find_location(self._database, location)
        if found is not None:
            return found
        key = _key(location)
        for table in registry.list_tables(self._database):
            other = _key(table.location)
            if other == key:
                return table
            if _is_azure(key) and _is_azure(other) and _may_be_same(key, other):
                raise AddressError(
                    f"{location} may be the table {table.name} at {table.location}: one names no account",
                    table=table.name,
                    suggestion="let both name it: abfss://container@account.dfs.core.windows.net/…",
                )
        return None

    def new_name(self, location: str) -> str | None:
        """The name for a new table at a location; None if the location is not managed by the catalog.

        Raises:
            AddressError: A table there would contain others or be inside one, or its folders make no name.
        """
        key = _key(location)
        root = registry.setting(self._database, ROOT_SETTING) or self._database.engine.config.catalog.root
        above = None if root is None else _key(normal_location(root))
        self._refuse_nesting(location, key, above)
        if (named := self._named.get(key)) is not None:
            return named
        if above is None or not _is_below(key, above):
            return None
        *folders, last = key.removeprefix(f"{above}/").split("/")
        if any(part.startswith(_HIDDEN) for part in (*folders, last)):
            return None  # scratch tables, and folders that engines keep for themselves
        parts = [*(folder.removesuffix(_DATABASE_FOLDER) for folder in folders), last]
        if any("." in part for part in parts):
            raise AddressError(
                f"no table can be named after the folder {'/'.join((*folders, last))}",
                suggestion="use folder names without dots, or `deltasql serve --table NAME=LOCATION`",
            )
        return validate_table_name(".".join(parts))

    def _refuse_nesting(self, location: str, key: str, root: str | None) -> None:
        """Refuse a table around or inside another: a vacuum of the outer would delete the inner's files."""
        if root is not None and (key == root or _is_below(root, key)):
            what = "is the catalog's root" if key == root else f"has the catalog's root {root} in it"
            raise AddressError(
                f"{location} {what}: a table there would contain all others",
                suggestion=f"write to a folder of its own: {root.rstrip('/')}/NAME becomes the table NAME",
            )
        for table in registry.list_tables(self._database):
            other = _key(table.location)
            if _is_below(other, key):
                raise AddressError(
                    f"{location} has the table {table.name} in it, at {table.location}",
                    table=table.name,
                    suggestion="write to a folder without other tables in it",
                )
            inside = key.removeprefix(f"{other}/").split("/") if _is_below(key, other) else []
            if inside and not any(part.startswith(_HIDDEN) for part in inside):
                raise AddressError(
                    f"{location} is inside the folder of the table {table.name} at {table.location}",
                    table=table.name,
                    suggestion="write to a folder beside it, or to the table's own",
                )


def _is_below(key: str, other: str) -> bool:
    return key.startswith(f"{other.rstrip('/')}/") and key != other


def _key(location: str) -> str:
    """One text for all spellings of a location."""
    if is_local(location):
        return os.path.realpath(location)
    if not _is_azure(location):
        return location
    parts = urlsplit(location)
    container, _, account = parts.netloc.partition("@")
    return f"az://{container}@{account.partition('.')[0]}{parts.path}"


def _is_azure(location: str) -> bool:
    return location.partition("://")[0] in _AZURE


def _may_be_same(key: str, other: str) -> bool:
    """Whether two locations in Azure differ only in that one names no account, such as az://container/…."""
    one, two = urlsplit(key), urlsplit(other)
    accounts = {part.netloc.partition("@")[2] for part in (one, two)}
    bare = {(part.netloc.partition("@")[0], part.path) for part in (one, two)}
    return "" in accounts and len(bare) == 1
