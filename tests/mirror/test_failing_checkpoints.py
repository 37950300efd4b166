"""A checkpoint that cannot be written: everybody can see why, nobody tries all the time, commits go on."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb.address import parse_address
from deltalakedb.doctor import examine
from deltalakedb.exceptions import ConfigError
from support.lake import ids
from support.mirrors import append, outside_ids

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog
    from deltalakedb.settings import Config

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def doomed(catalog: Catalog, tmp_path: Path) -> Path:
    """A table of stock that wants a checkpoint with every second commit, and says nonsense about its age."""
    root = tmp_path / "t"
    wanted = {"delta.checkpointInterval": "2", "delta.deletedFileRetentionDuration": "foo"}
    deltalake.DeltaTable.create(root, ids(0).schema, configuration=wanted)
    catalog.register("t", root)
    append(catalog, 1, 2)
    return root


def attempts(catalog: Catalog) -> int:
    return catalog.mirror.status("t")[0].checkpoint_attempts


@pytest.mark.usefixtures("long_waits")
def test_the_writer_that_could_not_write_it_leaves_a_note(catalog: Catalog, doomed: Path) -> None:
    (status,) = catalog.mirror.status()
    assert (status.checkpoint_attempts, status.checkpoint_version) == (1, -1)
    assert "delta.deletedFileRetentionDuration" in (status.checkpoint_error or "")
    assert status.checkpoint_backing_off
    assert status.to_dict()["checkpoint_error"] == status.checkpoint_error
    assert (status.error, status.versions_behind) == (None, 0), "publishing is fine"
    assert outside_ids(doomed) == [1, 2]


@pytest.mark.usefixtures("long_waits")
def test_a_reconciler_leaves_it_alone_for_a_while(
    catalog: Catalog, doomed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop, rounds = threading.Event(), iter(range(5))
    wait = stop.wait

    def soon(timeout: float | None = None) -> bool:
        if next(rounds, None) is None:
            stop.set()
        return wait(0)

    stop.wait = soon  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        done = catalog.mirror.run(stop=stop, interval=1)
    assert not caplog.records, "the note says it all"
    assert done.no_checkpoint == ("t",)
    assert attempts(catalog) == 1
    append(catalog, 3, 4)
    assert attempts(catalog) == 1, "writers leave it alone too"
    assert catalog.mirror.publish("t").no_checkpoint == ("t",), "who names it forces a try"
    assert attempts(catalog) == 2


def test_it_is_tried_again_when_the_time_has_come_and_forgotten_when_it_works(
    catalog: Catalog, doomed: Path
) -> None:
    with catalog._database.write() as session:
        session.run("UPDATE dl_settings SET value = '[\"x\",4,0]' WHERE name LIKE 'mirror.checkpoint.%'")
    assert catalog.mirror.run().no_checkpoint == ("t",)
    (status,) = catalog.mirror.status()
    assert status.checkpoint_attempts == 5
    assert 1.2 < (status.checkpoint_retry_in or 0) <= 1.2 * 16
    with pytest.raises(ConfigError):
        catalog.mirror.checkpoint("t")
    mended = {"delta.deletedFileRetentionDuration": "interval 7 days"}
    catalog.table("t").alter.set_table_properties(mended)
    assert catalog.mirror.publish("t").checkpoints == 1
    (status,) = catalog.mirror.status()
    assert (status.checkpoint_error, status.checkpoint_attempts, status.checkpoint_retry_in) == (
        None,
        0,
        None,
    )
    assert status.checkpoint_version == 3


def test_the_doctor_warns_of_it(catalog: Catalog, doomed: Path, catalog_uri: str) -> None:
    config: Config = catalog._database.engine.config
    (check,) = [c for c in examine(parse_address(catalog_uri), config) if c.title == "checkpoint"]
    assert check.status == "warning"
    assert "delta.deletedFileRetentionDuration" in check.detail
    assert "deltasql checkpoint t" in (check.suggestion or "")
