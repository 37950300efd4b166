"""Opening tables: one small query gives version, schema, protocol and properties."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.exceptions import CatalogError, VersionMissingError
from deltalakedb.metastore import registry
from deltalakedb.metastore.registry import TABLE_COLUMNS, table_from_row
from deltalakedb.metastore.rows import OpenTable, Table
from deltalakedb.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.txn_log import Snapshot, iso_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.engines.base import Row, Session, SessionSource


def open_table(db: SessionSource, name: str, version: int | None = None) -> OpenTable:
    """A table at a version (default: the newest that the session sees), by one query."""
    with telemetry.timed("open_duration_seconds", engine=db.dialect.name), db.read() as session:
        if version is None:
            row = session.row(session.sql("snapshots", "open").expand(1), (name,))
        else:
            row = session.row(session.sql("snapshots", "open at"), (_fits(version), name))
        if row is None:
            raise registry.missing(session, name)
        return _opened(row, version)


def advance(db: SessionSource, name: str, opened: OpenTable) -> OpenTable:
    """The newest version of an opened table: metadata and protocol are only read if they changed."""
    old = opened.snapshot
    with telemetry.timed("open_duration_seconds", engine=db.dialect.name), db.read() as session:
        row = session.row(session.sql("snapshots", "head"), (old.version, old.timestamp, name))
        if row is None:
            raise registry.missing(session, name)
    table = table_from_row(row)
    metadata_since, protocol_since, known = row[TABLE_COLUMNS:]
    before = opened.table
    same = (table.table_id, table.created_at) == (before.table_id, before.created_at) and known is not None
    if same and max(metadata_since, protocol_since) <= old.version <= table.head.version:
        head = table.head
        return OpenTable(table, replace(old, version=head.version, timestamp=head.timestamp))
    return open_table(db, name)


def open_many(session: Session, names: Sequence[str]) -> dict[str, OpenTable]:
    """The newest versions of some tables, by one query; those that cannot be opened are left out."""
    out = {}
    for row in session.rows(session.sql("snapshots", "open").expand(len(names)), tuple(names)):
        with suppress(CatalogError, VersionMissingError):  # opening that one reports it
            opened = _opened(row, None)
            out[opened.table.name] = opened
    return out


def version_at(db: SessionSource, table: Table, timestamp_ms: int) -> int:
    """The newest version committed at or before a time.

    A time before the first commit is an error, as in Delta; one after the last gives the newest version.
    """
    with db.read() as session:
        row = session.row(session.sql("commits", "version at"), (table.table_id, _fits(timestamp_ms)))
        if row is None or row[0] is None:
            first, last = session.row(session.sql("commits", "time range"), (table.table_id,)) or (0, 0)
            raise VersionMissingError(
                f"no version was committed at or before {iso_time(timestamp_ms)}",
                table=table.name,
                suggestion=f"the catalog's commits are between {iso_time(first)} and {iso_time(last)}",
            )
    return int(row[0])


def versions_at(session: Session, timestamp_ms: int) -> dict[int, int]:
    """The version of each table, by its id, at a time; tables without a version then are left out.

    A transaction counts as a whole. Its commits may have different times, since each is later than the
    commit before it in its table: if the time is between them, none of them counts, nor what came after it.
    """
    moment = _fits(timestamp_ms)
    at: dict[int, int] = dict(session.rows(session.sql("commits", "versions at"), (moment,)))
    split = list(session.rows(session.sql("commits", "split at"), (moment, moment)))
    while split:
        table_id, version = split.pop()
        if version <= (newest := at.get(table_id, -1)):
            at[table_id] = version - 1
            split += session.rows(session.sql("commits", "together with"), (table_id, version, newest))
    return {table_id: version for table_id, version in at.items() if version >= 0}


def txns(db: SessionSource, table: Table, version: int) -> dict[str, Txn]:
    rows = db.rows(db.sql("snapshots", "txns at"), (table.table_id, version, version))
    found = [Txn.from_dict(decode_json(raw)) for (raw,) in rows]
    return {t.app_id: t for t in found}


def txn(db: SessionSource, table: Table, version: int, app_id: str) -> Txn | None:
    row = db.row(db.sql("snapshots", "txn at"), (table.table_id, app_id, version, version))
    return None if row is None else Txn.from_dict(decode_json(row[0]))


def domains(db: SessionSource, table: Table, version: int) -> Mapping[str, DomainMetadata]:
    rows = db.rows(db.sql("snapshots", "domains at"), (table.table_id, version, version))
    found = [DomainMetadata.from_dict(decode_json(raw)) for (raw,) in rows]
    return {d.domain: d for d in found}


def _opened(row: Row, wanted: int | None) -> OpenTable:
    table = table_from_row(row)
    version, timestamp, metadata, protocol = row[TABLE_COLUMNS:]
    if version is None or version < table.head.first_version or version > table.head.version:
        raise missing_version(table, version if wanted is None else wanted)
    if metadata is None or protocol is None:
        raise CatalogError(
            f"the catalog has no metadata or protocol for version {version}",
            table=table.name,
            version=version,
            suggestion="run `deltasql doctor`",
        )
    snapshot = Snapshot(
        version,
        timestamp,
        Protocol.from_dict(decode_json(protocol)),
        Metadata.from_dict(decode_json(metadata)),
    )
    return OpenTable(table, snapshot)


def missing_version(table: Table, version: int) -> VersionMissingError:
    first, last = table.head.first_version, table.head.version
    if 0 <= version < first:
        hint = f"the catalog holds versions {first} to {last}; import with history='full' to keep older ones"
    else:
        hint = f"the catalog holds versions {first} to {last}"
    return VersionMissingError(
        f"version {version} does not exist", table=table.name, version=version, suggestion=hint
    )


def _fits(number: int) -> int:
    """A number as the database's BIGINT can hold it."""
    return max(-(2**63), min(2**63 - 1, number))
