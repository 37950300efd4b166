"""In a bucket, nothing is deleted that another engine, another table or the log needs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, write_deltalake
from deltalakedb.exceptions import ClockSkewError, TableFrozenError
from deltalakedb.settings import Config
from deltalakedb.storage import open_store
from deltalakedb.table.maintenance import live_files as orphans
from deltalakedb.table.maintenance import vacuum as vacuum_module
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.places import Place

NOW: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False}


@pytest.fixture
def lake(catalog_uri: str, bucket: Place) -> Callable[..., DeltaTable]:
    """A table of two versions, the second without the first one's file."""
    uri = f"{catalog_uri}?table=t&location={bucket.at('t')}"
    write_deltalake(uri, ids(1), storage_options=bucket.options)
    write_deltalake(uri, ids(2), mode="overwrite", storage_options=bucket.options)
    return lambda: DeltaTable(uri, storage_options=bucket.options)


def plain(bucket: Place) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(bucket.at("t"), storage_options=bucket.options)


@pytest.mark.filterwarnings("ignore::deltalakedb.exceptions.DivergedWarning")
@pytest.mark.parametrize("moment", ["before", "with the announcement", "at the deletion"])
def test_files_that_another_engine_brought_back_stay(
    lake: Callable[..., DeltaTable], bucket: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    table = lake()
    foreign = plain(bucket)
    if moment == "before":
        foreign.restore(0)
    elif moment == "with the announcement":
        commit = vacuum_module._commit

        def late(*arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(vacuum_module, "_commit", commit)
            foreign.restore(0)
            commit(*arguments, **options)

        monkeypatch.setattr(vacuum_module, "_commit", late)
    else:
        commit = vacuum_module._commit

        def early(*arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(vacuum_module, "_commit", commit)
            commit(*arguments, **options)
            foreign.update_incremental()
            foreign.restore(0)

        monkeypatch.setattr(vacuum_module, "_commit", early)
    before = {f for f in bucket.files("t") if f.endswith(".parquet")}
    with pytest.raises(TableFrozenError):
        table.vacuum(**NOW, dry_run=False)
    assert {f for f in bucket.files("t") if f.endswith(".parquet")} == before
    assert ids_of(plain(bucket)) == [1]


@pytest.mark.parametrize("full", [False, True])
def test_a_second_vacuum_finds_nothing(
    lake: Callable[..., DeltaTable], monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setattr(orphans, "REMOTE_GRACE_MS", 0)
    table = lake()
    listed = table.vacuum(**NOW, full=full)
    assert len(listed) == 1
    assert table.vacuum(**NOW, full=full, dry_run=False) == listed
    version = table.version()
    assert table.vacuum(**NOW, full=full) == []
    assert table.vacuum(**NOW, full=full, dry_run=False) == []
    assert table.version() == version
    assert ids_of(lake()) == [2]


@pytest.mark.parametrize("folders", [1, 200])
@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_hostile_remove_deletes_nothing_but_data_of_its_table(
    catalog_uri: str, bucket: Place, folders: int
) -> None:
    root = bucket.at("t")
    deltalake.write_deltalake(root, ids(1), storage_options=bucket.options)
    store = open_store(root, bucket.options)
    kept = ["_delta_log/x.json", ".hidden.parquet", "_hidden/x.parquet", "other/x.parquet", "a/b/x.parquet"]
    gone = [f"{number}/expired.parquet" for number in range(folders)]
    for name in (*kept, *gone, "other/_delta_log/0.json", "a/_delta_log/0.json"):
        store.put(name, b"x")
    paths = [*kept, *gone, ".", "a/.", "_delta_log%2Fx.json"]
    lines = [{"remove": {"path": p, "deletionTimestamp": 1, "dataChange": True, "size": 1}} for p in paths]
    text = "".join(json.dumps(line) + "\n" for line in [{"commitInfo": {"operation": "DELETE"}}, *lines])
    store.put(f"_delta_log/{1:020}.json", text.encode())
    config = Config(storage={f"{bucket.base}/": bucket.options})
    with Catalog(catalog_uri, create=True, config=config) as catalog:
        import_table(root, catalog.table_uri("t"), storage_options=bucket.options)
        before = bucket.files("t")
        table = catalog.table("t")
        assert set(table.vacuum()) == set(gone)
        assert set(table.vacuum(dry_run=False)) == set(gone)
        assert before - bucket.files("t") == set(gone)
        assert set(kept) <= bucket.files("t")
        assert ids_of(catalog.table("t")) == [1]


def test_a_host_with_a_wrong_clock_deletes_nothing(
    lake: Callable[..., DeltaTable], bucket: Place, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake()
    table.create_checkpoint()
    open_store(bucket.at("t"), bucket.options).put("stray.parquet", b"x")
    before = bucket.files("t")
    config = Config(storage={f"{bucket.base}/": bucket.options})
    right = time.time_ns
    with Catalog(catalog_uri, config=config) as catalog, monkeypatch.context() as wrong:
        wrong.setattr(time, "time_ns", lambda: right() + 40 * 86_400 * 10**9)
        runs: list[Callable[[], Any]] = [
            lambda: table.vacuum(dry_run=False),
            lambda: table.vacuum(dry_run=False, full=True),
            lambda: catalog.gc("t"),
            lambda: catalog.mirror.clean("t"),
        ]
        for run in runs:
            with pytest.raises(ClockSkewError):
                run()
    assert bucket.files("t") == before
