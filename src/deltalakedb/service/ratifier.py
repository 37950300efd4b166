"""The ratifier: ratifies and publishes commits of other engines, and answers with one word."""

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
from deltalakedb.storage.store import is_local, open_store
from deltalakedb.table.locations import AZURE_SCHEMES, ROOT_SETTING, normal_location

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table

logger = logging.getLogger(__name__)

#: maximum number of attempts, if other commits get in first
_ATTEMPTS: Final = 6
#: maximum length of an answer, which may quote the commit
_LONGEST_LINE: Final = 4000
#: the suffix of a database's folder in Spark's warehouse
_DATABASE_FOLDER: Final = ".db"
#: prefixes of folders that are not tables
_HIDDEN: Final = ("_", ".")

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
#: errors that are final for a commit; after any other the client tries again
_REFUSALS: Final = (ProtocolError, LogCorruptError, AddressError, InvalidArgumentError, TableExistsError)


class Answer(NamedTuple):
    """The answer to an engine.

    Attributes:
        word: ``committed``: the version is ratified and in the log. ``taken``: another commit has it.
            ``published``: the log has every ratified commit. ``elsewhere``: not a table of the catalog.
            ``held``: paused, frozen or importing. ``refused``: the commit is invalid. ``later``: try again.
        text: One line that says what happened and what to do.
    """

    word: Word
    text: str

    @property
    def status(self) -> HTTPStatus:
        return _STATUS[self.word]


_ELSEWHERE: Final = Answer("elsewhere", "the location belongs to no table of the catalog")


class Ratifier:
    """Ratifies commits of other engines to the tables of a catalog. It is thread-safe.

    Args:
        database: The catalog.
        tables: Names of tables that may be created, with their locations.
    """

    def __init__(self, database: Database, tables: Mapping[str, str] | None = None) -> None:
        self.database = database
        self._coordinator = Coordinator(database)
        self._locations = TableLocations(database, tables or {})

    def publish(self, path: str) -> Answer:
        """Publish all ratified commits of a table, before an engine lists its log.

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
        """Ratify and publish one commit. The same bytes sent again get the same answer.

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
        return Answer("later", "other writers kept committing to the table first; send this commit again")

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
            left = "the data files of this write are still there, and may be deleted"
            return Answer("refused", f"{answer.text}; {left}")
        if version <= table.head.version:
            return self._existing(table, version, data)
        return self._held(table) or self._receive(table, version, data)

    def _create(self, location: str, version: int, data: bytes) -> Answer | None:
        """Commit version 0 of a table that the catalog does not know yet."""
        name = self._locations.new_name(location) if version == 0 else None
        if name is None or self._has(location, 0):
            return _ELSEWHERE
        if outbox.all_paused(self.database):
            return Answer("held", "publishing is paused for the whole catalog; run `deltasql mirror resume`")
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
        """The answer for a ratified commit; its writer expects the file in the log."""
        trouble = self._publish(table)
        status = outbox.status_of(self.database, table.name)
        if status is None or status.published_version >= version:
            return Answer("committed", f"{table.name} has version {version}")
        later = Answer("later", "another process is about to publish it")
        why = trouble or self._held(table) or later
        unpublished = f"version {version} of {table.name} is ratified, but not in the log yet"
        return Answer(why.word, f"{unpublished}: {why.text}")

    def _existing(self, table: Table, version: int, data: bytes) -> Answer | None:
        """The answer for a version that exists: the same commit, sent again, or another one."""
        if is_ratified(self.database, table, version, data):
            logger.info("%s: version %d was sent again", table.name, version)
            return self._ratified(table, version)
        if (missing := self._publish(table) or self._held(table)) is not None:
            return missing  # the writer could not read the version
        if version == 0 and not self._has(table.location, table.head.version):
            raise TableExistsError(
                f"the catalog has the table {table.name} at version {table.head.version}, but its files are "
                "missing",
                table=table.name,
                suggestion=f"`deltasql drop {table.name}` removes it from the catalog, so that it can be "
                f"created again; `deltasql mirror repair {table.name}` rewrites its log",
            )
        logger.info("%s: version %d is taken", table.name, version)
        return Answer("taken", f"{table.name} has another version {version}")

    def _publish(self, table: Table) -> Answer | None:
        """Publish unpublished commits; return an answer only if that failed."""
        options = self._coordinator.storage_options(table.location)
        done = publish(self.database, table, storage_options=options)
        return None if done.error is None else Answer("later", _line(done.error))

    def _held(self, table: Table) -> Answer | None:
        """The answer if a table does not accept commits of other engines now."""
        status = outbox.status_of(self.database, table.name)
        if status is None:
            return None
        if status.state == "frozen":
            why = f"the table {table.name} is frozen: {status.state_reason}; {FROZEN_HINT}"
        elif status.state == "importing":
            why = f"the table {table.name} is being imported; `deltasql import-status` shows the progress"
        elif status.paused:
            why = (
                f"publishing of the table {table.name} is paused, so Spark could not see its own commit; "
                f"run `deltasql mirror resume {table.name}` (or without a name, for the whole catalog)"
            )
        else:
            return None
        return Answer("held", why)

    def _has(self, location: str, version: int) -> bool:
        store = open_store(location, self._coordinator.storage_options(location))
        return store.exists(commit_path(version))


