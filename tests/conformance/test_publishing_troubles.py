"""Publishing: a failure never fails the commit, a divergence freezes the table, order is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import TableFrozenError
from deltalakedb.settings import Config, use_config
from support.lake import hidden_log, ids, ids_of, root_of

if TYPE_CHECKING:
    from conftest import TableUri


def outbox(catalog: Catalog) -> list[tuple[int, str]]:
    found = catalog.query("SELECT version, state FROM dl_v_mirror WHERE table_name = 't' ORDER BY version")
    return [(r["version"], r["state"]) for r in found.to_pylist()]


def log_of(uri: str) -> Path:
    return root_of(DeltaTable(uri)) / "_delta_log"


def test_what_is_published_is_marked_so(catalog: Catalog, table_uri: TableUri) -> None:
    for number in range(3):
        write_deltalake(table_uri("t"), ids(number), mode="append")
    assert {state for _, state in outbox(catalog)} <= {"published"}
    row = catalog.query("SELECT published_version, versions_behind FROM dl_v_tables").to_pylist()
    assert row == [{"published_version": 2, "versions_behind": 0}]


def test_a_failed_publish_leaves_the_commit_standing(catalog: Catalog, table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    log = log_of(uri)
    with hidden_log(log.parent):
        log.write_text("in the way")
        write_deltalake(uri, ids(1), mode="append")
        write_deltalake(uri, ids(2), mode="append")
        assert ids_of(DeltaTable(uri)) == [0, 1, 2]
        states = dict(outbox(catalog))
        assert states[1] == "failed"
        assert states[2] in ("pending", "failed")
        row = catalog.query("SELECT error, attempts FROM dl_v_mirror WHERE version = 1").to_pylist()[0]
        assert row["error"]
        assert row["attempts"] >= 1
        log.unlink()
    assert deltalake.DeltaTable(log.parent).version() == 0
    write_deltalake(uri, ids(3), mode="append")
    stock = deltalake.DeltaTable(log.parent)
    assert stock.version() == 3
    assert ids_of(stock) == [0, 1, 2, 3]
    assert {state for _, state in outbox(catalog)} <= {"published"}
    times = [(log / f"{v:020}.json").stat().st_mtime_ns // 1_000_000 for v in range(4)]
    assert times == [h["timestamp"] for h in reversed(DeltaTable(uri).history())]


def test_a_foreign_commit_freezes_the_table_and_is_never_overwritten(
    catalog: Catalog, table_uri: TableUri
) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    foreign = json.dumps({"commitInfo": {"operation": "FOREIGN"}}) + "\n"
    file = log_of(uri) / f"{1:020}.json"
    file.write_text(foreign)
    # as if it had come a moment after the writer's own look
    with use_config(Config(publish={"look_ahead": "off"})):
        write_deltalake(uri, ids(1), mode="append")
    assert file.read_text() == foreign
    assert ids_of(DeltaTable(uri)) == [0, 1]
    row = catalog.describe("t")
    assert row.state == "frozen"
    assert "1" in (row.state_reason or "")
    for mode in ("append", "overwrite"):
        with pytest.raises(TableFrozenError) as caught:
            write_deltalake(uri, ids(2), mode=mode)
        assert caught.value.suggestion
    assert DeltaTable(uri).version() == 1
    assert sorted(p.name for p in file.parent.iterdir()) == [f"{v:020}.json" for v in (0, 1)]
    parquet = {p.name for p in file.parent.parent.glob("*.parquet")}
    assert parquet == {Path(u).name for u in DeltaTable(uri).file_uris()}
    assert "freeze" in catalog.query("SELECT action FROM dl_v_audit")["action"].to_pylist()


def test_our_own_bytes_that_are_there_already_are_no_divergence(
    catalog: Catalog, table_uri: TableUri
) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    with use_config(Config(publish={"mode": "off"})):
        write_deltalake(uri, ids(1), mode="append")
    assert outbox(catalog)[-1] == (1, "pending")
    assert not (log_of(uri) / f"{1:020}.json").exists()
    (log_of(uri) / f"{1:020}.json").write_bytes(catalog.log("t").commit_bytes(1))
    write_deltalake(uri, ids(2), mode="append")
    assert catalog.describe("t").state == "active"
    assert ids_of(deltalake.DeltaTable(DeltaTable(uri).table_uri)) == [0, 1, 2]


def test_a_writer_helps_its_predecessors_in_order(catalog: Catalog, table_uri: TableUri) -> None:
    uri = table_uri("t")
    with use_config(Config(publish={"mode": "off"})):
        for number in range(5):
            write_deltalake(uri, ids(number), mode="append")
    assert not log_of(uri).exists() or not list(log_of(uri).iterdir())
    assert ids_of(DeltaTable(uri)) == [0, 1, 2, 3, 4]
    write_deltalake(uri, ids(5), mode="append")
    assert ids_of(deltalake.DeltaTable(DeltaTable(uri).table_uri)) == [0, 1, 2, 3, 4, 5]
