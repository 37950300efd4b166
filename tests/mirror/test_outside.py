"""Outside writers and older databases: nothing is overtaken, a person decides what both sides did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import deltalake
import pytest

from deltalakedb import Catalog, CommitProperties, Transaction
from deltalakedb.exceptions import (
    ConflictError,
    DivergedWarning,
    TableFrozenError,
    UnsupportedFeatureError,
)
from deltalakedb.settings import Config
from deltalakedb.table import sources
from support.lake import ids, ids_of
from support.mirrors import (
    append,
    append_outside,
    back_up,
    commit_file,
    logged,
    outside_ids,
    same_everywhere,
)

if TYPE_CHECKING:
    from pathlib import Path


def audit(catalog: Catalog) -> list[str]:
    found: list[str] = catalog.query("SELECT action FROM dl_audit ORDER BY audit_id")["action"].to_pylist()
    return found


# ---- beyond the head -----------------------------------------------------------------------------------


def test_a_commit_beyond_the_head_freezes_the_table_before_it_is_overtaken(
    catalog: Catalog, root: Path
) -> None:
    append_outside(root, 7)
    theirs = commit_file(root, 1).read_bytes()
    with pytest.raises(TableFrozenError, match="version 1") as caught:
        append(catalog, 1)
    with pytest.raises(TableFrozenError) as again:
        catalog.table("t").delete("id = 0")
    for error in (caught, again):
        for told in ("mirror recover", "mirror resolve", "docs/how-to/keep-the-log-in-step.md"):
            assert told in (error.value.suggestion or "")
    status = catalog.mirror.status()[0]
    assert (status.state, status.version) == ("frozen", 0)
    assert status.state_reason
    assert (commit_file(root, 1).read_bytes(), logged(root)) == (theirs, [0, 1])
    assert ids_of(catalog.table("t")) == [0], "reading goes on"
    assert catalog.mirror.recover("t").versions == (1,)
    assert catalog.mirror.status()[0].state == "active"
    append(catalog, 1)
    assert ids_of(catalog.table("t")) == [0, 1, 7]
    same_everywhere(catalog, root)
    assert {"freeze", "unfreeze"} <= set(audit(catalog))


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_foreign_commits_of_an_application_that_counts_backwards_are_all_taken_over(
    catalog: Catalog, root: Path
) -> None:
    for number in (7, 7, 3):
        once = CommitProperties(app_transactions=[Transaction("app", number)])
        deltalake.write_deltalake(root, ids(number), mode="append", commit_properties=once)
    assert catalog.mirror.recover("t").versions == (1, 2, 3)
    assert ids_of(catalog.table("t")) == outside_ids(root) == [0, 3, 7, 7]
    assert catalog.table("t").transaction_version("app") == 3
    same_everywhere(catalog, root)


def test_a_table_that_adopts_takes_foreign_commits_over_before_it_writes(
    catalog: Catalog, root: Path
) -> None:
    catalog.mirror.set_policy("t", "adopt")
    append_outside(root, 7, 8)
    append(catalog, 1)
    assert ids_of(catalog.table("t")) == [0, 1, 7, 8]
    origins = catalog.query("SELECT version, origin FROM dl_commits ORDER BY version").to_pylist()
    assert [r["origin"] for r in origins] == ["sql", "adopt", "adopt", "sql"]
    assert catalog.mirror.verify("t").ok
    same_everywhere(catalog, root)
    append_outside(root, 9)
    assert catalog.table("t").delete("id = 7")["num_deleted_rows"] == 1
    assert outside_ids(root) == [0, 1, 8, 9]
    same_everywhere(catalog, root)


def changed_outside(root: Path) -> None:
    deltalake.DeltaTable(root).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_write_that_adopts_is_checked_against_what_it_took_over(catalog: Catalog, root: Path) -> None:
    catalog.mirror.set_policy("t", "adopt")
    append(catalog, 1, 2)
    outside = deltalake.DeltaTable(root)
    outside.delete("id = 1")
    append(catalog, 3)
    assert outside_ids(root) == [0, 2, 3], "an append does not mind a delete"
    append_outside(root, 7)
    catalog.table("t").delete("id = 3")
    assert outside_ids(root) == [0, 2, 7], "nor does a delete mind rows that it cannot meet"
    append_outside(root, 8)
    with pytest.raises(ConflictError):
        catalog.write("t", ids(9), mode="overwrite")
    assert ids_of(catalog.table("t")) == [0, 2, 7, 8], "theirs are taken over all the same"
    sources._caches.clear()  # as in a process that has not appended yet
    changed_outside(root)
    with pytest.raises(ConflictError, match="metadata changed"):
        append(catalog, 4)
    append(catalog, 4)
    changed_outside(root)
    append(catalog, 6)
    assert outside_ids(root) == [0, 2, 4, 6, 7, 8], "who appended before looks the table up again"
    sources._caches.clear()  # as in a process that has not appended yet
    changed_outside(root)
    catalog.run(lambda tx: tx.write("t", ids(5), mode="append"))
    assert outside_ids(root) == [0, 2, 4, 5, 6, 7, 8]
    assert catalog.mirror.verify("t").ok


@pytest.mark.parametrize("policy", ["freeze", "adopt"])
def test_commits_of_others_are_found_at_open_by_a_setting(
    catalog_uri: str, catalog: Catalog, root: Path, policy: Literal["freeze", "adopt"]
) -> None:
    catalog.mirror.set_policy("t", policy)
    append_outside(root, 7)
    assert ids_of(catalog.table("t")) == [0], "not by default"
    looking = Catalog(catalog_uri, config=Config(publish={"look_at_open": True}))
    if policy == "adopt":
        assert ids_of(looking.table("t")) == [0, 7]
        assert ids_of(looking.table("t", version=0)) == [0]
        return
    with pytest.warns(DivergedWarning, match="mirror recover"):
        assert ids_of(looking.table("t")) == [0], "it can be read"
    assert catalog.mirror.status()[0].state == "frozen"
    assert ids_of(looking.table("t")) == [0], "and is told once"
    assert looking.mirror.recover("t").versions == (1,)
    assert ids_of(looking.table("t")) == [0, 7]


def test_a_look_can_be_left_out_and_the_divergence_is_then_found_when_publishing(
    catalog_uri: str, catalog: Catalog, root: Path
) -> None:
    append_outside(root, 7)
    blind = Catalog(catalog_uri, config=Config(publish={"look_ahead": "off"}))
    with pytest.warns(UserWarning, match="frozen"):
        append(blind, 1)
    assert catalog.mirror.status()[0].state == "frozen"
    assert ids_of(catalog.table("t")) == [0, 1], "the commit stands"
    assert outside_ids(root) == [0, 7], "and so does theirs"


def test_what_another_engine_did_is_taken_over_even_where_we_could_not_have_done_it(
    catalog: Catalog, root: Path
) -> None:
    features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening", "rowTracking"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    commit_file(root, 1).write_text('{"commitInfo":{"operation":"UPGRADE"}}\n' + json.dumps(protocol) + "\n")
    assert catalog.mirror.recover("t").versions == (1,)
    assert catalog.log("t").snapshot().protocol.writer_features == ("typeWidening", "rowTracking")
    assert ids_of(catalog.table("t")) == [0]
    with pytest.raises(UnsupportedFeatureError, match="typeWidening"):
        append(catalog, 1)
    assert catalog.mirror.verify("t").ok


def test_nothing_to_recover_is_nothing_done(catalog: Catalog, root: Path) -> None:
    assert catalog.mirror.recover("t").versions == ()
    same_everywhere(catalog, root)


def test_where_ours_only_wait_there_is_nothing_to_recover(
    catalog: Catalog, silent: Catalog, root: Path
) -> None:
    append(silent, 1)
    assert catalog.mirror.recover("t").versions == ()
    assert catalog.mirror.publish("t").published == 1


# ---- a database that came back from an older backup ----------------------------------------------------


@pytest.mark.parametrize("waiting", [False, True], ids=["all published", "one waiting"])
def test_a_restored_database_refuses_writes_until_the_log_is_recovered(
    catalog: Catalog, root: Path, tmp_path: Path, waiting: bool
) -> None:
    append(catalog, 1)
    if waiting:  # the backup is of a moment between committing and publishing
        catalog.mirror.pause("t")
        append(catalog, 2)
    restore = back_up(catalog, tmp_path / "backup")
    if waiting:
        catalog.mirror.resume("t")
    else:
        append(catalog, 2)
    append(catalog, 3)
    catalog.table("t").delete("id = 1")
    append(catalog, 4)
    before = {v: commit_file(root, v).read_bytes() for v in logged(root)}
    restore()
    assert catalog.describe("t").head.version == (2 if waiting else 1)
    for _ in range(2):
        with pytest.raises(TableFrozenError):
            append(catalog, 9)
    recovered = catalog.mirror.recover("t").versions
    assert recovered == ((3, 4, 5) if waiting else (2, 3, 4, 5))
    assert ids_of(catalog.table("t")) == [0, 2, 3, 4]
    if waiting:
        catalog.mirror.resume("t")
    append(catalog, 9)
    assert ids_of(catalog.table("t")) == [0, 2, 3, 4, 9]
    assert {v: commit_file(root, v).read_bytes() for v in before} == before, "the log was left alone"
    same_everywhere(catalog, root)
    assert catalog.mirror.verify("t").ok


def test_a_foreign_commit_in_the_place_of_a_published_one_freezes_the_table(
    catalog: Catalog, root: Path
) -> None:
    append(catalog, 1)
    commit_file(root, 1).unlink()
    append_outside(root, 99)
    with pytest.warns(DivergedWarning, match="version 1"):
        append(catalog, 2)
    assert logged(root) == [0, 1], "nothing was put on top of it"
    with pytest.raises(TableFrozenError):
        append(catalog, 3)
    assert catalog.describe("t").state == "frozen"
