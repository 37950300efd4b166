"""Compaction of the log beside its clean-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb.exceptions import CatalogBusyError, LogGapError
from deltalakedb.mirror.checkpointer import checkpoint_lease
from support.mirrors import append, commit_file

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog
    from deltalakedb.metastore.database import Database


def test_a_compaction_waits_for_a_clean_up(catalog: Catalog, database: Database, root: Path) -> None:
    append(catalog, 1, 2)
    with (
        checkpoint_lease(database, catalog.describe("t")),
        pytest.raises(CatalogBusyError, match="the clean-up of t"),
    ):
        catalog.mirror.compact("t", 0, 2)
    assert catalog.mirror.compact("t", 0, 2) is not None


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_compaction_of_versions_that_were_cleaned_up_names_those_that_are_left(
    catalog: Catalog, root: Path
) -> None:
    append(catalog, 1, 2, 3)
    catalog.mirror.checkpoint("t")
    commit_file(root, 0).unlink()
    commit_file(root, 1).unlink()
    with pytest.raises(LogGapError, match="no longer has all commits from version 0 to 3") as failed:
        catalog.mirror.compact("t", 0, 3)
    assert failed.value.suggestion == "compact versions 2 to 3"
    with pytest.raises(LogGapError, match="cleaned up"):
        catalog.table("t").compact_logs(0, 1)
    assert catalog.mirror.compact("t", 2, 3) is not None
