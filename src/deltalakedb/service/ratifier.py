"""The ratifier: receives commits that other engines made, and answers in one word once they are published."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from deltalakedb.commit.request import NewTable
from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.delta_log.names import commit_path
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
from deltalakedb.mirror.commit_files import is_ratified
from deltalakedb.mirror.publisher import publish
from deltalakedb.service.places import Places, parse_path
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.rows import Table

logger = logging.getLogger(__name__)

#: how often a commit is tried again because other commits came in between
_ATTEMPTS: Final = 6
#: characters of an answer: a commit's own text may be part of it
_LONGEST_LINE: Final = 4000
#: commits that are published at a time
_AT_ONCE: Final = 200

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


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an engine.

    Attributes:
        word: ``committed``: the version is ratified and in the log. ``taken``: it is another commit's.
            ``published``: the log has everything that it may have. ``elsewhere``: no table of the catalog.
            ``held``: paused or frozen. ``refused``: the commit is not allowed. ``later``: ask again.
        text: The same in one line, with what to do.
    """

    word: Word
    text: str

    @property
    def status(self) -> HTTPStatus:
        """The status of an HTTP answer."""
        return _STATUS[self.word]


class Ratifier:
    """Commits of other engines to the tables of a catalog. Any number of threads may call it.

    Args:
        database: The catalog.
        tables: Names of tables that may be created, with their locations.
    """

    def __init__(self, database: Database, tables: Mapping[str, str] | None = None) -> None:
        self._database = database
        self._coordinator = Coordinator(database)
        self._places = Places(database, tables)

    @property
    def database(self) -> Database:
        """The catalog."""
        return self._database

    def publish(self, path: str) -> Answer:
        """Publish everything that is ratified of a table, before an engine lists its log.

        Args:
            path: The URI of any file in the log.
        """
        try:
            location = parse_path(path).location
            table = None if location is None else self._places.table(location)
            if table is None:
                return Answer("elsewhere", "the location belongs to no table of the catalog")
            return self._publish(table) or Answer("published", f"{table.name} is published")
        except DeltaSqlError as error:
            return _failed(error)

    def commit(self, path: str, data: bytes) -> Answer:
        """Ratify and publish one commit. Sent again with the same bytes, it is answered as before.

        Args:
            path: The URI of the commit file, which names table and version.
            data: What is to be in it.
        """
        try:
            at = parse_path(path)
            version = at.version
            if version is None:
                return Answer("refused", f"{at.name!r} is not the name of a commit file")
            if at.location is None:
                return Answer("elsewhere", "no catalog can have a table there")
            for _ in range(_ATTEMPTS):
                answer = self._attempt(at.location, version, data)
                if answer is not None:
                    return answer
        except DeltaSqlError as error:
            return _failed(error)
        return Answer("later", "other commits to the table kept coming in between; send this one again")

    def _attempt(self, location: str, version: int, data: bytes) -> Answer | None:
        """Try once; None if the table changed meanwhile."""
        table = self._places.table(location)
        if table is None:
            try:
                answer = self._create(location, version, data)
            except DeltaSqlError as error:
                answer = _failed(error)
            return _left(answer) if answer is not None and answer.word == "refused" else answer
        if version <= table.head.version:
            return self._taken(table, version, data)
        return self._held(table) or self._receive(table, version, data)

    def _create(self, location: str, version: int, data: bytes) -> Answer | None:
        """Version 0 of a table that the catalog does not know yet."""
        name = self._places.new_name(location) if version == 0 else None
        options = self._coordinator.storage_options(location)
        if name is None or open_store(location, options).exists(commit_path(0)):
            return Answer("elsewhere", "the location belongs to no table of the catalog")
        if outbox.all_paused(self._database):
            return Answer(
                "held", "publishing is paused for the whole catalog; `deltasql mirror resume` ends that"
            )
        try:
            return self._receive(NewTable(name, location), version, data)
        except TableExistsError as error:
            return None if self._places.table(location) is not None else _refusal(error)

    def _receive(self, table: Table | NewTable, version: int, data: bytes) -> Answer | None:
        done = self._coordinator.receive(table, version, data)
        if done is None:
            return None
        logger.info("%s: version %d is ratified, %d bytes", table.name, version, len(data))
        _, published = done
        if version in published.versions:
            return Answer("committed", f"{table.name} has version {version}")
        return self._shown(registry.find(self._database, table.name), version)

    def _shown(self, table: Table, version: int) -> Answer:
        """The answer to a commit that stands: its writer looks for the file at once."""
        trouble = self._publish(table)
        status = outbox.status_of(self._database, table.name)
        if status is None or status.published_version >= version:
            return Answer("committed", f"{table.name} has version {version}")
        why = trouble or _hold(status) or Answer("later", "another process is about to publish it")
        stands = f"version {version} of {table.name} is ratified and stands, but is not in the log yet"
        return Answer(why.word, f"{stands}: {why.text}")

    def _taken(self, table: Table, version: int, data: bytes) -> Answer | None:
        """The answer for a version that exists: this very commit, sent again, or another one."""
        if is_ratified(self._database, table, version, data):
            logger.info("%s: version %d was sent again", table.name, version)
            return self._shown(table, version)
        if (missing := self._publish(table) or self._held(table)) is not None:
            return missing  # its writer could not read the winner
        if version == 0:
            store = open_store(table.location, self._coordinator.storage_options(table.location))
            if not store.exists(commit_path(table.head.version)):
                return _refusal(_deleted(table))
        logger.info("%s: version %d is taken", table.name, version)
        return Answer("taken", f"{table.name} has another version {version}")

    def _publish(self, table: Table) -> Answer | None:
        """Publish what waits; an answer if that is not possible now, and may be later."""
        options = self._coordinator.storage_options(table.location)
        while True:
            done = publish(self._database, table, storage_options=options, limit=_AT_ONCE)
            if done.error is not None:
                return Answer("later", _line(done.error))
            if not done.more:
                return None

    def _held(self, table: Table) -> Answer | None:
        """Why a table takes no commits of other engines now."""
        status = outbox.status_of(self._database, table.name)
        return None if status is None else _hold(status)