def _failed(error: DeltaSqlError) -> Answer:
    """The answer for an error, which never means that the commit succeeded."""
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
        return None, unquote(name)  # an unsupported file system


class TableLocations:
    """The tables of a catalog by location, and the locations where new ones may be created."""

    def __init__(self, database: Database, named: Mapping[str, str]) -> None:
        self._database = database
        self._named = {_key(normal_location(at)): validate_table_name(name) for name, at in named.items()}

    def find(self, location: str) -> Table | None:
        """The table at a location, also by a link or another scheme."""
        if (found := registry.find_location(self._database, location)) is not None:
            return found
        key = _key(location)
        for other, table in self._tables():
            if other == key:
                return table
            if _may_be_same(key, other):
                raise AddressError(
                    f"{location} may be the table {table.name} at {table.location}: one has no account",
                    table=table.name,
                    suggestion="use URLs with the account for both: abfss://container@account.dfs.core.windows.net/…",
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
            return None  # scratch tables, and internal folders of engines
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
        """Refuse nested tables: a vacuum of the outer one would delete files of the inner one."""
        if root is not None and (key == root or _is_below(root, key)):
            what = "is the catalog's root" if key == root else f"contains the catalog's root {root}"
            raise AddressError(
                f"{location} {what}: a table there would contain all others",
                suggestion=f"write to a folder below it: {root.rstrip('/')}/NAME becomes the table NAME",
            )
        for other, table in self._tables():
            inside = key.removeprefix(f"{other}/").split("/")
            if _is_below(other, key):
                what = f"contains the table {table.name} at {table.location}"
                hint = "write to a folder that contains no other tables"
            elif _is_below(key, other) and not any(part.startswith(_HIDDEN) for part in inside):
                what = f"is inside the folder of the table {table.name} at {table.location}"
                hint = "write to a folder beside it, or to the table itself"
            else:
                continue
            raise AddressError(f"{location} {what}", table=table.name, suggestion=hint)


def _is_below(key: str, other: str) -> bool:
    return key.startswith(f"{other.rstrip('/')}/") and key != other


def _key(location: str) -> str:
    """The canonical form of a location; in Azure ``az://container@account/path``."""
    if is_local(location):
        return os.path.realpath(location)
    if location.partition("://")[0] not in AZURE_SCHEMES:
        return location
    parts = urlsplit(location)
    container, _, account = parts.netloc.partition("@")
    return f"az://{container}@{account.partition('.')[0]}{parts.path}"


def _may_be_same(key: str, other: str) -> bool:
    """Whether two locations in Azure differ only in that one has no account, such as az://container/…."""
    if not (key.startswith("az://") and other.startswith("az://")):
        return False
    (box, _, mine), (same, _, theirs) = key.partition("@"), other.partition("@")
    (account, _, path), (another, _, elsewhere) = mine.partition("/"), theirs.partition("/")
    return (box, path) == (same, elsewhere) and not (account and another)
