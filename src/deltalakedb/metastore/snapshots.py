"""Opening tables: one small query gives version, schema, protocol and properties."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.exceptions import CatalogError, VersionMissingError
from deltalakedb.metastore import registry
from deltalakedb.metastore.values import TABLE_COLUMNS, OpenTable, Table, table_from_row
from deltalakedb.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.txn_log import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Row, Session


def open_table(database: Database, name: str, version: int | None = None) -> OpenTable:
    """A table at a version (default: the newest), by one query."""
    with (
        telemetry.timed("open_duration_seconds", engine=database.dialect.name),
        database.read() as session,
    ):
        return open_in(database, session, name, version)


def advance(database: Database, name: str, opened: OpenTable) -> OpenTable:
    """The newest version of a table that was opened before: metadata and protocol are read only where new."""
    old = opened.snapshot
    with (
        telemetry.timed("open_duration_seconds", engine=database.dialect.name),
        database.read() as session,
    ):
        row = session.row(database.sql("snapshots", "head"), (old.version, old.timestamp, name))
        if row is None:
            raise registry.missing(database, session, name)
    table = table_from_row(row, published=row[TABLE_COLUMNS])
    metadata_since, protocol_since, known = row[TABLE_COLUMNS + 1 :]
    before = opened.table
    same = (table.table_id, table.created_at) == (before.table_id, before.created_at) and known is not None
    if same and max(metadata_since, protocol_since) <= old.version <= table.head.version:
        head = table.head
        return OpenTable(table, replace(old, version=head.version, timestamp=head.timestamp))
    return open_table(database, name)


def open_in(database: Database, session: Session, name: str, version: int | None = None) -> OpenTable:
    """A table that a session sees, at a version (default: the newest it sees)."""
    if version is None:
        row = session.row(database.sql("snapshots", "open"), (name,))
    else:
        row = session.row(database.sql("snapshots", "open at"), (_fits(version), name))
    if row is None:
        raise registry.missing(database, session, name)
    return _opened(row, version)


def open_many(database: Database, session: Session, names: Sequence[str]) -> dict[str, OpenTable]:
    """The newest versions of those of some tables that can be opened, by one query."""
    out = {}
    for row in session.rows(database.sql("snapshots", "open many").expand(len(names)), tuple(names)):
        with suppress(CatalogError, VersionMissingError):  # whoever asks for that one is told
            opened = _opened(row, None)
            out[opened.table.name] = opened
    return out


def version_at(database: Database, table: Table, timestamp_ms: int) -> int:
    """The newest version committed at or before a time.

    A time before the first commit is an error, as in Delta; one after the last gives the newest version.
    """
    with database.read() as session:
        row = session.row(database.sql("commits", "version at"), (table.table_id, _fits(timestamp_ms)))
        if row is None or row[0] is None:
            first, last = session.row(database.sql("commits", "time range"), (table.table_id,)) or (
                None,
                None,
            )
            raise VersionMissingError(
                f"no version was committed at or before {_iso(timestamp_ms)}",
                table=table.name,
                suggestion=f"the catalog's commits lie between {_iso(first)} and {_iso(last)}",
            )
    return int(row[0])


def txns(database: Database, table: Table, version: int) -> dict[str, Txn]:
    """Application transactions at a version, by application id."""
    with database.read() as session:
        rows = session.rows(database.sql("snapshots", "txns at"), (table.table_id, version, version))
    found = [Txn.from_dict(decode_json(r[0])) for r in rows]
    return {t.app_id: t for t in found}


def txn(database: Database, table: Table, version: int, app_id: str) -> Txn | None:
    """One application's transaction at a version."""
    with database.read() as session:
        row = session.row(database.sql("snapshots", "txn at"), (table.table_id, app_id, version, version))
    return None if row is None else Txn.from_dict(decode_json(row[0]))


def domains(database: Database, table: Table, version: int) -> Mapping[str, DomainMetadata]:
    """Metadata domains at a version, by name."""
    with database.read() as session:
        rows = session.rows(database.sql("snapshots", "domains at"), (table.table_id, version, version))
    found = [DomainMetadata.from_dict(decode_json(r[0])) for r in rows]
    return {d.domain: d for d in found}


def _opened(row: Row, asked: int | None) -> OpenTable:
    table = table_from_row(row, published=row[TABLE_COLUMNS])
    version, timestamp, metadata, protocol = row[TABLE_COLUMNS + 1 :]
    if version is None or version < table.head.first_version or version > table.head.version:
        raise missing_version(table, asked if asked is not None else version)
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
    """The error for a version that SQL does not have."""
    first, last = table.head.first_version, table.head.version
    if 0 <= version < first:
        hint = f"the catalog holds versions {first} to {last}; import with history='full' to keep older ones"
    else:
        hint = f"the catalog holds versions {first} to {last}"
    return VersionMissingError(
        f"version {version} does not exist", table=table.name, version=version, suggestion=hint
    )


def _iso(timestamp_ms: int | None) -> str:
    try:
        return datetime.fromtimestamp((timestamp_ms or 0) / 1000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"


def _fits(number: int) -> int:
    """A number as the database's BIGINT can hold it."""
    return max(-(2**63), min(2**63 - 1, number))
