"""Sources that are damaged, incomplete or taken: a typed error or a fallback, never a wrong table."""

from __future__ import annotations

import json
import shutil
import socket
from functools import partial
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from deltalakedb import (
    Catalog,
    DeltaTable,
    follow_table,
    import_status,
    import_table,
    import_tables,
    open_log,
    plan_import,
    rollback_import,
    verify_table,
)
from deltalakedb.cli.main import cli
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogCorruptError,
    LogGapError,
    LogMissingError,
    MissingExtraError,
    OutsidePathError,
    ProtocolError,
    SparkSetupError,
    TableExistsError,
    UnsupportedFeatureError,
    VerificationError,
    VersionMissingError,
)
from support.lake import ids_of
from support.sources import count, many_files, plain_table

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


def nothing_stays(catalog_uri: str) -> None:
    with Catalog(catalog_uri) as catalog:
        assert catalog.tables() == []
    for table in ("dl_files", "dl_commits", "dl_metadata", "dl_protocol", "dl_txns", "dl_packs"):
        assert count(catalog_uri, table) == 0, table


def checkpoint_of(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020}.checkpoint.parquet"


def zero_column(file: Path, name: str) -> None:
    """Damage that only shows when the column is read: the footer stays whole."""
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    column = next(c for c in columns if c.path_in_schema == name)
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(file.read_bytes())
    data[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    file.write_bytes(bytes(data))


def test_a_torn_checkpoint_is_passed_over_for_the_commits(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    wanted = ids_of(deltalake.DeltaTable(root))
    whole = checkpoint_of(root, 4).read_bytes()
    checkpoint_of(root, 4).write_bytes(whole[: len(whole) // 2])
    plan = plan_import(str(root), uri, history="checkpoint")
    assert (plan.first_version, plan.base, plan.passed_over) == (0, "none", (4,))
    report = import_table(str(root), uri, history="checkpoint", verify="full")
    assert (report.first_version, report.passed_over) == (0, (4,))
    assert ids_of(DeltaTable(uri)) == wanted


def test_a_checkpoint_that_is_torn_inside_is_passed_over_for_an_older_one(
    tmp_path: Path, catalog_uri: str
) -> None:
    root, uri = plain_table(tmp_path / "plain", commits=4, checkpoint=1), f"{catalog_uri}?table=t"
    deltalake.DeltaTable(root).create_checkpoint()
    (root / "_delta_log" / f"{0:020}.json").unlink()
    zero_column(checkpoint_of(root, 4), "add.path")
    assert plan_import(str(root), uri, history="checkpoint").first_version == 4
    report = import_table(str(root), uri, history="checkpoint", verify="full")
    assert (report.first_version, report.version, report.passed_over) == (1, 4, (4,))
    assert verify_table(uri, "full").ok
    Catalog(catalog_uri).drop_table("t")
    (root / "_delta_log" / f"{3:020}.json").unlink()
    with pytest.raises(LogCorruptError):
        import_table(str(root), f"{catalog_uri}?table=u", history="checkpoint")


def test_of_an_application_that_a_commit_names_twice_the_last_version_holds(
    tmp_path: Path, catalog_uri: str
) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    import_table(str(root), uri, history="full")
    twice = deltalake.CommitProperties(
        app_transactions=[deltalake.Transaction("app", 1), deltalake.Transaction("app", 2)]
    )
    table = deltalake.DeltaTable(root)
    deltalake.write_deltalake(table, table.to_pyarrow_table(), mode="append", commit_properties=twice)
    import_table(str(root), uri, catch_up=True)
    import_table(shutil.copytree(root, tmp_path / "copy"), f"{catalog_uri}?table=u", verify="full")
    assert [DeltaTable(f"{catalog_uri}?table={n}").transaction_version("app") for n in "tu"] == [2, 2]


def test_a_damaged_line_is_named_and_leaves_nothing(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    file = root / "_delta_log" / f"{6:020}.json"
    file.write_text(file.read_text().replace('{"add"', '{"add', 1))
    with pytest.raises(LogCorruptError) as caught:
        import_table(str(root), uri, history="checkpoint", batch_size=15)
    assert "line 2" in caught.value.message
    nothing_stays(catalog_uri)
    assert [(s.phase, "line 2" in (s.error or "")) for s in import_status(uri)] in ([], [("failed", True)])


def test_what_a_commit_may_not_say_leaves_nothing(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    first, file = (root / "_delta_log" / f"{version:020}.json" for version in (0, 6))
    whole = file.read_text()
    twice = next(line for line in first.read_text().splitlines() if "metaData" in line)
    for broken, about in (
        (whole.replace("part-01006", "../part-01006"), "climbs"),
        (whole.replace("part-01006", "%2e%2e/part-01006"), "climbs"),
        (whole.replace("part-01006.parquet", ""), "not a path"),
        (f"{whole}{twice}\n{twice}\n", "metaData"),
    ):
        file.write_text(broken)
        with pytest.raises((LogCorruptError, ProtocolError), match=about):
            import_table(str(root), uri)
        nothing_stays(catalog_uri)
    file.write_text(whole + twice.replace('"partitionColumns": []', '"partitionColumns": ["lost"]') + "\n")
    with pytest.raises(LogCorruptError, match="lost"):
        import_table(str(root), uri)
    # a number of rows that is none says nothing, and of two txns of one application the last one counts
    txns = "".join(f'{{"txn":{{"appId":"a","version":{n}}}}}\n' for n in (4, 3))
    file.write_text(whole.replace('numRecords\\": 10', f'numRecords\\": {10**20}') + txns)
    assert import_table(str(root), uri, verify="full").num_files == 40
    assert DeltaTable(uri).transaction_version("a") == 3


def test_columns_that_only_some_readers_take_for_mapped_are_refused(tmp_path: Path, catalog_uri: str) -> None:
    # delta-rs forgets the feature where a column brings another one
    data = pa.table({"id": [1, 2], "c": ["a", "b"], "t": pa.array([0, 1], pa.timestamp("us"))})
    mapping, root = {"delta.columnMapping.mode": "name"}, str(tmp_path / "half")
    deltalake.write_deltalake(root, data, partition_by="c", configuration=mapping)
    with pytest.raises(ProtocolError, match="readers do not agree"):
        import_table(root, f"{catalog_uri}?table=t")
    deltalake.write_deltalake(str(tmp_path / "whole"), data.drop(["t"]), configuration=mapping)
    assert import_table(str(tmp_path / "whole"), f"{catalog_uri}?table=t").num_files == 1


def test_what_a_checkpoint_may_not_hold_is_passed_over(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    checkpoint = checkpoint_of(root, 1)
    rows = pq.read_table(checkpoint)
    pq.write_table(rows, checkpoint, compression="none", use_dictionary=False)
    whole = checkpoint.read_bytes()
    for broken in (
        whole.replace(b"part-00007", b"part-\xff0007"),
        whole.replace(b"numRecords", b"num\xffecords"),
    ):
        assert broken != whole
        checkpoint.write_bytes(broken)
        report = import_table(str(root), uri, history="checkpoint", verify="full")
        assert (report.first_version, report.num_files) == (0, 40)
        rollback_import(uri, verify="counts")
        # a load that does not need it is compared with the commits, too
        assert import_table(str(root), uri, history="full").num_files == 40
        rollback_import(uri, verify="counts")
    checkpoint.write_bytes(whole.replace(b"part-00007", b"../t-00007"))
    with pytest.raises(OutsidePathError):
        import_table(str(root), uri, history="checkpoint")
    nothing_stays(catalog_uri)


def test_logs_that_are_missing_empty_or_have_gaps_are_refused(tmp_path: Path, catalog_uri: str) -> None:
    uri = f"{catalog_uri}?table=t"
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    for place in ("nowhere", "empty"):
        with pytest.raises(LogMissingError):
            import_table(str(tmp_path / place), uri)
    root = plain_table(tmp_path / "gap", checkpoint=None)
    (root / "_delta_log" / f"{3:020}.json").unlink()
    with pytest.raises(LogGapError) as caught:
        plan_import(str(root), uri)
    assert "3" in caught.value.message
    (root / "_delta_log" / f"{3:020}.json").write_text("")
    with pytest.raises(LogCorruptError):
        import_table(str(root), uri)
    nothing_stays(catalog_uri)


def test_an_unknown_reader_feature_is_refused_wherever_it_comes(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["fromTheFuture"],
        "writerFeatures": ["fromTheFuture"],
    }
    (root / "_delta_log" / f"{9:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    for call in (plan_import, import_table):
        with pytest.raises(UnsupportedFeatureError, match="fromTheFuture"):
            call(str(root), uri)
    nothing_stays(catalog_uri)


def test_names_and_locations_that_are_taken_are_refused(tmp_path: Path, catalog_uri: str) -> None:
    root = plain_table(tmp_path / "plain")
    import_table(str(root), f"{catalog_uri}?table=t")
    with pytest.raises(TableExistsError, match="name 't' is taken"):
        import_table(str(plain_table(tmp_path / "other")), f"{catalog_uri}?table=t")
    with pytest.raises(TableExistsError, match="belongs to the table 't'"):
        import_table(str(root), f"{catalog_uri}?table=again")
    with pytest.raises(TableExistsError, match="overlap"):
        import_table(str(plain_table(root / "inside", commits=1)), f"{catalog_uri}?table=inside")
    assert [s.table for s in import_status(catalog_uri)] == ["t"]


def test_a_name_that_is_taken_during_the_load_stops_it_at_the_end(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    catalog = Catalog(catalog_uri)

    def take(progress: object) -> None:
        if catalog.find("t") is None:
            catalog.create_table("t", deltalake.DeltaTable(root).schema(), location=tmp_path / "made")

    with pytest.raises(TableExistsError):
        import_table(str(root), uri, progress=take)
    assert catalog.describe("t").location == str(tmp_path / "made")
    catalog.drop_table("t")
    report = import_table(str(root), uri)
    assert (report.action, report.version) == ("resumed", 8)
    assert verify_table(uri, "full").ok


def test_nothing_is_created_for_an_import_that_cannot_begin(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, uri = str(many_files(tmp_path / "many")), f"{catalog_uri}?table=t"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    for call in (plan_import, import_table, partial(follow_table, once=True)):
        for wish in ({"engine": "spark"}, {"master": "local[1]"}, {"remote": "local[1]"}):
            with pytest.raises((SparkSetupError, MissingExtraError)) as caught:
                call(root, uri, **wish)
            assert caught.value.suggestion
    for call in (import_table, partial(import_table, catch_up=True), partial(follow_table, once=True)):
        with pytest.raises(LogMissingError):
            call(str(tmp_path / "nowhere"), uri)
    shown = CliRunner().invoke(
        cli, ["import", root, "t", "--engine", "spark", "--catalog", catalog_uri, "--json"]
    )
    assert shown.exit_code == 1, shown.output
    assert not (tmp_path / "catalog.db").exists()
    assert import_table(root, uri, catch_up=True).action == "imported"


def test_versions_before_a_gap_are_answered_by_the_log_alone(tmp_path: Path, catalog_uri: str) -> None:
    """Files are intervals of versions without a gap: what lies before one is left where it is."""
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    old = {v: ids_of(deltalake.DeltaTable(root, version=v)) for v in (0, 1, 2)}
    (root / "_delta_log" / f"{3:020}.json").unlink()
    for history in ("full", "auto", "checkpoint"):
        plan = plan_import(str(root), uri, history=history)  # type: ignore[arg-type]
        assert (plan.first_version, plan.num_versions) == (4, 5)
    assert import_table(str(root), uri, history="full", verify="full").first_version == 4
    for version, rows in old.items():
        assert ids_of(DeltaTable(uri, version=version)) == rows
    with pytest.raises(VersionMissingError) as caught:
        DeltaTable(uri, version=3)
    assert "3" in caught.value.message


def test_vacuumed_data_files_do_not_hinder_an_import(tmp_path: Path, catalog_uri: str) -> None:
    """The log is what is taken over; the rows are compared only where that is asked for."""
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    for file in root.glob("part=*/*.parquet"):
        file.unlink()
    with pytest.raises(VerificationError, match=r"could not be compared.*No such file") as caught:
        import_table(str(root), uri, verify="data")
    assert "Traceback" not in str(caught.value)
    assert rollback_import(uri).action == "undone"
    assert import_table(str(root), uri, verify="full").num_files == 8


def test_a_plan_tells_what_an_import_would_do(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    plan = plan_import(str(root), uri, history="checkpoint", batch_size=15)
    assert (plan.first_version, plan.version, plan.base, plan.base_rows) == (1, 7, "checkpoint", 42)
    assert (plan.num_batches, plan.num_files, plan.exact) == (5, 40, True)
    assert plan.size_bytes == sum(a.size for a in open_log(root).files())
    assert min(plan.seconds, plan.memory_bytes, plan.database_bytes) >= 0
    assert type(plan).from_dict(plan.to_dict()) == plan
    full = plan_import(str(root), uri)
    assert (full.history, full.base, full.num_versions, full.num_batches) == ("full", "none", 8, 1)
    with pytest.raises(InvalidArgumentError):
        plan_import(str(root), uri, batch_size=0)
    assert not (tmp_path / "catalog.db").exists()


def test_a_folder_is_imported_once_by_whichever_path_it_is_reached(tmp_path: Path, catalog_uri: str) -> None:
    root = plain_table(tmp_path / "lake" / "plain")
    link, lake = tmp_path / "link", tmp_path / "other-lake"
    link.symlink_to(root)
    lake.symlink_to(root.parent)
    import_table(str(link), f"{catalog_uri}?table=linked")
    with Catalog(catalog_uri) as catalog:
        assert catalog.describe("linked").location == str(link)  # as the user spelled it
        for path in (root, lake / "plain"):
            with pytest.raises(TableExistsError, match=str(link)):
                import_table(str(path), f"{catalog_uri}?table=again")
        for inside in (root / "inside", lake / "plain" / "inside"):
            with pytest.raises(TableExistsError, match="overlap"):
                catalog.create_table("inside", schema=pa.schema([("id", pa.int64())]), location=str(inside))
        assert [t.name for t in catalog.tables()] == ["linked"]


def test_a_spark_that_does_not_answer_is_told_before_anything_is_created(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc")
    sessions = pytest.importorskip("deltalakedb.spark.sessions")
    monkeypatch.setattr(sessions, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(sessions, "check_java", lambda: 17)
    root, uri = str(plain_table(tmp_path / "lake" / "plain")), f"{catalog_uri}?table=t"
    many = partial(import_tables, str(tmp_path / "lake"), catalog_uri)
    calls = [
        partial(call, root, uri) for call in (plan_import, import_table, partial(follow_table, once=True))
    ]
    for wish, about in (
        ({"remote": "sc://127.0.0.1:1"}, "127.0.0.1:1"),
        ({"remote": "http://127.0.0.1"}, "sc://"),
        ({"master": "bogus"}, "bogus"),
        ({"master": "http://127.0.0.1:8080"}, "http://127.0.0.1:8080"),
        ({"master": "spark://127.0.0.1:1"}, "127.0.0.1:1"),
    ):
        for call in (*calls, many):
            with pytest.raises(SparkSetupError, match=about) as caught:
                call(**wish)
            assert "\n" not in caught.value.message
            assert caught.value.suggestion
    assert not (tmp_path / "catalog.db").exists()
    with socket.create_server(("127.0.0.1", 0)) as server:
        sessions.check_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")
    sessions.check_master("plugged-in://host/path")  # which of them there are, Spark alone knows
    told = "An error occurred while calling x.\n: org.apache.spark.SparkException: no\n\tat org.apache"
    assert sessions.one_line(RuntimeError(told)) == "org.apache.spark.SparkException: no"


def test_a_plan_tells_of_what_the_catalog_has(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    assert plan_import(str(root), uri).note is None
    assert not (tmp_path / "catalog.db").exists()
    import_table(str(root), uri)
    with pytest.raises(TableExistsError, match="at version 8"):
        plan_import(str(root), uri)
    with pytest.raises(TableExistsError, match="'t'"):
        plan_import(str(root), f"{catalog_uri}?table=other")
    with pytest.raises(TableExistsError, match="plain"):
        plan_import(str(plain_table(tmp_path / "second", commits=2, checkpoint=None)), uri)
    with Catalog(catalog_uri) as catalog:
        catalog.drop_table("t")
        view = catalog.query("SELECT phase FROM dl_v_imports").to_pylist()
    assert [s.phase for s in import_status(uri)] == [v["phase"] for v in view] == ["dropped"]
