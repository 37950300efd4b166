"""Properties and features that a table is created with, or given later: the protocol follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, convert_to_deltalake, write_deltalake
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    DeltaError,
    DeltaSqlError,
    InvalidArgumentError,
    OperationError,
    UnsupportedFeatureError,
)
from support.lake import ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import TableUri

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])
SCHEMA = ids(0).schema


def stock_ids(root: Path) -> list[int]:
    """By a query: stock's way through pyarrow knows neither v2 checkpoints nor deletion vectors."""
    table = deltalake.DeltaTable(root)
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()
    return pa.table(found)["id"].to_pylist()


def created(catalog: Catalog, folder: Path, **properties: str) -> DeltaTable:
    given = {name.replace("__", "."): value for name, value in properties.items()}
    return catalog.create_table("t", SCHEMA, location=folder / "t", configuration=given)


@pytest.mark.parametrize(
    "given", [{"delta.checkpointPolicy": "v2"}, {"delta.feature.v2Checkpoint": "supported"}]
)
def test_v2_checkpoints_that_a_new_table_asks_for_are_a_feature_of_it(
    catalog: Catalog, tmp_path: Path, given: dict[str, str]
) -> None:
    root = tmp_path / "t"
    every = {"delta.checkpointInterval": "2"}
    catalog.create_table("t", SCHEMA, location=root, configuration={**given, **every})
    for number in (1, 2, 3):
        catalog.write("t", ids(number), mode="append")
    protocol = deltalake.DeltaTable(root).protocol()
    assert protocol.min_reader_version == 3
    assert protocol.reader_features == ["v2Checkpoint"]
    assert set(protocol.writer_features or ()) == {"appendOnly", "invariants", "v2Checkpoint"}
    properties = catalog.table("t").metadata().configuration
    assert properties == every | {k: v for k, v in given.items() if "feature" not in k}
    names = [p.name for p in (root / "_delta_log").glob("*checkpoint*.parquet")]
    sidecars = list((root / "_delta_log" / "_sidecars").glob("*.parquet"))
    is_v2 = "delta.checkpointPolicy" in given
    assert bool(sidecars) is is_v2, "the feature allows them, the policy asks for them"
    assert len(names) == 1
    for version in range(2):
        (root / "_delta_log" / f"{version:020}.json").unlink()
    assert stock_ids(root) == [1, 2, 3]
    assert catalog.mirror.verify("t").ok


def test_features_by_name_come_with_what_they_need_and_rows_can_be_written(
    catalog: Catalog, tmp_path: Path
) -> None:
    table = created(
        catalog,
        tmp_path,
        delta__feature__deletionVectors="supported",
        delta__feature__rowTracking="supported",
        delta__feature__inCommitTimestamp="supported",
        delta__feature__columnMapping="enabled",
    )
    protocol = table.protocol()
    assert {"domainMetadata", "rowTracking", "inCommitTimestamp"} < set(protocol.writer_features or ())
    assert set(protocol.reader_features or ()) == {"columnMapping", "deletionVectors"}
    assert not table.metadata().configuration, "names of features are no properties"
    catalog.write("t", ids(1, 2), mode="append")
    catalog.table("t").delete("id = 1")
    assert catalog.table("t").to_pyarrow_table()["id"].to_pylist() == [2]
    assert deltalake.DeltaTable(tmp_path / "t").version() == 2
    assert catalog.mirror.verify("t").ok


def test_row_tracking_may_be_switched_on_when_a_table_is_created(catalog: Catalog, tmp_path: Path) -> None:
    table = created(catalog, tmp_path, delta__enableRowTracking="true")
    assert {"domainMetadata", "rowTracking"} < set(table.protocol().writer_features or ())
    properties = table.metadata().configuration
    assert properties["delta.enableRowTracking"] == "true"
    columns = [v for k, v in properties.items() if k.startswith("delta.rowTracking.materialized")]
    assert len(set(columns)) == 2
    catalog.write("t", ids(1, 2), mode="append")
    (file,) = catalog.files("t")
    assert file.add.base_row_id == 0


def ways(uri: str, folder: Path) -> dict[str, Callable[[dict[str, Any]], object]]:
    """Every way to make a table with properties."""
    catalog, address = Catalog(uri), f"{uri}?table=t&location={folder}"
    data = ids(1)

    def in_transaction(given: dict[str, Any]) -> None:
        with catalog.transaction() as tx:
            tx.create_table("t", SCHEMA, location=folder, configuration=given)

    def write_in_transaction(given: dict[str, Any]) -> None:
        with catalog.transaction() as tx:
            tx.write("t", data, location=folder, configuration=given)

    return {
        "catalog.create_table": lambda c: catalog.create_table("t", SCHEMA, location=folder, configuration=c),
        "catalog.write": lambda c: catalog.write("t", data, location=folder, configuration=c),
        "DeltaTable.create": lambda c: DeltaTable.create(address, SCHEMA, configuration=c),
        "write_deltalake": lambda c: write_deltalake(address, data, configuration=c),
        "convert_to_deltalake": lambda c: convert_to_deltalake(address, configuration=c),
        "tx.create_table": in_transaction,
        "tx.write": write_in_transaction,
    }


