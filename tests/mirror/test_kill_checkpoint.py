"""Checkpointers that are killed at every step: readers notice nothing, and the next one does its work."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog
from deltalakedb.delta_log import checkpoint_writer
from deltalakedb.delta_log.listing import list_log
from deltalakedb.exceptions import CatalogBusyError
from deltalakedb.failpoints import POINTS
from deltalakedb.metastore import leases
from deltalakedb.mirror import checkpointer
from deltalakedb.storage import open_store
from support.actions import add, metadata, protocol
from support.commits import Bench
from support.lake import ids
from support.mirrors import append, logged, outside_ids, same_everywhere
from support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path


def write_checkpoint(uri: str, kind: str, ttl: int = 60_000) -> int:
    """A checkpoint with two files in a sidecar; its lease is as long as the test says."""
    checkpointer._LEASE_MS = ttl
    checkpoint_writer.GROUP_ROWS = checkpoint_writer.SIDECAR_ROWS = 2
    return Catalog(uri).mirror.checkpoint("t", kind=kind).version  # type: ignore[arg-type]


def append_one(uri: str, number: int) -> None:
    append(Catalog(uri), number)


def hint_version(root: Path) -> int | None:
    file = root / "_delta_log" / "_last_checkpoint"
    return json.loads(file.read_text())["version"] if file.exists() else None


def readers_are_unaffected(root: Path, expected: list[int]) -> None:
    """What stands in the log is whole: the hint names what is there, and stock reads it."""
    hint = hint_version(root)
    segment = list_log(open_store(str(root)))
    whole = set(segment.checkpoints)
    assert hint is None or hint in whole
    assert outside_ids(root) == expected
    stock = deltalake.DeltaTable(root)
    assert stock.version() == max(logged(root))


def run_out(catalog: Catalog) -> None:
    """Let the lease of a dead holder run out, as if its time had passed."""
    name = f"checkpoint:{catalog.describe('t').table_id}"
    database = catalog.log("t").database
    with database.write() as session:
        row = session.row(database.sql("leases", "one"), (name,))
        assert row is not None
        assert row[2] > session.now_ms(), "the dead one held the lease and never gave it back"
        session.run("UPDATE dl_leases SET expires_at = 1 WHERE name = ?", (name,))


@pytest.mark.parametrize("point", ["checkpoint.before_put", "checkpoint.after_put"])
def test_a_checkpointer_killed_anywhere_harms_no_reader(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path, point: str
) -> None:
    append(catalog, 1, 2)
    catalog.close()
    Child(write_checkpoint, catalog_uri, "classic", folder=tmp_path, points=f"{point}=kill").died()
    readers_are_unaffected(root, [0, 1, 2])
    assert hint_version(root) is None
    assert catalog.mirror.status("t")[0].checkpoint_version == -1
    run_out(catalog)
    append(catalog, 3)
    readers_are_unaffected(root, [0, 1, 2, 3])
    catalog.close()
    assert Child(write_checkpoint, catalog_uri, "classic", folder=tmp_path).result() == 3
    assert hint_version(root) == 3
    readers_are_unaffected(root, [0, 1, 2, 3])
    same_everywhere(catalog, root)
    assert catalog.mirror.verify("t").ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize("point", ["before_put", "after_put"])
def test_the_same_version_is_checkpointed_again_after_a_death(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path, point: str
) -> None:
    append(catalog, 1, 2, 3)
    Child(write_checkpoint, catalog_uri, "classic", folder=tmp_path, points=f"checkpoint.{point}=kill").died()
    run_out(catalog)
    assert Child(write_checkpoint, catalog_uri, "classic", folder=tmp_path).result() == 3
    assert hint_version(root) == 3
    for version in range(3):
        (root / "_delta_log" / f"{version:020}.json").unlink()
    readers_are_unaffected(root, [0, 1, 2, 3])


#: where it is killed -> what the hint then names, and the catalog's note
AROUND_THE_HINT = {
    "checkpoint.after_put": (1, 1),
    "checkpoint.after_hint": (2, 1),
    "checkpoint.after_note": (2, 2),
}


def test_every_step_of_a_checkpoint_has_its_death() -> None:
    tried = {*AROUND_THE_HINT, *(f"checkpoint.{p}" for p in ("before_put", "between_files", "after_put"))}
    assert tried == {p for p in POINTS if p.startswith("checkpoint.")}


@pytest.mark.parametrize("point", AROUND_THE_HINT)
def test_a_death_around_the_hint_leaves_it_behind_or_right_but_never_ahead(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path, point: str
) -> None:
    hint, note = AROUND_THE_HINT[point]
    append(catalog, 1)
    catalog.mirror.checkpoint("t")
    append(catalog, 2)
    catalog.close()
    Child(write_checkpoint, catalog_uri, "classic", folder=tmp_path, points=f"{point}=kill").died()
    assert hint_version(root) == hint
    readers_are_unaffected(root, [0, 1, 2])
    assert catalog.mirror.status("t")[0].checkpoint_version == note, "the note comes after the hint"
    run_out(catalog)
    assert catalog.mirror.checkpoint("t").version == 2
    assert hint_version(root) == 2
    assert catalog.mirror.status("t")[0].checkpoint_version == 2
    assert catalog.mirror.verify("t").ok


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize(
    "point", ["before_put", "before_put@2", "between_files", "between_files@2", "before_put@4", "after_put"]
)
def test_a_v2_checkpoint_is_there_with_its_manifest_only(
    catalog_uri: str, catalog: Catalog, tmp_path: Path, point: str
) -> None:
    features = {"reader_features": ("v2Checkpoint",), "writer_features": ("v2Checkpoint",)}
    modern = protocol(min_reader_version=3, min_writer_version=7, **features)
    root = tmp_path / "lake" / "v2"
    adds = [add(f"f{n}") for n in range(5)]
    Bench.make(catalog._database, "t", str(root), protocol_=modern, metadata_=metadata(), adds=adds)
    catalog.mirror.run()
    name, at, count = point.partition("@")
    points = f"checkpoint.{name}=kill{at}{count}"
    Child(write_checkpoint, catalog_uri, "v2", folder=tmp_path, points=points).died()
    found = list_log(open_store(str(root))).checkpoints
    assert list(found) == ([0] if point == "after_put" else [])
    assert hint_version(root) is None
    assert len(deltalake.DeltaTable(root).file_uris()) == 5
    run_out(catalog)
    assert Child(write_checkpoint, catalog_uri, "v2", folder=tmp_path).result() == 0
    assert hint_version(root) == 0
    assert len(deltalake.DeltaTable(root).file_uris()) == 5


def move_away(catalog: Catalog) -> None:
    """Let the holder of the lease be a process of another machine: nobody here can know that it died."""
    with catalog.log("t").database.write() as session:
        session.run("UPDATE dl_leases SET holder = 'elsewhere:7:abc'")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_holder_of_this_machine_that_died_is_not_waited_for(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    append(catalog, 1)
    child = Child(
        write_checkpoint, catalog_uri, "classic", folder=tmp_path, points="checkpoint.after_put=kill"
    )
    child.died()
    (status,) = catalog.mirror.status("t")
    assert status.checkpoint_holder == f"{socket.gethostname()}:{child.pid}"
    assert catalog.mirror.checkpoint("t").version == 1
    assert hint_version(root) == 1
    assert catalog.mirror.status("t")[0].checkpoint_holder is None


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_dead_holder_elsewhere_is_waited_for_until_its_lease_ends_and_no_longer(
    catalog_uri: str, catalog: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "lake" / "t"
    catalog.write("t", ids(0), location=root, configuration={"delta.checkpointInterval": "2"})
    append(catalog, 1)
    points = "checkpoint.before_put=kill"
    Child(append_one, catalog_uri, 2, folder=tmp_path, points=points).died()
    move_away(catalog)
    with pytest.raises(
        CatalogBusyError, match=r"\(elsewhere:7\) is at work on a checkpoint .* of t"
    ) as caught:
        catalog.mirror.checkpoint("t")
    assert caught.value.transient
    assert catalog.mirror.run().checkpoints == 0
    (status,) = catalog.mirror.status("t")
    assert (status.checkpoint_holder, status.checkpoint_version) == ("elsewhere:7", -1)
    assert 0 < (status.checkpoint_lease or 0) <= 120
    assert hint_version(root) is None
    run_out(catalog)
    assert catalog.mirror.run().checkpoints == 1, "it is still due"
    assert hint_version(root) == 2
    (status,) = catalog.mirror.status("t")
    assert (status.checkpoint_holder, status.checkpoint_lease, status.checkpoint_version) == (None, None, 2)
    # the next writer that passes a multiple does it too, when the lease has ended by itself
    append(catalog, 3)
    Child(append_one, catalog_uri, 4, folder=tmp_path, points=points).died()
    move_away(catalog)
    run_out(catalog)
    append(catalog, 5)
    assert hint_version(root) == 2
    append(catalog, 6)
    assert hint_version(root) == 6
    again = leases.acquire(catalog.log("t").database, f"checkpoint:{catalog.describe('t').table_id}")
    assert again is not None, "it was given back"
