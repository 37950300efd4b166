"""The gate: a precondition of writing is added in one place, and holds for every writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, open_log, write_deltalake
from deltalakedb.coordinator import coordinator
from deltalakedb.exceptions import TableFolderMissingError, TableFrozenError
from deltalakedb.metastore.database import close_all
from deltalakedb.service.ratifier import Ratifier
from support.actions import add
from support.callers import appended
from support.lake import ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _merge(table: DeltaTable) -> Any:
    merger = table.merge(ids(1), "t.id = s.id", source_alias="s", target_alias="t")
    return merger.when_not_matched_insert_all().execute()


def _in_transaction(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        tx.write("t", ids(1))


WRITES: dict[str, Callable[[Catalog, DeltaTable], object]] = {
    "append": lambda c, _: c.write("t", ids(1), mode="append"),
    "append by handle": lambda _, t: write_deltalake(t, ids(1), mode="append"),
    "transaction": lambda c, _: _in_transaction(c),
    "delete": lambda _, t: t.delete(),
    "merge": lambda _, t: _merge(t),
    "alter": lambda _, t: t.alter.set_table_properties({"delta.appendOnly": "true"}),
    "optimize": lambda _, t: t.optimize.compact(),
    "restore": lambda _, t: t.restore(0),
    "vacuum": lambda _, t: t.vacuum(0, dry_run=False, enforce_retention_duration=False),
    "fence": lambda c, _: c.mirror.fence("t"),
    "log": lambda c, t: open_log(t.address, mode="w").commit(1, [add("a.parquet")]),
}


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_precondition_stops_every_writer_before_it_writes(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "t"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(0), location=root)
        table = catalog.table("t")
        before = sorted(root.rglob("*"))

        def refuse(*_: object, **__: object) -> None:
            raise TableFolderMissingError("a new precondition does not hold", table="t")

        monkeypatch.setattr(coordinator, "require_folder", refuse)
        for name, write in WRITES.items():
            with pytest.raises(TableFolderMissingError, match="new precondition"):
                write(catalog, table)
            assert sorted(root.rglob("*")) == before, name
        path = (root / "_delta_log" / f"{1:020}.json").as_uri()
        answer = Ratifier(catalog._database).commit(path, appended())
        assert (answer.word, "new precondition" in answer.text) == ("later", True)
        assert catalog.describe("t").head.version == 0
    close_all()


def test_a_log_that_is_opened_for_writing_sees_foreign_commits(catalog_uri: str, tmp_path: Path) -> None:
    root = tmp_path / "t"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(0), location=root)
        deltalake.write_deltalake(root, ids(1), mode="append")
        with pytest.raises(TableFrozenError, match="has version 1"):
            open_log(catalog.table("t").address, mode="w").commit(1, [add("a.parquet")])
        assert catalog.describe("t").head.version == 0
    close_all()
