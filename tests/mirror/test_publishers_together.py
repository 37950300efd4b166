"""Publishers who help each other: their notes overlap, and nobody is in another's way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deltalakedb import Catalog
from deltalakedb.catalog import outbox
from deltalakedb.catalog.database import Database
from deltalakedb.config import Config
from deltalakedb.uri import parse_uri
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = 40
ROUNDS = 4
#: where each publisher begins; all of them end with the newest version
STARTS = (0, 5, 11, 17)


def test_overlapping_notes_of_a_long_backlog_never_block_each_other(catalog_uri: str, tmp_path: Path) -> None:
    config = Config(publish={"mode": "off"})
    with Catalog(catalog_uri, config=config) as catalog:
        catalog.write("t", ids(), location=tmp_path / "t")
        table_id = catalog.describe("t").table_id
        database = Database.open(parse_uri(catalog_uri), config)
        with database.write() as session:
            for version in range(1, VERSIONS):
                session.run(database.sql("outbox", "insert"), (table_id, version, "pending"))
        together = threading.Barrier(len(STARTS))

        def note(start: int) -> None:
            together.wait(60)
            outbox.mark_published(database, table_id, range(start, VERSIONS))

        for _ in range(ROUNDS):
            with ThreadPoolExecutor(len(STARTS)) as pool:
                for done in [pool.submit(note, start) for start in STARTS]:
                    done.result(60)
            assert outbox.waiting_versions(database, table_id) == []
            assert catalog.describe("t").published_version == VERSIONS - 1
            with database.write() as session:
                session.run("UPDATE dl_outbox SET state = 'pending'")
                session.run("UPDATE dl_mirror SET published_version = -1")