def test_a_bad_value_is_refused_before_anything_is_written(catalog_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for given, words in (
        ({"delta.checkpointInterval": "abc"}, ("delta.checkpointInterval", "'abc'")),
        ({"delta.logRetentionDuration": "foo"}, ("delta.logRetentionDuration", "'foo'")),
        ({"delta.checkpointPolicy": "v3"}, ("delta.checkpointPolicy", "'v3'")),
        ({"delta.feature.nonsense": "supported"}, ("'nonsense'",)),
    ):
        for way, make in ways(catalog_uri, folder).items():
            with pytest.raises(InvalidArgumentError) as caught:
                make(given)
            assert all(word in caught.value.message for word in words), way
            assert caught.value.suggestion, way
            assert not folder.exists(), way
    with pytest.raises(CatalogNotFoundError):
        Catalog(catalog_uri).tables()


def test_a_feature_that_cannot_be_written_here_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="icebergCompatV2"):
        created(catalog, tmp_path, delta__feature__icebergCompatV2="supported")
    assert not (tmp_path / "t").exists()


def test_properties_that_are_set_later_go_by_the_same_rules(catalog: Catalog, tmp_path: Path) -> None:
    table = created(catalog, tmp_path)
    catalog.write("t", ids(1), mode="append")
    for must in (True, False):
        for given in (
            {"delta.checkpointInterval": "abc"},
            {"delta.checkpointPolicy": "v3"},
            {"delta.feature.nonsense": "supported"},
        ):
            with pytest.raises(InvalidArgumentError) as caught:
                catalog.table("t").alter.set_table_properties(given, raise_if_not_exists=must)
            assert caught.value.suggestion
    assert catalog.describe("t").head.version == 1
    catalog.table("t").alter.set_table_properties({"delta.checkpointPolicy": "v2"})
    catalog.table("t").alter.set_table_properties({"delta.feature.deletionVectors": "supported"})
    table = catalog.table("t")
    assert {"deletionVectors", "v2Checkpoint"} <= set(table.protocol().reader_features or ())
    assert table.metadata().configuration == {"delta.checkpointPolicy": "v2"}
    assert catalog.mirror.checkpoint("t").kind == "v2"
    catalog.write("t", ids(2), mode="append")
    assert stock_ids(tmp_path / "t") == [1, 2]


def test_names_that_delta_does_not_know_are_refused_as_stock_refuses_them(
    catalog: Catalog, tmp_path: Path
) -> None:
    for given in ({"owner": "me"}, {"delta.unknown": "1"}):
        with pytest.raises(DeltaError):
            deltalake.DeltaTable.create(tmp_path / "stock", SCHEMA, configuration=given)
        with pytest.raises(OperationError) as caught:
            catalog.create_table("t", SCHEMA, location=tmp_path / "t", configuration=given)
        assert "raise_if_not_exists=False" in (caught.value.suggestion or "")
    catalog.create_table("t", SCHEMA, location=tmp_path / "t")
    with pytest.raises(DeltaSqlError) as refused:
        catalog.table("t").alter.set_table_properties({"owner": "me"})
    assert "raise_if_not_exists=False" in (refused.value.suggestion or "")
    catalog.table("t").alter.set_table_properties({"owner": "me"}, raise_if_not_exists=False)
    assert catalog.table("t").metadata().configuration == {"owner": "me"}


def test_mapped_columns_are_mapped_beside_other_features(table_uri: TableUri) -> None:
    data = pa.table({"id": [1, 2], "at": pa.array([0, 1], pa.timestamp("us")), "place": ["x", "y"]})
    mapped: dict[str, Any] = {
        "configuration": {"delta.columnMapping.mode": "name"},
        "partition_by": ["place"],
    }
    uri = table_uri("t")
    with pytest.raises(UnsupportedFeatureError, match=r"DeltaTable\.create"):
        write_deltalake(uri, data, **mapped)
    assert not DeltaTable.is_deltatable(uri)
    DeltaTable.create(uri, data.schema, **mapped)
    write_deltalake(uri, data, mode="append")
    table = DeltaTable(uri)
    assert {"columnMapping", "timestampNtz"} <= set(table.protocol().reader_features or ())
    assert table.to_pyarrow_table(filters=[("place", "=", "x")])["id"].to_pylist() == [1]
    assert table.delete("place = 'y'")["num_deleted_rows"] == 1
    stock = deltalake.DeltaTable(table.table_uri)
    assert pa.table(stock.scan(columns=["id"])).to_pylist() == [{"id": 1}]
