"""Which files rebuild a version, and which do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb.delta_log import names
from deltalakedb.delta_log.listing import LogListing, list_log
from deltalakedb.delta_log.optional_files import last_checkpoint
from deltalakedb.exceptions import LogGapError
from deltalakedb.storage import open_store
from support.checkpoints import part_path

if TYPE_CHECKING:
    from pathlib import Path

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


def listed(root: Path, *paths: str) -> LogListing:
    store = open_store(root, durable=False)
    for path in paths:
        store.put(path, b"x")
    return list_log(store)


def commits(*versions: int) -> list[str]:
    return [names.commit_path(v) for v in versions]


def planned(listing: LogListing, version: int) -> tuple[int, list[str]]:
    plan = listing.plan(version)
    return plan.base, [meta.path for meta in plan.files]


def test_an_empty_folder_is_an_empty_listing(tmp_path: Path) -> None:
    listing = listed(tmp_path)
    assert listing.empty
    assert listing.latest == -1
    assert listing.versions == ()


def test_without_a_checkpoint_all_commits_are_read(tmp_path: Path) -> None:
    listing = listed(tmp_path, *commits(0, 1, 2))
    assert planned(listing, 1) == (-1, commits(0, 1))
    assert listing.versions == (0, 1, 2)


def test_the_newest_checkpoint_not_after_the_version_is_the_base(tmp_path: Path) -> None:
    paths = [*commits(*range(8)), names.checkpoint_path(2), names.checkpoint_path(5)]
    listing = listed(tmp_path, *paths)
    assert planned(listing, 7) == (5, commits(6, 7))
    assert planned(listing, 5) == (5, [])
    assert planned(listing, 4) == (2, commits(3, 4))
    assert planned(listing, 1) == (-1, commits(0, 1))
    assert [plan.base for plan in listing.plans(6)] == [5, 2, -1]


def test_commits_before_a_checkpoint_may_be_gone(tmp_path: Path) -> None:
    listing = listed(tmp_path, *commits(4, 6, 7), names.checkpoint_path(5))
    assert listing.versions == (5, 6, 7)
    assert not listing.can_rebuild(4)
    with pytest.raises(LogGapError, match="lacks version 0"):
        listing.plan(4)


def test_a_gap_ends_what_can_be_rebuilt(tmp_path: Path) -> None:
    listing = listed(tmp_path, *commits(0, 1, 3, 4))
    assert listing.latest == 4
    assert listing.versions == (0, 1)
    with pytest.raises(LogGapError, match="lacks version 2") as caught:
        listing.plan(4)
    assert caught.value.version == 4
    assert caught.value.suggestion


def test_only_a_complete_multi_part_checkpoint_counts(tmp_path: Path) -> None:
    some = [part_path(1, part, 3) for part in (1, 3)]
    assert planned(listed(tmp_path, *commits(0, 1), *some), 1) == (-1, commits(0, 1))
    whole = listed(tmp_path, part_path(1, 2, 3))
    assert planned(whole, 1) == (1, [])
    plan = whole.plan(1)
    assert plan.checkpoint is not None
    assert [meta.path for meta in plan.checkpoint.files] == [part_path(1, part, 3) for part in (1, 2, 3)]


def test_parts_of_different_sets_do_not_make_one(tmp_path: Path) -> None:
    listing = listed(tmp_path, *commits(0, 1), part_path(1, 1, 2), part_path(1, 2, 3))
    assert listing.checkpoints == {}


def test_several_checkpoints_of_a_version_are_all_candidates(tmp_path: Path) -> None:
    listing = listed(
        tmp_path, names.checkpoint_path(3), names.v2_checkpoint_path(3, UUID), *commits(0, 1, 2, 3)
    )
    assert [plan.base for plan in listing.plans(3)] == [3, 3, -1]


def test_a_compacted_file_stands_in_for_missing_commits_only(tmp_path: Path) -> None:
    paths = [*commits(0, 1, 2, 5), names.compacted_path(1, 2), names.compacted_path(3, 4)]
    listing = listed(tmp_path, *paths)
    assert planned(listing, 5) == (-1, [*commits(0, 1, 2), names.compacted_path(3, 4), *commits(5)])
    # 4 has no file of its own, so nobody can travel there
    assert listing.versions == (0, 1, 2, 5)


def test_a_compacted_file_that_passes_the_version_is_no_help(tmp_path: Path) -> None:
    listing = listed(tmp_path, *commits(0, 1, 3), names.compacted_path(2, 4))
    assert listing.versions == (0, 1)


def test_the_compacted_file_that_connects_is_found_among_others(tmp_path: Path) -> None:
    paths = [
        *commits(1, 5),
        names.compacted_path(2, 4),
        names.compacted_path(0, 4),
        names.compacted_path(3, 4),
    ]
    assert planned(listed(tmp_path, *paths), 5) == (-1, [names.compacted_path(0, 4), *commits(5)])


def test_a_version_number_beyond_reason_costs_nothing(tmp_path: Path) -> None:
    listing = listed(tmp_path, *commits(0, 9 * 10**18))
    assert listing.versions == (0,)
    with pytest.raises(LogGapError):
        listing.plan(9 * 10**18)


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b'{"version":10,"size":13}', 10),
        (b"", None),
        (b"{", None),
        (b"[10]", None),
        (b'{"version":"10"}', None),
        (b'{"version":-1}', None),
        (b'{"version":true}', None),
        (b"\xff\xfe", None),
    ],
)
def test_the_hint_is_read_or_ignored(tmp_path: Path, content: bytes, version: int | None) -> None:
    store = open_store(tmp_path)
    assert last_checkpoint(store) is None
    store.put(names.LAST_CHECKPOINT, content)
    assert last_checkpoint(store) == version
