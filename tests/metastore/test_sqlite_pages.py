"""Images of SQLite databases: what SQLite copies from them is what was put in."""

from __future__ import annotations

import random
import sqlite3
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb.metastore.engines.sqlite_pages import page_maker

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = (
    "CREATE TABLE t (id INTEGER PRIMARY KEY, small INTEGER NOT NULL, wide INTEGER, flag INTEGER, "
    "name TEXT, fixed TEXT NOT NULL, number INTEGER, never TEXT)"
)
#: around the borders at which the format spells numbers and lengths differently
NUMBERS = [0, 1, -1, *(s * (1 << b) - d for b in (7, 15, 23, 31, 47) for s in (1, -1) for d in (0, 1))]
NUMBERS += [-(1 << 63), (1 << 63) - 1, None]
TEXTS = ["", "x" * 57, "x" * 58, "é" * 29, "y" * 4093, "z" * 8_185, "z" * 8_186, "w" * 40_000, "\0\n'", None]
TYPES = {"id": pa.int64(), "small": pa.int16(), "wide": pa.int64(), "flag": pa.bool_(), "name": pa.string()}


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(TABLE)
    yield connection
    connection.close()


def made_rows(many: int, first: int, seed: int) -> list[tuple[Any, ...]]:
    chance = random.Random(seed)
    numbers = NUMBERS if seed % 2 else [n for n in NUMBERS if n is not None and abs(n) < 200]
    texts = TEXTS if seed % 3 else ["short", "also short"]
    ids = range(first, first + 2 * many, 2)
    return [
        (n, chance.randrange(-9, 9), chance.choice(numbers), n % 3 == 0, chance.choice(texts)) for n in ids
    ]


def copied(database: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> bool:
    columns = dict(zip(TYPES, zip(*rows, strict=True), strict=True))
    data = pa.table({name: pa.array(columns[name], kind) for name, kind in TYPES.items()})
    maker = page_maker(database, "t")
    assert maker is not None
    image = maker.image(data, {"fixed": "same", "number": 77})
    if image is None:
        return False
    database.execute("ATTACH ':memory:' AS image")
    database.deserialize(image, name="image")
    assert database.execute("PRAGMA image.integrity_check").fetchall() == [("ok",)]
    database.execute("INSERT INTO t SELECT * FROM image.t")
    database.execute("DETACH image")
    return True


def test_rows_of_every_width_and_length_come_out_as_they_went_in(database: sqlite3.Connection) -> None:
    expected: list[tuple[Any, ...]] = []
    first = 5
    for seed, many in enumerate((1, 2, 17, 400, 3_000)):
        rows = made_rows(many, first, seed)
        assert copied(database, rows)
        expected += [(*row, "same", 77, None) for row in rows]
        first += (2 * many + 1) << (9 * seed)  # ids of every length too
    found = database.execute("SELECT * FROM t ORDER BY id").fetchall()
    assert found == expected
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert {type(v) for row in found for v in row} == {int, str, type(None)}


def test_what_a_page_cannot_hold_is_left_to_others(database: sqlite3.Connection) -> None:
    assert copied(database, [(1, 0, 0, True, "x" * 65_000)])
    assert not copied(database, [(2, 0, 0, True, "x" * 66_000)])
    assert not copied(database, [(4, 0, 0, True, ""), (3, 0, 0, True, "")])  # ids have to ascend
    assert database.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_a_key_that_is_taken_is_refused_as_ever(database: sqlite3.Connection) -> None:
    assert copied(database, [(1, 0, 0, True, "a")])
    with pytest.raises(sqlite3.IntegrityError):
        copied(database, [(1, 0, 0, True, "b")])
