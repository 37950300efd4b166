"""The commands that move tables in and out: what they print, ask and end with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, write_deltalake
from support.lake import ids
from support.sources import change, plain_table

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return plain_table(tmp_path / "plain")


def test_a_dry_run_estimates_and_an_import_reports(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, plain: Path
) -> None:
    plan = deltasql_json("import", str(plain), "t", "--dry-run", "--history", "checkpoint")
    assert (plan["dry_run"], plan["first_version"], plan["num_files"], plan["exact"]) == (True, 4, 8, True)
    text = deltasql("import", str(plain), "t", "--dry-run").stdout
    assert "Would import" in text
    assert "memory" in text
    done = deltasql_json(
        "import", str(plain), "t", "--verify", "full", "--rate", "100000", "--batch-size", "10"
    )
    assert (done["action"], done["version"], done["verification"]["ok"]) == ("imported", 8, True)
    assert set(done["phases"]) == {"plan", "load", "verify", "finalize"}
    assert deltasql_json("import", str(plain), "t", code=1)["error"] == "TableExistsError"
    assert "nothing to do" in deltasql("import", str(plain), "t", "--catch-up").stdout
    deltalake.write_deltalake(plain, ids(99), mode="append")
    assert "Caught up" in deltasql("import", str(plain), "t", "--catch-up").stdout
    (status,) = deltasql_json("import-status", "t")["imports"]
    assert (status["phase"], status["table"]) == ("finalized", "t")
    assert "finalized" in deltasql("import-status").stdout
    assert "no imports" in deltasql("import-status", "other").stdout


def test_verify_ends_with_3_where_something_differs(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, plain: Path, catalog_uri: str
) -> None:
    deltasql("import", str(plain), "t", "--quiet")
    assert "matches the log" in deltasql("verify").stdout
    for level in ("counts", "digest", "full", "data"):
        assert deltasql_json("verify", "t", "--level", level)["ok"] is True
    change(catalog_uri, "UPDATE dl_files SET size = size + 1 WHERE remove_version IS NULL")
    found = deltasql_json("verify", "t", code=3)
    assert found["ok"] is False
    assert found["tables"][0]["num_differences"] == 8
    assert "differs in size" in deltasql("verify", code=3).stdout
    assert deltasql("verify", "--quiet", code=3).stdout == "t 8\n"
    deltasql("verify", "--level", "everything", code=2)


def test_undoing_an_import_asks_and_gives_the_table_back(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, plain: Path, catalog_uri: str
) -> None:
    deltasql("import", str(plain), "t")
    write_deltalake(f"{catalog_uri}?table=t", ids(50), mode="append")
    would = deltasql_json("import", "--undo", "t", "--dry-run")
    assert (would["action"], would["version"], would["dry_run"]) == ("released", 9, True)
    deltasql("import", "--undo", "t", code=2, stdin="")
    with Catalog(catalog_uri) as catalog:
        catalog.mirror.pause("t")
        write_deltalake(f"{catalog_uri}?table=t", ids(51), mode="append")
        assert "mirror run" in deltasql("import", "--undo", "t", "--yes", code=1).stderr
        catalog.mirror.resume("t")
    assert "plain Delta table again, version 10" in deltasql("import", "--undo", "t", "--yes").stdout
    assert deltasql_json("list")["tables"] == []
    assert deltalake.DeltaTable(plain).version() == 10
    deltasql("import", "--undo", "t", "--yes", code=1)


def test_undoing_refuses_what_was_never_imported(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, plain: Path, catalog_uri: str, tmp_path: Path
) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("own", ids(1), location=tmp_path / "own")
    for dry in (("--yes",), ("--dry-run",)):
        refused = deltasql_json("import", "--undo", "own", *dry, code=1)
        assert refused["error"] == "UnsupportedOperationError"
        assert "deltasql export own --in-place" in refused["suggestion"]
    deltasql("import", str(plain), code=2)
    deltasql("import", "--undo", str(plain), "own", code=2)
    deltasql("import", "--undo", "own", "--follow", code=2)
    deltasql("import", str(plain), "t", "--keep-batches", "1", code=2)
    assert "did you mean own" in deltasql("import", "--undo", "owm", "--yes", code=1).stderr


def test_leaving_in_place_does_what_its_dry_run_says(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, tmp_path: Path
) -> None:
    with Catalog(catalog_uri, config={"publish": {"mode": "off"}}) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t")
    leave = ("export", "t", "--in-place")
    would = deltasql_json(*leave, "--dry-run")
    shown = deltasql(*leave, "--dry-run").stdout
    done = deltasql(*leave, "--yes").stdout
    assert (would["in_place"], would["num_published"], would["version"]) == (True, 1, 0)
    assert "t would be a plain Delta table" in shown
    assert "would no longer have it" in shown
    tense = {"would be a": "is a", "would no longer have it": "no longer has it"}
    for before, after in tense.items():
        shown = shown.replace(before, after)
    assert shown == done


def test_export_writes_elsewhere_and_leaves_in_place(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, plain: Path, tmp_path: Path
) -> None:
    deltasql("import", str(plain), "t")
    assert "Would export" in deltasql("export", "t", str(tmp_path / "copy"), "--dry-run").stdout
    done = deltasql_json("export", "t", str(tmp_path / "copy"), "--data", "link", "--verify", "full")
    assert (done["version"], done["in_place"], done["verification"]["ok"]) == (8, False, True)
    assert deltalake.DeltaTable(tmp_path / "copy").version() == 8
    deltasql("export", "t", code=2)
    deltasql("export", "t", "x", "--in-place", code=2)
    deltasql("export", "t", "--in-place", code=2, stdin="")
    assert "--in-place" in deltasql("export", "t", str(plain), "--yes", code=2).stderr
    assert [t["name"] for t in deltasql_json("list")["tables"]] == ["t"]
    assert "no longer has it" in deltasql("export", "t", "--in-place", "--yes").stdout
    assert deltasql_json("list")["tables"] == []


def test_import_all_isolates_failures_and_goes_on(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, tmp_path: Path
) -> None:
    for name in ("a", "b/c"):
        deltalake.write_deltalake(tmp_path / "lake" / name, ids(1))
    (tmp_path / "lake" / "bad" / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "bad" / "_delta_log" / f"{0:020}.json").write_text("{")
    plans = deltasql_json("import-all", "lake", "--dry-run", code=1)
    assert [t["outcome"] for t in plans["tables"]] == ["planned", "planned", "failed"]
    bounds = ("--parallel", "2", "--batch-size", "100", "--rate", "1000000")
    result = deltasql("import-all", "lake", "--namespace", "raw", *bounds, code=1)
    assert "raw.b.c" in result.stdout
    assert "raw.bad failed" in result.stderr
    again = deltasql_json("import-all", "lake", "--namespace", "raw", code=1)
    assert [t["outcome"] for t in again["tables"]] == ["unchanged", "unchanged", "failed"]
    (tmp_path / "tables.txt").write_text(f"# name path\nlisted {tmp_path / 'lake' / 'a'}\n\n")
    listed = deltasql_json("import-all", "--list", "tables.txt", code=1)
    assert "belongs to the table 'raw.a'" in listed["tables"][0]["error"]["message"]
    (tmp_path / "tables.txt").write_bytes("\ufeffraw.a lake/a\r\n".encode())  # as some editors write it
    assert deltasql_json("import-all", "--list", "tables.txt")["tables"][0]["outcome"] == "unchanged"
    (tmp_path / "tables.txt").write_bytes(b"a\xff lake/a\n")
    assert "not UTF-8" in deltasql("import-all", "--list", "tables.txt", code=2).stderr
    (tmp_path / "tables.txt").write_text("alone\n")
    deltasql("import-all", "--list", "tables.txt", code=2)
    deltasql("import-all", code=2)
    deltalake.write_deltalake(tmp_path / "odd" / "a..b", ids(1))
    named = deltasql("import-all", "odd", code=2)
    assert f"deltasql import {tmp_path / 'odd' / 'a..b'} NAME" in named.stderr.replace("\n", "")
    (tmp_path / "nothing").mkdir()
    assert "No Delta tables" in deltasql("import-all", "nothing").stdout
