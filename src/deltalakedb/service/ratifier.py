"""The ratifier: takes commits that other engines made, decides in SQL, and publishes before it answers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from deltalakedb.commit.changes import NewTable, Received, TableChange
from deltalakedb.commit.committer import LogAheadError, commit
from deltalakedb.commit.info import info_of
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
    TableMissingError,
)
from deltalakedb.metastore import commits, outbox, registry, snapshots
from deltalakedb.mirror.folder import require_folder
from deltalakedb.mirror.fresh import publish_fresh
from deltalakedb.mirror.outside import has_next, look_ahead
from deltalakedb.mirror.publisher import publish
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.protocol.received import decode_received
from deltalakedb.protocol.txn_log import Conflict
from deltalakedb.service.places import Places, parse_path
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.txn_log import Committed

logger = logging.getLogger(__name__)

#: how often a commit is looked at anew because somebody else was faster
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
    """What an engine is told.

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
        self._places = Places(database, tables)

    @property
    def database(self) -> Database:
        """The catalog."""
        return self._database

    def publish(self, path: str) -> Answer:
        """See that a table's log has everything that is ratified, before somebody lists it.

        Args:
            path: The URI of any file in the log.
        """
        try:
            location = parse_path(path).location
            table = None if location is None else self._places.table(location)
            if table is None:
                return Answer("elsewhere", "the place belongs to no table of the catalog")
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
        return Answer("later", "others commit to the table faster than this commit can be looked at")

    def _attempt(self, location: str, version: int, data: bytes) -> Answer | None:
        """Try once; None where the table changed meanwhile."""
        table = self._places.table(location)
        if table is None:
            try:
                answer = self._create(location, version, data)
            except DeltaSqlError as error:
                answer = _failed(error)
            return _left(answer) if answer is not None and answer.word == "refused" else answer
        if version <= table.head.version:
            return self._taken(table, version, data)
        if (held := self._held(table)) is not None:
            return held
        # other engines write their data first, and make a missing folder by that
        require_folder(self._database, table, open_store(table.location, self._options(table)), log=True)
        if version > table.head.version + 1:
            # only a log that somebody else wrote to can be further than the catalog
            if look_ahead(self._database, table, self._options(table)):
                return None
            return _refusal(_gap(table, version))
        try:
            opened = snapshots.open_table(self._database, table.name)
        except TableMissingError:
            return None
        if opened.snapshot.version != version - 1:
            return None
        before = opened.snapshot
        actions = decode_received(data, version=version, protocol=before.protocol, metadata=before.metadata)
        change = TableChange(
            opened.table,
            actions,
            opened.snapshot,
            NOTHING if _is_blind(actions) else EVERYTHING,
            exact=True,
            received=Received(data),
        )
        done = self._ratify(change)
        return None if done is None else self._committed(table, version, done, data)

    def _create(self, location: str, version: int, data: bytes) -> Answer | None:
        """Version 0 of a table that the catalog does not know yet."""
        name = self._places.new_name(location) if version == 0 else None
        options = self._database.engine.config.storage_options_for(location)
        if name is None or open_store(location, options).exists(commit_path(0)):
            return Answer("elsewhere", "the place belongs to no table of the catalog")
        if outbox.all_paused(self._database):
            return Answer(
                "held", "publishing stands still for the whole catalog; `deltasql mirror resume` ends that"
            )
        actions = decode_received(data, version=0, protocol=None, metadata=None)
        change = TableChange(NewTable(name, location), actions, exact=True, received=Received(data))
        try:
            done = self._ratify(change)
        except TableExistsError as error:
            return None if self._places.table(location) is not None else _refusal(error)
        return None if done is None else self._committed(registry.find(self._database, name), 0, done, data)

    def _ratify(self, change: TableChange) -> Committed | None:
        """Commit one change; None where somebody else was first."""
        watched = self._database.engine.config.publish.look_ahead != "off"
        try:
            outcome = commit(self._database, [change], guard=has_next if watched else None)
        except LogAheadError as ahead:
            look_ahead(self._database, ahead.table, self._options(ahead.table))
            return None
        except TableMissingError:
            return None
        return None if isinstance(outcome, Conflict) else outcome[0]

    def _committed(self, table: Table, version: int, done: Committed, data: bytes) -> Answer:
        logger.info("%s: version %d is ratified, %d bytes", table.name, version, len(data))
        if done.fresh is not None:
            at_once = publish_fresh(self._database, [(done.fresh, table.location, self._options(table))])
            if table.table_id in at_once.done:
                return Answer("committed", f"{table.name} has version {version}")
        return self._shown(table, version)

    def _shown(self, table: Table, version: int) -> Answer:
        """The answer to a commit that stands: its writer looks for the file at once."""
        trouble = self._publish(table)
        status = outbox.status_of(self._database, table.name)
        if status is None or status.published_version >= version:
            return Answer("committed", f"{table.name} has version {version}")
        why = trouble or _hold(status) or Answer("later", "somebody else is about to publish it")
        stands = f"version {version} of {table.name} is ratified and stands, but is not in the log yet"
        return Answer(why.word, f"{stands}: {why.text}")

    def _taken(self, table: Table, version: int, data: bytes) -> Answer | None:
        """Who has the version: an earlier attempt of this very commit, or somebody else."""
        row = commits.one(self._database, table, version)
        if row is not None and row.sha256 == commits.digest(data):
            logger.info("%s: version %d was sent again", table.name, version)
            return self._shown(table, version)
        if (missing := self._publish(table) or self._held(table)) is not None:
            return missing  # its writer could not read the winner
        if version == 0:
            store = open_store(table.location, self._options(table))
            if not store.exists(commit_path(table.head.version)):
                return _refusal(_deleted(table))
        logger.info("%s: version %d is taken", table.name, version)
        return Answer("taken", f"{table.name} has another version {version}")

    def _publish(self, table: Table) -> Answer | None:
        """Publish what waits; an answer where that is not possible now, and might be later."""
        while True:
            done = publish(self._database, table, storage_options=self._options(table), limit=_AT_ONCE)
            if done.error is not None:
                return Answer("later", _line(done.error))
            if not done.more:
                return None

    def _held(self, table: Table) -> Answer | None:
        """Why a table takes no commits of other engines now."""
        status = outbox.status_of(self._database, table.name)
        return None if status is None else _hold(status)

    def _options(self, table: Table) -> Mapping[str, str] | None:
        return self._database.engine.config.storage_options_for(table.location)


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
            f"publishing of the table {status.table} stands still, and Spark could not see its own commit; "
            f"`deltasql mirror resume {status.table}` (or without a name, for the whole catalog) ends that",
        )
    return None


def _is_blind(actions: list[Action]) -> bool:
    info = info_of(actions)
    return info is not None and info.extra.get("isBlindAppend") is True


def _gap(table: Table, version: int) -> ProtocolError:
    return ProtocolError(
        f"version {version} would leave a gap after version {table.head.version}",
        table=table.name,
        version=version,
        suggestion=f"the next version is {table.head.version + 1}",
    )


def _deleted(table: Table) -> TableExistsError:
    return TableExistsError(
        f"the catalog has the table {table.name} at version {table.head.version}, and its files are gone",
        table=table.name,
        suggestion=f"`deltasql drop {table.name}` lets the catalog forget it, then it can be created anew; "
        f"`deltasql mirror repair {table.name}` writes its log again",
    )


def _failed(error: DeltaSqlError) -> Answer:
    """The answer to an error: what cannot be decided here is never taken for a yes."""
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
