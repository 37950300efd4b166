"""Plans, case by case: what is kept and left out, the same for recent files and for packed ones."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.address import parse_address
from deltalakedb.metastore import files
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import packs
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.predicate import (
    FALSE,
    TRUE,
    And,
    Compare,
    In,
    IsNull,
    Not,
    Or,
    StartsWith,
    Unknown,
)
from support.actions import info, metadata
from support.commits import Bench, gone
from support.packs import make_packs_small
from support.statements import count_statements

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.metastore.rows import OpenTable

COLUMNS = {
    "day": "date",
    "region": "string",
    "n": "long",
    "f": "double",
    "t": "string",
    "c": "long",
}
PARTITIONS = ("day", "region")
N, F, T, C, DAY, REGION = ("n",), ("f",), ("t",), ("c",), ("day",), ("region",)
IMIN, IMAX = -(2**63), 2**63 - 1


def schema(columns: dict[str, str]) -> str:
    fields = [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def one(
    path: str, low: Any = None, high: Any = None, *, column: str = "n", nulls: Any = 0, **parts: Any
) -> Add:
    """A file of ten rows with bounds for one column."""
    stats: dict[str, Any] = {"numRecords": 10, "minValues": {}, "maxValues": {}, "nullCount": {column: nulls}}
    if low is not None:
        stats["minValues"][column] = low
    if high is not None:
        stats["maxValues"][column] = high
    values = {"day": "2024-01-01", "region": "eu", **parts}
    return Add(
        path=path,
        size=1,
        modification_time=0,
        data_change=True,
        stats=json.dumps(stats),
        partition_values=values,
    )


class Table:
    """The same files twice: in one table they are recent, in the other one packed."""

    def __init__(self, database: Database, folder: Path) -> None:
        given = metadata(schema_string=schema(COLUMNS), partition_columns=PARTITIONS)
        self.database = database
        self.recent, self.packed = (
            Bench.make(database, name, str(folder / name), metadata_=given, adds=())
            for name in ("recent", "packed")
        )

    def commit(self, *actions: Any) -> Table:
        for bench in (self.recent, self.packed):
            bench.commit(info("WRITE"), *actions)
        return self

    def add(self, *given: Any, **options: Any) -> Table:
        return self.commit(one(*given, **options))

    def find(self, expr: Any, *, version: int | None = None) -> str:
        """The paths of the plan, which must be the same for both tables."""
        packs.pack_if_due(self.database, self.packed.open().table.table_id, at_least=1)
        recent, packed = (paths(self.database, b.open(version), expr) for b in (self.recent, self.packed))
        assert recent == packed
        return packed


def paths(database: Database, opened: OpenTable, expr: Any) -> str:
    found = files.scan_files(database, opened, ["path"], where=expr)
    return "".join(sorted(found.column("path").to_pylist()))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    # large commits would pack themselves: only `packed` has packs
    make_packs_small(monkeypatch)
    monkeypatch.setattr("deltalakedb.metastore.files.rows.PACK_MIN", 1_000)
    return Table(Database.open(parse_address(f"deltasql://sqlite/{tmp_path}/c.db")), tmp_path)


# ---- versions ----


def test_without_a_predicate_all_live_files_are_listed_by_their_ids(table: Table) -> None:
    table.commit(*(one(c) for c in "cab")).commit(gone("a"))
    for bench in (table.recent, table.packed):
        found = files.scan_files(table.database, bench.open(), ["path", "file_id"])
        assert found.column("path").to_pylist() == ["c", "b"]
        ids = found.column("file_id").to_pylist()
        assert ids == sorted(ids)
        assert ids[0] >> 40 == bench.open().table.table_id


def test_an_older_version_brings_removed_files_back_and_hides_newer_ones(table: Table) -> None:
    table.commit(one("a", 1, 5), one("d", 1, 5)).commit(gone("d"), one("b", 1, 5)).commit(gone("b"))
    table.commit(one("c", 1, 5))
    for expr in (None, Compare(N, "=", 3)):
        assert [table.find(expr, version=v) for v in (0, 1, 2, 3, 4)] == ["", "ad", "ab", "a", "ac"]
    assert table.find(Compare(N, "=", 9), version=2) == ""


def test_a_file_that_came_back_has_its_newest_statistics(table: Table) -> None:
    table.add("a", 1, 5).commit(gone("a")).add("a", 100, 105)
    assert [table.find(Compare(N, "=", 3), version=v) for v in (1, 2, 3)] == ["a", "", ""]
    assert [table.find(Compare(N, "=", 103), version=v) for v in (1, 2, 3)] == ["", "", "a"]


# ---- partitions ----


def test_a_partition_value_is_exact(table: Table) -> None:
    table.add("a").add("z", 5, 6, region="us")
    both = And((Compare(REGION, "=", "us"), Compare(DAY, "=", date(2024, 1, 1))))
    for expr in (both, Compare(REGION, "=", "us"), In(REGION, ("us", "xx")), Compare(REGION, "!=", "eu")):
        assert table.find(expr) == "z"
    assert table.find(And((Compare(REGION, "=", "us"), Compare(N, "=", 9)))) == ""


def test_days_between_two_and_odd_years(table: Table) -> None:
    for day in ("2023-12-31", "2024-01-05", "2024-01-31", "12345-01-01", "+12345-01-01", "-0005-01-01"):
        table.add(f"[{day}]", day=day)
    found = table.find(And((Compare(DAY, ">=", date(2024, 1, 1)), Compare(DAY, "<", date(2024, 1, 31)))))
    assert "[2024-01-05]" in found
    assert "12345" in found  # years that Python does not have decide nothing
    assert "-0005" in found
    assert "2023" not in found
    assert "01-31" not in found


def test_null_partitions_are_found_by_is_null_alone(table: Table) -> None:
    table.add("a", region=None).add("b", region="").add("c", region="x")
    assert table.find(IsNull(REGION)) == "ab"
    assert table.find(Not(IsNull(REGION))) == "c"
    assert table.find(Compare(REGION, "=", "x")) == "c"
    assert table.find(Compare(REGION, "!=", "y")) == "c"
    assert table.find(Compare(REGION, ">", "a")) == "c"


def test_texts_of_partitions_that_engines_find_difficult(table: Table) -> None:
    table.add("a", region="x\0z").add("b", region="x\1b").add("c", region="xa").add(
        "d", region="é\U0001f600'"
    )
    assert table.find(Compare(REGION, "=", "x\0z")) == "a"
    assert table.find(Compare(REGION, "<", "xa")) == "ab"
    assert table.find(Compare(REGION, "<", "x\1b")) == "a"
    assert table.find(Compare(REGION, "=", "é\U0001f600'")) == "d"
    assert table.find(Compare(REGION, "=", "x'; DROP TABLE dl_files --")) == ""


def test_a_partition_value_that_is_not_one_of_its_type_is_kept(table: Table) -> None:
    table.add("a", day="someday").add("b", day="2024-02-02")
    assert table.find(Compare(DAY, "=", date(2024, 2, 2))) == "ab"
    assert table.find(Compare(DAY, "=", date(2024, 2, 3))) == "a"


def test_a_partition_of_a_type_that_packs_do_not_compare_is_exact(table: Table) -> None:
    columns = {**COLUMNS, "wide": "decimal(38,10)"}
    for bench in (table.recent, table.packed):
        given = metadata(schema_string=schema(columns), partition_columns=(*PARTITIONS, "wide"))
        bench.commit(info("REPLACE"), given)
    table.add("a", wide="1.5000000000").add("b", wide="12345678901234567890.5").add("c", wide=None)
    assert table.find(Compare(("wide",), "=", Decimal("1.5"))) == "a"
    assert table.find(Compare(("wide",), ">", Decimal(2))) == "b"
    assert table.find(IsNull(("wide",))) == "c"


def test_many_values_in_a_list(table: Table) -> None:
    table.add("a").add("z", 4, 4, region="r1500")
    assert table.find(In(REGION, tuple(f"r{i}" for i in range(2000)))) == "z"


# ---- statistics ----


def test_missing_statistics_are_always_kept_and_columns_of_nulls_are_not(table: Table) -> None:
    table.add("a", 1, 5).add("b").add("c", 7, None).add("d", None, 2).add("e", nulls=10)
    assert table.find(Compare(N, "=", 3)) == "ab"
    assert table.find(Compare(N, "=", 8)) == "abc"[1:]
    assert table.find(Compare(N, ">", 100)) == "bc"
    assert table.find(Compare(N, "<", -100)) == "bd"
    assert table.find(Not(IsNull(N))) == "abcd"
    assert table.find(IsNull(N)) == "e"
    assert table.find(And((Compare(N, ">=", IMIN), Compare(N, "<=", IMAX)))) == "abcd"


def test_nulls_are_counted(table: Table) -> None:
    table.add("a", 1, 5, nulls=0).add("b", 1, 5, nulls=3).add("c", 1, 5, nulls=None)
    assert table.find(IsNull(N)) == "bc"
    assert table.find(Not(IsNull(N))) == "abc"


def test_extremes_do_not_overflow(table: Table) -> None:
    table.add("a", IMIN, IMIN).add("b", IMAX, IMAX).add("c", IMIN, IMAX).add("d", 0, 0)
    assert table.find(Compare(N, "=", IMAX)) == "bc"
    assert table.find(Compare(N, "=", IMIN)) == "ac"
    assert table.find(Compare(N, ">=", IMAX)) == "bc"
    assert table.find(Compare(N, "<=", IMIN)) == "ac"
    assert table.find(Compare(N, "<", 2**80)) == "abcd"
    assert table.find(Compare(N, ">", -(2**80))) == "abcd"
    assert set(table.find(Compare(N, "=", 2**80))) <= set("bc")


def test_a_wide_interval_ends_far_beyond_the_literal(table: Table) -> None:
    table.add("a", 0, 1_000_000).add("b", 999_999, 1_000_000)
    assert table.find(Compare(N, "=", 3)) == "a"
    assert table.find(Compare(N, "=", 999_999)) == "ab"


def test_strict_comparisons_leave_the_value_itself_out(table: Table) -> None:
    table.add("a", 5, 5).add("b", 6, 6)
    assert table.find(Compare(N, "<", 6)) == "a"
    assert table.find(Compare(N, ">", 5)) == "b"
    assert table.find(Compare(N, "!=", 5)) == "b"


def test_nan_above_the_maximum_is_not_lost(table: Table) -> None:
    table.add("a", 1.0, 2.0, column="f").add("b", 8.0, 9.0, column="f")
    assert table.find(Compare(F, ">", 5.0)) == "ab"
    assert table.find(And((Compare(F, ">", 5.0), Compare(F, "<", 20.0)))) == "b"
    assert table.find(Compare(F, "<", 5.0)) == "a"
    assert table.find(Compare(F, "=", 8.5)) == "b"
    assert table.find(Compare(F, "!=", 1.0)) == "ab"
    assert table.find(Compare(F, "=", float("nan"))) == "ab"
    assert table.find(Not(Compare(F, ">", 5.0))) == "ab"


def test_texts_that_share_eight_bytes_are_told_apart(table: Table) -> None:
    table.add("a", "prefix--1", "prefix--2", column="t").add("b", "other", "other", column="t")
    assert table.find(Compare(T, "=", "prefix--9")) == ""
    assert table.find(Compare(T, "=", "prefix--1")) == "a"
    assert table.find(StartsWith(T, "prefix")) == "a"
    assert table.find(StartsWith(T, "o")) == "b"
    assert table.find(StartsWith(T, "")) == "ab"
    assert table.find(Not(StartsWith(T, "o"))) == "a"


def test_or_prunes_only_where_every_part_does(table: Table) -> None:
    table.add("a", 1, 1).add("b", 5, 5).add("c", 9, 9)
    assert table.find(Or((Compare(N, "=", 1), Compare(N, "=", 9)))) == "ac"
    assert table.find(Or((Compare(N, "=", 1), Unknown("f(x)")))) == "abc"
    assert table.find(Or((Compare(N, "=", 1), Compare(F, ">", 3.0)))) == "abc"
    assert table.find(Or((Compare(N, "=", 1), And((Unknown("f(x)"), Compare(N, "=", 5)))))) == "ab"
    assert table.find(And((Compare(N, ">=", 5), Unknown("f(x)")))) == "bc"


def test_lists_are_several_values(table: Table) -> None:
    table.commit(*(one(path, v, v) for path, v in zip("abcde", (1, 3, 5, 7, 900), strict=True)))
    assert table.find(In(N, (1, 7))) == "ad"
    assert table.find(In(N, tuple(range(1, 100, 2)))) == "abcd"
    assert table.find(Not(In(N, (1, 7)))) == "bce"


def test_constants_need_no_columns(table: Table) -> None:
    table.add("a", 1, 1)
    assert table.find(TRUE) == "a"
    assert table.find(FALSE) == ""
    assert table.find(Unknown("f(x)")) == "a"


def test_literals_of_another_type_rule_nothing_out(table: Table) -> None:
    table.add("a", 1, 1)
    for value in ("x", date(2024, 1, 1)):
        for op in ("=", "!=", "<", ">"):
            assert table.find(Compare(N, op, value)) == "a"


# ---- schemas that change ----


def test_files_from_before_a_column_was_added_or_replaced(table: Table) -> None:
    """What a pack says about a column it was made for says nothing about a later one of another type."""
    table.add("a", 1, 1)
    table.find(None)  # packs it
    for bench in (table.recent, table.packed):
        given = metadata(
            schema_string=schema({**COLUMNS, "n": "string", "e": "long"}), partition_columns=PARTITIONS
        )
        bench.commit(info("REPLACE"), given)
    table.add("b", "x", "y").add("c", 5, 6, column="e")
    assert table.find(Compare(("e",), "=", 9)) == "ab"
    assert "b" in table.find(Compare(N, "=", "x"))
    assert "c" in table.find(Compare(N, "=", "zz"))
    assert table.find(Compare(N, "=", "zz"), version=table.recent.open().snapshot.version) != ""


def test_files_from_before_a_column_became_a_partition(table: Table) -> None:
    table.add("a", 1, 1, region="x").commit()
    table.find(None)
    for bench in (table.recent, table.packed):
        bench.commit(info("REPLACE"), metadata(schema_string=schema(COLUMNS), partition_columns=("c",)))
    new = one("b", 1, 1)
    table.commit(Add(**{**fields(new), "partition_values": {"c": "5"}}))
    assert table.find(Compare(C, "=", 5)) == "ab"
    assert table.find(Compare(C, "=", 6)) == "a"


def fields(add: Add) -> dict[str, Any]:
    return {
        name: getattr(add, name) for name in ("path", "size", "modification_time", "data_change", "stats")
    }


# ---- cost ----


def test_statements_of_a_plan_do_not_grow_with_the_table(table: Table) -> None:
    def statements() -> int:
        with count_statements() as sent:
            opened = table.packed.open()
            with count_statements() as sent:
                paths(table.database, opened, Compare(N, "=", 3))
        return len(sent)

    table.commit(*(one(f"a{n}", n, n) for n in range(20)))
    table.find(None)
    few = statements()
    table.commit(*(one(f"b{n}", n, n) for n in range(200)))
    table.find(None)
    assert statements() == few <= 6


def test_packs_whose_zones_rule_them_out_are_not_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.commit(*(one(f"a{n:03}", n, n) for n in range(160)))
    table.find(None)
    read: list[int] = []
    inner = packs.columns_of

    def columns_of(session: Any, rows: Any, *more: Any) -> Any:
        read.append(len(rows))
        return inner(session, rows, *more)

    monkeypatch.setattr(packs, "columns_of", columns_of)
    assert paths(table.database, table.packed.open(), Compare(N, "=", 100)) == "a100"
    assert read == [1]
