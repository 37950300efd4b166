"""The packer: it moves statistics and changes nothing that readers can see, also if other processes write."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogCorruptError
from deltalakedb.metastore import files, ratify, registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import packs, rows
from deltalakedb.protocol.actions import DeletionVector
from deltalakedb.protocol.packs import PACK_SIZE
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import PrimitiveType, parse_schema
from support.actions import SCHEMA, add, info, remove
from support.commits import Bench, file, gone
from support.packs import drop_columns, make_packs_small, packs_of, recent_ids, state_of, statistics_of
from support.processes import Child, results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.actions import Add


@pytest.fixture
def database(catalog_uri: str) -> Database:
    return Database.open(parse_address(catalog_uri))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_packs_small(monkeypatch)


def odd_files(first: int, last: int) -> list[Add]:
    """Files of which some have no statistics, odd ones, deletion vectors, tags or odd paths."""
    found = []
    for n in range(first, last):
        made = file(f"f{n}", day=None if n % 7 == 3 else f"2024-01-{1 + n % 9:02}", low=n, high=n + 3)
        fields: dict[str, Any] = {}
        if n % 5 == 1:
            fields = {"stats": None}
        elif n % 5 == 2:
            fields = {"stats": '{"numRecords": 3, "minValues": {"id": 1e99}}'}
        elif n % 5 == 3:
            fields = {"tags": {"n": str(n)}, "base_row_id": n}
        path = f"day=a%20b/f{n}%25" if n % 6 == 5 else made.path
        found.append(add(path, **{"partition_values": made.partition_values, "stats": made.stats, **fields}))
    return found


def bench(database: Database, tmp_path: Path, first: Sequence[Add] = (), **fields: Any) -> Bench:
    return Bench.make(database, "t", str(tmp_path / "t"), adds=first, **fields)


def fill(made: Bench) -> None:
    """Versions that add, remove, add again and replace files, each one small."""
    for n in range(0, 35, 7):
        made.commit(info("WRITE"), *odd_files(n, n + 7))
    made.commit(info("DELETE"), gone("f0"), gone("f10"), remove("never%20seen"))
    made.commit(info("WRITE"), file("f0", low=900, high=950))
    made.commit(info("WRITE"), file("f12", low=1, high=2), remove("day=a%20b/f5%25"))
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
    dv = DeletionVector.from_dict({**vector, "cardinality": 2})
    made.commit(info("DELETE"), gone("f24"), file("f24", low=24, high=27, deletion_vector=dv))


def table_id(made: Bench) -> int:
    return made.open().table.table_id


def take_back(made: Bench, first: int | None = None) -> None:
    """Undo the versions from one on, or the newest, as a resolution does."""
    with made.database.write() as session:
        locked = registry.lock(session, [table_id(made)])[table_id(made)]
        ratify.revert(session, locked, locked.table.head.version if first is None else first)


# ---- nothing changes ----


def test_statistics_of_packs_are_those_of_the_json(database: Database, tmp_path: Path, small: None) -> None:
    """Also for columns that a pack was not made for: of another type, or of another version's schema."""
    made = bench(database, tmp_path)
    fill(made)
    opened, leaves = made.open(), list(parse_schema(SCHEMA).leaves())[:1]
    others = [leaf._replace(type=PrimitiveType("double")) for leaf in leaves if str(leaf.type) == "long"]
    unknown = leaves[0]._replace(path=("new",), physical_path=("new",))
    made.commit(info("WRITE"), add("new", stats='{"numRecords": 7, "maxValues": {"new": 5, "id": 2}}'))
    asked = [leaves, others, [*leaves, unknown]]
    at_head = made.open()
    before = [statistics_of(database, version, names) for version in (opened, at_head) for names in asked]
    assert before[-1]["highs ('new',)"][0] == 5
    assert any(value is not None for value in before[1]["lows ('id',)"])
    packs.pack_if_due(database, table_id(made), at_least=1)
    assert not recent_ids(database, table_id(made))
    after = [statistics_of(database, version, names) for version in (opened, at_head) for names in asked]
    assert after == before
    made.commit(info("WRITE"), *odd_files(70, 73))
    packed, both = before[3], statistics_of(database, made.open(), leaves)
    assert all(both[name][3:] == values for name, values in packed.items())


