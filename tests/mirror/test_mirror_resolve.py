"""Both sides committed: theirs stay, ours are made again on top, and whatever is interrupted goes on."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, CommitProperties
from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest, TableChange
from deltalakedb.coordinator import rebase
from deltalakedb.exceptions import (
    CatalogBusyError,
    CommitError,
    DivergedWarning,
    InvalidArgumentError,
    TableFrozenError,
    UnsupportedOperationError,
)
from deltalakedb.metastore import commits
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.read_set import NOTHING
from support.lake import ids, ids_of
from support.mirrors import (
    append,
    append_outside,
    back_up,
    commit_file,
    diverge,
    outside_ids,
    resume_diverged,
    same_everywhere,
)
from support.processes import Child, arm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import TableUri
    from deltalakedb.coordinator.rebase import Resolved


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
    assert [c.committed_at for c in foretold.commits] == [waiting[2].committed_at, waiting[3].committed_at]
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
    with pytest.raises(InvalidArgumentError, match="overwritten by another writer"):
        catalog.mirror.resolve("t")
    with pytest.raises(TableFrozenError):
        catalog.mirror.recover("t")


# ---- a resolution that is interrupted, or has more to decide -------------------------------------------


def resolve_in_child(uri: str, points: str) -> None:
    catalog = Catalog(uri)
    arm(points)
    catalog.mirror.resolve("t")


@pytest.mark.parametrize("point", ["resolve.taken_over", "resolve.rebuilt"])
def test_a_resolution_that_is_killed_changes_nothing_and_can_be_repeated(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path, point: str
) -> None:
    diverge(catalog, root, 1, 2)
    resume_diverged(catalog)
    catalog.close()
    Child(resolve_in_child, catalog_uri, f"{point}=kill", folder=tmp_path).died()
    assert ids_of(catalog.table("t")) == [0, 1, 2], "what was acknowledged is there"
    assert catalog.mirror.status()[0].state == "frozen"
    with pytest.raises(TableFrozenError):
        append(catalog, 3)
    assert "take back" not in audit(catalog)
    done = resolved(catalog)
    assert (done.theirs, done.ours, done.lost) == ((1,), {1: 2, 2: 3}, {})
    assert ids_of(catalog.table("t")) == [0, 1, 2, 77]
    same_everywhere(catalog, root)
    append(catalog, 3)
    assert catalog.query("SELECT name FROM dl_settings")["name"].to_pylist() == []


def test_a_resolution_that_is_killed_before_it_is_published_stands(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    diverge(catalog, root, 1, 2)
    resume_diverged(catalog)
    catalog.close()
    Child(resolve_in_child, catalog_uri, "resolve.after=kill", folder=tmp_path).died()
    assert ids_of(catalog.table("t")) == [0, 1, 2, 77]
    assert catalog.mirror.status()[0].state == "active"
    assert catalog.mirror.run().published == 2
    same_everywhere(catalog, root)


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])  # one process at a time has a DuckDB file
@pytest.mark.parametrize("point", ["resolve.taken_over", "resolve.rebuilt"])
def test_readers_see_every_acknowledged_row_while_a_resolution_is_at_work(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path, point: str
) -> None:
    diverge(catalog, root, 1, 2)
    resume_diverged(catalog)
    catalog.close()
    slow = Child(resolve_in_child, catalog_uri, f"{point}=stop", folder=tmp_path)
    slow.pause()
    assert ids_of(catalog.table("t")) == [0, 1, 2]
    slow.resume()
    slow.result()
    assert ids_of(catalog.table("t")) == [0, 1, 2, 77]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_resolution_that_lost_its_lease_changes_nothing_more(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    diverge(catalog, root, 1, 2)
    resume_diverged(catalog)
    catalog.close()
    slow = Child(resolve_in_child, catalog_uri, "resolve.before=stop", folder=tmp_path)
    slow.pause()
    with pytest.raises(CatalogBusyError, match="already in progress"):
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

    seen = rebase._diverged

    def meanwhile(*arguments: Any) -> Any:
        found = seen(*arguments)
        append(catalog, 2)
        return found

    monkeypatch.setattr(rebase, "_diverged", meanwhile)
    with pytest.raises(CatalogBusyError, match=r"changed meanwhile \(version 2"):
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
    change = TableChange(catalog.describe("t"), [adds[:1], adds[1:]], log.snapshot(), NOTHING)
    (before,) = commit(log.database, CommitRequest([change], txn_id=mine))  # type: ignore[misc]
    append_outside(root, 77)
    resume_diverged(catalog)
    assert before.version == 2
    assert resolved(catalog).ours == {1: 2, 2: 3}
    (after,) = commit(log.database, CommitRequest([change], txn_id=mine))  # type: ignore[misc]
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
    commit(log.database, CommitRequest([TableChange(catalog.describe("t"), [[metadata]], log.snapshot())]))
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


# ---- what a commit read ----------------------------------------------------------------------------------


def merge_from_60(table: Any) -> None:
    source = ids(60, 77)
    merge = table.merge(source, "target.id = source.id", source_alias="source", target_alias="target")
    merge.when_matched_delete().execute()


CHANGES: dict[str, Callable[[Catalog], object]] = {
    "delete": lambda catalog: catalog.table("t").delete("id >= 50"),
    "update": lambda catalog: catalog.table("t").update({"id": "id + 1000"}, predicate="id >= 50"),
    "merge": lambda catalog: merge_from_60(catalog.table("t")),
    "replace": lambda catalog: catalog.write("t", ids(55), mode="overwrite", predicate="id >= 50"),
    "overwrite": lambda catalog: catalog.write("t", ids(55), mode="overwrite"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_whose_predicate_meets_rows_of_theirs_is_lost_and_named(
    catalog: Catalog, root: Path, change: str
) -> None:
    append(catalog, 60)
    catalog.mirror.pause("t")
    CHANGES[change](catalog)
    append_outside(root, 77)
    resume_diverged(catalog)
    done = resolved(catalog)
    assert (done.theirs, done.ours, list(done.lost)) == ((2,), {}, [2])
    assert "added rows that should have been read" in done.lost[2]
    assert ids_of(catalog.table("t")) == [0, 60, 77], "as if it had never been made"
    same_everywhere(catalog, root)


@pytest.mark.parametrize("change", ["delete", "update", "replace"])
def test_a_change_whose_predicate_meets_no_row_of_theirs_is_made_again(
    catalog: Catalog, root: Path, change: str
) -> None:
    append(catalog, 60)
    catalog.mirror.pause("t")
    CHANGES[change](catalog)
    before = ids_of(catalog.table("t"))
    append_outside(root, 7)
    resume_diverged(catalog)
    assert resolved(catalog).ours == {2: 3}
    assert ids_of(catalog.table("t")) == sorted([*before, 7])
    same_everywhere(catalog, root)


def test_a_commit_whose_reads_were_not_recorded_counts_as_one_that_read_everything(
    catalog: Catalog, root: Path
) -> None:
    append(catalog, 60)
    catalog.mirror.pause("t")
    CHANGES["delete"](catalog)
    with catalog.log("t").database.write() as session:
        session.run("UPDATE dl_outbox SET reads = NULL")
    append_outside(root, 7)
    resume_diverged(catalog)
    assert list(resolved(catalog).lost) == [2]
    assert ids_of(catalog.table("t")) == [0, 7, 60]


def test_what_was_read_is_forgotten_once_a_commit_is_published(catalog: Catalog, root: Path) -> None:
    catalog.table("t").delete("id = 0")
    catalog.mirror.pause("t")
    append(catalog, 1)
    catalog.table("t").delete("id = 1")
    asked = "SELECT version, reads FROM dl_outbox WHERE reads IS NOT NULL"
    (kept,) = catalog.query(asked).to_pylist()
    assert (kept["version"], json.loads(kept["reads"])["predicates"]) == (3, [{"Compare": [["id"], "=", 1]}])
    catalog.mirror.resume("t")
    assert catalog.query(asked).to_pylist() == []


def test_a_compaction_is_made_again_beside_their_append(catalog: Catalog, root: Path) -> None:
    append(catalog, 1, 2)
    catalog.mirror.pause("t")
    catalog.table("t").optimize.compact()
    append_outside(root, 77)
    resume_diverged(catalog)
    assert resolved(catalog).ours == {3: 4}
    assert len(catalog.table("t").file_uris()) == 2
    same_everywhere(catalog, root)


def test_what_read_a_lost_commit_of_ours_is_lost_with_it(catalog: Catalog, root: Path) -> None:
    append(catalog, 60, 70)
    catalog.mirror.pause("t")
    catalog.table("t").delete("id = 60")  # theirs deletes it too
    with catalog.transaction() as tx:  # read that 60 is gone
        count = tx.table("t").to_pyarrow_table().num_rows
        tx.write("t", ids(count))
    catalog.table("t").delete("id = 70")  # has nothing to do with it
    append(catalog, 5)
    deltalake.DeltaTable(root).delete("id = 60")
    resume_diverged(catalog)
    done = resolved(catalog)
    assert "gone" in done.lost[3]
    assert done.lost.keys() == {3, 4}
    assert done.ours == {5: 4, 6: 5}
    assert ids_of(catalog.table("t")) == [0, 5]
    same_everywhere(catalog, root)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_file_that_only_a_lost_commit_knew_is_missed_by_those_who_read_it(
    catalog: Catalog, root: Path
) -> None:
    append(catalog, 60)
    catalog.mirror.pause("t")
    catalog.table("t").update({"id": "61"}, predicate="id = 60")  # theirs deletes 60
    with catalog.transaction() as tx:
        tx.table("t").to_pyarrow_table(filters=[("id", "=", 61)])
        tx.write("t", ids(62))
    deltalake.DeltaTable(root).delete("id = 60")
    resume_diverged(catalog)
    done = resolved(catalog)
    assert done.lost.keys() == {2, 3}
    assert "a lost commit of ours" in done.lost[3]
    assert ids_of(catalog.table("t")) == [0]


def test_rows_are_not_made_again_under_a_constraint_that_others_added(catalog: Catalog, root: Path) -> None:
    catalog.table("t").alter.add_constraint({"positive": "id >= 0"})
    catalog.mirror.pause("t")
    append(catalog, 1)
    deltalake.DeltaTable(root).alter.add_constraint({"large": "id = 0 OR id > 50"})
    resume_diverged(catalog)
    done = resolved(catalog)
    assert "constraints" in done.lost[2]
    assert ids_of(catalog.table("t")) == [0]


def test_an_applications_version_of_ours_is_lost_where_others_recorded_one(
    catalog: Catalog, root: Path
) -> None:
    catalog.mirror.pause("t")
    once = [deltalake.Transaction("stream", 7)]
    catalog.write("t", ids(1), mode="append", commit_properties=CommitProperties(app_transactions=once))
    theirs = deltalake.CommitProperties(app_transactions=once)
    deltalake.write_deltalake(root, ids(1), mode="append", commit_properties=theirs)
    resume_diverged(catalog)
    assert "'stream' wrote at the same time" in resolved(catalog).lost[1]
    assert ids_of(catalog.table("t")) == [0, 1]


# ---- transactions over several tables --------------------------------------------------------------------


@pytest.fixture
def other(catalog: Catalog, root: Path, tmp_path: Path) -> Path:
    """The folder of a second table `u`; both hold the rows 0 and 60."""
    folder = tmp_path / "lake" / "u"
    catalog.write("u", ids(0), location=folder)
    append(catalog, 60)
    append(catalog, 60, name="u")
    return folder


TOKEN = "order-4711"


def change_both(catalog: Catalog, *, delete_in: str = "t") -> Any:
    """Delete 60 from one table and append 61 to the other."""
    with catalog.transaction(txn_uuid=TOKEN) as tx:
        for name in ("t", "u"):
            if name == delete_in:
                tx.table(name).delete("id >= 50")
            else:
                tx.write(name, ids(1))
    return tx.result


@pytest.mark.parametrize("waits", [False, True], ids=["published", "waiting"])
def test_a_transaction_is_not_split_unless_that_is_asked_for(
    catalog: Catalog, root: Path, other: Path, waits: bool
) -> None:
    catalog.mirror.pause("t")
    if waits:
        catalog.mirror.pause("u")
    change_both(catalog)
    append_outside(root, 77)
    resume_diverged(catalog)
    foretold = catalog.mirror.resolve("t", dry_run=True)
    assert foretold.split == {TOKEN: ("u",)}
    assert "the other part of the transaction stands in u" in foretold.lost[2]
    with pytest.raises(UnsupportedOperationError, match="would be lost in t and stand in u") as caught:
        catalog.mirror.resolve("t")
    assert "allow_split=True" in (caught.value.suggestion or "")
    assert "--allow-split" in (caught.value.command or "")
    assert (ids_of(catalog.table("t")), catalog.mirror.status("t")[0].state) == ([0], "frozen")
    done = catalog.mirror.resolve("t", allow_split=True)
    assert replace(foretold, dry_run=False) == done
    assert (ids_of(catalog.table("t")), ids_of(catalog.table("u"))) == ([0, 60, 77], [0, 1, 60])
    for _ in range(2):
        with pytest.raises(CommitError, match=r"is lost in t, .* and stands in u"):
            change_both(catalog)
    assert (ids_of(catalog.table("t")), ids_of(catalog.table("u"))) == ([0, 60, 77], [0, 1, 60])
    catalog.mirror.resume("u")
    assert not list(other.glob("_delta_transactions/*")), "no manifest says that it is all there"
    same_everywhere(catalog, root)


@pytest.mark.parametrize("first", ["t", "u"])
@pytest.mark.parametrize("delete_in", ["t", "u"])
def test_a_transaction_that_is_lost_in_one_of_two_diverged_tables_is_lost_in_both(
    catalog: Catalog, root: Path, other: Path, first: str, delete_in: str
) -> None:
    for name in ("t", "u"):
        catalog.mirror.pause(name)
    change_both(catalog, delete_in=delete_in)
    append_outside(root, 77)
    append_outside(other, 77)
    foretold = catalog.mirror.resolve(first, dry_run=True)
    done = catalog.mirror.resolve(first)
    assert replace(foretold, dry_run=False, also={}) == replace(done, also={})
    second = "u" if first == "t" else "t"
    assert list(done.also) == [second]
    assert (done.theirs, done.also[second].theirs) == ((2,), (2,))
    assert (done.ours, done.also[second].ours, done.split) == ({}, {}, {})
    whys = {first: done.lost[2], second: done.also[second].lost[2]}
    untouched = "u" if delete_in == "t" else "t"
    assert "added rows that should have been read" in whys[delete_in]
    assert f"the transaction is lost in {delete_in}" in whys[untouched]
    for name in ("t", "u"):
        catalog.mirror.resume(name)
        assert ids_of(catalog.table(name)) == [0, 60, 77]
    again = change_both(catalog, delete_in=delete_in)
    assert again.replayed is False, "it never was"
    assert ids_of(catalog.table(delete_in)) == [0]
    same_everywhere(catalog, root)
    same_everywhere(catalog, other, "u")


def test_diverged_tables_that_share_a_transaction_are_resolved_together(
    catalog: Catalog, root: Path, other: Path
) -> None:
    for name in ("t", "u"):
        catalog.mirror.pause(name)
    change_both(catalog)
    append_outside(root, 7)
    append_outside(other, 7)
    done = catalog.mirror.resolve("t")
    assert (done.ours, done.also["u"].ours, done.lost, done.also["u"].lost) == ({2: 3}, {2: 3}, {}, {})
    for name in ("t", "u"):
        catalog.mirror.resume(name)
    again = change_both(catalog)
    assert (again.replayed, again.versions) == (True, {"t": 3, "u": 3})
    manifest = json.loads((root / "_delta_transactions" / f"{TOKEN}.json").read_text())
    assert {t["name"]: t["version"] for t in manifest["tables"]} == {"t": 3, "u": 3}


def test_a_lost_transaction_is_done_when_it_is_repeated(catalog: Catalog, root: Path) -> None:
    append(catalog, 60)
    catalog.mirror.pause("t")

    def change() -> Any:
        with catalog.transaction(txn_uuid=TOKEN) as tx:
            tx.table("t").delete("id >= 50")
        return tx.result

    change()
    append_outside(root, 77)
    resume_diverged(catalog)
    assert list(resolved(catalog).lost) == [2]
    assert change().replayed is False
    assert ids_of(catalog.table("t")) == [0]


def test_a_part_of_a_transaction_that_was_put_and_not_noted_stays_as_it_is(
    catalog: Catalog, root: Path
) -> None:
    catalog.mirror.pause("t")
    log = catalog.log("t")
    same = {"partition_values": {}, "size": 1, "modification_time": 1, "data_change": True}
    adds = [Add(path=f"{n}.parquet", **same) for n in "ab"]
    change = TableChange(catalog.describe("t"), [adds[:1], adds[1:]], log.snapshot(), NOTHING)
    commit(log.database, CommitRequest([change], txn_id=TOKEN))
    commit_file(root, 1).write_bytes(log.commit_bytes(1))
    commit_file(root, 2).write_text('{"commitInfo":{"operation":"FOREIGN"}}\n')
    done = resolved(catalog)
    assert (done.theirs, done.ours, done.lost) == ((2,), {2: 3}, {})
    (again,) = commit(log.database, CommitRequest([change], txn_id=TOKEN))  # type: ignore[misc]
    assert (again.version, again.replayed) == (3, True)
    assert [c.version for c in catalog.commits("t")] == [3, 2, 1, 0]
    catalog.mirror.resume("t")
    assert [commit_file(root, v).read_bytes() for v in range(4)] == [log.commit_bytes(v) for v in range(4)]


def test_a_transaction_that_was_repeated_after_a_backup_came_back_is_not_made_twice(
    catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    restore = back_up(catalog, tmp_path / "backup")

    def change() -> Any:
        with catalog.transaction(txn_uuid=TOKEN) as tx:
            tx.write("t", ids(1))
        return tx.result

    change()
    commit_file(root, 1).rename(tmp_path / "hidden")  # as on an object store, where a writer does not look
    restore()
    catalog.mirror.pause("t")
    change()
    (tmp_path / "hidden").rename(commit_file(root, 1))
    resume_diverged(catalog)
    assert resolved(catalog).ours == {1: 1}
    assert (change().replayed, ids_of(catalog.table("t"))) == (True, [0, 1])
    same_everywhere(catalog, root)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_part_that_is_in_the_log_already_stands_where_the_other_part_is_lost(
    catalog: Catalog, root: Path, other: Path, tmp_path: Path
) -> None:
    restore = back_up(catalog, tmp_path / "backup")
    change_both(catalog, delete_in="u")
    for folder in (root, other):
        commit_file(folder, 2).rename(tmp_path / f"hidden-{folder.name}")
    restore()
    for name in ("t", "u"):
        catalog.mirror.pause(name)
    change_both(catalog, delete_in="u")
    (tmp_path / "hidden-t").rename(commit_file(root, 2))
    append_outside(other, 77)
    for name in ("t", "u"):
        assert catalog.mirror.resolve(name, dry_run=True).also.keys() == {"t", "u"} - {name}
    done = catalog.mirror.resolve("u", allow_split=True)
    assert (done.split, done.also["t"].ours) == ({TOKEN: ("t",)}, {2: 2})
    with pytest.raises(CommitError, match="is lost in u"):
        change_both(catalog, delete_in="u")
    assert (ids_of(catalog.table("t")), ids_of(catalog.table("u"))) == ([0, 1, 60], [0, 60, 77])


@pytest.mark.parametrize("engine_name", ["postgres"])
def test_of_two_notes_about_a_lost_transaction_at_once_the_later_is_refused(catalog: Catalog) -> None:
    """Files have one writer at a time; on a server neither resolution sees the tables of the other."""
    database, first, errors = catalog._database, threading.Event(), []

    def later() -> None:
        try:
            with database.write() as session:
                first.set()
                commits.note_lost(session, "x", ["b"], ["a", "c"])
        except CatalogBusyError as error:
            errors.append(error)

    thread = threading.Thread(target=later)
    with database.write() as session:
        commits.note_lost(session, "x", ["a"], ["b", "c"])
        thread.start()
        first.wait()
        thread.join(0.5)
    thread.join()
    assert len(errors) == 1
    with database.read() as session:
        assert commits.lost_tables(session, "x") == ("a",)
