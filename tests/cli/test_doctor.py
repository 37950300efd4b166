"""The doctor finds what is wrong, says so by its exit code, and changes nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import TableFrozenError

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson


@pytest.fixture
def log(catalog_uri: str, tmp_path: Path) -> Path:
    """The log folder of a table with two versions."""
    with Catalog(catalog_uri) as catalog:
        catalog.write("orders", pa.table({"id": [1]}), location=tmp_path / "orders")
        catalog.write("orders", pa.table({"id": [2]}), mode="append")
    return tmp_path / "orders" / "_delta_log"


def bad(document: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """What is not fine, but for the server of the tests, which does without fsync."""
    found = [c for c in document["checks"] if c["status"] != "ok" and "fsync=off" not in c["detail"]]
    return [(c["check"], c["status"], c["finding"]) for c in found]


def test_a_healthy_catalog_passes_every_check(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, log: Path, engine_name: str
) -> None:
    document = deltasql_json("doctor")
    assert document["ok"]
    assert bad(document) == []
    titles = [c["check"] for c in document["checks"]]
    assert titles == [
        "address",
        "driver",
        "connection",
        "schema",
        "rights",
        "durability",
        "tables",
        "state",
        "published",
        "location",
        "log",
        "writers",
    ]
    if engine_name == "postgres":
        assert "fsync=off" in deltasql("doctor", "--quiet").stdout
        return
    assert "Everything is fine" in deltasql("doctor").stdout
    assert deltasql("doctor", "--quiet").stdout == ""


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_catalog_that_a_power_cut_would_shorten_is_a_warning(
    deltasql_json: DeltasqlJson, log: Path, catalog_uri: str
) -> None:
    document = deltasql_json("doctor", "--catalog", f"{catalog_uri}?synchronous=NORMAL")
    assert document["ok"]
    (warning,) = [c for c in document["checks"] if c["check"] == "durability"]
    assert (warning["status"], "power cut" in warning["detail"]) == ("warning", True)


def test_looking_leaves_no_trace(deltasql: Deltasql, log: Path, catalog_uri: str) -> None:
    deltasql("doctor")
    with Catalog(catalog_uri) as catalog:
        assert catalog.query("SELECT count(*) AS n FROM dl_settings").to_pylist() == [{"n": 0}]


def test_a_changed_log_file_has_diverged(deltasql_json: DeltasqlJson, log: Path) -> None:
    newest = log / f"{1:020}.json"
    newest.write_bytes(newest.read_bytes() + b"\n")
    document = deltasql_json("doctor", code=5)
    assert bad(document) == [("log", "failed", "diverged")]


def test_a_damaged_log_file_is_drift_that_can_be_repaired(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, log: Path
) -> None:
    newest = log / f"{1:020}.json"
    newest.write_bytes(newest.read_bytes()[:40])
    assert bad(deltasql_json("doctor", code=3)) == [("log", "failed", "drift")]
    assert "deltasql mirror repair" in deltasql("doctor", code=3).stdout
    deltasql("mirror", "repair", "orders")
    assert bad(deltasql_json("doctor")) == []


def test_a_commit_around_the_catalog_is_drift(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, log: Path
) -> None:
    deltalake.write_deltalake(log.parent, pa.table({"id": [3]}), mode="append")
    assert bad(deltasql_json("doctor", code=3)) == [("writers", "failed", "drift")]
    assert "deltasql:// address" in deltasql("doctor", code=3).stdout


def test_a_removed_log_file_is_drift(deltasql_json: DeltasqlJson, log: Path) -> None:
    (log / f"{1:020}.json").unlink()
    assert bad(deltasql_json("doctor", code=3)) == [("log", "failed", "drift")]


def test_a_missing_location_is_drift(deltasql_json: DeltasqlJson, log: Path) -> None:
    shutil.rmtree(log.parent)
    assert bad(deltasql_json("doctor", code=3)) == [("location", "failed", "drift")]


def test_a_table_that_froze_is_told_and_refuses_writes(
    deltasql_json: DeltasqlJson, log: Path, catalog_uri: str
) -> None:
    deltalake.write_deltalake(log.parent, pa.table({"id": [3]}), mode="append")
    with Catalog(catalog_uri) as catalog, pytest.raises(TableFrozenError):
        catalog.write("orders", pa.table({"id": [4]}), mode="append")  # its version is taken in the folder
    document = deltasql_json("doctor", code=5)
    assert ("state", "failed", "frozen") in bad(document)
    assert deltasql_json("show", "orders")["state"] == "frozen"


def test_commits_that_wait_are_a_warning_with_the_reason(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, log: Path, catalog_uri: str
) -> None:
    # a plain file where the log folder should be: nothing can be published there, whoever runs the test
    aside = log.rename(log.with_name("aside"))
    log.touch()
    with Catalog(catalog_uri) as catalog:
        catalog.write("orders", pa.table({"id": [4]}), mode="append")
    log.unlink()
    aside.rename(log)
    document = deltasql_json("doctor")
    assert bad(document) == [("published", "warning", None)]
    (waiting,) = [c for c in document["checks"] if c["check"] == "published"]
    assert "1 of 3" in waiting["detail"]
    assert "Error" in waiting["detail"]
    assert "1 version waiting since" in deltasql("show", "orders").stdout
    refused = deltasql_json("drop", "orders", "--yes", code=1)
    assert "would be lost" in refused["message"]


def test_a_missing_catalog_is_not_made_by_looking(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, tmp_path: Path
) -> None:
    document = deltasql_json("doctor", code=1)
    (failure,) = [c for c in document["checks"] if c["status"] == "failed"]
    assert failure["error"]["error"] == "CatalogNotFoundError"
    deltasql("list", code=1)
    assert list(tmp_path.iterdir()) == []


def test_only_the_named_tables_are_looked_at(deltasql_json: DeltasqlJson, log: Path) -> None:
    (log / f"{1:020}.json").unlink()
    deltasql_json("create", "other", "--schema", "a:int", "--location", "other")
    assert deltasql_json("doctor", "other")["ok"]
    assert deltasql_json("doctor", "nobody", code=1)["checks"][-1]["error"]["error"] == "TableMissingError"


@pytest.fixture
def long_log(catalog_uri: str, log: Path) -> Path:
    """The same log with a checkpoint of version 2 and two more versions."""
    with Catalog(catalog_uri) as catalog:
        catalog.write("orders", pa.table({"id": [3]}), mode="append")
        catalog.mirror.checkpoint("orders")
        for number in (4, 5):
            catalog.write("orders", pa.table({"id": [number]}), mode="append")
    return log


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def blank(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[0] ^= 255
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "title"),
    [
        (f"{3:020}.json", lambda file: file.unlink(), "log"),
        (f"{3:020}.json", cut, "log"),
        (f"{3:020}.json", flip, "log"),
        (f"{2:020}.json", flip, "log"),
        (f"{2:020}.checkpoint.parquet", cut, "checkpoint"),
        (f"{2:020}.checkpoint.parquet", blank, "checkpoint"),
        (f"{2:020}.checkpoint.parquet", lambda file: file.unlink(), "checkpoint"),
        ("_last_checkpoint", cut, "checkpoint"),
        ("_last_checkpoint", lambda file: file.write_text('{"version":9,"size":1}'), "checkpoint"),
    ],
)
def test_damage_anywhere_in_what_readers_need_is_found(
    deltasql_json: DeltasqlJson, long_log: Path, name: str, damage: Any, title: str
) -> None:
    assert bad(deltasql_json("doctor")) == []
    damage(long_log / name)
    assert (title, "failed", "drift") in bad(deltasql_json("doctor", code=3))


def test_what_was_cleaned_up_below_a_checkpoint_is_fine(deltasql_json: DeltasqlJson, long_log: Path) -> None:
    for version in (0, 1):
        (long_log / f"{version:020}.json").unlink()
    assert bad(deltasql_json("doctor")) == []


def test_lost_data_is_drift(deltasql: Deltasql, deltasql_json: DeltasqlJson, log: Path) -> None:
    next(log.parent.glob("*.parquet")).unlink()
    assert bad(deltasql_json("doctor", code=3)) == [("location", "failed", "drift")]
    assert "a data file is missing" in deltasql("doctor", code=3).stdout


def test_an_emptied_audit_is_found(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, log: Path, catalog_uri: str
) -> None:
    with Catalog(catalog_uri) as catalog, catalog._database.write() as session:
        session.run("DELETE FROM dl_audit")
    assert bad(deltasql_json("doctor", code=3)) == [("audit", "failed", "drift")]
    deltasql("create", "later", "--schema", "a:int", "--location", "later")
    assert bad(deltasql_json("doctor", code=3)) == [("audit", "failed", "drift")], "new rows hide nothing"
