"""The ratifier: receives commits that other engines made, and answers in one word once they are published."""

from __future__ import annotations

import logging
import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from deltalakedb.address import BAD_CHARACTER, validate_table_name
from deltalakedb.commit.request import NewTable
from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.delta_log.names import LOG_FOLDER, commit_path, parse_name
from deltalakedb.exceptions import (
    FROZEN_HINT,
    AddressError,
    DeltaSqlError,
    InvalidArgumentError,
    LogCorruptError,
    ProtocolError,
    TableExistsError,
    TableFrozenError,
)
from deltalakedb.metastore import outbox, registry
from deltalakedb.mirror.drift import is_ratified
from deltalakedb.mirror.publisher import publish
from deltalakedb.storage.store import open_store
from deltalakedb.table.locations import ROOT_SETTING, is_local, normal_location

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table

logger = logging.getLogger(__name__)

#: how often a commit is tried again because other commits came in between
_ATTEMPTS: Final = 6
#: characters of an answer: a commit's own text may be part of it
_LONGEST_LINE: Final = 4000
#: the suffix of a database's folder in Spark's warehouse
_DATABASE_FOLDER: Final = ".db"
#: prefixes of folders that are not tables
_HIDDEN: Final = ("_", ".")
_AZURE: Final = ("az", "adl", "azure", "abfs", "abfss")

Word = Literal["committed", "taken", "published", "elsewhere", "held", "refused", "later"]
_STATUS: Final[Mapping[Word, HTTPStatus]] = {
    "committed": HTTPStatus.OK,
    "published": HTTPStatus.OK,
    "taken": HTTPStatus.CONFLICT,
    "elsewhere": HTTPStatus.NOT_FOUND,
    "held": HTTPStatus.LOCKED,
    "refused": HTTPStatus.UNPROCESSABLE_ENTITY,
    "later": HTTPStatus.SERVICE_UNAVAILABLE,
}
#: errors that decide about a commit; after any other the caller tries again
_REFUSALS: Final = (ProtocolError, LogCorruptError, AddressError, InvalidArgumentError, TableExistsError)


class Answer(NamedTuple):
    """The answer to an engine.

    Attributes:
        word: ``committed``: the version is ratified and in the log. ``taken``: it is another commit's.
            ``published``: the log has everything that it may have. ``elsewhere``: no table of the catalog.
            ``held``: paused or frozen. ``refused``: the commit is not allowed. ``later``: try again.
        text: The same in one line, with what to do.
    """

    word: Word
    text: str

    @property
    def status(self) -> HTTPStatus:
        return _STATUS[self.word]


_ELSEWHERE: Final = Answer("elsewhere", "the location belongs to no table of the catalog")


