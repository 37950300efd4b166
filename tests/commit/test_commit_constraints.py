"""No way of writing slips past a constraint, a generated column or an identity column."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, write_deltalake
from deltalakedb.exceptions import (
    UnsupportedFeatureError,
)
from support.actions import features, metadata, protocol, schema_with
from support.lake import files_below, ids, ids_of, root_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

CONSTRAINED: list[Any] = [
    pytest.param(
        protocol(min_writer_version=3),
        {"delta.constraints.positive": "id > 0"},
        {},
        ids(-1),
        id="check",
    ),
    pytest.param(
        protocol(min_writer_version=2),
        {},
        {"nullable": False},
        pa.table({"id": pa.array([None], pa.int64()), "part": ["a"]}),
        id="not null",
    ),
    pytest.param(
        protocol(min_writer_version=2),
        {},
        {"metadata": {"delta.invariants": '{"expression":{"expression":"id > 0"}}'}},
        ids(-1),
        id="invariant",
    ),
]


@pytest.mark.parametrize(("protocol_", "configuration", "field", "bad"), CONSTRAINED)
def test_no_way_of_writing_slips_past_a_constraint(
    catalog: Catalog,
    table_uri: TableUri,
    tmp_path: Path,
    protocol_: Any,
    configuration: dict[str, str],
    field: dict[str, Any],
    bad: pa.Table,
) -> None:
    uri = _constrained(table_uri, tmp_path, protocol_, configuration, field)
    write_deltalake(uri, ids(1, 2), mode="append")
    before = files_below(root_of(DeltaTable(uri)))
    value = "CAST(NULL AS BIGINT)" if bad["id"][0].as_py() is None else "-5"

    def merge(*, update: bool) -> None:
        source = pa.table({"key": pa.array([1 if update else 77], pa.int64()), "bad": bad["id"]})
        merger = DeltaTable(uri).merge(source, "t.id = s.key", source_alias="s", target_alias="t")
        if update:
            merger.when_matched_update({"id": "s.bad"}).execute()
        else:
            merger.when_not_matched_insert({"id": "s.bad", "part": "'a'"}).execute()

    def inside() -> None:
        with catalog.transaction() as tx:
            tx.write("t", ids(5))
            tx.write("t", bad)

    for way in (
        lambda: write_deltalake(uri, bad, mode="append"),
        lambda: write_deltalake(uri, bad, mode="overwrite"),
        lambda: write_deltalake(uri, bad, mode="overwrite", predicate="id = 1"),
        lambda: deltalake.write_deltalake(DeltaTable(uri), bad, mode="append"),
        lambda: DeltaTable(uri).update({"id": value}),
        lambda: merge(update=True),
        lambda: merge(update=False),
        inside,
    ):
        with pytest.raises(Exception):  # noqa: B017 - delta-rs has many classes for this
            way()
        assert ids_of(DeltaTable(uri)) == [1, 2]
        assert files_below(root_of(DeltaTable(uri))) == before


def _constrained(
    table_uri: TableUri,
    tmp_path: Path,
    protocol_: Any,
    configuration: dict[str, str],
    field: dict[str, Any],
) -> str:
    """An empty plain table with a constraint, taken over into the catalog."""
    plain = tmp_path / "plain"
    log = plain / "_delta_log"
    log.mkdir(parents=True)
    meta = metadata(schema_string=schema_with(field), partition_columns=(), configuration=configuration)
    lines = [{"protocol": protocol_.to_dict()}, {"metaData": meta.to_dict()}]
    (log / f"{0:020}.json").write_text("\n".join(json.dumps(line) for line in lines))
    uri = table_uri("t", location=str(plain))
    import_table(str(plain), uri)
    return uri


def test_generated_columns_are_computed_and_a_wrong_value_is_refused(
    table_uri: TableUri, tmp_path: Path
) -> None:
    uri = _generated(table_uri, tmp_path)
    good = pa.table({"id": pa.array([1, 2], pa.int64()), "double": pa.array([2, 4], pa.int64())})
    write_deltalake(uri, good, mode="append")
    wrong = pa.table({"id": pa.array([3], pa.int64()), "double": pa.array([7], pa.int64())})
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception):  # noqa: B017
            write_deltalake(uri, wrong, mode=mode)
    missing = pa.table({"id": pa.array([5], pa.int64())})
    with contextlib.suppress(Exception):  # refused is right too, wrong rows are not
        write_deltalake(uri, missing, mode="append")
    rows = DeltaTable(uri).to_pyarrow_table().to_pylist()
    assert all(r["double"] == 2 * r["id"] for r in rows), rows


def _generated(table_uri: TableUri, tmp_path: Path) -> str:
    plain = tmp_path / "plain"
    (plain / "_delta_log").mkdir(parents=True)
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {
            "name": "double",
            "type": "long",
            "nullable": True,
            "metadata": {"delta.generationExpression": "id * 2"},
        },
    ]
    meta = metadata(schema_string=json.dumps({"type": "struct", "fields": fields}), partition_columns=())
    lines = [{"protocol": protocol(min_writer_version=4).to_dict()}, {"metaData": meta.to_dict()}]
    (plain / "_delta_log" / f"{0:020}.json").write_text("\n".join(json.dumps(line) for line in lines))
    uri = table_uri("t", location=str(plain))
    import_table(str(plain), uri)
    return uri


@pytest.mark.parametrize("named", [True, False])
def test_tables_with_identity_columns_are_not_written(
    catalog: Catalog, table_uri: TableUri, tmp_path: Path, named: bool
) -> None:
    identity = {
        "delta.identity.start": 1,
        "delta.identity.step": 1,
        "delta.identity.allowExplicitInsert": False,
    }
    kind = features("identityColumns") if named else protocol(min_writer_version=6)
    uri = _constrained(table_uri, tmp_path, kind, {}, {"metadata": identity})

    def inside() -> None:
        with catalog.transaction() as tx:
            tx.write("t", ids(1))

    for way in (
        lambda: write_deltalake(uri, ids(1), mode="append"),
        lambda: write_deltalake(uri, ids(1), mode="overwrite"),
        lambda: DeltaTable(uri).delete(),
        inside,
    ):
        with pytest.raises(UnsupportedFeatureError):
            way()
    assert DeltaTable(uri).version() == 0
    assert {n.split("/")[0] for n in files_below(root_of(DeltaTable(uri)))} == {"_delta_log"}
