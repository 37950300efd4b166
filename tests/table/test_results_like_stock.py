"""Answers down to their order and their gaps, as stock gives them for the same table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import deltalake.fs
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction

import deltalakedb
from deltalakedb import DeltaTable, import_table
from deltalakedb.exceptions import LogCorruptError, StorageMissingError, UnsupportedFeatureError
from deltalakedb.fs import DeltaStorageHandler

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LONG = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


def address(folder: Path, name: str = "t") -> str:
    return f"deltasql://sqlite/{folder}/meta.db?table={name}&location={folder}/{name}"


def log_of(root: Path, *commits: Sequence[dict[str, Any]]) -> Path:
    """A plain table with these commits."""
    (root / "_delta_log").mkdir(parents=True)
    for version, actions in enumerate(commits):
        text = "\n".join(map(json.dumps, actions))
        (root / "_delta_log" / f"{version:020}.json").write_text(text)
    return root


def begun(fields: list[dict[str, Any]] | None, *, features: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Protocol and metadata; without a schema where there are no fields."""
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        named = {"readerFeatures": [*features], "writerFeatures": [*features]}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **named}
    metadata: dict[str, Any] = {"id": "x", "format": {"provider": "parquet", "options": {}}}
    metadata |= {"partitionColumns": [], "configuration": {}, "createdTime": 1}
    if fields is not None:
        metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    return [{"protocol": protocol}, {"metaData": metadata}]


def added(path: str, size: int = 1, stats: str | None = None) -> dict[str, Any]:
    add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    return {"add": add if stats is None else {**add, "stats": stats}}


def imported(folder: Path, root: Path) -> str:
    uri = f"deltasql://sqlite/{folder}/meta.db?table=t"
    import_table(str(root), uri)
    (root / "_delta_log").rename(folder / "hidden")
    return uri


def worked_on(module: Any, uri: str) -> Any:
    """Appends, a delete and a merge that leaves other files than it found."""
    for ids in ([1, 2], [3, 4], [5]):
        module.write_deltalake(uri, pa.table({"id": ids}), mode="append")
    table = module.DeltaTable(uri)
    table.delete("id = 3")
    source = pa.table({"id": [1]})
    table.merge(source, "s.id = t.id", source_alias="s", target_alias="t").when_matched_update(
        {"id": "s.id + 100"}
    ).execute()
    module.write_deltalake(uri, pa.table({"id": [6]}), mode="append")
    return module.DeltaTable(uri)


def test_rows_and_files_come_newest_commit_first(tmp_path: Path) -> None:
    plain = worked_on(deltalake, str(tmp_path / "plain"))
    ours = worked_on(deltalakedb, address(tmp_path))
    wanted = plain.to_pyarrow_table().column("id").to_pylist()
    assert wanted[0] == 6
    kept = DeltaTable(address(tmp_path), version=2)
    kept.file_uris()
    kept.update_incremental()
    for table in (ours, kept):
        assert table.to_pyarrow_table().column("id").to_pylist() == wanted
        assert pa.table(table.scan().read_all()).column("id").to_pylist() == wanted
        assert table.to_pandas(filters=[("id", ">", 1)])["id"].tolist() == [i for i in wanted if i > 1]
        sizes = pa.table(table.get_add_actions()).column("num_records").to_pylist()
        assert sizes == pa.table(plain.get_add_actions()).column("num_records").to_pylist()
    with deltalakedb.Catalog(f"deltasql://sqlite/{tmp_path}/meta.db").transaction() as tx:
        tx.write("t", pa.table({"id": [7]}), mode="append")
        assert tx.table("t").to_pyarrow_table().column("id").to_pylist() == [7, *wanted]


def test_the_history_tells_where_a_table_was_created(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    DeltaTable.create(address(tmp_path, "a b"), schema)
    replaced = DeltaTable.create(address(tmp_path, "a b"), schema, mode="overwrite")
    stock = deltalake.DeltaTable.create(str(tmp_path / "plain b"), schema).history()[0]
    place = stock["operationParameters"]["location"].replace("plain", "a")
    assert [h["operationParameters"]["location"] for h in replaced.history()] == [place, place]


def test_add_actions_are_null_where_a_file_tells_nothing(tmp_path: Path) -> None:
    inner = {"type": "struct", "fields": [{**_LONG, "name": "x"}, {**_LONG, "name": "y"}]}
    counted = (
        '{"numRecords": 3, "minValues": %s, "maxValues": {"id": 1, "s": {"x": 4}}, "nullCount": {"id": 0}}'
    )
    stats = [None, '{"numRecords": 3}', counted % '{"id": 1, "s": {}}', counted % '{"id": 2}']
    for number, kind in enumerate(("long", "decimal(5,2)")):  # the second is not read by Arrow
        folder = tmp_path / str(number)
        fields = [{**_LONG, "type": kind}, {**_LONG, "name": "s", "type": inner}]
        adds = [added(f"{n}.parquet", stats=s) for n, s in enumerate(stats)]
        root = log_of(folder / "t", [*begun(fields), *adds])
        wanted = pa.table(deltalake.DeltaTable(root).get_add_actions())
        found = pa.table(DeltaTable(imported(folder, root)).get_add_actions())
        assert found.to_pylist() == wanted.to_pylist()
        assert found.schema == wanted.schema


def test_a_table_may_have_begun_without_a_schema(tmp_path: Path) -> None:
    root = log_of(tmp_path / "t", begun(None), begun([_LONG]))
    uri = imported(tmp_path, root)
    table = DeltaTable(uri)
    assert (table.version(), table.to_pyarrow_table().column_names) == (1, ["id"])
    assert [h["version"] for h in table.history()] == [1, 0]
    with pytest.raises(LogCorruptError, match="schemaString"):
        DeltaTable(uri, version=0)
    with pytest.raises(LogCorruptError, match="schemaString"):
        table.load_as_version(0)
    with pytest.raises(LogCorruptError, match="schemaString"):
        import_table(str(log_of(tmp_path / "never", begun(None))), address(tmp_path, "never"))


@pytest.mark.parametrize("feature", ["variantShredding", "variantShredding-preview"])
def test_variants_are_read_unless_they_lie_in_pieces(tmp_path: Path, feature: str) -> None:
    whole = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x07"}
    binary = [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())]
    pieces = pa.struct([*binary, pa.field("typed_value", pa.int64())])
    adds = []
    root = tmp_path / "t"
    root.mkdir()
    for name, kind in (("whole", pa.struct(binary)), ("pieces", pieces)):
        pq.write_table(pa.table({"id": [1], "v": pa.array([whole], kind)}), root / f"{name}.parquet")
        adds.append(added(f"{name}.parquet", (root / f"{name}.parquet").stat().st_size))
    fields = [_LONG, {**_LONG, "name": "v", "type": "variant"}]
    first = begun(fields, features=["variantType", feature])
    uri = imported(tmp_path, log_of(root, [*first, adds[0]], [adds[1]]))
    assert DeltaTable(uri, version=0).to_pyarrow_table().to_pylist() == [{"id": 1, "v": whole}]
    for ask in (lambda t: t.to_pyarrow_table(), lambda t: t.scan()):
        with pytest.raises(UnsupportedFeatureError, match=rf"pieces.parquet .*\({feature}\)"):
            ask(DeltaTable(uri))