@pytest.mark.parametrize("name", ["plain", "line\nfeed", "\n", "ж", "a b"])
def test_lists_have_any_path(database: Database, tmp_path: Path, name: str) -> None:
    made = bench(database, tmp_path)
    made.commit(info("WRITE"), add("first", size=2**62), add(name, size=1), add("last", size=0))
    found = files.scan_files(database, made.open(), ("path", "size", "dv_id", "partition_values"))
    found.validate(full=True)
    assert found.column("path").to_pylist() == ["first", name, "last"]
    assert found.column("size").to_pylist() == [2**62, 1, 0]
    assert found.column("dv_id").to_pylist() == [""] * 3
    assert set(found.column("partition_values").to_pylist()) == {'{"day":"2024-01-01"}'}
    empty = files.scan_files(database, made.open(0), ("path", "file_id"))
    assert empty.to_pylist() == []


def test_statistics_are_read_from_columns(database: Database, tmp_path: Path, small: None) -> None:
    made = bench(database, tmp_path)
    fill(made)
    packs.pack_if_due(database, table_id(made), at_least=1)
    leaves = list(parse_schema(SCHEMA).leaves())[:1]
    before = statistics_of(database, made.open(), leaves)
    with database.write() as session:  # what is not read may be missing
        session.run("DELETE FROM dl_stats_blocks WHERE first_id >> 40 = ?", (table_id(made),))
    assert statistics_of(database, made.open(), leaves) == before


def test_packing_changes_nothing_that_can_be_asked(database: Database, tmp_path: Path, small: None) -> None:
    made = bench(database, tmp_path)
    fill(made)
    before, key = state_of(database, "t"), table_id(made)
    many = len(recent_ids(database, key))
    assert packs.pack_if_due(database, key, at_least=many + 1) == 0
    assert packs.pack_if_due(database, key, at_least=many) == many
    assert recent_ids(database, key) == []
    assert sum(p.num_files for p in packs_of(database, key)) == many
    assert all(p.last_id - p.first_id < 16 for p in packs_of(database, key))
    assert state_of(database, "t") == before
    assert packs.pack_if_due(database, key, at_least=1) == 0

    assert packs.rebuild(database, key) == many
    assert state_of(database, "t") == before

    drop_columns(database, key)
    assert state_of(database, "t") == before, "columns are derived: without them nothing is pruned or lost"
    assert made.commit(info("DELETE"), gone("f20"), at=made.open().snapshot.version)
    assert "f20" not in {a.path for a in files.read_adds(database, made.open())}
    before = state_of(database, "t")
    assert packs.rebuild(database, key) == many
    assert state_of(database, "t") == before


def test_small_packs_are_merged(database: Database, tmp_path: Path, small: None) -> None:
    made = bench(database, tmp_path)
    key = table_id(made)
    for n in range(0, 30, 3):
        made.commit(info("WRITE"), *odd_files(n, n + 3))
        if n == 27:
            before = state_of(database, "t")
        assert packs.pack_if_due(database, key, at_least=1) == 3
    assert state_of(database, "t") == before
    found = packs_of(database, key)
    assert len(found) <= 5
    assert max(p.num_files for p in found) > 8
    assert sum(p.num_files for p in found) == 30


def test_packs_slightly_above_the_threshold_are_merged_too() -> None:
    """Real sizes: a packer rarely sees exactly PACK_MIN recent files."""
    assert packs._SMALL > 2 * rows.PACK_MIN
    assert packs._MERGED * rows.PACK_MIN <= PACK_SIZE


def test_files_of_a_large_commit_are_packed_by_its_writer(database: Database, tmp_path: Path) -> None:
    made = bench(database, tmp_path)
    made.commit(info("WRITE"), *(file(f"s{n}", low=n, high=n) for n in range(rows.PACK_MIN - 1)))
    key = table_id(made)
    assert len(recent_ids(database, key)) == rows.PACK_MIN - 1
    assert packs_of(database, key) == []
    made.commit(info("WRITE"), *odd_files(0, rows.PACK_MIN))
    assert len(recent_ids(database, key)) == rows.PACK_MIN - 1
    assert [p.num_files for p in packs_of(database, key)] == [rows.PACK_MIN]
    before = state_of(database, "t")
    assert packs.pack_all(database) == 0
    made.commit(info("WRITE"), file("last"))
    assert packs.pack_all(database) == rows.PACK_MIN
    assert {k: v for k, v in state_of(database, "t").items() if k in before and "version" in k} == {
        k: v for k, v in before.items() if "version" in k
    }


