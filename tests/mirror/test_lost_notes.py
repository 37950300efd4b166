"""A note that a version is published may be lost, and is made again by the next process that writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.metastore import outbox
from deltalakedb.metastore.database import Database, close_all
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path


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