class Ratifier:
    """Commits of other engines to the tables of a catalog. Any number of threads may call it.

    Args:
        database: The catalog.
        tables: Names of tables that may be created, with their locations.
    """

    def __init__(self, database: Database, tables: Mapping[str, str] | None = None) -> None:
        self.database = database
        self._coordinator = Coordinator(database)
        self._locations = TableLocations(database, tables or {})

    def publish(self, path: str) -> Answer:
        """Publish everything that is ratified of a table, before an engine lists its log.

        The path is the URI of any file in the log.
        """
        try:
            location, _ = parse_log_uri(path)
            table = None if location is None else self._locations.find(location)
            if table is None:
                return _ELSEWHERE
            return self._publish(table) or Answer("published", f"{table.name} is published")
        except DeltaSqlError as error:
            return _failed(error)

    def commit(self, path: str, data: bytes) -> Answer:
        """Ratify and publish one commit. Sent again with the same bytes, it is answered as before.

        The path is the URI of the commit file, which names table and version.
        """
        try:
            location, name = parse_log_uri(path)
            if (file := parse_name(name)) is None or file.kind != "commit":
                return Answer("refused", f"{name!r} is not the name of a commit file")
            if location is None:
                return _ELSEWHERE
            for _ in range(_ATTEMPTS):
                if (answer := self._attempt(location, file.version, data)) is not None:
                    return answer
        except DeltaSqlError as error:
            return _failed(error)
        return Answer("later", "other commits to the table kept coming in between; send this one again")

    def _attempt(self, location: str, version: int, data: bytes) -> Answer | None:
        """Try once; None if the table changed meanwhile."""
        table = self._locations.find(location)
        if table is None:
            try:
                answer = self._create(location, version, data)
            except DeltaSqlError as error:
                answer = _failed(error)
            if answer is None or answer.word != "refused":
                return answer
            # the writer wrote its data files before it sent the commit
            left = "data files that this write put there stay, and may be deleted"
            return Answer("refused", f"{answer.text}; {left}")
        if version <= table.head.version:
            return self._existing(table, version, data)
        return self._held(table) or self._receive(table, version, data)

    def _create(self, location: str, version: int, data: bytes) -> Answer | None:
        """Version 0 of a table that the catalog does not know yet."""
        name = self._locations.new_name(location) if version == 0 else None
        if name is None or self._has(location, 0):
            return _ELSEWHERE
        if outbox.all_paused(self.database):
            return Answer(
                "held", "publishing is paused for the whole catalog; `deltasql mirror resume` ends that"
            )
        try:
            return self._receive(NewTable(name, location), version, data)
        except TableExistsError:
            if self._locations.find(location) is None:
                raise
            return None

    def _receive(self, table: Table | NewTable, version: int, data: bytes) -> Answer | None:
        done = self._coordinator.receive(table, version, data)
        if done is None:
            return None
        logger.info("%s: version %d is ratified, %d bytes", table.name, version, len(data))
        if version in done[1].versions:
            return Answer("committed", f"{table.name} has version {version}")
        return self._ratified(registry.find(self.database, table.name), version)

    def _ratified(self, table: Table, version: int) -> Answer:
        """The answer to a ratified commit, whose writer looks for the file at once."""
        trouble = self._publish(table)
        status = outbox.status_of(self.database, table.name)
        if status is None or status.published_version >= version:
            return Answer("committed", f"{table.name} has version {version}")
        later = Answer("later", "another process is about to publish it")
        why = trouble or self._held(table) or later
        stands = f"version {version} of {table.name} is ratified and stands, but is not in the log yet"
        return Answer(why.word, f"{stands}: {why.text}")

    def _existing(self, table: Table, version: int, data: bytes) -> Answer | None:
        """The answer for a version that exists: this very commit, sent again, or another one."""
        if is_ratified(self.database, table, version, data):
            logger.info("%s: version %d was sent again", table.name, version)
            return self._ratified(table, version)
        if (missing := self._publish(table) or self._held(table)) is not None:
            return missing  # its writer could not read the winner
        if version == 0 and not self._has(table.location, table.head.version):
            raise TableExistsError(
                f"the catalog has the table {table.name} at version {table.head.version}, and its files are "
                "gone",
                table=table.name,
                suggestion=f"`deltasql drop {table.name}` removes it from the catalog, so that it can be "
                f"created again; `deltasql mirror repair {table.name}` writes its log again",
            )
        logger.info("%s: version %d is taken", table.name, version)
        return Answer("taken", f"{table.name} has another version {version}")

    def _publish(self, table: Table) -> Answer | None:
        """Publish what waits; an answer if that is not possible now, and may be later."""
        options = self._coordinator.storage_options(table.location)
        done = publish(self.database, table, storage_options=options)
        return None if done.error is None else Answer("later", _line(done.error))

    def _held(self, table: Table) -> Answer | None:
        """The answer of a table that takes no commits of other engines now."""
        status = outbox.status_of(self.database, table.name)
        if status is None:
            return None
        if status.state == "frozen":
            why = f"the table {table.name} is frozen: {status.state_reason}; {FROZEN_HINT}"
        elif status.state == "importing":
            why = f"the table {table.name} is being imported; `deltasql import-status` shows how far"
        elif status.paused:
            why = (
                f"publishing of the table {table.name} is paused, and Spark could not see its own commit; "
                f"`deltasql mirror resume {table.name}` (or without a name, for the whole catalog) ends that"
            )
        else:
            return None
        return Answer("held", why)

    def _has(self, location: str, version: int) -> bool:
        store = open_store(location, self._coordinator.storage_options(location))
        return store.exists(commit_path(version))