def test_what_a_large_commit_adds_and_removes_at_once(
    database: Database, tmp_path: Path, small: None
) -> None:
    made = bench(database, tmp_path, odd_files(0, 40))  # 0 to 39 are packed at once
    key = table_id(made)
    assert recent_ids(database, key) == []
    made.commit(info("OPTIMIZE"), *(gone(a.path) for a in odd_files(0, 30)), *odd_files(100, 130))
    made.commit(info("RESTORE"), *odd_files(0, 30), *(gone(a.path) for a in odd_files(100, 130)))
    assert {a.path for a in files.read_adds(database, made.open())} == {a.path for a in odd_files(0, 40)}
    before = state_of(database, "t")
    packs.rebuild(database, key)
    assert state_of(database, "t") == before


# ---- ids ----


def test_recent_files_around_large_packs(database: Database, tmp_path: Path, small: None) -> None:
    """Packs between recent files are neither cut nor written again."""
    made = bench(database, tmp_path)
    for n in range(0, 400, 100):
        made.commit(info("WRITE"), *odd_files(n, n + 5))
        made.commit(info("WRITE"), *odd_files(n + 5, n + 5 + 3 * 16 + n // 20))
    key = table_id(made)
    before, packed = state_of(database, "t"), packs_of(database, key)
    assert len(recent_ids(database, key)) == 20
    assert packs.pack_if_due(database, key, at_least=20) == 20
    assert set(packed) <= set(packs_of(database, key)) | {p for p in packed if p.num_files < 8}
    assert state_of(database, "t") == before
    assert all(a.last_id < b.first_id for a, b in pairwise(packs_of(database, key))), "packs never overlap"


def test_a_repack_of_a_part_takes_whole_packs(database: Database, tmp_path: Path, small: None) -> None:
    made = bench(database, tmp_path, odd_files(0, 40))
    key, before = table_id(made), state_of(database, "t")
    for begin, end in ((3, 5), (15, 16), (0, 39), (39, 39)):
        low = key << 40
        assert packs.repack(database, key, low + begin, low + end) > 0
        assert state_of(database, "t") == before


@pytest.mark.parametrize("gap", [3, 5, 40])
def test_gaps_between_ids(database: Database, tmp_path: Path, small: None, gap: int) -> None:
    """Versions that were taken back leave gaps, also larger than blocks and packs."""
    made = bench(database, tmp_path)
    for n in range(2):
        made.commit(info("WRITE"), *odd_files(10 * n, 10 * n + 3))
        made.commit(info("WRITE"), *(file(f"u{n}-{m}") for m in range(gap)))
        take_back(made)
    made.commit(info("WRITE"), *odd_files(50, 53))
    key, before = table_id(made), state_of(database, "t")
    packs.pack_if_due(database, key, at_least=1)
    assert recent_ids(database, key) == []
    assert state_of(database, "t") == before
    packs.rebuild(database, key)
    assert state_of(database, "t") == before
    assert made.commit(info("DELETE"), gone("f0"), gone("f10"))
    assert len(list(files.read_adds(database, made.open()))) == 7


# ---- versions that are taken back ----


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "recent"])
def test_a_reverted_table(database: Database, tmp_path: Path, small: None, packed: bool) -> None:
    made = bench(database, tmp_path)
    fill(made)
    key, before = table_id(made), state_of(database, "t")
    head = made.open().snapshot.version
    made.commit(info("WRITE"), *odd_files(200, 203), gone("f3"))
    made.commit(info("WRITE"), *odd_files(300, 340))
    made.commit(info("DELETE"), gone("f300"), gone("f201"))
    if packed:
        packs.pack_if_due(database, key, at_least=1)
    take_back(made, head + 1)
    assert state_of(database, "t") == before, "packs of files that are gone do no harm"
    made.commit(info("WRITE"), *odd_files(300, 304))
    before = state_of(database, "t")
    for change in (
        lambda: packs.pack_if_due(database, key, at_least=1),
        lambda: packs.rebuild(database, key),
    ):
        change()
        assert state_of(database, "t") == before
    where = parse_predicate("id = 302", parse_schema(SCHEMA))
    found = {a.path for a in files.read_adds(database, made.open(), where=where)}
    assert {"f300", "f302"} <= found
    assert "f303" not in found


# ---- damage ----


