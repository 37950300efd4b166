"""``deltasql vacuum`` and ``deltasql gc``: what they show, ask and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog, failpoints
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson


@pytest.fixture
def engine_name() -> str:
    return "sqlite"


@pytest.fixture
def root(catalog_uri: str, tmp_path: Path) -> Path:
    """The folder of a table `t` that was overwritten once."""
    folder = tmp_path / "lake" / "t"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=folder)
        catalog.write("t", ids(2), mode="overwrite")
    return folder


def test_a_vacuum_is_looked_at_asked_for_and_done(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, root: Path
) -> None:
    now = ("vacuum", "t", "--retention-hours", "0", "--no-check")
    assert "Would delete 0 files of t" in deltasql("vacuum", "t", "--dry-run").stdout
    assert "minimum retention" in deltasql("vacuum", "t", "--retention-hours", "0", code=2).stderr
    seen = deltasql_json(*now, "--dry-run")
    assert (seen["dry_run"], len(seen["files"]), seen["version"]) == (True, 1, 1)
    assert deltasql_json(*now, "--dry-run", "--keep-version", "0", "--full")["files"] == []
    assert "pass --yes" in deltasql(*now, code=2).stderr
    assert len(list(root.glob("*.parquet"))) == 2
    done = deltasql_json(*now, "--full", "--yes")
    assert done["files"] == seen["files"]
    assert done["version"] == 3
    assert len(list(root.glob("*.parquet"))) == 1
    assert "Deleted 0 files" in deltasql(*now, "--yes").stdout


def test_a_second_vacuum_ends_one_that_was_interrupted(
    deltasql_json: DeltasqlJson, root: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = ("vacuum", "t", "--retention-hours", "0", "--no-check")
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_active", {"vacuum.deleting": ("error", None)})
        assert deltasql_json(*now, "--yes", code=1)["error"] == "FailpointError"
    seen = deltasql_json(*now, "--dry-run")
    (root / seen["files"][0]).unlink()  # it was killed between the deletion and the commit of its end
    with Catalog(catalog_uri) as catalog:
        unended = "SELECT count(*) AS n FROM dl_vacuumed WHERE ended IS NULL"
        assert catalog.query(unended).to_pylist() == [{"n": 1}]
        assert deltasql_json(*now, "--dry-run")["files"] == []
        assert deltasql_json(*now, "--yes")["files"] == []
        assert catalog.query(unended).to_pylist() == [{"n": 0}]


def test_garbage_is_looked_at_asked_for_and_deleted(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, root: Path
) -> None:
    assert "No leftover files" in deltasql("gc").stdout
    (root / "left.parquet").write_text("x" * 10)
    assert "No leftover files" in deltasql("gc", "t").stdout, "it is young"
    shown = deltasql("gc", "--older-than", "0", "--dry-run").stdout
    assert "Would delete" in shown
    assert "10 B" in shown
    assert "pass --yes" in deltasql("gc", "--older-than", "0", code=2).stderr
    (found,) = deltasql_json("gc", "t", "--older-than", "0", "--yes")["tables"]
    assert found["files"] == ["left.parquet"]
    assert found["deleted"]
    assert not (root / "left.parquet").exists()
