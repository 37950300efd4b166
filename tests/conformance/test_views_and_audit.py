"""Plain SQL over the catalog: documented views, an audit row for every change, and nothing changed by it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, CommitProperties, DeltaTable, Transaction, import_table, write_deltalake
from deltalakedb.exceptions import CatalogError, DeltaError, DeltaSqlError, TableExistsError
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

VIEWS = {
    "dl_v_tables": {"name", "location", "state", "version", "num_files", "size_bytes", "num_records"},
    "dl_v_files": {"table_name", "path", "size", "num_records", "partition_values", "stats", "add_version"},
    "dl_v_file_history": {"table_name", "path", "add_version", "remove_version"},
    "dl_v_history": {"table_name", "version", "committed_at", "operation", "sha256", "info"},
    "dl_v_metadata": {"table_name", "add_version", "remove_version", "metadata"},
    "dl_v_protocol": {"table_name", "add_version", "remove_version", "protocol"},
    "dl_v_txns": {"table_name", "app_id", "app_version"},
    "dl_v_mirror": {"table_name", "version", "state", "attempts", "error"},
    "dl_v_audit": {"recorded_at", "actor", "action", "table_name", "version", "details"},
}


def audit(catalog: Catalog) -> list[str]:
    found: list[str] = catalog.query("SELECT action FROM dl_v_audit ORDER BY audit_id")["action"].to_pylist()
    return found


@pytest.mark.parametrize("view", sorted(VIEWS))
def test_every_view_answers_on_an_empty_catalog(catalog: Catalog, view: str) -> None:
    found = catalog.query(f"SELECT * FROM {view}")
    assert set(found.column_names) >= VIEWS[view]
    assert found.num_rows == 0


def test_the_views_tell_what_the_table_tells(catalog: Catalog, table_uri: TableUri) -> None:
    uri = table_uri("t")
    app = CommitProperties(app_transactions=[Transaction("app", 4)])
    write_deltalake(uri, ids(1, 2), partition_by=["part"], commit_properties=app)
    write_deltalake(uri, ids(3, part="b"), mode="append")
    write_deltalake(uri, ids(4), mode="overwrite")
    table = DeltaTable(uri)

    def ask(sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = catalog.query(sql).to_pylist()
        return found

    (row,) = ask("SELECT name, version, num_files, size_bytes, num_records FROM dl_v_tables")
    actions = pa.table(table.get_add_actions())
    assert (row["name"], row["version"], row["num_files"], row["num_records"]) == ("t", 2, 1, 1)
    assert row["size_bytes"] == sum(actions["size_bytes"].to_pylist())
    assert [r["path"] for r in ask("SELECT path FROM dl_v_files")] == actions["path"].to_pylist()
    assert ask("SELECT count(*) AS n FROM dl_v_file_history WHERE remove_version = 2") == [{"n": 2}]
    history = ask("SELECT version, operation, num_added, num_removed FROM dl_v_history ORDER BY version")
    assert [(h["version"], h["num_added"], h["num_removed"]) for h in history] == [
        (0, 1, 0),
        (1, 1, 0),
        (2, 1, 2),
    ]
    assert {h["operation"] for h in history} == {"WRITE"}
    assert ask("SELECT app_id, app_version FROM dl_v_txns") == [{"app_id": "app", "app_version": 4}]
    assert len(ask("SELECT metadata FROM dl_v_metadata WHERE remove_version IS NULL")) == 1
    assert len(ask("SELECT protocol FROM dl_v_protocol")) == 1


def test_every_change_is_audited(catalog: Catalog, table_uri: TableUri, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "plain", ids(1))
    write_deltalake(table_uri("t"), ids(1))
    write_deltalake(table_uri("t"), ids(2), mode="append")
    catalog.set_comment("t", "c")
    catalog.set_tags("t", {"a": "b"})
    catalog.rename_table("t", "u")
    catalog.create_namespace("n")
    catalog.drop_namespace("n")
    catalog.set_root(tmp_path)
    catalog.drop_table("u")
    import_table(str(tmp_path / "plain"), catalog.table_uri("imported"))
    assert audit(catalog) == [
        "create table",
        "commit",
        "commit",
        "set comment",
        "set tags",
        "rename table",
        "create namespace",
        "drop namespace",
        "set setting",
        "drop table",
        "take lease",
        "begin import",
        "import",
    ]
    (row,) = catalog.query(
        "SELECT actor, table_name, version, txn_uuid FROM dl_v_audit WHERE action = 'commit' AND version = 1"
    ).to_pylist()
    assert row["actor"]
    assert row["table_name"] == "t"
    assert row["txn_uuid"]


def test_a_change_that_did_not_happen_is_not_audited(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1))
    write_deltalake(table_uri("u"), ids(1))
    before = audit(catalog)
    with pytest.raises(TableExistsError):
        catalog.rename_table("t", "u")
    with pytest.raises(TableExistsError):
        write_deltalake(table_uri("t"), ids(2))
    with pytest.raises(DeltaError):
        write_deltalake(table_uri("t"), pa.table({"other": [1]}), mode="append")
    with pytest.raises(DeltaSqlError):
        catalog.drop_table("nope")
    assert audit(catalog) == before


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO dl_settings (name, value) VALUES ('x', 'y')",
        "UPDATE dl_tables SET name = 'stolen'",
        "DELETE FROM dl_files",
        "DROP TABLE dl_files",
        "DROP VIEW dl_v_tables",
        "CREATE TABLE extra (a INTEGER)",
    ],
)
def test_a_query_cannot_change_anything(catalog: Catalog, table_uri: TableUri, change: str) -> None:
    write_deltalake(table_uri("t"), ids(1))
    with pytest.raises(CatalogError):
        catalog.query(change)
    assert ids_of(DeltaTable(table_uri("t"))) == [1]
    assert catalog.query("SELECT name FROM dl_v_tables").to_pylist() == [{"name": "t"}]
    write_deltalake(table_uri("t"), ids(2), mode="append")
    assert ids_of(DeltaTable(table_uri("t"))) == [1, 2]


@pytest.mark.parametrize(
    "escape",
    [
        "COMMIT; DELETE FROM dl_tables",
        "SELECT 1; DELETE FROM dl_tables",
        "ROLLBACK",
        "COMMIT",
        "PRAGMA query_only = OFF",
        "SET TRANSACTION READ WRITE",
        "ATTACH ':memory:' AS other",
        "SELECT 1; COMMIT; DELETE FROM dl_tables",
        "/* ask */ COMMIT -- and go",
        "EXPLAIN ANALYZE DELETE FROM dl_tables",
        "WITH gone AS (DELETE FROM dl_tables RETURNING *) SELECT * FROM gone",
        "SELECT set_config('search_path', 'pg_catalog', false)",
        "SET search_path = pg_catalog",
        "CALL dl_nothing()",
    ],
)
def test_a_query_cannot_leave_its_cage(catalog: Catalog, table_uri: TableUri, escape: str) -> None:
    write_deltalake(table_uri("t"), ids(1))
    for sql in (escape, "DELETE FROM dl_tables"):
        with suppress(DeltaSqlError):
            catalog.query(sql)
    assert [t.name for t in catalog.tables()] == ["t"]
    write_deltalake(table_uri("t"), ids(2), mode="append")
    assert ids_of(DeltaTable(table_uri("t"))) == [1, 2]


def test_a_wrong_query_is_a_typed_error_and_harms_nothing(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1))
    for wrong in ("SELEC 1", "SELECT nope FROM dl_v_tables", "SELECT * FROM no_such_view", "SELECT ? + 1"):
        with pytest.raises(CatalogError):
            catalog.query(wrong)
    assert catalog.query("SELECT name FROM dl_v_tables WHERE name = ?", ("t",)).num_rows == 1
    assert catalog.query("SELECT 'a?b%' AS x").to_pylist() == [{"x": "a?b%"}]
    both = catalog.query(
        "SELECT name AS \"what?\" FROM dl_v_tables WHERE name LIKE 't%' AND name = ?", ("t",)
    )
    assert both.to_pylist() == [{"what?": "t"}]
    assert catalog.query("-- why?\nSELECT 1 AS one").to_pylist() == [{"one": 1}]
