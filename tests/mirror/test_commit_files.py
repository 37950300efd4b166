"""What the log has for a version: nothing, our commit, a damaged one, or another writer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb.exceptions import CatalogCorruptError, TableFrozenError
from deltalakedb.mirror.drift import commit_file_state, is_ratified
from deltalakedb.storage.store import open_store
from support.callers import appended
from support.mirrors import append, append_outside, commit_file

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog
    from deltalakedb.mirror.drift import CommitFileState

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def log(catalog: Catalog, root: Path) -> Catalog:
    """Versions 0 and 1 are published, version 2 waits."""
    append(catalog, 1)
    catalog.mirror.pause("t")
    append(catalog, 2)
    return catalog


def state(catalog: Catalog, root: Path, version: int) -> CommitFileState:
    table = catalog.describe("t")
    return commit_file_state(catalog._database, table, open_store(str(root)), version)


def test_our_commits_are_ours_and_others_are_absent(log: Catalog, root: Path) -> None:
    assert [state(log, root, version) for version in range(4)] == ["ours", "ours", "absent", "absent"]
    commit_file(root, 0).unlink()
    assert state(log, root, 0) == "absent"


def test_what_another_writer_put_there_is_foreign(log: Catalog, root: Path) -> None:
    append_outside(root, 7, 8)
    assert [state(log, root, version) for version in range(4)] == ["ours", "ours", "foreign", "foreign"]
    commit_file(root, 2).write_bytes(b"cut sho")
    assert state(log, root, 2) == "foreign", "only what was published can be damaged"
    commit_file(root, 1).write_bytes(appended())
    assert state(log, root, 1) == "foreign"


def test_a_version_that_is_committed_during_the_look_is_ours(
    catalog: Catalog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, store = catalog.describe("t"), open_store(str(root))

    def late(path: str) -> bool:
        append(catalog, 1)
        return commit_file(root, 1).exists()

    monkeypatch.setattr(store, "exists", late)
    assert commit_file_state(catalog._database, table, store, 1) == "ours"


@pytest.mark.parametrize("data", [b"", b"no JSON", None])
def test_a_published_file_that_was_spoiled_is_damaged(log: Catalog, root: Path, data: bytes | None) -> None:
    file = commit_file(root, 1)
    first_line = file.read_bytes().split(b"\n", 1)[0] + b"\n"
    file.write_bytes(first_line if data is None else data)
    assert state(log, root, 1) == "damaged"


def test_the_bytes_of_a_version_are_known_again(log: Catalog, root: Path) -> None:
    table, data = log.describe("t"), commit_file(root, 1).read_bytes()
    assert is_ratified(log._database, table, 1, data)
    assert not is_ratified(log._database, table, 2, data)
    assert not is_ratified(log._database, table, 9, data)


def test_recover_names_the_first_foreign_commit_and_stops_at_a_damaged_copy(log: Catalog, root: Path) -> None:
    """If the catalog's own copy is damaged, a file that differs may be damaged or foreign."""
    for version in (1, 2):
        commit_file(root, version).write_bytes(appended())
    with pytest.raises(TableFrozenError) as foreign:
        log.mirror.recover("t")
    assert foreign.value.version == 1
    commit_file(root, 2).unlink()
    with log._database.write() as session:
        session.run("UPDATE dl_commit_bytes SET bytes = ?", (b"{}",))
    with pytest.raises(CatalogCorruptError) as damaged:
        log.mirror.recover("t")
    assert (damaged.value.version, log.describe("t").head.version) == (1, 2)
