"""Logs that others moved far ahead, and cleaned up: nobody commits below them, and no file of theirs goes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, import_table
from deltalakedb.address import parse_address
from deltalakedb.doctor import examine
from deltalakedb.exceptions import (
    DivergedWarning,
    LogGapError,
    TableFrozenError,
    UnsupportedOperationError,
)
from support.lake import ids, ids_of
from support.mirrors import append, append_outside, logged, outside_ids
from support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def overtaken(catalog: Catalog, tmp_path: Path) -> Path:
    """A table that stock wrote to, checkpointed and cleaned up: the version after the head is gone."""
    root = tmp_path / "lake" / "t"
    kept = {"delta.logRetentionDuration": "interval 0 seconds"}
    catalog.write("t", ids(0), location=root, configuration=kept)
    append_outside(root, 1)
    append_outside(root, 2)
    theirs = deltalake.DeltaTable(root)
    theirs.create_checkpoint()
    theirs.cleanup_metadata()
    assert logged(root) == [2]
    return root


def test_nothing_is_committed_below_a_log_that_was_cleaned_up(
    catalog: Catalog, catalog_uri: str, overtaken: Path
) -> None:
    assert catalog.mirror.status("t", look=True)[0].ahead == 2
    assert [(f.kind, f.version) for f in catalog.mirror.verify("t").differences if f.kind == "ahead"] == [
        ("ahead", 2)
    ]
    checks = examine(parse_address(catalog_uri), catalog._database.engine.config)
    assert [c.status for c in checks if c.title == "writers"] == ["failed"]
    with pytest.raises(TableFrozenError, match="has version 2"):
        append(catalog, 9)
    assert logged(overtaken) == [2]
    with pytest.raises(LogGapError, match="the log is at 2") as caught:
        catalog.mirror.recover("t")
    assert "deltasql import" in (caught.value.suggestion or "")
    catalog.drop_table("t", force=True)
    import_table(overtaken, f"{catalog_uri}?table=t")
    append(catalog, 9)
    assert outside_ids(overtaken) == ids_of(catalog.table("t")) == [0, 1, 2, 9]


def test_taking_over_by_policy_stops_at_the_gap(catalog: Catalog, overtaken: Path) -> None:
    catalog.mirror.set_policy("t", "adopt")
    with pytest.raises(LogGapError):
        append(catalog, 9)
    assert (logged(overtaken), catalog.table("t").version()) == ([2], 0)


def test_a_publisher_that_finds_it_first_freezes_the_table(catalog: Catalog, overtaken: Path) -> None:
    (overtaken / "_delta_log" / "_last_checkpoint").unlink()
    with pytest.warns(DivergedWarning):
        append(catalog, 9)
    assert logged(overtaken) == [2]
    assert catalog.mirror.status("t")[0].state == "frozen"


def test_a_hint_that_names_nothing_stops_nobody(catalog: Catalog, root: Path) -> None:
    (root / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": 7, "size": 1}))
    append(catalog, 1)
    assert ids_of(catalog.table("t")) == [0, 1]
    assert logged(root) == [0, 1]


def test_a_hint_that_was_read_before_is_read_again_once_it_has_moved(catalog: Catalog, root: Path) -> None:
    catalog.table("t").create_checkpoint()
    append(catalog, 1)
    append(catalog, 2)
    log = root / "_delta_log"
    (log / f"{7:020}.checkpoint.parquet").touch()
    (log / "_last_checkpoint").write_text(json.dumps({"version": 7, "size": 1}))
    with pytest.raises(TableFrozenError, match="has version 7"):
        append(catalog, 3)
    assert logged(root) == [0, 1, 2]


def test_files_that_only_the_log_names_are_kept(catalog: Catalog, catalog_uri: str, root: Path) -> None:
    catalog.write("u", ids(0), location=root.parent / "u")
    append_outside(root, 1)
    for clean in (
        lambda: catalog.gc("t", older_than_hours=0),
        lambda: catalog.gc("t", older_than_hours=0, dry_run=True),
        lambda: catalog.table("t").vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
    ):
        with pytest.raises(TableFrozenError, match="which the catalog did not make"):
            clean()
    mine, other = catalog.gc(older_than_hours=0)
    assert "has version 1" in (mine.kept or "")
    assert (mine.deleted, other.deleted, other.kept) == (False, True, None)
    with pytest.raises(TableFrozenError):
        append(catalog, 9)
    with pytest.raises(TableFrozenError, match="is frozen"):
        catalog.gc("t", older_than_hours=0)
    assert outside_ids(root) == [0, 1]


def resolve(uri: str) -> None:
    Catalog(uri).mirror.resolve("t")


def test_a_table_whose_resolution_was_interrupted_is_not_dropped_with_its_commits(
    catalog: Catalog, catalog_uri: str, root: Path, tmp_path: Path
) -> None:
    catalog.mirror.pause("t")
    append(catalog, 1, 2)
    append_outside(root, 7)
    with pytest.warns(DivergedWarning):
        catalog.mirror.resume("t")
    Child(resolve, catalog_uri, folder=tmp_path, points="resolve.rebuilt=kill").died()
    with pytest.raises(TableFrozenError):
        catalog.gc("t", older_than_hours=0)
    with pytest.raises(UnsupportedOperationError, match="would be lost: 2"):
        catalog.drop_table("t")
    with pytest.raises(UnsupportedOperationError, match="would be lost: 2"), catalog.transaction() as tx:
        tx.drop_table("t")
    catalog.mirror.resolve("t")
    assert outside_ids(root) == ids_of(catalog.table("t")) == [0, 1, 2, 7]
