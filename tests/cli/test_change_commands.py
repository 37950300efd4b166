"""``deltasql write``, ``alter``, ``optimize`` and ``restore``: what they read, commit and report."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb import Catalog

if TYPE_CHECKING:
    from cli.conftest import Deltasql, DeltasqlJson, Program

CSV = "id,city,day\n1,Rome,2026-11-15\n2,Oslo,2026-11-16\n"


@pytest.fixture
def engine_name() -> str:
    return "sqlite"


@pytest.fixture
def orders(deltasql: Deltasql) -> str:
    """A table of two versions, by day."""
    Path("o.csv").write_text(CSV)
    deltasql("init")
    deltasql("write", "sales.orders", "o.csv", "--location", "lake/orders", "--partition-by", "day")
    deltasql("write", "sales.orders", "o.csv")
    return "sales.orders"


def rows(catalog_uri: str, name: str) -> list[dict[str, object]]:
    with Catalog(catalog_uri) as catalog:
        found: list[dict[str, object]] = catalog.table(name).to_pyarrow_table().sort_by("id").to_pylist()
        return found


def test_files_of_every_format_are_written(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str
) -> None:
    Path("o.csv").write_text(CSV)
    assert "deltasql init" in deltasql("write", "t", "o.csv", code=1).stderr
    deltasql("init")
    assert "pass --location DIR" in deltasql("write", "t", "o.csv", code=2).stderr
    made = deltasql("write", "t", "o.csv", "--location", "t", "--partition-by", "day").stdout
    assert made == f"Wrote 2 rows to t, version 0. Created the table at {Path('t').absolute()}.\n"
    Path("o.tsv").write_text("id\tcity\tday\n3\tBern\t2026-11-17\n")
    Path("o.jsonl").write_text('{"id": 4, "city": "Lima", "day": "2026-11-18"}\n')
    with gzip.open("more.csv.gz", "wt") as stream:
        stream.write("id,city,day\n5,Bonn,2026-11-19\n")
    pq.write_table(pa.table({"id": [6], "city": ["Nice"]}), "o.parquet")
    for version, file in enumerate(("o.tsv", "o.jsonl", "more.csv.gz", "o.parquet"), start=1):
        done = deltasql_json("write", "t", file)
        assert (done["version"], done["rows"], done["created"]) == (version, 1, False)
    assert [(r["id"], r["city"]) for r in rows(catalog_uri, "t")] == [
        (1, "Rome"), (2, "Oslo"), (3, "Bern"), (4, "Lima"), (5, "Bonn"), (6, "Nice"),
    ]  # fmt: skip
    assert rows(catalog_uri, "t")[5]["day"] is None
    assert deltasql_json("show", "t")["partition_columns"] == ["day"]
    assert deltasql("write", str(Path("t").absolute()), "o.csv", "--quiet").stdout == "5\n"


def test_an_empty_csv_value_is_null_and_a_quoted_one_is_not(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str
) -> None:
    Path("a.csv").write_text('id,city,n\n1,,\n2,"",5\n3,NULL,6\n4,Rome,NULL\n')
    deltasql("init", "--root", "lake")
    deltasql("create", "plain", "--schema", "id:long,city:string,n:long")
    wrong = deltasql_json("write", "plain", "a.csv", code=2)
    assert "--null TEXT" in wrong["suggestion"]
    deltasql("write", "plain", "a.csv", "--null", "NULL")
    assert [(r["city"], r["n"]) for r in rows(catalog_uri, "plain")] == [
        (None, None), ("", 5), (None, 6), ("Rome", None),
    ]  # fmt: skip
    # Delta has no empty partition value
    Path("b.csv").write_text('id,city\n1,\n2,""\n3,Rome\n')
    deltasql("write", "parts", "b.csv", "--partition-by", "city")
    deltasql("write", "parts", "-", "--format", "json", stdin='{"id": 4, "city": ""}\n')
    assert [r["city"] for r in rows(catalog_uri, "parts")] == [None, None, "Rome", None]
    assert {f["partition_values"]["city"] for f in deltasql_json("files", "parts")["files"]} == {None, "Rome"}
    stats = deltasql_json("stats", "parts")
    assert sorted(str(p["values"]["city"]) for p in stats["partitions"]) == ["None", "Rome"]
    assert stats["num_partitions"] == 2
    added = deltasql_json("diff", "parts", "--rows")["rows"]
    assert added == [{"change": "added", "count": 1, "row": {"id": 4, "city": None}}]


def test_a_mode_says_what_to_do_with_a_table_that_exists(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, catalog_uri: str
) -> None:
    assert "nothing was written" in deltasql("write", orders, "o.csv", "--mode", "ignore").stdout
    ignored = deltasql_json("write", orders, "o.csv", "--mode", "ignore")
    assert (ignored["version"], ignored["rows"]) == (None, 0)
    assert deltasql_json("write", orders, "o.csv", "--mode", "error", code=1)["error"] == "TableExistsError"
    Path("new.csv").write_text("id,note\n9,x\n")
    refused = deltasql_json("write", orders, "new.csv", code=1)
    assert refused["error"] == "SchemaError"
    assert "note" in refused["message"]
    assert "--schema-mode merge" in refused["suggestion"]
    deltasql("write", orders, "new.csv", "--schema-mode", "merge")
    assert rows(catalog_uri, orders)[-1] == {"id": 9, "city": None, "day": None, "note": "x"}
    deltasql("write", orders, "o.csv", "--mode", "overwrite")
    assert [r["id"] for r in rows(catalog_uri, orders)] == [1, 2]
    assert (
        "needs --mode overwrite"
        in deltasql("write", orders, "o.csv", "--schema-mode", "overwrite", code=2).stderr
    )
    pq.write_table(pa.table({"id": ["a"]}), "text.parquet")
    replaced = ("write", orders, "text.parquet", "--mode", "overwrite", "--schema-mode", "overwrite")
    assert "no column 'day' to partition the table by" in deltasql(*replaced, code=2).stderr


def test_bad_input_writes_nothing(deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str) -> None:
    Path("half.csv").write_text("id,city,day\n7,Rome,2026-11-15\nseven,Oslo,2026-11-16\n")
    wrong = deltasql_json("write", orders, "half.csv", code=2)
    assert "half.csv cannot be read as csv" in wrong["message"]
    assert "'seven'" in wrong["message"]
    Path("array.json").write_text('[{"id": 1}]')
    assert "one JSON object per line" in deltasql("write", orders, "array.json", code=2).stderr
    Path("empty.csv").write_text("")
    deltasql("write", orders, "empty.csv", code=2)
    Path("o.bin").write_text(CSV)
    assert "--format" in deltasql("write", orders, "o.bin", code=2).stderr
    deltasql("write", orders, "o.bin", "--format", "parquet", code=2)
    assert "does not exist" in deltasql("write", orders, "nope.csv", code=2).stderr
    assert "pass --format" in deltasql("write", orders, "-", code=2, stdin=CSV).stderr
    assert "other files" in deltasql("write", orders, "-", "o.csv", "--format", "csv", code=2).stderr
    deltasql("write", orders, code=2)
    deltasql("write", orders, "o.csv", "--delimiter", ";;", code=2)
    Path("other.csv").write_text("id,town\n1,Rome\n")
    assert "different columns" in deltasql("write", orders, "o.csv", "other.csv", code=1).stderr
    assert deltasql_json("show", orders)["version"] == 1
    assert deltasql_json("write", orders, "o.csv", "o.bin", "--format", "csv")["rows"] == 4


def test_the_input_is_written(deltasql_json: DeltasqlJson, deltasql: Deltasql, orders: str) -> None:
    text = deltasql("write", orders, "-", "--format", "csv", "--delimiter", ";", stdin=CSV.replace(",", ";"))
    assert text.stdout == "Wrote 2 rows to sales.orders, version 2.\n"
    line = json.dumps({"id": 8, "city": "Bern", "day": "2026-11-17"})
    assert "Wrote 1 row " in deltasql("write", orders, "-", "--format", "json", stdin=f"{line}\n").stdout
    assert deltasql_json("show", orders)["num_records"] == 7


def test_a_table_is_altered_all_at_once_or_not_at_all(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str
) -> None:
    done = deltasql(
        "alter", orders, "--add-column", "note:string", "--add-column", "n:decimal(10,2)",
        "--comment", "note=What the customer said", "--add-constraint", "positive=id > 0",
        "--set", "delta.appendOnly=true", "--set", "owner=ada", "--description", "All orders",
    )  # fmt: skip
    version = deltasql_json("show", orders)["version"]
    assert done.stdout == f"Altered {orders}, version {version}.\n"
    assert version == 2, "one version for all changes"
    (newest, *_) = deltasql_json("history", orders)["commits"]
    assert newest["operation"] == "TRANSACTION"
    columns = {f["name"]: f for f in deltasql_json("schema", orders)["fields"]}
    assert columns["n"]["type"] == "decimal(10,2)"
    assert columns["note"]["metadata"] == {"comment": "What the customer said"}
    shown = deltasql_json("show", orders)
    assert shown["description"] == "All orders"
    assert shown["properties"] == {
        "delta.appendOnly": "true", "delta.constraints.positive": "id > 0", "owner": "ada",
    }  # fmt: skip
    altered = deltasql_json(
        "alter",
        orders,
        "--unset",
        "owner",
        "--set",
        "delta.appendOnly=false",
        "--drop-constraint",
        "positive",
    )
    shown = deltasql_json("show", orders)
    assert (shown["properties"], shown["version"]) == ({"delta.appendOnly": "false"}, altered["version"])
    assert altered["version"] == version + 1
    assert "nothing to change" in deltasql("alter", orders, code=2).stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--add-column", "id:long"], 2, "already has a column id"),
        (["--add-column", "x:long!"], 2, "cannot be NOT NULL"),
        (["--add-column", "x:lon"], 2, "no type 'lon'"),
        (["--comment", "cty=x"], 2, "did you mean city?"),
        (["--drop-not-null", "nope"], 2, "no column nope"),
        (["--drop-constraint", "nope"], 2, "it has no constraints"),
        (["--add-constraint", "big=id > 1"], 1, "failed validation"),
        (["--add-constraint", "bad=nope > 1"], 1, "nope"),
        (["--set", "delta.appendOny=true"], 2, "did you mean delta.appendOnly?"),
        (["--set", "delta.appendOnly=yes"], 2, "use true or false"),
        (["--set", "delta.constraints.x=id > 0"], 2, "--add-constraint"),
        (["--set", "owner"], 2, "key=value"),
        (["--unset", "owner"], 2, "no property owner"),
    ],
)
def test_a_change_that_cannot_be_leaves_the_table_as_it_was(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, words: list[str], code: int, said: str
) -> None:
    error = deltasql("alter", orders, "--set", "mine=1", *words, code=code).stderr
    assert said in error
    assert "Generic" not in error
    shown = deltasql_json("show", orders)
    assert (shown["version"], shown["properties"]) == (1, {})


def test_small_files_are_joined_and_rows_ordered(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, catalog_uri: str
) -> None:
    before = rows(catalog_uri, orders)
    done = deltasql("optimize", orders, "--where", "day IN ('2026-11-15')").stdout
    assert done == "Joined 2 files of sales.orders into 1, version 2.\n"
    rest = deltasql_json("optimize", orders, "--target-size", "64MiB")
    assert (rest["version"], rest["files_added"], rest["files_removed"], rest["partitions"]) == (3, 1, 2, 1)
    assert rest["size_removed"] > rest["size_added"] > 0
    assert "There is nothing to join" in deltasql("optimize", orders).stdout
    assert (
        deltasql_json("optimize", orders, "--zorder", "id, city", "--where", "day > '2026-11-15'")["version"]
        == 4
    )
    assert "Ordered" in deltasql("optimize", orders, "--zorder", "city").stdout
    assert rows(catalog_uri, orders) == before
    assert "the partition columns are day" in deltasql("optimize", orders, "--where", "id = 1", code=2).stderr
    either = "day = '2026-11-15' OR day = '2026-11-16'"
    assert "AND" in deltasql("optimize", orders, "--where", either, code=2).stderr
    deltasql("optimize", orders, "--where", "day =", code=2)
    assert "the table has no column nope" in deltasql("optimize", orders, "--zorder", "nope", code=2).stderr
    deltasql("optimize", orders, "--zorder", ",", code=2)
    deltasql("optimize", orders, "--target-size", "much", code=2)
    assert deltasql_json("optimize", "nope", code=1)["error"] == "TableMissingError"


def test_an_older_version_is_restored_as_its_dry_run_says(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, catalog_uri: str
) -> None:
    deltasql("write", orders, "o.csv", "--mode", "overwrite")
    back = ("restore", orders, "--to", "1")
    shown = deltasql(*back, "--dry-run").stdout
    would = deltasql_json(*back, "--dry-run")
    assert would == {
        "table": orders, "restored_version": 1, "version": 3, "num_restored": 4, "num_removed": 2,
        "dry_run": True,
    }  # fmt: skip
    assert "pass --yes" in deltasql(*back, code=2).stderr
    assert len(rows(catalog_uri, orders)) == 2
    assert deltasql(*back, "--yes").stdout == shown.replace("Would restore", "Restored")
    assert len(rows(catalog_uri, orders)) == 4
    time = deltasql_json("history", orders)["commits"][-1]["committed_at"]
    done = deltasql_json("restore", orders, "--to", time, "--yes")
    assert (done["restored_version"], done["version"]) == (0, 4)
    assert "deltasql history" in deltasql("restore", orders, "--to", "9", "--yes", code=2).stderr
    assert "not a time" in deltasql("restore", orders, "--to", "yesterday", code=2).stderr
    deltasql("restore", orders, code=2)
    deltasql("vacuum", orders, "--retention-hours", "0", "--no-check", "--yes")
    for words in (("--dry-run",), ("--yes",)):
        refused = deltasql_json("restore", orders, "--to", "2", *words, code=1)
        assert "--ignore-missing-files" in refused["suggestion"]
    assert (
        deltasql_json("restore", orders, "--to", "2", "--ignore-missing-files", "--dry-run")["version"] == 7
    )


def test_a_restore_leaves_out_files_that_were_deleted(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str, catalog_uri: str
) -> None:
    deltasql("write", orders, "o.csv", "--mode", "overwrite")
    deltasql("vacuum", orders, "--retention-hours", "0", "--no-check", "--yes")
    back = ("restore", orders, "--to", "1", "--ignore-missing-files")
    would = deltasql_json(*back, "--dry-run")
    done = deltasql_json(*back, "--yes")
    assert would | {"dry_run": False} == done
    assert done["num_restored"] == 0
    assert rows(catalog_uri, orders) == []


def test_a_time_before_the_first_version_is_not_restored(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: str
) -> None:
    before = deltasql_json("show", orders)["version"]
    assert "2020-01-01" in deltasql("restore", orders, "--to", "2020-01-01", "--yes", code=1).stderr
    assert deltasql_json("show", orders)["version"] == before


def test_creating_checks_what_it_is_given(deltasql: Deltasql, orders: str) -> None:
    schema = ("--schema", "a:long")
    deltasql("create", orders, *schema, "--if-not-exists")
    for dry in ((), ("--dry-run",)):
        text = deltasql("create", "c", *schema, "--partition-by", "b", "--location", "c", *dry, code=2).stderr
        assert "'b' is not in the schema: a" in text
    text = deltasql("create", "c", "--from-parquet", "o.csv", "--location", "c", code=2).stderr
    assert "o.csv is not a Parquet file" in text
    text = deltasql("vacuum", orders, "--retention-hours", "0", "--dry-run", code=2).stderr
    assert "pass --no-check if" in text


def test_they_run_as_a_program(program: Program, tmp_path: Path) -> None:
    Path("o.csv").write_text(CSV)
    assert "Created a catalog" in program("init", "--root", str(tmp_path / "lake")).stdout
    for _ in range(2):
        assert program("write", "t", "o.csv").returncode == 0
    assert "Joined" in program("optimize", "t").stdout
    assert json.loads(program("alter", "t", "--set", "owner=ada", "--json").stdout)["version"] == 3
    assert "Restored t to version 0, as version 4." in program("restore", "t", "--to", "0", "--yes").stdout
    assert program("write", "t", "nope.csv").returncode == 2
    assert program("alter", "t").returncode == 2
