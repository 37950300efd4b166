"""Plans: what drives them, what they bind, and the rows that a careless plan would lose."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import replace
from datetime import date
from importlib import resources
from typing import Any

import pytest

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore.engines.duckdb import DIALECT as DUCKDB
from deltalakedb.metastore.engines.sqlite import DIALECT as SQLITE
from deltalakedb.metastore.files.pruning import plan_files
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.images import EMPTY, IMAX, IMIN, MISSING
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
from deltalakedb.protocol.schema import PrimitiveType, StructField, StructType
from deltalakedb.protocol.slots import (
    SLOT_COLUMNS,
    Slot,
    SlotEncoder,
    assign_slots,
    column_types,
    count_levels,
)

COLUMNS = {
    "day": "date",
    "region": "string",
    "n": "long",
    "f": "double",
    "t": "string",
    "c": "long",
    "e": "long",
}
SCHEMA = StructType(tuple(StructField(n, PrimitiveType(k)) for n, k in COLUMNS.items()))
SLOTS = assign_slots(SCHEMA, ["day", "region"], {})
N, F, T, DAY, REGION, E = ("n",), ("f",), ("t",), ("day",), ("region",), ("e",)


class Table:
    """A table of files in SQLite, with the catalog's own tables and indexes."""

    def __init__(self, slots: list[Slot] = SLOTS, table_id: int = 7) -> None:
        self.db = sqlite3.connect(":memory:")
        self.id = table_id
        self.slots = slots
        self.rows: list[tuple[Any, ...]] = []
        text = (
            resources.files("deltalakedb.metastore") / "sql" / "migrations" / "0001_catalog.sql"
        ).read_text()
        plain = "\n".join(x for x in text.splitlines() if not x.startswith("--"))
        for body in map(str.strip, plain.split(";")):
            if re.match(r"CREATE (TABLE|INDEX) dl_file", body):
                body = body.replace("{files_side_columns}", "").replace("{file_id}", "INTEGER PRIMARY KEY")
                self.db.execute(re.sub(r"\{(\w+)\}", lambda m: "TEXT" if "text" in m[1] else "BIGINT", body))

    def add(
        self,
        path: str,
        low=None,
        high=None,
        *,
        column="n",
        nulls=0,
        added=0,
        removed=None,
        slots=None,
        **parts,
    ):
        stats = {"numRecords": 10, "minValues": {}, "maxValues": {}, "nullCount": {column: nulls}}
        if low is not None:
            stats["minValues"][column] = low
        if high is not None:
            stats["maxValues"][column] = high
        parts = {"day": "2024-01-01", "region": "eu", **parts}
        add = Add(
            path=path,
            size=1,
            modification_time=0,
            data_change=True,
            stats=json.dumps(stats),
            partition_values=parts,
        )
        row = SlotEncoder(slots or self.slots, column_types(SCHEMA)).encode(add)
        self.rows.append(row)
        names = [
            "file_id",
            "table_id",
            "add_version",
            "remove_version",
            "tombstone",
            "path_hash",
            "path",
            "dv_id",
        ]
        names += ["size", "modification_time", "data_change", *SLOT_COLUMNS]
        values = ((self.id << 40) | len(self.rows), self.id, added, removed, 1, 0, path, "", 1, 0, 1, *row)
        self.db.execute(
            f"INSERT INTO dl_files ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values
        )
        return self

    def plan(self, expr, *, version=10, facts=SQLITE, columns=("path",), levels=None):
        return plan_files(
            expr,
            table_id=self.id,
            version=version,
            slots=self.slots,
            levels=count_levels(self.rows) if levels is None else levels,
            columns=columns,
            facts=facts,
        )

    def find(self, expr, **options) -> str:
        plan = self.plan(expr, **options)
        return "".join(sorted(row[0] for row in self.db.execute(plan.sql, plan.params)))

    def explain(self, expr, **options) -> str:
        plan = self.plan(expr, **options)
        return "\n".join(row[3] for row in self.db.execute(f"EXPLAIN QUERY PLAN {plan.sql}", plan.params))


@pytest.fixture
def table() -> Table:
    made = Table()
    for number in range(200):
        made.add("x", number * 1000, number * 1000 + 10, added=1)
    return made


def test_without_a_predicate_all_live_files_are_listed_by_their_ids(table):
    table.add("y", added=2, removed=5)
    plan = table.plan(None)
    assert plan.residual is None
    assert plan.params[:2] == (7 << 40, 8 << 40)
    assert "table_id" not in plan.sql.partition("UNION ALL")[0]
    assert table.find(None) == "x" * 200
    assert "INTEGER PRIMARY KEY" in table.explain(None)