def _hold(status: MirrorStatus) -> Answer | None:
    if status.state == "frozen":
        return Answer("held", f"the table {status.table} is frozen: {status.state_reason}; {FROZEN_HINT}")
    if status.state == "importing":
        return Answer(
            "held", f"the table {status.table} is being imported; `deltasql import-status` shows how far"
        )
    if status.paused:
        return Answer(
            "held",
            f"publishing of the table {status.table} is paused, and Spark could not see its own commit; "
            f"`deltasql mirror resume {status.table}` (or without a name, for the whole catalog) ends that",
        )
    return None


def _deleted(table: Table) -> TableExistsError:
    return TableExistsError(
        f"the catalog has the table {table.name} at version {table.head.version}, and its files are gone",
        table=table.name,
        suggestion=f"`deltasql drop {table.name}` lets the catalog forget it, then it can be created anew; "
        f"`deltasql mirror repair {table.name}` writes its log again",
    )


def _failed(error: DeltaSqlError) -> Answer:
    """The answer to an error: what cannot be decided is never a yes."""
    if isinstance(error, TableFrozenError):
        return Answer("held", _line(error))
    if isinstance(
        error, ProtocolError | LogCorruptError | AddressError | InvalidArgumentError | TableExistsError
    ):
        return _refusal(error)
    logger.error("%s", _line(error))
    return Answer("later", _line(error))


def _refusal(error: DeltaSqlError) -> Answer:
    logger.warning("refused: %s", _line(error))
    return Answer("refused", _line(error))


def _left(answer: Answer) -> Answer:
    """A refused table: its writer has put its data files there before it asked."""
    return replace(
        answer, text=f"{answer.text}; data files that this write put there stay, and may be deleted"
    )


def _line(error: DeltaSqlError) -> str:
    """An error in one line of a bounded length."""
    return " ".join(str(error).replace("\n  → ", "; ").split())[:_LONGEST_LINE]
