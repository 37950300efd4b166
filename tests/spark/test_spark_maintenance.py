"""Maintenance by Spark: checkpoints with sidecars, the list of a vacuum, and the commands that run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyspark
import pytest
from click.testing import CliRunner

from deltalakedb import Catalog, DeltaTable
from deltalakedb.cli.main import cli
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.spark import checkpoint, vacuum_list
from support.lake import ids
from support.sources import change, plain_table
from support.spark import read, rows

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def root(tmp_path: Path, table_uri: Callable[..., str], catalog_uri: str) -> Path:
    """A table of several versions with partitions, a delete, and no checkpoint."""
    folder = tmp_path / "t"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(0, 1, part="a"), location=folder, partition_by=["part"])
        for n in range(1, 8):
            catalog.write("t", ids(2 * n, 2 * n + 1, part="ab"[n % 2]), mode="append")
        catalog.table("t").delete("id = 3")
        catalog.write("t", ids(99, part="c"), mode="append")
    return folder


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_a_checkpoint_by_executors_says_what_the_log_says(spark: Any, root: Path, catalog_uri: str) -> None:
    uri, told = f"{catalog_uri}?table=t", []
    wanted = rows(DeltaTable(uri).to_pyarrow_table())
    classic = checkpoint(spark, uri)
    assert (classic.kind, classic.num_add_files, classic.created) == ("classic", 9, True)
    assert not checkpoint(spark, uri).created
    DeltaTable(uri).alter.add_feature(
        deltalake.table.TableFeatures.V2Checkpoint, allow_protocol_versions_increase=True
    )
    before = FileTxnLogReader(str(root))
    files = {a.path: a for a in before.files()}
    written = checkpoint(spark, uri, rows_per_part=3, progress=lambda *seen: told.append(seen))
    assert written.kind == "v2"
    sidecars = len(written.paths) - 1
    assert sum("_sidecars" in path for path in written.paths) == sidecars >= 3
    assert written.num_add_files == len(files) == 9
    assert told[-1] == (sidecars - 1, sidecars - 1), "the driver writes one"
    log = root / "_delta_log"
    for commit in log.glob("*.json"):
        if int(commit.stem) < written.version:
            commit.unlink()  # so that only the checkpoint can tell
    after = FileTxnLogReader(str(root))
    assert list_log(after.store).plan(written.version).base == written.version
    assert {a.path: (a.size, a.stats, a.partition_values) for a in after.files()} == {
        p: (a.size, a.stats, a.partition_values) for p, a in files.items()
    }
    assert [r.path for r in after.tombstones()] == [r.path for r in before.tombstones()]
    assert len(deltalake.DeltaTable(root).file_uris()) == 9
    assert rows(read(spark, root)) == wanted
    with Catalog(catalog_uri) as catalog:
        found = catalog.query("SELECT action FROM dl_audit WHERE action LIKE '%checkpoint by Spark'")
    assert sorted(found.column(0).to_pylist()) == ["begin checkpoint by Spark", "checkpoint by Spark"]


def test_a_catalog_that_executors_cannot_read_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        checkpoint(spark, f"deltasql://duckdb/{tmp_path}/catalog.duckdb?table=t")
    assert "deltasql checkpoint t" in (caught.value.suggestion or "")
    with pytest.raises(InvalidArgumentError):
        checkpoint(spark, f"deltasql://sqlite/{tmp_path}/catalog.db?table=t", rows_per_part=0)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_the_list_of_a_vacuum_is_that_of_one_process(
    spark: Any, root: Path, catalog_uri: str, tmp_path: Path
) -> None:
    uri = f"{catalog_uri}?table=t"
    (root / "part=a" / "stranger.parquet").write_bytes(b"x" * 10)
    (root / "stranger.parquet").write_bytes(b"x" * 5)
    (root / "_hidden").mkdir()
    (root / "_hidden" / "kept.parquet").write_bytes(b"x")
    other = plain_table(root / "nested", commits=1, checkpoint=None)
    for path in root.rglob("*.parquet"):
        os.utime(path, (1, 1))
    with pytest.raises(InvalidArgumentError):
        vacuum_list(spark, uri, retention_hours=1)
    with Catalog(catalog_uri) as catalog:
        noted = catalog.query("SELECT action FROM dl_audit")["action"].to_pylist()
        assert not [action for action in noted if "vacuum" in action], "a refused listing has not begun"
        catalog.table("t").alter.set_table_properties(
            {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        )
    wanted = sorted(DeltaTable(uri).vacuum(dry_run=True, full=True))
    assert len(wanted) == 3
    found = vacuum_list(spark, uri)
    assert list(found.paths or ()) == wanted
    assert (found.num_files, found.num_unknown) == (3, 2)
    written = vacuum_list(spark, uri, output=str(tmp_path / "list"))
    assert (written.num_files, written.size_bytes, written.paths) == (3, found.size_bytes, None)
    assert sorted(r["path"] for r in spark.read.parquet(str(tmp_path / "list")).collect()) == wanted
    assert deltalake.DeltaTable(other).version() == 0


def test_commands_run_as_spark_jobs(spark: Any, tmp_path: Path) -> None:
    source = plain_table(tmp_path / "source")
    uri = f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"

    def deltasql(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(cli, [*words, "--engine", "spark"])
        assert done.exit_code == code, done.output
        return done

    done = deltasql("import", str(source), uri, "--history", "checkpoint", "--batch-size", "4")
    assert "mported" in done.stdout
    assert json.loads(deltasql("verify", uri, "--json").stdout)["ok"]
    written = json.loads(deltasql("checkpoint", uri, "--rows-per-part", "4", "--json").stdout)
    assert (written["kind"], written["created"]) == ("classic", True)
    assert "Would delete" in deltasql("vacuum", uri, "--full", "--dry-run").stdout
    listed = str(tmp_path / "list")
    done = deltasql("vacuum", uri, "--full", "--dry-run", "--json", "--output", listed)
    found = json.loads(done.stdout)
    assert (found["files"], found["output"]) == (None, listed)
    assert spark.read.parquet(listed).count() == found["num_files"]
    change(uri, "UPDATE dl_files SET size = size + 1")
    deltasql("verify", uri, code=3)
    assert "other" in deltasql("verify", uri.replace("=t", "=other"), code=1).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("checkpoint", "t", "--kind", "v2", "--engine", "spark"),
        ("checkpoint", "t", "--rows-per-part", "4"),
        ("vacuum", "t", "--engine", "spark"),
        ("vacuum", "t", "--dry-run", "--full", "--no-check", "--engine", "spark"),
        ("vacuum", "t", "--dry-run", "--output", "there"),
    ],
)
def test_options_that_do_not_fit_the_engine_are_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2, done.output
    assert "--engine spark" in done.stderr


def test_spark_submit_runs_a_command(spark: Any, tmp_path: Path) -> None:
    source = plain_table(tmp_path / "source")
    uri = f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    home = Path(pyspark.__file__).parent
    program = tmp_path / "job.py"
    program.write_text("from deltalakedb.cli.main import main\nmain()\n")
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    command += [str(program), "import", str(source), uri, "--history", "checkpoint", "--json"]
    command += ["--engine", "spark"]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout[done.stdout.index("{") :])  # after warnings, which spark-submit mixes in
    assert (report["engine"], report["action"]) == ("spark", "imported")
    assert DeltaTable(uri).version() == report["version"]
