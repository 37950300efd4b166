"""Changes by the catalog: files that are written, tables that are altered and restored."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from deltalakedb.exceptions import (
    InvalidArgumentError,
    SchemaError,
    StorageMissingError,
    TableExistsError,
    TableFrozenError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.table.write import source_files
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog


def stream(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode())


def test_files_become_a_table_in_one_commit(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,at\n1,2026-11-15 12:00:00\n")
    (tmp_path / "b.csv").write_text("id,at\n2.5,2026-11-15 13:00:00\n")
    done = catalog.write_files("t", [tmp_path / "a.csv", str(tmp_path / "b.csv")], location=tmp_path / "t")
    assert done.commit is not None
    assert (done.commit.version, done.num_rows) == (0, 2)
    table = catalog.table("t").to_pyarrow_table().sort_by("id")
    assert table.column("id").to_pylist() == [1.0, 2.5]
    assert catalog.write_files("t", [tmp_path / "a.csv"], mode="ignore").commit is None
    with pytest.raises(TableExistsError):
        catalog.write_files("t", [tmp_path / "a.csv"], mode="error")
    assert catalog.describe("t").head.version == 0


def test_texts_are_read_in_the_types_of_the_table(catalog: Catalog, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("code", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
        ]
    )
    catalog.create_table("t", schema, location=tmp_path / "t")
    catalog.write_files(
        "t", [stream("code,price,day,at\n007,1.50,2026-11-15,2026-11-15T12:00:00\n")], file_format="csv"
    )
    line = '{"code": "2026-11-15", "price": "2.5", "day": "2026-11-16", "at": "2026-11-15T12:00:00Z"'
    line += ', "tags": ["x"]}'
    catalog.write_files("t", [stream(f"{line}\n")], file_format="json")
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    found = catalog.table("t").to_pyarrow_table().sort_by("code").to_pylist()
    assert [(r["code"], str(r["price"]), str(r["day"]), r["at"], r["tags"]) for r in found] == [
        ("007", "1.50", "2026-11-15", noon, None),
        ("2026-11-15", "2.50", "2026-11-16", noon, ["x"]),
    ]


def test_what_goes_wrong_in_later_rows_is_reported_and_nothing_is_committed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "_BLOCK_BYTES", 64)
    text = "id\n" + "1\n" * 100 + "x\n"
    for _ in range(2):  # a new table, and one that exists
        with pytest.raises(InvalidArgumentError, match=r"cannot be read as csv: .*invalid value 'x'"):
            catalog.write_files("t", [stream(text)], file_format="csv", location=tmp_path / "t")
        found = catalog.find("t")
        assert found is None or found.head.version == 0
        catalog.write_files(
            "t", [stream("id\n1\n")], file_format="csv", location=tmp_path / "t", mode="ignore"
        )
    for line in ('{"id": 1, "new": 2}', '{"id": "x"}'):
        with pytest.raises(InvalidArgumentError, match="cannot be read as json"):
            catalog.write_files("t", [stream('{"id": 1}\n' * 100 + line)], file_format="json")
    assert catalog.describe("t").head.version == 0


def test_files_that_do_not_fit_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text("id,name\n2,x\n")
    with pytest.raises(SchemaError, match="different columns: name"):
        catalog.write_files("t", [tmp_path / "a.csv", tmp_path / "b.csv"], location=tmp_path / "t")
    catalog.write_files("t", [tmp_path / "a.csv"], location=tmp_path / "t")
    with pytest.raises(SchemaError, match="does not have the columns name"):
        catalog.write_files("t", [tmp_path / "b.csv"])
    catalog.write_files("t", [tmp_path / "a.csv", tmp_path / "b.csv"], schema_mode="merge")
    assert catalog.table("t").to_pyarrow_table().column("name").to_pylist().count(None) == 2
    for files, error in (
        ([], InvalidArgumentError),
        ([tmp_path / "none.csv"], StorageMissingError),
        ([tmp_path / "a.bin"], InvalidArgumentError),
        ([stream("id\n1\n"), tmp_path / "a.csv"], InvalidArgumentError),
    ):
        with pytest.raises(error):
            catalog.write_files("t", files)
    with pytest.raises(InvalidArgumentError, match="unknown format"):
        catalog.write_files("t", [tmp_path / "a.csv"], file_format="xml")  # type: ignore[arg-type]


def test_all_changes_of_a_table_are_committed_together(catalog: Catalog, tmp_path: Path) -> None:
    catalog.write("t", ids(1), location=tmp_path / "t")
    done = catalog.alter_table(
        "t",
        add_columns=pa.schema([("note", pa.string())]),
        column_comments={"note": "why"},
        add_constraints={"positive": "id > 0"},
        set_properties={"delta.appendOnly": "true", "owner": "ada"},
        description="all",
    )
    assert done is not None
    head = catalog.describe("t").head
    assert head.version == done.version
    commits = [c for c in catalog.commits("t") if c.version > 0]
    assert len({c.txn_uuid for c in commits}) == 1
    plain = deltalake.DeltaTable(tmp_path / "t")
    assert plain.metadata().configuration == {
        "delta.appendOnly": "true", "delta.constraints.positive": "id > 0", "owner": "ada",
    }  # fmt: skip
    assert plain.metadata().description == "all"
    catalog.alter_table("t", unset_properties=["owner", "delta.appendOnly"], drop_constraints=["positive"])
    assert deltalake.DeltaTable(tmp_path / "t").metadata().configuration == {}
    assert catalog.mirror.verify("t").ok
    with pytest.raises(InvalidArgumentError, match="already has a column"):
        catalog.alter_table("t", set_properties={"x": "1"}, add_columns=pa.schema([("NOTE", pa.string())]))
    assert catalog.table("t").metadata().configuration == {}
    with pytest.raises(TableMissingError):
        catalog.alter_table("nope", description="x")


def test_properties_that_files_depend_on_are_not_removed(catalog: Catalog, tmp_path: Path) -> None:
    properties = {"delta.columnMapping.mode": "name"}
    catalog.create_table(
        "t", pa.schema([("id", pa.int64())]), location=tmp_path / "t", configuration=properties
    )
    with pytest.raises(UnsupportedOperationError, match="files depend on it"):
        catalog.alter_table("t", unset_properties=["delta.columnMapping.mode"])


def test_a_restore_does_what_its_dry_run_says(catalog: Catalog, tmp_path: Path) -> None:
    catalog.write("t", ids(1), location=tmp_path / "t")
    catalog.write("t", ids(2), mode="append")
    catalog.table("t").delete("id = 1")
    would = catalog.restore_table("t", 1, dry_run=True)
    assert catalog.describe("t").head.version == 2
    done = catalog.restore_table("t", 1)
    assert (would.dry_run, done.dry_run) == (True, False)
    assert would.to_dict() | {"dry_run": False} == done.to_dict()
    assert (done.restored_version, done.version, done.num_restored, done.num_removed) == (1, 3, 1, 0)
    assert ids_of(catalog.table("t")) == ids_of(deltalake.DeltaTable(tmp_path / "t")) == [1, 2]
    first = catalog.commits("t")[-1]
    moment = datetime.fromtimestamp(first.committed_at / 1000, UTC)
    assert catalog.restore_table("t", moment, dry_run=True).restored_version == 0
    with pytest.raises(InvalidArgumentError, match="must be less than"):
        catalog.restore_table("t", 3)
    deltalake.write_deltalake(tmp_path / "t", ids(9), mode="append")
    with pytest.raises(TableFrozenError):
        catalog.write("t", ids(8), mode="append")
    for dry_run in (True, False):
        with pytest.raises(TableFrozenError):
            catalog.restore_table("t", 1, dry_run=dry_run)
