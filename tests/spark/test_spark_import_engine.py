"""Imports by Spark: the same rows and digests as in one process, whatever is killed or done twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import import_status, import_table, plan_import, rollback_import, verify_table
from deltalakedb.address import parse_address
from deltalakedb.delta_log import commit_file
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import InvalidArgumentError, LogCorruptError
from deltalakedb.metastore.database import Database
from deltalakedb.spark import import_engine
from deltalakedb.spark.import_engine import SparkEngine
from deltalakedb.transfer.importing import plan
from deltalakedb.transfer.importing.loader import ready_tail
from deltalakedb.transfer.verifying.log_replay import LogReplay
from support.golden import golden_tables, missing_reason
from support.lake import ids
from support.processes import Child
from support.sources import change, contents, many_files, plain_table
from support.spark import attached

if TYPE_CHECKING:
    from pathlib import Path

#: plain, with deletes, deletion vectors, mapped columns, several parts, V2 of both forms, a torn hint
CHOSEN = (
    "125-iterator-bug",
    "basic-with-inserts-deletes-checkpoint",
    "basic-with-inserts-overwrite-restore",
    "corrupted-last-checkpoint-kernel",
    "dv-partitioned-with-checkpoint",
    "dv-with-columnmapping",
    "multi-part-checkpoint",
    "only-checkpoint-files",
    "v2-checkpoint-json",
    "v2-checkpoint-parquet",
)


def by_spark(path: Path, uri: str, spark: Any, **options: Any) -> Any:
    return import_table(
        str(path), uri, history="checkpoint", batch_size=5, engine="spark", spark=spark, **options
    )


def test_ten_golden_tables_are_loaded_as_one_process_loads_them(spark: Any, catalog_uri: str) -> None:
    golden = {table.name: table.path for table in golden_tables()}
    if not golden:
        pytest.skip(missing_reason())
    for name in CHOSEN:
        uri = f"{catalog_uri}?table=t"
        alone = import_table(str(golden[name]), uri, history="checkpoint", engine="local")
        wanted = contents(uri)
        rollback_import(uri)
        # their digests are compared below
        done = by_spark(golden[name], uri, spark, verify="counts")
        assert (done.engine, done.num_files) == ("spark", alone.num_files), name
        assert contents(uri) == wanted, name
        status, *_ = import_status(uri)
        assert status.batches_done == status.batches_total, name
        rollback_import(uri)


def test_golden_checkpoints_have_the_digests_of_one_process(spark: Any) -> None:
    if not golden_tables():
        pytest.skip(missing_reason())
    engine, made = SparkEngine(spark), 0
    for table in golden_tables():
        try:
            reader, version = FileTxnLogReader(str(table.path)), table.truth["latest"]
        except Exception:
            assert table.truth["expect"] == "must_fail"
            continue
        theirs = engine.log_digest(reader, version, tick=lambda: None)
        try:
            wanted = LogReplay(reader, version, memory_bytes=1 << 30).digest()
        except Exception:
            assert theirs is None, table.name
            continue
        if theirs is not None:  # a log without a checkpoint, or with a torn one, is left to the driver
            made += 1
            assert theirs.differing(wanted) == [], table.name
            assert theirs.hex() == wanted.hex(), table.name
    assert made >= 14


def test_the_digest_is_the_same_however_the_commits_after_a_checkpoint_are_read(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = FileTxnLogReader(str(many_files(tmp_path / "source")))
    wanted = LogReplay(reader, 7, memory_bytes=1 << 30).digest()
    for way in ({}, {"LARGE": 1}):  # at once, and line by line
        with monkeypatch.context() as patched:
            for name, value in way.items():
                patched.setattr(commit_file, name, value)
            # several tasks
            patched.setattr(import_engine, "WINDOW", 5)
            patched.setattr(import_engine, "_MOST_WINDOWS", 2)
            found = SparkEngine(spark).log_digest(reader, 7, tick=lambda: None)
        assert found is not None
        assert (found.num_files, found.hex()) == (40, wanted.hex()), way
    assert SparkEngine(spark, always=False).log_digest(reader, 7, tick=lambda: None) is None, "too small"


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_every_batch_has_one_effect_though_tasks_run_twice(
    spark: Any, catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_name: str
) -> None:
    source, uri = many_files(tmp_path / "source"), f"{catalog_uri}?table=t"
    alone = import_table(str(source), uri, history="checkpoint", engine="local")
    wanted = contents(uri)
    rollback_import(uri)
    if engine_name == "postgres":  # elsewhere the driver writes, which does nothing twice
        real = import_engine.split_rows
        monkeypatch.setattr(
            import_engine, "split_rows", lambda *args: [s for s in real(*args) for _ in range(2)]
        )
    for reader, name in ((SparkEngine, "log_digest"), (LogReplay, "digest")):
        monkeypatch.setattr(reader, name, lambda *_, **__: pytest.fail("the log was read again"))
    done = by_spark(source, uri, spark, rate_limit=0)
    assert (done.digest, contents(uri)) == (alone.digest, wanted)
    assert done.verification.ok


def test_executors_make_the_commits_of_a_long_tail_ready(
    spark: Any, catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, uri = plain_table(tmp_path / "source", checkpoint=None), f"{catalog_uri}?table=t"
    columns = [deltalake.Field("more", deltalake.schema.PrimitiveType("integer"))]
    deltalake.DeltaTable(source).alter.add_columns(columns)  # version 9: packs have another column
    for n in range(5):
        data = ids(50 + n).append_column("more", pa.array([n], pa.int32()))
        deltalake.write_deltalake(source, data, mode="append")
    monkeypatch.setattr(plan, "COMMITS_PER_BATCH", 2)
    import_table(str(source), uri, engine="local")
    wanted = contents(uri)
    rollback_import(uri)
    here: list[range] = []

    def counted(task: Any, versions: range, layout: Any) -> Any:
        here.append(versions)
        return ready_tail(task, versions, layout)

    monkeypatch.setattr(import_engine, "ready_tail", counted)
    monkeypatch.setattr(import_engine, "_LONG_TAIL", 0)
    done = import_table(str(source), uri, verify="full", engine="spark", spark=spark)
    assert (done.engine, contents(uri)) == ("spark", wanted)
    assert here == []  # the driver parsed none of them


def _killed(path: str, uri: str, port: int, secret: str) -> None:
    from pathlib import Path

    by_spark(Path(path), uri, attached(port, secret))


def run_local(path: str, uri: str) -> None:
    import_table(path, uri, history="checkpoint", engine="local")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_killed_import_is_resumed_by_either_engine(spark: Any, catalog_uri: str, tmp_path: Path) -> None:
    source, uri = many_files(tmp_path / "source"), f"{catalog_uri}?table=t"
    alone = import_table(str(source), uri, history="checkpoint", engine="local", batch_size=5)
    wanted = contents(uri)
    rollback_import(uri)
    points = "import.batch_done=kill@4"
    java = spark.sparkContext._gateway.java_parameters
    Child(_killed, str(source), uri, java.port, java.auth_token, folder=tmp_path, points=points).died()
    status, *_ = import_status(uri)
    assert (status.phase, status.batches_done) == ("loading", 4)
    # as a cluster leaves it: a batch is late, one after it is there
    database = Database.open(parse_address(uri))
    with database.read() as session:
        first, last = session.row(
            "SELECT begins + (SELECT table_id FROM dl_imports WHERE phase = 'loading') * 1099511627776, "
            "ends + (SELECT table_id FROM dl_imports WHERE phase = 'loading') * 1099511627776 "
            "FROM dl_import_batches WHERE batch = 2"
        ) or (0, 0)
    change(uri, f"DELETE FROM dl_files WHERE file_id BETWEEN {first} AND {last}")
    for table in ("dl_packs", "dl_pack_columns", "dl_stats_blocks"):
        change(uri, f"DELETE FROM {table} WHERE first_id BETWEEN {first} AND {last}")
    change(uri, "DELETE FROM dl_import_batches WHERE batch = 2")
    points = "import.batch_done=kill@1"
    Child(run_local, str(source), uri, folder=tmp_path, points=points).died()
    status, *_ = import_status(uri)
    assert status.batches_done == 4
    again = by_spark(source, uri, spark, verify="full")
    assert (again.action, again.digest) == ("resumed", alone.digest)
    assert contents(uri) == wanted


def test_a_torn_checkpoint_is_passed_over_for_the_commits(spark: Any, tmp_path: Path) -> None:
    source = many_files(tmp_path / "source")
    uri = f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    wanted = import_table(str(source), uri, engine="local")
    rollback_import(uri)
    file = next((source / "_delta_log").glob("*.checkpoint.parquet"))
    whole = file.read_bytes()
    # the footer is there, the rows are not
    file.write_bytes(b"PAR1" + bytes(len(whole) - 4 - 4000) + whole[-4000:])
    done = by_spark(source, uri, spark)
    assert (done.digest, done.passed_over) == (wanted.digest, (1,))


def test_verification_by_spark_finds_what_is_missing(spark: Any, tmp_path: Path) -> None:
    source = many_files(tmp_path / "source")
    uri = f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    import_table(str(source), uri, history="checkpoint", engine="local")
    report = verify_table(uri, engine="spark", spark=spark)
    assert report.ok
    assert report.digest == report.log_digest == verify_table(uri, engine="local").log_digest
    change(uri, "UPDATE dl_files SET size = size + 1 WHERE path LIKE '%1004%'")
    report = verify_table(uri, engine="spark", spark=spark)
    assert [d.kind for d in report.differences] == ["changed_file"]


def test_auto_takes_spark_only_if_a_session_or_cluster_is_named(spark: Any, tmp_path: Path) -> None:
    source = str(many_files(tmp_path / "source"))
    uri = f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    plan = plan_import(source, uri)  # the test's own session is active
    assert (plan.engine, plan.engine_reason) == ("local", "no Spark cluster was named")
    assert plan_import(source, uri, engine="spark").engine_reason == "as asked for"
    plan = plan_import(source, uri, master="local[1]")
    assert (plan.engine, plan.engine_reason) == ("spark", "master was given")
    plan = plan_import(source, uri, spark=spark)
    assert (plan.engine, plan.engine_reason) == ("spark", "spark was given")
    assert import_table(source, uri, spark=spark).engine == "spark"
    rollback_import(uri)
    assert import_table(source, uri).engine == "local"


def test_wishes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    source = str(many_files(tmp_path / "source"))
    uri = f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    for wrong in (
        {"engine": "hadoop"},
        {"engine": "local", "master": "local[1]"},
        {"master": "local[1]", "remote": "sc://host"},
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            import_table(source, uri, **wrong)
        assert caught.value.suggestion


def test_an_error_in_a_task_arrives_as_what_it_is(spark: Any, tmp_path: Path) -> None:
    source = many_files(tmp_path / "source")
    uri = f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
    log = source / "_delta_log"
    for version in range(2):
        (log / f"{version:020d}.json").unlink()
    file = next(log.glob("*.checkpoint.parquet"))
    whole = file.read_bytes()
    file.write_bytes(b"PAR1" + bytes(len(whole) - 4 - 4000) + whole[-4000:])
    with pytest.raises(LogCorruptError) as caught:
        by_spark(source, uri, spark)
    assert "checkpoint" in str(caught.value)
