"""Both sides committed: theirs stay, ours are made again on top, and whatever is interrupted goes on."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.commit.changes import TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import (
    CatalogBusyError,
    DivergedWarning,
    InvalidArgumentError,
    TableFrozenError,
)
from deltalakedb.mirror import resolve as resolve_module
from deltalakedb.mirror.our_commits import foresee
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.reads import NOTHING
from support.lake import ids, ids_of
from support.mirrors import (
    append,
    append_outside,
    commit_file,
    diverge,
    outside_ids,
    resume_diverged,
    same_everywhere,
)
from support.processes import Child, arm

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri
    from deltalakedb.mirror.resolve import Resolved


def audit(catalog: Catalog) -> list[str]:
    found: list[str] = catalog.query("SELECT action FROM dl_audit ORDER BY audit_id")["action"].to_pylist()
    return found


def resolved(catalog: Catalog) -> Resolved:
    """Resolve, which does what a look at it foretold."""
    before = catalog.query("SELECT * FROM dl_audit ORDER BY audit_id")
    foretold = catalog.mirror.resolve("t", dry_run=True)
    assert catalog.query("SELECT * FROM dl_audit ORDER BY audit_id") == before, "a look changes nothing"
    done = catalog.mirror.resolve("t")
    assert replace(foretold, dry_run=False) == done
    return done


def test_a_divergence_freezes_and_neither_side_is_lost(catalog: Catalog, root: Path) -> None:
    diverge(catalog, root, 1, 2)
    theirs = commit_file(root, 1).read_bytes()
    resume_diverged(catalog)
    assert catalog.mirror.status()[0].state == "frozen"
    assert commit_file(root, 1).read_bytes() == theirs
    assert (outside_ids(root), ids_of(catalog.table("t"))) == ([0, 77], [0, 1, 2])
    with pytest.raises(TableFrozenError):
        append(catalog, 3)
    with pytest.raises(TableFrozenError, match="both sides"):
        catalog.mirror.recover("t")
    assert catalog.mirror.run().published == 0


def test_resolving_keeps_theirs_and_makes_our_appends_again(catalog: Catalog, root: Path) -> None:
    diverge(catalog, root, 1, 2, outside=(77, 78))
    resume_diverged(catalog)
    done = resolved(catalog)
    assert (done.theirs, done.ours, done.lost) == ((1, 2), {1: 3, 2: 4}, {})
    assert ids_of(catalog.table("t")) == [0, 1, 2, 77, 78]
    assert catalog.mirror.status()[0].state == "active"
    same_everywhere(catalog, root)
    assert catalog.mirror.verify("t").ok
    append(catalog, 3)
    assert outside_ids(root) == [0, 1, 2, 3, 77, 78]
    assert "take back" in audit(catalog)
    notes = [h.get("recommittedFrom") for h in catalog.table("t").history()]
    assert notes == [None, 2, 1, None, None, None]


def test_a_look_at_a_resolution_names_every_commit(catalog: Catalog, root: Path) -> None:
    append(catalog, 1)
    catalog.mirror.pause("t")
    catalog.table("t").delete("id = 0")
    append(catalog, 5)
    deltalake.DeltaTable(root).delete("id = 0")
    waiting = {c.version: c for c in catalog.commits("t", limit=2)}
    foretold = catalog.mirror.resolve("t", dry_run=True)
    assert (foretold.theirs, foretold.ours, foretold.dry_run) == ((2,), {3: 3}, True)
    assert "gone" in foretold.lost[2]
    assert [(c.version, c.operation) for c in foretold.commits] == [(2, "DELETE"), (3, "WRITE")]
    assert [c.timestamp for c in foretold.commits] == [waiting[2].timestamp, waiting[3].timestamp]
    assert all(uuid.UUID(c.txn_uuid) for c in foretold.commits)
    assert ids_of(catalog.table("t")) == [1, 5]
    assert catalog.describe("t").head.version == 3


def test_rows_cannot_be_removed_again_where_others_made_the_table_append_only(
    catalog: Catalog, root: Path
) -> None:
    append(catalog, 1)
    catalog.mirror.pause("t")
    catalog.table("t").delete("id = 0")
    append(catalog, 5)
    deltalake.DeltaTable(root).alter.set_table_properties({"delta.appendOnly": "true"})
    resume_diverged(catalog)
    done = resolved(catalog)
    assert "append-only" in done.lost[2]
    assert done.ours == {3: 3}
    same_everywhere(catalog, root)


def test_resolving_makes_a_delete_again_that_still_applies(catalog: Catalog, root: Path) -> None:
    append(catalog, 1)
    catalog.mirror.pause("t")
    catalog.table("t").delete("id = 0")
    append_outside(root, 77)
    resume_diverged(catalog)
    done = resolved(catalog)
    assert (done.theirs, done.ours, done.lost) == ((2,), {2: 3}, {})
    assert ids_of(catalog.table("t")) == [1, 77]
    same_everywhere(catalog, root)


def test_what_cannot_stand_beside_theirs_is_lost_and_named(catalog: Catalog, root: Path) -> None:
    append(catalog, 1)
    catalog.mirror.pause("t")
    catalog.table("t").delete("id = 0")
    append(catalog, 5)
    deltalake.DeltaTable(root).delete("id = 0")
    resume_diverged(catalog)
    done = resolved(catalog)
    assert (done.theirs, done.ours) == ((2,), {3: 3})
    assert list(done.lost) == [2]
    assert "gone" in done.lost[2]
    assert ids_of(catalog.table("t")) == [1, 5]
    same_everywhere(catalog, root)


def test_a_repeated_transaction_answers_with_its_new_version(catalog: Catalog, root: Path) -> None:
    mine = str(uuid.uuid4())
    catalog.mirror.pause("t")
    with catalog.transaction(txn_uuid=mine) as tx:
        tx.write("t", ids(1))
    assert tx.commits["t"].version == 1
    append_outside(root, 77)
    resume_diverged(catalog)
    assert resolved(catalog).ours == {1: 2}
    with catalog.transaction(txn_uuid=mine) as tx:
        tx.write("t", ids(1))
    assert (tx.commits["t"].version, tx.commits["t"].replayed) == (2, True)
    assert ids_of(catalog.table("t")) == [0, 1, 77]
    same_everywhere(catalog, root)


def test_a_transaction_over_two_tables_survives_the_resolution_of_one(
    catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    other = tmp_path / "u"
    catalog.write("u", ids(0), location=other)
    mine = str(uuid.uuid4())
    catalog.mirror.pause("t")
    with catalog.transaction(txn_uuid=mine) as tx:
        tx.write("t", ids(1))
        tx.write("u", ids(1))
    append_outside(root, 77)
    resume_diverged(catalog)
    assert resolved(catalog).ours == {1: 2}
    with catalog.transaction(txn_uuid=mine) as tx:
        tx.write("t", ids(1))
        tx.write("u", ids(1))
    assert {n: (c.version, c.replayed) for n, c in tx.commits.items()} == {"t": (2, True), "u": (1, True)}
    assert (ids_of(catalog.table("t")), ids_of(catalog.table("u"))) == ([0, 1, 77], [0, 1])


def test_there_must_be_something_to_resolve(catalog: Catalog, silent: Catalog, root: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="nothing to resolve"):
        catalog.mirror.resolve("t")
    append(silent, 1)
    with pytest.raises(InvalidArgumentError, match="only waits"):
        catalog.mirror.resolve("t")
    assert ids_of(catalog.table("t")) == [0, 1]
    with pytest.raises(InvalidArgumentError, match="never overwritten"):
        catalog.mirror.resolve("t", keep="ours")  # type: ignore[arg-type]
    assert catalog.mirror.publish("t").published == 1


def test_a_published_version_that_was_overwritten_is_not_resolved_but_told(
    catalog: Catalog, silent: Catalog, root: Path, table_uri: TableUri
) -> None:
    append(catalog, 1)
    append(silent, 2)
    commit_file(root, 1).write_bytes(b'{"commitInfo":{"operation":"FOREIGN"}}\n')
    with pytest.raises(InvalidArgumentError, match="overwritten by somebody"):
        catalog.mirror.resolve("t")
    with pytest.raises(TableFrozenError):
        catalog.mirror.recover("t")


# ---- a resolution that is interrupted, or has more to decide -------------------------------------------


def resolve_in_child(uri: str, points: str) -> None:
    catalog = Catalog(uri)
    arm(points)
    catalog.mirror.resolve("t")


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("point", ["commit.before_commit", "commit.after"])
def test_a_resolution_that_is_killed_loses_nothing_and_goes_on(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path, point: str, number: int
) -> None:
    diverge(catalog, root, 1, 2)
    resume_diverged(catalog)
    catalog.close()
    Child(resolve_in_child, catalog_uri, f"{point}=kill@{number}", folder=tmp_path).died()
    status = catalog.mirror.status()[0]
    assert status.state == "frozen"
    assert "resolve" in (status.state_reason or "")
    with pytest.raises(TableFrozenError):
        append(catalog, 3)
    with pytest.raises(TableFrozenError, match="made again"):
        catalog.mirror.recover("t")
    expire_leases(catalog)
    done = resolved(catalog)
    assert (done.theirs, done.ours, done.lost) == ((1,), {1: 2, 2: 3}, {})
    assert ids_of(catalog.table("t")) == [0, 1, 2, 77]
    same_everywhere(catalog, root)
    append(catalog, 3)
    assert catalog.query("SELECT name FROM dl_settings")["name"].to_pylist() == []


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_resolution_that_lost_its_lease_changes_nothing_more(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    diverge(catalog, root, 1, 2)
    resume_diverged(catalog)
    catalog.close()
    # theirs is taken over, and ours about to be made again
    slow = Child(resolve_in_child, catalog_uri, "commit.before_begin=stop@2", folder=tmp_path)
    slow.pause()
    with pytest.raises(CatalogBusyError, match="somebody else"):
        catalog.mirror.resolve("t")
    expire_leases(catalog)
    done = resolved(catalog)
    assert (done.theirs, done.ours, done.lost) == ((1,), {1: 2, 2: 3}, {})
    slow.resume()
    with pytest.raises(AssertionError, match="the lease was lost before the resolution was done"):
        slow.result()
    assert ids_of(catalog.table("t")) == [0, 1, 2, 77]
    same_everywhere(catalog, root)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_another_tables_log_in_the_place_of_one_that_was_never_published_is_told_as_that(
    catalog: Catalog, silent: Catalog, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    silent.write("t", ids(1), location=place)
    deltalake.write_deltalake(place, ids(9))
    with pytest.warns(DivergedWarning):
        catalog.mirror.run()
    for look in (True, False):
        with pytest.raises(InvalidArgumentError, match="version 0 of the log is another table's"):
            catalog.mirror.resolve("t", dry_run=look)
    (place / "_delta_log").rename(tmp_path / "theirs")
    assert catalog.mirror.repair("t").unfrozen
    assert catalog.mirror.run().published == 1
    assert outside_ids(place) == [1]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_commit_that_comes_while_a_resolution_begins_is_not_taken_back(
    catalog: Catalog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(catalog, root, 1)  # nobody has found it yet, so the table is still written to

    def meanwhile(*arguments: Any) -> Any:
        append(catalog, 2)
        return foresee(*arguments)

    monkeypatch.setattr(resolve_module, "foresee", meanwhile)
    with pytest.raises(CatalogBusyError, match="version 2 was committed meanwhile"):
        catalog.mirror.resolve("t")
    monkeypatch.undo()
    assert ids_of(catalog.table("t")) == [0, 1, 2]
    assert resolved(catalog).ours == {1: 2, 2: 3}
    assert ids_of(catalog.table("t")) == [0, 1, 2, 77]


def publish_in_child(uri: str, points: str) -> list[str]:
    catalog = Catalog(uri)
    arm(points)
    return [*catalog.mirror.publish("t").diverged]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_publisher_that_slept_through_a_resolution_freezes_nothing(
    catalog_uri: str, catalog: Catalog, silent: Catalog, root: Path, tmp_path: Path
) -> None:
    append(silent, 1)
    slow = Child(publish_in_child, catalog_uri, "publish.before_put=stop@1", folder=tmp_path)
    slow.pause()
    append_outside(root, 77)
    assert resolved(catalog).ours == {1: 2}
    slow.resume()
    assert slow.result() == [], "what it holds is nobody's any more"
    assert catalog.mirror.status()[0].state == "active"
    append(catalog, 3)
    same_everywhere(catalog, root)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_table_is_frozen_also_where_warnings_are_errors(catalog: Catalog, root: Path) -> None:
    diverge(catalog, root, 1)
    with pytest.raises(DivergedWarning, match="frozen"):
        catalog.mirror.resume("t")
    assert catalog.mirror.status()[0].state == "frozen"


def expire_leases(catalog: Catalog) -> None:
    """Let the dead one's lease run out, as if its time had passed."""
    with catalog.log("t").database.write() as session:
        session.run("UPDATE dl_leases SET expires_at = 1")


