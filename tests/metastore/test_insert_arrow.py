"""Bulk inserts: every engine stores the rows of an Arrow table as they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogError
from deltalakedb.metastore.database import Database

TEXTS = [
    "", None, "plain", "a,b", 'say "hi"', '"', "line\nbreak", "\r\n", "a\n\\.\nb", "\\.", "\\N", "NULL",
    "back\\slash", "'", "tab\t", " ", "é😀", "x" * 100_000,
]  # fmt: skip
NUMBERS = [0, None, -1, (1 << 63) - 1, -(1 << 63), 1 << 31]


@pytest.fixture
def database(catalog_uri: str) -> Database:
    database = Database.open(parse_address(catalog_uri))
    with database.write() as session:
        session.run("CREATE TABLE bulk (id BIGINT PRIMARY KEY, n BIGINT, yes BOOLEAN, t TEXT, never TEXT)")
    return database


def rows(first: int, many: int) -> pa.Table:
    numbers = range(first, first + many)
    columns = {
        "t": pa.array([TEXTS[n % len(TEXTS)] for n in numbers], pa.string()),
        "id": pa.array(numbers, pa.int64()),
        "n": pa.array([NUMBERS[n % len(NUMBERS)] for n in numbers], pa.int64()),
        "yes": pa.array([(True, False, None)[n % 3] for n in numbers], pa.bool_()),
    }
    return pa.table(columns)


def test_rows_are_stored_as_they_are(database: Database) -> None:
    sizes = (0, 1, 99, 100, 101, 1_000)
    data = []
    with database.write() as session:
        for size in sizes:
            data.append(rows(sum(sizes[: len(data)]), size))
            session.insert_arrow("bulk", data[-1])
    # a table of several chunks
    whole = pa.concat_tables(data)
    again = whole.set_column(1, "id", pa.array(range(10_000, 10_000 + whole.num_rows), pa.int64()))
    with database.write() as session:
        session.insert_arrow("bulk", again)
    with database.read() as session:
        found = session.rows("SELECT t, id, n, yes, never FROM bulk ORDER BY id")
    expected = [
        (r["t"], r["id"], r["n"], r["yes"], None) for table in (whole, again) for r in table.to_pylist()
    ]
    assert [tuple(row) for row in found] == expected


def test_a_refused_row_leaves_a_connection_that_works(database: Database) -> None:
    with database.write() as session:
        session.insert_arrow("bulk", rows(0, 300))
    with pytest.raises(CatalogError), database.write() as session:
        session.insert_arrow("bulk", rows(299, 300))
    with database.write() as session:
        session.insert_arrow("bulk", rows(300, 300))
        assert session.row("SELECT count(*) FROM bulk") == (600,)


def test_a_character_of_code_zero(database: Database) -> None:
    """Postgres stores none, and says so."""
    data = pa.table({"id": pa.array([1], pa.int64()), "t": pa.array(["a\0b"])})
    if database.dialect.name == "postgres":
        with pytest.raises(CatalogError, match="0x00"), database.write() as session:
            session.insert_arrow("bulk", data)
        return
    with database.write() as session:
        session.insert_arrow("bulk", data)
        assert session.row("SELECT t FROM bulk") == ("a\0b",)


def test_rows_that_wait_are_written_before(database: Database) -> None:
    with database.write() as session:
        session.insert("bulk", ("id", "n"), [(1, 1)])
        session.insert_arrow("bulk", rows(2, 10))
        session.insert("bulk", ("id", "n"), [(0, 1)])
    with database.read() as session:
        assert session.row("SELECT count(*) FROM bulk") == (12,)


def test_changes_that_no_socket_holds_are_sent_with_the_commit(database: Database) -> None:
    """The driver of Postgres sends what fits; the rest must follow before the answers are awaited."""
    with database.write() as session:
        for n in range(40):
            session.insert("bulk", ("id", "t"), [(n, "x" * 400_000)])
    with database.read() as session:
        assert session.row("SELECT count(*), sum(length(t)) FROM bulk") == (40, 16_000_000)