def test_rows_that_delta_rs_reads_have_large_types_and_name_missing_files(tmp_path: Path) -> None:
    uri = address(tmp_path)
    mapped = {"delta.columnMapping.mode": "name"}
    DeltaTable.create(uri, pa.schema([("s", pa.string())]), configuration=mapped)
    deltalakedb.write_deltalake(uri, pa.table({"s": ["a"]}), mode="append")
    table = DeltaTable(uri)
    assert table.to_pyarrow_dataset(as_large_types=True).schema.field("s").type == pa.large_string()
    (path,) = (p for p in (tmp_path / "t").rglob("*.parquet") if "_delta_log" not in p.parts)
    path.unlink()
    for ask in (lambda: table.to_pyarrow_table(), lambda: table.to_pyarrow_dataset()):
        with pytest.raises(StorageMissingError, match=path.name):
            ask()


def test_a_path_with_a_slash_in_front_means_the_tables_root(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    table = DeltaTable.create(address(tmp_path), schema, partition_by=["p"])
    file = tmp_path / "t" / "p=x" / "f.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"id": [1]}), file)
    action = AddAction("/p=x/f.parquet", file.stat().st_size, {"p": "x"}, 0, True, "{}")
    table.create_write_transaction(
        [action], "append", deltalake.Schema.from_arrow(schema), partition_by=["p"]
    )
    assert DeltaTable(address(tmp_path)).to_pyarrow_table().to_pylist() == [{"id": 1, "p": "x"}]
    assert deltalake.DeltaTable(tmp_path / "t").file_uris() == [str(file)]


def test_partition_columns_come_last_in_the_change_feed(tmp_path: Path) -> None:
    feed = {"delta.enableChangeDataFeed": "true"}
    found = []
    for module, uri in ((deltalake, str(tmp_path / "plain")), (deltalakedb, address(tmp_path))):
        data = pa.table({"p": ["x"], "id": [1], "q": ["y"], "s": ["z"]})
        module.write_deltalake(uri, data, partition_by=["q", "p"], configuration=feed)
        found.append(pa.table(module.DeltaTable(uri).load_cdf().read_all()).drop_columns("_commit_timestamp"))
    assert found[0].schema == found[1].schema
    assert found[0].to_pylist() == found[1].to_pylist()


def test_a_protocol_without_features_has_none(tmp_path: Path) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []}
    root = log_of(tmp_path / "t", [{"protocol": protocol}, begun([_LONG])[1]])
    wanted = deltalake.DeltaTable(root).protocol()
    assert DeltaTable(imported(tmp_path, root)).protocol() == wanted


def test_the_storage_handler_shows_the_files_of_sql_backed_tables(tmp_path: Path) -> None:
    deltalakedb.write_deltalake(address(tmp_path), pa.table({"id": [1, 2]}))
    table = DeltaTable(address(tmp_path))
    name = table.file_uris()[0].rsplit("/", 1)[1]
    handlers = (
        DeltaStorageHandler(address(tmp_path)),
        DeltaStorageHandler.from_table(table._table),
        DeltaStorageHandler(str(tmp_path / "t")),
        DeltaStorageHandler.from_table(deltalake.DeltaTable(tmp_path / "t")._table),
    )
    for handler in handlers:
        assert isinstance(handler, deltalake.fs.DeltaStorageHandler)
        assert pq.read_table(name, filesystem=pafs.PyFileSystem(handler)).num_rows == 2


def test_the_error_for_a_taken_place_says_already_exists(tmp_path: Path) -> None:
    data = pa.table({"id": [1]})
    for module, uri in ((deltalake, str(tmp_path / "plain")), (deltalakedb, address(tmp_path))):
        module.write_deltalake(uri, data)
        with pytest.raises(deltalake.exceptions.DeltaError, match="already exists at"):
            module.write_deltalake(uri, data)
        with pytest.raises(deltalake.exceptions.DeltaError, match="already exists at"):
            module.DeltaTable.create(uri, data.schema)
