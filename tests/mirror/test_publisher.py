"""Publishers of the same tables: they may repeat and restore what another one recorded."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.metastore import outbox, registry
from deltalakedb.metastore.database import Database, close_all
from deltalakedb.settings import Config
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path


VERSIONS = 40
ROUNDS = 20
#: what publishers note at once: tables by number, and where each begins; all end with the newest version
NOTES = (
    {1: 0, 2: 0, 3: 0},
    {2: 5, 3: 17},
    {3: 11},
    dict.fromkeys(range(2, 10), 3),
    dict.fromkeys(range(1, 13), 0),
    dict.fromkeys(range(4, 13), 7),
)


def test_overlapping_notes_of_a_long_backlog_never_block_each_other(catalog_uri: str, tmp_path: Path) -> None:
    config = Config(publish={"mode": "off"})
    with Catalog(catalog_uri, config=config) as catalog:
        catalog.write("t", ids(), location=tmp_path / "t")
        database = Database.open(parse_address(catalog_uri), config)
        with database.write() as session:
            tables = {n: registry.insert(session, f"t{n}", f"/t{n}").table.table_id for n in range(1, 13)}
            rows = [
                (table, version, "pending", 0) for table in tables.values() for version in range(VERSIONS)
            ]
            session.insert("dl_outbox", ("table_id", "version", "state", "attempts"), rows)
        together = threading.Barrier(len(NOTES))

        def note(what: dict[int, int]) -> None:
            together.wait(60)
            outbox.mark_published(database, {tables[n]: range(start, VERSIONS) for n, start in what.items()})

        for _ in range(ROUNDS):
            with ThreadPoolExecutor(len(NOTES)) as pool:
                for done in [pool.submit(note, what) for what in NOTES]:
                    done.result(60)
            assert [n for n, table in tables.items() if outbox.waiting_versions(database, table)] == []
            assert {t.published_version for t in catalog.tables()} == {VERSIONS - 1, -1}
            with database.write() as session:
                session.run("UPDATE dl_outbox SET state = 'pending'")
                session.run("UPDATE dl_mirror SET published_version = -1")


# A note that a version is published may be lost, and is made again by the next process that writes.


def test_a_lost_note_below_the_newest_is_found_by_the_next_writer(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t")
        for number in (2, 3, 4):
            catalog.write("t", ids(number), mode="append")
        table_id = catalog.describe("t").table_id
    with Database.open(parse_address(catalog_uri)) as database, database.write() as session:
        session.run("UPDATE dl_outbox SET state = 'pending' WHERE version = 1")
    close_all()  # what a process remembers of its own looks goes with its database
    with Catalog(catalog_uri) as catalog:
        assert outbox.lag(Database.open(parse_address(catalog_uri)), table_id).versions == 1
        catalog.write("t", ids(5), mode="append")
        assert outbox.lag(Database.open(parse_address(catalog_uri)), table_id).versions == 0
        assert catalog.describe("t").published_version == 4