def _failed(error: DeltaSqlError) -> Answer:
    """The answer to an error: what cannot be decided is never a yes."""
    if isinstance(error, TableFrozenError):
        return Answer("held", _line(error))
    word: Word = "refused" if isinstance(error, _REFUSALS) else "later"
    logger.log(logging.WARNING if word == "refused" else logging.ERROR, "%s: %s", word, _line(error))
    return Answer(word, _line(error))


def _line(error: DeltaSqlError) -> str:
    """An error in one line of a bounded length."""
    return " ".join(str(error).replace("\n  → ", "; ").split())[:_LONGEST_LINE]


# ---- tables by location ------------------------------------------------------------------------------------


def parse_log_uri(text: str) -> tuple[str | None, str]:
    """A table's root and the name of a file in its `_delta_log`, from the file's URI.

    The URI is percent-encoded as by Hadoop's ``Path.toUri()``. The root is None if no catalog can have a
    table there.
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
        return normal_location(unquote(root)), unquote(name)
    try:
        return normal_location(f"{parts.scheme}://{parts.netloc}{root}"), unquote(name)
    except AddressError:
        return None, unquote(name)  # a file system that no catalog knows


class TableLocations:
    """The tables of a catalog by location, and the locations where new ones may be created."""

    def __init__(self, database: Database, named: Mapping[str, str]) -> None:
        self._database = database
        self._named = {_key(normal_location(at)): validate_table_name(name) for name, at in named.items()}

    def find(self, location: str) -> Table | None:
        """The table at a location, also if a link or another scheme leads to it."""
        if (found := registry.find_location(self._database, location)) is not None:
            return found
        key = _key(location)
        for other, table in self._tables():
            if other == key:
                return table
            if _may_be_same(key, other):
                raise AddressError(
                    f"{location} may be the table {table.name} at {table.location}: one names no account",
                    table=table.name,
                    suggestion="let both name it: abfss://container@account.dfs.core.windows.net/…",
                )
        return None

    def new_name(self, location: str) -> str | None:
        """The name for a new table at a location; None if the location is not managed by the catalog."""
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

    def _tables(self) -> Iterator[tuple[str, Table]]:
        return ((_key(table.location), table) for table in registry.list_tables(self._database))

    def _refuse_nesting(self, location: str, key: str, root: str | None) -> None:
        """Refuse a table around or inside another: a vacuum of the outer would delete the inner's files."""
        if root is not None and (key == root or _is_below(root, key)):
            what = "is the catalog's root" if key == root else f"has the catalog's root {root} in it"
            raise AddressError(
                f"{location} {what}: a table there would contain all others",
                suggestion=f"write to a folder below it: {root.rstrip('/')}/NAME becomes the table NAME",
            )
        for other, table in self._tables():
            inside = key.removeprefix(f"{other}/").split("/")
            if _is_below(other, key):
                what = f"has the table {table.name} in it, at {table.location}"
                hint = "write to a folder without other tables in it"
            elif _is_below(key, other) and not any(part.startswith(_HIDDEN) for part in inside):
                what = f"is inside the folder of the table {table.name} at {table.location}"
                hint = "write to a folder beside it, or to the table's own"
            else:
                continue
            raise AddressError(f"{location} {what}", table=table.name, suggestion=hint)


def _is_below(key: str, other: str) -> bool:
    return key.startswith(f"{other.rstrip('/')}/") and key != other


def _key(location: str) -> str:
    """One text for all spellings of a location; in Azure ``az://container@account/path``."""
    if is_local(location):
        return os.path.realpath(location)
    if location.partition("://")[0] not in _AZURE:
        return location
    parts = urlsplit(location)
    container, _, account = parts.netloc.partition("@")
    return f"az://{container}@{account.partition('.')[0]}{parts.path}"


def _may_be_same(key: str, other: str) -> bool:
    """Whether two locations in Azure differ only in that one names no account, such as az://container/…."""
    if not (key.startswith("az://") and other.startswith("az://")):
        return False
    (box, _, mine), (same, _, theirs) = key.partition("@"), other.partition("@")
    (account, _, path), (another, _, elsewhere) = mine.partition("/"), theirs.partition("/")
    return (box, path) == (same, elsewhere) and not (account and another)