def test_an_older_version_brings_removed_files_back_and_hides_newer_ones():
    made = Table().add("a").add("b", added=3, removed=6).add("c", added=8).add("d", added=0, removed=2)
    assert made.find(None, version=10) == "ac"
    assert made.find(None, version=5) == "ab"
    assert made.find(None, version=1) == "ad"
    for facts in (SQLITE, replace(SQLITE, indexed=False)):
        assert made.find(Compare(N, "=", 3), version=5, facts=facts) == "ab"
    assert "dl_files_removed" in made.explain(None, version=5)


def test_a_range_drives_through_its_index_with_a_branch_for_each_level(table):
    table.add("w", 0, 10**15, added=1)
    plan = table.plan(Compare(N, "=", 5005))
    assert plan.driver == "s0"
    assert plan.sql.count("UNION ALL") == 3  # and one for files that were removed since
    assert table.find(Compare(N, "=", 5005)) == "wx"
    assert table.explain(Compare(N, "=", 5005)).count("dl_files_slot0") == 3
    assert plan.residual == Compare(N, "=", 5005)


def test_a_partition_value_drives_and_needs_no_recheck(table):
    table.add("z", 5, 6, region="us")
    plan = table.plan(And((Compare(REGION, "=", "us"), Compare(DAY, "=", date(2024, 1, 1)))))
    assert plan.driver in ("p0", "p1")
    assert plan.residual is None
    assert "dl_files_part" in table.explain(Compare(REGION, "=", "us"))
    assert table.find(Compare(REGION, "=", "us")) == "z"
    assert table.find(In(REGION, ("us", "xx"))) == "z"
    assert table.find(Compare(REGION, "!=", "eu")) == "z"


def test_a_selective_range_drives_before_a_partition_value(table):
    both = And((Compare(REGION, "=", "eu"), Compare(N, "=", 5005)))
    assert table.plan(both).driver == "s0"
    assert "dl_files_slot0" in table.explain(both)
    assert "dl_files_part" not in table.explain(both)
    wide = And((Compare(REGION, "=", "eu"), Compare(N, ">", 50_000)))
    assert table.plan(wide).driver == "p1"
    assert "dl_files_part1" in table.explain(wide)


def test_a_range_that_leaves_most_files_scans_by_id(table):
    plan = table.plan(Compare(N, ">", 5000))
    assert plan.driver is None
    assert "INTEGER PRIMARY KEY" in table.explain(Compare(N, ">", 5000))
    assert len(table.find(Compare(N, ">", 5000))) == 195


def test_days_between_two_drive_by_their_text_and_odd_years_are_kept():
    made = Table()
    for day in ("2023-12-31", "2024-01-05", "2024-01-31", "12345-01-01", "+12345-01-01", "-0005-01-01"):
        made.add(f"[{day}]", day=day)
    between = And((Compare(DAY, ">=", date(2024, 1, 1)), Compare(DAY, "<", date(2024, 1, 31))))
    assert made.plan(between).driver == "p0"
    assert "dl_files_part0" in made.explain(between)
    for facts in (SQLITE, replace(SQLITE, indexed=False)):
        found = made.find(between, facts=facts)
        assert "[2024-01-05]" in found
        assert "12345" in found
        assert "-0005" in found
        assert "2023" not in found
        assert "01-31" not in found


def test_null_partitions_are_found_by_is_null_alone():
    made = Table().add("a", region=None).add("b", region="").add("c", region="x")
    assert made.find(IsNull(REGION)) == "ab"
    assert made.find(Not(IsNull(REGION))) == "c"
    assert made.find(Compare(REGION, "=", "x")) == "c"
    assert made.find(Compare(REGION, "!=", "y")) == "c"
    assert made.find(Compare(REGION, ">", "a")) == "c"
    assert made.plan(IsNull(REGION)).driver == "p1"


def test_a_nul_in_a_partition_value_is_stored_without_it_and_not_lost():
    made = Table().add("a", region="x\0z").add("b", region="x\1b").add("c", region="xa")
    assert not any("\0" in str(value) for row in made.rows for value in row)
    assert "a" in made.find(Compare(REGION, "=", "x\0z"))
    assert made.plan(Compare(REGION, "=", "x\0z")).residual is not None
    assert "a" in made.find(Compare(REGION, "<", "x\1b"))
    assert "a" in made.find(Compare(REGION, "!=", "x\1z"))
    assert made.find(Compare(REGION, "<", "xa")) == "ab"


