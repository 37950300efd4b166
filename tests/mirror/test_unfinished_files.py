"""Files that publishers had not finished when they died: nobody reads them, and they do not stay for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.delta_log import cleanup
from deltalakedb.storage import open_store
from support.mirrors import append, logged, outside_ids
from support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


def append_one(uri: str, number: int) -> None:
    append(Catalog(uri), number)


def unfinished(root: Path) -> list[str]:
    return [path.name for path in (root / "_delta_log").iterdir() if path.suffix == ".tmp"]


@pytest.fixture
def haunted(catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path) -> Path:
    """A table one of whose publishers was killed before its file had its name."""
    Child(append_one, catalog_uri, 1, folder=tmp_path, points="publish.before_link=kill").died()
    assert (logged(root), len(unfinished(root))) == ([0], 1)
    catalog.mirror.run()
    assert (logged(root), outside_ids(root)) == ([0, 1], [0, 1])
    return root


@pytest.fixture
def a_day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a day had passed since a file was touched: nobody can set that time back."""
    monkeypatch.setattr(cleanup, "TEMPORARY_GRACE_MS", -60_000)


def test_a_young_one_may_have_a_writer_and_stays(catalog: Catalog, haunted: Path) -> None:
    catalog.mirror.checkpoint("t")
    assert catalog.mirror.clean("t").delete == ()
    assert catalog.gc("t", older_than_hours=0)[0].files == ()
    assert len(unfinished(haunted)) == 1
    assert [m.name for m in open_store(haunted).temporary_files("_delta_log")] == unfinished(haunted)
    assert not any(m.name.endswith(".tmp") for m in open_store(haunted).list("_delta_log"))


@pytest.mark.usefixtures("a_day_later")
@pytest.mark.parametrize("by", ["checkpoint", "clean", "gc"])
def test_an_old_one_is_deleted_and_nothing_else(catalog: Catalog, haunted: Path, by: str) -> None:
    (path,) = (f"_delta_log/{name}" for name in unfinished(haunted))
    if by == "checkpoint":
        catalog.mirror.checkpoint("t")
    elif by == "clean":
        assert [m.path for m in catalog.mirror.clean("t", dry_run=True).delete] == [path]
        assert len(unfinished(haunted)) == 1, "a dry run"
        assert [m.path for m in catalog.mirror.clean("t").delete] == [path]
    else:
        assert catalog.gc("t", older_than_hours=1)[0].files == (), "nobody has touched it for an hour?"
        (found,) = catalog.gc("t", older_than_hours=0, dry_run=True)
        assert (found.files, found.size_bytes > 0, len(unfinished(haunted))) == ((path,), True, 1)
        assert catalog.gc("t", older_than_hours=0)[0].files == (path,)
    assert unfinished(haunted) == []
    assert (logged(haunted), outside_ids(haunted)) == ([0, 1], [0, 1])
    assert catalog.mirror.verify("t").ok


@pytest.mark.usefixtures("a_day_later")
def test_a_publisher_whose_file_was_swept_away_publishes_again(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    late = Child(append_one, catalog_uri, 1, folder=tmp_path, points="publish.before_link=stop@1")
    late.pause()
    assert catalog.gc("t", older_than_hours=0)[0].files != ()
    late.resume()
    late.result()
    assert (logged(root), outside_ids(root)) == ([0, 1], [0, 1])


@pytest.mark.usefixtures("a_day_later")
def test_a_manifest_that_was_never_finished_goes_with_checkpoints_and_clean_ups(
    catalog: Catalog, root: Path
) -> None:
    folder = root / "_delta_transactions"
    folder.mkdir()
    for sweep in (catalog.mirror.checkpoint, catalog.mirror.clean):
        (folder / "whole.json").write_text("{}")
        (folder / ".dl-0123.tmp").write_text("{")
        sweep("t")
        assert [path.name for path in folder.iterdir()] == ["whole.json"]
