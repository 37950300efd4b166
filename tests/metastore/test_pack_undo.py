"""Packs beside work that deletes files: undone imports, dropped tables, versions that are taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogBusyError
from deltalakedb.metastore import files, ratify, registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import listing, packs
from deltalakedb.protocol.actions import DeletionVector
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import parse_schema
from support.actions import SCHEMA, info
from support.commits import Bench, file, gone
from support.packs import make_packs_small, packs_of, recent_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VECTOR = DeletionVector.from_dict(
    {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 2,
    }
)


@pytest.fixture
def made(catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    make_packs_small(monkeypatch)
    return Bench.make(Database.open(parse_address(catalog_uri)), "t", str(tmp_path / "t"), adds=())


def table_id(made: Bench) -> int:
    return made.open().table.table_id


def drop(made: Bench) -> None:
    registry.drop_table(made.database, "t", force=True)


def take_back(made: Bench) -> None:
    with made.database.write() as session:
        locked = registry.lock(session, [table_id(made)])[table_id(made)]
        ratify.revert(session, locked, locked.table.head.version)


def before_call(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, work: Callable[[], None]) -> None:
    """Do something once, before the first call of a function."""
    inner, done = getattr(module, name), []

    def first_work(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            work()
        return inner(*arguments)

    monkeypatch.setattr(module, name, first_work)


@pytest.mark.parametrize("again", [3, 12], ids=["recent", "packed"])
def test_a_pack_that_begins_before_what_is_undone(made: Bench, again: int) -> None:
    """The numbers of undone batches are used again: no pack may speak for the files that had them before."""
    database, key = made.database, table_id(made)
    for n in range(0, 12, 3):
        made.commit(info("WRITE"), *(file(f"f{m}", low=m, high=m) for m in range(n, n + 3)))
    packs.repack(database, key, key << 40, (key << 40) + 11)
    assert len(packs_of(database, key)) == 1
    kept = {
        a.path: a for a in files.read_adds(database, made.open()) if a.path in {f"f{n}" for n in range(6)}
    }
    version = made.open().snapshot.version
    new = [(version, file(f"new{n}", low=100 + n, high=100 + n)) for n in range(again)]
    metadata = made.open().snapshot.metadata
    batch = files.batch_of_adds(new)
    if again > 8:
        batch = files.packed(batch, files.readable_schema(metadata), metadata)
    with database.write() as session:
        files.drop_range(session, key, 6)
        files.write_batch(session, key, 6, batch)
    wanted = {**kept, **{a.path: a for _, a in new}}

    def check() -> None:
        assert {a.path: a for a in files.read_adds(database, made.open())} == wanted
        for n, path in ((1, "f1"), (5, "f5"), (101, "new1")):
            where = parse_predicate(f"id = {n}", parse_schema(SCHEMA))
            assert [a.path for a in files.read_adds(database, made.open(), where=where)] == [path]
        with database.read() as session:
            assert {path for path, _ in files.live_files(session, key, list(wanted))} == set(wanted)

    check()
    files.pack_if_due(database, key, at_least=1)
    assert recent_ids(database, key) == []
    check()
    files.rebuild(database, key)
    check()


def test_a_pack_that_ends_behind_what_is_undone(made: Bench) -> None:
    database, key = made.database, table_id(made)
    made.commit(info("WRITE"), *(file(f"f{n}", low=n, high=n) for n in range(12)))
    assert len(packs_of(database, key)) == 1
    before = list(files.read_adds(database, made.open()))
    with database.write() as session:
        files.drop_range(session, key, 0, 4)
    assert list(files.read_adds(database, made.open())) == before[4:]
    where = parse_predicate("id = 7", parse_schema(SCHEMA))
    assert [a.path for a in files.read_adds(database, made.open(), where=where)] == ["f7"]
    with database.read() as session:
        assert len(files.live_files(session, key, ["f3", "f4", "f11"])) == 2


def test_an_unfinished_import_is_left_alone_by_packers(made: Bench) -> None:
    """Its batches come in any order, and may be undone one by one."""
    database, key = made.database, table_id(made)
    made.commit(info("WRITE"), *(file(f"f{n}") for n in range(5)))
    with database.read() as session:
        assert session.rows(session.sql("files", "tables to pack"), (2,)) == [(key,)]
    with database.write() as session:
        session.run("DELETE FROM dl_heads WHERE table_id = ?", (key,))
    with database.read() as session:
        assert session.rows(session.sql("files", "tables to pack"), (2,)) == []


@pytest.mark.parametrize("change", [drop, take_back])
def test_files_that_vanish_while_they_are_packed(
    made: Bench, monkeypatch: pytest.MonkeyPatch, change: Callable[[Bench], None]
) -> None:
    made.commit(info("WRITE"), *(file(f"f{n}") for n in range(5)))
    key = table_id(made)
    before_call(monkeypatch, packs, "stats_of", lambda: change(made))
    assert packs.pack_if_due(made.database, key, at_least=1) == 0


@pytest.mark.parametrize("change", [drop, take_back])
@pytest.mark.parametrize("where", [None, "id = 1"])
@pytest.mark.parametrize("size", [1, 12])
def test_a_deletion_vector_that_vanishes_is_never_left_out(
    made: Bench,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Bench], None],
    where: str | None,
    size: int,
) -> None:
    """A file without its deletion vector would show rows that were deleted."""
    others = [file(f"f{n}", low=1, high=1) for n in range(1, size)]
    made.commit(info("WRITE"), file("f0", low=1, high=1), *others)
    made.commit(info("DELETE"), gone("f0"), file("f0", low=1, high=1, deletion_vector=VECTOR))
    opened = made.open()
    before_call(monkeypatch, listing, "_rare", lambda: change(made))
    test = None if where is None else parse_predicate(where, parse_schema(SCHEMA))
    with pytest.raises(CatalogBusyError, match="meanwhile"):
        list(files.read_adds(made.database, opened, where=test))


def test_a_damaged_table_does_not_keep_others_from_being_packed(
    made: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Bench.make(made.database, "u", str(tmp_path / "u"), adds=())
    for bench in (made, other):
        bench.commit(info("WRITE"), *(file(f"f{n}") for n in range(5)))
    monkeypatch.setattr(packs, "PACK_MIN", 2)
    monkeypatch.setattr(packs.pack_if_due, "__kwdefaults__", {"at_least": 2})
    with made.database.write() as session:
        session.run("DELETE FROM dl_file_stats WHERE file_id = ?", ((table_id(made) << 40) + 2,))
    assert files.pack_all(made.database) == 5
    assert recent_ids(made.database, table_id(other)) == []