def test_the_versions_of_one_transaction_are_made_again_together(catalog: Catalog, root: Path) -> None:
    catalog.mirror.pause("t")
    log = catalog.log("t")
    mine = str(uuid.uuid4())
    same = {"partition_values": {}, "size": 1, "modification_time": 1, "data_change": True}
    adds = [Add(path=f"{n}.parquet", **same) for n in "ab"]
    change = TableChange(catalog.describe("t"), adds[:1], log.snapshot(), NOTHING, then=[adds[1:]])
    (before,) = commit(log.database, [change], txn_uuid=mine)  # type: ignore[misc]
    append_outside(root, 77)
    resume_diverged(catalog)
    assert before.version == 2
    assert resolved(catalog).ours == {1: 2, 2: 3}
    (after,) = commit(log.database, [change], txn_uuid=mine)  # type: ignore[misc]
    assert (after.version, after.replayed) == (3, True)
    again = [a.path for v in (2, 3) for a in log.actions(v) if isinstance(a, Add)]
    assert again == ["a.parquet", "b.parquet"]


def test_what_was_written_for_another_schema_is_lost_and_named(catalog: Catalog, root: Path) -> None:
    catalog.mirror.pause("t")
    append(catalog, 1)
    stock = deltalake.DeltaTable(root)
    stock.alter.add_columns([deltalake.Field("more", deltalake.schema.PrimitiveType("string"))])
    resume_diverged(catalog)
    done = resolved(catalog)
    assert (done.theirs, done.ours) == ((1,), {})
    assert "schema" in done.lost[1]
    assert "more" in [f.name for f in catalog.table("t").schema().fields]
    assert ids_of(catalog.table("t")) == [0]
    same_everywhere(catalog, root)


@pytest.mark.parametrize("reshaped", [False, True], ids=["description", "schema"])
def test_changes_of_the_table_on_both_sides_are_not_mixed(
    catalog: Catalog, root: Path, reshaped: bool
) -> None:
    catalog.mirror.pause("t")
    log = catalog.log("t")
    metadata = replace(log.snapshot().metadata, description="ours")
    if reshaped:
        schema = json.loads(metadata.schema_string)
        schema["fields"].append({"name": "more", "type": "string", "nullable": True, "metadata": {}})
        metadata = replace(metadata, schema_string=json.dumps(schema))
    commit(log.database, [TableChange(catalog.describe("t"), [metadata], log.snapshot())])
    data = ids(1).append_column("more", pa.array(["x"])) if reshaped else ids(1)
    catalog.write("t", data, mode="append")
    deltalake.DeltaTable(root).alter.set_table_description("theirs")
    resume_diverged(catalog)
    done = resolved(catalog)
    assert done.theirs == (1,)
    assert "properties" in done.lost[1]
    if reshaped:
        assert "follows" in done.lost[2]
    else:
        assert (done.ours, list(done.lost)) == ({2: 2}, [1])
    assert catalog.table("t").metadata().description == "theirs"
    same_everywhere(catalog, root)