def test_missing_statistics_are_always_kept_and_columns_of_nulls_are_not():
    made = Table().add("a", 1, 5).add("b").add("c", 7, None).add("d", None, 2).add("e", nulls=10)
    assert made.find(Compare(N, "=", 3)) == "ab"
    assert made.find(Compare(N, "=", 8)) == "bc"
    assert made.find(Compare(N, ">", 100)) == "bc"
    assert made.find(Compare(N, "<", -100)) == "bd"
    assert made.find(Not(IsNull(N))) == "abcd"
    assert made.find(IsNull(N)) == "e"
    assert made.find(And((Compare(N, ">=", IMIN), Compare(N, "<=", IMAX)))) in ("abcd", "abcde")


def test_nulls_are_looked_up_in_the_masks():
    made = Table().add("a", 1, 5, nulls=0).add("b", 1, 5, nulls=3).add("c", 1, 5, nulls=None)
    assert made.find(IsNull(N)) == "bc"
    assert made.find(Not(IsNull(N))) == "abc"


def test_extremes_do_not_overflow():
    made = Table().add("a", IMIN, IMIN).add("b", IMAX, IMAX).add("c", IMIN, IMAX).add("d", 0, 0)
    assert made.find(Compare(N, "=", IMAX)) == "bc"
    assert made.find(Compare(N, "=", IMIN)) == "ac"
    assert made.find(Compare(N, ">=", IMAX)) == "bc"
    assert made.find(Compare(N, "<=", IMIN)) == "ac"
    assert made.find(Compare(N, "=", 2**80)) in ("bc", "c", "")
    assert made.find(Compare(N, "<", 2**80)) == "abcd"
    assert made.find(Compare(N, ">", -(2**80))) == "abcd"
    assert all(IMIN <= p <= IMAX for p in made.plan(Compare(N, "=", IMAX)).params)


def test_a_wide_interval_ends_far_beyond_the_literal():
    made = Table().add("a", 0, 1_000_000).add("b", 999_999, 1_000_000)
    assert made.find(Compare(N, "=", 3)) == "a"
    assert made.find(Compare(N, "=", 999_999)) == "ab"


def test_strict_comparisons_leave_the_value_itself_out():
    made = Table().add("a", 5, 5).add("b", 6, 6)
    assert made.find(Compare(N, "<", 6)) == "a"
    assert made.find(Compare(N, ">", 5)) == "b"
    assert made.find(Compare(N, "!=", 5)) == "b"


def test_nan_above_the_maximum_is_not_lost():
    made = Table().add("a", 1.0, 2.0, column="f").add("b", 8.0, 9.0, column="f")
    assert made.find(Compare(F, ">", 5.0)) == "ab"
    assert made.find(And((Compare(F, ">", 5.0), Compare(F, "<", 20.0)))) == "b"
    assert made.find(Compare(F, "<", 5.0)) == "a"
    assert made.find(Compare(F, "=", 8.5)) == "b"
    assert made.find(Compare(F, "!=", 1.0)) == "ab"
    assert made.find(Compare(F, "=", float("nan"))) == "ab"
    assert made.find(Not(Compare(F, ">", 5.0))) == "ab"


def test_texts_that_share_eight_bytes_are_kept_for_the_recheck():
    made = Table().add("a", "prefix--1", "prefix--2", column="t").add("b", "other", "other", column="t")
    assert made.find(Compare(T, "=", "prefix--9")) == "a"
    assert made.find(StartsWith(T, "prefix")) == "a"
    assert made.find(StartsWith(T, "o")) == "b"
    assert made.find(StartsWith(T, "")) == "ab"
    assert made.find(Not(StartsWith(T, "o"))) == "ab"


def test_or_prunes_only_where_every_part_does():
    made = Table().add("a", 1, 1).add("b", 5, 5).add("c", 9, 9)
    assert made.find(Or((Compare(N, "=", 1), Compare(N, "=", 9)))) == "ac"
    assert made.find(Or((Compare(N, "=", 1), Unknown("f(x)")))) == "abc"
    assert made.find(Or((Compare(N, "=", 1), Compare(F, ">", 3.0)))) == "abc"
    assert made.find(Or((Compare(N, "=", 1), And((Unknown("f(x)"), Compare(N, "=", 5)))))) == "ab"
    assert made.find(And((Compare(N, ">=", 5), Unknown("f(x)")))) == "bc"