@pytest.mark.parametrize("table", ["dl_pack_columns", "dl_stats_blocks"])
def test_damage_is_told(database: Database, tmp_path: Path, small: None, table: str) -> None:
    made = bench(database, tmp_path, odd_files(0, 20))
    with database.write() as session:
        session.run(f"UPDATE {table} SET crc = crc + 1")
    where = parse_predicate("id = 3", parse_schema(SCHEMA))
    with pytest.raises(CatalogCorruptError, match="damaged"):
        list(files.read_adds(database, made.open(), where=where))
    if table == "dl_pack_columns":
        before = state_of_adds(database, made)  # listing needs no columns
        packs.rebuild(database, table_id(made))
        assert state_of_adds(database, made) == before
        assert list(files.read_adds(database, made.open(), where=where))
    else:
        with pytest.raises(CatalogCorruptError, match="damaged"):
            packs.rebuild(database, table_id(made))


def state_of_adds(database: Database, made: Bench) -> list[Add]:
    return list(files.read_adds(database, made.open()))


def test_a_missing_block_is_told(database: Database, tmp_path: Path, small: None) -> None:
    made = bench(database, tmp_path, odd_files(0, 20))
    with database.write() as session:
        session.run("DELETE FROM dl_stats_blocks WHERE first_id = ?", ((table_id(made) << 40) + 4,))
    with pytest.raises(CatalogCorruptError, match="no statistics"):
        list(files.read_adds(database, made.open()))
    with pytest.raises(CatalogCorruptError, match="no statistics"):
        packs.rebuild(database, table_id(made))
    assert len(packs_of(database, table_id(made))) == 2, "nothing was replaced"


# ---- two at once ----


def test_two_packers_pack_once(database: Database, tmp_path: Path, small: None) -> None:
    made = bench(database, tmp_path)
    key = table_id(made)
    for n in range(0, 40, 5):
        made.commit(info("WRITE"), *odd_files(n, n + 5))
    before = state_of(database, "t")
    at_once = threading.Barrier(4)

    def pack() -> int:
        at_once.wait()
        return packs.repack(database, key, key << 40, (key << 40) + 39)

    with ThreadPoolExecutor(4) as pool:
        done = [f.result() for f in [pool.submit(pack) for _ in range(4)]]
    # SQLite and DuckDB let writers take turns, and the later ones may replace what the first one packed
    assert set(done) <= {0, 40}
    assert 40 in done
    assert sum(p.num_files for p in packs_of(database, key)) == 40
    assert state_of(database, "t") == before


def pack_often(uri: str, key: int, rounds: int) -> int:
    database = Database.open(parse_address(uri))
    done = 0
    for number in range(rounds):
        done += packs.pack_if_due(database, key, at_least=1)
        if number % 3 == 0:
            packs.rebuild(database, key)
    return done


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])  # a DuckDB file has one process
def test_packers_of_several_processes(
    database: Database, catalog_uri: str, tmp_path: Path, small: None
) -> None:
    made = bench(database, tmp_path)
    key = table_id(made)
    children = [Child(pack_often, catalog_uri, key, 30, folder=tmp_path) for _ in range(2)]
    for n in range(0, 100, 5):
        made.commit(info("WRITE"), *odd_files(n, n + 5))
        assert len(list(files.read_adds(database, made.open()))) == n + 5
    results(children)
    before = state_of(database, "t")
    packs.pack_if_due(database, key, at_least=1)
    assert sum(p.num_files for p in packs_of(database, key)) == 100
    assert state_of(database, "t") == before


