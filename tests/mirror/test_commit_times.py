"""In-commit timestamps from a table's first version on, by property or setting, and read by stock."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.settings import Config
from support.lake import ids, ids_of
from support.mirrors import append, commit_file, logged, outside_ids, same_everywhere

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

ICT = {"delta.enableInCommitTimestamps": "true"}
only_sqlite = pytest.mark.parametrize("engine_name", ["sqlite"])


def times(root: Path) -> list[int | None]:
    """The time that the first action of every commit tells."""
    first = [json.loads(commit_file(root, v).read_bytes().splitlines()[0]) for v in logged(root)]
    return [f["commitInfo"].get("inCommitTimestamp") for f in first]


def test_a_table_is_created_with_times_in_its_commits_and_stock_travels_by_them(
    catalog: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    catalog.create_table(
        "t", ids(0).schema, location=root, configuration={**ICT, "delta.appendOnly": "false"}
    )
    append(catalog, 1, 2)
    catalog.table("t").delete("id = 1")
    history = [h["timestamp"] for h in reversed(catalog.table("t").history())]
    assert times(root) == history
    found = deltalake.DeltaTable(root)
    assert found.metadata().configuration == {**ICT, "delta.appendOnly": "false"}
    protocol = found.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 7)
    assert set(protocol.writer_features or ()) == {"appendOnly", "invariants", "inCommitTimestamp"}
    for version, at in enumerate(history):
        moment = datetime.fromtimestamp(at / 1000, tz=UTC)
        stock, ours = deltalake.DeltaTable(root), catalog.table("t")
        stock.load_as_version(moment)
        ours.load_as_version(moment)
        assert (stock.version(), ours.version()) == (version, version)
        assert ids_of(stock) == ids_of(ours)
    assert catalog.mirror.verify("t").ok
    # as on an object store: files are as old as their copying. Stock goes by that although it need not
    late = history[-1] + 60_000
    for version in logged(root):
        os.utime(commit_file(root, version), ns=((late + version) * 10**6,) * 2)
    travelled = catalog.table("t")
    stock = deltalake.DeltaTable(root)
    for table in (travelled, stock):
        table.load_as_version(datetime.fromtimestamp(history[2] / 1000, tz=UTC))
    assert (travelled.version(), stock.version()) == (2, 0), (
        "where stock says 2 too, the docs are to be changed"
    )


@only_sqlite
def test_every_way_to_create_a_table_takes_the_property(
    catalog: Catalog, table_uri: TableUri, tmp_path: Path
) -> None:
    write_deltalake(table_uri("w"), ids(1), configuration=ICT)
    DeltaTable.create(table_uri("c"), ids(1).schema, configuration=dict.fromkeys(ICT, "True"))
    with catalog.transaction() as tx:
        tx.write("x", ids(1), location=tmp_path / "lake" / "x", configuration=ICT)
        tx.create_table("y", ids(1).schema, location=tmp_path / "lake" / "y", configuration=ICT)
        tx.write("y", ids(2))
    for name in "wcxy":
        root = tmp_path / "lake" / name
        append(catalog, 3, name=name)
        assert all(times(root)), name
        assert catalog.table(name).metadata().configuration == ICT
        same_everywhere(catalog, root, name)


@only_sqlite
def test_a_table_without_the_property_is_as_stock_makes_it(
    catalog: Catalog, table_uri: TableUri, tmp_path: Path
) -> None:
    off = {"delta.enableInCommitTimestamps": "false"}
    DeltaTable.create(table_uri("off"), ids(1).schema, configuration=off)
    write_deltalake(table_uri("plain"), ids(1))
    for name in ("off", "plain"):
        append(catalog, 2, name=name)
        assert times(tmp_path / "lake" / name) == [None, None]
        assert catalog.table(name).protocol().min_writer_version == 2
    # stock leaves the properties of an existing table alone
    catalog.write("plain", ids(3), mode="append", configuration=ICT)
    catalog.write("plain", ids(4), mode="overwrite", configuration=ICT)
    assert catalog.table("plain").metadata().configuration == {}


@only_sqlite
def test_a_replaced_table_goes_on_telling_its_times(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "t"
    catalog.create_table("t", ids(0).schema, location=root)
    append(catalog, 1)
    catalog.create_table("t", ids(0).schema, mode="overwrite", configuration=ICT)
    since = catalog.table("t").metadata().configuration
    assert since["delta.inCommitTimestampEnablementVersion"] == "2"
    catalog.create_table("t", ids(0).schema, mode="overwrite", description="again")
    append(catalog, 2)
    assert catalog.table("t").metadata().configuration == since, "and since when"
    found = times(root)
    assert found[:2] == [None, None]
    assert all(found[2:])
    assert len(found) == 5
    assert outside_ids(root) == [2]
    assert deltalake.DeltaTable(root).protocol().min_writer_version == 7
    off = {"delta.enableInCommitTimestamps": "false"}
    catalog.create_table("t", ids(0).schema, mode="overwrite", configuration=off)
    append(catalog, 3)
    assert times(root)[5:] == [None, None]
    assert outside_ids(root) == [3]


@only_sqlite
@pytest.mark.parametrize(("setting", "wanted"), [("always", True), ("remote", False), ("off", False)])
def test_a_setting_gives_new_tables_their_times(
    catalog_uri: str, tmp_path: Path, setting: Any, wanted: bool
) -> None:
    with Catalog(catalog_uri, config=Config(catalog={"in_commit_timestamps": setting})) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t")
        catalog.create_table(
            "no",
            ids(1).schema,
            location=tmp_path / "no",
            configuration={"delta.enableInCommitTimestamps": "false"},
        )
        append(catalog, 2)
    assert [t is not None for t in times(tmp_path / "t")] == [wanted, wanted]
    assert times(tmp_path / "no") == [None], "what a caller says goes before it"