def test_lists_are_several_values_or_a_range_around_them():
    made = Table()
    for path, value in zip("abcde", (1, 3, 5, 7, 900), strict=True):
        made.add(path, value, value)
    assert made.find(In(N, (1, 7))) == "ad"
    assert made.find(In(N, tuple(range(1, 100, 2)))) == "abcd"
    assert made.find(Not(In(N, (1, 7)))) == "bce"
    many = tuple(f"r{i}" for i in range(2000))
    made.add("z", 4, 4, region="r1500")
    plan = made.plan(In(REGION, many))
    assert len(plan.params) < 100
    assert plan.residual is not None
    assert made.find(In(REGION, many)) == "z"


def test_constants_need_no_columns():
    made = Table().add("a", 1, 1)
    assert made.find(TRUE) == "a"
    assert made.find(FALSE) == ""
    assert made.plan(TRUE).residual is None
    assert made.find(Unknown("f(x)")) == "a"


def test_rows_from_before_a_slot_was_reused_are_never_judged_by_it():
    old = [Slot("s", 0, N, "int")]
    new = [Slot("s", 0, ("c",), "int", since=5)]
    made = Table(new)
    made.add("a", 1, 1, added=1, slots=old)
    made.add("b", 1, 1, column="c", added=6)
    made.add("c", 9, 9, column="c", added=6)
    assert made.find(Compare(("c",), "=", 9)) == "ac"
    assert made.plan(Compare(("c",), "=", 9)).driver is None


def test_rows_from_before_a_column_became_a_partition_are_not_judged_by_its_text():
    made = Table([Slot("p", 0, REGION, "string", since=5)])
    made.add("a", added=1, slots=[Slot("s", 3, E, "int")])
    made.add("b", added=6, region="x")
    made.add("c", added=6, region="y")
    assert made.find(Compare(REGION, "=", "x")) == "ab"
    assert made.plan(Compare(REGION, "=", "x")).residual is not None


def test_rows_from_before_a_fresh_slot_was_taken_are_found_though_no_level_counts_them():
    made = Table([Slot("s", 0, N, "int")])
    made.add("a", slots=[Slot("s", 9, E, "int")])
    for number in range(50):
        made.add("b", number * 100, number * 100)
    levels = [x for x in count_levels(made.rows) if x.level != MISSING]
    assert made.plan(Compare(N, "=", 300), levels=levels).driver == "s0"
    assert made.find(Compare(N, "=", 300), levels=levels) == "ab"


def test_without_level_rows_nothing_drives():
    made = Table().add("a", 5, 5)
    assert made.plan(Compare(N, "=", 5), levels=[]).driver is None
    assert made.find(Compare(N, "=", 5), levels=[]) == "a"


def test_empty_columns_cost_no_branch():
    made = Table().add("a", nulls=10)
    plan = made.plan(Compare(N, "=", 5))
    assert EMPTY not in plan.params
    assert made.find(Compare(N, "=", 5)) == ""


def test_side_columns_come_from_their_own_table_where_there_is_one():
    made = Table().add("a", 1, 1)
    plan = made.plan(None, columns=["file_id", "path", "stats"])
    assert plan.sql.startswith("SELECT f.file_id, f.path, j.stats FROM dl_files f JOIN dl_file_json j")
    assert "JOIN" not in made.plan(None).sql
    assert made.plan(None, columns=["stats"], facts=DUCKDB).sql.startswith(
        "SELECT f.stats FROM dl_files f WHERE"
    )


def test_without_indexes_the_plan_is_one_plain_select():
    made = Table().add("a", 1, 1)
    for version in (10, 4):
        plan = made.plan(And((Compare(N, "=", 1), Compare(REGION, "=", "eu"))), version=version, facts=DUCKDB)
        assert "UNION" not in plan.sql
        assert plan.driver is None


def test_values_are_always_bound():
    made = Table().add("a", 1, 1)
    plan = made.plan(Compare(REGION, "=", "x'; DROP TABLE dl_files --"))
    assert "DROP" not in plan.sql
    with pytest.raises(InvalidArgumentError):
        made.plan(None, columns=["path; DROP TABLE dl_files"])


def test_literals_of_another_type_than_the_slot_rule_nothing_out():
    made = Table().add("a", 1, 1)
    for value in (1.5, "x", date(2024, 1, 1), True):
        for op in ("=", "!=", "<", ">"):
            assert made.find(Compare(N, op, value)) == "a"
