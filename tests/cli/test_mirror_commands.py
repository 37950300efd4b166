"""The mirror on the command line: what it shows, what it does, and the exit codes of each end."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from cli.conftest import PROGRAM, environment
from deltalakedb import Catalog
from deltalakedb.cli.commands.mirror import mirror
from deltalakedb.metastore import leases
from deltalakedb.metastore.database import close_all
from deltalakedb.settings import Config
from support.lake import ids, ids_of
from support.mirrors import append, append_outside, blocked, commit_file, logged, outside_ids
from support.processes import until

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson

pytestmark = pytest.mark.filterwarnings("ignore::deltalakedb.exceptions.DivergedWarning")


@pytest.fixture
def deltasql_json(deltasql: Deltasql) -> DeltasqlJson:
    """One document on stdout; what the mirror logs meanwhile goes to stderr."""

    def run(*words: str, code: int = 0) -> Any:
        return json.loads(deltasql(*words, "--json", code=code).stdout)

    return run


@pytest.fixture
def root(catalog_uri: str, tmp_path: Path) -> Path:
    """The folder of a table `t` at version 1."""
    folder = tmp_path / "lake" / "t"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(0), location=folder)
        append(catalog, 1)
    return folder


def append_silently(uri: str, *numbers: int) -> None:
    with Catalog(uri, config=Config(publish={"mode": "off"})) as catalog:
        append(catalog, *numbers)


def diverge(uri: str, root: Path) -> None:
    append_silently(uri, 2)
    append_outside(root, 77)


def table_ids(uri: str) -> list[int]:
    with Catalog(uri) as catalog:
        return ids_of(catalog.table("t"))


def test_status_shows_how_far_each_log_is(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    (row,) = deltasql_json("mirror", "status")["tables"]
    assert (row["table"], row["version"], row["published_version"], row["versions_behind"]) == ("t", 1, 1, 0)
    assert row["published_at"].endswith("Z")
    append_silently(catalog_uri, 2, 3)
    (row,) = deltasql_json("mirror", "status", "t")["tables"]
    assert (row["version"], row["published_version"], row["versions_behind"]) == (3, 1, 2)
    text = deltasql("mirror", "status").stdout
    assert "BEHIND" in text
    assert deltasql("mirror", "status", "--quiet").stdout == "t 2\n"
    assert deltasql_json("mirror", "status", "nothing", code=1)["error"] == "TableMissingError"


def test_an_empty_catalog_has_nothing_to_show(deltasql: Deltasql, catalog_uri: str) -> None:
    Catalog(catalog_uri, create=True).close()
    assert "no tables" in deltasql("mirror", "status").stdout
    assert "no tables" in deltasql("mirror", "verify").stdout


def test_run_publishes_what_waits(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    append_silently(catalog_uri, 2, 3)
    assert logged(root) == [0, 1]
    done = deltasql_json("mirror", "run")
    left = (
        "failed",
        "diverged",
        "frozen",
        "backing_off",
        "paused_tables",
        "late",
        "no_checkpoint",
        "no_manifest",
    )
    nothing: dict[str, list[str]] = {key: [] for key in left}
    assert done == {"published": 2, "checkpoints": 0, **nothing}
    assert outside_ids(root) == [0, 1, 2, 3]
    append_silently(catalog_uri, 4)
    assert "1 version published" in deltasql("mirror", "run", "t").stdout
    assert logged(root) == [0, 1, 2, 3, 4]


def test_what_cannot_be_published_is_to_be_tried_again(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    append_silently(catalog_uri, 2)
    with blocked(root):
        assert deltasql_json("mirror", "run", "t", code=75)["failed"] == ["t"]
        assert "1 attempt" in deltasql("mirror", "status").stdout
        failed = deltasql("mirror", "run", code=75).stdout
        assert "t failed and waits for its next try" in failed or "t waits" in failed
    assert deltasql_json("mirror", "run", "t")["published"] == 1


def test_commits_that_have_waited_too_long_are_an_alarm(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    append_silently(catalog_uri, 2)
    with Catalog(catalog_uri) as catalog, catalog.log("t").database.write() as session:
        session.run("UPDATE dl_commits SET timestamp = timestamp - 90000 WHERE version = 2")
    close_all()
    assert "ALARM" in deltasql("mirror", "status", code=75).stdout
    assert deltasql_json("mirror", "status", code=75)["tables"][0]["alarm"] is True
    checks = deltasql_json("doctor", code=75)["checks"]
    (late,) = (c for c in checks if c["status"] == "failed")
    assert (late["check"], late["finding"]) == ("published", "late")
    deltasql("mirror", "pause", "t")
    assert deltasql_json("mirror", "status")["tables"][0]["alarm"] is False
    deltasql("mirror", "resume", "t")
    assert "ALARM" not in deltasql("mirror", "status").stdout


def test_status_looks_for_commits_of_others(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    append_outside(root, 77, 78)
    assert deltasql_json("mirror", "status")["tables"][0]["ahead"] is None
    assert deltasql_json("mirror", "status", "--look", code=3)["tables"][0]["ahead"] == 2
    assert "2 commits of other writers" in deltasql("mirror", "status", "t", "--look", code=3).stdout
    deltasql("mirror", "recover", "t")
    assert deltasql_json("mirror", "status", "--look")["tables"][0]["ahead"] == 0


def test_fence_and_remove_it(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    assert deltasql_json("mirror", "fence", "t") == {"table": "t", "fenced": True, "version": 2}
    assert "is fenced already" in deltasql("mirror", "fence", "t").stdout
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        append_outside(root, 77)
    assert outside_ids(root) == [0, 1]
    assert "fenced" in deltasql("drop", "t", "--yes", code=1).stderr
    assert "has no fence since version 3" in deltasql("mirror", "fence", "t", "--remove").stdout
    append_outside(root, 77)
    assert outside_ids(root) == [0, 1, 77]


def test_a_divergence_ends_with_the_code_of_a_frozen_table(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    diverge(catalog_uri, root)
    result = deltasql("mirror", "run", code=5)
    assert "frozen" in result.stdout
    again = deltasql("mirror", "run", code=5)
    assert "t is frozen" in again.stdout, "a later run says so too"
    assert deltasql_json("mirror", "status", code=5)["tables"][0]["state"] == "frozen"
    assert deltasql_json("checkpoint", "t", code=5)["error"] == "TableFrozenError"
    assert deltasql_json("mirror", "recover", "t", code=5)["error"] == "TableFrozenError"


def test_a_service_runs_until_it_is_told_to_stop(catalog_uri: str, root: Path) -> None:
    close_all()
    command = [str(PROGRAM), "mirror", "run", "--watch", "--interval", "0.05", "--json"]
    env = environment(catalog_uri) | {"DELTASQL_DUCKDB__IDLE_RELEASE_S": "0"}
    service = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        append_silently(catalog_uri, 2)
        close_all()
        until(lambda: commit_file(root, 2).exists())
        service.send_signal(signal.SIGTERM)
        out, err = service.communicate(timeout=60)
    finally:
        service.kill()
    assert service.returncode == 0, err
    assert '"published": 1' in out


def test_watching_is_for_all_tables(deltasql: Deltasql, root: Path) -> None:
    assert "leave the name out" in deltasql("mirror", "run", "t", "--watch", code=2).stderr


def test_pause_and_resume(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    assert deltasql_json("mirror", "pause", "t") == {"table": "t", "paused": True}
    with Catalog(catalog_uri) as catalog:
        append(catalog, 2)
    assert logged(root) == [0, 1]
    assert "paused" in deltasql("mirror", "status").stdout
    assert deltasql_json("mirror", "resume", "t")["published"] == 1
    deltasql("mirror", "pause")
    with Catalog(catalog_uri) as catalog:
        append(catalog, 3)
    assert "1 version published" in deltasql("mirror", "resume").stdout
    assert logged(root) == [0, 1, 2, 3]
    deltasql("mirror", "pause", "t")
    assert "t is paused" in deltasql("mirror", "run").stdout
    assert deltasql_json("mirror", "resume")["paused_tables"] == ["t"], "it was paused by name"


def test_verify_and_repair(deltasql: Deltasql, deltasql_json: DeltasqlJson, root: Path) -> None:
    assert "the catalog matches the log" in deltasql("mirror", "verify").stdout
    commit_file(root, 0).unlink()
    report = deltasql_json("mirror", "verify", "t", code=3)
    assert (report["ok"], report["tables"][0]["differences"][0]["kind"]) == (False, "missing")
    assert deltasql("mirror", "verify", "--quiet", "--no-replay", code=3).stdout.startswith("t 0 missing")
    assert "would be rewritten: 0" in deltasql("mirror", "repair", "t", "--dry-run").stdout
    assert logged(root) == [1]
    assert deltasql_json("mirror", "repair", "t")["rewritten"] == [0]
    assert deltasql_json("mirror", "verify")["ok"]


def test_a_foreign_commit_is_left_alone_by_repair(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, root: Path
) -> None:
    commit_file(root, 1).write_bytes(b'{"commitInfo":{"operation":"FOREIGN"}}\n')
    assert deltasql_json("mirror", "verify", code=5)["ok"] is False
    assert "Left alone" in deltasql("mirror", "repair", "t", code=5).stdout


def test_rebuild_makes_a_log_in_an_empty_place(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, root: Path, tmp_path: Path
) -> None:
    place = tmp_path / "rebuilt"
    made = deltasql_json("mirror", "rebuild", "t", str(place))
    assert (made["first_version"], made["version"]) == (0, 1)
    assert logged(place) == [0, 1]
    assert "empty place" in deltasql("mirror", "rebuild", "t", str(place), code=2).stderr


def test_recover_takes_over_what_another_engine_wrote(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    append_outside(root, 77)
    assert deltasql_json("mirror", "recover", "t") == {"table": "t", "adopted": [2], "version": 2}
    assert table_ids(catalog_uri) == [0, 1, 77]
    assert "0 versions" in deltasql("mirror", "recover", "t").stdout


def test_resolve_asks_first_and_keeps_theirs(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    diverge(catalog_uri, root)
    assert "--keep-theirs" in deltasql("mirror", "resolve", "t", code=2).stderr
    assert "not a terminal" in deltasql("mirror", "resolve", "t", "--keep-theirs", code=2).stderr
    plan = deltasql_json("mirror", "resolve", "t", "--keep-theirs", "--dry-run")
    assert (plan["dry_run"], plan["theirs"], plan["ours"], plan["lost"]) == (True, [2], {"2": 3}, {})
    (ours,) = plan["commits"]
    assert (ours["version"], ours["operation"]) == (2, "WRITE")
    assert ours["committed_at"].endswith("Z")
    told = deltasql("mirror", "resolve", "t", "--keep-theirs", "--dry-run").stdout
    assert f"our version 2 (WRITE, {ours['committed_at']}, {ours['txn_uuid']}) would become version 3" in told
    assert outside_ids(root) == [0, 1, 77]
    done = deltasql_json("mirror", "resolve", "t", "--keep-theirs", "--yes")
    assert (done["theirs"], done["ours"], done["lost"]) == ([2], {"2": 3}, {})
    assert outside_ids(root) == table_ids(catalog_uri) == [0, 1, 2, 77]
    assert "nothing to resolve" in deltasql("mirror", "resolve", "t", "--keep-theirs", "-y", code=2).stderr


def test_resolve_names_what_is_lost(deltasql: Deltasql, catalog_uri: str, root: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.mirror.pause("t")
        catalog.table("t").delete("id = 0")
    deltalake.DeltaTable(root).delete("id = 0")
    foretold = deltasql("mirror", "resolve", "t", "--keep-theirs", "--dry-run", code=4).stdout
    assert "would be lost: a file that it removes is gone" in foretold
    assert "is lost: a file" in deltasql("mirror", "resolve", "t", "--keep-theirs", "-y", code=4).stdout


def test_resolve_splits_no_transaction_by_itself(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path, tmp_path: Path
) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("u", ids(0), location=tmp_path / "lake" / "u")
        catalog.mirror.pause("t")
        with catalog.transaction(txn_uuid="order-1") as tx:
            tx.table("t").delete("id = 0")
            tx.write("u", ids(1))
    deltalake.DeltaTable(root).delete("id = 0")
    words = ("mirror", "resolve", "t", "--keep-theirs")
    plan = deltasql_json(*words, "--dry-run", code=4)
    assert (plan["split"], plan["also"]) == ({"order-1": ["u"]}, [])
    assert "stays in u: needs --allow-split" in " ".join(deltasql(*words, "--dry-run", code=4).stdout.split())
    assert "--allow-split" in deltasql_json(*words, "--yes", code=1)["suggestion"]
    done = deltasql_json(*words, "--yes", "--allow-split", code=4)
    assert done["split"] == {"order-1": ["u"]}


def test_the_policy_is_shown_and_set(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    assert deltasql_json("mirror", "policy", "t")["policy"] == "freeze"
    assert "adopt" in deltasql("mirror", "policy", "t", "adopt").stdout
    append_outside(root, 77)
    with Catalog(catalog_uri) as catalog:
        append(catalog, 2)
    assert table_ids(catalog_uri) == [0, 1, 2, 77]
    deltasql("mirror", "policy", "t", "ignore", code=2)


def test_a_checkpoint_is_written_on_demand(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, root: Path
) -> None:
    made: dict[str, Any] = deltasql_json("checkpoint", "t")
    assert (made["version"], made["kind"], made["num_add_files"]) == (1, "classic", 2)
    assert [(root / p).exists() for p in made["paths"]] == [True]
    assert made["created"] is True
    again = " ".join(deltasql("checkpoint", "t").stdout.split())
    assert again.startswith("There was already a classic checkpoint of t at version 1")
    assert again.endswith("It was left as it is.")
    assert deltasql_json("checkpoint", "t", "--kind", "classic")["created"] is False
    assert deltasql("checkpoint", "t", "--quiet").stdout.strip() == made["paths"][0]
    assert "v2Checkpoint" in deltasql("checkpoint", "t", "--kind", "v2", code=1).stderr


def test_nothing_is_created_by_looking(deltasql: Deltasql, tmp_path: Path) -> None:
    for words in (["status"], ["run"], ["verify"], ["pause"]):
        assert "there is no catalog" in deltasql("mirror", *words, code=1).stderr
    assert not list(tmp_path.glob("catalog*"))


def test_prune_clean_and_compact(deltasql: Deltasql, deltasql_json: DeltasqlJson, root: Path) -> None:
    deltasql("checkpoint", "t")
    asked = deltasql_json("mirror", "prune", "t", "--dry-run")
    assert (asked["upto"], asked["commits"], asked["dry_run"]) == (0, 1, True)
    assert "The bytes of 1 commit of t deleted, up to version" in deltasql("mirror", "prune", "t").stdout
    assert deltasql_json("mirror", "prune", "t")["commits"] == 0
    assert deltasql_json("mirror", "clean", "t")["deleted"] == []
    would = deltasql_json("mirror", "compact-log", "t", "0", "1", "--dry-run")
    assert (would["dry_run"], (root / would["path"]).exists()) == (True, False)
    made = deltasql_json("mirror", "compact-log", "t", "0", "1")
    assert (root / made["path"]).is_file()
    assert "already" in deltasql("mirror", "compact-log", "t", "0", "1").stdout
    assert "not a range" in deltasql("mirror", "compact-log", "t", "0", "9", code=2).stderr
    assert outside_ids(root) == [0, 1]


@pytest.mark.parametrize("interval", ["nan", "inf", "-1", "0", "soon"])
def test_a_pause_that_is_no_length_of_time_is_refused(deltasql: Deltasql, root: Path, interval: str) -> None:
    told = deltasql("mirror", "run", "--watch", "--interval", interval, code=2).stderr
    assert "interval" in told


def test_clean_shows_first_what_it_would_delete(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.table("t").alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        append(catalog, 2)
    deltasql("checkpoint", "t")
    before = sorted(p.name for p in (root / "_delta_log").iterdir())
    would = deltasql_json("mirror", "clean", "t", "--dry-run")
    assert (would["dry_run"], len(would["deleted"])) == (True, 3)
    told = deltasql("mirror", "clean", "t", "--dry-run").stdout
    assert "3 log files would be deleted" in told
    assert all(path in told for path in would["deleted"])
    assert sorted(p.name for p in (root / "_delta_log").iterdir()) == before
    assert deltasql_json("mirror", "clean", "t")["deleted"] == would["deleted"]
    assert logged(root) == [3]
    assert outside_ids(root) == [0, 1, 2]


@pytest.mark.usefixtures("long_waits")
def test_a_checkpoint_that_cannot_be_written_is_shown(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, tmp_path: Path
) -> None:
    wanted = {"delta.checkpointInterval": "1", "delta.deletedFileRetentionDuration": "foo"}
    deltalake.DeltaTable.create(tmp_path / "u", ids(0).schema, configuration=wanted)
    with Catalog(catalog_uri) as catalog:
        catalog.register("u", tmp_path / "u")
        catalog.write("u", ids(1), mode="append")
    told = deltasql("mirror", "status", "u", code=75).stdout
    assert "no checkpoint: ConfigError: the property delta.deletedFileRetentionDuration" in " ".join(
        told.split()
    )
    (row,) = deltasql_json("mirror", "status", "u", code=75)["tables"]
    assert row["checkpoint_attempts"] == 1
    assert "the checkpoint of u cannot be written" in deltasql("mirror", "run", code=75).stdout
    assert deltasql_json("mirror", "run", code=75)["no_checkpoint"] == ["u"]
    assert deltasql_json("mirror", "status", "u", code=75)["tables"][0]["checkpoint_attempts"] == 1


def test_every_command_says_what_to_do_about_a_table_that_is_not_there(
    deltasql_json: DeltasqlJson, root: Path
) -> None:
    more = {"rebuild": ["place"], "compact-log": ["0", "1"], "resolve": ["--keep-theirs", "--yes"]}
    for command in sorted(mirror.commands):
        told = deltasql_json("mirror", command, "u", *more.get(command, ()), code=1)
        assert told["error"] == "TableMissingError", command
        assert told["suggestion"], command


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_manifest_that_cannot_be_written_is_shown_and_written_on_demand(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path, tmp_path: Path
) -> None:
    in_the_way = root / "_delta_transactions"
    in_the_way.write_text("in the way")
    with Catalog(catalog_uri) as catalog, catalog.transaction() as tx:
        tx.write("t", ids(2))
        tx.create_table("u", ids(0).schema, location=tmp_path / "lake" / "u")
    row, other = deltasql_json("mirror", "status", code=75)["tables"]
    assert (row["manifests_missing"], other["manifests_missing"]) == (1, 0)
    assert "no manifest of 1 transaction: " in deltasql("mirror", "status", "t", code=75).stdout
    assert deltasql_json("mirror", "run", code=75)["no_manifest"] == ["t"]
    assert (
        "the manifest of a transaction cannot be written beside t"
        in deltasql("mirror", "run", code=75).stdout
    )
    assert any(c["check"] == "manifests" for c in deltasql_json("doctor")["checks"])
    in_the_way.unlink()
    assert deltasql_json("mirror", "run", "t")["no_manifest"] == []
    assert [p.stem for p in in_the_way.iterdir()] == [tx.uuid]
    assert deltasql_json("mirror", "status")["tables"][0]["manifest_error"] is None


def test_the_lease_of_a_crashed_process_is_taken_over_on_request(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, catalog_uri: str, root: Path
) -> None:
    with Catalog(catalog_uri) as catalog:
        table = catalog.describe("t")
        lease = leases.acquire(catalog._database, f"checkpoint:{table.table_id}")
        assert lease is not None
    refused = deltasql("checkpoint", "t", code=75)
    assert "already in progress" in refused.stderr
    assert "--take-over" in refused.stderr
    assert deltasql_json("checkpoint", "t", "--take-over")["version"] == 1