class Between:
    """Does something at the first statement of a name that a reader sends: what another process may do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: str, work: Callable[[], object]) -> None:
        inner, self.done = getattr(packs, function), False

        def first_work(session: Session, *arguments: Any) -> Any:
            if not self.done:
                self.done = True
                work()
            return inner(session, *arguments)

        monkeypatch.setattr(packs, function, first_work)


def many_small_packs(made: Bench) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "_MERGED", 100)
        for n in range(0, 16, 2):
            made.commit(info("WRITE"), *(file(f"f{m}", low=m, high=m) for m in (n, n + 1)))
            packs.pack_if_due(made.database, table_id(made), at_least=1)


CHANGES = {"merge": packs.merge_packs, "rebuild": packs.rebuild, "drop": drop_columns}


@pytest.mark.parametrize("function", ["zones_of", "columns_of"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_while_packs_are_replaced(
    database: Database,
    tmp_path: Path,
    small: None,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    change: str,
) -> None:
    made = bench(database, tmp_path)
    many_small_packs(made)
    key = table_id(made)
    assert len(packs_of(database, key)) == 8
    for n in (0, 15):
        between = Between(monkeypatch, function, lambda: CHANGES[change](database, key))
        where = parse_predicate(f"id = {n}", parse_schema(SCHEMA))
        found = [a.path for a in files.read_adds(database, made.open(), where=where)]
        assert between.done
        assert f"f{n}" in found
        assert len(found) == len(set(found))


def test_a_plan_while_a_pack_is_split(
    database: Database, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack that begins where the old one began, and ends before it, must not speak for all its files."""
    made = bench(database, tmp_path)
    made.commit(info("WRITE"), *(file(f"f{n}", low=n, high=n) for n in range(16)))
    key = table_id(made)
    assert [p.num_files for p in packs_of(database, key)] == [16]
    where = parse_predicate("id = 15", parse_schema(SCHEMA))

    def split() -> None:
        with database.write() as session:
            session.run(
                "DELETE FROM dl_files WHERE file_id > ? AND file_id < ?", (key << 40, (key << 40) + 14)
            )
        packs.rebuild(database, key)
        assert len(packs_of(database, key)) == 2

    Between(monkeypatch, "zones_of", split)
    assert [a.path for a in files.read_adds(database, made.open(), where=where)][-1] == "f15"


def test_lookups_and_listings_while_packs_are_merged(
    database: Database, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(database, tmp_path)
    many_small_packs(made)
    key = table_id(made)
    with database.read() as session:
        Between(monkeypatch, "columns_of", lambda: packs.merge_packs(database, key))
        assert len(files.live_files(session, key, [f"f{n}" for n in range(16)])) == 16
    assert len(packs_of(database, key)) == 1


def test_statistics_while_blocks_are_merged(
    database: Database, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(database, tmp_path)
    many_small_packs(made)
    key, before = table_id(made), state_of_adds(database, made)
    ids = np.array([(key << 40) + n for n in (3, 7, 15)])
    inner, done = packs._blocks, []

    def blocks(session: Session, wanted: packs.Ids) -> Any:
        class Merging:
            """The session of a reader between whose statements another process merges."""

            def __getattr__(self, name: str) -> Any:
                return getattr(session, name)

            def rows(self, sql: Any, params: Any = ()) -> Any:
                found = session.rows(sql, params)
                if not done:
                    done.append(True)
                    packs.merge_packs(database, key)
                return found

        return inner(Merging(), wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(packs, "_blocks", blocks)
    with database.read() as session:
        assert packs.stats_of(session, ids).to_pylist() == [before[n].stats for n in (3, 7, 15)]
    assert done


def test_a_repack_that_another_process_overtook(
    database: Database, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that read a small pack must not replace the large one that it was merged into meanwhile."""
    made = bench(database, tmp_path)
    many_small_packs(made)
    key, before = table_id(made), state_of(database, "t")
    first = packs_of(database, key)[0]
    inner, done = packs.make_pack, []

    def merged_meanwhile(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            packs.merge_packs(database, key)
        return inner(*arguments)

    monkeypatch.setattr(packs, "make_pack", merged_meanwhile)
    assert packs.repack(database, key, first.first_id, first.last_id) == 0
    assert sum(p.num_files for p in packs_of(database, key)) == 16
    assert state_of(database, "t") == before


def test_readers_beside_a_packer(database: Database, tmp_path: Path, small: None) -> None:
    made = bench(database, tmp_path)
    key, end = table_id(made), threading.Event()
    where = parse_predicate("id >= 0", parse_schema(SCHEMA))

    def pack() -> int:
        done = 0
        while not end.is_set():
            done += packs.pack_if_due(database, key, at_least=1)
            packs.rebuild(database, key)
        return done

    with ThreadPoolExecutor(1) as pool:
        packer = pool.submit(pack)
        try:
            for n in range(20):
                made.commit(info("WRITE"), file(f"a{n}", low=n, high=n), file(f"b{n}", low=n, high=n))
                if n % 4 == 3:
                    made.commit(info("DELETE"), gone(f"b{n - 2}"))
                wanted = {f"a{m}" for m in range(n + 1)}
                wanted |= {f"b{m}" for m in range(n + 1) if m % 4 != 1 or n - m < 2}
                found = [a.path for a in files.read_adds(database, made.open(), where=where)]
                assert sorted(found) == sorted(wanted)
                assert {a.path for a in files.read_adds(database, made.open())} == wanted
        finally:
            end.set()
        assert packer.result() > 0
